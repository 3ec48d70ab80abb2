use std::net::{IpAddr, SocketAddr};

use rxe_proto::Duration;
use rxe_proto::cm::{
    AcceptParams, CmError, CmEvent, ConnId, ConnectFailure, ConnectParams, ConnectRequest, DisconnectReason,
    ResolveFailure, ResolveParams, SidrReply,
};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{RejReason, SidrStatus};
use rxe_proto::wire::{MacAddr, PathMtu, PortId, Psn};

use crate::control::ip_host::{HostEvent, Resolution};
use crate::messages::{Connect, EndReason, ReplyTo, ResolveError, ToControl, ToWorker};
use crate::service::Listen;
use crate::test_env::{OUR_IP, OUR_MAC, PEER_IP, PEER_MAC, ScriptedHost, TestEnv, peer_path, ready};

const PORT: u16 = 7174;
const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn env() -> TestEnv {
    TestEnv::new(1, vec![(0, Listen::datagrams(PORT)), (3, Listen::cm(PORT))])
}

/// The peer requests a connection from its queue pair `qpn`.
fn peer_connects(env: &mut TestEnv, port: u16, qpn: u32) -> ConnId {
    let params = ConnectParams::new(peer_path(), (40_000, port), Qpn::new(qpn), Psn::new(5), PathMtu::Mtu1024);
    let conn = env.peer.connect(env.now, params).unwrap();
    env.exchange();
    conn
}

/// Our service accepts with queue pair `qpn`.
fn accept(env: &mut TestEnv, request: &ConnectRequest, qpn: u32) {
    let params = AcceptParams::for_request(request, Qpn::new(qpn), Psn::new(6), 1, 1);
    env.send(ToControl::SendRep { conn: request.conn, params });
}

#[track_caller]
fn offered(message: ToWorker) -> Box<ConnectRequest> {
    match message {
        ToWorker::ConnectRequest { service: 3, request, .. } => request,
        other => panic!("{other:?}"),
    }
}

/// Brings a connection up that the peer requests; returns our id and the peer's.
fn established(env: &mut TestEnv, peer_qpn: u32, qpn: u32) -> (ConnId, ConnId) {
    let peer_conn = peer_connects(env, PORT, peer_qpn);
    let request = offered(env.message());
    accept(env, &request, qpn);
    assert!(matches!(env.peer_event(), CmEvent::ConnectReply(_)));
    env.peer.confirm(peer_conn, &[]).unwrap();
    env.exchange();
    assert!(matches!(env.peer_event(), CmEvent::Established { .. }));
    assert!(matches!(env.message(), ToWorker::Connected { conn } if conn == request.conn));
    (request.conn, peer_conn)
}

fn reply_to(token: u64) -> ReplyTo {
    ReplyTo { worker: 0, service: 2, token }
}

fn connect(env: &mut TestEnv, remote: [u8; 4]) {
    let connect = Box::new(Connect::new(SocketAddr::from((remote, 4000)), Qpn::new(0x21)));
    env.send(ToControl::Connect { reply_to: reply_to(0), connect, rq_psn: Psn::new(8) });
}

#[test]
fn a_request_becomes_a_connection_and_ends() {
    let mut env = env();
    let peer_conn = peer_connects(&mut env, PORT, 0x11);
    let request = match env.message() {
        ToWorker::ConnectRequest { service: 3, request, path } => {
            assert_eq!((path.dst_mac, path.src_mac), (PEER_MAC, OUR_MAC));
            assert_eq!((path.src.ip(), path.dst.ip()), (IpAddr::from(OUR_IP), IpAddr::from(PEER_IP)));
            request
        }
        other => panic!("{other:?}"),
    };
    accept(&mut env, &request, 0x22);
    let CmEvent::ConnectReply(reply) = env.peer_event() else { panic!() };
    assert_eq!(reply.remote_qpn, 0x22);
    env.peer.confirm(peer_conn, &[]).unwrap();
    env.exchange();
    assert!(matches!(env.message(), ToWorker::Connected { conn } if conn == request.conn));
    env.peer.disconnect(env.now, peer_conn).unwrap();
    env.exchange();
    let ended = EndReason::Disconnected(DisconnectReason::Peer);
    assert!(
        matches!(env.message(), ToWorker::Disconnected { conn, reason } if (conn, reason) == (request.conn, ended))
    );
    assert!(env.control.connections.is_empty());
}

