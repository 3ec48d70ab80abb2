//! A connection's life: confirmation, retransmission, ends of every kind.

use crate::cm_support::{
    CLIENT_GUID, CLIENT_QPN, SERVER_GUID, SERVER_QPN, Target, accept_params, drep, dreq, mra, ms, path, path_from, rej,
    req, rtu,
};
use rxe_proto::Duration;
use rxe_proto::cm::{CmConfig, CmError, CmEvent, ConnState, ConnectFailure, DisconnectReason};
use rxe_proto::wire::cm::{Answered, CmMessage, RejReason, Req};
use rxe_proto::wire::{DropReason, MacAddr, Psn};

/// 4.096 us * 2^20.
const RESEND: Duration = Duration::from_nanos(4_294_967_296);
/// Between two REPs.
const REP_RESEND: Duration = Duration::from_secs(2);
/// From REQ to the end of a connection that is not confirmed.
const UNCONFIRMED: Duration = Duration::from_secs(8);
/// 4.096 us * 2^19.
const TIMEWAIT: Duration = Duration::from_nanos(2_147_483_648);
const CLIENT: u32 = 0x1111;

fn disconnected(conn: rxe_proto::cm::ConnId, reason: DisconnectReason) -> Vec<CmEvent> {
    vec![CmEvent::Disconnected { conn, reason }]
}

/// The only event is the failure of `conn`; it has a REJ exactly when that is the reason.
#[track_caller]
fn assert_failed(target: &mut Target, conn: rxe_proto::cm::ConnId, expected: ConnectFailure) {
    let events = target.events();
    let [CmEvent::ConnectFailed { conn: which, reason, rej }] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((*which, *reason), (conn, expected));
    let rejected = rej.as_ref().map(|rej| ConnectFailure::PeerRejected(rej.reason));
    assert!(rejected.is_none_or(|rejected| rejected == expected));
    assert_eq!(rej.is_some(), matches!(expected, ConnectFailure::PeerRejected(_)));
}

// [CM-TRANSACTION] [CM-REP-RETRY]
#[test]
fn the_reply_is_sent_again_until_confirmed() {
    let mut target = Target::default();
    target.feed(&CmMessage::Req(req(CLIENT))).unwrap();
    let conn = target.request().conn;
    target.accept(conn);
    let first = target.transmits();
    target.advance(REP_RESEND - ms(1));
    assert_eq!(target.transmits(), []);
    for _ in 0..2 {
        target.advance(REP_RESEND);
        assert_eq!(target.transmits(), first, "byte for byte");
    }
    target.feed(&rtu(CLIENT, conn.comm_id())).unwrap();
    assert_eq!(target.events(), [CmEvent::Established { conn }]);
    assert_eq!(target.cm.next_timeout(), None);
    target.advance(RESEND * 20);
    assert_eq!(target.transmits(), []);
    assert_eq!(target.feed(&rtu(CLIENT, conn.comm_id())), Err(DropReason::CmDuplicate));
    assert_eq!(target.cm.stats().tx_rep_retry.get(), 2);
}

// [CM-REP-RETRY]
#[test]
fn an_unconfirmed_connection_is_given_up() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(CLIENT));
    target.advance(UNCONFIRMED - ms(1));
    assert_eq!(target.sent().len(), 2, "three in all");
    assert_eq!(target.events(), []);
    target.advance(ms(1));
    assert_failed(&mut target, conn, ConnectFailure::Timeout);
    assert_eq!(target.sent(), []);
    assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None));
}

// [CM-REP-RETRY]
#[test]
fn retries_and_times_are_the_peers_within_reason() {
    // A time too short for any network.
    let mut target = Target::default();
    let conn = target.rep_sent(Req { local_response_timeout: 0, ..req(CLIENT) });
    target.advance(ms(49));
    assert_eq!(target.sent(), []);
    target.advance(ms(1));
    assert_eq!(target.sent().len(), 1);
    target.advance(UNCONFIRMED);
    assert_failed(&mut target, conn, ConnectFailure::Timeout);
    // No retry.
    let mut target = Target::default();
    let conn = target.rep_sent(Req { max_cm_retries: 0, ..req(CLIENT) });
    target.advance(UNCONFIRMED);
    assert_eq!(target.sent(), []);
    assert_failed(&mut target, conn, ConnectFailure::Timeout);
    // 2.4 hours between two REPs.
    let mut target = Target::default();
    let patient = Req { local_response_timeout: 31, ..req(CLIENT) };
    target.rep_sent(patient);
    target.advance(REP_RESEND);
    assert!(matches!(target.sent_one(), CmMessage::Rep(_)));
}

