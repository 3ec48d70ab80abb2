//! The connection manager against peers that forge, flood and repeat.

use std::net::Ipv4Addr;

use crate::cm_support::*;
use rxe_proto::Duration;
use rxe_proto::cm::{CmConfig, CmEvent, ConnState, ConnectFailure, DisconnectReason, LocalAddresses, MadPath};
use rxe_proto::wire::cm::{Answered, CmMessage, IpAddressing, PortSpace, RejReason, Req, ServiceId};
use rxe_proto::wire::mad::MAD_LEN;
use rxe_proto::wire::{DropReason, Gid, PathMtu, PortId, Psn};

const OTHER_IP: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 66);

/// A REQ of `peer` with numbers of its own.
fn req_of(peer: Ipv4Addr, number: u32) -> Req {
    let mut req = Req { local_qpn: 0x100 + number, starting_psn: Psn::new(number), ..req(0x5000 + number) };
    req.primary.local_gid = peer.into();
    let addressing = IpAddressing::new((peer.into(), 40000), SERVER_IP.into()).unwrap();
    assert!(req.set_private_data(&addressing, b"ulp"));
    req
}

fn refusal(target: &mut Target) -> RejReason {
    match target.sent_one() {
        CmMessage::Rej(rej) => rej.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_req_must_come_from_the_gid_that_it_names() {
    let mut target = Target::default();
    for named in [OTHER_IP, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 9), Ipv4Addr::LOCALHOST] {
        let mut req = req(1);
        req.primary.local_gid = named.into();
        target.feed(&CmMessage::Req(req)).unwrap();
        assert_eq!(refusal(&mut target), RejReason::InvalidGid, "{named}");
        assert_eq!(target.events(), []);
        assert_eq!(target.cm.poll_refusal().unwrap().peer, CLIENT_IP.into());
    }
    assert_eq!((target.cm.stats().req_gid_foreign.get(), target.cm.len()), (4, 0));
}

#[test]
fn loopback_peers_are_served_by_a_loopback_address_only() {
    let loopback = MadPath { peer: Ipv4Addr::LOCALHOST.into(), ..path() };
    let mut target = Target::default();
    target.feed_from(&loopback, 7, &CmMessage::Req(req_of(Ipv4Addr::LOCALHOST, 1))).unwrap();
    assert_eq!(refusal(&mut target), RejReason::InvalidGid);

    let ours: Gid = Ipv4Addr::new(127, 0, 0, 2).into();
    target.local.0 = vec![ours];
    let mut req = req_of(Ipv4Addr::LOCALHOST, 1);
    req.primary.remote_gid = ours;
    let addressing = IpAddressing::new((Ipv4Addr::LOCALHOST.into(), 40000), ours.ip()).unwrap();
    assert!(req.set_private_data(&addressing, b"ulp"));
    target.feed_from(&MadPath { local: ours, ..loopback }, 7, &CmMessage::Req(req)).unwrap();
    target.request();
}

#[test]
fn messages_for_a_connection_from_another_address_are_ignored() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(1));
    let ours = conn.comm_id();
    let elsewhere = path_from(OTHER_IP);
    let foreign = |target: &mut Target, message: &CmMessage| {
        assert_eq!(target.feed_from(&elsewhere, 7, message), Err(DropReason::CmForeign), "{message:?}");
        assert_eq!((target.events(), target.sent()), (vec![], vec![]));
    };
    foreign(&mut target, &rtu(1, ours));
    foreign(&mut target, &mra(1, ours, Answered::Rep, 24));
    foreign(&mut target, &rej(1, ours, Answered::Rep, RejReason::ConsumerDefined, &[]));
    target.feed(&rtu(1, ours)).unwrap();
    assert_eq!(target.events(), [CmEvent::Established { conn }]);
    foreign(&mut target, &dreq(1, ours, SERVER_QPN));
    foreign(&mut target, &rej(1, ours, Answered::Rep, RejReason::ConsumerDefined, &[]));
    target.cm.disconnect(target.now, conn).unwrap();
    target.sent_one();
    foreign(&mut target, &drep(1, ours));
    assert_eq!(target.cm.stats().rx_foreign.get(), 6);
    target.feed(&drep(1, ours)).unwrap();
    assert_eq!(target.events().len(), 1);
}

