//! Multicast groups: reports compared with those of a recorded Linux host, answers to queriers of all versions, and the
//! listeners found in the reports of other hosts.

use super::net::{MAC_A, MAC_B, config, exchange, hex, host, ip, ms, poll, settle};
use rxe_dpdk::host::{Host, HostConfig, HostEvent, MIN_MTU, Resolution, multicast_mac};
use rxe_proto::wire::{DropReason, MacAddr, TxFrames};
use rxe_testkit::pcap;

const A4: &str = "192.168.77.1/24";
const A6: &str = "fd00:77::1/64";
const GROUP: &str = "239.1.2.3";

/// The Internet checksum of `bytes`.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    (!(sum as u16)).to_be_bytes()
}

/// An IGMP packet from `src` to `dst`; `options` go into the IP header. Computes the checksums.
fn igmp(src: [u8; 4], dst: [u8; 4], options: &[u8], message: &[u8]) -> Vec<u8> {
    let mac = if dst[0] < 224 { MAC_A } else { multicast_mac(dst.into()).expect("a group") };
    let header_len = 20 + options.len();
    let mut packet = vec![0x40 | (header_len / 4) as u8, 0xC0, 0, (header_len + message.len()) as u8, 0, 0, 0, 0, 1, 2];
    packet.extend([0, 0]);
    packet.extend(src);
    packet.extend(dst);
    packet.extend(options);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    let mut message = message.to_vec();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    [&mac.0[..], &MAC_B.0, &[8, 0], &packet, &message].concat()
}

const ROUTER: [u8; 4] = [192, 168, 77, 254];
const ALL_HOSTS: [u8; 4] = [224, 0, 0, 1];
const ALERT: &[u8] = &[0x94, 4, 0, 0];

/// A query: 8 bytes are version 1 or 2, 12 are version 3.
fn query(len: usize, code: u8, group: [u8; 4]) -> Vec<u8> {
    let dst = if group == [0; 4] { ALL_HOSTS } else { group };
    let mut message = vec![0x11, code, 0, 0, group[0], group[1], group[2], group[3]];
    message.resize(len, 0);
    igmp(ROUTER, dst, ALERT, &message)
}

/// A host that has sent its announcements.
fn quiet(config: &HostConfig) -> Host {
    let mut host = Host::new(config).expect("a good configuration");
    settle(&mut host);
    assert_eq!(host.next_timeout(), None);
    host
}

/// A frame without the fields that differ from packet to packet: IPv4 id and header checksum.
fn without_id(mut frame: Vec<u8>) -> Vec<u8> {
    frame[18..20].fill(0);
    frame[24..26].fill(0);
    frame
}

/// Destination address and message of an IGMP frame, whose checksums must be right.
fn parse(frame: &[u8]) -> ([u8; 4], Vec<u8>) {
    assert_eq!((frame[14], frame[22], frame[23], &frame[34..38]), (0x46, 1, 2, ALERT));
    assert_eq!((checksum(&frame[14..38]), checksum(&frame[38..])), ([0; 2], [0; 2]));
    let dst = [frame[30], frame[31], frame[32], frame[33]];
    assert_eq!(frame[..6], multicast_mac(dst.into()).expect("a group").0);
    (dst, frame[38..].to_vec())
}