// [CM-REQ-DUP] [CM-REP-AT-ONCE]
#[test]
fn a_repeated_request_makes_no_second_connection() {
    let mut target = Target::default();
    let again = CmMessage::Req(req(CLIENT));
    target.feed(&again).unwrap();
    let conn = target.request().conn;
    assert_eq!(target.feed(&again), Err(DropReason::CmDuplicate));
    assert_eq!((target.events(), target.transmits()), (vec![], vec![]));
    target.accept(conn);
    let first = target.transmits();
    assert_eq!(target.feed(&again), Ok(()));
    assert_eq!(target.transmits(), first, "the same REP, at once");
    target.feed(&rtu(CLIENT, conn.comm_id())).unwrap();
    assert_eq!(target.events(), [CmEvent::Established { conn }]);
    assert_eq!(target.feed(&again), Err(DropReason::CmDuplicate));
    target.cm.disconnect(target.now, conn).unwrap();
    assert_eq!(target.feed(&again), Err(DropReason::CmDuplicate));
    assert_eq!(target.cm.len(), 1);
    let stats = target.cm.stats();
    assert_eq!((stats.rx_req.get(), stats.requests.get(), stats.stale.get()), (5, 1, 0));
    assert_eq!((stats.rx_req_duplicate.get(), stats.rx_req_duplicate_answered.get()), (1, 1));
    assert_eq!(stats.rx_req_duplicate_late.get(), 2);
}

// [CM-DATA-IS-RTU]
#[test]
fn data_stands_for_a_lost_rtu() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(CLIENT));
    target.cm.established(conn).unwrap();
    assert_eq!(target.events(), [CmEvent::Established { conn }]);
    target.cm.established(conn).unwrap();
    assert_eq!(target.feed(&rtu(CLIENT, conn.comm_id())), Err(DropReason::CmDuplicate), "the late RTU");
    assert_eq!((target.events(), target.cm.next_timeout()), (vec![], None));
    let stats = target.cm.stats();
    assert_eq!((stats.implied_rtu.get(), stats.established.get()), (1, 1));
}

// [CM-MRA]
#[test]
fn an_mra_puts_the_next_reply_off() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(CLIENT));
    target.advance(REP_RESEND);
    assert_eq!(target.sent().len(), 1);
    // 2^21 * 4.096 us and 2.1 s on top.
    target.feed(&mra(CLIENT, conn.comm_id(), Answered::Rep, 21)).unwrap();
    target.advance(Duration::from_nanos(4096 * ((1 << 21) + (1 << 19)) - 1));
    assert_eq!(target.sent(), []);
    target.advance(Duration::from_nanos(1));
    assert_eq!(target.sent().len(), 1);
    // A service timeout of hours is limited, and a second MRA has no effect.
    let mut target = Target::default();
    let conn = target.rep_sent(req(CLIENT));
    target.feed(&mra(CLIENT, conn.comm_id(), Answered::Rep, 31)).unwrap();
    target.advance(Duration::from_secs(80));
    assert_eq!(target.sent().len(), 1);
    assert_eq!(target.feed(&mra(CLIENT, conn.comm_id(), Answered::Rep, 31)), Err(DropReason::CmDuplicate));
    // Of something else, or too late.
    assert_eq!(target.feed(&mra(CLIENT, conn.comm_id(), Answered::Req, 21)), Err(DropReason::CmUnexpected));
    target.feed(&rtu(CLIENT, conn.comm_id())).unwrap();
    assert_eq!(target.feed(&mra(CLIENT, conn.comm_id(), Answered::Rep, 21)), Err(DropReason::CmUnexpected));
    assert_eq!(target.feed(&mra(CLIENT, 5, Answered::Rep, 21)), Err(DropReason::CmUnknownId));
    assert_eq!(target.cm.stats().mra_honoured.get(), 1);
}

