//! How MADs travel, and what the connection manager asks about our own addresses.

use std::net::IpAddr;

use crate::wire::{Gid, MacAddr, PathMtu, PortId};

/// How a MAD came in; an answer goes back along it. "Local" is always our side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadPath {
    /// The port it came in by.
    pub port: PortId,
    /// Our Ethernet address.
    pub local_mac: MacAddr,
    /// The peer's Ethernet address, or its router's.
    pub peer_mac: MacAddr,
    /// Tag control information, if tagged.
    pub vlan: Option<u16>,
    /// Our IP address.
    pub local: Gid,
    /// The peer's IP address.
    pub peer: Gid,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
}

/// What the connection manager needs to know about our own ports.
pub trait LocalAddresses {
    /// Whether `gid` is one of our addresses on `port`.
    fn is_local(&self, port: PortId, gid: Gid) -> bool;
    /// The largest path MTU that `port` carries.
    fn path_mtu(&self, port: PortId) -> PathMtu;
    /// Whether `gid` is a broadcast address of a network of `port`.
    fn is_broadcast(&self, port: PortId, gid: Gid) -> bool {
        let _ = (port, gid);
        false
    }
    /// Whether `gid` can be the address of one host that talks to us along `path`. A loopback address is one only where
    /// our own is, too.
    fn is_peer(&self, path: &MadPath, gid: Gid) -> bool {
        is_host(gid.ip())
            && !self.is_broadcast(path.port, gid)
            && (!gid.ip().is_loopback() || path.local.ip().is_loopback())
    }
}

/// Whether an address can be that of one host.
pub(super) fn is_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast()),
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
    }
}
