//! Receives: shared queues with their events, credits in ACKs, and completion events.

use crate::harness::Agreed;
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use rxe_proto::transport::{
    AsyncEvent, CqError, EngineConfig, PostError, QpErrorCause, QpState, QpTransition, QpType, Qpn, RecvWr, SrqAttr,
    SrqError, SrqId, SrqInfo, SrqInit, WcStatus,
};
use rxe_proto::wire::{Frame, Opcode, Syndrome, classify};

use AckReq::{Ack, NoAck};
use Opcode::*;

const SRQ: SrqId = SrqId(0);
const MTU: usize = 1024;

fn shared(qp_type: QpType) -> ScriptedPeer {
    ScriptedPeer::of(qp_type, true, Agreed::default(), EngineConfig::default())
}

fn post(peer: &mut ScriptedPeer, numbers: std::ops::Range<u64>) {
    for wr_id in numbers {
        let sges = [peer.node.sge(0x8000, 4096)];
        peer.node.engine.post_srq_recv(SRQ, &RecvWr { wr_id, sges: &sges }).unwrap();
    }
}

/// Another queue pair with the same shared receive queue and peer.
fn sibling(peer: &mut ScriptedPeer, qp_type: QpType) -> Qpn {
    let first = peer.node.qpn;
    peer.node.qpn = peer.node.create_typed_qp(qp_type, Some(SRQ), 8, peer.agreed.access);
    peer.node.ready_to_receive(2, Qpn::new(crate::harness::scripted_peer::PEER_QPN), &peer.agreed);
    peer.node.ready_to_send(&peer.agreed);
    std::mem::replace(&mut peer.node.qpn, first)
}

fn completed(peer: &mut ScriptedPeer) -> Vec<(Qpn, u64, WcStatus)> {
    peer.node.take_completions().iter().map(|wc| (wc.qpn, wc.wr_id, wc.status)).collect()
}

/// Runs `script` on another queue pair.
fn on<T>(peer: &mut ScriptedPeer, qpn: Qpn, script: impl FnOnce(&mut ScriptedPeer) -> T) -> T {
    let first = std::mem::replace(&mut peer.node.qpn, qpn);
    let result = script(peer);
    peer.node.qpn = first;
    result
}

// [SRQ-TAKE]
#[test]
fn queue_pairs_take_receives_as_their_messages_begin() {
    let mut peer = shared(QpType::Rc);
    let (a, b) = (peer.node.qpn, sibling(&mut peer, QpType::Rc));
    post(&mut peer, 0..4);
    peer.request(SendFirst, 0, NoAck, &[1; MTU]);
    on(&mut peer, b, |peer| peer.request(SendOnly, 0, NoAck, b"in between"));
    peer.request(SendLast, 1, NoAck, b"end");
    // A WRITE with immediate takes one at its end, a plain WRITE none.
    peer.rdma(WriteOnly, 2, NoAck, 0, 1, b"w");
    let (va, rkey) = (peer.node.region.addr(), peer.node.region.rkey());
    let frame = peer.frame(WriteOnlyImm, peer.agreed.rq_psn.add(3), NoAck, b"w", |packet| {
        packet.reth(va, rkey, 1).imm(1);
    });
    peer.inject(&frame);
    use WcStatus::Success;
    assert_eq!(completed(&mut peer), [(b, 1, Success), (a, 0, Success), (a, 2, Success)]);
    assert_eq!(peer.node.engine.srq_len(SRQ), Some(1));
}

// [SRQ-EMPTY]
#[test]
fn an_empty_queue_is_a_receiver_that_is_not_ready() {
    let mut peer = shared(QpType::Rc);
    let b = sibling(&mut peer, QpType::Rc);
    post(&mut peer, 0..1);
    peer.request(SendOnly, 0, Ack, b"takes it");
    on(&mut peer, b, |peer| peer.request(SendOnly, 0, Ack, b"finds none"));
    peer.expect(["ACK 0 msn 1", "RNR_NAK 0 timer 1 msn 0"]);
    post(&mut peer, 1..2);
    on(&mut peer, b, |peer| peer.request(SendOnly, 0, Ack, b"comes again"));
    peer.expect(["ACK 0 msn 1"]);
    assert_eq!(completed(&mut peer).len(), 2);
}

