//! A port, as services see it.

use std::net::IpAddr;

use rxe_proto::wire::{Gid, MacAddr, PathMtu, PortId, PrefixList};

/// A port of the adapter: the addresses that peers use for it, and the local part of a
/// [`Path`](rxe_proto::wire::Path).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Number of the port.
    pub id: PortId,
    /// Ethernet address.
    pub mac: MacAddr,
    /// Tag control information (priority and VLAN id) of transmitted frames; `None` for untagged.
    pub vlan: Option<u16>,
    /// IP addresses in order of preference, the link-local one last.
    pub addresses: Vec<IpAddr>,
    /// Whom it does not serve.
    pub restrictions: Restrictions,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Largest path MTU that the IP MTU carries.
    pub path_mtu: PathMtu,
}

/// Restrictions of the peers of a port. The default serves everyone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// The addresses that are served; `None` for all.
    pub peers: Option<PrefixList>,
    /// Serve full members of the partition only: no packet with another P_Key than 0xFFFF.
    pub full_members_only: bool,
    /// Accept packets of a connection only from the MAC address that its peer, or the router to it, had when it connected.
    pub pin_mac: bool,
}

impl Restrictions {
    /// Whether everyone is served.
    pub fn is_none(&self) -> bool {
        *self == Restrictions::default()
    }
}

impl LocalPort {
    /// The GID table: the addresses as GIDs.
    pub fn gids(&self) -> impl Iterator<Item = Gid> + '_ {
        self.addresses.iter().map(|ip| Gid::from(*ip))
    }
}
