use rxe_proto::Duration;
use rxe_proto::cm::{
    AcceptParams, CmError, CmEvent, ConnId, ConnectFailure, ConnectParams, ConnectReply, DisconnectReason,
    ResolveParams,
};
use rxe_proto::verbs::{AnyQueuePair, QpErrorCause, QpState, Qpn, Uc};
use rxe_proto::wire::cm::{CmTransport, RejReason};
use rxe_proto::wire::{MacAddr, PathMtu, Psn};

use super::env::{Answer, Call, PORT, SERVICE, WorkerEnv, make_qp};
use crate::control::ip_host::HostEvent;
use crate::events::{QpEvent, QpEventKind};
use crate::inspect::Question;
use crate::messages::{Connect, EndReason, ToWorker};
use crate::test_env::{OUR_IP, PEER_IP, peer_path, ready};

/// The peer's queue pair.
const PEER_QP: u32 = 0x11;
/// The PSN of our first request, chosen by the peer.
const OUR_PSN: Psn = Psn::new(5);

/// The peer requests a connection.
fn peer_connects(env: &mut WorkerEnv) -> ConnId {
    let params = ConnectParams::new(peer_path(), (40_000, PORT), Qpn::new(PEER_QP), OUR_PSN, PathMtu::Mtu1024);
    let now = env.now;
    let conn = env.peer.connect(now, params).unwrap();
    env.run();
    conn
}

/// A connection that the peer requested and our service accepted.
fn accepted(env: &mut WorkerEnv) -> (ConnId, Box<ConnectReply>) {
    let conn = peer_connects(env);
    let CmEvent::ConnectReply(reply) = env.peer_event() else { panic!() };
    (conn, reply)
}

/// An established connection: the peer's id, our queue pair, the PSN of the peer's first request.
fn established(env: &mut WorkerEnv) -> (ConnId, Qpn, Psn) {
    let (conn, reply) = accepted(env);
    env.peer.confirm(conn, &[]).unwrap();
    env.run();
    assert!(matches!(env.peer_event(), CmEvent::Established { .. }));
    let qp = Qpn::new(reply.remote_qpn);
    assert!(matches!(env.calls()[..], [Call::Connected(_, connected)] if connected == qp));
    (conn, qp, reply.starting_psn)
}

/// Our service has requested a connection, and the peer has the REQ.
fn requested(env: &mut WorkerEnv, qp: Qpn) -> Box<rxe_proto::cm::ConnectRequest> {
    let CmEvent::ConnectRequest(request) = env.peer_event() else { panic!() };
    assert_eq!(request.remote_qpn, qp.get());
    request
}

fn state(env: &WorkerEnv, qp: Qpn) -> Option<QpState> {
    env.engine.query_qp(qp).map(|info| info.state)
}

#[test]
fn the_queue_pair_is_ready_before_the_rep_is_sent() {
    let mut env = WorkerEnv::new();
    let (_, reply) = accepted(&mut env);
    let qp = Qpn::new(reply.remote_qpn);
    assert!(reply.private_data.starts_with(b"welcome"));
    assert_eq!((state(&env, qp), env.calls().len()), (Some(QpState::Rts), 0));
    let info = env.engine.query_qp(qp).unwrap();
    assert_eq!((info.dest_qpn, info.expected_psn), (Some(Qpn::new(PEER_QP)), reply.starting_psn));
}

#[test]
fn the_first_packet_replaces_the_rtu_and_is_delivered_after_connected() {
    let mut env = WorkerEnv::new();
    let (conn, reply) = accepted(&mut env);
    let qp = Qpn::new(reply.remote_qpn);
    env.receive_send(qp, reply.starting_psn);
    assert!(matches!(env.calls()[..], [Call::Connected(_, connected), Call::Completion(1)] if connected == qp));
    env.peer.confirm(conn, &[]).unwrap();
    env.run();
    assert_eq!(env.calls(), [], "not again for the RTU");
}

#[test]
fn a_refused_request_creates_nothing_and_its_text_is_cut_to_the_message() {
    let mut env = WorkerEnv::new();
    env.answers.send(Answer::Refuse(vec![b'x'; 500])).unwrap();
    peer_connects(&mut env);
    let CmEvent::ConnectFailed { rej: Some(rej), .. } = env.peer_event() else { panic!() };
    assert_eq!(
        (rej.reason, rej.private_data.iter().filter(|byte| **byte == b'x').count()),
        (RejReason::ConsumerDefined, 148)
    );
    assert_eq!((env.engine.qp_count(), env.host.stats().connections_refused.get()), (0, 1));
}

