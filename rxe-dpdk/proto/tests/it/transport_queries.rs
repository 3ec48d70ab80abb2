//! Queries for management: what a queue pair waits for, its progress, and the packet that caused its error.

use std::time::Duration;

use crate::harness::ops::*;
use crate::harness::receives::post_receives;
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{ALL_ACCESS, Agreed};
use rxe_proto::mem::{KeyKind, Memory, WindowKind};
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, QpErrorCause, QpInfo, QpState, QpTransition, QpType, SendFlags, SendOp, Wait,
};
use rxe_proto::wire::{NakCode, Opcode, Syndrome};

fn info(peer: &ScriptedPeer) -> QpInfo {
    peer.node.engine.query_qp(peer.node.qpn).unwrap()
}

fn waits(peer: &ScriptedPeer) -> Wait {
    info(peer).waits
}

#[test]
fn query_reports_what_a_queue_pair_waits_for() {
    let mut peer = ScriptedPeer::new();
    assert_eq!(waits(&peer), Wait::Nothing);
    post(&mut peer, 0, WRITE, 8);
    assert_eq!(waits(&peer), Wait::Turn);
    peer.transmit_at_most(Some(0));
    assert_eq!(waits(&peer), Wait::Turn, "the port took nothing");
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Answer);
    peer.ack(0);
    assert_eq!(waits(&peer), Wait::Nothing);

    post(&mut peer, 1, SEND, 8);
    peer.transmit();
    peer.answer(1, Syndrome::Rnr { timer: 14 });
    assert_eq!(waits(&peer), Wait::PeerReceive);
    peer.advance(Duration::from_millis(2));
    assert_eq!(waits(&peer), Wait::Turn);
    peer.transmit();
    peer.answer(1, Syndrome::Ack { credits: 0 });
    // The peer has no receives: one message goes as a probe, and the next has to wait.
    post(&mut peer, 2, SEND, 8);
    post(&mut peer, 3, SEND, 8);
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Credit);
}

#[test]
fn reads_fences_and_draining_are_waited_for() {
    let mut peer = ScriptedPeer::with(Agreed { rd_atomic: 1, ..Agreed::default() });
    post(&mut peer, 0, READ, 8);
    post(&mut peer, 1, READ, 8);
    peer.transmit();
    assert_eq!(waits(&peer), Wait::RdAtomic);
    let sends = info(&peer).sends;
    assert_eq!((sends.rd_outstanding, sends.max_rd_atomic, sends.unacked, sends.completed), (1, 1, 1, 0));
    peer.read_response(Opcode::ReadResponseOnly, 0, &[0; 8]);
    let sge = peer.node.sge(0, 8);
    peer.node.post_flags(2, WRITE, &[sge], SendFlags::FENCE);
    peer.transmit();
    assert_eq!((waits(&peer), info(&peer).sends.completed), (Wait::Fence, 1));
    peer.read_response(Opcode::ReadResponseOnly, 1, &[0; 8]);
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Answer);
    let key = peer.node.fast_region(64);
    peer.node.post_send(3, SendOp::LocalInvalidate { key }, &[]);
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Invalidate);
    peer.ack(2);
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Nothing);

    peer.node.engine.modify_qp(peer.node.qpn, QpTransition::ToSqd).unwrap();
    post(&mut peer, 4, WRITE, 8);
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Drain);
    peer.node.engine.modify_qp(peer.node.qpn, QpTransition::ToError).unwrap();
    assert_eq!(waits(&peer), Wait::State);
}

#[test]
fn a_closed_window_and_a_missing_receive_are_waited_for() {
    let config = EngineConfig { window: 2, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::with_config(Agreed::default(), config);
    for wr_id in 0..3 {
        post(&mut peer, wr_id, WRITE, 8);
    }
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Window);
    peer.ack(1);
    peer.transmit();
    peer.ack(2);
    assert_eq!(waits(&peer), Wait::Nothing);

    peer.request(Opcode::SendOnly, 0, AckReq::Ack, b"hello");
    assert_eq!(waits(&peer), Wait::Receive);
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Receive);
    post_receives(&mut peer, 1);
    assert_eq!(waits(&peer), Wait::Nothing);
    peer.request(Opcode::SendOnly, 0, AckReq::Ack, b"hello");
    assert_eq!(waits(&peer), Wait::Turn, "an ACK is owed");
    peer.transmit();
    assert_eq!(waits(&peer), Wait::Nothing);
}

#[test]
fn progress_is_counted_in_packets_and_work_requests() {
    let mut peer = ScriptedPeer::new();
    post_receives(&mut peer, 2);
    let before = info(&peer);
    post(&mut peer, 0, WRITE, 3000);
    peer.transmit();
    peer.ack(2);
    peer.request(Opcode::SendFirst, 0, AckReq::NoAck, &[1; 1024]);
    peer.request(Opcode::SendLast, 1, AckReq::Ack, &[1; 10]);
    let after = info(&peer);
    assert_eq!(after.sends.packets - before.sends.packets, 3);
    assert_eq!(after.sends.completed - before.sends.completed, 1);
    assert_eq!(after.packets_served - before.packets_served, 2);
    assert_eq!((after.recvs_completed, after.msn), (1, 1));
    assert_eq!((after.sends.retries, after.sends.retries_left, after.sends.retry_cnt), (0, 7, 7));
    post(&mut peer, 1, WRITE, 8);
    peer.transmit();
    peer.advance(TIMEOUT);
    assert_eq!((info(&peer).sends.retries, info(&peer).sends.retries_left), (1, 6));
}

