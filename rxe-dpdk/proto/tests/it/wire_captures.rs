//! Every frame of every capture: what parses, prints, verifies and is written again byte for byte.

use std::collections::BTreeMap;

use crate::support::rebuild;
use rxe_proto::wire::cm::CmMessage;
use rxe_proto::wire::{DropReason, Frame, Gid, RocePacket, Transport, classify};
use rxe_testkit::pcap;

/// File, frames, RoCE frames among them, MADs among those; counted with another program.
const FILES: [(&str, usize, usize, usize); 28] = [
    ("cm-ib_atomic_bw-R", 88, 86, 12),
    ("cm-ib_read_bw-R", 88, 86, 12),
    ("cm-ib_send_bw-R-UD", 58, 56, 7),
    ("cm-ib_send_bw-R", 66, 64, 10),
    ("cm-mra-slow-server", 23, 19, 7),
    ("cm-rej-no-listener", 4, 2, 2),
    ("cm-rping-ipv4-multipacket", 27, 25, 5),
    ("cm-rping-ipv4", 43, 41, 5),
    ("cm-rping-ipv6", 33, 29, 5),
    ("cm-rping-mtu9000", 23, 21, 5),
    ("cm-rstream", 25, 23, 5),
    ("cm-sidr-no-listener", 4, 2, 2),
    ("cm-ucmatose", 19, 17, 5),
    ("cm-udaddy", 10, 8, 2),
    ("cm-x-init-bad-rep-rejected", 3, 3, 3),
    ("cm-x-init-killed-rej-timeout", 2, 2, 2),
    ("cm-x-init-mra-of-rep", 6, 6, 5),
    ("cm-x-init-rejected-28", 2, 2, 2),
    ("cm-x-init-req-retransmit", 11, 9, 8),
    ("cm-x-init-stale-rep", 8, 8, 7),
    ("cm-x-mckey-join-igmp", 4, 0, 0),
    ("cm-x-resp-dreq-retransmit", 6, 6, 6),
    ("cm-x-resp-rejects", 14, 14, 14),
    ("cm-x-resp-rep-retransmit", 7, 7, 7),
    ("cm-x-resp-stale-conn", 7, 7, 7),
    ("nvmf-rdma-cmds", 498, 498, 22),
    ("nvmf-rdma-discover", 85, 85, 5),
    ("nvmf-rdma", 276, 276, 10),
];

/// RoCE frames in all files together.
const TOTAL_ROCE: usize = 1402;

/// How often each opcode occurs in all files together.
const OPCODES_SEEN: [&str; 20] = [
    "RC ACKNOWLEDGE 456",
    "RC ATOMIC_ACKNOWLEDGE 5",
    "RC FETCH_ADD 5",
    "RC READ_REQUEST 18",
    "RC READ_RESPONSE_FIRST 3",
    "RC READ_RESPONSE_LAST 3",
    "RC READ_RESPONSE_MIDDLE 18",
    "RC READ_RESPONSE_ONLY 15",
    "RC SEND_FIRST 5",
    "RC SEND_LAST 5",
    "RC SEND_MIDDLE 6",
    "RC SEND_ONLY 309",
    "RC SEND_ONLY_INVALIDATE 67",
    "RC WRITE_FIRST 60",
    "RC WRITE_LAST 60",
    "RC WRITE_MIDDLE 156",
    "RC WRITE_ONLY 9",
    "RC WRITE_ONLY_IMM 9",
    "UD SEND_ONLY 187",
    "UD SEND_ONLY_IMM 6",
];

/// How often each connection manager message occurs in all files together.
const MESSAGES_SEEN: [&str; 9] =
    ["DREP 28", "DREQ 30", "MRA 2", "REJ 13", "REP 32", "REQ 43", "RTU 28", "SIDR_REP 3", "SIDR_REQ 3"];

