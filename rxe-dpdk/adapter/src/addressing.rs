//! The addresses and routes of a port, and the conflicts of its addresses with those of other stations.

use std::net::IpAddr;
use std::sync::Arc;

use rxe_proto::wire::{Cidr, MacAddr};
use rxe_sync::Latest;

/// A network that is reached through a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network.
    pub to: Cidr,
    /// The router's address, itself on a network of ours.
    pub via: IpAddr,
}

/// The addresses and routes of a port, which may change while the adapter runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addressing {
    /// Our addresses with their on-link prefixes, preferred ones first. A port with a MAC address adds `fe80::EUI-64`.
    pub addresses: Vec<Cidr>,
    /// Default routers: the first IPv4 and the first IPv6 one are used.
    pub gateways: Vec<IpAddr>,
    /// Routes, applied by longest prefix and before the default routers.
    pub routes: Vec<Route>,
}

/// The conflicts of one address, for other threads.
#[derive(Debug)]
pub struct AddressConflicts {
    ip: IpAddr,
    /// The MAC address of the last station, in the low 48 bits, by the number of frames.
    last: Latest,
}

impl AddressConflicts {
    /// No conflicts of the address `ip`.
    pub fn new(ip: IpAddr) -> AddressConflicts {
        AddressConflicts { ip, last: Latest::default() }
    }

    /// Our address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Number of frames in which other stations claimed the address.
    pub fn frames(&self) -> u64 {
        self.last.count()
    }

    /// The station that claimed it last; `None` before the first conflict.
    pub fn station(&self) -> Option<MacAddr> {
        let [_, _, mac @ ..] = self.last.get()?.1.to_be_bytes();
        Some(MacAddr(mac))
    }

    /// Counts a frame in which the station `mac` claimed the address, and returns the number of frames. Called by one thread
    /// only.
    pub fn count(&self, mac: MacAddr) -> u64 {
        let [a, b, c, d, e, f] = mac.0;
        self.last.set(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }
}

/// The conflicts of all addresses of a port. A change of the addresses replaces the list, and keeps the entries of those that
/// stay.
pub type ConflictReports = Arc<[Arc<AddressConflicts>]>;
