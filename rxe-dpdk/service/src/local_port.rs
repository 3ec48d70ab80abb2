//! A port, as services see it.

use std::net::IpAddr;

use rxe_proto::wire::{Gid, MacAddr, PathMtu, PortId};

/// One of our ports, as services see it: what a peer must be told to find us, and what a
/// [`Path`](rxe_proto::wire::Path) of ours needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Its number.
    pub id: PortId,
    /// Our Ethernet address.
    pub mac: MacAddr,
    /// Tag control information (priority and VLAN id) of what we send; `None` is untagged.
    pub vlan: Option<u16>,
    /// Our IP addresses, preferred ones first, the link-local one last.
    pub addresses: Vec<IpAddr>,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Largest path MTU that the IP MTU carries.
    pub path_mtu: PathMtu,
}

impl LocalPort {
    /// Our addresses as GIDs: the port's GID table.
    pub fn gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.addresses.iter().map(|ip| Gid::from(*ip))
    }
}
