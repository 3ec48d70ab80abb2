//! Our addresses, the next hop of a packet and its source address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_proto::wire::MacAddr;

use rxe_proto::wire::{Cidr, common_prefix};

use crate::host::multicast::{ALL_NODES, solicited_node};
use crate::host::{HostConfig, Route};
use rxe_adapter::multicast::multicast_mac_v6;

/// Addresses and routes.
pub(in crate::host) struct Routing {
    /// Ours, preferred ones first, the link-local one last.
    addresses: Vec<Cidr>,
    /// Longest prefix first, the default routers included.
    routes: Vec<Route>,
}

impl Routing {
    /// The tables of a checked configuration.
    pub(in crate::host) fn new(config: &HostConfig) -> Routing {
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
        // A stable sort: of two equal prefixes the first one wins.
        routes.sort_by_key(|route| std::cmp::Reverse(route.to.prefix));
        Routing { addresses, routes }
    }

    pub(in crate::host) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().map(|a| a.ip)
    }

    pub(in crate::host) fn addresses_v6(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.addresses().filter_map(|ip| match ip {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        })
    }

    pub(in crate::host) fn owns(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.ip == ip)
    }

    /// Whether `ip` is a group that our IPv6 addresses make us a member of.
    pub(in crate::host) fn listens_to(&self, ip: Ipv6Addr) -> bool {
        ip == ALL_NODES || self.addresses_v6().any(|own| solicited_node(own) == ip)
    }

    /// Whether `ip` is a broadcast address, of one of our networks or of all.
    pub(in crate::host) fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip.is_broadcast() || self.addresses.iter().any(|a| a.broadcast() == Some(ip))
    }

    /// Whether `ip` is in one of our networks.
    pub(in crate::host) fn is_on_link(&self, ip: IpAddr) -> bool {
        self.on_link_prefix(ip).is_some()
    }

    fn on_link_prefix(&self, ip: IpAddr) -> Option<u8> {
        self.addresses.iter().filter(|a| a.contains(ip)).map(|a| a.prefix).max()
    }

    /// The next hop to `dst`: `dst` itself or a router. `None` without a route.
    pub(in crate::host) fn next_hop(&self, dst: IpAddr) -> Option<IpAddr> {
        let on_link = self.on_link_prefix(dst);
        let route = self.routes.iter().find(|route| route.to.contains(dst));
        match (on_link, route) {
            (Some(prefix), Some(route)) if route.to.prefix > prefix => Some(route.via),
            (Some(_), _) => Some(dst),
            (None, route) => route.map(|route| route.via),
        }
    }

    /// The source address of packets to `dst` over `next_hop`. `None` when we have no address of that family.
    ///
    /// An address on the next hop's network is preferred, then (IPv4) the one with the longest prefix or (IPv6) the one
    /// that shares the most leading bits with `dst`, then the first one configured. Link-local addresses are for
    /// link-local peers, and for others only when there is no other address.
    pub(in crate::host) fn source(&self, dst: IpAddr, next_hop: IpAddr) -> Option<IpAddr> {
        let rank = |a: &Cidr| match (a.ip, dst) {
            (IpAddr::V4(_), IpAddr::V4(_)) => Some((true, a.contains(next_hop), a.prefix)),
            (IpAddr::V6(ip), IpAddr::V6(dst)) => Some((
                is_link_scope(ip) == is_link_scope(dst),
                a.contains(next_hop),
                common_prefix(ip.into(), dst.into()),
            )),
            _ => None,
        };
        // `max_by_key` returns the last of equals, hence the reversed order.
        self.addresses
            .iter()
            .rev()
            .filter_map(|a| Some((rank(a)?, a.ip)))
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, ip)| ip)
    }

    /// MAC addresses of the groups that our IPv6 addresses make us a member of.
    pub(in crate::host) fn multicast_macs(&self) -> Vec<MacAddr> {
        let groups = std::iter::once(ALL_NODES).chain(self.addresses_v6().map(solicited_node));
        groups.map(multicast_mac_v6).collect()
    }
}

fn is_link_scope(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || (ip.is_multicast() && ip.segments()[0] & 0xF == 2)
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
    fn source_address_is_on_the_next_hops_network() {
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
    fn group_membership_follows_the_addresses() {
        let r = routing(&["fd00:77::1/64", "fd00:78::1/64", "10.0.0.1/24"], &[], &[]);
        let macs: Vec<String> = r.multicast_macs().iter().map(MacAddr::to_string).collect();
        let one = "33:33:ff:00:00:01";
        assert_eq!(macs, ["33:33:00:00:00:01", one, one, "33:33:ff:00:00:0a"]);
        assert!(r.listens_to("ff02::1:ff00:a".parse().expect("an address")));
        assert!(!r.listens_to("ff02::1:ff00:b".parse().expect("an address")));
        assert!(r.is_broadcast([10, 0, 0, 255].into()) && r.is_broadcast(Ipv4Addr::BROADCAST));
    }
}
