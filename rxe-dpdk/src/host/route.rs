//! Which addresses are ours, which neighbour a packet goes to and which address it comes from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_proto::wire::MacAddr;

use super::config::{Cidr, HostConfig, Route, common_prefix};

/// The IPv6 group of all hosts on the link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// Addresses and routes; fixed from the start.
pub(super) struct Routing {
    /// Ours, preferred ones first, the link-local one last.
    addresses: Vec<Cidr>,
    /// Longest prefix first, the default routers included.
    routes: Vec<Route>,
    /// The MACs of the groups that we listen to.
    multicast_macs: Vec<MacAddr>,
}

impl Routing {
    /// The tables for a configuration that was checked.
    pub(super) fn new(config: &HostConfig) -> Routing {
        let mut addresses = config.addresses.clone();
        let link_local = IpAddr::V6(config.link_local());
        if !addresses.iter().any(|a| a.ip == link_local) {
            addresses.push(Cidr::new(link_local, 64));
        }
        let default = |via: &IpAddr| {
            let any: IpAddr = if via.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            Route { to: Cidr::new(any, 0), via: *via }
        };
        let mut routes = config.routes.clone();
        routes.extend(config.gateways.iter().map(default));
        // Stable: of two equal prefixes the first named one wins.
        routes.sort_by_key(|route| std::cmp::Reverse(route.to.prefix));
        let mut routing = Routing { addresses, routes, multicast_macs: Vec::new() };
        let groups = std::iter::once(ALL_NODES).chain(routing.addresses_v6().map(solicited_node));
        routing.multicast_macs = groups.map(multicast_mac_v6).collect();
        routing.multicast_macs.sort_by_key(|mac| mac.0);
        routing.multicast_macs.dedup();
        routing
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(|a| a.ip)
    }

    pub(super) fn addresses_v6(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.addresses().filter_map(|ip| match ip {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        })
    }

    pub(super) fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.ip == ip)
    }

    /// Whether `ip` is a group that we listen to.
    pub(super) fn listens_to(&self, ip: Ipv6Addr) -> bool {
        ip == ALL_NODES || self.addresses_v6().any(|own| solicited_node(own) == ip)
    }

    /// Whether `ip` is an address by which all IPv4 hosts of a network of ours are meant.
    pub(super) fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip.is_broadcast() || self.addresses.iter().any(|a| a.broadcast() == Some(ip))
    }

    /// Whether `ip` is in a network that we are in.
    pub(super) fn is_on_link(&self, ip: IpAddr) -> bool {
        self.on_link_prefix(ip).is_some()
    }

    fn on_link_prefix(&self, ip: IpAddr) -> Option<u8> {
        self.addresses.iter().filter(|a| a.contains(ip)).map(|a| a.prefix).max()
    }

    /// The neighbour to which packets for `dst` go: `dst` itself or a router. `None` without a route.
    pub(super) fn next_hop(&self, dst: IpAddr) -> Option<IpAddr> {
        let on_link = self.on_link_prefix(dst);
        let route = self.routes.iter().find(|route| route.to.contains(dst));
        match (on_link, route) {
            (Some(prefix), Some(route)) if route.to.prefix > prefix => Some(route.via),
            (Some(_), _) => Some(dst),
            (None, route) => route.map(|route| route.via),
        }
    }

    /// The address that packets to `dst` by way of `next_hop` come from. `None` when we have none of that family.
    ///
    /// An address on the next hop's network comes before others, then (IPv4) the one with the longest prefix or (IPv6)
    /// the one that shares the most bits with `dst`, then the one named first. Link-local addresses serve link-local
    /// peers; others only when nothing else is there.
    pub(super) fn source(&self, dst: IpAddr, next_hop: IpAddr) -> Option<IpAddr> {
        let rank = |a: &Cidr| match (a.ip, dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) => Some((true, a.contains(next_hop), a.prefix)),
            (IpAddr::V6(ip), IpAddr::V6(dst)) => Some((
                is_link_scope(ip) == is_link_scope(dst),
                a.contains(next_hop),
                common_prefix(ip.to_bits(), dst.to_bits(), 128),
            )),
            _ => None,
        };
        // The last of equals wins in `max_by_key`, so look from the back.
        self.addresses
            .iter()
            .rev()
            .filter_map(|a| Some((rank(a)?, a.ip)))
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, ip)| ip)
    }

    /// The group MACs to which frames for us may go.
    pub(super) fn multicast_macs(&self) -> &[MacAddr] {
        &self.multicast_macs
    }
}

fn is_link_scope(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || (ip.is_multicast() && ip.segments()[0] & 0xF == 2)
}

/// The group through which `ip`'s MAC is asked for (RFC 4291 section 2.7.1).
pub(super) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00 | u16::from(o[13]), u16::from_be_bytes([o[14], o[15]]))
}

/// The MAC that frames to a multicast group have; `None` when `ip` is no group.
pub fn multicast_mac(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(group) if group.is_multicast() => Some(multicast_mac_v4(group)),
        IpAddr::V6(group) if group.is_multicast() => Some(multicast_mac_v6(group)),
        _ => None,
    }
}

