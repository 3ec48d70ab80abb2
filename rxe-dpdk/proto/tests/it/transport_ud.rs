//! Datagrams: what is received and what is dropped, where they go, multicast.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::harness::scripted_peer::PEER_QPN;
use crate::harness::{Agreed, Node, PORT, QKEY, path};
use rxe_proto::Instant;
use rxe_proto::transport::{
    AhError, AsyncEvent, EngineConfig, MulticastError, PostError, QpCaps, QpErrorCause, QpInit, QpState, QpTransition,
    QpType, Qpn, SendFlags, SendOp, SendWr, Sge, WcStatus,
};
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Frame, Gid, HeaderTemplate, MacAddr, Opcode, Path, PathMtu, PortId, Psn,
    TxFrames, classify,
};

const GRH: u32 = 40;

/// One end with a queue pair in RTS, path MTU 256, and `n` receives of 512 bytes at offset 0x1000, numbered from 0.
fn node(n: u64) -> Node {
    let mut node = Node::bare(1, EngineConfig::default(), 64, 1 << 16);
    node.qpn = ready(&mut node, n);
    node
}

fn ready(node: &mut Node, n: u64) -> Qpn {
    let first = std::mem::take(&mut node.qpn);
    node.qpn = node.create_typed_qp(QpType::Ud, None, 16, Agreed::default().access);
    node.ready_for_datagrams(&Agreed { mtu: PathMtu::Mtu256, sq_psn: Psn::new(0xFF_FFFF), ..Agreed::default() });
    for wr_id in 0..n {
        node.post_recv(wr_id, &[node.sge(0x1000, 512)]);
    }
    std::mem::replace(&mut node.qpn, first)
}

/// A datagram from the peer's queue pair.
struct Datagram {
    path: Path,
    dest: u32,
    qkey: u32,
    imm: Option<u32>,
    solicited: bool,
    pkey: u16,
}

impl Datagram {
    fn to(node: &Node) -> Datagram {
        Datagram { path: path(2, 1), dest: node.qpn.get(), qkey: QKEY, imm: None, solicited: false, pkey: DEFAULT_PKEY }
    }

    fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let template = HeaderTemplate::new(&self.path);
        let op = if self.imm.is_some() { Opcode::SendOnlyImm } else { Opcode::SendOnly };
        let fields = BthFields {
            opcode: BthOpcode::ud(op),
            dest_qp: self.dest,
            psn: Psn::new(7),
            solicited: self.solicited,
            ack_req: true,
            pkey: self.pkey,
        };
        let mut frame = vec![0; template.frame_len(fields.opcode, payload.len())];
        let mut packet = template.build(&mut frame, fields, payload.len());
        packet.deth(self.qkey, PEER_QPN);
        if let Some(imm) = self.imm {
            packet.imm(imm);
        }
        packet.payload_mut().copy_from_slice(payload);
        packet.finish();
        frame
    }

    fn inject(&self, node: &mut Node, payload: &[u8]) {
        receive(node, PORT, &self.frame(payload));
    }
}

fn receive(node: &mut Node, port: PortId, frame: &[u8]) {
    let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
    node.engine.receive(Instant::ZERO, port, &packet);
    assert!(!node.engine.wants_transmit(), "a datagram is never answered");
}

/// Number and length of what has been received.
fn received(node: &mut Node) -> Vec<(u64, u32)> {
    let completions = node.take_completions();
    assert!(completions.iter().all(|wc| wc.status == WcStatus::Success), "{completions:?}");
    completions.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect()
}

// [UD-RSP-GRH]
#[test]
fn a_datagram_with_all_that_is_known_of_it() {
    let mut node = node(2);
    node.write(0x1000, &[0xEE; 64]);
    let datagram = Datagram { imm: Some(77), solicited: true, ..Datagram::to(&node) };
    datagram.inject(&mut node, b"hello");
    let [wc] = node.take_completions()[..] else { panic!() };
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm, wc.solicited), (0, GRH + 5, Some(77), true));
    assert_eq!(wc.src_qpn, Some(Qpn::new(PEER_QPN)));
    // Room, then the IPv4 header as it came, then the message.
    let frame = datagram.frame(b"hello");
    assert_eq!(node.read(0x1000, 20), [0; 20]);
    assert_eq!(node.read(0x1014, 20), frame[14..34]);
    assert_eq!(node.read(0x1028, 6), b"hello\xEE");
    assert_eq!(node.stat("datagrams_rcvd"), 1);
    assert_eq!(node.take_events(), [], "nothing is established by a datagram");
}

