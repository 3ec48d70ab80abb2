//! The configuration of an adapter, whatever its ports are.

use std::collections::HashMap;
use std::net::IpAddr;

use rxe_proto::transport::EngineConfig;
use rxe_proto::wire::{Cidr, PrefixList};
use rxe_service::{Restrictions, TrafficClassConfig};

use crate::addressing::Route;
use crate::manage::RegionSettings;
use crate::worker::{FaultRule, IdlePolicy};

/// One port: its addresses and routes.
#[derive(Clone, Debug, Default)]
pub struct PortSettings {
    /// Addresses with their on-link prefixes, at least one.
    pub addresses: Vec<Cidr>,
    /// Default routers.
    pub gateways: Vec<IpAddr>,
    /// Further routes.
    pub routes: Vec<Route>,
    /// Whom the port does not serve.
    pub restrictions: Restrictions,
    /// VLAN id (1 to 4094); `None` is untagged.
    pub vlan: Option<u16>,
    /// IP MTU in bytes; `None` is 4200, or what the port supports.
    pub mtu: Option<u16>,
}

/// The configuration of an adapter.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Settings by port number, one entry per port.
    pub ports: Vec<PortSettings>,
    /// Named regions.
    pub regions: Vec<RegionSettings>,
    /// The allowed peers of single services, by service name; the others serve everyone.
    pub service_peers: HashMap<String, PrefixList>,
    /// How idle workers wait.
    pub idle: IdlePolicy,
    /// Traffic class and priority of sent packets.
    pub traffic_class: TrafficClassConfig,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Maximum number of connections of one peer address.
    pub max_connections_per_peer: usize,
    /// Maximum number of connections that are not established yet.
    pub max_pending: usize,
    /// Maximum number of those of one peer address.
    pub max_pending_per_peer: usize,
    /// Most connection and SIDR requests per second of one peer address; 0 is no limit.
    pub requests_per_second: u32,
    /// Settings of the workers' engines; their `worker` and `seed` are set by the runtime.
    pub engine: EngineConfig,
    /// Fault rules, at most [`MAX_FAULTS`](crate::worker::MAX_FAULTS).
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
            service_peers: HashMap::new(),
            idle: IdlePolicy::Spin,
            traffic_class: TrafficClassConfig::default(),
            max_connections: 16_384,
            max_connections_per_peer: 16_384,
            max_pending: 8192,
            max_pending_per_peer: 4096,
            requests_per_second: 0,
            engine: EngineConfig::default(),
            faults: Vec::new(),
            seed: system_seed(),
        }
    }
}

/// 32 random bytes from the operating system.
fn system_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    if let Err(error) = getrandom::fill(&mut seed) {
        // Without secret randomness, peers could guess keys.
        panic!("the operating system gives no random bytes: {error}");
    }
    seed
}
