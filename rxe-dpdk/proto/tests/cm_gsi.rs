//! Queue pair 1: frames around MADs, and what is refused there.

mod cm_support;

use cm_support::{mad_of, path, rtu};
use rxe_proto::cm::{MAD_FRAME_LEN_MAX, MadPath, read_mad, write_mad};
use rxe_proto::wire::mad::{GSI_QKEY, MAD_LEN};
use rxe_proto::wire::{
    BthFields, BthOpcode, DropReason, Frame, Gid, HeaderTemplate, Opcode, Path, PortId, Psn, TxFrames, classify,
};

/// What the peer gets: the same way, seen from the other end.
fn mirrored(path: &MadPath) -> MadPath {
    MadPath { local_mac: path.peer_mac, peer_mac: path.local_mac, local: path.peer, peer: path.local, ..path.clone() }
}

fn v6(last: u8) -> Gid {
    Gid([0xFD, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last])
}

#[test]
fn a_mad_arrives_as_it_was_sent() {
    let plain = MadPath { port: PortId(3), traffic_class: 0xB8, ..path() };
    let tagged = MadPath { vlan: Some(0x6064), ..plain.clone() };
    let ipv6 = MadPath { local: v6(1), peer: v6(2), ..plain.clone() };
    let both = MadPath { vlan: Some(100), ..ipv6.clone() };
    let mad = mad_of(&rtu(1, 2), 3);
    for (path, len) in [(plain, 322), (tagged, 326), (ipv6, 342), (both, MAD_FRAME_LEN_MAX)] {
        let mut tx = TxFrames::default();
        assert!(write_mad(&mut tx, &path, 0x1234, Psn::new(0x56_789A), &mad));
        let (port, frame) = tx.frames.remove(0);
        assert_eq!((port, frame.len()), (PortId(3), len));
        let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
        assert!(packet.icrc_ok());
        assert_eq!((packet.psn(), packet.udp_src_port(), packet.hop_limit()), (Psn::new(0x56_789A), 0xD872, 64));
        let (back, bytes) = read_mad(PortId(3), &packet).unwrap();
        assert_eq!((back, bytes), (mirrored(&path), &mad[..]));
    }
}

#[test]
fn a_full_port_takes_nothing() {
    let mut tx = TxFrames { room: Some(0), ..TxFrames::default() };
    assert!(!write_mad(&mut tx, &path(), 0, Psn::new(0), &[0; MAD_LEN]));
    assert!(tx.frames.is_empty());
}

/// A datagram of any shape to any queue pair.
fn datagram(dest_qp: u32, opcode: BthOpcode, pkey: u16, qkey: u32, len: usize) -> Vec<u8> {
    let path = path();
    let template = HeaderTemplate::new(&Path {
        port: path.port,
        src_mac: path.peer_mac,
        dst_mac: path.local_mac,
        vlan: None,
        src: path.peer,
        dst: path.local,
        udp_src_port: 1,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 1,
    });
    let mut frame = vec![0; template.frame_len(opcode, len)];
    let fields = BthFields { opcode, dest_qp, psn: Psn::new(9), solicited: true, ack_req: true, pkey };
    let mut packet = template.build(&mut frame, 0, fields, len);
    if opcode != BthOpcode::rc(Opcode::SendOnly) {
        packet.deth(qkey, 77);
    }
    if opcode == BthOpcode::ud(Opcode::SendOnlyImm) {
        packet.imm(1);
    }
    packet.payload_mut().fill(1);
    packet.finish();
    frame
}

// [CM-QP1]
#[test]
fn queue_pair_1_checks_what_matters_and_nothing_else() {
    let send = BthOpcode::ud(Opcode::SendOnly);
    let read = |frame: Vec<u8>| {
        let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
        read_mad(PortId(0), &packet).map(|(path, mad)| (path, mad.len()))
    };
    assert_eq!(read(datagram(1, send, 0xFFFF, GSI_QKEY, 256)), Ok((path(), 256)));
    assert_eq!(read(datagram(1, send, 0x7FFF, GSI_QKEY, 256)), Ok((path(), 256)), "limited member");
    assert_eq!(read(datagram(1, send, 0x1234, GSI_QKEY, 256)), Err(DropReason::PkeyMismatch));
    assert_eq!(read(datagram(1, send, 0xFFFF, 0x0123_4567, 256)), Err(DropReason::QkeyMismatch));
    assert_eq!(read(datagram(2, send, 0xFFFF, GSI_QKEY, 256)), Err(DropReason::QpnUnknown));
    let imm = BthOpcode::ud(Opcode::SendOnlyImm);
    assert_eq!(read(datagram(1, imm, 0xFFFF, GSI_QKEY, 256)), Err(DropReason::QpWrongTransport));
    let rc = BthOpcode::rc(Opcode::SendOnly);
    assert_eq!(read(datagram(1, rc, 0xFFFF, GSI_QKEY, 256)), Err(DropReason::QpWrongTransport));
    for len in [0, 60, 255, 257, 260, 1024] {
        assert_eq!(read(datagram(1, send, 0xFFFF, GSI_QKEY, len)), Err(DropReason::MadMalformed), "{len}");
    }
}
