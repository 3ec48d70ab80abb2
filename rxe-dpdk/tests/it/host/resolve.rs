//! Path resolution: neighbours, routers, learned and changed MAC addresses.

use super::net::{MAC_A, MAC_B, Net, config, exchange, hex, host, ip, ms, poll, settle};
use rxe_dpdk::host::{Host, HostConfig, HostEvent, Resolution, Route};
use rxe_proto::Duration;
use rxe_proto::wire::MacAddr;

const MAC_C: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0x0C]);

fn ready(mac: MacAddr, source: &str) -> Resolution {
    Resolution::Ready { mac, source: ip(source) }
}

fn resolve(net: &mut Net, n: usize, dst: &str) -> Resolution {
    let now = net.now;
    net.hosts[n].resolve(now, ip(dst))
}

fn pair(vlan: Option<u16>) -> Net {
    let mut a = config(MAC_A, &["10.0.0.1/24", "fd00::1/64"]);
    let mut b = config(MAC_B, &["10.0.0.2/24", "fd00::2/64"]);
    (a.vlan, b.vlan) = (vlan, vlan);
    Net::new(&a, &b)
}

#[test]
fn hosts_resolve_each_other() {
    for vlan in [None, Some(0x2007)] {
        let mut net = pair(vlan);
        for dst in ["10.0.0.2", "fd00::2", "fe80::5054:ff:fe00:b"] {
            assert_eq!(resolve(&mut net, 0, dst), Resolution::Pending, "{dst}");
        }
        assert_eq!(resolve(&mut net, 0, "10.0.0.3"), Resolution::Pending);
        net.run(Duration::from_millis(10));
        assert_eq!(resolve(&mut net, 0, "10.0.0.2"), ready(MAC_B, "10.0.0.1"));
        assert_eq!(resolve(&mut net, 0, "fd00::2"), ready(MAC_B, "fd00::1"));
        assert_eq!(resolve(&mut net, 0, "fe80::5054:ff:fe00:b"), ready(MAC_B, "fe80::5054:ff:fe00:a"));
        // The solicited host has learned the other one.
        assert_eq!(resolve(&mut net, 1, "10.0.0.1"), ready(MAC_A, "10.0.0.2"));
        assert_eq!(resolve(&mut net, 0, "10.0.0.3"), Resolution::Pending);
        net.run(Duration::from_secs(3));
        assert_eq!(resolve(&mut net, 0, "10.0.0.3"), Resolution::Unreachable);
        assert_eq!(net.events, []);
    }
}

#[test]
fn loss_only_delays_resolution() {
    let mut found = 0;
    for seed in 1..40 {
        let mut net = pair(None);
        for _ in 0..seed {
            net.below(2);
        }
        net.loss = 300;
        resolve(&mut net, 0, "fd00::2");
        let start = net.now;
        while resolve(&mut net, 0, "fd00::2") == Resolution::Pending && net.now < start + Duration::from_secs(5) {
            net.run(Duration::from_millis(100));
        }
        found += u32::from(resolve(&mut net, 0, "fd00::2") == ready(MAC_B, "fd00::1"));
    }
    // Half of the exchanges fail; all three in one case of eight.
    assert!((28..=39).contains(&found), "{found}");
}

// [HOST-GROUP-MAC]
#[test]
fn groups_have_the_mac_of_their_address() {
    let mut a = host(MAC_A, &["10.0.0.1/24", "fd00::1/64"]);
    let mac = |text: &str| text.parse().expect("a MAC");
    assert_eq!(a.resolve(ms(0), ip("239.1.2.3")), ready(mac("01:00:5e:01:02:03"), "10.0.0.1"));
    assert_eq!(a.resolve(ms(0), ip("10.0.0.255")), ready(MacAddr::BROADCAST, "10.0.0.1"));
    assert_eq!(a.resolve(ms(0), ip("255.255.255.255")), ready(MacAddr::BROADCAST, "10.0.0.1"));
    assert_eq!(a.resolve(ms(0), ip("ff0e::7:8")), ready(mac("33:33:00:07:00:08"), "fd00::1"));
    assert_eq!(a.resolve(ms(0), ip("ff02::1")), ready(mac("33:33:00:00:00:01"), "fe80::5054:ff:fe00:a"));
    for nowhere in ["10.0.0.1", "fd00::1", "0.0.0.0", "::", "8.8.8.8", "2001:db8::1"] {
        assert_eq!(a.resolve(ms(0), ip(nowhere)), Resolution::Unreachable, "{nowhere}");
    }
    assert_eq!(a.neighbour_count(), 0);
    let v6_only = &mut host(MAC_A, &["fd00::1/64"]);
    assert_eq!(v6_only.resolve(ms(0), ip("239.1.2.3")), Resolution::Unreachable);
}

#[test]
fn hosts_behind_a_router_have_its_mac() {
    let mut a = config(MAC_A, &["10.0.0.1/24", "fd00::1/64"]);
    a.gateways = vec![ip("10.0.0.2"), ip("fe80::5054:ff:fe00:b")];
    a.routes = vec![Route { to: "172.16.0.0/12".parse().expect("a CIDR"), via: ip("10.0.0.9") }];
    let b = config(MAC_B, &["10.0.0.2/24"]);
    let mut net = Net::new(&a, &b);
    assert_eq!(resolve(&mut net, 0, "8.8.8.8"), Resolution::Pending);
    assert_eq!(resolve(&mut net, 0, "2001:db8::1"), Resolution::Pending);
    assert_eq!(resolve(&mut net, 0, "172.16.1.1"), Resolution::Pending);
    net.run(Duration::from_millis(10));
    assert_eq!(resolve(&mut net, 0, "8.8.8.8"), ready(MAC_B, "10.0.0.1"));
    assert_eq!(resolve(&mut net, 0, "9.9.9.9"), ready(MAC_B, "10.0.0.1"));
    assert_eq!(resolve(&mut net, 0, "2001:db8::1"), ready(MAC_B, "fd00::1"));
    net.run(Duration::from_secs(4));
    assert_eq!(resolve(&mut net, 0, "172.16.1.1"), Resolution::Unreachable, "this router does not answer");
}