#[test]
fn the_peer_may_reject_our_reply() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(CLIENT));
    let wrong = rej(CLIENT + 1, conn.comm_id(), Answered::Rep, RejReason::ConsumerDefined, &[]);
    assert_eq!(target.feed(&wrong), Err(DropReason::CmUnknownId), "both ids must fit");
    target.feed(&rej(CLIENT, conn.comm_id(), Answered::Rep, RejReason::ConsumerDefined, &[])).unwrap();
    assert_failed(&mut target, conn, ConnectFailure::PeerRejected(RejReason::ConsumerDefined));
    assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None));
    // Even after its data has arrived.
    let conn = target.rep_sent(req(CLIENT));
    target.cm.established(conn).unwrap();
    let _established = target.events();
    target.feed(&rej(CLIENT, conn.comm_id(), Answered::Rep, RejReason::StaleConnection, &[])).unwrap();
    assert_eq!(target.events(), disconnected(conn, DisconnectReason::PeerRejected(RejReason::StaleConnection)));
    assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::Timewait);
}

// [CM-REJ-KILLED]
#[test]
fn a_killed_peer_is_found_by_its_guid() {
    let gave_up = |guid: u64| rej(CLIENT, 0, Answered::Other, RejReason::Timeout, &guid.to_be_bytes());
    for accepted in [false, true] {
        let mut target = Target::default();
        target.feed(&CmMessage::Req(req(CLIENT))).unwrap();
        let conn = target.request().conn;
        if accepted {
            target.accept(conn);
        }
        assert_eq!(target.feed(&gave_up(CLIENT_GUID + 1)), Err(DropReason::CmUnknownId), "another machine");
        let elsewhere = path_from([192, 168, 77, 3].into());
        assert_eq!(target.feed_from(&elsewhere, 1, &gave_up(CLIENT_GUID)), Err(DropReason::CmUnknownId));
        let short = rej(CLIENT, 0, Answered::Other, RejReason::Timeout, &[1, 2, 3]);
        assert_eq!(target.feed(&short), Err(DropReason::CmUnknownId));
        let other_reason = rej(CLIENT, 0, Answered::Other, RejReason::NoQp, &CLIENT_GUID.to_be_bytes());
        assert_eq!(target.feed(&other_reason), Err(DropReason::CmUnknownId));
        target.feed(&gave_up(CLIENT_GUID)).unwrap();
        assert_failed(&mut target, conn, ConnectFailure::PeerRejected(RejReason::Timeout));
        assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None));
        assert_eq!(target.cm.accept(target.now, conn, accept_params()), Err(CmError::Unknown));
    }
    // A late REJ does not end an established connection.
    let mut target = Target::default();
    let conn = target.established(req(CLIENT));
    assert_eq!(target.feed(&gave_up(CLIENT_GUID)), Err(DropReason::CmUnexpected));
    assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::Established);
}

// [CM-TRANSACTION] [CM-DREQ-ANSWER] [CM-TIMEWAIT]
#[test]
fn the_peer_disconnects() {
    let mut target = Target::default();
    let conn = target.established(req(CLIENT));
    let bye = dreq(CLIENT, conn.comm_id(), SERVER_QPN);
    target.feed_from(&path(), 0xD1E5, &bye).unwrap();
    assert_eq!(target.events(), disconnected(conn, DisconnectReason::Peer));
    let answer = target.transmits();
    let (header, message) = CmMessage::parse(&*answer[0].mad).unwrap();
    assert_eq!((header.transaction_id, message.comm_ids()), (0xD1E5, (conn.comm_id(), CLIENT)));
    assert!(matches!(message, CmMessage::Drep(_)));
    // The DREP was lost.
    target.feed_from(&path(), 0xD1E5, &bye).unwrap();
    assert_eq!(target.transmits(), answer);
    assert_eq!(target.events(), []);
    // The ids are gone at the end of timewait, and DREQs are answered all the same.
    target.advance(TIMEWAIT - ms(1));
    assert_eq!(target.cm.len(), 1);
    target.advance(ms(1));
    assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None));
    target.feed_from(&path(), 0xD1E5, &bye).unwrap();
    assert_eq!(target.transmits(), answer);
    let stats = target.cm.stats();
    assert_eq!((stats.rx_dreq_duplicate.get(), stats.rx_dreq_unknown.get(), stats.tx_drep.get()), (1, 1, 3));
}

