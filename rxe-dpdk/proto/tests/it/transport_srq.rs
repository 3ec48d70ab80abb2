//! Receives: shared queues with their events, what ACKs say of posted receives, and word of completions.

use crate::harness::Agreed;
use crate::harness::solo::{Ask, Solo};
use rxe_proto::transport::{
    AsyncEvent, CqError, EngineConfig, PostError, QpErrorCause, QpState, QpTransition, QpType, Qpn, RecvWr, SrqError,
    SrqId, SrqInit, WcStatus,
};
use rxe_proto::wire::{Frame, Opcode, Syndrome, classify};

use Ask::{Ack, Nothing};
use Opcode::*;

const SRQ: SrqId = SrqId(0);
const MTU: usize = 1024;

fn shared(qp_type: QpType) -> Solo {
    Solo::of(qp_type, true, Agreed::default(), EngineConfig::default())
}

fn post(solo: &mut Solo, numbers: std::ops::Range<u64>) {
    for wr_id in numbers {
        let sges = [solo.node.sge(0x8000, 4096)];
        solo.node.engine.post_srq_recv(SRQ, &RecvWr { wr_id, sges: &sges }).unwrap();
    }
}

/// Another queue pair with the same shared receive queue and peer.
fn sibling(solo: &mut Solo, qp_type: QpType) -> Qpn {
    let first = solo.node.qpn;
    solo.node.qpn = solo.node.create_typed_qp(qp_type, Some(SRQ), 8, solo.agreed.access);
    solo.node.ready_to_receive(2, Qpn::new(crate::harness::solo::PEER_QPN), &solo.agreed);
    solo.node.ready_to_send(&solo.agreed);
    std::mem::replace(&mut solo.node.qpn, first)
}

fn completed(solo: &mut Solo) -> Vec<(Qpn, u64, WcStatus)> {
    solo.node.take_completions().iter().map(|wc| (wc.qpn, wc.wr_id, wc.status)).collect()
}

/// Carries out `script` as on another queue pair.
fn on<T>(solo: &mut Solo, qpn: Qpn, script: impl FnOnce(&mut Solo) -> T) -> T {
    let first = std::mem::replace(&mut solo.node.qpn, qpn);
    let result = script(solo);
    solo.node.qpn = first;
    result
}

// [SRQ-TAKE]
#[test]
fn queue_pairs_take_receives_as_their_messages_begin() {
    let mut solo = shared(QpType::Rc);
    let (a, b) = (solo.node.qpn, sibling(&mut solo, QpType::Rc));
    post(&mut solo, 0..4);
    solo.request(SendFirst, 0, Nothing, &[1; MTU]);
    on(&mut solo, b, |solo| solo.request(SendOnly, 0, Nothing, b"in between"));
    solo.request(SendLast, 1, Nothing, b"end");
    // A WRITE with immediate takes one at its end, a plain WRITE none.
    solo.rdma(WriteOnly, 2, Nothing, 0, 1, b"w");
    let (va, rkey) = (solo.node.region.addr(), solo.node.region.rkey());
    let frame = solo.frame(WriteOnlyImm, solo.agreed.rq_psn.add(3), Nothing, b"w", |packet| {
        packet.reth(va, rkey, 1).imm(1);
    });
    solo.inject(&frame);
    use WcStatus::Success;
    assert_eq!(completed(&mut solo), [(b, 1, Success), (a, 0, Success), (a, 2, Success)]);
    assert_eq!(solo.node.engine.srq_len(SRQ), Some(1));
}

// [SRQ-EMPTY]
#[test]
fn an_empty_queue_is_a_receiver_that_is_not_ready() {
    let mut solo = shared(QpType::Rc);
    let b = sibling(&mut solo, QpType::Rc);
    post(&mut solo, 0..1);
    solo.request(SendOnly, 0, Ack, b"takes it");
    on(&mut solo, b, |solo| solo.request(SendOnly, 0, Ack, b"finds none"));
    solo.expect(["ACK 0 msn 1", "RNR_NAK 0 timer 1 msn 0"]);
    post(&mut solo, 1..2);
    on(&mut solo, b, |solo| solo.request(SendOnly, 0, Ack, b"comes again"));
    solo.expect(["ACK 0 msn 1"]);
    assert_eq!(completed(&mut solo).len(), 2);
}

