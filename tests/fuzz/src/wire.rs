//! Frames: classification, the peek for prefetching, the packet builder and the ECN mark.

use rxe_proto::wire::net::{ETH_LEN, IP_PROTO_UDP, IPV4_LEN, IPV6_LEN, UDP_LEN, VLAN_LEN};
use rxe_proto::wire::{
    AddressPair, Frame, ROCE_UDP_PORT, RocePacket, Transport, classify, icrc, mark_congestion, peek_bth,
};

use crate::rebuild::{rebuild, seal};

/// Longest frame that is examined: a packet that is written again may be a little longer, and must fit into 65535 bytes.
const LONGEST: usize = 65_000;

/// Examines a frame as it is, and with lengths and ICRC corrected, so that changed bytes reach the code behind these checks.
pub fn run(data: &[u8]) {
    if data.len() > LONGEST {
        return;
    }
    examine(data);
    let mut corrected = data.to_vec();
    if correct(&mut corrected).is_some() {
        examine(&corrected);
    }
}

/// Makes the frame's lengths and ICRC those of its size, and its ports those of RoCEv2. `None` if it is not IP.
fn correct(frame: &mut [u8]) -> Option<()> {
    let tagged = frame.get(12..14)? == [0x81, 0x00];
    let ip_at = ETH_LEN + if tagged { VLAN_LEN } else { 0 };
    let is_ipv4 = match frame.get(ip_at - 2..ip_at)? {
        [0x08, 0x00] => true,
        [0x86, 0xDD] => false,
        _ => return None,
    };
    let ip_len = if is_ipv4 { IPV4_LEN } else { IPV6_LEN };
    let packet = frame.get_mut(ip_at..)?;
    let total = packet.len();
    let udp_len = total.checked_sub(ip_len).filter(|len| *len > UDP_LEN + 4)?;
    let put = |bytes: &mut [u8], at: usize, value: usize| {
        bytes[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
    };
    if is_ipv4 {
        packet[0] = 0x45;
        put(packet, 2, total);
        packet[9] = IP_PROTO_UDP;
    } else {
        packet[0] = 0x60 | packet[0] & 0x0F;
        put(packet, 4, udp_len);
        packet[6] = IP_PROTO_UDP;
    }
    put(packet, ip_len + 2, usize::from(ROCE_UDP_PORT));
    put(packet, ip_len + 4, udp_len);
    put(packet, ip_len + 6, 0);
    seal(packet, is_ipv4);
    Some(())
}

fn examine(frame: &[u8]) {
    let peeked = peek_bth(frame);
    if let Ok(Frame::Roce(packet)) = classify(frame) {
        parts_are_in_the_frame(&packet);
        texts_are_one_line(&packet);
        if packet.vlan().is_none() {
            let peeked = peeked.expect("a BTH in an untagged RoCE packet");
            assert_eq!(peeked.dest_qp, packet.dest_qp());
            if packet.transport() == Transport::Rc {
                assert_eq!(peeked.response, packet.info().response);
                let keys = [packet.reth().map(|reth| reth.rkey()), packet.atomic_eth().map(|eth| eth.rkey())];
                assert!(peeked.rkey.is_none() || keys.contains(&peeked.rkey), "{packet}: {peeked:?}");
            }
        }
        is_written_again(&packet);
        a_mark_changes_the_ecn_bits_only(&packet);
    }
}

fn parts_are_in_the_frame(packet: &RocePacket<'_>) {
    let frame = packet.frame();
    assert_eq!(&frame[packet.payload_range()], packet.payload());
    assert_eq!(frame[packet.icrc_range()], packet.icrc().to_le_bytes());
    assert!(frame[packet.ip_at()..].starts_with(packet.ip_header()));
    assert_eq!(packet.is_ipv4(), packet.ip_header().len() == IPV4_LEN);
    let stored = icrc(&frame[packet.ip_at()..packet.icrc_range().start], packet.is_ipv4());
    assert_eq!(packet.icrc_ok(), stored == packet.icrc());
    // A pair of IPv4-mapped addresses is IPv4, even if the packet is IPv6.
    let pair = AddressPair::new(packet.src_gid(), packet.dst_gid());
    assert_eq!(packet.is_between(&pair), packet.is_ipv4() == matches!(pair, AddressPair::V4(..)));
}

fn texts_are_one_line(packet: &RocePacket<'_>) {
    let text = packet.to_string();
    assert!(text.starts_with(packet.info().name) && !text.contains('\n'), "{text}");
    assert!(!packet.without_rkeys().to_string().contains("rkey"), "{text}");
}

/// A packet that is written from the parts of another one has the same parts, a valid ICRC, and is written again the same.
fn is_written_again(packet: &RocePacket<'_>) {
    let frame = rebuild(packet);
    let again = match classify(&frame) {
        Ok(Frame::Roce(again)) => again,
        other => panic!("{packet} is {other:?} after it was written again"),
    };
    assert!(again.icrc_ok(), "{again}");
    assert_eq!(again.to_string(), packet.to_string());
    assert_eq!(again.payload(), packet.payload());
    assert_eq!(again.pad(), again.payload().len().wrapping_neg() & 3);
    let path = |packet: &RocePacket<'_>| (packet.src_mac(), packet.dst_mac(), packet.vlan(), packet.udp_src_port());
    assert_eq!(path(&again), path(packet));
    assert_eq!(again.ip_id(), 0);
    let ip = |packet: &RocePacket<'_>| (packet.traffic_class(), packet.hop_limit());
    assert_eq!(ip(&again), ip(packet));
    if again.is_ipv4() == packet.is_ipv4() {
        assert_eq!(again.flow_label(), packet.flow_label());
    }
    assert_eq!(rebuild(&again), frame);
}

fn a_mark_changes_the_ecn_bits_only(packet: &RocePacket<'_>) {
    let mut frame = packet.frame().to_vec();
    assert!(mark_congestion(&mut frame, packet.ip_at()));
    let Ok(Frame::Roce(marked)) = classify(&frame) else { panic!("{packet} is no packet any more") };
    assert!(marked.is_congestion_marked());
    assert_eq!(marked.traffic_class() & !3, packet.traffic_class() & !3);
    assert_eq!((marked.icrc_ok(), marked.to_string()), (packet.icrc_ok(), packet.to_string()));
}