#[test]
fn a_request_that_no_service_claims_is_rejected() {
    let claims_none = Listen::cm_if(PORT, |_| false);
    let mut env = TestEnv::new(1, vec![(0, claims_none), (1, Listen::datagrams(PORT))]);
    peer_connects(&mut env, PORT, 0x11);
    let rejected = ConnectFailure::PeerRejected(RejReason::InvalidServiceId);
    assert!(matches!(env.peer_event(), CmEvent::ConnectFailed { reason, .. } if reason == rejected));
    assert_eq!((env.mail(0).len(), env.control.stats.connect_unclaimed.get()), (0, 1));
}

#[test]
fn the_first_service_that_claims_a_request_gets_it() {
    let listens = vec![(5, Listen::cm_if(PORT, |_| false)), (3, Listen::cm(PORT)), (4, Listen::cm(PORT))];
    let mut env = TestEnv::new(1, listens);
    peer_connects(&mut env, PORT, 0x11);
    offered(env.message());
}

#[test]
fn requests_go_to_the_workers_in_turn() {
    let mut env = TestEnv::new(2, vec![(3, Listen::cm(PORT))]);
    for qpn in 0x11..0x15 {
        peer_connects(&mut env, PORT, qpn);
    }
    assert_eq!((env.mail(0).len(), env.mail(1).len()), (2, 2));
}

#[test]
fn a_request_waits_for_the_mac_of_its_source() {
    let mut env = env();
    env.host().resolutions.insert(PEER_IP.into(), Resolution::Pending);
    peer_connects(&mut env, PORT, 0x11);
    env.advance(Duration::from_millis(5));
    assert!(env.mail(0).is_empty());
    env.host().resolutions.insert(PEER_IP.into(), ready(OTHER_MAC, OUR_IP));
    env.advance(Duration::from_millis(5));
    // The MAC that we found counts, not the one in the packet.
    assert!(matches!(env.message(), ToWorker::ConnectRequest { path, .. } if path.dst_mac == OTHER_MAC));
}

#[test]
fn a_request_from_an_address_without_a_host_is_dropped() {
    let mut env = env();
    env.host().resolutions.clear();
    peer_connects(&mut env, PORT, 0x11);
    assert_eq!((env.mail(0).len(), env.control.stats.connect_unresolved.get()), (0, 1));
    assert!(env.peer.poll_event().is_none(), "no answer");
    assert!(env.control.cm.is_empty());
}

#[test]
fn the_mac_of_a_peer_without_a_route_is_learned_when_it_has_confirmed() {
    let mut env = env();
    env.host().no_route.insert(PEER_IP.into());
    env.host().resolutions.clear();
    let peer_conn = peer_connects(&mut env, PORT, 0x11);
    let request = offered(env.message());
    accept(&mut env, &request, 0x22);
    assert!(env.host().learned.is_empty(), "the packet's source may be forged");
    assert_eq!(env.host().noted, [IpAddr::from(PEER_IP)], "the host can say that there is no route");
    env.peer.confirm(peer_conn, &[]).unwrap();
    env.exchange();
    assert_eq!(env.host().learned, [(IpAddr::from(PEER_IP), PEER_MAC)]);
}

#[test]
fn a_request_that_names_a_connection_in_use_is_rejected() {
    let mut env = env();
    let (old, _) = established(&mut env, 0x11, 0x22);
    // Another request with the same queue pair number.
    peer_connects(&mut env, PORT, 0x11);
    let ToWorker::CheckInUse { conn, request } = env.message() else { panic!() };
    assert_eq!(conn, old);
    env.send(ToControl::InUseChecked { request, in_use: true });
    let rejected = ConnectFailure::PeerRejected(RejReason::StaleConnection);
    assert!(matches!(env.peer_event(), CmEvent::ConnectFailed { reason, .. } if reason == rejected));
    assert_eq!((env.mail(0).len(), env.control.stats.connect_stale_refused.get()), (0, 1));
}