// [SRQ-LIMIT]
#[test]
fn the_limit_event_comes_once_for_each_time_it_is_armed() {
    let mut solo = shared(QpType::Rc);
    post(&mut solo, 0..4);
    let qpn = solo.node.qpn;
    solo.node.engine.established(qpn);
    solo.node.engine.modify_srq(SRQ, 3).unwrap();
    solo.request(SendOnly, 0, Nothing, b"3 left");
    assert_eq!(solo.node.take_events(), []);
    solo.request(SendOnly, 1, Nothing, b"2 left");
    assert_eq!(solo.node.take_events(), [AsyncEvent::SrqLimitReached { srq: SRQ }]);
    solo.request(SendOnly, 2, Nothing, b"1 left");
    assert_eq!(solo.node.take_events(), [], "it is off");
    // Armed above what is there: at once.
    solo.node.engine.modify_srq(SRQ, 2).unwrap();
    assert_eq!(solo.node.take_events(), [AsyncEvent::SrqLimitReached { srq: SRQ }]);
    solo.node.engine.modify_srq(SRQ, 0).unwrap();
    solo.request(SendOnly, 3, Nothing, b"none left");
    assert_eq!((solo.node.take_events(), solo.node.stat("srq_limit_events")), (vec![], 2));
    let limit = SrqError::Limit { name: "srq_limit", value: 65, limit: 64 };
    assert_eq!(solo.node.engine.modify_srq(SRQ, 65), Err(limit));
}

// [SRQ-LAST-WQE]
#[test]
fn the_last_wqe_event_says_that_nothing_more_is_taken() {
    // By an error of the peer's, amid a message: its receive comes back, those that were not taken stay.
    let mut solo = shared(QpType::Rc);
    let (a, b) = (solo.node.qpn, sibling(&mut solo, QpType::Rc));
    for qpn in [a, b] {
        solo.node.engine.established(qpn);
    }
    post(&mut solo, 0..3);
    solo.request(SendFirst, 0, Nothing, &[1; MTU]);
    solo.request(WriteMiddle, 1, Ack, &[1; MTU]);
    let cause = QpErrorCause::OpcodeSequence;
    let events = [AsyncEvent::QpError { qpn: a, cause }, AsyncEvent::LastWqeReached { qpn: a }];
    assert_eq!(solo.node.take_events(), events);
    assert_eq!(completed(&mut solo), [(a, 0, WcStatus::RemInvReqErr)]);
    assert_eq!(solo.node.engine.srq_len(SRQ), Some(2));
    // By the consumer, once.
    solo.node.engine.modify_qp(b, QpTransition::ToError).unwrap();
    solo.node.engine.modify_qp(b, QpTransition::ToError).unwrap();
    assert_eq!(solo.node.take_events(), [AsyncEvent::LastWqeReached { qpn: b }]);
    assert_eq!((completed(&mut solo), solo.node.engine.srq_len(SRQ)), (vec![], Some(2)));
    // A queue pair with a queue of its own has no such event.
    let mut solo = Solo::new();
    let qpn = solo.node.qpn;
    solo.node.engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    assert_eq!(solo.node.take_events(), []);
}

// [UC-RSP-SRQ-KEEP]
#[test]
fn a_lost_message_keeps_its_receive_for_the_next() {
    let mut solo = shared(QpType::Uc);
    post(&mut solo, 0..2);
    solo.request(SendFirst, 0, Nothing, &[1; MTU]);
    solo.request(SendLast, 2, Nothing, b"too late");
    assert_eq!(solo.node.engine.srq_len(SRQ), Some(1), "one is in use");
    solo.request(SendOnly, 3, Nothing, b"next");
    let qpn = solo.node.qpn;
    assert_eq!(completed(&mut solo), [(qpn, 0, WcStatus::Success)]);
    assert_eq!(solo.node.engine.srq_len(SRQ), Some(1));
}

