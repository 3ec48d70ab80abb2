//! Queue pairs destroyed with pending replies: the replies are still sent, for a while.

use crate::harness::scripted_peer::{AckReq, PEER_QPN, ScriptedPeer};
use crate::harness::{Agreed, Node, PORT};
use rxe_proto::mem::Access;
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, PostError, QpError, QpErrorCause, QpState, QpTransition, Qpn, RecvWr, RemoteAddr, SendOp,
    WcStatus,
};
use rxe_proto::wire::{Frame, NakCode, Opcode, PortId, Psn, Syndrome, TxFrames, TxQueue, classify};
use rxe_proto::{Duration, Instant};

fn peer() -> ScriptedPeer {
    ScriptedPeer::with(Agreed { rq_psn: Psn::new(0), ..Agreed::default() })
}

/// The frames that one call of `transmit` writes: `(is it a fatal NAK, opcode)` of each.
fn transmit_once(peer: &mut ScriptedPeer, room: Option<usize>) -> Vec<(Option<NakCode>, Opcode)> {
    let mut tx = TxFrames { room, ..TxFrames::default() };
    peer.node.engine.transmit(peer.now, &mut tx);
    tx.frames.iter().map(|(_, frame)| named(frame)).collect()
}

fn named(frame: &[u8]) -> (Option<NakCode>, Opcode) {
    let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
    assert!(packet.icrc_ok());
    let nak = match packet.aeth().map(|aeth| aeth.syndrome()) {
        Some(Syndrome::Nak(code)) => Some(code),
        _ => None,
    };
    (nak, packet.opcode())
}

