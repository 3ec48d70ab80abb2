//! What an engine tells those who look after it: what a queue pair waits for, how far it has come, which packet ended it.

use std::time::Duration;

use crate::harness::ops::*;
use crate::harness::receives::post_receives;
use crate::harness::solo::{Ask, Solo};
use crate::harness::{ALL_ACCESS, Agreed};
use rxe_proto::mem::{KeyKind, Memory, WindowKind};
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, QpErrorCause, QpInfo, QpState, QpTransition, QpType, SendFlags, SendOp, Wait,
};
use rxe_proto::wire::{NakCode, Opcode, Syndrome};

fn info(solo: &Solo) -> QpInfo {
    solo.node.engine.query_qp(solo.node.qpn).unwrap()
}

fn waits(solo: &Solo) -> Wait {
    info(solo).waits
}

#[test]
fn a_queue_pair_says_what_it_waits_for() {
    let mut solo = Solo::new();
    assert_eq!(waits(&solo), Wait::Nothing);
    post(&mut solo, 0, WRITE, 8);
    assert_eq!(waits(&solo), Wait::Turn);
    solo.transmit_at_most(Some(0));
    assert_eq!(waits(&solo), Wait::Turn, "the port took nothing");
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Answer);
    solo.ack(0);
    assert_eq!(waits(&solo), Wait::Nothing);

    post(&mut solo, 1, SEND, 8);
    solo.transmit();
    solo.answer(1, Syndrome::Rnr { timer: 14 });
    assert_eq!(waits(&solo), Wait::PeerReceive);
    solo.advance(Duration::from_millis(2));
    assert_eq!(waits(&solo), Wait::Turn);
    solo.transmit();
    solo.answer(1, Syndrome::Ack { credits: 0 });
    // The peer has no receives: one message goes as a probe, and the next has to wait.
    post(&mut solo, 2, SEND, 8);
    post(&mut solo, 3, SEND, 8);
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Credit);
}

#[test]
fn reads_fences_and_draining_are_waited_for() {
    let mut solo = Solo::with(Agreed { rd_atomic: 1, ..Agreed::default() });
    post(&mut solo, 0, READ, 8);
    post(&mut solo, 1, READ, 8);
    solo.transmit();
    assert_eq!(waits(&solo), Wait::RdAtomic);
    let sends = info(&solo).sends;
    assert_eq!((sends.rd_outstanding, sends.max_rd_atomic, sends.unacked, sends.completed), (1, 1, 1, 0));
    solo.read_response(Opcode::ReadResponseOnly, 0, &[0; 8]);
    let sge = solo.node.sge(0, 8);
    solo.node.post_flags(2, WRITE, &[sge], SendFlags::FENCE);
    solo.transmit();
    assert_eq!((waits(&solo), info(&solo).sends.completed), (Wait::Fence, 1));
    solo.read_response(Opcode::ReadResponseOnly, 1, &[0; 8]);
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Answer);
    let key = solo.node.fast_region(64);
    solo.node.post_send(3, SendOp::LocalInvalidate { key }, &[]);
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Invalidate);
    solo.ack(2);
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Nothing);

    solo.node.engine.modify_qp(solo.node.qpn, QpTransition::ToSqd).unwrap();
    post(&mut solo, 4, WRITE, 8);
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Drain);
    solo.node.engine.modify_qp(solo.node.qpn, QpTransition::ToError).unwrap();
    assert_eq!(waits(&solo), Wait::State);
}

#[test]
fn a_closed_window_and_a_missing_receive_are_waited_for() {
    let config = EngineConfig { window: 2, ..EngineConfig::default() };
    let mut solo = Solo::with_config(Agreed::default(), config);
    for wr_id in 0..3 {
        post(&mut solo, wr_id, WRITE, 8);
    }
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Window);
    solo.ack(1);
    solo.transmit();
    solo.ack(2);
    assert_eq!(waits(&solo), Wait::Nothing);

    solo.request(Opcode::SendOnly, 0, Ask::Ack, b"hello");
    assert_eq!(waits(&solo), Wait::Receive);
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Receive);
    post_receives(&mut solo, 1);
    assert_eq!(waits(&solo), Wait::Nothing);
    solo.request(Opcode::SendOnly, 0, Ask::Ack, b"hello");
    assert_eq!(waits(&solo), Wait::Turn, "an ACK is owed");
    solo.transmit();
    assert_eq!(waits(&solo), Wait::Nothing);
}

#[test]
fn progress_is_counted_in_packets_and_work_requests() {
    let mut solo = Solo::new();
    post_receives(&mut solo, 2);
    let before = info(&solo);
    post(&mut solo, 0, WRITE, 3000);
    solo.transmit();
    solo.ack(2);
    solo.request(Opcode::SendFirst, 0, Ask::Nothing, &[1; 1024]);
    solo.request(Opcode::SendLast, 1, Ask::Ack, &[1; 10]);
    let after = info(&solo);
    assert_eq!(after.sends.packets - before.sends.packets, 3);
    assert_eq!(after.sends.completed - before.sends.completed, 1);
    assert_eq!(after.packets_served - before.packets_served, 2);
    assert_eq!((after.recvs_completed, after.msn), (1, 1));
    assert_eq!((after.sends.retries, after.sends.retries_left, after.sends.retry_cnt), (0, 7, 7));
    post(&mut solo, 1, WRITE, 8);
    solo.transmit();
    solo.advance(TIMEOUT);
    assert_eq!((info(&solo).sends.retries, info(&solo).sends.retries_left), (1, 6));
}