// [CM-DREQ-ANSWER]
#[test]
fn every_dreq_is_answered_but_those_for_a_wrong_queue_pair() {
    let mut target = Target::default();
    let conn = target.established(req(CLIENT));
    let id = conn.comm_id();
    assert_eq!(target.feed(&dreq(CLIENT, id, SERVER_QPN + 1)), Err(DropReason::CmUnexpected));
    assert_eq!((target.events(), target.transmits()), (vec![], vec![]));
    assert_eq!(target.cm.stats().rx_dreq_wrong_qpn.get(), 1);
    for (theirs, ours) in [(CLIENT + 1, id), (CLIENT, id ^ 1), (0, 0), (7, 9)] {
        target.feed(&dreq(theirs, ours, SERVER_QPN)).unwrap();
        let drep = target.sent_one();
        assert!(matches!(drep, CmMessage::Drep(_)));
        assert_eq!(drep.comm_ids(), (ours, theirs), "ids swapped");
    }
    assert_eq!(target.events(), []);
    assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::Established);
    // Before accept there is no queue pair that it could mean.
    let mut target = Target::default();
    target.feed(&CmMessage::Req(req(CLIENT))).unwrap();
    let conn = target.request().conn;
    assert_eq!(target.feed(&dreq(CLIENT, conn.comm_id(), 0)), Err(DropReason::CmUnexpected));
}

#[test]
fn a_dreq_may_be_the_first_that_we_hear_after_our_reply() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(CLIENT));
    target.feed(&dreq(CLIENT, conn.comm_id(), SERVER_QPN)).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Drep(_)));
    assert_failed(&mut target, conn, ConnectFailure::PeerDisconnected);
    assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::Timewait);
}

// [CM-DREQ-RETRY]
#[test]
fn we_disconnect() {
    let mut target = Target::default();
    let conn = target.established(req(CLIENT));
    target.cm.disconnect(target.now, conn).unwrap();
    let first = target.transmits();
    let (header, message) = CmMessage::parse(&*first[0].mad).unwrap();
    assert_ne!(header.transaction_id, 7, "an exchange of our own");
    let CmMessage::Dreq(sent) = message else { panic!() };
    assert_eq!((sent.local_comm_id, sent.remote_comm_id, sent.remote_qpn), (conn.comm_id(), CLIENT, CLIENT_QPN));
    target.advance(RESEND * 2);
    assert_eq!(target.transmits(), [&first[..], &first[..]].concat());
    assert_eq!(target.events(), []);
    assert_eq!(target.feed(&drep(CLIENT + 1, conn.comm_id())), Err(DropReason::CmUnknownId));
    target.feed(&drep(CLIENT, conn.comm_id())).unwrap();
    assert_eq!(target.events(), disconnected(conn, DisconnectReason::Local));
    assert_eq!(target.feed(&drep(CLIENT, conn.comm_id())), Err(DropReason::CmDuplicate));
    target.advance(TIMEWAIT);
    assert!(target.cm.is_empty());
    assert_eq!(target.cm.disconnect(target.now, conn), Err(CmError::Unknown));
}

// [CM-DREQ-RETRY]
#[test]
fn nobody_answers_our_dreq() {
    let mut target = Target::default();
    let conn = target.established(req(CLIENT));
    target.cm.disconnect(target.now, conn).unwrap();
    target.advance(RESEND * 15);
    assert_eq!(target.sent().len(), 16);
    target.advance(RESEND);
    assert_eq!(target.sent(), []);
    assert_eq!(target.events(), disconnected(conn, DisconnectReason::LocalUnanswered));
    target.advance(TIMEWAIT);
    assert!(target.cm.is_empty());
}