/// The beginning of cm-rping-ipv4.
const LINES: [&str; 12] = [
    "UD SEND_ONLY 192.168.77.2 > 192.168.77.1 qp 0x1 psn 000007 ackreq deth(qkey 0x80010000 from qp 0x1) 256 bytes",
    "UD SEND_ONLY 192.168.77.1 > 192.168.77.2 qp 0x1 psn 000007 ackreq deth(qkey 0x80010000 from qp 0x1) 256 bytes",
    "UD SEND_ONLY 192.168.77.2 > 192.168.77.1 qp 0x1 psn 000008 ackreq deth(qkey 0x80010000 from qp 0x1) 256 bytes",
    "RC SEND_ONLY 192.168.77.2 > 192.168.77.1 qp 0x11 psn dcd52e ackreq 16 bytes",
    "RC ACKNOWLEDGE 192.168.77.1 > 192.168.77.2 qp 0x18 psn dcd52e aeth(ack msn 1)",
    "RC READ_REQUEST 192.168.77.1 > 192.168.77.2 qp 0x18 psn 29480f ackreq reth(va 0x5576df129370 rkey 0x0000219b len 64)",
    "RC READ_RESPONSE_ONLY 192.168.77.2 > 192.168.77.1 qp 0x11 psn 29480f aeth(ack msn 1) 64 bytes",
    "RC SEND_ONLY 192.168.77.1 > 192.168.77.2 qp 0x18 psn 294810 ackreq 16 bytes",
    "RC ACKNOWLEDGE 192.168.77.2 > 192.168.77.1 qp 0x11 psn 294810 aeth(ack msn 2)",
    "RC SEND_ONLY 192.168.77.2 > 192.168.77.1 qp 0x11 psn dcd52f ackreq 16 bytes",
    "RC ACKNOWLEDGE 192.168.77.1 > 192.168.77.2 qp 0x18 psn dcd52f aeth(ack msn 2)",
    "RC WRITE_ONLY 192.168.77.1 > 192.168.77.2 qp 0x18 psn 294811 ackreq reth(va 0x5576df129550 rkey 0x000020b1 len 64) 64 bytes",
];

