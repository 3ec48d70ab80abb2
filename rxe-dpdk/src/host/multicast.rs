//! Well-known multicast groups.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The IPv4 group of all hosts on the link. Every host is a member, so it is never reported.
pub(super) const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// The IPv6 group of all hosts on the link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// The group to which solicitations for the MAC address of `ip` go (RFC 4291 section 2.7.1).
pub(super) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00 | u16::from(o[13]), u16::from_be_bytes([o[14], o[15]]))
}