// [CM-DREQ-CROSS]
#[test]
fn dreqs_may_cross() {
    let mut target = Target::default();
    let conn = target.established(req(CLIENT));
    target.cm.disconnect(target.now, conn).unwrap();
    let _dreq = target.sent();
    target.feed(&dreq(CLIENT, conn.comm_id(), SERVER_QPN)).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Drep(_)));
    assert_eq!(target.events(), disconnected(conn, DisconnectReason::Local));
    assert_eq!(target.feed(&drep(CLIENT, conn.comm_id())), Err(DropReason::CmDuplicate));
    target.advance(RESEND * 2);
    assert_eq!((target.sent(), target.events(), target.cm.len()), (vec![], vec![], 0));
}

#[test]
fn a_rejected_dreq_is_as_good_as_an_answered_one() {
    let mut target = Target::default();
    let conn = target.established(req(CLIENT));
    target.cm.disconnect(target.now, conn).unwrap();
    target.feed(&rej(CLIENT, conn.comm_id(), Answered::Other, RejReason::InvalidCommId, &[])).unwrap();
    assert_eq!(target.events(), disconnected(conn, DisconnectReason::Local));
}

// [CM-DISCONNECT-EARLY]
#[test]
fn disconnecting_before_the_rtu_reaches_either_kind_of_peer() {
    let mut target = Target::default();
    let conn = target.rep_sent(req(CLIENT));
    target.cm.disconnect(target.now, conn).unwrap();
    let sent = target.sent();
    let [CmMessage::Rej(rej), CmMessage::Dreq(dreq)] = sent.as_slice() else { panic!("{sent:?}") };
    assert_eq!((rej.answered, rej.reason, rej.remote_comm_id), (Answered::Req, RejReason::ConsumerDefined, CLIENT));
    assert_eq!(dreq.remote_qpn, CLIENT_QPN);
    target.feed(&drep(CLIENT, conn.comm_id())).unwrap();
    assert_eq!(target.events(), disconnected(conn, DisconnectReason::Local));
}

// [CM-TIMEWAIT]
#[test]
fn ids_and_queue_pairs_may_be_used_again_right_after_the_end() {
    let mut target = Target::default();
    let first = target.established(req(CLIENT));
    target.feed(&dreq(CLIENT, first.comm_id(), SERVER_QPN)).unwrap();
    let _ended = (target.events(), target.sent());
    let again = Req { starting_psn: Psn::new(1), ..req(CLIENT) };
    let second = target.established(again.clone());
    assert_ne!(first.comm_id(), second.comm_id(), "ours is new, the old one is in timewait");
    assert_eq!(target.cm.len(), 2);
    // The old connection's DREQ is still answered, without effect on the new one.
    target.feed(&dreq(CLIENT, first.comm_id(), SERVER_QPN)).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Drep(_)));
    target.advance(TIMEWAIT);
    assert_eq!((target.cm.len(), target.events()), (1, vec![]));
    assert_eq!(target.cm.connection(second).unwrap().state, ConnState::Established);
    // And the new one's keys are its own: its repetition is known.
    assert_eq!(target.feed(&CmMessage::Req(again)), Err(DropReason::CmDuplicate));
    target.feed(&CmMessage::Req(req(CLIENT + 1))).unwrap();
    let third = target.request().conn;
    assert_eq!(target.cm.replaced_by(third), [second]);
}