// [HOST-IGMP]
#[test]
fn join_and_leave_are_reported_as_by_linux() {
    let recorded: Vec<Vec<u8>> = pcap::recorded("cm-x-mckey-join-igmp.pcap").into_iter().map(without_id).collect();
    let mut a = quiet(&config(MacAddr([0x52, 0x54, 0, 0, 0, 2]), &["192.168.77.2/24"]));
    assert!(a.join_group(ms(10_000), ip(GROUP)));
    assert!(!a.join_group(ms(10_000), ip(GROUP)), "only once");
    let joined: Vec<Vec<u8>> = [10_000, 10_999, 11_000, 20_000].map(|at| poll(&mut a, ms(at))).concat();
    assert!(a.leave_group(ms(30_000), ip(GROUP)));
    assert!(!a.leave_group(ms(30_000), ip(GROUP)));
    let left: Vec<Vec<u8>> = [30_000, 30_999, 31_000, 60_000].map(|at| poll(&mut a, ms(at))).concat();
    assert!(joined.iter().chain(&left).all(|frame| checksum(&frame[14..38]) == [0; 2]));
    let ours: Vec<Vec<u8>> = [joined, left].concat().into_iter().map(without_id).collect();
    assert_eq!(ours, recorded);
    assert_eq!(a.next_timeout(), None);
    let stats = a.stats();
    assert_eq!((stats.groups_joined.get(), stats.groups_left.get(), stats.igmp_reports_sent.get()), (1, 1, 4));
}

// [HOST-GROUP-MAC]
#[test]
fn port_accepts_the_macs_of_joined_groups() {
    let mut a = quiet(&config(MAC_A, &[A4, A6]));
    let before = a.multicast_macs().to_vec();
    a.join_group(ms(0), ip("239.129.2.3"));
    a.join_group(ms(0), ip("ff15::1:2:3"));
    let added: Vec<String> =
        a.multicast_macs().iter().filter(|mac| !before.contains(mac)).map(ToString::to_string).collect();
    // Queries; the group, and the MAC of its mapped address, which soft-RoCE joins; the IPv6 group.
    assert_eq!(added, ["01:00:5e:00:00:01", "01:00:5e:01:02:03", "33:33:00:02:00:03", "33:33:ef:81:02:03"]);
    // The MAC address stays while another group that has it is joined.
    a.join_group(ms(0), ip("224.1.2.3"));
    a.leave_group(ms(0), ip("239.129.2.3"));
    assert!(a.multicast_macs().contains(&"01:00:5e:01:02:03".parse().expect("a MAC")));
    a.leave_group(ms(0), ip("224.1.2.3"));
    a.leave_group(ms(0), ip("ff15::1:2:3"));
    assert_eq!(a.multicast_macs(), before);
    assert!(!a.join_group(ms(0), ip("192.168.77.9")), "not a multicast address");
    assert_eq!(multicast_mac(ip("192.168.77.9")), None);
    let source = ip("192.168.77.1");
    let mac = multicast_mac(ip(GROUP)).expect("a group");
    assert_eq!(a.resolve(ms(0), ip(GROUP)), Resolution::Ready { mac, source });
}

