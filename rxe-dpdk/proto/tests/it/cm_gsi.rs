//! Queue pair 1: frames around MADs, and what is refused there.

use crate::cm_support::{CLIENT_QPN, SERVER_QPN, Target, connect_params, dreq, mad_of, path, rep, req, rtu};
use rxe_proto::cm::{GSI_UDP_SRC_PORT, Handshake, MAD_FRAME_LEN_MAX, MadPath, read_mad, write_mad};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::CmMessage;
use rxe_proto::wire::mad::{GSI_QKEY, MAD_LEN};
use rxe_proto::wire::{
    BthFields, BthOpcode, DropReason, Frame, Gid, HeaderTemplate, Opcode, Path, PortId, Psn, TxFrames, classify,
};

/// The path as the peer sees it.
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
        assert!(write_mad(&mut tx, &path, GSI_UDP_SRC_PORT, Psn::new(0x56_789A), &mad));
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
fn a_mad_is_sent_from_the_port_of_the_hosts_socket() {
    let mut tx = TxFrames::default();
    assert!(write_mad(&mut tx, &path(), 4791, Psn::new(0), &[0; MAD_LEN]));
    let Ok(Frame::Roce(packet)) = classify(&tx.frames[0].1) else { panic!() };
    assert!(packet.icrc_ok());
    assert_eq!(packet.udp_src_port(), 4791);
}

#[test]
fn write_mad_writes_nothing_under_back_pressure() {
    let mut tx = TxFrames { room: Some(0), ..TxFrames::default() };
    assert!(!write_mad(&mut tx, &path(), GSI_UDP_SRC_PORT, Psn::new(0), &[0; MAD_LEN]));
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
    let mut packet = template.build(&mut frame, fields, len);
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

/// Answers go to the source: it must be one host's, and of the packet's own IP version.
#[test]
fn the_source_of_a_mad_is_one_host() {
    let mad = mad_of(&rtu(1, 2), 3);
    let read = |frame: &[u8]| {
        let Ok(Frame::Roce(packet)) = classify(frame) else { panic!() };
        read_mad(PortId(0), &packet).map(|(path, _)| path.peer)
    };
    let from = |source: Gid, dest: Gid| {
        let mut tx = TxFrames::default();
        assert!(write_mad(
            &mut tx,
            &MadPath { local: source, peer: dest, ..path() },
            GSI_UDP_SRC_PORT,
            Psn::new(0),
            &mad
        ));
        tx.frames.remove(0).1
    };
    let v4 = |ip: [u8; 4]| Gid::from(std::net::Ipv4Addr::from(ip));
    let ours = v4([10, 0, 0, 1]);
    for forged in [[255, 255, 255, 255], [224, 0, 0, 1], [0, 0, 0, 0], [127, 0, 0, 1]] {
        assert_eq!(read(&from(v4(forged), ours)), Err(DropReason::GsiSource), "{forged:?}");
    }
    assert_eq!(read(&from(v4([127, 0, 0, 1]), v4([127, 0, 0, 2]))), Ok(v4([127, 0, 0, 1])));
    // IPv4-mapped source and destination in an IPv6 packet.
    for at in [14 + 8, 14 + 24] {
        let mut frame = from(v6(2), v6(1));
        assert_eq!(read(&frame), Ok(v6(2)));
        frame[at..at + 16].copy_from_slice(&ours.0);
        assert_eq!(read(&frame), Err(DropReason::GsiSource));
    }
}

/// The frames of a handshake, as their receiver reads them: whether they are ours, transaction, and message.
fn messages(handshake: &Handshake) -> [(bool, u64, CmMessage); 2] {
    handshake.frames().map(|(is_ours, frame)| {
        let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!() };
        assert!(packet.icrc_ok());
        let (path_of_receiver, mad) = read_mad(path().port, &packet).unwrap();
        assert_eq!(path_of_receiver, if is_ours { mirrored(&path()) } else { path() });
        let (header, message) = CmMessage::parse(mad).unwrap();
        (is_ours, header.transaction_id, message)
    })
}

#[test]
fn the_messages_that_made_connections_are_known_as_frames_until_they_end() {
    let mut target = Target::default();
    let [mut first, mut second] = [req(0x1111), req(0x2222)];
    (first.local_qpn, second.local_qpn) = (CLIENT_QPN + 1, CLIENT_QPN + 2);
    let mut accepted = Vec::new();
    for (transaction, req) in [(77, first), (70, second)] {
        target.feed_from(&path(), transaction, &CmMessage::Req(req.clone())).unwrap();
        let conn = target.request().conn;
        assert_eq!(target.cm.handshakes(0).count(), accepted.len(), "it has no answer yet");
        target.accept(conn);
        let rep = target.sent_one();
        accepted.push((conn.comm_id(), [(false, transaction, CmMessage::Req(req)), (true, transaction, rep)]));
    }
    accepted.sort_by_key(|(comm_id, _)| *comm_id);
    let known: Vec<Handshake> = target.cm.handshakes(0).collect();
    let found: Vec<_> = known.iter().map(|known| (known.comm_id, messages(known))).collect();
    assert_eq!(found, accepted);
    assert!(known.iter().all(|known| !known.is_active && known.local_qpn == Qpn::new(SERVER_QPN)));
    assert!(target.cm.handshakes(accepted[0].0 + 1).map(|known| known.comm_id).eq([accepted[1].0]));
    let [(_, _, CmMessage::Req(req)), _] = &accepted[0].1 else { panic!() };
    target.feed(&dreq(req.local_comm_id, accepted[0].0, SERVER_QPN)).unwrap();
    assert!(target.cm.handshakes(0).map(|known| known.comm_id).eq([accepted[1].0]), "the other one has ended");
}

#[test]
fn the_messages_of_a_connection_that_we_requested_are_known_too() {
    let mut target = Target::default();
    let conn = target.cm.connect(target.now, connect_params()).unwrap();
    let transmit = target.cm.poll_transmit().unwrap();
    let (header, req) = CmMessage::parse(&*transmit.mad).unwrap();
    assert_eq!(target.cm.handshakes(0).count(), 0);
    let rep = CmMessage::Rep(rep(7, conn.comm_id()));
    let transaction = header.transaction_id;
    target.feed_from(&path(), transaction, &rep).unwrap();
    let known: Vec<Handshake> = target.cm.handshakes(0).collect();
    assert_eq!((known.len(), known[0].is_active), (1, true));
    assert_eq!(messages(&known[0]), [(true, transaction, req), (false, transaction, rep)]);
}