#[test]
fn an_established_connection_survives_a_forged_req_that_is_not_accepted() {
    let mut target = Target::default();
    let conn = target.established(req(1));
    let established = |target: &Target| target.cm.connection(conn).unwrap().state == ConnState::Established;

    // Without a service of ours.
    let forged = Req { service_id: ServiceId::new(PortSpace::Udp, 7), starting_psn: Psn::new(5), ..req(1) };
    target.feed(&CmMessage::Req(forged)).unwrap();
    assert_eq!(refusal(&mut target), RejReason::InvalidServiceId);
    assert!(established(&target));

    // Refused by the user, since the old connection's queue pair is in use; by communication id and by queue pair.
    for forged in [Req { starting_psn: Psn::new(5), ..req(1) }, req(2)] {
        target.feed(&CmMessage::Req(forged)).unwrap();
        let request = target.request();
        assert_eq!(target.cm.replaced_by(request.conn), [conn]);
        target.cm.reject(request.conn, RejReason::StaleConnection, &[], &[]).unwrap();
        assert_eq!(refusal(&mut target), RejReason::StaleConnection);
        assert!(established(&target));
    }
    target.feed(&dreq(1, conn.comm_id(), SERVER_QPN)).unwrap();
    assert_eq!(target.events(), [CmEvent::Disconnected { conn, reason: DisconnectReason::Peer }]);
}

#[test]
fn an_established_connection_survives_a_req_beyond_a_limit() {
    let config = CmConfig { max_pending_per_peer: 1, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    let conn = target.established(req(1));
    target.feed(&CmMessage::Req(req_of(CLIENT_IP, 1))).unwrap();
    target.request();
    target.feed(&CmMessage::Req(Req { starting_psn: Psn::new(5), ..req(1) })).unwrap();
    assert_eq!(refusal(&mut target), RejReason::NoResources);
    assert_eq!(target.events(), []);
    assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::Established);
}

#[test]
fn the_old_connection_ends_when_the_new_one_is_accepted() {
    let mut target = Target::default();
    let conn = target.established(req(1));
    target.feed(&CmMessage::Req(Req { starting_psn: Psn::new(5), ..req(1) })).unwrap();
    let request = target.request();
    // A repetition of the new REQ is not a third one.
    let again = CmMessage::Req(Req { starting_psn: Psn::new(5), ..req(1) });
    assert_eq!(target.feed(&again), Err(DropReason::CmDuplicate));
    target.accept(request.conn);
    assert_eq!(target.events(), [CmEvent::Disconnected { conn, reason: DisconnectReason::Stale }]);
    assert!(matches!(target.sent().as_slice(), [CmMessage::Dreq(_), CmMessage::Rep(_)]));
    assert_eq!(target.cm.stats().stale.get(), 1);
}

#[test]
fn a_late_copy_of_a_finished_req_makes_no_connection() {
    let mut target = Target::default();
    let conn = target.established(req(1));
    target.feed(&dreq(1, conn.comm_id(), SERVER_QPN)).unwrap();
    target.events();
    target.sent();
    assert_eq!(target.feed(&CmMessage::Req(req(1))), Err(DropReason::CmDuplicate));
    assert_eq!((target.events(), target.sent()), (vec![], vec![]));
    // The same numbers in a new attempt are served at once.
    target.feed(&CmMessage::Req(Req { starting_psn: Psn::new(5), ..req(1) })).unwrap();
    target.request();
}

#[test]
fn one_address_has_a_share_of_the_pending_connections() {
    let config = CmConfig { max_pending: 8, max_pending_per_peer: 4, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    for number in 0..20 {
        target.feed(&CmMessage::Req(req_of(CLIENT_IP, number))).unwrap();
    }
    assert_eq!(target.events().len(), 4);
    assert_eq!(target.sent().len(), 16, "each of the others is rejected");
    assert_eq!(target.cm.stats().req_peer_limit.get(), 16);
    target.feed_from(&path_from(OTHER_IP), 7, &CmMessage::Req(req_of(OTHER_IP, 1))).unwrap();
    target.request();
}

#[test]
fn the_oldest_unconfirmed_request_is_evicted_at_the_limit() {
    let config = CmConfig { max_pending: 8, max_pending_per_peer: 4, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    let first = target.rep_sent(req(1));
    let up = target.established(Req { local_qpn: 0x99, ..req(2) });
    let mut evicted = Vec::new();
    for number in 0..1000u32 {
        let peer = Ipv4Addr::from(0x0A00_0001 + number);
        target.feed_from(&path_from(peer), 7, &CmMessage::Req(req_of(peer, number))).unwrap();
        for event in target.events() {
            match event {
                CmEvent::ConnectRequest(_) => {}
                CmEvent::ConnectFailed { conn, reason: ConnectFailure::Evicted, .. } => evicted.push(conn),
                other => panic!("{other:?}"),
            }
        }
        assert!(target.cm.len() <= 9);
    }
    assert_eq!((evicted.len(), evicted[0]), (1000 - 7, first));
    assert_eq!(target.cm.stats().pending_evicted.get(), 993);
    assert_eq!(target.cm.connection(up).unwrap().state, ConnState::Established);
    // Unconfirmed requests are over some seconds after the last one.
    target.advance(ms(90_000));
    assert_eq!(target.cm.len(), 1);
}

#[test]
fn one_req_yields_three_messages_within_ten_seconds() {
    let mut target = Target::default();
    let mut req = req(1);
    // As long and as often as the peer may ask for.
    (req.local_response_timeout, req.max_cm_retries) = (31, 15);
    let conn = target.rep_sent(req.clone());
    target.advance(ms(9_999));
    assert!(matches!(target.sent().as_slice(), [CmMessage::Rep(_), CmMessage::Rep(_)]));
    assert_eq!(target.events(), [CmEvent::ConnectFailed { conn, reason: ConnectFailure::Timeout, rej: None }]);
    assert!(target.cm.is_empty());
}

#[test]
fn a_repeated_req_has_its_rep_until_the_peer_confirms() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(1));
    for _ in 0..5 {
        target.advance(ms(6144));
        target.sent();
        target.feed(&CmMessage::Req(req(1))).unwrap();
        assert!(matches!(target.sent_one(), CmMessage::Rep(_)));
    }
    target.feed(&rtu(1, conn.comm_id())).unwrap();
    assert_eq!(target.events(), [CmEvent::Established { conn }]);
}

