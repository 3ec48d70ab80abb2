//! Fuzz targets: pure functions of bytes. Each one panics if an invariant of the code under test is violated.
//!
//! * [`wire`]: a frame, through classification and the packet builder.
//! * [`mad`]: a management datagram, through the parsers and writers of the connection manager's messages.
//! * [`cm`]: the connection manager, with peers that send anything and a local side that calls its commands.
//! * [`engine`]: the transport engine: requests of peers, responses to our own requests, local commands.
//! * [`inspect`]: the management protocol, requests and answers.
//! * [`nvmf`]: NVMe over Fabrics, the target with any hosts and the host with any target.
//! * [`checksum_file`]: the file of checksums beside a namespace.
//!
//! tests/replay runs them on the committed corpora and on mutations of these, with a stable toolchain; the folder `fuzz`
//! has a libFuzzer program for each. CONTRIBUTING.md describes both.

pub mod checksum_file;
pub mod cm;
pub mod engine;
pub mod input;
pub mod inspect;
pub mod mad;
pub mod nvmf;
mod rebuild;
pub mod wire;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its module, its corpus folder and its libFuzzer program.
    pub name: &'static str,
    /// Runs it on one input.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: [Target; 9] = [
    Target { name: "wire", run: wire::run },
    Target { name: "mad", run: mad::run },
    Target { name: "cm", run: cm::run },
    Target { name: "responder", run: engine::responder },
    Target { name: "requester", run: engine::requester },
    Target { name: "inspect", run: inspect::run },
    Target { name: "nvmf_target", run: nvmf::target::run },
    Target { name: "nvmf_host", run: nvmf::host::run },
    Target { name: "checksum_file", run: checksum_file::run },
];