// [SRQ-LIMIT]
#[test]
fn the_limit_event_is_raised_once_each_time_it_is_armed() {
    let mut peer = shared(QpType::Rc);
    post(&mut peer, 0..4);
    let qpn = peer.node.qpn;
    peer.node.engine.established(qpn);
    peer.node.engine.modify_srq(SRQ, SrqAttr::limit(3)).unwrap();
    peer.request(SendOnly, 0, NoAck, b"3 left");
    assert_eq!(peer.node.take_events(), []);
    peer.request(SendOnly, 1, NoAck, b"2 left");
    assert_eq!(peer.node.take_events(), [AsyncEvent::SrqLimitReached { srq: SRQ }]);
    peer.request(SendOnly, 2, NoAck, b"1 left");
    assert_eq!(peer.node.take_events(), [], "it is off");
    // Armed above what is there: at once.
    peer.node.engine.modify_srq(SRQ, SrqAttr::limit(2)).unwrap();
    assert_eq!(peer.node.take_events(), [AsyncEvent::SrqLimitReached { srq: SRQ }]);
    peer.node.engine.modify_srq(SRQ, SrqAttr::limit(0)).unwrap();
    peer.request(SendOnly, 3, NoAck, b"none left");
    assert_eq!((peer.node.take_events(), peer.node.stat("srq_limit_events")), (vec![], 2));
    let limit = SrqError::Limit { name: "srq_limit", value: 65, limit: 64 };
    assert_eq!(peer.node.engine.modify_srq(SRQ, SrqAttr::limit(65)), Err(limit));
}

// [SRQ-RESIZE]
#[test]
fn a_queue_in_use_is_resized_and_keeps_its_receives_in_order() {
    let mut peer = shared(QpType::Rc);
    let qpn = peer.node.qpn;
    peer.node.engine.established(qpn);
    // The ring has wrapped, and a message has a receive in use.
    post(&mut peer, 0..64);
    for psn in 0..62 {
        peer.request(SendOnly, psn, NoAck, b"x");
    }
    post(&mut peer, 64..68);
    peer.request(SendFirst, 62, NoAck, &[1; MTU]);
    completed(&mut peer);
    let info = |peer: &ScriptedPeer| peer.node.engine.query_srq(SRQ).unwrap();
    let before = SrqInfo { pd: peer.node.pd, max_wr: 64, max_sge: 16, srq_limit: 0, queued: 5 };
    assert_eq!(info(&peer), before);
    peer.node.engine.modify_srq(SRQ, SrqAttr { max_wr: Some(5), srq_limit: Some(2) }).unwrap();
    assert_eq!(info(&peer), SrqInfo { max_wr: 5, srq_limit: 2, ..before });
    assert_eq!(peer.node.engine.srq_room(SRQ), Some(0));
    assert_eq!(peer.node.engine.post_srq_recv(SRQ, &RecvWr { wr_id: 9, sges: &[] }), Err(PostError::QueueFull));
    peer.node.engine.modify_srq(SRQ, SrqAttr::size(100)).unwrap();
    assert_eq!(peer.node.engine.srq_room(SRQ), Some(95));
    post(&mut peer, 68..163);
    assert_eq!(info(&peer), SrqInfo { max_wr: 100, srq_limit: 2, queued: 100, ..before });
    peer.request(SendLast, 63, NoAck, b"end");
    for psn in 64..163 {
        peer.request(SendOnly, psn, NoAck, b"x");
    }
    let numbers: Vec<_> = completed(&mut peer).iter().map(|&(_, wr_id, _)| wr_id).collect();
    assert_eq!(numbers, (62..162).collect::<Vec<_>>());
    assert_eq!(peer.node.take_events(), [AsyncEvent::SrqLimitReached { srq: SRQ }], "the limit stays armed");
    assert_eq!(info(&peer), SrqInfo { max_wr: 100, queued: 1, ..before });
}