// [HOST-PEER-MAC]
#[test]
fn learned_macs_fill_gaps_only() {
    let mut a = host(MAC_A, &["10.0.0.1/24"]);
    // On our link: no solicitation is needed.
    a.learn(ms(0), ip("10.0.0.2"), MAC_B);
    assert_eq!(a.resolve(ms(0), ip("10.0.0.2")), ready(MAC_B, "10.0.0.1"));
    // Another MAC address than the known one: the neighbour is solicited, and its reply decides.
    settle(&mut a);
    a.learn(ms(20_000), ip("10.0.0.2"), MAC_C);
    assert_eq!(a.resolve(ms(20_000), ip("10.0.0.2")), ready(MAC_B, "10.0.0.1"));
    let asked = poll(&mut a, ms(20_000));
    assert_eq!((asked.len(), &asked[0][..6]), (1, &MAC_B.0[..]));
    assert_eq!(a.poll_event(), None);
    let reply = hex("52540000000a 52540000000c 0806 0001080006040002 52540000000c 0a000002 52540000000a 0a000001");
    assert_eq!(exchange(&mut a, ms(20_001), &reply).0, Ok(()));
    assert_eq!(a.poll_event(), Some(HostEvent::NeighbourChanged { ip: ip("10.0.0.2"), mac: MAC_C }));
    // Outside our networks and without a route: only the MAC address is known.
    assert_eq!(a.resolve(ms(20_001), ip("8.8.8.8")), Resolution::Unreachable);
    a.learn(ms(20_001), ip("8.8.8.8"), MAC_B);
    assert_eq!(a.resolve(ms(20_001), ip("8.8.8.8")), ready(MAC_B, "10.0.0.1"));
    // A route decides.
    let mut routed = config(MAC_A, &["10.0.0.1/24"]);
    routed.gateways = vec![ip("10.0.0.254")];
    let mut routed = Host::new(&routed).expect("a good configuration");
    routed.learn(ms(0), ip("8.8.8.8"), MAC_B);
    assert_eq!(routed.resolve(ms(0), ip("8.8.8.8")), Resolution::Pending);
    // Impossible addresses are not learned.
    for (address, mac) in [("10.0.0.1", MAC_B), ("10.0.0.255", MAC_B), ("10.0.0.3", MacAddr::BROADCAST)] {
        let before = routed.neighbour_count();
        routed.learn(ms(0), ip(address), mac);
        assert_eq!(routed.neighbour_count(), before, "{address}");
    }
}

#[test]
fn changed_mac_of_a_neighbour_produces_an_event() {
    let mut net = pair(None);
    resolve(&mut net, 0, "10.0.0.2");
    resolve(&mut net, 0, "fd00::2");
    net.run(Duration::from_secs(5));
    assert_eq!(net.events, []);
    // B comes back with another network card and announces itself.
    let b = HostConfig { mac: MAC_C, ..config(MAC_B, &["10.0.0.2/24", "fd00::2/64"]) };
    net.hosts[1] = Host::new(&b).expect("a good configuration");
    net.run(Duration::from_secs(5));
    let changed = |address: &str| (0, HostEvent::NeighbourChanged { ip: ip(address), mac: MAC_C });
    assert_eq!(net.events, [changed("10.0.0.2"), changed("fd00::2")]);
    assert_eq!(resolve(&mut net, 0, "10.0.0.2"), ready(MAC_C, "10.0.0.1"));
    assert_eq!(net.hosts[0].stats().neighbours_changed.get(), 2);
}

#[test]
fn event_queue_is_bounded() {
    let mut a = host(MAC_A, &["10.0.0.1/24"]);
    let mut frame = hex("ffffffffffff 52540000000b 0806 0001080006040001 52540000000b 0a000002 000000000000 0a000001");
    // Not from 0, as 10 is our own MAC address.
    for n in 0x100..10_000_u16 {
        frame[26..28].copy_from_slice(&n.to_be_bytes());
        assert_eq!(exchange(&mut a, ms(1000 * u64::from(n)), &frame).0, Ok(()));
    }
    assert_eq!(std::iter::from_fn(|| a.poll_event()).count(), 256);
}

#[test]
fn addresses_of_one_station_are_neighbours_with_one_mac() {
    let mut a = config(MAC_A, &["10.0.0.1/24", "fd00::1/64"]);
    a.routes = vec![Route { to: "10.9.0.0/16".parse().expect("a CIDR"), via: ip("10.0.0.2") }];
    let b = config(MAC_B, &["10.0.0.2/24", "fd00::2/64"]);
    let mut net = Net::new(&a, &b);
    for dst in ["10.0.0.2", "fd00::2", "10.0.0.3"] {
        resolve(&mut net, 0, dst);
    }
    net.run(Duration::from_millis(10));
    let now = net.now;
    let mut same = |x: &str, y: &str| net.hosts[0].same_station(now, ip(x), ip(y));
    assert!(same("10.0.0.2", "10.0.0.2") && same("10.0.0.2", "fd00::2") && same("fd00::2", "10.0.0.2"));
    assert!(!same("10.0.0.2", "10.0.0.3"), "its MAC address is unknown");
    assert!(!same("10.9.0.1", "10.9.0.2") && !same("10.9.0.1", "10.0.0.2"), "the router has the same MAC");
}
