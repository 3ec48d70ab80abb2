//! Errors, each of which says what to do.

use std::io;
use std::net::IpAddr;

use rxe_proto::wire::ROCE_UDP_PORT;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address is not that of one host.
    #[error("{0} is not the address of a host: give an address of an interface of this machine")]
    NotUnicast(IpAddr),
    /// No interface has the address.
    #[error("no interface of this machine has the address {address}; {available}")]
    NotLocal {
        /// The address.
        address: IpAddr,
        /// A sentence about the addresses that exist.
        available: String,
    },
    /// Another socket has the UDP port of the address.
    #[error(
        "UDP port {ROCE_UDP_PORT} of {0} is in use: another rxe-run program has it, or the kernel's rdma_rxe is loaded; use \
         --address"
    )]
    InUse(IpAddr),
    /// An interface has the address, which the kernel does not let anybody use before its duplicate address detection has ended.
    #[error(
        "{0} cannot be used: if `ip address` shows it as tentative, try again in two seconds; if as dadfailed, another station has it: \
         give another address"
    )]
    Tentative(IpAddr),
    /// Another error of the operating system.
    #[error("cannot {action} for {address}: {source}")]
    System {
        /// The step that failed.
        action: &'static str,
        /// The address of the port.
        address: IpAddr,
        /// The error.
        source: io::Error,
    },
}

/// Why a multicast group could not be joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The address is not a multicast address, or not of the IP version of the port.
    #[error(
        "{group} is not a multicast group that the port at {address} can join: it must be one of the same IP version"
    )]
    NotAGroup {
        /// The address that is not.
        group: IpAddr,
        /// The address of the port.
        address: IpAddr,
    },
    /// The port is a member of as many groups as it can be.
    #[error("cannot join {group}: the port at {address} is a member of {limit} multicast groups, the maximum")]
    TooMany {
        /// The group.
        group: IpAddr,
        /// The address of the port.
        address: IpAddr,
        /// Maximum number of groups.
        limit: usize,
    },
    /// An error of the operating system.
    #[error("cannot join the multicast group {group} on {interface}: {source}")]
    System {
        /// The group.
        group: IpAddr,
        /// Name of the interface.
        interface: String,
        /// The error.
        source: io::Error,
    },
}

/// Why there is no route to a destination.
#[derive(Debug, thiserror::Error)]
#[error("{destination} cannot be reached from {source_address}: {error}")]
pub struct RouteError {
    /// The destination.
    pub destination: IpAddr,
    /// The address that packets would come from, or an unspecified address.
    pub source_address: IpAddr,
    /// The error of the operating system.
    pub error: io::Error,
}
