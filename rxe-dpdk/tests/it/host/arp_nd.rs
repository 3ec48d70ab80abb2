//! ARP and neighbour discovery: recorded exchanges between Linux hosts with our host as one of them, and edge cases.

use super::net::{MAC_A, MAC_B, config, exchange, hex, host, ip, ms, poll, settle};
use rxe_dpdk::host::{Host, HostEvent, Resolution};
use rxe_proto::wire::{DropReason, TxFrames};
use rxe_testkit::pcap;

const A4: &str = "192.168.77.1/24";
const A6: &str = "fd00:77::1/64";

// [HOST-ARP]
#[test]
fn recorded_arp_request_gets_the_reply_of_linux() {
    let frames = pcap::recorded("cm-rping-ipv4.pcap");
    let mut a = host(MAC_A, &[A4, A6]);
    let (result, answers) = exchange(&mut a, ms(0), &frames[0]);
    assert_eq!(result, Ok(()));
    assert_eq!(answers, [frames[1].clone()]);
    // Its request made it a known neighbour.
    let source = ip("192.168.77.1");
    assert_eq!(a.resolve(ms(1), ip("192.168.77.2")), Resolution::Ready { mac: MAC_B, source });

    // The other end: B sends the same request and accepts the recorded reply.
    let mut b = host(MAC_B, &["192.168.77.2/24"]);
    b.announce(ms(1_000_000));
    assert_eq!(b.resolve(ms(0), ip("192.168.77.1")), Resolution::Pending);
    let asked = poll(&mut b, ms(0));
    assert_eq!(asked, [frames[0].clone()]);
    assert_eq!(exchange(&mut b, ms(1), &frames[1]).0, Ok(()));
    let source = ip("192.168.77.2");
    assert_eq!(b.resolve(ms(1), ip("192.168.77.1")), Resolution::Ready { mac: MAC_A, source });
    assert_eq!((b.stats().arp_requests_sent.get(), a.stats().arp_replies_sent.get()), (1, 1));
}

// [HOST-ND]
#[test]
fn recorded_solicitation_gets_the_advertisement_of_linux() {
    let frames = pcap::recorded("cm-rping-ipv6.pcap");
    let mut a = host(MAC_A, &[A4, A6]);
    let (result, answers) = exchange(&mut a, ms(0), &frames[0]);
    assert_eq!(result, Ok(()));
    assert_eq!(answers, [frames[1].clone()]);
    let mac = MAC_B;
    let link_local = Resolution::Ready { mac, source: ip("fe80::5054:ff:fe00:a") };
    assert_eq!(a.resolve(ms(1), ip("fe80::5054:ff:fe00:b")), link_local);
    // The MAC address of the global address is unknown until the recorded advertisement.
    assert_eq!(a.resolve(ms(1), ip("fd00:77::2")), Resolution::Pending);
    assert_eq!(exchange(&mut a, ms(2), &frames[4]), (Ok(()), vec![]));
    assert_eq!(a.resolve(ms(2), ip("fd00:77::2")), Resolution::Ready { mac, source: ip("fd00:77::1") });
}

