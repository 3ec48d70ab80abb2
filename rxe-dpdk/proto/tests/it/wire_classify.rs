//! The classifier on frames of all sorts: made ones, damaged ones, random ones.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::support::rebuild;
use proptest::prelude::*;
use rxe_proto::wire::{
    BthFields, BthOpcode, DropReason, Frame, Gid, HeaderTemplate, Headers, MacAddr, OPCODES, Opcode, Path, PortId, Psn,
    RocePacket, Syndrome, classify, mark_congestion,
};
use rxe_testkit::pcap;

fn path(ipv4: bool, vlan: Option<u16>) -> Path {
    let (src, dst) = if ipv4 {
        (Gid::from(Ipv4Addr::new(10, 0, 0, 1)), Gid::from(Ipv4Addr::new(10, 0, 0, 2)))
    } else {
        (Gid::from(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 1)), Gid::from(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 2)))
    };
    Path {
        port: PortId(0),
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan,
        src,
        dst,
        udp_src_port: 0xC000,
        traffic_class: 0x2A,
        flow_label: 0x1_2345,
        hop_limit: 64,
    }
}

/// A frame of any opcode, its extension headers filled from `words`.
fn frame(path: &Path, opcode: BthOpcode, payload: &[u8], words: [u64; 3]) -> Vec<u8> {
    let [a, b, c] = words;
    let template = HeaderTemplate::new(path);
    let mut frame = vec![0xA5; template.frame_len(opcode, payload.len())];
    let psn = Psn::new(a as u32);
    let (solicited, ack_req) = (b & 1 != 0, b & 2 != 0);
    let fields = BthFields { opcode, dest_qp: (c as u32) & 0xFF_FFFF, psn, solicited, ack_req, pkey: b as u16 };
    let mut builder = template.build(&mut frame, fields, payload.len());
    builder.payload_mut().copy_from_slice(payload);
    let has = |which| opcode.headers().contains(which);
    if has(Headers::DETH) {
        builder.deth(a as u32, c as u32);
    }
    if has(Headers::FETH) {
        builder.feth(a as u8, b as u8);
    }
    if has(Headers::RETH) {
        builder.reth(a, b as u32, c as u32);
    }
    if has(Headers::ATOMIC) {
        builder.atomic_eth(c, a as u32, b, a);
    }
    if has(Headers::AETH) {
        builder.aeth(Syndrome::from_byte(a as u8), c as u32);
    }
    if has(Headers::ATOMIC_ACK) {
        builder.atomic_ack(b);
    }
    if has(Headers::IMM) {
        builder.imm(b as u32);
    }
    if has(Headers::IETH) {
        builder.ieth(a as u32);
    }
    builder.finish();
    frame
}

fn roce(frame: &[u8]) -> Option<RocePacket<'_>> {
    match classify(frame) {
        Ok(Frame::Roce(packet)) => Some(packet),
        _ => None,
    }
}

/// Calls everything that a packet answers.
fn touch(packet: &RocePacket<'_>) -> usize {
    let text = packet.to_string();
    let _ = (packet.icrc_ok(), packet.udp_src_port(), packet.ip_id(), packet.flow_label(), packet.hop_limit());
    let _ = (packet.src_mac(), packet.dst_mac(), packet.traffic_class(), packet.opcode(), packet.transport());
    assert!(packet.payload().len() + packet.pad() + 4 <= packet.frame().len());
    assert_eq!(packet.ip_header().len(), if packet.is_ipv4() { 20 } else { 40 });
    text.len() + packet.payload().len()
}

/// The drop reason of a good SEND of 5 bytes after `change`.
fn changed(ipv4: bool, change: impl FnOnce(&mut Vec<u8>)) -> Option<DropReason> {
    let mut frame = frame(&path(ipv4, None), BthOpcode::rc(Opcode::SendOnly), b"hello", [0; 3]);
    change(&mut frame);
    classify(&frame).err()
}

