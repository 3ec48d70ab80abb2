//! The MAC addresses of multicast groups.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_proto::wire::MacAddr;

/// The first bytes of the MAC addresses of all IPv4 groups.
pub const IPV4_GROUP_OUI: [u8; 3] = [0x01, 0x00, 0x5E];

/// The destination MAC address of frames to a multicast group; `None` when `ip` is not a multicast address.
pub fn multicast_mac(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(group) if group.is_multicast() => Some(multicast_mac_v4(group)),
        IpAddr::V6(group) if group.is_multicast() => Some(multicast_mac_v6(group)),
        _ => None,
    }
}

/// The MAC addresses at which frames to a group may arrive: its own, and for IPv4 the one of its IPv4-mapped address,
/// on which soft-RoCE listens.
pub fn group_macs(group: IpAddr) -> impl Iterator<Item = MacAddr> {
    let mapped = match group {
        IpAddr::V4(ip) if ip.is_multicast() => Some(multicast_mac_v6(ip.to_ipv6_mapped())),
        _ => None,
    };
    multicast_mac(group).into_iter().chain(mapped)
}

/// The MAC address of an IPv6 group (RFC 2464 section 7).
pub fn multicast_mac_v6(group: Ipv6Addr) -> MacAddr {
    let o = group.octets();
    // compliance.md [HOST-GROUP-MAC]: A group's MAC address follows from its IP address.
    MacAddr([0x33, 0x33, o[12], o[13], o[14], o[15]])
}

/// The MAC address of an IPv4 group (RFC 1112 section 6.4).
pub fn multicast_mac_v4(group: Ipv4Addr) -> MacAddr {
    let o = group.octets();
    let [a, b, c] = IPV4_GROUP_OUI;
    // compliance.md [HOST-GROUP-MAC]: A group's MAC address follows from its IP address.
    MacAddr([a, b, c, o[1] & 0x7F, o[2], o[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_group_keeps_23_bits_in_its_mac() {
        assert_eq!(multicast_mac_v4([239, 129, 2, 3].into()).to_string(), "01:00:5e:01:02:03");
    }
}