#[test]
fn a_request_replaces_a_connection_that_its_peer_has_lost() {
    let mut env = env();
    let (old, _) = established(&mut env, 0x11, 0x22);
    peer_connects(&mut env, PORT, 0x11);
    let ToWorker::CheckInUse { request, .. } = env.message() else { panic!() };
    env.send(ToControl::InUseChecked { request, in_use: false });
    let request = offered(env.message());
    accept(&mut env, &request, 0x23);
    let stale = EndReason::Disconnected(DisconnectReason::Stale);
    assert!(matches!(env.message(), ToWorker::Disconnected { conn, reason } if (conn, reason) == (old, stale)));
}

#[test]
fn connections_get_the_new_mac_of_their_next_hop() {
    let mut env = env();
    let router = IpAddr::from([10, 0, 0, 254]);
    env.host().router = Some((router, [IpAddr::from(PEER_IP)].into()));
    env.host().resolutions.insert(router, ready(PEER_MAC, OUR_IP));
    let (conn, _) = established(&mut env, 0x11, 0x22);
    let moved = |ip| HostEvent::NeighbourChanged { ip, mac: OTHER_MAC };
    env.host().resolutions.insert(router, ready(OTHER_MAC, OUR_IP));
    env.host().events.push_back(moved(IpAddr::from([10, 0, 0, 7])));
    env.exchange();
    assert!(env.mail(0).is_empty(), "another neighbour");
    env.host().events.push_back(moved(router));
    env.exchange();
    assert!(matches!(env.message(), ToWorker::PeerMacChanged { conn: c, mac } if (c, mac) == (conn, OTHER_MAC)));
}

#[test]
fn a_service_connects_and_disconnects() {
    let mut env = env();
    connect(&mut env, PEER_IP);
    let ToWorker::ReqSent { service: 2, conn, qp } = env.message() else { panic!() };
    assert_eq!(qp, Qpn::new(0x21));
    let CmEvent::ConnectRequest(request) = env.peer_event() else { panic!() };
    assert_eq!((request.remote_qpn, request.starting_psn, request.service_id.port()), (0x21, Psn::new(8), 4000));
    let params = AcceptParams::for_request(&request, Qpn::new(0x31), Psn::new(9), 1, 1);
    env.peer.accept(env.now, request.conn, params).unwrap();
    env.exchange();
    match env.message() {
        ToWorker::RepReceived { reply, rts } => {
            assert_eq!((reply.conn, reply.remote_qpn, rts.rq_psn), (conn, 0x31, Psn::new(8)));
            assert_eq!((rts.path.dst_mac, rts.path_mtu, rts.retry_count), (PEER_MAC, PathMtu::Mtu1024, 7));
        }
        other => panic!("{other:?}"),
    }
    assert!(env.peer.poll_event().is_none(), "no RTU before the queue pair is ready");
    env.send(ToControl::SendRtu { conn });
    assert!(matches!(env.peer_event(), CmEvent::Established { .. }));
    assert!(matches!(env.message(), ToWorker::Connected { conn: c } if c == conn));
    env.send(ToControl::Disconnect { conn });
    assert!(matches!(env.peer_event(), CmEvent::Disconnected { reason: DisconnectReason::Peer, .. }));
    let ended = EndReason::Disconnected(DisconnectReason::Local);
    assert!(matches!(env.message(), ToWorker::Disconnected { reason, .. } if reason == ended));
}

