//! Detection of the peer's transport service from its first packet.

use crate::harness::{Agreed, Node, PORT, path};
use rxe_proto::Instant;
use rxe_proto::transport::{EngineConfig, QpError, QpState, QpTransition, QpType, Qpn, SendOp, WcOpcode, WcStatus};
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Frame, HeaderTemplate, Opcode, PacketBuilder, PathMtu, PortId, Psn, Syndrome,
    Transport, TxFrames, classify,
};

const PEER: Qpn = Qpn::new(0x11);
const QKEY: u32 = 0x1111_1111;
const FIRST_PSN: u32 = 0xFF_FFFF;

/// A queue pair in RTS that detects its peer's type, with two receives of 8 KiB.
fn follower() -> Node {
    let agreed = Agreed { rq_psn: Psn::new(FIRST_PSN), ..Agreed::default() };
    let mut node = Node::new(1, EngineConfig::default(), 16, 1 << 16, agreed.access);
    node.ready_to_receive(2, PEER, &agreed);
    node.ready_to_send(&agreed);
    node.engine.detect_peer_type(node.qpn, QKEY, PathMtu::Mtu4096).unwrap();
    for wr_id in 0..2 {
        let sge = node.sge(0x2000 * wr_id as usize, 0x2000);
        node.post_recv(wr_id, &[sge]);
    }
    node
}

/// A SEND packet from end `from`, the `n`th one from the start, received on `port`.
fn send_from(node: &mut Node, from: u8, port: PortId, transport: Transport, op: Opcode, n: u32, payload: &[u8]) {
    deliver(node, from, port, BthOpcode { transport, op }, Psn::new(FIRST_PSN.wrapping_add(n)), payload, |packet| {
        if transport == Transport::Ud {
            packet.deth(QKEY, PEER.get());
        }
    });
}

/// A datagram of the peer's, the `n`th one from the start.
fn datagram(node: &mut Node, n: u32, qkey: u32, payload: &[u8]) {
    let opcode = BthOpcode { transport: Transport::Ud, op: Opcode::SendOnly };
    deliver(node, 2, PORT, opcode, Psn::new(FIRST_PSN.wrapping_add(n)), payload, |packet| {
        packet.deth(qkey, PEER.get());
    });
}

/// An ACK of the peer's.
fn answer(node: &mut Node, psn: Psn) {
    let opcode = BthOpcode { transport: Transport::Rc, op: Opcode::Acknowledge };
    deliver(node, 2, PORT, opcode, psn, b"", |packet| {
        packet.aeth(Syndrome::ACK, 0);
    });
}

