//! Paths of MADs, and the local addresses that they are checked against.

use std::net::IpAddr;

use crate::wire::{Gid, MacAddr, PathMtu, PortId};

/// The path of a MAD. An answer uses the same path; "local" is always our side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadPath {
    /// The local port.
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

/// The addresses of the local ports.
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
    /// Whether `port` serves full members of the partition only.
    fn serves_full_members_only(&self, port: PortId) -> bool {
        let _ = port;
        false
    }
    /// Whether `gid` can be the address of a host that uses `path`. A loopback address can only if the local one is a
    /// loopback address, too.
    fn is_peer(&self, path: &MadPath, gid: Gid) -> bool {
        is_host(gid.ip())
            && !self.is_broadcast(path.port, gid)
            && (!gid.ip().is_loopback() || path.local.ip().is_loopback())
    }
}

/// Whether an address can belong to a single host.
pub(super) fn is_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast()),
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
    }
}