#[test]
fn a_rej_reaches_the_service_before_the_end() {
    let mut env = env();
    connect(&mut env, PEER_IP);
    env.mail(0);
    let CmEvent::ConnectRequest(request) = env.peer_event() else { panic!() };
    env.peer.reject(request.conn, RejReason::ConsumerDefined, &[], b"full").unwrap();
    env.exchange();
    let mail = env.mail(0);
    let rejected = EndReason::NotEstablished(ConnectFailure::PeerRejected(RejReason::ConsumerDefined));
    assert!(matches!(&mail[0], ToWorker::RejReceived { rej, .. } if rej.private_data.starts_with(b"full")), "{mail:?}");
    assert!(matches!(&mail[1], ToWorker::Disconnected { reason, .. } if *reason == rejected), "{mail:?}");
}

#[test]
fn a_rep_for_a_connection_that_its_worker_dropped_is_rejected() {
    let mut env = env();
    connect(&mut env, PEER_IP);
    let ToWorker::ReqSent { conn, .. } = env.message() else { panic!() };
    let CmEvent::ConnectRequest(request) = env.peer_event() else { panic!() };
    env.workers[0]
        .outbox
        .send(ToControl::SendRej { conn, reason: RejReason::ConsumerDefined, private_data: Vec::new() })
        .unwrap();
    let params = AcceptParams::for_request(&request, Qpn::new(0x31), Psn::new(9), 1, 1);
    env.peer.accept(env.now, request.conn, params).unwrap();
    env.exchange();
    assert!(env.mail(0).is_empty());
    assert!(matches!(env.peer_event(), CmEvent::ConnectFailed { .. } | CmEvent::Disconnected { .. }));
}

#[test]
fn a_peer_without_a_path_ends_the_connection_before_a_req() {
    let mut env = env();
    connect(&mut env, [10, 0, 0, 77]);
    let no_path = EndReason::NoPath;
    assert!(matches!(env.message(), ToWorker::ReqNotSent { service: 2, reason, .. } if reason == no_path));
    assert_eq!(env.control.stats.path_unresolved.get(), 1);
    // Not the address of a host: the connection manager refuses.
    env.host().resolutions.insert([0, 0, 0, 0].into(), ready(PEER_MAC, OUR_IP));
    connect(&mut env, [0, 0, 0, 0]);
    let not_sent = EndReason::ReqNotSent(CmError::Address);
    assert!(matches!(env.message(), ToWorker::ReqNotSent { reason, .. } if reason == not_sent));
}

#[test]
fn the_port_on_the_network_of_the_peer_comes_first() {
    let hosts = [([10, 9, 0, 1], 0), (OUR_IP, 1)].map(|(ip, port)| {
        let mut host = ScriptedHost::new(port, ip, OUR_MAC);
        host.resolutions.insert(PEER_IP.into(), ready(PEER_MAC, ip));
        host
    });
    let mut env = TestEnv::with_hosts(1, Vec::new(), hosts.into());
    let path = |env: &mut TestEnv| {
        env.send(ToControl::ResolvePath { reply_to: reply_to(6), remote: PEER_IP.into(), client: None });
        match env.message() {
            ToWorker::PathResolved { service: 2, token: 6, path } => path.map(|path| path.path),
            other => panic!("{other:?}"),
        }
    };
    let found = path(&mut env).unwrap();
    assert_eq!((found.port, found.src.ip()), (PortId(1), IpAddr::from(OUR_IP)));
    env.control.host_mut(PortId(1)).unwrap().resolutions.clear();
    assert_eq!(path(&mut env).unwrap().port, PortId(0));
    env.host().resolutions.clear();
    assert_eq!(path(&mut env), None);
}

#[test]
fn a_path_is_found_when_its_mac_is() {
    let mut env = env();
    env.host().resolutions.insert(PEER_IP.into(), Resolution::Pending);
    env.send(ToControl::ResolvePath { reply_to: reply_to(6), remote: PEER_IP.into(), client: None });
    assert!(env.mail(0).is_empty());
    env.host().resolutions.insert(PEER_IP.into(), ready(PEER_MAC, OUR_IP));
    env.advance(Duration::from_millis(2));
    assert!(matches!(env.message(), ToWorker::PathResolved { path: Some(_), .. }));
}

