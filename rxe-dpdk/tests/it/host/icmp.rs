//! Echo, "unreachable" messages, and the reasons for dropping IP packets.

use super::net::{MAC_A, MAC_B, config, exchange, hex, host, ms};
use rxe_dpdk::host::{Host, HostConfig};
use rxe_proto::wire::DropReason;

const ADDRESSES: [&str; 2] = ["10.0.0.1/24", "fd00::1/64"];

/// Internet checksum, independent of the host's.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let bytes: Vec<u8> = parts.concat();
    let mut sum: u32 = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// An IPv4 packet from 10.0.0.2 to 10.0.0.1.
fn v4(protocol: u8, traffic_class: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = hex("4500 0000 0001 4000 40 00 0000 0a000002 0a000001");
    header[1] = traffic_class;
    header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    header[9] = protocol;
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum);
    [&hex("52540000000a 52540000000b 0800")[..], &header, payload].concat()
}

/// An IPv6 packet from fd00::2 to fd00::1.
fn v6(protocol: u8, traffic_class: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = hex("60000000 0000 00 40 fd000000000000000000000000000002 fd000000000000000000000000000001");
    header[0] |= traffic_class >> 4;
    header[1] |= traffic_class << 4;
    header[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    header[6] = protocol;
    [&hex("52540000000a 52540000000b 86dd")[..], &header, payload].concat()
}

fn echo(kind: u8, pseudo: &[u8], data: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0, 0x12, 0x34, 0, 7][..], data].concat();
    let sum = checksum(&[pseudo, &message]);
    message[2..4].copy_from_slice(&sum);
    message
}

/// The addresses, length and protocol that an ICMPv6 checksum covers.
fn pseudo(len: usize) -> Vec<u8> {
    let mut bytes = hex("fd000000000000000000000000000002 fd000000000000000000000000000001 00000000 0000003a");
    bytes[34..36].copy_from_slice(&(len as u16).to_be_bytes());
    bytes
}

fn ping6(data: &[u8], traffic_class: u8) -> Vec<u8> {
    v6(58, traffic_class, &echo(128, &pseudo(8 + data.len()), data))
}

#[test]
fn echo_requests_are_answered() {
    let mut a = host(MAC_A, &ADDRESSES);
    for len in [0, 1, 56, 57, 1472] {
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let (result, answers) = exchange(&mut a, ms(0), &v4(1, 0xB8, &echo(8, &[], &data)));
        assert_eq!((result, answers.len()), (Ok(()), 1), "{len}");
        let reply = &answers[0];
        assert_eq!(reply[..14], hex("52540000000b 52540000000a 0800"));
        assert_eq!(reply[15], 0xB8, "same traffic class");
        assert_eq!(reply[20..24], [0x40, 0, 64, 1], "not to be fragmented, 64 hops");
        assert_eq!(reply[26..34], hex("0a000001 0a000002"));
        assert_eq!(checksum(&[&reply[14..34]]), [0, 0]);
        assert_eq!(reply[34..], echo(0, &[], &data));
    }
    for len in [0, 1, 1452] {
        let data: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let (result, answers) = exchange(&mut a, ms(0), &ping6(&data, 0x2C));
        assert_eq!((result, answers.len()), (Ok(()), 1), "{len}");
        let reply = &answers[0];
        assert_eq!(reply[14..18], hex("62c00000"));
        assert_eq!(reply[22..54], hex("fd000000000000000000000000000001 fd000000000000000000000000000002"));
        // The sum is symmetric in source and destination, so the request's pseudo header serves.
        assert_eq!(reply[54..], echo(129, &pseudo(8 + data.len()), &data));
    }
    assert_eq!(a.stats().echo_replies_sent.get(), 8);
    // Consecutive packets have consecutive ids.
    let id = |a: &mut Host| {
        let (_, answers) = exchange(a, ms(0), &v4(1, 0, &echo(8, &[], &[])));
        u16::from_be_bytes([answers[0][18], answers[0][19]])
    };
    let first = id(&mut a);
    assert_eq!(id(&mut a), first.wrapping_add(1));
}

#[test]
fn ethernet_padding_is_not_echoed() {
    let mut a = host(MAC_A, &ADDRESSES);
    let mut frame = v4(1, 0, &echo(8, &[], &[1, 2]));
    frame.resize(60, 0xEE);
    assert_eq!(exchange(&mut a, ms(0), &frame).1[0].len(), 14 + 20 + 8 + 2);
}

#[test]
fn jumbo_pings_follow_the_mtu() {
    let big = v4(1, 0, &echo(8, &[], &[7; 8000]));
    assert_eq!(exchange(&mut host(MAC_A, &ADDRESSES), ms(0), &big), (Err(DropReason::IpLengthMismatch), vec![]));
    let mut config = config(MAC_A, &ADDRESSES);
    config.mtu = 9000;
    let mut a = Host::new(&config).expect("a good configuration");
    assert_eq!(exchange(&mut a, ms(0), &big).1.len(), 1);
}