// [CM-STALE] [CM-STALE-ACCEPT]
#[test]
fn a_restarted_peer_replaces_its_old_connection() {
    let same_qpn = Req { starting_psn: Psn::new(1), ..req(CLIENT + 1) };
    let same_id = Req { starting_psn: Psn::new(1), local_qpn: CLIENT_QPN + 1, ..req(CLIENT) };
    let same_both = Req { starting_psn: Psn::new(1), ..req(CLIENT) };
    for again in [same_qpn, same_id, same_both] {
        // Established: one event, then the connection is removed.
        let mut target = Target::default();
        let old = target.established(req(CLIENT));
        target.feed(&CmMessage::Req(again.clone())).unwrap();
        let new = target.request();
        assert_eq!(target.cm.replaced_by(new.conn), [old]);
        target.accept(new.conn);
        assert_eq!(target.events(), disconnected(old, DisconnectReason::Stale));
        let sent = target.sent();
        let [CmMessage::Dreq(told), CmMessage::Rep(_)] = sent.as_slice() else { panic!("{sent:?}") };
        assert_eq!((told.local_comm_id, told.remote_comm_id), (old.comm_id(), CLIENT));
        target.feed(&rtu(again.local_comm_id, new.conn.comm_id())).unwrap();
        assert_eq!(target.events(), [CmEvent::Established { conn: new.conn }]);
        // The restarted peer answers the DREQ for ids it does not know; that may cross our timewait.
        assert_eq!(target.feed(&drep(CLIENT, old.comm_id())), Err(DropReason::CmDuplicate));
        target.advance(TIMEWAIT);
        assert_eq!((target.sent(), target.cm.len()), (vec![], 1));

        // Already closing: one event.
        let mut target = Target::default();
        let old = target.established(req(CLIENT));
        target.cm.disconnect(target.now, old).unwrap();
        target.feed(&CmMessage::Req(again.clone())).unwrap();
        let new = target.request();
        assert_eq!(target.cm.replaced_by(new.conn), []);
        target.accept(new.conn);
        assert_eq!(target.events(), disconnected(old, DisconnectReason::Stale));

        // Not established yet.
        let mut target = Target::default();
        let old = target.rep_sent(req(CLIENT));
        target.feed(&CmMessage::Req(again)).unwrap();
        let events = target.events();
        assert_eq!(events[0], CmEvent::ConnectFailed { conn: old, reason: ConnectFailure::Stale, rej: None });
        assert_eq!((target.cm.len(), target.cm.stats().stale.get()), (1, 1));
    }
}

// [CM-STALE]
#[test]
fn a_bad_request_replaces_nothing() {
    let mut target = Target::default();
    let old = target.established(req(CLIENT));
    target.feed(&CmMessage::Req(Req { path_mtu: 5, ..req(CLIENT + 1) })).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Rej(_)));
    assert_eq!(target.cm.connection(old).unwrap().state, ConnState::Established);
}

#[test]
fn two_old_connections_may_be_stale_at_once() {
    let mut target = Target::default();
    let a = target.established(req(CLIENT));
    let b = target.established(Req { local_qpn: 0x99, ..req(CLIENT + 1) });
    target.feed(&CmMessage::Req(Req { local_qpn: 0x99, starting_psn: Psn::new(1), ..req(CLIENT) })).unwrap();
    let new = target.request().conn;
    target.accept(new);
    let stale = DisconnectReason::Stale;
    assert_eq!(target.events(), [disconnected(a, stale), disconnected(b, stale)].concat());
}

#[test]
fn too_many_closing_connections_are_forgotten_early() {
    let config = CmConfig { max_closing: 2, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    let conns: Vec<_> = (1..=4).map(|id| target.established(Req { local_qpn: id, ..req(id) })).collect();
    for &conn in &conns {
        target.cm.disconnect(target.now, conn).unwrap();
    }
    let unanswered = DisconnectReason::LocalUnanswered;
    assert_eq!(target.events(), [disconnected(conns[0], unanswered), disconnected(conns[1], unanswered)].concat());
    assert_eq!((target.cm.len(), target.cm.stats().timewait_evicted.get()), (2, 2));
}

#[test]
fn mads_follow_a_peer_to_another_address() {
    let mut target = Target::default();
    let conn = target.established(req(CLIENT));
    target.cm.set_peer_mac(conn, MacAddr([2; 6])).unwrap();
    target.cm.disconnect(target.now, conn).unwrap();
    assert_eq!(target.cm.poll_transmit().unwrap().path.peer_mac, MacAddr([2; 6]));
}

#[test]
fn messages_for_nobody_are_counted() {
    let mut target = Target::default();
    for message in [rtu(1, 2), drep(1, 2), mra(1, 2, Answered::Rep, 20), rej(1, 2, Answered::Rep, RejReason::NoQp, &[])]
    {
        assert_eq!(target.feed(&message), Err(DropReason::CmUnknownId), "{message}");
    }
    assert_eq!(target.feed(&CmMessage::SidrRep(Default::default())), Err(DropReason::CmUnknownId));
    assert_eq!(target.cm.stats().rx_unknown_id.get(), 5);
    assert_eq!(target.sent(), []);
}