#[test]
fn limits_of_a_shared_queue() {
    let config = EngineConfig { max_srq: 1, max_srq_wr: 2, max_sge: 16, ..EngineConfig::default() };
    let mut solo = Solo::of(QpType::Rc, false, Agreed::default(), config);
    let pd = solo.node.pd;
    let engine = &mut solo.node.engine;
    let init = SrqInit { pd, max_wr: 2, max_sge: 1, limit: 0 };
    let refused = |name, value, limit| Err(SrqError::Limit { name, value, limit });
    assert_eq!(engine.create_srq(&SrqInit { max_wr: 3, ..init }), refused("max_wr", 3, 2));
    assert_eq!(engine.create_srq(&SrqInit { max_wr: 0, ..init }), refused("max_wr", 0, 2));
    assert_eq!(engine.create_srq(&SrqInit { max_sge: 17, ..init }), refused("max_sge", 17, 16));
    assert_eq!(engine.create_srq(&SrqInit { limit: 3, ..init }), refused("srq_limit", 3, 2));
    let srq = engine.create_srq(&init).unwrap();
    assert_eq!(engine.create_srq(&init), Err(SrqError::TooMany(1)));
    let sge = solo.node.sge(0, 1);
    let engine = &mut solo.node.engine;
    assert_eq!(engine.post_srq_recv(srq, &RecvWr { wr_id: 0, sges: &[sge; 2] }), Err(PostError::TooManySges));
    for wr_id in 0..2 {
        engine.post_srq_recv(srq, &RecvWr { wr_id, sges: &[sge] }).unwrap();
    }
    assert_eq!(engine.post_srq_recv(srq, &RecvWr { wr_id: 2, sges: &[] }), Err(PostError::QueueFull));
    // In use, it and its protection domain stay.
    let qpn = solo.node.create_typed_qp(QpType::Rc, Some(srq), 1, Agreed::default().access);
    let engine = &mut solo.node.engine;
    let own = RecvWr { wr_id: 0, sges: &[] };
    assert_eq!(engine.post_recv(qpn, &own), Err(PostError::SharedReceiveQueue));
    assert_eq!(engine.destroy_srq(srq), Err(SrqError::InUse(1)));
    engine.destroy_qp(solo.now, qpn).unwrap();
    assert_eq!(engine.destroy_srq(srq), Ok(()));
    assert_eq!(engine.destroy_srq(srq), Err(SrqError::Unknown));
    assert_eq!(engine.post_srq_recv(srq, &own), Err(PostError::UnknownSrq));
    assert_eq!(engine.srq_len(srq), None);
    let again = engine.create_srq(&init).unwrap();
    assert_ne!(again, srq, "another one in the same slot");
}

/// The syndrome of the only packet that is sent.
fn syndrome(solo: &mut Solo) -> Syndrome {
    assert_eq!(solo.transmit().len(), 1);
    let Ok(Frame::Roce(packet)) = classify(&solo.frames[0]) else { panic!() };
    packet.aeth().unwrap().syndrome()
}

