//! The ICRC against known packets, verified, computed again and, where the API can say the packet, built from parts.

use std::net::IpAddr;

use crate::support::rebuild::set_identification;
use rxe_proto::wire::{
    AckTemplate, BthFields, BthOpcode, DEFAULT_PKEY, Frame, Gid, HeaderTemplate, IcrcKernel, MacAddr, Opcode, Path,
    PortId, Psn, RocePacket, Syndrome, classify, icrc,
};

/// IP header to ICRC, in hexadecimal. A, B and C are our own; R1 to R5 were sent by a Linux 6.1 kernel.
const VECTORS: [(&str, &str); 8] = [
    ("A", "4500003012344000401113ed0a4d00020a4d0001c12112b7001c00001100ffff00000011001234561f0000015e60d386"),
    ("B", "45000034000140004011261c0a4d00020a4d0001c12112b7002000000430ffff000000118000abcd68656c6c6f000000960b7c20"),
    (
        "C",
        "60000000002c1140fd000077000000000000000000000002fd000077000000000000000000000001c12112b7002c0000\
         0a00ffff0012345680fffffe00007f00deadb00000000abc000000040102030470fb6a6a",
    ),
    ("R1", "45000030680f40004011be110a4d00010a4d0002c12112b7001c00001100ffff000000110083c1161f00000149081380"),
    (
        "R2",
        "60000000001c1140fd000077000000000000000000000001fd000077000000000000000000000002ee9812b7001c0000\
         1100ffff0000001800c726911f0000012ee185cc",
    ),
    (
        "R3",
        "4500003cafa04000401176740a4d00020a4d0001c14412b7002800002430ffff0000001200fa5ef7\
         7b7b7b7b7b7b7b7b7b7b7b7b7b000000ce1eabeb",
    ),
    (
        "R4",
        "45000048b889400040116d7f0a4d00020a4d0001c1e412b7003400001300ffff00000016802e0443\
         0000564b006af0000000073f000000000000000000000000000000007efef74a",
    ),
    (
        "R5",
        "4500003870aa40004011b56e0a4d00010a4d0002c1e412b7002400001200ffff00000016002e0443\
         1f00000188822c1aa06bc2219d7dc344",
    ),
];

fn unhex(hex: &str) -> Vec<u8> {
    assert_eq!(hex.len() % 2, 0);
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn vector(name: &str) -> Vec<u8> {
    VECTORS.iter().find(|(n, _)| *n == name).map(|(_, hex)| unhex(hex)).unwrap()
}

const SRC_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const DST_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

fn in_ethernet(ip: &[u8], vlan: Option<u16>) -> Vec<u8> {
    let mut frame = [DST_MAC.0, SRC_MAC.0].concat();
    if let Some(tci) = vlan {
        frame.extend(0x8100u16.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    frame.extend(if ip[0] >> 4 == 4 { 0x0800u16 } else { 0x86DD }.to_be_bytes());
    frame.extend(ip);
    frame
}

fn roce(frame: &[u8]) -> RocePacket<'_> {
    match classify(frame) {
        Ok(Frame::Roce(packet)) => packet,
        other => panic!("not RoCE: {other:?}"),
    }
}

#[test]
fn known_packets_verify_and_regenerate() {
    for (name, hex) in VECTORS {
        let packet = unhex(hex);
        let (covered, stored) = packet.split_at(packet.len() - 4);
        assert_eq!(icrc(covered, packet[0] >> 4 == 4).to_le_bytes(), stored, "vector {name}");
        for vlan in [None, Some(0x2064)] {
            let frame = in_ethernet(&packet, vlan);
            let parsed = roce(&frame);
            assert!(parsed.icrc_ok(), "vector {name}");
            assert_eq!(parsed.vlan(), vlan);
            assert_eq!((parsed.src_mac(), parsed.dst_mac()), (SRC_MAC, DST_MAC));
            assert_eq!(parsed.ip_header(), &packet[..if parsed.is_ipv4() { 20 } else { 40 }]);
        }
    }
}

// [PKT-ICRC-COVER]
#[test]
fn icrc_covers_all_but_the_fields_that_routers_change() {
    for (name, hex) in VECTORS {
        let packet = unhex(hex);
        let (covered, _) = packet.split_at(packet.len() - 4);
        let is_ipv4 = packet[0] >> 4 == 4;
        let good = icrc(covered, is_ipv4);
        let masked: &[usize] = if is_ipv4 { &[1, 8, 10, 11, 26, 27, 32] } else { &[1, 2, 3, 7, 46, 47, 52] };
        for at in 0..covered.len() {
            let mut changed = covered.to_vec();
            changed[at] ^= 0x10;
            assert_eq!(icrc(&changed, is_ipv4) == good, masked.contains(&at), "vector {name} byte {at}");
        }
    }
}

/// Shift and XOR, one bit at a time, over prefix and masked packet: the ICRC of the first 0, 1, 2, ... bytes.
fn by_the_book(packet: &[u8], is_ipv4: bool) -> Vec<u32> {
    let mut bytes = vec![0xFF; 8];
    bytes.extend(packet);
    let ip = &mut bytes[8..];
    let ones: &[usize] = if is_ipv4 { &[1, 8, 10, 11, 26, 27, 32] } else { &[1, 2, 3, 7, 46, 47, 52] };
    for &at in ones {
        ip[at] = 0xFF;
    }
    if !is_ipv4 {
        ip[0] |= 0x0F;
    }
    let mut crc = u32::MAX;
    let mut icrcs = Vec::new();
    for byte in bytes {
        icrcs.push(!crc);
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0xEDB8_8320 } else { 0 };
        }
    }
    icrcs.push(!crc);
    icrcs.split_off(8)
}