#[test]
fn the_error_packet_of_a_queue_pair_is_returned_once() {
    let mut peer = ScriptedPeer::new();
    peer.rdma_raw(Opcode::WriteOnly, 0, AckReq::Ack, 0x20_000, 0xBAD, 4, b"evil");
    assert_eq!(errors(&mut peer), [QpErrorCause::RemoteKey]);
    let qpn = peer.node.qpn;
    let offender = peer.node.engine.take_error_packet(qpn).unwrap();
    // Without the key: readers of the log may lack the right to read the memory.
    assert!(offender.contains("10.77.0.2 > 10.77.0.1") && offender.contains("reth(va 0x20000 len 4)"), "{offender}");
    assert_eq!(peer.node.engine.take_error_packet(qpn), None);

    let mut peer = ScriptedPeer::new();
    post(&mut peer, 0, WRITE, 8);
    peer.transmit();
    peer.nak(0, NakCode::RemoteAccess);
    assert_eq!(errors(&mut peer), [QpErrorCause::PeerAccess]);
    let offender = peer.node.engine.take_error_packet(peer.node.qpn).unwrap();
    assert!(offender.contains("nak remote access error"), "{offender}");
}

#[test]
fn only_so_many_offenders_are_remembered() {
    let mut peer = ScriptedPeer::new();
    let mut qpns = vec![peer.node.qpn];
    qpns.extend((0..64).map(|n| peer.second_qp(0x100 + n)));
    for &qpn in &qpns {
        peer.node.qpn = qpn;
        peer.rdma_raw(Opcode::WriteOnly, 0, AckReq::Ack, 0x20_000, 0xBAD, 4, b"evil");
    }
    assert_eq!(peer.node.engine.take_error_packet(qpns[0]), None, "65 were too many");
    assert!(qpns[1..].iter().all(|&qpn| peer.node.engine.take_error_packet(qpn).is_some()));
}

#[test]
fn a_queue_pair_can_be_ended_from_outside() {
    let mut peer = ScriptedPeer::new();
    post(&mut peer, 0, WRITE, 8);
    let qpn = peer.node.qpn;
    peer.node.engine.abort_qp(qpn).unwrap();
    assert_eq!(peer.node.state(), QpState::Error);
    assert_eq!(peer.node.take_events(), [AsyncEvent::QpError { qpn, cause: QpErrorCause::Administrative }]);
    assert_eq!(completed(&mut peer).len(), 1, "what was posted is flushed");
    peer.node.engine.abort_qp(qpn).unwrap();
    assert_eq!(peer.node.take_events(), [], "once");
    peer.node.engine.destroy_qp(peer.now, qpn).unwrap();
    assert!(peer.node.engine.abort_qp(qpn).is_err());
}

#[test]
fn queue_pairs_and_keys_are_listed_in_parts() {
    let mut peer = ScriptedPeer::new();
    let qpns: Vec<_> = std::iter::once(peer.node.qpn).chain((0..4).map(|n| peer.second_qp(0x100 + n))).collect();
    peer.node.engine.destroy_qp(peer.now, qpns[2]).unwrap();
    let engine = &mut peer.node.engine;
    let slots = engine.qp_slots();
    let listed: Vec<_> = (0..slots + 3).flat_map(|at| engine.qps_in(at..at + 1).collect::<Vec<_>>()).collect();
    assert_eq!(listed.iter().map(|qp| qp.qpn).collect::<Vec<_>>(), [qpns[0], qpns[1], qpns[3], qpns[4]]);
    assert!(listed.iter().all(|qp| qp.qp_type == QpType::Rc && qp.waits == Wait::Nothing));
    assert_eq!(engine.qps_in(0..usize::MAX).count(), 4);
    assert_eq!((engine.cq_count(), engine.srq_count(), engine.ah_count()), (1, 0, 0));

    let pd = peer.node.pd;
    let free = peer.node.engine.keys_mut().alloc_fast_reg_mr(pd, 64).unwrap();
    let valid = peer.node.fast_region(64);
    let keys = peer.node.engine.keys_mut();
    let window = keys.alloc_window(pd, WindowKind::Type2).unwrap();
    let plain = keys.register(pd, Memory::heap(100), 0x5000, ALL_ACCESS).unwrap();
    let listed: Vec<_> = (0..keys.slots()).flat_map(|at| keys.list(at..at + 1).collect::<Vec<_>>()).collect();
    assert_eq!((listed.len(), keys.len()), (5, 5));
    let find = |key: u32| *listed.iter().find(|info| info.key == key).unwrap();
    assert_eq!((find(free).kind, find(free).len), (KeyKind::FreeFastRegMr, 0));
    assert_eq!((find(valid).kind, find(valid).len), (KeyKind::FastRegMr, 64));
    assert_eq!((find(window).kind, find(window).len), (KeyKind::UnboundWindow, 0));
    let info = find(plain.rkey());
    assert_eq!((info.kind, info.addr, info.len, info.access), (KeyKind::Region, 0x5000, 100, ALL_ACCESS));
}