// [PKT-LENGTH] [PKT-NO-FRAGMENTS] [PKT-TVER] [PKT-OPCODE-RESERVED]
#[test]
fn each_check_has_its_own_reason() {
    use DropReason::*;
    // Offsets in the frame: IP 14; IPv4 UDP 34, BTH 42; IPv6 UDP 54, BTH 62.
    assert_eq!(changed(true, |_| {}), None);
    assert_eq!(changed(true, |f| f.truncate(13)), Some(FrameTooShort));
    assert_eq!(changed(true, |f| f.truncate(33)), Some(FrameTooShort));
    assert_eq!(changed(false, |f| f.truncate(53)), Some(FrameTooShort));
    assert_eq!(changed(true, |f| f[12..14].copy_from_slice(&[0x89, 0x15])), Some(UnknownEthertype));
    assert_eq!(changed(true, |f| f[12..14].copy_from_slice(&[0x00, 0x26])), Some(UnknownEthertype));
    assert_eq!(changed(true, |f| f.splice(12.., [0x81, 0, 0]).for_each(drop)), Some(VlanMalformed));
    assert_eq!(changed(true, |f| f[14] = 0x65), Some(IpHeaderMalformed));
    assert_eq!(changed(true, |f| f[14] = 0x44), Some(IpHeaderMalformed));
    assert_eq!(changed(true, |f| f[14] = 0x46), Some(IpOptions));
    assert_eq!(changed(false, |f| f[14] = 0x40), Some(IpHeaderMalformed));
    assert_eq!(changed(true, |f| f[20] = 0x20), Some(IpFragment));
    assert_eq!(changed(true, |f| f[21] = 0x01), Some(IpFragment));
    assert_eq!(changed(true, |f| f[20] = 0x00), None, "fragmenting allowed but not done");
    assert_eq!(changed(true, |f| f[17] += 1), Some(IpLengthMismatch));
    assert_eq!(changed(true, |f| f[17] = 19), Some(IpLengthMismatch));
    assert_eq!(changed(true, |f| f[17] = 27), Some(IpLengthMismatch));
    assert_eq!(changed(false, |f| f[19] += 1), Some(IpLengthMismatch));
    assert_eq!(changed(false, |f| f[19] = 7), Some(IpLengthMismatch));
    assert_eq!(changed(true, |f| f[39] -= 1), Some(UdpLengthMismatch));
    assert_eq!(changed(false, |f| f[59] += 1), Some(UdpLengthMismatch));
    assert_eq!(changed(true, |f| f[41] = 1), Some(UdpChecksum));
    assert_eq!(changed(true, |f| shorten(f, 15)), Some(RoceTooShort));
    assert_eq!(changed(true, |f| shorten(f, 11)), Some(RoceTooShort));
    assert_eq!(changed(true, |f| f[43] |= 1), Some(BthVersion));
    assert_eq!(changed(true, |f| f[42] = 0x15), Some(UnknownOpcode));
    assert_eq!(changed(true, |f| f[42] = 0x44), Some(UnknownOpcode));
    assert_eq!(changed(true, |f| f[42] = 0x0A), Some(HeaderTruncated));
    assert_eq!(changed(true, |f| shorten(f, 18)), Some(PadExceedsPayload));
    assert_eq!(changed(true, |f| shorten(f, 19)), None, "nothing but pad");
}

/// Cuts an IPv4 frame so that UDP carries `len` bytes.
fn shorten(frame: &mut Vec<u8>, len: u8) {
    frame.truncate(42 + usize::from(len));
    frame[17] = 28 + len;
    frame[39] = 8 + len;
}

#[test]
fn the_parts_of_a_packet_are_where_it_says() {
    for (ipv4, vlan, padding) in [(true, None, 0), (true, Some(7), 3), (false, None, 1), (false, Some(7), 0)] {
        let mut bytes = frame(&path(ipv4, vlan), BthOpcode::rc(Opcode::WriteOnlyImm), b"payload", [1, 2, 3]);
        bytes.extend(vec![0; padding]);
        let packet = roce(&bytes).expect("a packet");
        assert_eq!(&bytes[packet.payload_range()], b"payload");
        assert_eq!(bytes[packet.icrc_range()], packet.icrc().to_le_bytes());
        assert_eq!(packet.icrc_range().end + padding, bytes.len());
        assert_eq!(bytes[packet.ip_at()] >> 4, if ipv4 { 4 } else { 6 });
    }
}