/// A packet of `len` bytes that begins as a known one does.
fn long_packet(start: &str, len: usize) -> (Vec<u8>, bool) {
    let mut packet = vector(start);
    let is_ipv4 = packet[0] >> 4 == 4;
    let mut x = 1u32;
    packet.resize_with(len, || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    });
    (packet, is_ipv4)
}

/// IP, UDP and base transport header.
fn shortest(is_ipv4: bool) -> usize {
    if is_ipv4 { 40 } else { 60 }
}

// [PKT-ICRC-COVER]
#[test]
fn every_length_agrees_with_the_definition() {
    for start in ["A", "C"] {
        let (packet, is_ipv4) = long_packet(start, 9000);
        let right = by_the_book(&packet, is_ipv4);
        for len in shortest(is_ipv4)..=packet.len() {
            assert_eq!(icrc(&packet[..len], is_ipv4), right[len], "{len} bytes of {start}");
            for kernel in IcrcKernel::all() {
                let found = kernel.icrc(&packet[..len], is_ipv4);
                assert_eq!(found, right[len], "{}: {len} bytes of {start}", kernel.name());
            }
        }
    }
}

#[test]
fn place_and_neighbours_do_not_matter() {
    for start in ["A", "C"] {
        let (packet, is_ipv4) = long_packet(start, 4200);
        let right = by_the_book(&packet, is_ipv4);
        let lengths = (shortest(is_ipv4)..=200).chain(500..=580).chain(1060..=1140).chain(4096..=4200);
        for len in lengths {
            for place in 0..64 {
                let mut around = vec![if place % 2 == 0 { 0xA5 } else { 0x5A }; 64 + len + 128];
                let at = around.as_ptr().align_offset(64) + place;
                around[at..at + len].copy_from_slice(&packet[..len]);
                for kernel in IcrcKernel::all() {
                    let found = kernel.icrc(&around[at..at + len], is_ipv4);
                    assert_eq!(found, right[len], "{}: {len} bytes of {start} at {place}", kernel.name());
                }
            }
        }
    }
}

#[test]
fn icrc_of_a_short_frame_does_not_panic() {
    let packet = vector("A");
    for kernel in IcrcKernel::all() {
        for len in 0..40 {
            let _ = kernel.icrc(&packet[..len], true);
            let _ = kernel.icrc(&packet[..len], false);
        }
    }
}

#[test]
fn the_best_kernel_is_the_first() {
    let all: Vec<_> = IcrcKernel::all().collect();
    assert_eq!(IcrcKernel::best(), all[0]);
    assert_eq!(all.last().map(|kernel| kernel.name()), Some("portable"));
    // A machine with the instructions has all kernels tested.
    #[cfg(target_arch = "x86_64")]
    assert_eq!(all.iter().any(|kernel| kernel.name() == "pclmulqdq"), is_x86_feature_detected!("pclmulqdq"));
    #[cfg(target_arch = "x86_64")]
    assert_eq!(all[0].name() == "vpclmulqdq", {
        is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx512bw")
    });
}

