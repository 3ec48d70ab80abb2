//! Asynchronous events, in the terms of libibverbs: which object they are of, and how often they come.

use crate::harness::ops::*;
use crate::harness::receives::post_receives;
use crate::harness::scripted_peer::{AckReq, ScriptedPeer};
use crate::harness::{Agreed, variants};
use rxe_proto::transport::{
    AsyncEvent, EngineConfig, QpErrorCause, QpEventType, QpState, QpTransition, QpType, WcStatus,
};
use rxe_proto::wire::{NakCode, Opcode};

use AckReq::{Ack, NoAck};

/// The event of libibverbs.
fn name(event: &AsyncEvent) -> Option<&'static str> {
    Some(match event {
        AsyncEvent::CommunicationEstablished { .. } => "IBV_EVENT_COMM_EST",
        AsyncEvent::SendQueueDrained { .. } => "IBV_EVENT_SQ_DRAINED",
        AsyncEvent::SrqLimitReached { .. } => "IBV_EVENT_SRQ_LIMIT_REACHED",
        AsyncEvent::LastWqeReached { .. } => "IBV_EVENT_QP_LAST_WQE_REACHED",
        AsyncEvent::CqError { .. } => "IBV_EVENT_CQ_ERR",
        AsyncEvent::QpError { cause, .. } => match cause.event_type()? {
            QpEventType::Fatal => "IBV_EVENT_QP_FATAL",
            QpEventType::RequestError => "IBV_EVENT_QP_REQ_ERR",
            QpEventType::AccessError => "IBV_EVENT_QP_ACCESS_ERR",
        },
    })
}

fn names(peer: &mut ScriptedPeer) -> Vec<&'static str> {
    peer.node.take_events().iter().filter_map(name).collect()
}

fn step(peer: &mut ScriptedPeer, transition: QpTransition) {
    peer.node.engine.modify_qp(peer.node.qpn, transition).unwrap();
}

// [CQ-OVERFLOW] [RC-RSP-CQ-OVERFLOW]
#[test]
fn a_full_completion_queue_raises_one_event_for_itself_and_one_for_each_queue_pair() {
    let mut peer = ScriptedPeer::new();
    let (cq, qpn) = (peer.node.cq, peer.node.qpn);
    peer.node.engine.established(qpn);
    post_receives(&mut peer, 8);
    peer.node.engine.resize_cq(cq, 1).unwrap();
    peer.request(Opcode::SendOnly, 0, NoAck, b"fits");
    assert_eq!(names(&mut peer), Vec::<&str>::new());
    // take_events has taken the completion as well.
    for psn in 1..3 {
        peer.request(Opcode::SendOnly, psn, NoAck, b"x");
    }
    let cause = QpErrorCause::CqOverflow;
    let events = [AsyncEvent::CqError { cq }, AsyncEvent::QpError { qpn, cause }];
    let mut raised = Vec::new();
    while let Some(event) = peer.node.engine.poll_event() {
        raised.push(event);
    }
    // The receives that are flushed find it full, too.
    assert_eq!((raised, peer.node.stat("cq_overflows")), (events.to_vec(), 6));
    // Work that is posted later is lost as well, until there is room; no further event.
    post(&mut peer, 1, WRITE, 8);
    assert_eq!(peer.node.engine.poll_event(), None);
    assert_eq!(peer.node.engine.cq_len(cq), Some(1));
    // A deeper queue has an overflow of its own.
    peer.node.engine.resize_cq(cq, 2).unwrap();
    for wr_id in [2, 3, 4] {
        post(&mut peer, wr_id, WRITE, 8);
    }
    assert_eq!(peer.node.engine.poll_event(), Some(AsyncEvent::CqError { cq }));
    assert_eq!(peer.node.engine.poll_event(), None);
    let statuses: Vec<_> = completed(&mut peer).iter().map(|&(_, status)| status).collect();
    assert_eq!(statuses, [WcStatus::Success, WcStatus::Success, WcStatus::WrFlushErr]);
}

// [QP-EVENT-TYPE]
#[test]
fn errors_as_responder_are_events_of_the_queue_pair() {
    type Script = fn(&mut ScriptedPeer);
    let scripts: [(Script, &str); 7] = [
        (|peer| peer.request(Opcode::SendMiddle, 0, Ack, &[0; 1024]), "IBV_EVENT_QP_REQ_ERR"),
        (|peer| peer.rdma(Opcode::AtomicWrite, 0, Ack, 0, 8, &[1; 8]), "IBV_EVENT_QP_REQ_ERR"),
        (|peer| peer.rdma(Opcode::WriteOnly, 0, Ack, 0, 8, b"short"), "IBV_EVENT_QP_REQ_ERR"),
        (|peer| peer.atomic(Opcode::FetchAdd, 0, 1, 1, 0), "IBV_EVENT_QP_REQ_ERR"),
        (|peer| (0..5).for_each(|psn| peer.rdma(Opcode::ReadRequest, psn, Ack, 0, 8, b"")), "IBV_EVENT_QP_REQ_ERR"),
        (|peer| peer.rdma_raw(Opcode::WriteOnly, 0, Ack, 0, 4711, 1, b"w"), "IBV_EVENT_QP_ACCESS_ERR"),
        (|peer| peer.rdma_raw(Opcode::ReadRequest, 0, Ack, 0, 4711, 1, b""), "IBV_EVENT_QP_ACCESS_ERR"),
    ];
    for (script, event) in scripts {
        let mut peer = ScriptedPeer::new();
        let qpn = peer.node.qpn;
        peer.node.engine.established(qpn);
        script(&mut peer);
        assert_eq!((peer.node.state(), names(&mut peer)), (QpState::Error, vec![event]));
        assert_eq!(completed(&mut peer), [], "no work request shows it");
    }
}

