//! The GIDs and the GUID of an address.

use std::net::{IpAddr, Ipv6Addr};

use rxe_proto::wire::{Gid, PathMtu};

use crate::local::Local;

impl Local {
    /// The port of an adapter with this address, which `interface` has.
    #[must_use]
    pub fn new(address: IpAddr, interface: String, ifindex: u32, path_mtu: PathMtu) -> Local {
        let node_guid = node_guid(address);
        Local { address, gids: gids(address), interface, ifindex, path_mtu, node_guid }
    }
}

/// A modified EUI-64 of a locally administered MAC address: `52:58` or, for IPv6, `52:59`, and four bytes of the address.
fn node_guid(address: IpAddr) -> u64 {
    let (prefix, [a, b, c, d]) = match address {
        IpAddr::V4(address) => (0x58, address.octets()),
        IpAddr::V6(address) => (0x59, folded(address)),
    };
    u64::from_be_bytes([0x50, prefix, a, 0xFF, 0xFE, b, c, d])
}

/// Four bytes that depend on all bytes of the address.
fn folded(address: Ipv6Addr) -> [u8; 4] {
    // FNV-1a.
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    address.octets().into_iter().fold(0x811C_9DC5, hash).to_be_bytes()
}

fn gids(address: IpAddr) -> Vec<Gid> {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => vec![address.into()],
        // In Linux entry 0 is a link-local GID. Many programs use it without asking, and nothing can be sent from it here.
        address => vec![address.into(); 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(address: &str) -> Local {
        Local::new(address.parse().unwrap(), "lo".to_owned(), 1, PathMtu::Mtu4096)
    }

    #[test]
    fn the_guid_contains_an_ipv4_address() {
        let local = local("127.44.55.66");
        assert_eq!(local.node_guid, 0x5058_7FFF_FE2C_3742);
        let gids: Vec<String> = local.gids.iter().map(Gid::to_string).collect();
        assert_eq!(gids, ["::ffff:127.44.55.66", "::ffff:127.44.55.66"]);
    }

    #[test]
    fn a_link_local_address_is_the_only_gid() {
        let gids = local("fe80::1:2").gids;
        assert_eq!(gids, [Gid::from("fe80::1:2".parse::<IpAddr>().unwrap())]);
        let gids = local("fd00::1").gids;
        assert_eq!((gids.len(), gids[1]), (2, Gid::from("fd00::1".parse::<IpAddr>().unwrap())));
    }

    #[test]
    fn ipv6_addresses_have_different_guids() {
        let guid = |address: &str| local(address).node_guid;
        assert_ne!(guid("fd00::1"), guid("fd00::2"));
        assert_ne!(guid("fd00::1"), guid("fd01::1"));
        assert_eq!(guid("fd00::1") >> 48, 0x5059);
    }
}