fn path(src: &str, dst: &str) -> Path {
    Path {
        port: PortId(3),
        src_mac: SRC_MAC,
        dst_mac: DST_MAC,
        vlan: None,
        src: Gid::from(src.parse::<IpAddr>().unwrap()),
        dst: Gid::from(dst.parse::<IpAddr>().unwrap()),
        udp_src_port: 0xC121,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
    }
}

fn fields(op: Opcode, dest_qp: u32, psn: u32, ack_req: bool) -> BthFields {
    let opcode = BthOpcode::rc(op);
    BthFields { opcode, dest_qp, psn: Psn::new(psn), solicited: false, ack_req, pkey: DEFAULT_PKEY }
}

#[test]
fn acknowledgements_from_their_template_are_those_built_from_parts() {
    let mut x = 7u64;
    let mut random = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 32) as u32
    };
    for (src, dst) in [("10.77.0.2", "10.77.0.1"), ("fd00:77::2", "fd00:77::1")] {
        for vlan in [None, Some(100)] {
            let template = HeaderTemplate::new(&Path { vlan, ..path(src, dst) });
            let acks = AckTemplate::new(&template, 0x12_3456);
            assert_eq!(acks.port(), template.port());
            for case in 0..2000 {
                let (psn, msn) = match case {
                    0 => (0, 0),
                    1 => (0xFF_FFFF, 0xFF_FFFF),
                    2 => (0, 0x100_0001),
                    _ => (random() & 0xFF_FFFF, random()),
                };
                let syndrome = Syndrome::from_byte(random() as u8);
                let fields = fields(Opcode::Acknowledge, 0x12_3456, psn, false);
                let mut built = vec![0xA5; template.frame_len(fields.opcode, 0)];
                let mut packet = template.build(&mut built, fields, 0);
                packet.aeth(syndrome, msn);
                packet.finish();
                let mut written = vec![0x5A; acks.frame_len()];
                acks.write(&mut written, Psn::new(psn), syndrome, msn);
                assert_eq!(written, built, "case {case} from {src}");
            }
        }
    }
}

#[test]
fn own_vectors_are_built_byte_for_byte() {
    for vlan in [None, Some(100)] {
        let v4 = HeaderTemplate::new(&Path { vlan, ..path("10.77.0.2", "10.77.0.1") });
        let v6 = HeaderTemplate::new(&Path { vlan, ..path("fd00:77::2", "fd00:77::1") });
        assert_eq!(v4.port(), PortId(3));

        let f = fields(Opcode::Acknowledge, 0x11, 0x12_3456, false);
        let mut frame = vec![0xA5; v4.frame_len(f.opcode, 0)];
        let mut builder = v4.build(&mut frame, f, 0);
        builder.aeth(Syndrome::ACK, 1);
        builder.finish();
        let ip_at = v4.path_len() - 28;
        set_identification(&mut frame[ip_at..], 0x1234);
        assert_eq!(frame, in_ethernet(&vector("A"), vlan));

        let f = fields(Opcode::SendOnly, 0x11, 0xABCD, true);
        let mut frame = vec![0xA5; v4.frame_len(f.opcode, 5)];
        let mut builder = v4.build(&mut frame, f, 5);
        builder.payload_mut().copy_from_slice(b"hello");
        builder.finish();
        set_identification(&mut frame[ip_at..], 1);
        assert_eq!(frame, in_ethernet(&vector("B"), vlan));

        let f = fields(Opcode::WriteOnly, 0x12_3456, 0xFF_FFFE, true);
        let mut frame = vec![0xA5; v6.frame_len(f.opcode, 4)];
        let mut builder = v6.build(&mut frame, f, 4);
        builder.reth(0x0000_7F00_DEAD_B000, 0xABC, 4).payload_mut().copy_from_slice(&[1, 2, 3, 4]);
        builder.finish();
        assert_eq!(frame, in_ethernet(&vector("C"), vlan));
    }
}
