//! Allowed peers of services.

use std::sync::mpsc::{SyncSender, sync_channel};

use rxe_proto::cm::{CmEvent, ConnectParams, ResolveFailure, ResolveParams};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{RejReason, SidrStatus};
use rxe_proto::wire::{PathMtu, PortId, PrefixList, Psn};

use crate::change::ControlChange;
use crate::control::ip_host::HostEvent;
use crate::messages::{GroupListener, ToControl, ToWorker};
use crate::service::Listen;
use crate::test_env::{PEER_IP, TestEnv, peer_path};

const PORT: u16 = 7174;

/// Service 0 serves addresses of 10.9.0.0/16 only, service 1 everyone.
fn env() -> TestEnv {
    let everything = |service| {
        let listens = [
            Listen::datagrams(PORT + service),
            Listen::cm(PORT + service),
            Listen::Tcp { port: PORT + service },
            Listen::GroupListeners,
        ];
        listens.into_iter().map(move |listen| (usize::from(service), listen))
    };
    let mut env = TestEnv::new(1, everything(0).chain(everything(1)).collect());
    let others: PrefixList = ["10.9.0.0/16".parse().unwrap()].into_iter().collect();
    assert!(!others.contains(std::net::IpAddr::from(PEER_IP).into()));
    set_allowed(&mut env, 0, Some(others));
    env
}

fn set_allowed(env: &mut TestEnv, service: usize, peers: Option<PrefixList>) {
    change(env, |reply| ControlChange::SetAllowed { service, peers, reply });
}

fn change(env: &mut TestEnv, change: impl FnOnce(SyncSender<()>) -> ControlChange) {
    let (reply, done) = sync_channel(1);
    env.send(ToControl::Change(change(reply)));
    assert_eq!(done.try_recv(), Ok(()));
}

#[test]
fn a_stopped_service_refuses_new_clients_until_it_is_started() {
    let mut env = env();
    let connect = |env: &mut TestEnv, qpn| {
        let port = PORT + 1;
        let params = ConnectParams::new(peer_path(), (40_000, port), Qpn::new(qpn), Psn::new(5), PathMtu::Mtu1024);
        env.peer.connect(env.now, params).unwrap();
        env.exchange();
    };
    let set_stopped = |env: &mut TestEnv, stopped| {
        change(env, |reply| ControlChange::SetStopped { service: 1, stopped, reply });
    };
    set_stopped(&mut env, true);
    connect(&mut env, 0x11);
    match env.peer_event() {
        CmEvent::ConnectFailed { rej: Some(rej), .. } => {
            assert_eq!(rej.reason, RejReason::ConsumerDefined);
            assert!(rej.private_data.starts_with(b"this service is stopped"));
        }
        other => panic!("{other:?}"),
    }
    env.peer.resolve_datagram(env.now, ResolveParams::new(peer_path(), (40_000, PORT + 1))).unwrap();
    env.exchange();
    let refused = ResolveFailure::Refused(SidrStatus::Rejected);
    assert!(matches!(env.peer_event(), CmEvent::ResolveFailed { reason, .. } if reason == refused));
    env.open_stream(8, PORT + 1);
    assert!(env.stream(8).aborted && env.mail(0).is_empty());
    assert_eq!(env.control.stats().stopped_refused.get(), 3);

    set_stopped(&mut env, false);
    connect(&mut env, 0x12);
    assert!(matches!(env.message(), ToWorker::ConnectRequest { service: 1, .. }));
}

#[test]
fn allowed_peers_of_a_service_change_at_run_time() {
    let mut env = env();
    env.open_stream(8, PORT);
    assert!(env.stream(8).aborted);
    set_allowed(&mut env, 0, None);
    env.open_stream(9, PORT);
    assert!(matches!(env.message(), ToWorker::StreamOpened { service: 0, .. }));
    // A service that had no list before.
    set_allowed(&mut env, 7, Some(PrefixList::default()));
    assert!(!env.control.admission.allows(7, std::net::IpAddr::from(PEER_IP).into()));
}

#[test]
fn a_connection_request_from_another_address_is_rejected_with_a_text() {
    let mut env = env();
    let connect = |env: &mut TestEnv, port, qpn| {
        let params = ConnectParams::new(peer_path(), (40_000, port), Qpn::new(qpn), Psn::new(5), PathMtu::Mtu1024);
        env.peer.connect(env.now, params).unwrap();
        env.exchange();
    };
    connect(&mut env, PORT, 0x11);
    match env.peer_event() {
        CmEvent::ConnectFailed { rej: Some(rej), .. } => {
            assert_eq!(rej.reason, RejReason::ConsumerDefined);
            assert!(rej.private_data.starts_with(b"this service does not serve your address"));
        }
        other => panic!("{other:?}"),
    }
    assert!(env.mail(0).is_empty());
    assert_eq!(env.control.stats().peers_refused.get(), 1);
    connect(&mut env, PORT + 1, 0x12);
    assert!(matches!(env.message(), ToWorker::ConnectRequest { service: 1, .. }));
}

#[test]
fn a_sidr_request_from_another_address_is_rejected() {
    let mut env = env();
    let resolve = |env: &mut TestEnv, port| {
        env.peer.resolve_datagram(env.now, ResolveParams::new(peer_path(), (40_000, port))).unwrap();
        env.exchange();
    };
    resolve(&mut env, PORT);
    let refused = ResolveFailure::Refused(SidrStatus::Rejected);
    assert!(matches!(env.peer_event(), CmEvent::ResolveFailed { reason, .. } if reason == refused));
    assert_eq!(env.control.stats().peers_refused.get(), 1);
    resolve(&mut env, PORT + 1);
    assert!(matches!(env.message(), ToWorker::SidrRequest { service: 1, .. }));
}

#[test]
fn a_stream_from_another_address_is_reset() {
    let mut env = env();
    env.open_stream(8, PORT);
    assert!(env.stream(8).aborted && env.mail(0).is_empty());
    assert_eq!(env.control.stats().peers_refused.get(), 1);
    env.open_stream(9, PORT + 1);
    assert!(matches!(env.message(), ToWorker::StreamOpened { service: 1, .. }));
}

#[test]
fn listeners_of_a_group_are_reported_to_services_that_serve_them() {
    let mut env = env();
    for host in [[10, 9, 0, 7], PEER_IP] {
        let listener = HostEvent::GroupListener { group: [239, 1, 1, 1].into(), host: host.into(), joined: true };
        env.host().events.push_back(listener);
        env.exchange();
    }
    let reported: Vec<_> = (env.mail(0).into_iter())
        .map(|message| match message {
            ToWorker::GroupListener { service, listener: GroupListener { port: PortId(0), host, .. } } => {
                (service, host)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(reported, [(0, [10, 9, 0, 7].into()), (1, [10, 9, 0, 7].into()), (1, PEER_IP.into())]);
}
