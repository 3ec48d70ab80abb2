//! The parameters of a run.

use std::net::{IpAddr, SocketAddr};

use clap::ValueEnum;
use rxe_nvmf::wire::Nqn;
use rxe_proto::wire::{Cidr, PathMtu};

use crate::plan::{Json, Length};
use crate::run::Wiring;

/// The order of the I/Os, and whether they read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Workload {
    /// Reads in sequence
    Read,
    /// Writes in sequence
    Write,
    /// Reads at random places
    RandRead,
    /// Writes at random places
    RandWrite,
    /// Reads and writes in sequence
    Rw,
    /// Reads and writes at random places
    RandRw,
}

impl Workload {
    /// Whether the places are random.
    pub fn is_random(self) -> bool {
        matches!(self, Workload::RandRead | Workload::RandWrite | Workload::RandRw)
    }

    /// Whether the workload both reads and writes.
    pub fn is_mixed(self) -> bool {
        matches!(self, Workload::Rw | Workload::RandRw)
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A run.
#[derive(Clone, Debug)]
pub struct NvmePlan {
    pub eal_args: Vec<String>,
    /// On a UDP socket at `address`, without DPDK.
    pub udp: bool,
    /// Address of the bench.
    pub address: Cidr,
    /// The target.
    pub peer: SocketAddr,
    /// The router to it, if it is in another network.
    pub gateway: Option<IpAddr>,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host's name.
    pub host_nqn: Nqn,
    /// The host's UUID.
    pub host_id: [u8; 16],
    /// NSID.
    pub namespace: u32,
    /// Number of I/O queues, at least 1.
    pub queues: u16,
    /// Outstanding I/Os of a queue, at least 1.
    pub depth: u16,
    /// Bytes of an I/O.
    pub size: u32,
    pub workload: Workload,
    /// Percentage of reads.
    pub reads: u8,
    /// `Time` or `Endless`.
    pub length: Length,
    /// Time before the measurement.
    pub warm_up: std::time::Duration,
    /// Check the data that were written.
    pub verify: bool,
    /// `None` for the largest that the port supports.
    pub path_mtu: Option<PathMtu>,
    pub json: Option<Json>,
}

impl NvmePlan {
    /// Bytes of the data of all outstanding I/Os.
    pub fn data_len(&self) -> u64 {
        u64::from(self.queues) * u64::from(self.depth) * u64::from(self.size)
    }

    /// The connections and what is outstanding on them.
    pub fn wiring(&self) -> Wiring<'_> {
        Wiring {
            eal_args: &self.eal_args,
            udp: self.udp,
            address: self.address,
            gateway: self.gateway,
            connections: u32::from(self.queues) + 1,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;

    /// Random reads of 4096 bytes, 4 at a time, on one queue.
    pub fn plan() -> NvmePlan {
        NvmePlan {
            eal_args: Vec::new(),
            udp: true,
            address: "10.0.0.2/24".parse().expect("an address"),
            peer: "10.0.0.1:4420".parse().expect("an address"),
            gateway: None,
            subsystem: "nqn.2024-01.test:disk".parse().expect("an NQN"),
            host_nqn: "nqn.2024-01.host:one".parse().expect("an NQN"),
            host_id: [7; 16],
            namespace: 1,
            queues: 1,
            depth: 4,
            size: 4096,
            workload: Workload::RandRead,
            reads: 100,
            length: Length::Time(Duration::from_secs(1)),
            warm_up: Duration::ZERO,
            verify: false,
            path_mtu: None,
            json: None,
        }
    }
}