#[test]
fn a_client_gets_a_path_to_its_own_address_only() {
    let mut env = env();
    let other = IpAddr::from([10, 0, 0, 3]);
    env.host().resolutions.insert(other, ready(OTHER_MAC, OUR_IP));
    let own = |env: &mut TestEnv, remote: IpAddr| {
        env.send(ToControl::ResolvePath { reply_to: reply_to(6), remote, client: Some(PEER_IP.into()) });
        matches!(env.message(), ToWorker::PathResolved { path: Some(_), .. })
    };
    assert!(own(&mut env, PEER_IP.into()));
    assert!(!own(&mut env, other));
    assert_eq!(env.control.stats.path_foreign.get(), 1);
    env.host().resolutions.insert(other, ready(PEER_MAC, OUR_IP));
    assert!(own(&mut env, other), "another address of the same station");
}

#[test]
fn entries_of_the_tables_are_counted() {
    let mut env = env();
    let counts = |env: &mut TestEnv| {
        let (reply, answer) = std::sync::mpsc::sync_channel(1);
        env.send(ToControl::Counts { reply });
        let counts = answer.try_recv().unwrap();
        (counts.connections, counts.sidr, counts.streams)
    };
    assert_eq!(counts(&mut env), (0, 0, 0));
    env.peer.resolve_datagram(env.now, ResolveParams::new(peer_path(), (40_000, PORT))).unwrap();
    env.exchange();
    assert_eq!(counts(&mut env), (0, 1, 0));
    let remote = SocketAddr::from((PEER_IP, 4001));
    env.send(ToControl::ResolveDatagram { reply_to: reply_to(7), remote, private_data: Vec::new() });
    assert_eq!(counts(&mut env), (0, 2, 0), "requests of either side");
    let neighbours = env.host().resolutions.len();
    let (reply, answer) = std::sync::mpsc::sync_channel(1);
    env.send(ToControl::Counts { reply });
    assert_eq!(answer.try_recv().unwrap().neighbours, neighbours);
}

#[test]
fn sidr_requests_of_peers_are_answered_by_a_service() {
    let mut env = env();
    let id = env.peer.resolve_datagram(env.now, ResolveParams::new(peer_path(), (40_000, PORT))).unwrap();
    env.exchange();
    let ToWorker::SidrRequest { service: 0, request } = env.message() else { panic!() };
    env.send(ToControl::SendSidrRep { id: request.id, reply: SidrReply::valid(Qpn::new(0x44)) });
    assert!(
        matches!(env.peer_event(), CmEvent::DatagramResolved(reply) if (reply.id, reply.qpn) == (id, Qpn::new(0x44)))
    );
    env.peer.resolve_datagram(env.now, ResolveParams::new(peer_path(), (40_000, 9))).unwrap();
    env.exchange();
    let refused = ResolveFailure::Refused(SidrStatus::ServiceIdNotSupported);
    assert!(matches!(env.peer_event(), CmEvent::ResolveFailed { reason, .. } if reason == refused));
}

#[test]
fn sidr_requests_of_services_are_answered_by_the_peer() {
    let mut env = env();
    let resolve = |env: &mut TestEnv| {
        let remote = SocketAddr::from((PEER_IP, 4001));
        env.send(ToControl::ResolveDatagram { reply_to: reply_to(7), remote, private_data: vec![1] });
        let CmEvent::SidrRequest(request) = env.peer_event() else { panic!() };
        assert_eq!((request.service_id.port(), request.private_data[0]), (4001, 1));
        request.id
    };
    let id = resolve(&mut env);
    env.peer.reply_sidr(env.now, id, SidrReply::valid(Qpn::new(0x55))).unwrap();
    env.exchange();
    let ToWorker::DatagramResolved { service: 2, token: 7, result: Ok(peer) } = env.message() else { panic!() };
    assert_eq!((peer.qpn, peer.path.path.dst_mac), (Qpn::new(0x55), PEER_MAC));
    let id = resolve(&mut env);
    env.peer.reply_sidr(env.now, id, SidrReply::refuse(SidrStatus::NoQp)).unwrap();
    env.exchange();
    let refused = ResolveError::Refused(SidrStatus::NoQp);
    assert!(matches!(env.message(), ToWorker::DatagramResolved { result: Err(error), .. } if error == refused));
}