#[test]
fn a_queue_pair_of_another_transport_than_requested_is_refused() {
    let mut env = WorkerEnv::new();
    env.answers.send(Answer::Unreliable).unwrap();
    peer_connects(&mut env);
    let rejected = ConnectFailure::PeerRejected(RejReason::InvalidTransportType);
    assert!(matches!(env.peer_event(), CmEvent::ConnectFailed { reason, .. } if reason == rejected));
    assert!(matches!(env.calls()[..], [Call::Disconnected(_, EndReason::Unacceptable)]));
    assert_eq!(env.engine.qp_count(), 0);
}

#[test]
fn receives_are_flushed_before_disconnected_and_the_queue_pair_is_destroyed() {
    let mut env = WorkerEnv::new();
    let (conn, qp, _) = established(&mut env);
    let now = env.now;
    env.peer.disconnect(now, conn).unwrap();
    env.run();
    let ended = EndReason::Disconnected(DisconnectReason::Peer);
    assert_eq!(env.calls(), [Call::Completion(1), Call::Disconnected(qp, ended)]);
    assert_eq!((env.engine.qp_count(), env.host.connections.len(), env.host.by_qp.len()), (0, 0, 0));
    assert_eq!(env.host.stats().connections_ended.get(), 1);
}

#[test]
fn a_queue_pair_in_error_disconnects_the_peer() {
    let mut env = WorkerEnv::new();
    let (_, qp, _) = established(&mut env);
    env.engine.abort_qp(qp).unwrap();
    env.run();
    let ended = EndReason::QueuePair(QpErrorCause::Administrative);
    assert_eq!(env.calls(), [Call::Completion(1), Call::Disconnected(qp, ended)]);
    assert!(matches!(env.peer_event(), CmEvent::Disconnected { reason: DisconnectReason::Peer, .. }));
}

#[test]
fn a_service_connects_to_a_peer() {
    let mut env = WorkerEnv::new();
    let qp = env.connect(4000);
    let request = requested(&mut env, qp);
    assert_eq!(state(&env, qp), Some(QpState::Init));
    let params = AcceptParams::for_request(&request, Qpn::new(0x31), Psn::new(9), 0, 0);
    let now = env.now;
    env.peer.accept(now, request.conn, params).unwrap();
    env.run();
    assert_eq!(state(&env, qp), Some(QpState::Rts));
    assert!(matches!(env.peer_event(), CmEvent::Established { .. }), "the RTU was sent");
    let calls = env.calls();
    assert!(matches!(calls[..], [Call::Reply(a, _), Call::Connected(b, _)] if a == b), "{calls:?}");
}

#[test]
fn a_rep_that_the_queue_pair_does_not_support_is_rejected() {
    let mut env = WorkerEnv::new();
    let qp = env.connect(4000);
    let request = requested(&mut env, qp);
    let params = AcceptParams::for_request(&request, Qpn::new(0x31), Psn::new(9), 0, 0);
    let now = env.now;
    env.peer.accept(now, request.conn, params).unwrap();
    env.exchange();
    let Ok(ToWorker::RepReceived { mut reply, rts }) = env.host.mailbox.inbox.try_recv() else { panic!() };
    // READs of the peer: more than an engine supports.
    reply.initiator_depth = u8::MAX;
    env.inject(ToWorker::RepReceived { reply, rts });
    let rejected = ConnectFailure::PeerRejected(RejReason::ConsumerDefined);
    assert!(matches!(env.peer_event(), CmEvent::ConnectFailed { reason, .. } if reason == rejected));
    assert_eq!(env.calls(), [Call::Completion(1), Call::Disconnected(qp, EndReason::Unacceptable)]);
    assert_eq!(env.engine.qp_count(), 0);
}

#[test]
fn a_req_has_the_transport_of_its_queue_pair() {
    let mut env = WorkerEnv::new();
    let qp = env.host.call(env.env.now, &mut env.engine, SERVICE, |_, cx| {
        let qp = make_qp::<Uc>(cx);
        cx.connect(Connect::new((PEER_IP, 4000).into(), qp));
        qp.qpn()
    });
    env.run();
    assert_eq!(requested(&mut env, qp).transport, CmTransport::Uc);
}