#[test]
fn ping_to_all_nodes_is_answered_from_our_address() {
    let mut a = host(MAC_A, &ADDRESSES);
    let mut frame = hex("333300000001 52540000000b 86dd 60000000 0008 3a 40 fe80000000000000505400fffe00000b
         ff020000000000000000000000000001 8000 0000 0001 0001");
    let sum = checksum(&[&frame[22..54], &[0, 0, 0, 8, 0, 0, 0, 58], &frame[54..]]);
    frame[56..58].copy_from_slice(&sum);
    let (result, answers) = exchange(&mut a, ms(0), &frame);
    assert_eq!(result, Ok(()));
    assert_eq!(answers[0][..6], MAC_B.0);
    assert_eq!(answers[0][22..38], hex("fe80000000000000505400fffe00000a"));
}

#[test]
fn closed_udp_ports_send_unreachable_messages_up_to_a_limit() {
    let mut a = host(MAC_A, &ADDRESSES);
    let datagram = hex("3039 0035 000c 0000 01020304");
    let frame = v4(17, 0, &datagram);
    let (result, answers) = exchange(&mut a, ms(0), &frame);
    assert_eq!(result, Err(DropReason::HostUnsupported));
    let message = &answers[0][34..];
    assert_eq!((message[0], message[1]), (3, 3));
    assert_eq!(checksum(&[message]), [0, 0]);
    assert_eq!(message[8..], frame[14..], "the refused packet is quoted");

    let frame6 = v6(17, 0, &datagram);
    let (result, answers) = exchange(&mut a, ms(0), &frame6);
    assert_eq!(result, Err(DropReason::HostUnsupported));
    let message = &answers[0][54..];
    assert_eq!((message[0], message[1]), (1, 4));
    assert_eq!(message[8..], frame6[14..]);
    assert_eq!(checksum(&[&pseudo(message.len()), message]), [0, 0]);

    let sent: usize = (0..10_000).map(|_| exchange(&mut a, ms(0), &frame).1.len()).sum();
    assert_eq!(sent, 98);
    assert_eq!(a.stats().unreachables_limited.get(), 10_000 - 98);
    assert_eq!(exchange(&mut a, ms(1000), &frame).1.len(), 1, "the limit is per second");

    // Long packets are cut to the size that every host accepts.
    let long = v4(17, 0, &[&hex("3039 0035 03f0 0000")[..], &[9; 1000]].concat());
    assert_eq!(exchange(&mut a, ms(2000), &long).1[0].len(), 14 + 576);
    assert_eq!(exchange(&mut a, ms(2000), &v4(17, 0, &datagram[..7])).0, Err(DropReason::UdpLengthMismatch));
    // Other protocols: "protocol unreachable".
    assert_eq!(exchange(&mut a, ms(2000), &v4(132, 0, &[0; 8])).1[0][34..36], [3, 2]);
    let (_, answers) = exchange(&mut a, ms(2000), &v6(132, 0, &[0; 8]));
    assert_eq!(answers[0][54..56], [4, 1], "a parameter problem");
    assert_eq!(answers[0][58..62], [0, 0, 0, 6], "in the next header field");
}

#[test]
fn packets_to_groups_and_broadcasts_get_no_unreachable_message() {
    let mut a = host(MAC_A, &ADDRESSES);
    let mut to_broadcast = v4(17, 0, &hex("3039 0035 000c 0000 01020304"));
    to_broadcast[..6].fill(0xFF);
    assert_eq!(exchange(&mut a, ms(0), &to_broadcast), (Err(DropReason::ForeignAddress), vec![]));
    let mut echo_to_broadcast = v4(1, 0, &echo(8, &[], &[]));
    echo_to_broadcast[30..34].copy_from_slice(&[10, 0, 0, 255]);
    echo_to_broadcast[24..26].fill(0);
    let sum = checksum(&[&echo_to_broadcast[14..34]]);
    echo_to_broadcast[24..26].copy_from_slice(&sum);
    assert_eq!(exchange(&mut a, ms(0), &echo_to_broadcast), (Err(DropReason::ForeignAddress), vec![]));
}

#[test]
fn each_malformed_packet_has_its_drop_reason() {
    let mut a = host(MAC_A, &ADDRESSES);
    let ping = v4(1, 0, &echo(8, &[], &[1, 2, 3, 4]));
    let mut verdict = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = ping.clone();
        change(&mut frame);
        // Correct the header checksum, unless it was changed on purpose.
        if frame.len() > 34 && frame[12..14] == [8, 0] && frame[24..26] != [0xBA, 0xD0] {
            frame[24..26].fill(0);
            let sum = checksum(&[&frame[14..34]]);
            frame[24..26].copy_from_slice(&sum);
        }
        exchange(&mut a, ms(0), &frame).0
    };
    assert_eq!(verdict(&|_| {}), Ok(()));
    assert_eq!(verdict(&|f| f.truncate(13)), Err(DropReason::FrameTooShort));
    assert_eq!(verdict(&|f| f.truncate(33)), Err(DropReason::IpHeaderMalformed));
    assert_eq!(verdict(&|f| f.truncate(40)), Err(DropReason::IpLengthMismatch));
    assert_eq!(verdict(&|f| f[24..26].copy_from_slice(&[0xBA, 0xD0])), Err(DropReason::HostChecksum));
    assert_eq!(verdict(&|f| f[20] = 0x20), Err(DropReason::IpFragment));
    assert_eq!(verdict(&|f| f[21] = 0x10), Err(DropReason::IpFragment));
    assert_eq!(verdict(&|f| f[14] = 0x46), Err(DropReason::IpOptions));
    assert_eq!(verdict(&|f| f[33] = 9), Err(DropReason::ForeignAddress));
    assert_eq!(verdict(&|f| f[29] = 1), Err(DropReason::IpHeaderMalformed), "from our own address");
    assert_eq!(verdict(&|f| f[29] = 255), Err(DropReason::IpHeaderMalformed), "from the broadcast address");
    assert_eq!(verdict(&|f| f[40] ^= 1), Err(DropReason::HostChecksum));
    assert_eq!(verdict(&|f| f[5] = 0x0C), Err(DropReason::ForeignMac));
    assert_eq!(verdict(&|f| f[12..14].copy_from_slice(&[0x88, 0xCC])), Err(DropReason::UnknownEthertype));
    assert_eq!(verdict(&|f| drop(f.splice(12..12, [0x81, 0, 0, 5]))), Err(DropReason::VlanMismatch));
    assert_eq!(verdict(&|f| drop(f.splice(12..12, [0x81, 0, 0xE0, 0]))), Ok(()));
    assert_eq!(verdict(&|f| f.splice(12.., [0x81, 0, 0xE0]).for_each(drop)), Err(DropReason::VlanMalformed));

    let answered = |frame: &[u8]| exchange(&mut host(MAC_A, &ADDRESSES), ms(0), frame).0;
    assert_eq!(answered(&v6(44, 0, &[0; 16])), Err(DropReason::IpFragment));
    assert_eq!(answered(&v6(43, 0, &[0; 16])), Err(DropReason::IpOptions));
    assert_eq!(answered(&v6(0, 0, &[0; 16])), Err(DropReason::IpOptions));
    assert_eq!(answered(&v6(58, 0, &[0; 4])), Err(DropReason::IcmpMalformed));
    let mut foreign = ping6(&[], 0);
    foreign[53] = 3;
    assert_eq!(answered(&foreign), Err(DropReason::ForeignAddress));
}