// [SRQ-RESIZE]
#[test]
fn a_queue_is_never_smaller_than_its_receives_and_its_limit() {
    let mut peer = shared(QpType::Rc);
    post(&mut peer, 0..10);
    peer.node.engine.modify_srq(SRQ, SrqAttr::limit(8)).unwrap();
    let before = peer.node.engine.query_srq(SRQ);
    let most = EngineConfig::default().max_srq_wr;
    let limit = |name, value, limit| SrqError::Limit { name, value, limit };
    for (attr, error) in [
        (SrqAttr::size(0), limit("max_wr", 0, most)),
        (SrqAttr::size(most + 1), limit("max_wr", most + 1, most)),
        (SrqAttr::size(9), SrqError::Occupied(10)),
        (SrqAttr::size(7), limit("srq_limit", 8, 7)),
        (SrqAttr { max_wr: Some(20), srq_limit: Some(21) }, limit("srq_limit", 21, 20)),
        (SrqAttr { max_wr: Some(9), srq_limit: Some(1) }, SrqError::Occupied(10)),
    ] {
        assert_eq!(peer.node.engine.modify_srq(SRQ, attr), Err(error));
        assert_eq!(peer.node.engine.query_srq(SRQ), before, "{attr:?}");
    }
    assert_eq!(peer.node.engine.modify_srq(SrqId(7), SrqAttr::size(1)), Err(SrqError::Unknown));
    assert_eq!((peer.node.engine.query_srq(SrqId(7)), peer.node.engine.srq_room(SrqId(7))), (None, None));
    // Size and limit are changed together or not at all, so one may need the other.
    peer.node.engine.modify_srq(SRQ, SrqAttr { max_wr: Some(80), srq_limit: Some(70) }).unwrap();
    assert_eq!(peer.node.take_events(), [AsyncEvent::SrqLimitReached { srq: SRQ }], "10 of 70 are left");
}

// [SRQ-LAST-WQE]
#[test]
fn the_last_wqe_event_says_that_nothing_more_is_taken() {
    // By an error of the peer's, in the middle of a message: its receive comes back, those that were not taken stay.
    let mut peer = shared(QpType::Rc);
    let (a, b) = (peer.node.qpn, sibling(&mut peer, QpType::Rc));
    for qpn in [a, b] {
        peer.node.engine.established(qpn);
    }
    post(&mut peer, 0..3);
    peer.request(SendFirst, 0, NoAck, &[1; MTU]);
    peer.request(WriteMiddle, 1, Ack, &[1; MTU]);
    let cause = QpErrorCause::OpcodeSequence;
    let events = [AsyncEvent::QpError { qpn: a, cause }, AsyncEvent::LastWqeReached { qpn: a }];
    assert_eq!(peer.node.take_events(), events);
    assert_eq!(completed(&mut peer), [(a, 0, WcStatus::RemInvReqErr)]);
    assert_eq!(peer.node.engine.srq_len(SRQ), Some(2));
    // By the consumer, once.
    peer.node.engine.modify_qp(b, QpTransition::ToError).unwrap();
    peer.node.engine.modify_qp(b, QpTransition::ToError).unwrap();
    assert_eq!(peer.node.take_events(), [AsyncEvent::LastWqeReached { qpn: b }]);
    assert_eq!((completed(&mut peer), peer.node.engine.srq_len(SRQ)), (vec![], Some(2)));
    // A queue pair with a queue of its own has no such event.
    let mut peer = ScriptedPeer::new();
    let qpn = peer.node.qpn;
    peer.node.engine.modify_qp(qpn, QpTransition::ToError).unwrap();
    assert_eq!(peer.node.take_events(), []);
}