#[test]
fn solicitations_are_well_formed_and_stop_after_three() {
    let mut a = host(MAC_A, &[A6]);
    a.announce(ms(1_000_000));
    assert_eq!(a.resolve(ms(0), ip("fd00:77::2")), Resolution::Pending);
    let asked = poll(&mut a, ms(0));
    let expected = hex("3333ff000002 52540000000a 86dd 60000000 0020 3a ff fd000077000000000000000000000001
         ff0200000000000000000001ff000002 8700 2c4c 00000000 fd000077000000000000000000000002 0101 52540000000a");
    assert_eq!(asked, [expected]);
    // Three times, a second apart, then the hold-down time.
    assert_eq!(poll(&mut a, ms(999)).len(), 0);
    assert_eq!(poll(&mut a, ms(1000)).len(), 1);
    assert_eq!(poll(&mut a, ms(2000)).len(), 1);
    assert_eq!(a.resolve(ms(2500), ip("fd00:77::2")), Resolution::Pending);
    assert_eq!(poll(&mut a, ms(3000)).len(), 0);
    assert_eq!(a.resolve(ms(3000), ip("fd00:77::2")), Resolution::Unreachable);
    assert_eq!(a.stats().neighbours_failed.get(), 1);
    assert_eq!(a.resolve(ms(8000), ip("fd00:77::2")), Resolution::Pending);
}

#[test]
fn all_addresses_are_announced_twice() {
    let mut a = host(MAC_A, &[A4, A6]);
    assert!(a.next_timeout().is_some_and(|at| at <= ms(0)));
    // The report of our groups, and three rounds of probes.
    let first = poll(&mut a, ms(0));
    assert_eq!(first[0][..6], [0x33, 0x33, 0, 0, 0, 0x16]);
    assert_eq!([first.len(), poll(&mut a, ms(200)).len(), poll(&mut a, ms(400)).len()], [4, 3, 3]);
    assert_eq!(poll(&mut a, ms(599)).len(), 0);
    let first = poll(&mut a, ms(600));
    let arp = hex("ffffffffffff 52540000000a 0806 0001080006040001 52540000000a c0a84d01 000000000000 c0a84d01");
    let unsolicited = hex("333300000001 52540000000a 86dd 60000000 0020 3a ff fd000077000000000000000000000001
         ff020000000000000000000000000001 8800 0950 20000000 fd000077000000000000000000000001 0201 52540000000a");
    assert_eq!(first[0], arp);
    assert_eq!(first[1], unsolicited);
    // The link-local address.
    assert_eq!(first.len(), 3);
    assert_eq!(poll(&mut a, ms(2599)).len(), 0);
    assert_eq!(poll(&mut a, ms(2600)), first);
    assert_eq!(poll(&mut a, ms(60_000)).len(), 0);
    assert_eq!(a.next_timeout(), None);
    assert_eq!(a.stats().announcements_sent.get(), 6);
}

#[test]
fn probes_and_announcements_wait_for_transmit_room() {
    let mut a = host(MAC_A, &[A4, A6]);
    for [now, later] in [[0, 1], [201, 202], [402, 403], [603, 604]] {
        let mut tx = TxFrames { room: Some(2), ..TxFrames::default() };
        a.poll(ms(now), &mut tx);
        assert_eq!(tx.frames.len(), 2);
        tx.room = None;
        a.poll(ms(later), &mut tx);
        let mut kinds: Vec<[u8; 2]> = tx.frames.iter().map(|(_, f)| [f[12], f[13]]).collect();
        kinds.sort_unstable();
        let reports = if now == 0 { 1 } else { 0 };
        assert_eq!(kinds, [vec![[8, 6]], vec![[0x86, 0xDD]; 2 + reports]].concat());
    }
}

// [HOST-ARP] [HOST-ND]
#[test]
fn probes_are_answered_and_add_no_neighbour() {
    let mut a = host(MAC_A, &[A4, A6]);
    // ARP probe: the sender has no address yet. Broadcast, and unicast.
    for to in ["ffffffffffff", "52540000000a"] {
        let probe =
            hex(&format!("{to} 52540000000b 0806 0001080006040001 52540000000b 00000000 000000000000 c0a84d01"));
        let reply = hex("52540000000b 52540000000a 0806 0001080006040002 52540000000a c0a84d01 52540000000b 00000000");
        assert_eq!(exchange(&mut a, ms(0), &probe), (Ok(()), vec![reply]));
    }
    // Duplicate address detection: the answer goes to all nodes.
    let probe = hex("3333ff000001 52540000000b 86dd 60000000 0018 3a ff 00000000000000000000000000000000
         ff0200000000000000000001ff000001 8700 7d2e 00000000 fd000077000000000000000000000001");
    let (result, answers) = exchange(&mut a, ms(0), &probe);
    assert_eq!(result, Ok(()));
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(answers[0][58..62], [0x20, 0, 0, 0], "override, not solicited");
    assert_eq!(a.neighbour_count(), 0);
}

// [HOST-ARP]
#[test]
fn unicast_checks_of_our_address_are_answered() {
    // Linux' check of a known neighbour.
    let mut a = host(MAC_A, &[A4, A6]);
    let check = hex("52540000000a 52540000000b 0806 0001080006040001 52540000000b c0a84d02 52540000000a c0a84d01");
    let reply = hex("52540000000b 52540000000a 0806 0001080006040002 52540000000a c0a84d01 52540000000b c0a84d02");
    assert_eq!(exchange(&mut a, ms(0), &check), (Ok(()), vec![reply]));
}

#[test]
fn announcements_update_known_neighbours_only() {
    let mut a = host(MAC_A, &[A4, A6]);
    // A request between two other hosts, both unknown.
    let request = hex("ffffffffffff 52540000000b 0806 0001080006040001 52540000000b c0a84d02 000000000000 c0a84d03");
    assert_eq!(exchange(&mut a, ms(0), &request), (Err(DropReason::ForeignAddress), vec![]));
    assert_eq!(a.neighbour_count(), 0);
    // The announcement of a known neighbour changes its MAC address.
    let to_us = hex("ffffffffffff 52540000000b 0806 0001080006040001 52540000000b c0a84d02 000000000000 c0a84d01");
    assert_eq!(exchange(&mut a, ms(0), &to_us).0, Ok(()));
    let moved = hex("ffffffffffff 52540000000c 0806 0001080006040001 52540000000c c0a84d02 000000000000 c0a84d02");
    assert_eq!(exchange(&mut a, ms(1), &moved), (Ok(()), vec![]));
    let mac = "52:54:00:00:00:0c".parse().expect("a MAC");
    assert_eq!(a.poll_event(), Some(HostEvent::NeighbourChanged { ip: ip("192.168.77.2"), mac }));
    assert_eq!(a.poll_event(), None);
    assert_eq!(a.resolve(ms(1), ip("192.168.77.2")), Resolution::Ready { mac, source: ip("192.168.77.1") });
    // An address outside our networks gets a reply, but no entry.
    let foreign = hex("ffffffffffff 52540000000b 0806 0001080006040001 52540000000b 08080808 000000000000 c0a84d01");
    assert_eq!(exchange(&mut a, ms(0), &foreign).1.len(), 1);
    assert_eq!(a.neighbour_count(), 1);
}

#[test]
fn a_flood_of_forged_replies_changes_a_neighbour_once_per_second() {
    let mut a = host(MAC_A, &[A4]);
    settle(&mut a);
    let to_us = hex("ffffffffffff 52540000000b 0806 0001080006040001 52540000000b c0a84d02 000000000000 c0a84d01");
    assert_eq!(exchange(&mut a, ms(10_000), &to_us).0, Ok(()));
    let mut forged = hex("52540000000a 52540000000c 0806 0001080006040002 525400000000 c0a84d02 52540000000a c0a84d01");
    for n in 0..50_000_u32 {
        forged[24..28].copy_from_slice(&(n + 0x100).to_be_bytes());
        assert_eq!(exchange(&mut a, ms(10_000 + u64::from(n) / 50), &forged).0, Ok(()));
    }
    assert_eq!((a.stats().neighbours_changed.get(), a.stats().neighbours_locked.get()), (1, 49_999));
    assert_eq!(std::iter::from_fn(|| a.poll_event()).count(), 1);
    // After the lock time the neighbour is solicited, and its reply decides.
    let asked = poll(&mut a, ms(11_000));
    assert!(asked.iter().any(|frame| frame[12..14] == [8, 6] && frame[38..42] == [192, 168, 77, 2]), "{asked:?}");
    let answer = hex("52540000000a 52540000000b 0806 0001080006040002 52540000000b c0a84d02 52540000000a c0a84d01");
    assert_eq!(exchange(&mut a, ms(11_001), &answer).0, Ok(()));
    assert_eq!(a.resolve(ms(11_001), ip("192.168.77.2")), Resolution::Ready { mac: MAC_B, source: ip("192.168.77.1") });
}

#[test]
fn malformed_messages_are_dropped_with_a_reason() {
    let mut a = host(MAC_A, &[A4, A6]);
    let arp = pcap::recorded("cm-rping-ipv4.pcap").remove(0);
    let mut verdict = |base: &[u8], changes: &[(usize, u8)]| {
        let mut frame = base.to_vec();
        for &(at, value) in changes {
            frame[at] = value;
        }
        let (result, answers) = exchange(&mut a, ms(0), &frame);
        assert_eq!(answers.len(), 0);
        result.expect_err("a drop")
    };
    assert_eq!(verdict(&arp[..41], &[]), DropReason::ArpMalformed);
    for change in [(15, 2), (16, 9), (18, 5), (21, 3), (22, 0x53), (28, 224)] {
        assert_eq!(verdict(&arp, &[change]), DropReason::ArpMalformed, "{change:?}");
    }
    assert_eq!(verdict(&arp, &[(0, 0), (1, 1)]), DropReason::ForeignMac);
    assert_eq!(verdict(&arp, &[(6, 1)]), DropReason::ForeignMac, "from a group");
    assert_eq!(verdict(&arp, &[(13, 7)]), DropReason::UnknownEthertype);

    let nd = pcap::recorded("cm-rping-ipv6.pcap").remove(0);
    let sum = |frame: &[u8]| u16::from_be_bytes([frame[56], frame[57]]);
    // One byte changed, and the checksum adapted: it shrinks by as much as the word grows.
    let verdict_nd = |at: usize, value: u8| {
        let mut frame = nd.clone();
        let word = |f: &[u8]| u32::from(u16::from_be_bytes([f[at & !1], f[at | 1]]));
        let before = word(&frame);
        frame[at] = value;
        let after = word(&frame);
        let mut s = u32::from(!sum(&frame)) + after + (0xFFFF - before);
        s = (s & 0xFFFF) + (s >> 16);
        s = (s & 0xFFFF) + (s >> 16);
        frame[56..58].copy_from_slice(&(!(s as u16)).to_be_bytes());
        let mut tx = TxFrames::default();
        (host(MAC_A, &[A6]).handle_frame(ms(0), &frame, &mut tx), tx.frames.len())
    };
    assert_eq!(verdict_nd(55, 0), (Ok(()), 1), "nothing changed");
    assert_eq!(verdict_nd(55, 1), (Err(DropReason::IcmpMalformed), 0), "code");
    assert_eq!(verdict_nd(77, 2), (Err(DropReason::ForeignAddress), 0), "target");
    assert_eq!(verdict_nd(62, 0xFF), (Err(DropReason::IcmpMalformed), 0), "target is a group");
    assert_eq!(verdict_nd(79, 0), (Err(DropReason::IcmpMalformed), 0), "option of length zero");
    assert_eq!(verdict_nd(79, 2), (Err(DropReason::IcmpMalformed), 0), "option beyond the end");
    let mut hops = nd.clone();
    hops[21] = 254;
    assert_eq!(exchange(&mut host(MAC_A, &[A6]), ms(0), &hops).0, Err(DropReason::IcmpMalformed));
    let mut broken = nd.clone();
    broken[70] ^= 1;
    assert_eq!(exchange(&mut host(MAC_A, &[A6]), ms(0), &broken).0, Err(DropReason::HostChecksum));
}

#[test]
fn neighbour_table_is_bounded_under_a_flood() {
    let mut config = config(MAC_A, &["10.0.0.1/8"]);
    config.max_neighbours = 64;
    let mut a = Host::new(&config).expect("a good configuration");
    let mut frame = hex("ffffffffffff 525400010000 0806 0001080006040001 525400010000 0a000000 000000000000 0a000001");
    for n in 2..5000_u16 {
        frame[30..32].copy_from_slice(&n.to_be_bytes());
        frame[10..12].copy_from_slice(&n.to_be_bytes());
        frame[26..28].copy_from_slice(&n.to_be_bytes());
        assert_eq!(exchange(&mut a, ms(n.into()), &frame).1.len(), 1);
        assert!(a.neighbour_count() <= 64);
    }
    for n in 0..1000 {
        a.resolve(ms(5000), ip(&format!("10.1.{}.{}", n / 250, n % 250)));
        assert!(a.neighbour_count() <= 64);
    }
    assert!(a.stats().neighbours_evicted.get() > 4000);
}

/// Forged entries replace each other, not the neighbours that packets are sent to.
#[test]
fn a_neighbour_in_use_survives_a_flood() {
    let mut config = config(MAC_A, &["10.0.0.1/8"]);
    config.max_neighbours = 64;
    let mut a = Host::new(&config).expect("a good configuration");
    let mut frame = hex("ffffffffffff 525400010000 0806 0001080006040001 525400010000 0a000000 000000000000 0a000001");
    let mut request = |a: &mut Host, n: u16| {
        for at in [30, 10, 26] {
            frame[at..at + 2].copy_from_slice(&n.to_be_bytes());
        }
        assert_eq!(exchange(a, ms(0), &frame).1.len(), 1);
    };
    request(&mut a, 2);
    let used = a.resolve(ms(0), ip("10.0.0.2"));
    assert!(matches!(used, Resolution::Ready { .. }));
    for n in 3..5000 {
        request(&mut a, n);
    }
    assert_eq!(a.resolve(ms(1), ip("10.0.0.2")), used);
}

#[test]
fn mld_queries_are_answered() {
    let mut a = host(MAC_A, &[A4, A6]);
    settle(&mut a);
    assert_eq!(a.next_timeout(), None);
    // A general query with a router alert, at most one second to answer.
    let query = hex("333300000001 52540000000b 86dd 60000000 0024 00 01 fe80000000000000505400fffe00000b
         ff020000000000000000000000000001 3a00 0502 0000 0100
         8200 2a60 03e8 0000 00000000000000000000000000000000 027d 0000");
    assert_eq!(exchange(&mut a, ms(300_000), &query), (Ok(()), vec![]));
    let at = a.next_timeout().expect("a report is due");
    assert!(at >= ms(300_000) && at <= ms(301_000));
    let report = poll(&mut a, at);
    let expected = hex("333300000016 52540000000a 86dd 60000000 0038 00 01 fe80000000000000505400fffe00000a
         ff020000000000000000000000000016 3a00 0502 0000 0100
         8f00 2386 0000 0002 02000000 ff0200000000000000000001ff000001 02000000 ff0200000000000000000001ff00000a");
    assert_eq!(report, [expected]);
}

/// What a flood costs is counted by `valgrind --tool=callgrind --toggle-collect='*Host*handle_frame*'` on this test.
#[test]
fn a_flood_of_arp_requests_is_answered_and_keeps_the_table_at_its_bound() {
    let mut a = host(MAC_A, &["10.0.0.1/8"]);
    for n in 0..3000u16 {
        let mut request =
            hex("ffffffffffff 52540000000b 0806 0001 0800 0604 0001 52540000000b 0a010000 000000000000 0a000001");
        request[30..32].copy_from_slice(&n.to_be_bytes());
        let (result, answers) = exchange(&mut a, ms(u64::from(n)), &request);
        assert_eq!((result, answers.len()), (Ok(()), 1));
    }
    assert_eq!((a.neighbour_count(), a.stats().neighbours_evicted.get()), (1024, 3000 - 1024));
}