fn deliver(
    node: &mut Node,
    from: u8,
    port: PortId,
    opcode: BthOpcode,
    psn: Psn,
    payload: &[u8],
    headers: impl FnOnce(&mut PacketBuilder<'_>),
) {
    let fields = BthFields {
        opcode,
        dest_qp: node.qpn.get(),
        psn,
        solicited: false,
        ack_req: opcode.op == Opcode::SendOnly || opcode.op == Opcode::SendLast,
        pkey: DEFAULT_PKEY,
    };
    let template = HeaderTemplate::new(&path(from, 1));
    let mut frame = vec![0; template.frame_len(fields.opcode, payload.len())];
    let mut packet = template.build(&mut frame, fields, payload.len());
    headers(&mut packet);
    packet.payload_mut().copy_from_slice(payload);
    packet.finish();
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
    node.engine.receive(Instant::ZERO, port, &packet);
}

fn send(node: &mut Node, transport: Transport, op: Opcode, n: u32, payload: &[u8]) {
    send_from(node, 2, PORT, transport, op, n, payload);
}

fn kind(node: &Node) -> (QpType, Option<PathMtu>) {
    let info = node.engine.query_qp(node.qpn).unwrap();
    (info.qp_type, info.path_mtu)
}

/// Names of the packets that the engine writes.
fn written(node: &mut Node) -> Vec<String> {
    let mut tx = TxFrames::default();
    node.engine.transmit(Instant::ZERO, &mut tx);
    let name = |(_, frame): &(PortId, Vec<u8>)| match classify(frame) {
        Ok(Frame::Roce(packet)) => format!("{} {}", packet.info().name, packet.payload().len()),
        _ => "not RoCE".to_owned(),
    };
    tx.frames.iter().map(name).collect()
}

#[test]
fn the_first_packet_settles_the_type() {
    for (transport, qp_type, path_mtu, byte_len) in [
        (Transport::Rc, QpType::Rc, Some(PathMtu::Mtu1024), 5),
        (Transport::Uc, QpType::Uc, Some(PathMtu::Mtu1024), 5),
        (Transport::Ud, QpType::Ud, Some(PathMtu::Mtu4096), 45),
    ] {
        let mut node = follower();
        send(&mut node, transport, Opcode::SendOnly, 0, b"hello");
        assert_eq!(kind(&node), (qp_type, path_mtu));
        let done = node.take_completions();
        assert_eq!((done.len(), done[0].status, done[0].byte_len), (1, WcStatus::Success, byte_len), "{transport:?}");
        assert_eq!(written(&mut node).len(), usize::from(transport == Transport::Rc), "an ACK, where there is such");
        // From now on packets of other types are dropped.
        let other = if transport == Transport::Rc { Transport::Uc } else { Transport::Rc };
        send(&mut node, other, Opcode::SendOnly, 1, b"hello");
        assert_eq!((node.take_completions().len(), node.dropped("qp_wrong_transport")), (0, 1));
        send(&mut node, transport, Opcode::SendOnly, 1, b"again");
        assert_eq!(node.take_completions().len(), 1);
    }
}

#[test]
fn the_first_packet_settles_the_path_mtu() {
    for transport in [Transport::Rc, Transport::Uc] {
        for mtu in PathMtu::ALL {
            let mut node = follower();
            send(&mut node, transport, Opcode::SendFirst, 0, &vec![1; mtu.bytes()]);
            send(&mut node, transport, Opcode::SendLast, 1, &[1; 3]);
            assert_eq!(kind(&node).1, Some(mtu));
            assert_eq!(node.take_completions()[0].byte_len as usize, mtu.bytes() + 3);
            // Answers are segmented alike.
            written(&mut node);
            node.post_send(9, SendOp::Send { imm: None }, &[node.sge(0, mtu.bytes() + 1)]);
            let name = if transport == Transport::Rc { "RC" } else { "UC" };
            assert_eq!(
                written(&mut node),
                [format!("{name} SEND_FIRST {}", mtu.bytes()), format!("{name} SEND_LAST 1")]
            );
        }
        // A message in one packet says how large the path MTU is at least.
        for (len, mtu) in [(0, 1024), (1024, 1024), (1025, 2048), (3000, 4096)] {
            let mut node = follower();
            send(&mut node, transport, Opcode::SendOnly, 0, &vec![1; len]);
            assert_eq!(kind(&node).1.map(PathMtu::bytes), Some(mtu), "{len} bytes");
            assert_eq!(node.take_completions()[0].byte_len as usize, len);
        }
    }
}

#[test]
fn packets_from_other_addresses_do_not_determine_the_type() {
    let mut node = follower();
    send_from(&mut node, 3, PORT, Transport::Uc, Opcode::SendOnly, 0, b"stranger");
    send_from(&mut node, 2, PortId(1), Transport::Uc, Opcode::SendOnly, 0, b"elsewhere");
    assert_eq!(node.dropped("qp_wrong_address"), 2);
    assert_eq!(kind(&node).0, QpType::Rc);
    send(&mut node, Transport::Ud, Opcode::SendOnly, 0, b"the peer");
    assert_eq!((kind(&node).0, node.take_completions().len()), (QpType::Ud, 1));
    // Datagrams may come from anywhere.
    send_from(&mut node, 3, PORT, Transport::Ud, Opcode::SendOnly, 0, b"stranger");
    assert_eq!(node.take_completions().len(), 1);
}

#[test]
fn only_a_packet_that_the_peer_would_send_first_settles_anything() {
    let mut node = follower();
    let unsettled = (QpType::Rc, Some(PathMtu::Mtu1024));
    // Copies of an earlier queue pair's packets, and packets that a third party with the peer's address may guess.
    for (transport, op, n) in [
        (Transport::Rc, Opcode::SendFirst, 1),
        (Transport::Rc, Opcode::SendFirst, 0xFF_FFF0),
        (Transport::Uc, Opcode::SendOnly, 0x4001),
        (Transport::Uc, Opcode::SendOnly, 0xFF_FFFF),
        (Transport::Uc, Opcode::SendLast, 1),
        (Transport::Uc, Opcode::SendMiddle, 0),
        (Transport::Uc, Opcode::SendLast, 0),
    ] {
        send(&mut node, transport, op, n, &[0; 256]);
        assert_eq!(kind(&node), unsettled, "{transport:?} {op:?} {n}");
    }
    assert_eq!(node.dropped("qp_wrong_transport"), 5);
    datagram(&mut node, 0, QKEY + 1, b"another key");
    assert_eq!((kind(&node), node.dropped("qkey_mismatch")), (unsettled, 1));
    answer(&mut node, Psn::new(0));
    assert_eq!((kind(&node), node.take_completions().len()), (unsettled, 0));
    // The peer's type can still be detected.
    send(&mut node, Transport::Uc, Opcode::SendOnly, 0, &[0; 2000]);
    assert_eq!((kind(&node), node.take_completions().len()), ((QpType::Uc, Some(PathMtu::Mtu2048)), 1));
    assert_eq!(written(&mut node), [""; 0], "the NAK for the first of them is not owed any more");
}

/// On UC nobody repeats what is lost: the peer's first packets may never arrive.
#[test]
fn an_unreliable_packet_behind_lost_ones_settles_the_type() {
    // Lost are a whole message, the first packet of one, and 0x2000 packets: then only the second message behind them is taken.
    for (lost, arrive, taken) in [(1, 2, 1), (1, 301, 1), (0x2000, 2, 0), (0x2000, 4, 1)] {
        let mut node = follower();
        let whole = arrive % 2 == 0;
        for n in 0..arrive {
            let (op, len) = match (whole, n % 2 == 0) {
                (true, true) => (Opcode::SendFirst, 1024),
                (true, false) => (Opcode::SendLast, 5),
                (false, _) if n + 1 == arrive => (Opcode::SendLast, 5),
                (false, _) => (Opcode::SendMiddle, 1024),
            };
            send(&mut node, Transport::Uc, op, lost + n, &vec![1; len]);
            assert_eq!(kind(&node), (QpType::Uc, Some(PathMtu::Mtu1024)), "{lost} {n}");
        }
        if !whole {
            send(&mut node, Transport::Uc, Opcode::SendFirst, lost + arrive, &[1; 1024]);
            send(&mut node, Transport::Uc, Opcode::SendLast, lost + arrive + 1, &[1; 5]);
        }
        let done = node.take_completions();
        assert_eq!(done.len(), taken, "{lost} {arrive}");
        assert!(done.iter().all(|done| (done.status, done.byte_len) == (WcStatus::Success, 1029)), "{done:?}");
    }
}

#[test]
fn a_reliable_packet_behind_a_lost_one_is_answered() {
    let mut node = follower();
    send(&mut node, Transport::Rc, Opcode::SendOnly, 1, b"second");
    assert_eq!(written(&mut node), ["RC ACKNOWLEDGE 0"], "a NAK");
    send(&mut node, Transport::Rc, Opcode::SendFirst, 0, &[0; 256]);
    assert_eq!(kind(&node), (QpType::Rc, Some(PathMtu::Mtu256)));
}

#[test]
fn an_answer_to_outstanding_work_settles_the_type() {
    let mut node = follower();
    node.post_send(1, SendOp::Write { remote: Default::default(), imm: None }, &[node.sge(0, 2)]);
    assert_eq!(written(&mut node), ["RC WRITE_ONLY 2"]);
    answer(&mut node, Psn::new(5));
    assert_eq!(node.take_completions().len(), 0);
    answer(&mut node, Psn::new(0));
    assert_eq!((kind(&node).0, node.take_completions().len()), (QpType::Rc, 1));
    // No other type is detected any more.
    send(&mut node, Transport::Uc, Opcode::SendOnly, 0, b"late");
    assert_eq!((kind(&node).0, node.dropped("qp_wrong_transport")), (QpType::Rc, 1));
}

#[test]
fn outstanding_work_keeps_the_type_until_reset() {
    let mut node = follower();
    let write = SendOp::Write { remote: Default::default(), imm: None };
    node.post_send(1, write, &[node.sge(0, 2)]);
    assert_eq!(written(&mut node), ["RC WRITE_ONLY 2"]);
    send(&mut node, Transport::Uc, Opcode::SendOnly, 0, b"too early");
    assert_eq!((kind(&node).0, node.dropped("qp_wrong_transport")), (QpType::Rc, 1));
    let qpn = node.qpn;
    assert!(matches!(node.engine.set_qp_type(qpn, QpType::Uc), Err(QpError::Transition { from: QpState::Rts, .. })));
    // The type can be set without a packet from the peer.
    node.engine.modify_qp(qpn, QpTransition::ToReset).unwrap();
    node.engine.set_qp_type(qpn, QpType::Uc).unwrap();
    let agreed = Agreed { rq_psn: Psn::new(FIRST_PSN), ..Agreed::default() };
    node.engine.modify_qp(qpn, QpTransition::ToInit { access: agreed.access }).unwrap();
    node.ready_to_receive(2, PEER, &agreed);
    node.ready_to_send(&agreed);
    assert_eq!(node.take_completions(), []);
    node.post_send(1, write, &[node.sge(0, 2)]);
    assert_eq!(written(&mut node), ["UC WRITE_ONLY 2"]);
    assert_eq!(node.take_completions()[0].opcode, WcOpcode::RdmaWrite);
}

#[test]
fn only_a_queue_pair_with_a_path_follows() {
    let mut node = Node::new(1, EngineConfig::default(), 4, 4096, Agreed::default().access);
    assert_eq!(node.engine.detect_peer_type(node.qpn, 0, PathMtu::Mtu1024), Err(QpError::NoPath));
    let nobody = Qpn::new(0x77);
    assert_eq!(node.engine.detect_peer_type(nobody, 0, PathMtu::Mtu1024), Err(QpError::Unknown(nobody)));
    assert_eq!(node.engine.set_qp_type(nobody, QpType::Ud), Err(QpError::Unknown(nobody)));
}