#[test]
fn a_queue_pair_has_the_rnr_retries_of_its_connect_call() {
    let mut env = WorkerEnv::new();
    let qp = env.connect_with(|qp| Connect { rnr_retry: 3, ..Connect::new((PEER_IP, 4000).into(), qp) });
    let request = requested(&mut env, qp);
    let params = AcceptParams::for_request(&request, Qpn::new(0x31), Psn::new(9), 0, 0);
    let now = env.now;
    env.peer.accept(now, request.conn, params).unwrap();
    env.run();
    assert_eq!(env.engine.query_qp(qp).unwrap().sends.rnr_retry, 3);
}

#[test]
fn a_rejected_connection_ends_after_the_rej() {
    let mut env = WorkerEnv::new();
    let qp = env.connect(4000);
    let request = requested(&mut env, qp);
    env.peer.reject(request.conn, RejReason::ConsumerDefined, &[], b"full").unwrap();
    env.run();
    let ended = EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::ConsumerDefined));
    let calls = env.calls();
    assert!(matches!(calls[0], Call::Rejected(_, rejected) if rejected == qp), "{calls:?}");
    assert_eq!(calls.last(), Some(&Call::Disconnected(qp, ended)));
    assert_eq!(env.engine.qp_count(), 0);
}

#[test]
fn a_connection_without_a_req_ends_and_its_queue_pair_is_destroyed() {
    let mut env = WorkerEnv::new();
    let too_long = vec![0; 57];
    let qp = env.connect_with(|qp| Connect { private_data: too_long, ..Connect::new((PEER_IP, 4000).into(), qp) });
    let ended = EndReason::ReqNotSent(CmError::TooLong);
    assert_eq!(env.calls(), [Call::Completion(1), Call::Disconnected(qp, ended)]);
    assert_eq!(env.engine.qp_count(), 0);
}

#[test]
fn a_connection_counts_as_in_use_when_a_packet_in_sequence_arrives() {
    let mut env = WorkerEnv::new();
    let (_, qp, psn) = established(&mut env);
    // Another request with the same queue pair number.
    peer_connects(&mut env);
    env.receive_send(qp, psn);
    env.now += Duration::from_millis(1);
    env.run();
    let refused = ConnectFailure::PeerRejected(RejReason::StaleConnection);
    assert!(matches!(env.peer_event(), CmEvent::ConnectFailed { reason, .. } if reason == refused));
    assert_eq!(state(&env, qp), Some(QpState::Rts));
}

#[test]
fn a_silent_connection_gives_way_to_a_new_request() {
    let mut env = WorkerEnv::new();
    let (_, old, _) = established(&mut env);
    peer_connects(&mut env);
    env.now += Duration::from_millis(1999);
    env.run();
    assert_eq!(env.calls(), []);
    env.now += Duration::from_millis(1);
    env.run();
    assert_eq!(state(&env, old), None);
    assert_eq!(env.engine.qp_count(), 1, "the new one");
    let ended = EndReason::Disconnected(DisconnectReason::Stale);
    assert_eq!(env.calls().last(), Some(&Call::Disconnected(old, ended)));
}

#[test]
fn a_new_mac_of_the_peer_reaches_the_queue_pair() {
    let mut env = WorkerEnv::new();
    let (_, qp, _) = established(&mut env);
    let (ip, mac) = (PEER_IP.into(), MacAddr([2, 0, 0, 0, 0, 9]));
    env.host().resolutions.insert(ip, ready(mac, OUR_IP));
    env.env.host().events.push_back(HostEvent::NeighbourChanged { ip, mac });
    env.run();
    assert_eq!(env.engine.query_qp(qp).unwrap().path.unwrap().dst_mac, mac);
}

#[test]
fn a_sidr_request_is_answered_with_what_fits() {
    let mut env = WorkerEnv::new();
    let now = env.now;
    env.peer.resolve_datagram(now, ResolveParams::new(peer_path(), (40_000, PORT))).unwrap();
    env.run();
    let CmEvent::DatagramResolved(reply) = env.peer_event() else { panic!() };
    assert_eq!((reply.qpn, reply.qkey, reply.private_data), (Qpn::new(0x77), 5, [9; 136]));
}