// [RC-RSP-CREDITS]
#[test]
fn acks_tell_how_many_receives_are_posted() {
    let mut solo = Solo::of(QpType::Rc, false, Agreed::default(), EngineConfig::default());
    for wr_id in 0..8 {
        let sge = solo.node.sge(0x8000, 4096);
        solo.node.post_recv(wr_id, &[sge]);
    }
    // Credit codes: up to 4 themselves, then 5 is 6 and 6 is 8.
    for (psn, credits) in [(0, 5), (1, 5), (2, 4), (3, 4), (4, 3)] {
        solo.request(SendOnly, psn, Ack, b"x");
        assert_eq!(syndrome(&mut solo), Syndrome::Ack { credits }, "after message {psn}");
    }
    // The one that a message is being written to counts, as the message is not in the MSN yet.
    solo.request(SendFirst, 5, Ack, &[1; MTU]);
    assert_eq!(syndrome(&mut solo), Syndrome::Ack { credits: 3 });
    solo.request(SendLast, 6, Ack, b"x");
    assert_eq!(syndrome(&mut solo), Syndrome::Ack { credits: 2 });
    // Answers to READs and atomics say it, too, and it is what is there when they are sent.
    solo.rdma(ReadRequest, 7, Ack, 0, 1, b"");
    assert_eq!(syndrome(&mut solo), Syndrome::Ack { credits: 2 });
    solo.atomic(FetchAdd, 8, 0, 1, 0);
    solo.node.post_recv(8, &[]);
    assert_eq!(syndrome(&mut solo), Syndrome::Ack { credits: 3 });
    for psn in 9..12 {
        solo.request(SendOnly, psn, Ack, b"");
    }
    assert_eq!(syndrome(&mut solo), Syndrome::Ack { credits: 0 });
}

// [RC-RSP-CREDITS]
#[test]
fn no_limit_is_told_with_a_shared_queue_or_credits_off() {
    let mut solo = shared(QpType::Rc);
    post(&mut solo, 0..2);
    solo.request(SendOnly, 0, Ack, b"x");
    assert_eq!(syndrome(&mut solo), Syndrome::Ack { credits: 31 });
    let config = EngineConfig { credits: false, ..EngineConfig::default() };
    let mut solo = Solo::of(QpType::Rc, false, Agreed::default(), config);
    solo.node.post_recv(0, &[]);
    solo.request(SendOnly, 0, Ack, b"");
    assert_eq!(syndrome(&mut solo), Syndrome::Ack { credits: 31 });
}

// [CQ-NOTIFY-SOLICITED]
#[test]
fn word_of_a_solicited_completion() {
    let mut solo = shared(QpType::Rc);
    let cq = solo.node.cq;
    post(&mut solo, 0..8);
    let send = |solo: &mut Solo, psn: i32, solicited: bool| {
        let mut frame = solo.frame(SendOnly, solo.agreed.rq_psn.add(psn as u32), Nothing, b"x", |_| {});
        frame[43] |= if solicited { 0x80 } else { 0 };
        let end = frame.len() - 4;
        let icrc = rxe_proto::wire::icrc(&frame[14..end], true);
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
        solo.inject(&frame);
    };
    send(&mut solo, 0, true);
    assert_eq!(solo.node.engine.poll_cq_event(), None, "nobody asked");
    solo.node.engine.request_notify(cq, true).unwrap();
    send(&mut solo, 1, false);
    assert_eq!(solo.node.engine.poll_cq_event(), None, "not solicited");
    send(&mut solo, 2, true);
    send(&mut solo, 3, true);
    assert_eq!((solo.node.engine.poll_cq_event(), solo.node.engine.poll_cq_event()), (Some(cq), None));
    solo.node.engine.request_notify(cq, false).unwrap();
    send(&mut solo, 4, false);
    assert_eq!(solo.node.engine.poll_cq_event(), Some(cq));
    let solicited: Vec<_> = solo.node.take_completions().iter().map(|wc| wc.solicited).collect();
    assert_eq!(solicited, [true, false, true, true, false]);
    // A failure counts as solicited.
    solo.node.engine.request_notify(cq, true).unwrap();
    solo.request(SendFirst, 5, Nothing, &[1; MTU]);
    solo.request(SendFirst, 6, Nothing, &[1; MTU]);
    assert_eq!(solo.node.engine.poll_cq_event(), Some(cq));
    assert_eq!(solo.node.state(), QpState::Error);
    assert_eq!(solo.node.engine.request_notify(rxe_proto::transport::CqId(99), true), Err(CqError::Unknown));
}