// [HOST-IGMP]
#[test]
fn version_3_queries_are_answered() {
    let mut a = quiet(&config(MAC_A, &[A4]));
    let general = query(12, 100, [0; 4]);
    assert_eq!(exchange(&mut a, ms(5000), &general).0, Err(DropReason::ForeignMac), "no group is joined");
    for group in [GROUP, "239.9.9.9", "224.0.0.1"] {
        a.join_group(ms(5000), ip(group));
    }
    let told = poll(&mut a, ms(5000));
    // Every host is a member of 224.0.0.1, and none reports it.
    assert_eq!(
        told.iter().map(|frame| parse(frame)).collect::<Vec<_>>(),
        [([224, 0, 0, 22], hex("2200 ece5 0000 0002 04000000 ef010203 04000000 ef090909"))]
    );
    poll(&mut a, ms(6000));

    // All groups, within the maximum response time; the last byte of the MAC address is 10 of 256.
    assert_eq!(exchange(&mut a, ms(10_000), &general), (Ok(()), vec![]));
    assert_eq!(a.next_timeout(), Some(ms(10_000) + rxe_proto::Duration::from_secs(10) * 10 / 256));
    assert_eq!(poll(&mut a, ms(10_300)).len(), 0);
    let answer = parse(&poll(&mut a, ms(10_400))[0]);
    assert_eq!(answer, ([224, 0, 0, 22], hex("2200 f0e5 0000 0002 02000000 ef010203 02000000 ef090909")));
    // A query for one group and some sources is answered for all sources.
    let mut of_senders = vec![0x11, 10, 0, 0, 239, 9, 9, 9, 0, 0, 0, 1];
    of_senders.extend([10, 0, 0, 7]);
    let specific = igmp(ROUTER, [239, 9, 9, 9], ALERT, &of_senders);
    assert_eq!(exchange(&mut a, ms(20_000), &specific), (Ok(()), vec![]));
    let answer = parse(&poll(&mut a, ms(20_040))[0]);
    assert_eq!(answer.1[8..], hex("02000000 ef090909"));
    // A group that is not joined is ignored, although the MAC filter passes it; delays are limited to ten seconds.
    assert_eq!(exchange(&mut a, ms(30_000), &query(12, 10, [224, 129, 2, 3])).0, Err(DropReason::ForeignAddress));
    assert_eq!(exchange(&mut a, ms(30_000), &query(12, 0xFF, [0; 4])).0, Ok(()));
    assert!(a.next_timeout().is_some_and(|at| at < ms(30_400)));
    poll(&mut a, ms(30_400));
    // Switches without an address query from 0.0.0.0, some without the option; a query may be unicast.
    let message = [0x11, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for frame in [igmp([0; 4], ALL_HOSTS, &[], &message), igmp(ROUTER, [192, 168, 77, 1], ALERT, &message)] {
        assert_eq!(exchange(&mut a, ms(40_000), &frame).0, Ok(()));
        assert_eq!(poll(&mut a, ms(40_040)).len(), 1);
    }
    // All groups are reported again when the link is back.
    a.announce(ms(50_000));
    assert!(poll(&mut a, ms(50_000)).iter().any(|frame| frame[23] == 2 && parse(frame).1[8..].len() == 16));
}

// [HOST-IGMP]
#[test]
fn older_queriers_are_answered_in_their_version() {
    let mut a = quiet(&config(MAC_A, &[A4]));
    a.join_group(ms(5000), ip(GROUP));
    poll(&mut a, ms(5000));
    poll(&mut a, ms(6000));
    let said = |a: &mut Host, at: u64| poll(a, ms(at)).iter().map(|frame| parse(frame)).collect::<Vec<_>>();
    let message = |kind: u8| {
        let mut message = vec![kind, 0, 0, 0, 239, 1, 2, 3];
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum);
        message
    };

    // Version 2: reports go to the group, leave messages to all routers.
    assert_eq!(exchange(&mut a, ms(10_000), &query(8, 100, [0; 4])).0, Ok(()));
    assert_eq!(said(&mut a, 10_400), [([239, 1, 2, 3], message(0x16))]);
    a.leave_group(ms(11_000), ip(GROUP));
    assert_eq!(said(&mut a, 11_000), [([224, 0, 0, 2], message(0x17))]);
    said(&mut a, 12_000);
    a.join_group(ms(13_000), ip(GROUP));
    assert_eq!(said(&mut a, 13_000), [([239, 1, 2, 3], message(0x16))]);
    said(&mut a, 14_000);

    // Version 1 has no leave message.
    assert_eq!(exchange(&mut a, ms(20_000), &query(8, 0, [0; 4])).0, Ok(()));
    assert_eq!(said(&mut a, 20_400), [([239, 1, 2, 3], message(0x12))]);
    a.leave_group(ms(21_000), ip(GROUP));
    assert_eq!(said(&mut a, 21_000), []);
    assert_eq!(said(&mut a, 22_000), []);
    assert_eq!(a.next_timeout(), None);

    // The older querier has timed out.
    a.join_group(ms(20_000 + 260_000), ip(GROUP));
    assert_eq!(said(&mut a, 280_000)[0].1[0], 0x22);
}