// [UC-RSP-SRQ-KEEP]
#[test]
fn a_lost_message_keeps_its_receive_for_the_next() {
    let mut peer = shared(QpType::Uc);
    post(&mut peer, 0..2);
    peer.request(SendFirst, 0, NoAck, &[1; MTU]);
    peer.request(SendLast, 2, NoAck, b"too late");
    assert_eq!(peer.node.engine.srq_len(SRQ), Some(1), "one is in use");
    peer.request(SendOnly, 3, NoAck, b"next");
    let qpn = peer.node.qpn;
    assert_eq!(completed(&mut peer), [(qpn, 0, WcStatus::Success)]);
    assert_eq!(peer.node.engine.srq_len(SRQ), Some(1));
}

#[test]
fn limits_of_a_shared_queue() {
    let config = EngineConfig { max_srq: 1, max_srq_wr: 2, max_sge: 16, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::of(QpType::Rc, false, Agreed::default(), config);
    let pd = peer.node.pd;
    let engine = &mut peer.node.engine;
    let init = SrqInit { pd, max_wr: 2, max_sge: 1, limit: 0 };
    let refused = |name, value, limit| Err(SrqError::Limit { name, value, limit });
    assert_eq!(engine.create_srq(&SrqInit { max_wr: 3, ..init }), refused("max_wr", 3, 2));
    assert_eq!(engine.create_srq(&SrqInit { max_wr: 0, ..init }), refused("max_wr", 0, 2));
    assert_eq!(engine.create_srq(&SrqInit { max_sge: 17, ..init }), refused("max_sge", 17, 16));
    assert_eq!(engine.create_srq(&SrqInit { limit: 3, ..init }), refused("srq_limit", 3, 2));
    let srq = engine.create_srq(&init).unwrap();
    assert_eq!(engine.create_srq(&init), Err(SrqError::TooMany(1)));
    let sge = peer.node.sge(0, 1);
    let engine = &mut peer.node.engine;
    assert_eq!(engine.post_srq_recv(srq, &RecvWr { wr_id: 0, sges: &[sge; 2] }), Err(PostError::TooManySges));
    for wr_id in 0..2 {
        engine.post_srq_recv(srq, &RecvWr { wr_id, sges: &[sge] }).unwrap();
    }
    assert_eq!(engine.post_srq_recv(srq, &RecvWr { wr_id: 2, sges: &[] }), Err(PostError::QueueFull));
    // In use, it and its protection domain stay.
    let qpn = peer.node.create_typed_qp(QpType::Rc, Some(srq), 1, Agreed::default().access);
    let engine = &mut peer.node.engine;
    let own = RecvWr { wr_id: 0, sges: &[] };
    assert_eq!(engine.post_recv(qpn, &own), Err(PostError::SharedReceiveQueue));
    assert_eq!(engine.destroy_srq(srq), Err(SrqError::InUse(1)));
    engine.destroy_qp(peer.now, qpn).unwrap();
    assert_eq!(engine.destroy_srq(srq), Ok(()));
    assert_eq!(engine.destroy_srq(srq), Err(SrqError::Unknown));
    assert_eq!(engine.post_srq_recv(srq, &own), Err(PostError::UnknownSrq));
    assert_eq!(engine.srq_len(srq), None);
    let again = engine.create_srq(&init).unwrap();
    assert_ne!(again, srq, "another one in the same slot");
}

/// The syndrome of the only packet that is sent.
fn syndrome(peer: &mut ScriptedPeer) -> Syndrome {
    assert_eq!(peer.transmit().len(), 1);
    let Ok(Frame::Roce(packet)) = classify(&peer.frames[0]) else { panic!() };
    packet.aeth().unwrap().syndrome()
}

// [RC-RSP-CREDITS]
#[test]
fn acks_tell_how_many_receives_are_posted() {
    let mut peer = ScriptedPeer::of(QpType::Rc, false, Agreed::default(), EngineConfig::default());
    for wr_id in 0..8 {
        let sge = peer.node.sge(0x8000, 4096);
        peer.node.post_recv(wr_id, &[sge]);
    }
    // Credit codes: up to 4 themselves, then 5 is 6 and 6 is 8.
    for (psn, credits) in [(0, 5), (1, 5), (2, 4), (3, 4), (4, 3)] {
        peer.request(SendOnly, psn, Ack, b"x");
        assert_eq!(syndrome(&mut peer), Syndrome::Ack { credits }, "after message {psn}");
    }
    // The one that a message is being written to counts, as the message is not in the MSN yet.
    peer.request(SendFirst, 5, Ack, &[1; MTU]);
    assert_eq!(syndrome(&mut peer), Syndrome::Ack { credits: 3 });
    peer.request(SendLast, 6, Ack, b"x");
    assert_eq!(syndrome(&mut peer), Syndrome::Ack { credits: 2 });
    // Answers to READs and atomics say it, too, and it is what is there when they are sent.
    peer.rdma(ReadRequest, 7, Ack, 0, 1, b"");
    assert_eq!(syndrome(&mut peer), Syndrome::Ack { credits: 2 });
    peer.atomic(FetchAdd, 8, 0, 1, 0);
    peer.node.post_recv(8, &[]);
    assert_eq!(syndrome(&mut peer), Syndrome::Ack { credits: 3 });
    for psn in 9..12 {
        peer.request(SendOnly, psn, Ack, b"");
    }
    assert_eq!(syndrome(&mut peer), Syndrome::Ack { credits: 0 });
}

// [RC-RSP-CREDITS]
#[test]
fn acks_carry_no_limit_with_a_shared_queue_or_credits_off() {
    let mut peer = shared(QpType::Rc);
    post(&mut peer, 0..2);
    peer.request(SendOnly, 0, Ack, b"x");
    assert_eq!(syndrome(&mut peer), Syndrome::Ack { credits: 31 });
    let config = EngineConfig { credits: false, ..EngineConfig::default() };
    let mut peer = ScriptedPeer::of(QpType::Rc, false, Agreed::default(), config);
    peer.node.post_recv(0, &[]);
    peer.request(SendOnly, 0, Ack, b"");
    assert_eq!(syndrome(&mut peer), Syndrome::Ack { credits: 31 });
}

// [CQ-NOTIFY-SOLICITED]
#[test]
fn solicited_completions_notify() {
    let mut peer = shared(QpType::Rc);
    let cq = peer.node.cq;
    post(&mut peer, 0..8);
    let send = |peer: &mut ScriptedPeer, psn: i32, solicited: bool| {
        let mut frame = peer.frame(SendOnly, peer.agreed.rq_psn.add(psn as u32), NoAck, b"x", |_| {});
        frame[43] |= if solicited { 0x80 } else { 0 };
        let end = frame.len() - 4;
        let icrc = rxe_proto::wire::icrc(&frame[14..end], true);
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
        peer.inject(&frame);
    };
    send(&mut peer, 0, true);
    assert_eq!(peer.node.engine.poll_cq_event(), None, "nobody asked");
    peer.node.engine.request_notify(cq, true).unwrap();
    send(&mut peer, 1, false);
    assert_eq!(peer.node.engine.poll_cq_event(), None, "not solicited");
    send(&mut peer, 2, true);
    send(&mut peer, 3, true);
    assert_eq!((peer.node.engine.poll_cq_event(), peer.node.engine.poll_cq_event()), (Some(cq), None));
    peer.node.engine.request_notify(cq, false).unwrap();
    send(&mut peer, 4, false);
    assert_eq!(peer.node.engine.poll_cq_event(), Some(cq));
    let solicited: Vec<_> = peer.node.take_completions().iter().map(|wc| wc.solicited).collect();
    assert_eq!(solicited, [true, false, true, true, false]);
    // A failure counts as solicited.
    peer.node.engine.request_notify(cq, true).unwrap();
    peer.request(SendFirst, 5, NoAck, &[1; MTU]);
    peer.request(SendFirst, 6, NoAck, &[1; MTU]);
    assert_eq!(peer.node.engine.poll_cq_event(), Some(cq));
    assert_eq!(peer.node.state(), QpState::Error);
    assert_eq!(peer.node.engine.request_notify(rxe_proto::transport::CqId(99), true), Err(CqError::Unknown));
}
