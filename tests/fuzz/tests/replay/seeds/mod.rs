//! The seeds of the corpora: taken from the recorded captures where the target reads what goes over the wire.

mod checksum_file;
mod cm;
mod engine;
mod inspect;
mod nvmf;
// Shared with the tests of rxe-nvmf, which look at all fields.
#[allow(dead_code, reason = "the seeds do not use all fields")]
#[path = "../../../../../rxe-dpdk/nvmf/tests/it/capture.rs"]
mod nvmf_capture;

use std::collections::BTreeMap;

use rxe_proto::wire::cm::CmMessage;
use rxe_proto::wire::{Frame, Transport, classify};
use rxe_testkit::pcap;

use super::Corpus;

/// The seeds of a target by file name.
pub fn of(target: &str) -> Corpus {
    match target {
        "wire" => frames(),
        "mad" => messages(),
        "cm" => cm::connections(),
        "responder" => engine::responder(),
        "requester" => engine::requester(),
        "inspect" => inspect::all(),
        "nvmf_target" => nvmf::targets(),
        "nvmf_host" => nvmf::hosts(),
        "checksum_file" => checksum_file::all(),
        other => panic!("no seeds for {other}"),
    }
}

/// Keeps the smallest input of each name.
fn keep(corpus: &mut Corpus, name: String, input: &[u8]) {
    let kept = corpus.entry(name).or_insert_with(|| input.to_vec());
    if input.len() < kept.len() {
        *kept = input.to_vec();
    }
}

/// The shortest frame of each opcode and IP version, with and without VLAN tag, and of each kind for the host stack.
fn frames() -> Corpus {
    let mut corpus = BTreeMap::new();
    for (_, frames) in pcap::all() {
        for frame in &frames {
            let name = match classify(frame) {
                Ok(Frame::Roce(packet)) => {
                    let version = if packet.is_ipv4() { "ipv4" } else { "ipv6" };
                    let tag = if packet.vlan().is_some() { "-vlan" } else { "" };
                    format!("{}-{version}{tag}", packet.info().name.to_lowercase().replace([' ', '_'], "-"))
                }
                Ok(Frame::Host) => format!("host-{:02x}{:02x}-{:02x}", frame[12], frame[13], frame[23]),
                Err(reason) => format!("dropped-{}", reason.name().replace('_', "-")),
            };
            keep(&mut corpus, name, frame);
        }
    }
    corpus
}

/// The first message of each kind.
fn messages() -> Corpus {
    let mut corpus = BTreeMap::new();
    for (_, frames) in pcap::all() {
        for frame in &frames {
            if let Ok(Frame::Roce(packet)) = classify(frame)
                && packet.transport() == Transport::Ud
                && packet.dest_qp() == 1
                && let Ok((_, message)) = CmMessage::parse(packet.payload())
            {
                let name = message.name().to_lowercase().replace('_', "-");
                corpus.entry(name).or_insert_with(|| packet.payload().to_vec());
            }
        }
    }
    corpus
}