/// The MACs to which frames to a group may go: its own, and for IPv4 the one of its IPv4-mapped address, which
/// soft-RoCE listens to.
pub(crate) fn group_macs(group: IpAddr) -> impl Iterator<Item = MacAddr> {
    let mapped = match group {
        IpAddr::V4(ip) if ip.is_multicast() => Some(multicast_mac_v6(ip.to_ipv6_mapped())),
        _ => None,
    };
    multicast_mac(group).into_iter().chain(mapped)
}

/// The MAC that frames to an IPv6 group have (RFC 2464 section 7).
pub(super) fn multicast_mac_v6(group: Ipv6Addr) -> MacAddr {
    let o = group.octets();
    // [HOST-GROUP-MAC]
    MacAddr([0x33, 0x33, o[12], o[13], o[14], o[15]])
}

/// The MAC that frames to an IPv4 group have (RFC 1112 section 6.4).
pub(super) fn multicast_mac_v4(group: Ipv4Addr) -> MacAddr {
    let o = group.octets();
    // [HOST-GROUP-MAC]
    MacAddr([0x01, 0x00, 0x5E, o[1] & 0x7F, o[2], o[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn routing(addresses: &[&str], gateways: &[&str], routes: &[(&str, &str)]) -> Routing {
        let config = HostConfig {
            mac: MacAddr([0x52, 0x54, 0, 0, 0, 0x0A]),
            addresses: addresses.iter().map(|a| a.parse().expect("a CIDR")).collect(),
            gateways: gateways.iter().map(|g| ip(g)).collect(),
            routes: routes.iter().map(|(to, via)| Route { to: to.parse().expect("a CIDR"), via: ip(via) }).collect(),
            ..HostConfig::default()
        };
        config.check().expect("a good configuration");
        Routing::new(&config)
    }

    #[test]
    fn longest_prefix_wins() {
        let r = routing(
            &["10.0.0.1/16", "10.0.9.1/24", "fd00::1/64"],
            &["10.0.0.254", "fe80::fe"],
            &[("10.0.5.0/24", "10.0.0.5"), ("172.16.0.0/12", "10.0.0.6"), ("172.16.1.0/24", "10.0.0.7")],
        );
        let hop = |dst: &str| r.next_hop(ip(dst)).expect("a route").to_string();
        assert_eq!(hop("10.0.1.2"), "10.0.1.2");
        assert_eq!(hop("10.0.5.2"), "10.0.0.5", "a longer route beats a shorter network of ours");
        assert_eq!(hop("172.16.9.9"), "10.0.0.6");
        assert_eq!(hop("172.16.1.9"), "10.0.0.7");
        assert_eq!(hop("8.8.8.8"), "10.0.0.254");
        assert_eq!(hop("fd00::2"), "fd00::2");
        assert_eq!(hop("fd01::2"), "fe80::fe");
        assert_eq!(hop("fe80::2"), "fe80::2");
        let bare = routing(&["10.0.0.1/16"], &[], &[]);
        assert_eq!(bare.next_hop(ip("8.8.8.8")), None);
        assert_eq!(bare.next_hop(ip("fd00::1")), None);
    }

    #[test]
    fn the_source_is_on_the_way() {
        let r = routing(
            &["10.0.0.1/24", "10.0.0.9/24", "192.168.1.1/24", "fd00::1/64", "fd01::1/64"],
            &["192.168.1.254", "fe80::fe"],
            &[],
        );
        let source = |dst: &str| {
            let dst = ip(dst);
            r.source(dst, r.next_hop(dst).expect("a route")).expect("an address").to_string()
        };
        assert_eq!(source("10.0.0.14"), "10.0.0.1", "of equals the first");
        assert_eq!(source("8.8.8.8"), "192.168.1.1", "on the router's network");
        assert_eq!(source("fd01::7"), "fd01::1");
        assert_eq!(source("2001:db8::1"), "fd00::1", "not the link-local one, though it is on the router's network");
        assert_eq!(source("fe80::2"), "fe80::5054:ff:fe00:a");
        let v4 = routing(&["10.0.0.1/24"], &[], &[]);
        assert_eq!(v4.source(ip("fd00::1"), ip("fd00::1")).map(|a| a.to_string()), Some("fe80::5054:ff:fe00:a".into()));
        let v6 = routing(&["fd00::1/64"], &[], &[]);
        assert_eq!(v6.source(ip("10.0.0.1"), ip("10.0.0.1")), None);
    }

    #[test]
    fn groups_follow_the_addresses() {
        let r = routing(&["fd00:77::1/64", "fd00:78::1/64", "10.0.0.1/24"], &[], &[]);
        let macs: Vec<String> = r.multicast_macs().iter().map(MacAddr::to_string).collect();
        assert_eq!(macs, ["33:33:00:00:00:01", "33:33:ff:00:00:01", "33:33:ff:00:00:0a"]);
        assert!(r.listens_to("ff02::1:ff00:a".parse().expect("an address")));
        assert!(!r.listens_to("ff02::1:ff00:b".parse().expect("an address")));
        assert!(r.is_broadcast([10, 0, 0, 255].into()) && r.is_broadcast(Ipv4Addr::BROADCAST));
        assert_eq!(multicast_mac_v4([239, 129, 2, 3].into()).to_string(), "01:00:5e:01:02:03");
    }
}
