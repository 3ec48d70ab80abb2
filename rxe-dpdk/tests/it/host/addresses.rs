//! Addresses and routes that change while the host runs.

use super::net::{MAC_A, MAC_B, Net, config, exchange, hex, host, ip, ms, poll, settle};
use rxe_dpdk::host::{Addressing, Host, HostConfigError, Resolution, Route};
use rxe_proto::Duration;
use rxe_proto::wire::{DropReason, TxFrames};
use std::net::SocketAddr;

const A4: &str = "192.168.77.1/24";
const A6: &str = "fd00:77::1/64";
/// B asks who has 192.168.77.5.
const REQUEST: &str = "ffffffffffff 52540000000b 0806 0001080006040001 52540000000b c0a84d02 000000000000 c0a84d05";

fn addressing(addresses: &[&str]) -> Addressing {
    let addresses = addresses.iter().map(|address| address.parse().expect("a CIDR")).collect();
    Addressing { addresses, ..Addressing::default() }
}

fn set(host: &mut Host, at: u64, addresses: &[&str]) {
    host.set_addressing(ms(at), addressing(addresses)).expect("good addresses");
}

/// The frames that a host sends from `from` on, for five seconds.
fn sent(host: &mut Host, from: u64) -> Vec<Vec<u8>> {
    (from..from + 5000).flat_map(|now| poll(host, ms(now))).collect()
}

#[test]
fn a_new_address_is_probed_and_announced_and_an_old_one_is_silent() {
    let mut a = host(MAC_A, &[A4]);
    settle(&mut a);
    assert!(exchange(&mut a, ms(5000), &hex(REQUEST)).1.is_empty());
    set(&mut a, 5000, &[A4, "192.168.77.5/24"]);
    assert_eq!(a.addresses().map(|ip| ip.to_string()).collect::<Vec<_>>()[..2], ["192.168.77.1", "192.168.77.5"]);
    let answer = exchange(&mut a, ms(5000), &hex(REQUEST)).1;
    assert_eq!(
        answer,
        [hex("52540000000b 52540000000a 0806 0001080006040002 52540000000a c0a84d05 52540000000b c0a84d02")]
    );
    let frames = sent(&mut a, 5001);
    let probe = hex("ffffffffffff 52540000000a 0806 0001080006040001 52540000000a 00000000 000000000000 c0a84d05");
    let claim = hex("ffffffffffff 52540000000a 0806 0001080006040001 52540000000a c0a84d05 000000000000 c0a84d05");
    let count = |frame: &Vec<u8>| frames.iter().filter(|sent| *sent == frame).count();
    assert_eq!((count(&probe), count(&claim)), (3, 2));
    let probe_of_old =
        hex("ffffffffffff 52540000000a 0806 0001080006040001 52540000000a 00000000 000000000000 c0a84d01");
    assert_eq!(count(&probe_of_old), 0, "it is known to be ours alone");
    set(&mut a, 20_000, &[A4]);
    assert!(exchange(&mut a, ms(20_000), &hex(REQUEST)).1.is_empty());
    assert!(!a.owns(ip("192.168.77.5")) && a.owns(ip("192.168.77.1")));
    assert!(sent(&mut a, 20_001).is_empty(), "nothing is new");
}

#[test]
fn conflicts_of_an_address_stay_with_it() {
    let claim = hex("ffffffffffff 52540000000b 0806 0001080006040001 52540000000b c0a84d01 000000000000 c0a84d01");
    let mut a = host(MAC_A, &[A4]);
    settle(&mut a);
    let _ = exchange(&mut a, ms(5000), &claim);
    set(&mut a, 6000, &["10.0.0.1/8", A4]);
    let conflicts = |a: &Host| a.conflicts().iter().map(|of| (of.ip().to_string(), of.frames())).collect::<Vec<_>>();
    assert_eq!(conflicts(&a)[..2], [("10.0.0.1".to_owned(), 0), ("192.168.77.1".to_owned(), 1)]);
    let _ = exchange(&mut a, ms(7000), &claim);
    assert_eq!(conflicts(&a)[1].1, 2);
    set(&mut a, 8000, &["10.0.0.1/8"]);
    set(&mut a, 9000, &["10.0.0.1/8", A4]);
    assert_eq!(conflicts(&a)[1], ("192.168.77.1".to_owned(), 0), "it is another time");
}