#[test]
fn congestion_marks_leave_the_packet_whole() {
    for (ipv4, vlan) in [(true, None), (true, Some(7)), (false, None)] {
        let mut bytes = frame(&path(ipv4, vlan), BthOpcode::rc(Opcode::SendOnly), b"hello", [0; 3]);
        let at = roce(&bytes).expect("a packet").ip_at();
        assert!(mark_congestion(&mut bytes, at));
        let packet = roce(&bytes).expect("a packet");
        assert!(packet.is_congestion_marked() && packet.icrc_ok());
        assert_eq!((packet.traffic_class(), packet.payload()), (0x2B, &b"hello"[..]));
        if ipv4 {
            let words = packet.ip_header().chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
            let sum: u32 = words.sum();
            assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF, "the checksum of the header");
        } else {
            assert_eq!(packet.flow_label(), 0x1_2345);
        }
        for (at, len) in [(at, at + 19), (bytes.len(), bytes.len()), (usize::MAX, bytes.len()), (0, bytes.len())] {
            let before = bytes[..len].to_vec();
            assert!(!mark_congestion(&mut bytes[..len], at));
            assert_eq!(bytes[..len], before);
        }
    }
}

// [PKT-UDP-PORT]
#[test]
fn other_frames_go_to_the_host() {
    let host = |frame: &[u8]| matches!(classify(frame), Ok(Frame::Host));
    for ipv4 in [true, false] {
        let good = frame(&path(ipv4, None), BthOpcode::rc(Opcode::SendOnly), b"hello", [0; 3]);
        let (protocol, port) = if ipv4 { (23, 37) } else { (20, 57) };
        for other in [1, 2, 6, 44, 58] {
            let mut frame = good.clone();
            frame[protocol] = other;
            assert!(host(&frame));
        }
        let mut frame = good.clone();
        frame[port] ^= 1;
        assert!(host(&frame));
    }
    let mut arp = vec![0xFF; 42];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert!(host(&arp));
    arp.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
    assert!(host(&arp));
}

// [PKT-LENGTH]
#[test]
fn ethernet_padding_is_no_payload() {
    let mut frame = frame(&path(true, None), BthOpcode::rc(Opcode::SendOnly), &[7], [0; 3]);
    frame.resize(200, 0xEE);
    let packet = roce(&frame).unwrap();
    assert_eq!(packet.payload(), [7]);
    assert!(packet.icrc_ok());
    assert_eq!(packet.frame().len(), 200);
}

/// RFC 768 and RFC 8200, word by word.
fn udp_checksum(packet: &RocePacket<'_>, datagram: &[u8]) -> u16 {
    let ip = packet.ip_header();
    let mut bytes = ip[if packet.is_ipv4() { 12 } else { 8 }..].to_vec();
    bytes.extend([0, 17]);
    bytes.extend((datagram.len() as u16).to_be_bytes());
    bytes.extend(datagram);
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let mut sum = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>();
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    match !(sum as u16) {
        0 => 0xFFFF,
        other => other,
    }
}

// [PKT-UDP-CHECKSUM]
#[test]
fn udp_checksums_are_checked_when_present() {
    for ipv4 in [true, false] {
        for len in [0, 1, 5, 1000, 4095] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let mut frame = frame(&path(ipv4, Some(5)), BthOpcode::rc(Opcode::SendOnly), &payload, [1, 2, 3]);
            let udp_at = if ipv4 { 38 } else { 58 };
            let checksum = udp_checksum(&roce(&frame).unwrap(), &frame[udp_at..]);
            frame[udp_at + 6..udp_at + 8].copy_from_slice(&checksum.to_be_bytes());
            assert!(roce(&frame).unwrap().icrc_ok(), "the ICRC does not cover the checksum");
            let last = frame.len() - 1;
            frame[last] ^= 0x40;
            assert_eq!(classify(&frame).unwrap_err(), DropReason::UdpChecksum);
        }
    }
}