#[test]
fn the_packet_that_ended_a_queue_pair_is_told_once() {
    let mut solo = Solo::new();
    solo.rdma_raw(Opcode::WriteOnly, 0, Ask::Ack, 0x20_000, 0xBAD, 4, b"evil");
    assert_eq!(errors(&mut solo), [QpErrorCause::RemoteKey]);
    let qpn = solo.node.qpn;
    let offender = solo.node.engine.take_offender(qpn).unwrap();
    // Without the key: what is in the log may be read by those who may not read the memory.
    assert!(offender.contains("10.77.0.2 > 10.77.0.1") && offender.contains("reth(va 0x20000 len 4)"), "{offender}");
    assert_eq!(solo.node.engine.take_offender(qpn), None);

    let mut solo = Solo::new();
    post(&mut solo, 0, WRITE, 8);
    solo.transmit();
    solo.nak(0, NakCode::RemoteAccess);
    assert_eq!(errors(&mut solo), [QpErrorCause::PeerAccess]);
    let offender = solo.node.engine.take_offender(solo.node.qpn).unwrap();
    assert!(offender.contains("nak remote access error"), "{offender}");
}

#[test]
fn only_so_many_offenders_are_remembered() {
    let mut solo = Solo::new();
    let mut qpns = vec![solo.node.qpn];
    qpns.extend((0..64).map(|n| solo.second_qp(0x100 + n)));
    for &qpn in &qpns {
        solo.node.qpn = qpn;
        solo.rdma_raw(Opcode::WriteOnly, 0, Ask::Ack, 0x20_000, 0xBAD, 4, b"evil");
    }
    assert_eq!(solo.node.engine.take_offender(qpns[0]), None, "65 were too many");
    assert!(qpns[1..].iter().all(|&qpn| solo.node.engine.take_offender(qpn).is_some()));
}

#[test]
fn a_queue_pair_can_be_ended_from_outside() {
    let mut solo = Solo::new();
    post(&mut solo, 0, WRITE, 8);
    let qpn = solo.node.qpn;
    solo.node.engine.abort_qp(qpn).unwrap();
    assert_eq!(solo.node.state(), QpState::Error);
    assert_eq!(solo.node.take_events(), [AsyncEvent::QpError { qpn, cause: QpErrorCause::Administrative }]);
    assert_eq!(completed(&mut solo).len(), 1, "what was posted is flushed");
    solo.node.engine.abort_qp(qpn).unwrap();
    assert_eq!(solo.node.take_events(), [], "once");
    solo.node.engine.destroy_qp(solo.now, qpn).unwrap();
    assert!(solo.node.engine.abort_qp(qpn).is_err());
}

#[test]
fn queue_pairs_and_keys_are_listed_in_parts() {
    let mut solo = Solo::new();
    let qpns: Vec<_> = std::iter::once(solo.node.qpn).chain((0..4).map(|n| solo.second_qp(0x100 + n))).collect();
    solo.node.engine.destroy_qp(solo.now, qpns[2]).unwrap();
    let engine = &mut solo.node.engine;
    let slots = engine.qp_slots();
    let listed: Vec<_> = (0..slots + 3).flat_map(|at| engine.qps_in(at..at + 1).collect::<Vec<_>>()).collect();
    assert_eq!(listed.iter().map(|qp| qp.qpn).collect::<Vec<_>>(), [qpns[0], qpns[1], qpns[3], qpns[4]]);
    assert!(listed.iter().all(|qp| qp.qp_type == QpType::Rc && qp.waits == Wait::Nothing));
    assert_eq!(engine.qps_in(0..usize::MAX).count(), 4);
    assert_eq!((engine.cq_count(), engine.srq_count(), engine.ah_count()), (1, 0, 0));

    let pd = solo.node.pd;
    let free = solo.node.engine.keys_mut().alloc_fast_region(pd, 64).unwrap();
    let valid = solo.node.fast_region(64);
    let keys = solo.node.engine.keys_mut();
    let window = keys.alloc_window(pd, WindowKind::Type2).unwrap();
    let plain = keys.register(pd, Memory::heap(100), 0x5000, ALL_ACCESS).unwrap();
    let listed: Vec<_> = (0..keys.slots()).flat_map(|at| keys.list(at..at + 1).collect::<Vec<_>>()).collect();
    assert_eq!((listed.len(), keys.len()), (5, 5));
    let find = |key: u32| *listed.iter().find(|info| info.key == key).unwrap();
    assert_eq!((find(free).kind, find(free).len), (KeyKind::FreeFastRegion, 0));
    assert_eq!((find(valid).kind, find(valid).len), (KeyKind::FastRegion, 64));
    assert_eq!((find(window).kind, find(window).len), (KeyKind::UnboundWindow, 0));
    let info = find(plain.rkey());
    assert_eq!((info.kind, info.addr, info.len, info.access), (KeyKind::Region, 0x5000, 100, ALL_ACCESS));
}