#[test]
fn routes_follow_the_addresses_and_contradictions_change_nothing() {
    let mut a = host(MAC_A, &[A4]);
    settle(&mut a);
    let far = ip("10.9.0.9");
    assert!(!a.has_route(far));
    let good = addressing(&[A4]);
    let route = Route { to: "10.9.0.0/16".parse().unwrap(), via: ip("192.168.77.254") };
    let routed = Addressing { routes: vec![route], gateways: vec![ip("192.168.77.253")], ..good.clone() };
    a.set_addressing(ms(5000), routed.clone()).unwrap();
    assert_eq!((a.next_hop(far), a.next_hop(ip("8.8.8.8"))), (ip("192.168.77.254"), ip("192.168.77.253")));
    assert_eq!(a.addressing(), routed);
    for (wrong, error) in [
        (Addressing { addresses: addressing(&["10.0.0.1/8"]).addresses, ..routed.clone() }, "router"),
        (addressing(&[A4, A4]), "given twice"),
        (addressing(&["192.168.77.255/24"]), "not the unicast address"),
    ] {
        let refused: HostConfigError = a.set_addressing(ms(5000), wrong).unwrap_err();
        assert!(refused.to_string().contains(error), "{refused}");
        assert_eq!(a.addressing(), routed);
    }
    a.set_addressing(ms(6000), good).unwrap();
    assert_eq!(a.resolve(ms(6000), far), Resolution::Unreachable);
}

#[test]
fn groups_of_addresses_are_reported_when_they_come_and_go() {
    let mut a = host(MAC_A, &[A4]);
    settle(&mut a);
    let _ = sent(&mut a, 2601);
    set(&mut a, 10_000, &[A4, A6]);
    let solicited = "ff0200000000000000000001ff000001";
    // Type 143 (report), one record: 4 joins, 3 leaves.
    let reports = |frames: &[Vec<u8>], record: u8| {
        let start = [143, 0];
        let of = |frame: &&Vec<u8>| frame.len() > 82 && frame[62..64] == start && frame[70] == record;
        frames.iter().filter(of).filter(|frame| frame[74..90] == hex(solicited)).count()
    };
    let frames = sent(&mut a, 10_000);
    assert_eq!((reports(&frames, 4), reports(&frames, 3)), (2, 0));
    assert!(a.multicast_macs().iter().any(|mac| mac.0 == [0x33, 0x33, 0xFF, 0, 0, 1]));
    set(&mut a, 20_000, &[A4]);
    let frames = sent(&mut a, 20_000);
    assert_eq!((reports(&frames, 4), reports(&frames, 3)), (0, 2));
    assert!(!a.multicast_macs().iter().any(|mac| mac.0 == [0x33, 0x33, 0xFF, 0, 0, 1]));
}

#[test]
fn streams_at_an_address_that_is_gone_are_reset_and_others_go_on() {
    let a = config(MAC_A, &["10.0.0.1/24", "10.0.0.5/24"]);
    let mut net = Net::new(&a, &config(MAC_B, &["10.0.0.2/24"]));
    net.hosts[0].listen(7000);
    net.run(Duration::from_secs(5));
    let mut open = |to: &str| {
        let now = net.now;
        let known = net.opened(0).len();
        let b = net.hosts[1].connect(now, SocketAddr::new(ip(to), 7000)).expect("a stream");
        net.until(|net| net.opened(0).len() > known && net.opened(1).contains(&b));
        (*net.opened(0).last().expect("a stream"), b)
    };
    let (stays, goes) = (open("10.0.0.1"), open("10.0.0.5"));
    let rest = addressing(&["10.0.0.1/24"]);
    assert_eq!(net.hosts[0].streams_lost_by(&rest), 1);
    let now = net.now;
    net.hosts[0].set_addressing(now, rest.clone()).unwrap();
    net.until(|net| net.closed(0, goes.0) == Some(true) && net.closed(1, goes.1) == Some(true));
    assert_eq!(net.hosts[0].streams_lost_by(&rest), 0);
    assert_eq!(net.hosts[1].send(stays.1, b"still here"), 10);
    net.until(|net| net.bytes(0, stays.0) == b"still here");
    // Nobody is at the address any more.
    let mut tx = TxFrames::default();
    let now = net.now;
    let syn = net.hosts[1].connect(now, SocketAddr::new(ip("10.0.0.5"), 7000)).expect("a stream");
    net.hosts[1].poll(now, &mut tx);
    net.send(1, tx);
    net.until(|net| net.closed(1, syn).is_some());
    assert!(net.drops.iter().any(|(host, reason)| (*host, *reason) == (0, DropReason::ForeignAddress)));
}