#[test]
fn messages_about_a_connection_that_is_gone_change_nothing() {
    let mut env = WorkerEnv::new();
    let (_, qp, _) = established(&mut env);
    let conn = *env.host.connections.keys().next().unwrap();
    env.engine.abort_qp(qp).unwrap();
    env.run();
    env.calls();
    env.inject(ToWorker::Connected { conn });
    env.inject(ToWorker::PeerMacChanged { conn, mac: MacAddr::default() });
    env.inject(ToWorker::Disconnected { conn, reason: EndReason::Stopping });
    assert_eq!(env.calls(), []);
}

#[test]
fn management_sees_queue_pairs_with_service_and_connection() {
    let mut env = WorkerEnv::new();
    let (_, qp, _) = established(&mut env);
    env.now += Duration::from_secs(3);
    let entry = env.ask(|reply| Question::Qp { qpn: qp, reply }).unwrap();
    let connection = entry.connection.unwrap();
    assert_eq!((entry.service, connection.established), (Some("scripted"), true));
    assert_eq!((connection.age, connection.peer), (Duration::from_secs(3), Some((PEER_IP, 40_000).into())));
    let counts = env.ask(|reply| Question::Counts { reply });
    assert_eq!((counts.qp, counts.connections, counts.services, counts.pd), (1, 1, 1, 1));
    let mut listed = Vec::new();
    let mut from = 0;
    loop {
        let part = env.ask(|reply| Question::Qps { from, reply });
        listed.extend(part.items.into_iter().map(|entry| entry.info.qpn));
        from += crate::inspect::PART;
        if !part.more {
            break;
        }
    }
    assert_eq!(listed, [qp]);
    assert!(env.ask(|reply| Question::Qp { qpn: Qpn::new(3), reply }).is_none());
}

#[test]
fn management_sees_the_name_that_a_queue_pair_was_given() {
    let mut env = WorkerEnv::new();
    let (_, qp, _) = established(&mut env);
    env.host.call(env.env.now, &mut env.engine, SERVICE, |_, cx| cx.set_name(AnyQueuePair::from(qp), "part"));
    assert_eq!(env.ask(|reply| Question::Qp { qpn: qp, reply }).unwrap().service, Some("part"));
}

#[test]
fn management_disconnects_a_connection() {
    let mut env = WorkerEnv::new();
    let (_, qp, _) = established(&mut env);
    assert!(env.ask(|reply| Question::Disconnect { qpn: qp, reply }));
    assert!(matches!(env.peer_event(), CmEvent::Disconnected { reason: DisconnectReason::Peer, .. }));
    env.run();
    let ended = EndReason::Disconnected(DisconnectReason::Local);
    assert_eq!(env.calls().last(), Some(&Call::Disconnected(qp, ended)));
    assert!(!env.ask(|reply| Question::Disconnect { qpn: qp, reply }), "it is gone");
}

#[test]
fn a_connection_is_reported_from_its_start_to_its_end() {
    let mut env = WorkerEnv::new();
    let (_, qpn, _) = established(&mut env);
    let expected = |env: &WorkerEnv, kind| QpEvent {
        at: env.now,
        qpn,
        service: Some("scripted"),
        peer: Some(PEER_IP.into()),
        peer_port: Some(40_000),
        peer_qpn: Some(Qpn::new(PEER_QP)),
        kind,
    };
    assert_eq!(env.events.receive(), Some(expected(&env, QpEventKind::Connected)));
    env.now += Duration::from_millis(5);
    env.engine.abort_qp(qpn).unwrap();
    env.run();
    let cause = QpErrorCause::Administrative;
    assert_eq!(env.events.receive(), Some(expected(&env, QpEventKind::Error(cause))));
    let kind = QpEventKind::Disconnected { reason: EndReason::QueuePair(cause), after: Duration::from_millis(5) };
    assert_eq!(env.events.receive(), Some(expected(&env, kind)));
    assert_eq!(env.events.receive(), None);
}

#[test]
fn a_connection_that_is_not_established_is_reported_with_the_reason() {
    let mut env = WorkerEnv::new();
    let qp = env.connect(4000);
    let request = requested(&mut env, qp);
    env.peer.reject(request.conn, RejReason::ConsumerDefined, &[], b"full").unwrap();
    env.run();
    let event = env.events.receive().unwrap();
    let reason = EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::ConsumerDefined));
    assert_eq!((event.qpn, event.peer), (qp, None));
    assert!(matches!(event.kind, QpEventKind::Disconnected { reason: ended, .. } if ended == reason), "{event:?}");
}