// [UD-RSP-GRH]
#[test]
fn the_ipv6_header_is_the_grh() {
    let mut node = node(1);
    let (src, dst) = (Gid::from(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, 2)), Gid::from(Ipv6Addr::LOCALHOST));
    let path = Path { src, dst, traffic_class: 0x24, flow_label: 0xABCDE, hop_limit: 9, ..path(2, 1) };
    let datagram = Datagram { path, ..Datagram::to(&node) };
    datagram.inject(&mut node, b"six");
    assert_eq!(received(&mut node), [(0, GRH + 3)]);
    let header = node.read(0x1000, 40);
    assert_eq!(header, datagram.frame(b"six")[14..54]);
    assert_eq!((header[0] >> 4, &header[8..24], &header[24..40]), (6, &src.0[..], &dst.0[..]));
    assert_eq!(node.read(0x1028, 3), b"six");
}

// [UD-RSP-ONE-PACKET]
#[test]
fn empty_and_longest() {
    let mut node = node(3);
    Datagram::to(&node).inject(&mut node, b"");
    Datagram::to(&node).inject(&mut node, &[3; 256]);
    assert_eq!(received(&mut node), [(0, GRH), (1, GRH + 256)]);
    Datagram::to(&node).inject(&mut node, &[3; 260]);
    assert_eq!((received(&mut node), node.dropped("payload_length")), (vec![], 1));
}

// [UD-RSP-QKEY]
#[test]
fn a_wrong_queue_key_is_dropped() {
    let mut node = node(1);
    for qkey in [QKEY + 1, 0, QKEY | 1 << 31] {
        Datagram { qkey, ..Datagram::to(&node) }.inject(&mut node, b"x");
    }
    assert_eq!((received(&mut node), node.dropped("qkey_mismatch")), (vec![], 3));
    assert_eq!(node.state(), QpState::Rts);
    Datagram::to(&node).inject(&mut node, b"x");
    assert_eq!(received(&mut node), [(0, GRH + 1)]);
}

// [UD-RSP-TOO-LONG]
#[test]
fn too_long_for_its_receive() {
    let mut node = node(0);
    node.post_recv(1, &[node.sge(0, 41)]);
    Datagram::to(&node).inject(&mut node, b"12");
    assert_eq!((received(&mut node), node.dropped("ud_too_long")), (vec![], 1));
    // The receive stays for one that fits.
    Datagram::to(&node).inject(&mut node, b"1");
    assert_eq!(received(&mut node), [(1, 41)]);
    // Not even the header fits.
    node.post_recv(2, &[node.sge(0, 39)]);
    Datagram::to(&node).inject(&mut node, b"");
    assert_eq!((received(&mut node), node.dropped("ud_too_long")), (vec![], 2));
    assert_eq!(node.state(), QpState::Rts);
}

// [UD-RSP-NO-RECEIVE]
#[test]
fn no_receive() {
    let mut node = node(0);
    Datagram::to(&node).inject(&mut node, b"x");
    assert_eq!((node.dropped("no_receive"), node.stat("receive_queue_empty")), (1, 1));
    node.post_recv(1, &[node.sge(0, 64)]);
    assert_eq!(received(&mut node), [], "it is gone");
}

#[test]
fn a_receive_cut_anywhere() {
    let mut node = node(0);
    let message: Vec<u8> = (0..=255).collect();
    // Within the header, at its end, and in the middle of the message; an empty buffer, too.
    let cuts = [(0x100, 7), (0x200, 20), (0x300, 0), (0x400, 13), (0x500, 100), (0x600, 300)];
    let sges: Vec<Sge> = cuts.iter().map(|&(offset, len)| node.sge(offset, len)).collect();
    node.post_recv(1, &sges);
    let datagram = Datagram::to(&node);
    datagram.inject(&mut node, &message);
    assert_eq!(received(&mut node), [(1, GRH + 256)]);
    let landed: Vec<u8> = cuts.iter().flat_map(|&(offset, len)| node.read(offset, len)).collect();
    assert_eq!(landed[20..40], datagram.frame(&message)[14..34]);
    assert_eq!(landed[40..296], message);
}

