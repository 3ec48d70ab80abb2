//! Finds the interface that has an address.

use std::io;
use std::net::{IpAddr, Ipv6Addr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;
use rxe_proto::wire::{Gid, PathMtu};

use crate::local::Local;

/// Bytes of a packet's headers and ICRC at most: IPv6, UDP, BTH, the longest extension headers, ICRC.
const HEADERS: usize = 40 + 8 + 12 + 28 + 4;
/// IP MTU of an interface that does not tell it.
const DEFAULT_MTU: usize = 1500;

impl Local {
    /// The port of an adapter with this address of the machine.
    ///
    /// # Errors
    /// No interface has the address, or the interfaces cannot be listed.
    pub fn new(address: IpAddr) -> io::Result<Local> {
        let interface = interface_of(address)?;
        let ifindex = if_nametoindex(interface.as_str())?;
        let mtu = mtu(&interface).unwrap_or(DEFAULT_MTU);
        let path_mtu = PathMtu::at_most(mtu.saturating_sub(HEADERS)).unwrap_or(PathMtu::Mtu256);
        let node_guid = node_guid(address);
        Ok(Local { address, gids: gids(address, node_guid), interface, ifindex, path_mtu, node_guid })
    }
}

/// The interface with the address. All addresses in the network of a loopback interface are the machine's, as 127.0.0.2 is.
fn interface_of(address: IpAddr) -> io::Result<String> {
    let mut loopback = None;
    for candidate in getifaddrs()? {
        let Some(ip) = candidate.address.as_ref().and_then(ip) else { continue };
        if ip == address {
            return Ok(candidate.interface_name);
        }
        let mask = candidate.netmask.as_ref().and_then(self::ip);
        let same_network =
            mask.is_some_and(|mask| network(ip, mask).is_some_and(|own| network(address, mask) == Some(own)));
        if candidate.flags.contains(InterfaceFlags::IFF_LOOPBACK) && same_network {
            loopback = Some(candidate.interface_name);
        }
    }
    loopback.ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
        _ => None,
    }
}

/// The network of `address`; `None` when the mask is one of the other family.
fn network(address: IpAddr, mask: IpAddr) -> Option<u128> {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => Some(u128::from((address & mask).to_bits())),
        (IpAddr::V6(address), IpAddr::V6(mask)) => Some((address & mask).to_bits()),
        _ => None,
    }
}

fn mtu(interface: &str) -> Option<usize> {
    std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).ok()?.trim().parse().ok()
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

fn gids(address: IpAddr, node_guid: u64) -> Vec<Gid> {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => vec![address.into()],
        address => vec![Ipv6Addr::from_bits(0xFE80 << 112 | u128::from(node_guid)).into(), address.into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(address: &str) -> io::Result<Local> {
        Local::new(address.parse().unwrap())
    }

    #[test]
    fn every_address_of_the_loopback_network_is_local() {
        for (address, guid) in [("127.0.0.1", 0x5058_7FFF_FE00_0001), ("127.44.55.66", 0x5058_7FFF_FE2C_3742)] {
            let local = local(address).unwrap();
            assert_eq!((local.interface.as_str(), local.ifindex, local.node_guid), ("lo", 1, guid));
            assert_eq!(local.path_mtu, PathMtu::Mtu4096);
            let gids: Vec<String> = local.gids.iter().map(Gid::to_string).collect();
            assert_eq!(gids[1], format!("::ffff:{address}"));
            assert!(gids[0].starts_with("fe80::5058:7fff:fe"), "{gids:?}");
        }
    }

    #[test]
    fn an_address_of_no_interface_is_an_error() {
        for address in ["192.0.2.77", "2001:db8::77"] {
            assert_eq!(local(address).unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
        }
    }

    #[test]
    fn link_local_addresses_are_the_only_gid() {
        let address = "fe80::1:2".parse().unwrap();
        assert_eq!(gids(address, node_guid(address)), [Gid::from(address)]);
        let address = "fd00::1".parse().unwrap();
        let gids = gids(address, node_guid(address));
        assert_eq!((gids.len(), gids[1]), (2, Gid::from(address)));
    }

    #[test]
    fn ipv6_addresses_have_different_guids() {
        let guid = |address: &str| node_guid(address.parse().unwrap());
        assert_ne!(guid("fd00::1"), guid("fd00::2"));
        assert_ne!(guid("fd00::1"), guid("fd01::1"));
        assert_eq!(guid("fd00::1") >> 48, 0x5059);
    }
}