#[test]
fn an_mra_defers_the_end_once() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(1));
    let more = mra(1, conn.comm_id(), Answered::Rep, 24);
    target.feed(&more).unwrap();
    target.advance(ms(60_000));
    assert_eq!((target.events(), target.sent()), (vec![], vec![]));
    assert_eq!(target.feed(&more), Err(DropReason::CmDuplicate));
    target.advance(ms(20_000));
    assert!(matches!(target.sent().as_slice(), [CmMessage::Rep(_), CmMessage::Rej(_)]));
    assert_eq!(target.events().len(), 1);
    assert_eq!((target.cm.stats().rx_mra_again.get(), target.cm.len()), (1, 0));
}

/// The open connections of one address have a bound of their own; closing ones count no more.
#[test]
fn one_address_cannot_take_all_connections() {
    let config = CmConfig { max_connections: 4, max_connections_per_peer: 2, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    let mut conns = Vec::new();
    for number in [1, 2] {
        conns.push(target.established(req_of(CLIENT_IP, number)));
    }
    target.feed(&CmMessage::Req(req_of(CLIENT_IP, 3))).unwrap();
    assert_eq!(refusal(&mut target), RejReason::NoResources);
    assert_eq!((target.cm.stats().req_address_limit.get(), target.events()), (1, vec![]));

    // A REQ that replaces one of its connections is no further one.
    target.feed(&CmMessage::Req(Req { starting_psn: Psn::new(5), ..req_of(CLIENT_IP, 1) })).unwrap();
    let again = target.request();
    target.cm.reject(again.conn, RejReason::StaleConnection, &[], &[]).unwrap();
    target.sent_one();

    // Another address has its own share.
    target.feed_from(&path_from(OTHER_IP), 7, &CmMessage::Req(req_of(OTHER_IP, 1))).unwrap();
    target.request();

    target.cm.disconnect(target.now, conns[0]).unwrap();
    target.sent_one();
    target.feed(&CmMessage::Req(req_of(CLIENT_IP, 3))).unwrap();
    target.request();
    assert_eq!(target.cm.stats().req_address_limit.get(), 1);
}

/// A REQ names the interval and number of retransmissions that later hold for our DREQ: at most 15 in 20 s each.
#[test]
fn a_silent_peer_cannot_keep_a_connection_that_was_disconnected() {
    let mut target = Target::default();
    let conn = target.established(Req { local_response_timeout: 31, max_cm_retries: 15, ..req(1) });
    target.cm.disconnect(target.now, conn).unwrap();
    target.advance(Duration::from_secs(70));
    let sent = target.sent();
    assert!((2..=4).contains(&sent.len()), "{} DREQs", sent.len());
    assert_eq!(target.events(), [CmEvent::Disconnected { conn, reason: DisconnectReason::LocalUnanswered }]);
    target.advance(Duration::from_secs(10));
    assert!(target.cm.is_empty());
}

/// A port may serve full members of the partition only.
#[test]
fn limited_members_are_refused_where_the_port_says_so() {
    struct Strict(Addresses);

    impl LocalAddresses for Strict {
        fn is_local(&self, port: PortId, gid: Gid) -> bool {
            self.0.is_local(port, gid)
        }
        fn path_mtu(&self, port: PortId) -> PathMtu {
            self.0.path_mtu(port)
        }
        fn serves_full_members_only(&self, _port: PortId) -> bool {
            true
        }
    }

    let mut target = Target::default();
    let feed = |target: &mut Target, pkey: u16| {
        let mut mad = [0; MAD_LEN];
        CmMessage::Req(Req { pkey, ..req(1) }).emit(7, &mut mad);
        target.cm.handle_mad(target.now, &path(), &mad, &Strict(Addresses::default())).unwrap();
    };
    feed(&mut target, 0x7FFF);
    assert_eq!(refusal(&mut target), RejReason::InvalidGid);
    assert_eq!((target.cm.stats().req_pkey_limited.get(), target.cm.stats().req_pkey.get()), (1, 0));
    feed(&mut target, 0xFFFF);
    target.request();
}