#[test]
fn mads_that_the_port_has_no_room_for_are_sent_later_in_order() {
    let mut env = env();
    env.host().mad_room = 0;
    for qpn in [0x21, 0x22] {
        let connect = Box::new(Connect::new(SocketAddr::from((PEER_IP, 4000)), Qpn::new(qpn)));
        env.send(ToControl::Connect { reply_to: reply_to(0), connect, rq_psn: Psn::new(8) });
    }
    assert!(env.peer.poll_event().is_none());
    assert!(env.control.stats.mad_tx_stalls.get() > 0);
    env.host().mad_room = usize::MAX;
    env.exchange();
    for qpn in [0x21, 0x22] {
        assert!(matches!(env.peer_event(), CmEvent::ConnectRequest(request) if request.remote_qpn == qpn));
    }
}

#[test]
fn stopping_disconnects_peers_and_fails_what_waits() {
    let mut env = env();
    established(&mut env, 0x11, 0x22);
    env.host().resolutions.insert([10, 0, 0, 8].into(), Resolution::Pending);
    connect(&mut env, [10, 0, 0, 8]);
    let patience = Duration::from_secs(1);
    assert!(!env.control.is_stopped(env.now, patience));
    env.control.begin_stop(env.now);
    assert!(!env.control.is_stopped(env.now, patience), "the peer has not answered");
    env.advance(Duration::from_millis(1));
    let mail = env.mail(0);
    let local = EndReason::Disconnected(DisconnectReason::Local);
    assert!(matches!(&mail[0], ToWorker::ReqNotSent { reason: EndReason::Stopping, .. }), "{mail:?}");
    assert!(matches!(&mail[1], ToWorker::Disconnected { reason, .. } if *reason == local), "{mail:?}");
    assert!(env.control.is_stopped(env.now, patience));
    peer_connects(&mut env, PORT, 0x12);
    assert!(env.mail(0).is_empty(), "no new connections");
}

#[test]
fn stopping_does_not_wait_forever_for_a_silent_peer() {
    let mut env = env();
    established(&mut env, 0x11, 0x22);
    env.control.begin_stop(env.now);
    env.host().mad_room = 0;
    let patience = Duration::from_secs(1);
    env.advance(patience / 2);
    assert!(!env.control.is_stopped(env.now, patience) && !env.control.is_stop_overdue(env.now, patience));
    env.advance(patience / 2);
    assert!(env.control.is_stopped(env.now, patience) && env.control.is_stop_overdue(env.now, patience));
}

#[test]
fn a_rep_takes_the_mac_that_the_peer_has_by_then() {
    let mut env = env();
    connect(&mut env, PEER_IP);
    env.mail(0);
    let CmEvent::ConnectRequest(request) = env.peer_event() else { panic!() };
    let ip = IpAddr::from(PEER_IP);
    env.host().resolutions.insert(ip, ready(OTHER_MAC, OUR_IP));
    env.host().events.push_back(HostEvent::NeighbourChanged { ip, mac: OTHER_MAC });
    env.exchange();
    assert!(matches!(env.message(), ToWorker::PeerMacChanged { mac: OTHER_MAC, .. }));
    let params = AcceptParams::for_request(&request, Qpn::new(0x31), Psn::new(9), 1, 1);
    env.peer.accept(env.now, request.conn, params).unwrap();
    env.exchange();
    assert!(matches!(env.message(), ToWorker::RepReceived { rts, .. } if rts.path.dst_mac == OTHER_MAC));
}

#[test]
fn stopping_takes_one_more_turn_for_the_hosts_to_leave_groups() {
    let mut env = env();
    env.control.begin_stop(env.now);
    let patience = Duration::from_secs(1);
    assert!(!env.control.is_stopped(env.now, patience));
    assert!(env.control.is_stopped(env.now + Duration::from_nanos(1), patience));
}