/// All frames of calls of `transmit`, until one writes nothing.
fn transmit_all(peer: &mut ScriptedPeer) -> Vec<(Option<NakCode>, Opcode)> {
    let mut all = Vec::new();
    loop {
        let some = transmit_once(peer, None);
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

fn naks(written: &[(Option<NakCode>, Opcode)]) -> Vec<NakCode> {
    written.iter().filter_map(|(nak, _)| *nak).collect()
}

/// The peer writes 8 bytes with an unknown key: the queue pair goes to error with a pending NAK.
fn bad_write(peer: &mut ScriptedPeer, psn: i32) {
    let rkey = peer.node.region.rkey() ^ 0x100;
    peer.rdma_raw(Opcode::WriteOnly, psn, AckReq::Ack, 0, rkey, 8, &[7; 8]);
    let qpn = peer.node.qpn;
    let error = AsyncEvent::QpError { qpn, cause: QpErrorCause::RemoteKey };
    assert!(peer.node.take_events().contains(&error));
}

#[track_caller]
fn destroy(peer: &mut ScriptedPeer) {
    let qpn = peer.node.qpn;
    peer.node.engine.destroy_qp(peer.now, qpn).unwrap();
}

#[test]
fn a_fatal_nak_leaves_behind_the_acks_of_70_queue_pairs() {
    let mut peer = peer();
    let first = peer.node.qpn;
    for _ in 0..70 {
        peer.node.qpn = peer.second_qp(PEER_QPN);
        peer.rdma(Opcode::WriteOnly, 0, AckReq::Ack, 0, 8, &[7; 8]);
    }
    peer.node.qpn = first;
    bad_write(&mut peer, 0);
    assert_eq!(naks(&transmit_once(&mut peer, None)), [], "64 ACKs come first");
    destroy(&mut peer);
    let written = transmit_all(&mut peer);
    assert_eq!((naks(&written), written.len()), (vec![NakCode::RemoteAccess], 7));
    assert!(!peer.node.engine.wants_transmit());
}

#[test]
fn a_fatal_nak_leaves_behind_two_long_reads() {
    let mut peer = peer();
    let len = 60 * peer.mtu();
    peer.rdma(Opcode::ReadRequest, 0, AckReq::Ack, 0, len, &[]);
    peer.rdma(Opcode::ReadRequest, 60, AckReq::Ack, 0, len, &[]);
    bad_write(&mut peer, 120);
    let mut written = transmit_once(&mut peer, None);
    assert_eq!(naks(&written), [], "the READs are answered before it");
    destroy(&mut peer);
    written.extend(transmit_all(&mut peer));
    assert_eq!(written.len(), 121);
    assert_eq!(written.last(), Some(&(Some(NakCode::RemoteAccess), Opcode::Acknowledge)));
    assert_eq!((peer.node.stat("fatal_naks_sent"), peer.node.stat("qps_lingered")), (1, 1));
}

#[test]
fn a_fatal_nak_waits_for_a_port_that_refuses_frames() {
    let mut peer = peer();
    bad_write(&mut peer, 0);
    assert_eq!(transmit_once(&mut peer, Some(0)), []);
    destroy(&mut peer);
    for _ in 0..10 {
        assert_eq!(transmit_once(&mut peer, Some(0)), []);
        assert!(peer.node.engine.wants_transmit());
        peer.advance(Duration::from_millis(40));
    }
    assert_eq!(naks(&transmit_once(&mut peer, None)), [NakCode::RemoteAccess]);
    assert!(!peer.node.engine.wants_transmit());
    assert_eq!(peer.node.stat("lingering_expired"), 0);
}

/// One port takes nothing, the other one everything.
struct Halves(Vec<PortId>);

impl TxQueue for Halves {
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]> {
        if port == PORT {
            return None;
        }
        self.0.push(port);
        Some(Vec::leak(vec![0; len]))
    }
}

#[test]
fn a_port_that_refuses_holds_up_no_other_port() {
    let mut peer = peer();
    let first = peer.node.qpn;
    peer.node.qpn = peer.node.create_qp(8, Agreed::default().access);
    let mut path = crate::harness::path(1, 2);
    path.port = PortId(1);
    let attr = rxe_proto::transport::RtrAttr {
        path,
        path_mtu: peer.agreed.mtu,
        dest_qpn: Qpn::new(PEER_QPN),
        rq_psn: peer.agreed.rq_psn,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
    };
    let second = peer.node.qpn;
    peer.node.engine.modify_qp(second, QpTransition::ToRtr(attr)).unwrap();
    let frame = peer.frame(Opcode::WriteOnly, Psn::new(0), AckReq::Ack, &[7; 8], |packet| {
        packet.reth(0, 1, 8);
    });
    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
    peer.node.engine.receive(peer.now, PortId(1), &packet);
    destroy(&mut peer);
    peer.node.qpn = first;
    bad_write(&mut peer, 0);
    destroy(&mut peer);
    let mut tx = Halves(Vec::new());
    peer.node.engine.transmit(peer.now, &mut tx);
    assert_eq!(tx.0, [PortId(1)]);
    assert!(peer.node.engine.wants_transmit());
}

#[test]
fn replies_expire_under_lasting_back_pressure() {
    let mut peer = peer();
    bad_write(&mut peer, 0);
    destroy(&mut peer);
    assert_eq!(transmit_once(&mut peer, Some(0)), []);
    peer.advance(Duration::from_millis(600));
    assert_eq!(transmit_once(&mut peer, None), []);
    assert!(!peer.node.engine.wants_transmit());
    assert_eq!((peer.node.stat("qps_lingered"), peer.node.stat("lingering_expired")), (1, 1));
}

#[test]
fn a_destroyed_queue_pair_is_unknown_to_its_owner_and_its_peer() {
    let mut peer = peer();
    let (qpn, cq, pd) = (peer.node.qpn, peer.node.cq, peer.node.pd);
    let sge = peer.node.sge(0, 64);
    peer.node.engine.post_recv(qpn, &RecvWr { wr_id: 1, sges: &[sge] }).unwrap();
    peer.rdma(Opcode::WriteOnly, 0, AckReq::Ack, 0, 8, &[7; 8]);
    peer.node.take_events();
    destroy(&mut peer);
    assert!(peer.node.engine.query_qp(qpn).is_none());
    assert_eq!(peer.node.engine.qp_count(), 0);
    assert_eq!(peer.node.engine.post_recv(qpn, &RecvWr { wr_id: 2, sges: &[] }), Err(PostError::Unknown(qpn)));
    assert_eq!(peer.node.engine.destroy_qp(peer.now, qpn), Err(QpError::Unknown(qpn)));
    peer.request(Opcode::SendOnly, 1, AckReq::Ack, b"x");
    assert_eq!(peer.node.dropped("qpn_unknown"), 1);
    // Completion queue, region and protection domain are its owner's again.
    assert_eq!(peer.node.engine.destroy_cq(cq), Ok(()));
    let rkey = peer.node.region.rkey();
    peer.node.engine.keys_mut().deregister(rkey).unwrap();
    peer.node.engine.keys_mut().dealloc_pd(pd).unwrap();
    assert_eq!(transmit_all(&mut peer), [(None, Opcode::Acknowledge)], "the ACK of the WRITE");
    assert_eq!(peer.node.take_events(), []);
}

#[test]
fn a_read_of_deregistered_memory_ends_with_a_nak() {
    let mut peer = peer();
    peer.rdma(Opcode::ReadRequest, 0, AckReq::Ack, 0, 60 * peer.mtu(), &[]);
    assert_eq!(transmit_once(&mut peer, Some(10)).len(), 10);
    peer.node.take_events();
    destroy(&mut peer);
    let rkey = peer.node.region.rkey();
    peer.node.engine.keys_mut().deregister(rkey).unwrap();
    assert_eq!(transmit_all(&mut peer), [(Some(NakCode::RemoteAccess), Opcode::Acknowledge)]);
    assert_eq!(peer.node.take_events(), [], "there is nobody left to tell");
}

#[test]
fn a_queue_pair_taken_to_error_by_its_owner_has_no_pending_replies() {
    let mut peer = peer();
    peer.rdma(Opcode::WriteOnly, 0, AckReq::Ack, 0, 8, &[7; 8]);
    let qpn = peer.node.qpn;
    peer.node.engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    destroy(&mut peer);
    assert!(!peer.node.engine.wants_transmit());
    assert_eq!((transmit_all(&mut peer), peer.node.stat("qps_lingered")), (vec![], 0));
}

#[test]
fn departed_queue_pairs_leave_room_for_the_others() {
    let mut peer = peer();
    let first = peer.node.qpn;
    // The others have long READs.
    for _ in 0..8 {
        peer.node.qpn = peer.second_qp(PEER_QPN);
        peer.rdma(Opcode::ReadRequest, 0, AckReq::Ack, 0, 60 * peer.mtu(), &[]);
        destroy(&mut peer);
    }
    peer.node.qpn = first;
    peer.rdma(Opcode::WriteOnly, 0, AckReq::Ack, 0, 8, &[7; 8]);
    let written = transmit_once(&mut peer, Some(32));
    assert!(written.contains(&(None, Opcode::Acknowledge)), "{written:?}");
    // A queue pair that owes no more than a NAK comes before those.
    bad_write(&mut peer, 1);
    destroy(&mut peer);
    assert_eq!(naks(&transmit_once(&mut peer, Some(32))), [NakCode::RemoteAccess]);
}

#[test]
fn so_many_linger_and_no_more() {
    let mut peer = peer();
    for _ in 0..5000 {
        peer.rdma(Opcode::WriteOnly, 0, AckReq::Ack, 0, 8, &[7; 8]);
        let next = peer.second_qp(PEER_QPN);
        destroy(&mut peer);
        peer.node.qpn = next;
        peer.now += Duration::from_nanos(1);
    }
    let lost = peer.node.stat("lingering_displaced");
    assert_eq!(lost, 5000 - 4096);
    assert_eq!(transmit_all(&mut peer).len(), 4096);
}

/// Both ends: the owner of the target's queue pairs destroys those in error as soon as it gets the event, as services
/// do.
#[test]
fn the_nak_of_a_destroyed_queue_pair_reaches_the_peer() {
    let config = |worker| EngineConfig { worker, seed: [worker + 1; 32], ..EngineConfig::default() };
    let agreed = Agreed::default();
    let mut peer = Node::bare(1, config(0), 1024, 1 << 16);
    let mut target = Node::bare(2, config(1), 1024, 1 << 16);
    let mut pairs = Vec::new();
    for _ in 0..71 {
        let (ours, theirs) =
            (peer.create_qp(4, Access::empty()), target.create_qp(4, Access::REMOTE_WRITE | Access::REMOTE_READ));
        (peer.qpn, target.qpn) = (ours, theirs);
        peer.connect(&mut target, &agreed);
        pairs.push((ours, theirs));
    }
    let good = RemoteAddr { addr: target.region.addr(), rkey: target.region.rkey() };
    let bad = RemoteAddr { rkey: good.rkey ^ 0x100, ..good };
    for (index, &(ours, _)) in pairs.iter().enumerate() {
        peer.qpn = ours;
        let sge = peer.sge(0, 8);
        let remote = if index == 70 { bad } else { good };
        peer.post_send(index as u64, SendOp::Write { remote, imm: None }, &[sge]);
    }
    let mut now = Instant::from_nanos(1_000);
    let mut completions = Vec::new();
    while completions.len() < 71 {
        now += Duration::from_micros(10);
        assert!(now < Instant::from_nanos(1_000_000_000), "{completions:?}");
        let mut tx = TxFrames::default();
        while peer.engine.transmit(now, &mut tx) > 0 {}
        for (port, frame) in tx.frames {
            let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
            target.engine.receive(now, port, &packet);
        }
        // One transmission, then service and runtime run.
        let mut tx = TxFrames::default();
        target.engine.transmit(now, &mut tx);
        for event in target.take_events() {
            if let AsyncEvent::QpError { qpn, .. } = event {
                target.engine.modify_qp(qpn, QpTransition::ToError).unwrap();
                target.engine.destroy_qp(now, qpn).unwrap();
            }
        }
        for (port, frame) in tx.frames {
            let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
            peer.engine.receive(now, port, &packet);
        }
        peer.engine.handle_timeout(now);
        completions.extend(peer.take_completions());
    }
    for wc in &completions {
        let expected = if wc.wr_id == 70 { WcStatus::RemAccessErr } else { WcStatus::Success };
        assert_eq!(wc.status, expected, "{wc:?}");
    }
    assert_eq!(peer.engine.query_qp(pairs[70].0).unwrap().state, QpState::Error);
}
