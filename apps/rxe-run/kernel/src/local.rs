//! The address of the adapter and the interface below it.

use std::net::IpAddr;

use rxe_proto::cm::LocalAddresses;
use rxe_proto::wire::{Gid, PathMtu, PortId};

/// The one port of the adapter. It stays as it is while the process lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// The address of the adapter's UDP socket.
    pub address: IpAddr,
    /// The GID table: entries 0 and 1 are that of `address`. A link-local `address` has one entry.
    pub gids: Vec<Gid>,
    /// The interface that has the address.
    pub interface: String,
    /// Index of the interface in the network namespace.
    pub ifindex: u32,
    /// Most payload of a packet.
    pub path_mtu: PathMtu,
    /// Identifies the adapter: stable for one address.
    pub node_guid: u64,
}

impl LocalAddresses for Local {
    fn is_local(&self, _port: PortId, gid: Gid) -> bool {
        self.gids.contains(&gid)
    }

    fn path_mtu(&self, _port: PortId) -> PathMtu {
        self.path_mtu
    }
}
