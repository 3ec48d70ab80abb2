//! A port, as services see it.

use std::net::IpAddr;

use rxe_proto::wire::{Gid, MacAddr, PathMtu, PortId, PrefixList};

/// A port of the adapter: the addresses that peers use for it, and the local part of a
/// [`Path`](rxe_proto::wire::Path).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Its number.
    pub id: PortId,
    /// Ethernet address.
    pub mac: MacAddr,
    /// Tag control information (priority and VLAN id) of transmitted frames; `None` for untagged.
    pub vlan: Option<u16>,
    /// IP addresses in order of preference, the link-local one last.
    pub addresses: Vec<IpAddr>,
    /// The addresses that the port serves; `None` for all.
    pub peers: Option<PrefixList>,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Largest path MTU that the IP MTU carries.
    pub path_mtu: PathMtu,
}

impl LocalPort {
    /// The GID table: the addresses as GIDs.
    pub fn gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.addresses.iter().map(|ip| Gid::from(*ip))
    }
}