#[test]
fn malformed_igmp_is_dropped_with_a_reason() {
    let mut a = quiet(&config(MAC_A, &[A4]));
    a.join_group(ms(0), ip(GROUP));
    let mut verdict = |frame: &[u8]| exchange(&mut a, ms(3000), frame).0.expect_err("a drop");
    let good = query(12, 10, [0; 4]);
    assert_eq!(verdict(&query(9, 10, [0; 4])), DropReason::IcmpMalformed, "between the versions");
    assert_eq!(verdict(&query(8, 10, [0; 4])[..45]), DropReason::IpLengthMismatch, "cut off");
    assert_eq!(verdict(&igmp(ROUTER, ALL_HOSTS, ALERT, &[0x11, 10, 0, 0])), DropReason::IcmpMalformed, "too short");
    let mut broken = good.clone();
    broken[39] ^= 1;
    assert_eq!(verdict(&broken), DropReason::HostChecksum);
    let message = [0x11, 10, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(
        verdict(&igmp(ROUTER, ALL_HOSTS, ALERT, &message)),
        DropReason::IcmpMalformed,
        "not a multicast address"
    );
    assert_eq!(verdict(&igmp(ROUTER, ALL_HOSTS, &[1, 1, 1, 1], &[0x11; 8])), DropReason::IpOptions);
    assert_eq!(verdict(&igmp([192, 168, 77, 1], ALL_HOSTS, ALERT, &message)), DropReason::IpHeaderMalformed, "we");
    assert_eq!(verdict(&igmp(ROUTER, [192, 168, 77, 9], ALERT, &message)), DropReason::ForeignAddress);
    // Reports of other hosts are not for us.
    let report = [0x16, 0, 0, 0, 239, 1, 2, 3];
    assert_eq!(verdict(&igmp(ROUTER, [239, 1, 2, 3], ALERT, &report)), DropReason::HostUnsupported);
    // Other protocols may not have a router alert, and packets to a joined group are dropped.
    let mut udp = igmp(ROUTER, [192, 168, 77, 1], ALERT, &[0; 8]);
    udp[23] = 17;
    udp[24..26].fill(0);
    let sum = checksum(&udp[14..38]);
    udp[24..26].copy_from_slice(&sum);
    assert_eq!(verdict(&udp), DropReason::IpOptions);
    let mut udp = igmp(ROUTER, [239, 1, 2, 3], &[], &[0; 8]);
    udp[23] = 17;
    udp[24..26].fill(0);
    let sum = checksum(&udp[14..34]);
    udp[24..26].copy_from_slice(&sum);
    assert_eq!(verdict(&udp), DropReason::ForeignAddress);
}

#[test]
fn many_groups_are_reported_in_packets_that_fit_the_mtu() {
    let config = HostConfig { mtu: MIN_MTU, ..config(MAC_A, &[A4, A6]) };
    let mut a = quiet(&config);
    for n in 0..1000_u16 {
        let [high, low] = n.to_be_bytes();
        a.join_group(ms(5000), [239, 1, high, low].into());
        a.join_group(ms(5000), ip(&format!("ff15::{n:x}")));
    }
    // The port takes two packets at a time; an interrupted report is repeated from its start.
    let mut tx = TxFrames { room: Some(2), ..TxFrames::default() };
    a.poll(ms(5000), &mut tx);
    assert!(a.next_timeout().is_some_and(|at| at <= ms(5000)));
    let told = poll(&mut a, ms(5001));
    assert!(told.iter().all(|frame| frame.len() <= usize::from(MIN_MTU) + 14));
    let (v4, v6): (Vec<&Vec<u8>>, Vec<&Vec<u8>>) = told.iter().partition(|frame| frame[12..14] == [8, 0]);
    let records = |frames: &[&Vec<u8>], header: usize| -> usize {
        frames.iter().map(|frame| usize::from(u16::from_be_bytes([frame[header + 6], frame[header + 7]]))).sum()
    };
    assert_eq!((records(&v4, 38), records(&v6, 62)), (1000, 1000));
    assert_eq!((v4.len(), v6.len()), (7, 17));
}

/// The listener events of a host: group, host, whether it joined.
fn listeners(host: &mut Host) -> Vec<(String, String, bool)> {
    let told = std::iter::from_fn(|| host.poll_event());
    let told = told.filter_map(|event| match event {
        HostEvent::Listener { group, host, joined } => Some((group.to_string(), host.to_string(), joined)),
        _ => None,
    });
    told.collect()
}

#[test]
fn recorded_linux_listener_produces_events() {
    // The four reports that Linux sent when mckey joined and left, and a host on the same network.
    let mut a = quiet(&config(MAC_A, &["192.168.77.1/24"]));
    let recorded = pcap::recorded("cm-x-mckey-join-igmp.pcap");
    assert_eq!(
        exchange(&mut a, ms(5000), &recorded[0]).0,
        Err(DropReason::ForeignMac),
        "listeners are not watched yet"
    );
    a.watch_listeners();
    let joined = |yes| vec![(GROUP.to_owned(), "192.168.77.2".to_owned(), yes)];
    let mut hear = |at, frame: &[u8]| {
        assert_eq!(exchange(&mut a, ms(at), frame), (Ok(()), vec![]));
        listeners(&mut a)
    };
    assert_eq!(hear(10_000, &recorded[0]), joined(true));
    assert_eq!(hear(10_700, &recorded[1]), [], "a repetition");
    assert_eq!(hear(20_000, &recorded[2]), joined(false));
    assert_eq!(hear(20_700, &recorded[3]), []);
    let stats = a.stats();
    assert_eq!((stats.igmp_reports_heard.get(), stats.igmp_reports_sent.get()), (4, 0));
    assert_eq!((stats.listeners_joined.get(), stats.listeners_left.get()), (1, 1));
    // The port accepts reports to routers.
    for mac in ["01:00:5e:00:00:16", "01:00:5e:00:00:02"] {
        assert!(a.multicast_macs().contains(&mac.parse().expect("a MAC")), "{mac}");
    }
}

#[test]
fn listeners_of_all_igmp_versions_produce_events() {
    const PEER: [u8; 4] = [192, 168, 77, 9];
    const V3: [u8; 4] = [224, 0, 0, 22];
    let mut a = quiet(&config(MAC_A, &[A4]));
    a.watch_listeners();
    let mut hear = |at, dst: [u8; 4], message: &[u8]| {
        let verdict = exchange(&mut a, ms(at), &igmp(PEER, dst, ALERT, message)).0;
        (verdict, listeners(&mut a).into_iter().map(|(group, _, joined)| (group, joined)).collect::<Vec<_>>())
    };
    let news = |group: &str, joined| (Ok(()), vec![(group.to_owned(), joined)]);
    let nothing = (Ok(()), vec![]);
    let group = [239, 9, 9, 9];
    let old = |kind: u8, group: [u8; 4]| [&[kind, 0, 0, 0][..], &group].concat();
    assert_eq!(hear(5000, group, &old(0x16, group)), news("239.9.9.9", true));
    assert_eq!(hear(5000, group, &old(0x12, group)), nothing);
    assert_eq!(hear(6000, [224, 0, 0, 2], &old(0x17, group)), news("239.9.9.9", false));
    assert_eq!(hear(7000, group, &old(0x12, group)), news("239.9.9.9", true));
    // No events for the link's own groups and for addresses that are not multicast.
    assert_eq!(hear(8000, [224, 0, 0, 251], &old(0x16, [224, 0, 0, 251])), nothing);
    assert_eq!(hear(8000, group, &old(0x16, [10, 0, 0, 1])), nothing);

    let record = |kind: u8, group: [u8; 4], sources: &[[u8; 4]]| {
        [&[kind, 1, 0, sources.len() as u8][..], &group, &sources.concat(), &[0; 4]].concat()
    };
    let report = |records: &[Vec<u8>]| [&[0x22, 0, 0, 0, 0, 0, 0, records.len() as u8][..], &records.concat()].concat();
    let (us, other) = ([192, 168, 77, 1], [192, 168, 77, 7]);
    // Several records with auxiliary data; the sources of the second do not include us.
    let two = report(&[
        record(4, [239, 0, 0, 1], &[]),
        record(3, [239, 0, 0, 2], &[other]),
        record(5, [239, 0, 0, 3], &[other, us]),
    ]);
    let told = hear(9000, V3, &two);
    assert_eq!(told, (Ok(()), vec![("239.0.0.1".to_owned(), true), ("239.0.0.3".to_owned(), true)]));
    assert_eq!(hear(9500, V3, &report(&[record(6, [239, 0, 0, 3], &[us])])), news("239.0.0.3", false));
    assert_eq!(hear(9500, V3, &report(&[record(4, [239, 0, 0, 1], &[us])])), news("239.0.0.1", false));
    assert_eq!(hear(9500, V3, &report(&[record(2, [239, 0, 0, 1], &[us])])), nothing);
    assert_eq!(hear(9600, V3, &report(&[record(1, [239, 0, 0, 1], &[us])])), news("239.0.0.1", true));
    // Fewer bytes than the number of records needs.
    let mut cut = report(&[record(4, [239, 0, 0, 5], &[])]);
    cut[7] = 2;
    assert_eq!(hear(9700, V3, &cut).0, Err(DropReason::IcmpMalformed));
    let mut sources = report(&[record(4, [239, 0, 0, 6], &[other])]);
    sources[11] = 9;
    assert_eq!(hear(9800, V3, &sources), (Err(DropReason::IcmpMalformed), vec![]));
    // Ordinary packets to groups are dropped.
    let mut udp = igmp(PEER, group, &[], &[0; 8]);
    udp[23] = 17;
    udp[24..26].fill(0);
    let sum = checksum(&udp[14..34]);
    udp[24..26].copy_from_slice(&sum);
    assert_eq!(exchange(&mut a, ms(9900), &udp).0, Err(DropReason::ForeignAddress));
    // Reports without a source address are those of switches.
    let frame = igmp([0; 4], V3, ALERT, &report(&[record(4, [239, 0, 0, 8], &[])]));
    assert_eq!((exchange(&mut a, ms(9900), &frame).0, listeners(&mut a)), (Ok(()), vec![]));
}

// [HOST-MLD]

/// Any host on the link can send a report, and a service may join the group that it names.
#[test]
fn reports_of_hosts_that_the_port_does_not_serve_are_dropped() {
    let mut a = quiet(&config(MAC_A, &[A4]));
    a.watch_listeners();
    a.set_peers(Some(["192.168.77.2/32".parse().expect("a network")].into_iter().collect()));
    let joined = [0x22, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 239, 1, 2, 3];
    let report = |from| igmp([192, 168, 77, from], [224, 0, 0, 22], ALERT, &joined);
    assert_eq!(exchange(&mut a, ms(5000), &report(3)).0, Err(DropReason::PeerNotAllowed));
    assert_eq!((listeners(&mut a).len(), a.stats().igmp_reports_heard.get()), (0, 0));
    // A querier, such as a switch, need not be served.
    assert_eq!(exchange(&mut a, ms(5000), &query(8, 100, [0; 4])).0, Ok(()));
    assert_eq!(exchange(&mut a, ms(5000), &report(2)).0, Ok(()));
    assert_eq!(listeners(&mut a).len(), 1);
}

#[test]
fn ipv6_groups_are_reported_by_mld() {
    let mut a = quiet(&config(MAC_A, &[A4, A6]));
    // Not reported: all nodes, groups of interface scope, and those of our addresses.
    for group in ["ff02::1", "ff01::5", "ff02::1:ff00:1"] {
        assert!(a.join_group(ms(5000), ip(group)));
    }
    assert_eq!(poll(&mut a, ms(5000)).len(), 0);
    a.join_group(ms(6000), ip("ff15::7"));
    let joined = poll(&mut a, ms(6000));
    let expected = hex("333300000016 52540000000a 86dd 60000000 0024 00 01 fe80000000000000505400fffe00000a
         ff020000000000000000000000000016 3a00 0502 0000 0100
         8f00 2093 0000 0001 04000000 ff150000000000000000000000000007");
    assert_eq!(joined, [expected]);
    assert_eq!(poll(&mut a, ms(7000)), joined);

    // A query for this group, with a maximum response time of one second.
    let query = hex("333300000007 52540000000b 86dd 60000000 0024 00 01 fe80000000000000505400fffe00000b
         ff150000000000000000000000000007 3a00 0502 0000 0100
         8200 2a2b 03e8 0000 ff150000000000000000000000000007 027d 0000");
    let mut query = query;
    // Pseudo header and message sum up to zero.
    let pseudo = [&query[22..54], &[0, 0, 0, 28, 0, 0, 0, 58]].concat();
    query[64..66].fill(0);
    let sum = checksum(&[&pseudo, &query[62..]].concat());
    query[64..66].copy_from_slice(&sum);
    assert_eq!(exchange(&mut a, ms(10_000), &query), (Ok(()), vec![]));
    let answer = poll(&mut a, ms(10_040));
    assert_eq!(answer[0][70..], hex("02000000 ff150000000000000000000000000007"));
    assert_eq!(answer.len(), 1);

    // Leaving the group of one of our addresses changes nothing.
    a.leave_group(ms(20_000), ip("ff02::1:ff00:1"));
    assert_eq!(poll(&mut a, ms(20_000)).len(), 0);
    assert!(a.multicast_macs().contains(&"33:33:ff:00:00:01".parse().expect("a MAC")));
    a.leave_group(ms(21_000), ip("ff15::7"));
    assert_eq!(poll(&mut a, ms(21_000))[0][70], 3);
    assert_eq!(exchange(&mut a, ms(21_000), &query).0, Err(DropReason::ForeignMac));
    assert_eq!(a.stats().igmp_reports_sent.get(), 0);
}

#[test]
fn port_without_an_ipv4_address_reports_from_0_0_0_0() {
    let mut a = host(MAC_A, &[A6]);
    a.join_group(ms(0), ip(GROUP));
    let report = poll(&mut a, ms(0)).into_iter().find(|frame| frame[12..14] == [8, 0]).expect("a report");
    assert_eq!((parse(&report).0, &report[26..30]), ([224, 0, 0, 22], &[0; 4][..]));
}

proptest::proptest! {
    /// Random reports with correct checksums produce events about multicast groups only.
    #[test]
    fn random_reports(kind in 0x10..0x24_u8, body in proptest::collection::vec(0..12_u8, 1..80)) {
        let mut a = quiet(&config(MAC_A, &[A4]));
        a.watch_listeners();
        let message = [&[kind, 0, 0, 0][..], &body].concat();
        let _ = exchange(&mut a, ms(5000), &igmp([192, 168, 77, 9], [224, 0, 0, 22], ALERT, &message));
        // Also when the group is joined.
        let message = [&[0x22, 0, 0, 0, 0, 0, 0, 9, 4, 0, 0, body[0], 239, 1, 1, 1][..], &body].concat();
        let _ = exchange(&mut a, ms(5001), &igmp([192, 168, 77, 9], [224, 0, 0, 22], ALERT, &message));
        for (group, host, _) in listeners(&mut a) {
            assert!(ip(&group).is_multicast() && !group.starts_with("224.0.0.") && host == "192.168.77.9");
        }
    }
}
