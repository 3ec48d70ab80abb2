//! What an adapter is told at start.

use std::net::IpAddr;
use std::path::PathBuf;

use super::idle::IdlePolicy;
use super::injector::FaultRule;
use crate::host::{Cidr, Route};
use rxe_proto::transport::EngineConfig;
use rxe_service::{Marking, RegionNames};

/// One port: its addresses and how to leave its networks.
#[derive(Clone, Debug, Default)]
pub struct PortSettings {
    /// Our addresses with their on-link prefixes, at least one.
    pub addresses: Vec<Cidr>,
    /// Default routers.
    pub gateways: Vec<IpAddr>,
    /// Further routes.
    pub routes: Vec<Route>,
    /// VLAN id (1 to 4094) that we live in; `None` is untagged.
    pub vlan: Option<u16>,
    /// IP MTU in bytes; `None` takes the port's own.
    pub mtu: Option<u16>,
}

/// A region to export under a name, or many of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionSettings {
    /// The name that clients ask for: 1 to 32 bytes.
    pub name: String,
    /// Length in bytes.
    pub size: usize,
    /// With a count, that many regions with the names `NAME0`, `NAME1` and so on, one behind the other, each from a multiple
    /// of 64 bytes on.
    pub count: Option<u32>,
    /// A file on hugetlbfs or /dev/shm to hold the bytes, so that other local processes can map them; `None` takes
    /// anonymous hugepages.
    pub file: Option<PathBuf>,
}

impl RegionSettings {
    /// The names that clients ask for.
    pub fn names(&self) -> RegionNames<'_> {
        RegionNames { name: &self.name, count: self.count }
    }
}

/// All that a [`Runtime`](super::Runtime) needs to know at start.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Settings by port number: one entry per DPDK port.
    pub ports: Vec<PortSettings>,
    /// Named regions.
    pub regions: Vec<RegionSettings>,
    /// What idle workers do.
    pub idle: IdlePolicy,
    /// Traffic class and priority of what we send.
    pub marking: Marking,
    /// Most connections at once.
    pub max_connections: usize,
    /// Most connections that are not established yet.
    pub max_pending: usize,
    /// Most connections that are requested by one address and not established yet.
    pub max_pending_per_peer: usize,
    /// Settings of the workers' engines; their `worker` and `seed` are set by the runtime.
    pub engine: EngineConfig,
    /// Faults to make on purpose, at most [`MAX_FAULTS`](super::MAX_FAULTS). None cost nothing.
    pub faults: Vec<FaultRule>,
    /// Secret randomness for keys, connection ids, PSNs and TCP sequence numbers; fresh for every start.
    pub seed: [u8; 32],
}

impl Default for RuntimeConfig {
    /// No ports, no regions, spinning, mirrored traffic class, 16,384 connections, the engines' defaults, no faults, a seed from the system.
    fn default() -> RuntimeConfig {
        RuntimeConfig {
            ports: Vec::new(),
            regions: Vec::new(),
            idle: IdlePolicy::Spin,
            marking: Marking::default(),
            max_connections: 16_384,
            max_pending: 8192,
            max_pending_per_peer: 4096,
            engine: EngineConfig::default(),
            faults: Vec::new(),
            seed: system_seed(),
        }
    }
}

/// 32 secret bytes of the operating system.
fn system_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    if let Err(error) = getrandom::fill(&mut seed) {
        // Keys that a peer can guess would be worse than no service.
        panic!("the operating system gives no random bytes: {error}");
    }
    seed
}