#[test]
fn ipv4_header_checksums_are_right() {
    let check = |path: &Path, len| {
        let frame = frame(path, BthOpcode::uc(Opcode::SendOnly), &vec![0; len], [0; 3]);
        let sum: u32 = frame[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        assert_eq!((sum >> 16) + (sum & 0xFFFF), 0xFFFF, "{path:?} {len}");
    };
    for len in [0, 1, 1024, 4096] {
        for class in [0, 0xFF] {
            check(&Path { traffic_class: class, ..path(true, None) }, len);
        }
    }
    // Every sum of the rest of the header.
    for word in 0..=u16::MAX {
        let [a, b] = word.to_be_bytes();
        check(&Path { dst: Gid::from(Ipv4Addr::new(10, 0, a, b)), ..path(true, None) }, 0);
    }
}

// [PKT-IP-ID] [PKT-NO-FRAGMENTS]
#[test]
fn ipv4_packets_have_no_identification_and_are_not_to_be_fragmented() {
    for vlan in [None, Some(5)] {
        for info in OPCODES.iter().flatten() {
            let frame = frame(&path(true, vlan), info.opcode, &[], [u64::MAX; 3]);
            let packet = roce(&frame).unwrap();
            assert_eq!((packet.ip_id(), &packet.ip_header()[6..8]), (0, &[0x40, 0][..]), "{packet}");
        }
    }
}

#[test]
fn a_packet_view_is_two_cache_lines() {
    assert!(size_of::<RocePacket<'_>>() <= 128, "{}", size_of::<RocePacket<'_>>());
    assert!(size_of::<Result<Frame<'_>, DropReason>>() <= 128);
}

proptest! {
    #[test]
    fn any_packet_parses_into_what_it_was_built_from(
        byte: u8, ipv4: bool, vlan: Option<u16>, words: [u64; 3], hop_limit: u8, traffic_class: u8,
        flow_label in 0..1u32 << 20, udp_src_port: u16, payload in prop::collection::vec(any::<u8>(), 0..300),
        migreq: bool, fecn: bool, becn: bool,
    ) {
        let info = OPCODES.iter().flatten().cycle().nth(usize::from(byte)).unwrap();
        let flow_label = if ipv4 { 0 } else { flow_label };
        let path = Path { hop_limit, traffic_class, flow_label, udp_src_port, ..path(ipv4, vlan) };
        let mut frame = frame(&path, info.opcode, &payload, words);
        // Bits that `frame` does not set; the ICRC covers MigReq.
        let bth_at = 14 + if vlan.is_some() { 4 } else { 0 } + if ipv4 { 28 } else { 48 };
        frame[bth_at + 1] |= u8::from(migreq) << 6;
        frame[bth_at + 4] |= u8::from(fecn) << 7 | u8::from(becn) << 6;
        let packet = roce(&frame).unwrap();
        prop_assert_eq!(packet.icrc_ok(), !migreq);
        prop_assert_eq!(packet.info(), info);
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(packet.pad(), payload.len().wrapping_neg() & 3);
        prop_assert_eq!(rebuild::path(&packet), path.clone());
        touch(&packet);
        let again = rebuild::rebuild(&packet, &path);
        let packet = roce(&again).unwrap();
        prop_assert!(packet.icrc_ok());
        prop_assert_eq!(&again[..again.len() - 4], &frame[..frame.len() - 4]);
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..4u8) {
        let mut frame = bytes;
        // Help it past the first checks.
        let ip: &[u8] = match kind {
            0 => &[],
            1 => &[0x08, 0x00, 0x45],
            2 => &[0x86, 0xDD, 0x60],
            _ => &[0x81, 0x00, 0x00, 0x01, 0x08, 0x00, 0x45],
        };
        if frame.len() >= 60 {
            frame[12..12 + ip.len()].copy_from_slice(ip);
            let at = 11 + ip.len();
            match kind {
                1 | 3 => {
                    let len = (frame.len() - at) as u16;
                    frame[at + 2..at + 4].copy_from_slice(&len.to_be_bytes());
                    frame[at + 6..at + 8].fill(0);
                    frame[at + 9] = 17;
                    frame[at + 22..at + 24].copy_from_slice(&4791u16.to_be_bytes());
                    frame[at + 24..at + 26].copy_from_slice(&(len - 20).to_be_bytes());
                    frame[at + 26..at + 28].fill(0);
                }
                _ => {}
            }
        }
        if let Some(packet) = roce(&frame) {
            touch(&packet);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_captures_do_no_harm(
        pick: prop::sample::Index, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        headers_only: bool, keep: prop::sample::Index, cut: bool, grow in 0..40usize,
    ) {
        let frames = captures();
        let mut frame = pick.get(frames).clone();
        for (at, value) in changes {
            let at = if headers_only { at.index(frame.len().min(100)) } else { at.index(frame.len()) };
            frame[at] = value;
        }
        if cut {
            frame.truncate(keep.index(frame.len()));
        } else {
            frame.resize(frame.len() + grow, 0);
        }
        if let Some(packet) = roce(&frame) {
            touch(&packet);
        }
    }
}

fn captures() -> &'static [Vec<u8>] {
    static FRAMES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    FRAMES.get_or_init(|| pcap::all().into_iter().flat_map(|(_, frames)| frames).collect())
}