#[test]
fn all_frames_of_a_vlan_are_tagged() {
    let mut config = config(MAC_A, &ADDRESSES);
    config.vlan = Some(0x6064);
    let mut a = Host::new(&config).expect("a good configuration");
    let mut frame = v4(1, 0, &echo(8, &[], &[1]));
    assert_eq!(exchange(&mut a, ms(0), &frame), (Err(DropReason::VlanMismatch), vec![]));
    frame.splice(12..12, [0x81, 0x00, 0x00, 0x64]);
    let (result, answers) = exchange(&mut a, ms(0), &frame);
    assert_eq!(result, Ok(()));
    assert_eq!(answers[0][12..18], [0x81, 0x00, 0x60, 0x64, 0x08, 0x00]);
    assert_eq!(answers[0].len(), 18 + 20 + 9);
}

#[test]
fn full_port_is_a_drop_reason() {
    let mut a = host(MAC_A, &ADDRESSES);
    let mut tx = rxe_proto::wire::TxFrames { room: Some(0), ..Default::default() };
    let result = a.handle_frame(ms(0), &v4(1, 0, &echo(8, &[], &[])), &mut tx);
    assert_eq!(result, Err(DropReason::NoTransmitRoom));
}

#[test]
fn packets_from_other_addresses_than_the_allowed_peers_are_dropped() {
    let allowed = |peers: &[&str]| {
        let peers = Some(peers.iter().map(|network| network.parse().unwrap()).collect());
        Host::new(&HostConfig { peers, ..config(MAC_A, &ADDRESSES) }).unwrap()
    };
    let pings = [v4(1, 0, &echo(8, &[], b"x")), ping6(b"x", 0)];
    let datagrams = [v4(17, 0, &hex("1234 0007 0008 0000")), v6(17, 0, &hex("1234 0007 0008 0000"))];
    let mut strict = allowed(&["10.0.0.3", "fd00::3"]);
    for packet in pings.iter().chain(&datagrams) {
        assert_eq!(exchange(&mut strict, ms(0), packet), (Err(DropReason::PeerNotAllowed), Vec::new()));
    }
    let mut open = allowed(&["10.0.0.0/30", "fd00::/64"]);
    for packet in &pings {
        let (result, answers) = exchange(&mut open, ms(0), packet);
        assert_eq!((result, answers.len()), (Ok(()), 1));
    }
}