// [QP-EVENT-TYPE]
#[test]
fn errors_that_a_completion_shows_are_no_events_of_libibverbs() {
    type Script = fn(&mut ScriptedPeer);
    let scripts: [(Script, WcStatus); 4] = [
        (|peer| peer.nak(0, NakCode::RemoteAccess), WcStatus::RemAccessErr),
        (|peer| peer.nak(0, NakCode::InvalidRequest), WcStatus::RemInvReqErr),
        (
            |peer| {
                for _ in 0..64 {
                    peer.advance(TIMEOUT);
                    peer.transmit();
                }
            },
            WcStatus::RetryExcErr,
        ),
        (
            |peer| {
                let sge = peer.node.sge(0x8000, 1);
                peer.node.post_recv(1, &[sge]);
                peer.request(Opcode::SendOnly, 0, Ack, b"too long");
            },
            WcStatus::LocLenErr,
        ),
    ];
    for (script, status) in scripts {
        let mut peer = ScriptedPeer::new();
        let qpn = peer.node.qpn;
        peer.node.engine.established(qpn);
        post(&mut peer, 1, WRITE, 8);
        peer.transmit();
        script(&mut peer);
        assert!(completed(&mut peer).contains(&(1, status)), "{status:?}");
        assert_eq!((peer.node.state(), names(&mut peer)), (QpState::Error, vec![]));
    }
}

// [QP-EVENT-TYPE]
#[test]
fn errors_without_a_request_or_a_completion_are_fatal() {
    let mut peer = ScriptedPeer::new();
    let qpn = peer.node.qpn;
    peer.node.engine.abort_qp(qpn).unwrap();
    assert_eq!(names(&mut peer), ["IBV_EVENT_QP_FATAL"]);
    let fatal = QpErrorCause::ALL.iter().filter(|cause| cause.event_type() == Some(QpEventType::Fatal));
    let fatal: Vec<_> = fatal.map(|cause| cause.name()).collect();
    assert_eq!(fatal, ["cq_overflow", "peer_silent", "administrative"]);
    // A queue pair that its owner takes to error has no event.
    let mut peer = ScriptedPeer::new();
    step(&mut peer, QpTransition::ToError);
    assert_eq!(peer.node.take_events(), []);
}

#[test]
fn events_of_a_connection_with_a_shared_receive_queue() {
    let mut peer = ScriptedPeer::of(QpType::Rc, true, Agreed::default(), EngineConfig::default());
    let srq = rxe_proto::transport::SrqId(0);
    let sges = [peer.node.sge(0x8000, 4096)];
    for wr_id in 0..2 {
        peer.node.engine.post_srq_recv(srq, &rxe_proto::transport::RecvWr { wr_id, sges: &sges }).unwrap();
    }
    peer.node.engine.modify_srq(srq, rxe_proto::transport::SrqAttr::limit(2)).unwrap();
    peer.request(Opcode::SendOnly, 0, Ack, b"x");
    step(&mut peer, QpTransition::ToSqd);
    peer.rdma_raw(Opcode::WriteOnly, 1, Ack, 0, 4711, 1, b"w");
    let expected = [
        "IBV_EVENT_SRQ_LIMIT_REACHED",
        "IBV_EVENT_COMM_EST",
        "IBV_EVENT_SQ_DRAINED",
        "IBV_EVENT_QP_ACCESS_ERR",
        "IBV_EVENT_QP_LAST_WQE_REACHED",
    ];
    assert_eq!(names(&mut peer), expected);
}

// [REQ-SQD]
#[test]
fn draining_ends_with_an_event_on_unreliable_services_too() {
    let mut peer = ScriptedPeer::of(QpType::Uc, false, Agreed::default(), EngineConfig::default());
    post(&mut peer, 1, SEND, 3000);
    assert_eq!(peer.transmit_at_most(Some(1)).len(), 1);
    step(&mut peer, QpTransition::ToSqd);
    post(&mut peer, 2, SEND, 1);
    assert_eq!(names(&mut peer), Vec::<&str>::new(), "a message was begun");
    assert_eq!(peer.transmit().len(), 2);
    assert_eq!((names(&mut peer), completed(&mut peer)), (vec!["IBV_EVENT_SQ_DRAINED"], vec![(1, WcStatus::Success)]));
    step(&mut peer, QpTransition::Resume);
    assert_eq!(peer.transmit().len(), 1);
    let (mut peer, _) = variants::ud(Agreed::default(), 0);
    step(&mut peer, QpTransition::ToSqd);
    assert_eq!(names(&mut peer), ["IBV_EVENT_SQ_DRAINED"]);
}