/// All RoCE packets, with file name and number from 1.
fn for_each_roce(mut f: impl FnMut(&str, &RocePacket<'_>)) -> usize {
    let mut count = 0;
    for (file, frames) in pcap::all() {
        for (number, frame) in (1..).zip(&frames) {
            if let Ok(Frame::Roce(packet)) = classify(frame) {
                f(&format!("{file} frame {number}"), &packet);
                count += 1;
            }
        }
    }
    count
}

#[test]
fn every_frame_is_roce_or_host() {
    let files = pcap::all();
    assert_eq!(files.len(), FILES.len());
    for ((file, frames), expected) in files.iter().zip(FILES) {
        let (mut roce, mut mads) = (0, 0);
        for frame in frames {
            match classify(frame).unwrap_or_else(|reason| panic!("{file}: {reason}")) {
                Frame::Roce(packet) => {
                    roce += 1;
                    mads += usize::from(packet.transport() == Transport::Ud && packet.dest_qp() == 1);
                }
                Frame::Host => {}
            }
        }
        assert_eq!((file.trim_end_matches(".pcap"), frames.len(), roce, mads), expected);
    }
}

#[test]
fn every_packet_prints() {
    let mut opcodes = BTreeMap::<&str, usize>::new();
    for_each_roce(|at, packet| {
        let text = packet.to_string();
        assert!(text.starts_with(packet.info().name) && !text.contains('\n'), "{at}: {text}");
        let keyless = packet.without_rkeys().to_string();
        let rkeys = [packet.reth().map(|h| h.rkey()), packet.atomic_eth().map(|h| h.rkey()), packet.invalidate_rkey()];
        for rkey in rkeys.into_iter().flatten().map(|rkey| format!("{rkey:#010x}")) {
            assert!(text.contains(&rkey) && !keyless.contains(&rkey), "{at}: {keyless}");
        }
        *opcodes.entry(packet.info().name).or_default() += 1;
    });
    let listing: Vec<_> = opcodes.iter().map(|(name, count)| format!("{name} {count}")).collect();
    assert_eq!(listing, OPCODES_SEEN);
}

#[test]
fn some_packets_read_as_they_should() {
    let frames = pcap::recorded("cm-rping-ipv4.pcap");
    let lines: Vec<String> = frames
        .iter()
        .filter_map(|frame| match classify(frame) {
            Ok(Frame::Roce(packet)) => Some(packet.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(lines[..12], LINES);
}

#[test]
fn every_icrc_is_right_and_every_changed_one_wrong() {
    let mut checked = 0;
    for_each_roce(|at, packet| {
        assert!(packet.icrc_ok(), "{at}");
        let mut damaged = packet.frame().to_vec();
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        let Ok(Frame::Roce(damaged)) = classify(&damaged) else { panic!("{at}") };
        assert!(!damaged.icrc_ok(), "{at}");
        checked += 1;
    });
    assert_eq!(checked, FILES.iter().map(|file| file.2).sum::<usize>());
    assert_eq!(checked, TOTAL_ROCE);
}

// [PKT-NO-FRAGMENTS]
#[test]
fn every_roce_frame_is_built_again_from_its_parts() {
    let count = for_each_roce(|at, packet| {
        assert_eq!(rebuild::rebuild(packet, &rebuild::path(packet)), packet.frame(), "{at}: {packet}");
    });
    assert_eq!(count, TOTAL_ROCE);
}

#[test]
fn a_vlan_tag_does_not_change_the_packet() {
    for_each_roce(|at, packet| {
        let mut path = rebuild::path(packet);
        path.vlan = Some(0x6FFF);
        let tagged = rebuild::rebuild(packet, &path);
        assert_eq!(tagged.len(), packet.frame().len() + 4);
        let Ok(Frame::Roce(parsed)) = classify(&tagged) else { panic!("{at}") };
        assert_eq!((parsed.vlan(), packet.vlan()), (Some(0x6FFF), None));
        assert!(parsed.icrc_ok());
        assert_eq!(parsed.icrc(), packet.icrc());
        assert_eq!(
            (parsed.bth(), parsed.payload(), parsed.ip_header()),
            (packet.bth(), packet.payload(), packet.ip_header())
        );
        assert_eq!((parsed.src_mac(), parsed.dst_mac()), (packet.src_mac(), packet.dst_mac()));
        // A second tag is one too many.
        let mut twice = tagged[..12].to_vec();
        twice.extend([0x81, 0x00, 0x00, 0x05]);
        twice.extend(&tagged[12..]);
        assert_eq!(classify(&twice).unwrap_err(), DropReason::VlanMalformed);
    });
}

#[test]
fn every_mad_is_written_again_byte_for_byte() {
    let mut messages = BTreeMap::<&str, usize>::new();
    for_each_roce(|at, packet| {
        if packet.dest_qp() != 1 {
            return;
        }
        let (header, message) = CmMessage::parse(packet.payload()).unwrap_or_else(|error| panic!("{at}: {error}"));
        let mut mad = [0xA5; 256];
        message.emit(header.transaction_id, &mut mad);
        assert_eq!(mad, packet.payload(), "{at}: {message:?}");
        assert!(message.to_string().starts_with(message.name()));
        *messages.entry(message.name()).or_default() += 1;
        if let CmMessage::Req(req) = &message {
            let addressing = req.ip_addressing();
            assert!(addressing.source().is_some() && addressing.destination().is_some() || at.contains("rejects"));
            let mut again = req.clone();
            assert!(again.set_private_data(&addressing, &req.ulp_data()));
            assert_eq!(again, *req);
            assert!(at.contains("rejects") || req.primary.local_gid == packet.src_gid());
            assert!(at.contains("rejects") || addressing.destination().map(Gid::from) == Some(packet.dst_gid()));
        }
    });
    let listing: Vec<_> = messages.iter().map(|(name, count)| format!("{name} {count}")).collect();
    assert_eq!(listing, MESSAGES_SEEN);
}