#[test]
fn a_receive_with_a_bad_key_ends_the_queue_pair() {
    let mut node = node(0);
    let qpn = node.qpn;
    for wr_id in 1..=2 {
        node.post_recv(wr_id, &[Sge { addr: 0, length: 100, lkey: 4711 }]);
    }
    Datagram::to(&node).inject(&mut node, b"x");
    assert_eq!(node.take_events(), [AsyncEvent::QpError { qpn, cause: QpErrorCause::ReceiveKey }]);
    assert_eq!(node.state(), QpState::Error);
    let outcomes: Vec<_> = node.take_completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(outcomes, [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
}

// [UD-RSP-ANYBODY]
#[test]
fn datagrams_by_another_port_or_partition_or_damaged_are_dropped() {
    let mut node = node(4);
    let datagram = Datagram::to(&node);
    receive(&mut node, PortId(1), &datagram.frame(b"x"));
    assert_eq!(node.dropped("qp_wrong_address"), 1, "another port");
    Datagram { pkey: 0xFFFE, ..Datagram::to(&node) }.inject(&mut node, b"x");
    assert_eq!(node.dropped("pkey_mismatch"), 1);
    let mut damaged = datagram.frame(b"damaged");
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    receive(&mut node, PORT, &damaged);
    assert_eq!(node.dropped("icrc_mismatch"), 1);
    Datagram { dest: node.qpn.get() + 1, ..Datagram::to(&node) }.inject(&mut node, b"x");
    assert_eq!(node.dropped("qpn_unknown"), 1);
    assert_eq!(received(&mut node), []);
    // But every sender may, from any address.
    let anybody = Path { src: Gid::from(Ipv4Addr::new(192, 0, 2, 9)), ..path(2, 1) };
    Datagram { path: anybody, ..Datagram::to(&node) }.inject(&mut node, b"x");
    assert_eq!(received(&mut node), [(0, GRH + 1)]);
}

// [UNREL-SQE]
#[test]
fn states() {
    let mut node = Node::bare(1, EngineConfig::default(), 64, 1 << 16);
    node.qpn = node.create_typed_qp(QpType::Ud, None, 4, Agreed::default().access);
    node.post_recv(0, &[node.sge(0x1000, 512)]);
    let datagram = Datagram::to(&node);
    datagram.inject(&mut node, b"in INIT");
    assert_eq!((received(&mut node), node.dropped("qp_wrong_state")), (vec![], 1));
    let qpn = node.qpn;
    let modify = |node: &mut Node, transition| node.engine.modify_qp(qpn, transition).unwrap();
    modify(&mut node, QpTransition::ToRtrDatagram { path_mtu: PathMtu::Mtu256 });
    datagram.inject(&mut node, b"in RTR");
    assert_eq!(received(&mut node), [(0, GRH + 6)]);
    modify(&mut node, QpTransition::ToRtsDatagram { sq_psn: Psn::new(0) });
    // A bad key of our own stops the send queue only.
    let ah = node.engine.create_ah(node.pd, &path(1, 2)).unwrap();
    let op = SendOp::Datagram { ah, qpn: Qpn::new(2), qkey: QKEY, imm: None };
    node.post_send(1, op, &[Sge { addr: 0, length: 1, lkey: 4711 }]);
    assert_eq!(sent(&mut node).len(), 0);
    assert_eq!((node.take_completions()[0].status, node.state()), (WcStatus::LocProtErr, QpState::Sqe));
    node.post_recv(1, &[node.sge(0x1000, 512)]);
    datagram.inject(&mut node, b"in SQE");
    assert_eq!(received(&mut node), [(1, GRH + 6)]);
    modify(&mut node, QpTransition::ToError);
    datagram.inject(&mut node, b"in ERROR");
    assert_eq!(node.dropped("qp_in_error"), 1);
}

/// The packets that the engine writes.
fn sent(node: &mut Node) -> Vec<Vec<u8>> {
    let mut tx = TxFrames::default();
    node.engine.transmit(Instant::ZERO, &mut tx);
    tx.frames.into_iter().map(|(_, frame)| frame).collect()
}

// [UD-REQ-QKEY] [UD-REQ-AH]
#[test]
fn datagrams_follow_their_address_handle() {
    let mut node = node(0);
    node.write(0, b"payload");
    let to = Path { vlan: Some(0x6005), hop_limit: 3, traffic_class: 0x28, ..path(1, 9) };
    let ah = node.engine.create_ah(node.pd, &to).unwrap();
    let own = SendOp::Datagram { ah, qpn: Qpn::new(0x123456), qkey: 1 << 31, imm: None };
    let given = SendOp::Datagram { ah, qpn: Qpn::new(0x123456), qkey: 0x7FFF_FFFF, imm: Some(5) };
    let sge = node.sge(0, 7);
    node.post_flags(1, own, &[sge], SendFlags::SIGNALED | SendFlags::SOLICITED);
    node.post_flags(2, given, &[sge], SendFlags::empty());
    let frames = sent(&mut node);
    let seen: Vec<_> = frames
        .iter()
        .map(|frame| {
            let Ok(Frame::Roce(packet)) = classify(frame) else { panic!() };
            assert!(packet.icrc_ok());
            assert_eq!((packet.dst_mac(), packet.dst_gid(), packet.hop_limit()), (to.dst_mac, to.dst, 3));
            assert_eq!((packet.vlan(), packet.dest_qp(), packet.payload()), (to.vlan, 0x123456, &b"payload"[..]));
            let deth = packet.deth().unwrap();
            assert_eq!(deth.src_qp(), node.qpn.get());
            (packet.psn().get(), deth.qkey(), packet.imm(), packet.solicited(), packet.ack_req())
        })
        .collect();
    assert_eq!(seen, [(0xFF_FFFF, QKEY, None, true, false), (0, 0x7FFF_FFFF, Some(5), false, false)]);
    assert_eq!((node.stat("datagrams_sent"), node.engine.next_timeout()), (2, None));
    let done: Vec<_> = node.take_completions().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(done, [1], "done when sent, and 2 is not signalled");
}

// [UD-REQ-AH] [UD-REQ-LENGTH]
#[test]
fn invalid_datagrams_are_refused_when_posted() {
    let mut node = node(0);
    let (pd, qpn, sge) = (node.pd, node.qpn, node.sge(0, 257));
    let stranger = node.engine.keys_mut().alloc_pd();
    let ah = node.engine.create_ah(pd, &path(1, 2)).unwrap();
    let theirs = node.engine.create_ah(stranger, &path(1, 2)).unwrap();
    let op = |ah| SendOp::Datagram { ah, qpn: Qpn::new(2), qkey: QKEY, imm: None };
    let post = |node: &mut Node, op, sge| {
        let wr = SendWr { wr_id: 1, op, sges: &[sge], flags: SendFlags::SIGNALED };
        node.engine.post_send(qpn, &wr)
    };
    assert_eq!(post(&mut node, op(ah), sge), Err(PostError::MessageTooLong), "one packet is all there is");
    let small = Sge { length: 256, ..sge };
    assert_eq!(post(&mut node, op(theirs), small), Err(PostError::UnknownAddressHandle));
    assert_eq!(post(&mut node, SendOp::Send { imm: None }, small), Err(PostError::Opcode(QpType::Ud)));
    // Destroyed before the datagram was sent.
    assert_eq!(post(&mut node, op(ah), small), Ok(()));
    node.engine.destroy_ah(ah).unwrap();
    assert_eq!(node.engine.destroy_ah(ah), Err(AhError::Unknown));
    assert_eq!(sent(&mut node).len(), 0);
    assert_eq!((node.take_completions()[0].status, node.state()), (WcStatus::LocQpOpErr, QpState::Sqe));
    // Another handle in the same slot is not that one.
    let next = node.engine.create_ah(pd, &path(1, 2)).unwrap();
    assert_ne!(next, ah);
}

fn group(n: u8) -> Gid {
    Gid::from(Ipv4Addr::new(239, 1, 2, n))
}

/// A datagram to a group.
fn multicast(node: &Node, group: Gid) -> Datagram {
    let path = Path { dst: group, dst_mac: MacAddr([1, 0, 0x5E, 1, 2, group.0[15]]), ..path(2, 1) };
    Datagram { path, dest: Qpn::MULTICAST.get(), ..Datagram::to(node) }
}

// [UD-MULTICAST]
#[test]
fn a_group_gets_a_copy_each() {
    let mut node = node(2);
    let members = [node.qpn, ready(&mut node, 2), ready(&mut node, 0), ready(&mut node, 2)];
    for qpn in members {
        node.engine.attach_multicast(qpn, group(3)).unwrap();
        node.engine.attach_multicast(qpn, group(3)).unwrap();
    }
    // The last one is in another group as well, and gets no copy of what goes to the first.
    node.engine.detach_multicast(members[3], group(3)).unwrap();
    node.engine.attach_multicast(members[3], group(4)).unwrap();
    multicast(&node, group(3)).inject(&mut node, b"all");
    let to: Vec<_> = node.take_completions().iter().map(|wc| (wc.qpn, wc.byte_len)).collect();
    assert_eq!(to, [(members[0], GRH + 3), (members[1], GRH + 3)]);
    assert_eq!(node.dropped("no_receive"), 1, "the third had none: its loss alone");
    assert_eq!((node.stat("multicast_rcvd"), node.stat("datagrams_rcvd")), (1, 2));
    multicast(&node, group(4)).inject(&mut node, b"few");
    let to: Vec<_> = node.take_completions().iter().map(|wc| wc.qpn).collect();
    assert_eq!(to, [members[3]]);
    // The Q_Key is looked at for each, the group as a whole by the address.
    Datagram { qkey: 1, ..multicast(&node, group(4)) }.inject(&mut node, b"x");
    assert_eq!(node.dropped("qkey_mismatch"), 1);
    multicast(&node, group(5)).inject(&mut node, b"x");
    assert_eq!(node.dropped("qpn_unknown"), 1);
    // A queue pair that is destroyed or in error gets nothing, and does not disturb the others.
    node.engine.destroy_qp(Instant::ZERO, members[0]).unwrap();
    node.engine.modify_qp(members[2], QpTransition::ToError).unwrap();
    multicast(&node, group(3)).inject(&mut node, b"x");
    let to: Vec<_> = node.take_completions().iter().map(|wc| wc.qpn).collect();
    assert_eq!(to, [members[1]]);
}

// [UD-MULTICAST]
#[test]
fn a_member_that_cannot_take_a_datagram_costs_the_others_nothing() {
    let mut node = node(0);
    let members = [node.qpn, ready(&mut node, 1)];
    for qpn in members {
        node.engine.attach_multicast(qpn, group(3)).unwrap();
    }
    multicast(&node, group(3)).inject(&mut node, b"x");
    let to: Vec<_> = node.take_completions().iter().map(|wc| wc.qpn).collect();
    assert_eq!((to, node.dropped("no_receive")), (vec![members[1]], 1));
}

// [PKT-ICRC-CHECK]
#[test]
fn a_damaged_datagram_reaches_nobody_in_the_group() {
    let mut node = node(1);
    let qpn = node.qpn;
    node.engine.attach_multicast(qpn, group(3)).unwrap();
    let mut frame = multicast(&node, group(3)).frame(b"damaged");
    let last = frame.len() - 6;
    frame[last] ^= 1;
    receive(&mut node, PORT, &frame);
    assert_eq!((received(&mut node), node.dropped("icrc_mismatch")), (vec![], 1));
}

// [UD-MULTICAST-ATTACH]
#[test]
fn only_datagram_queue_pairs_with_a_port_join_groups() {
    let config = EngineConfig { max_mcast_grp: 2, max_mcast_qp_attach: 1, ..EngineConfig::default() };
    let mut node = Node::bare(1, config, 64, 1 << 16);
    let first = ready(&mut node, 0);
    let second = ready(&mut node, 0);
    let connected = node.create_qp(1, Agreed::default().access);
    let engine = &mut node.engine;
    assert_eq!(engine.attach_multicast(first, group(1)), Ok(()));
    assert_eq!(engine.attach_multicast(second, group(1)), Err(MulticastError::TooManyQueuePairs(1)));
    assert_eq!(engine.attach_multicast(second, group(2)), Ok(()));
    assert_eq!(engine.attach_multicast(first, group(3)), Err(MulticastError::TooManyGroups(2)));
    assert_eq!(engine.multicast_groups().collect::<Vec<_>>(), [(PORT, group(1)), (PORT, group(2))]);
    assert_eq!(engine.attach_multicast(connected, group(1)), Err(MulticastError::NotDatagram));
    let unicast = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
    assert_eq!(engine.attach_multicast(first, unicast), Err(MulticastError::NotMulticast));
    assert_eq!(engine.attach_multicast(Qpn::new(0x999), group(1)), Err(MulticastError::Unknown(Qpn::new(0x999))));
    assert_eq!(engine.detach_multicast(second, group(1)), Err(MulticastError::NotAttached));
    // The last one to leave ends the group; a queue pair that is destroyed leaves its groups.
    assert_eq!(engine.detach_multicast(first, group(1)), Ok(()));
    engine.destroy_qp(Instant::ZERO, second).unwrap();
    assert_eq!(engine.multicast_groups().count(), 0);
    // Before INIT it has no port.
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (qp_type, pd, cq) = (QpType::Ud, node.pd, node.cq);
    let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
    let fresh = engine.create_qp(Instant::ZERO, &init).unwrap();
    assert_eq!(engine.attach_multicast(fresh, group(1)), Err(MulticastError::NoPort));
}

#[test]
fn reset_leaves_port_and_groups() {
    let mut node = node(0);
    let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
    let qpn = node.qpn;
    node.engine.attach_multicast(qpn, group).unwrap();
    assert_eq!(node.engine.multicast_groups().count(), 1);
    node.engine.modify_qp(qpn, QpTransition::ToReset).unwrap();
    assert_eq!(node.engine.multicast_groups().count(), 0);
    assert_eq!(node.engine.attach_multicast(qpn, group), Err(MulticastError::NoPort));
}
