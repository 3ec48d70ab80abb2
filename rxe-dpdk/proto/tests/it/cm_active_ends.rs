//! The active side: how attempts fail and connections end.

use crate::cm_support::{
    CLIENT_GUID, CLIENT_QPN, PEER, RESEND, SERVER_GUID, SERVER_QPN, Target, drep, dreq, rej, rep, req,
};
use rxe_proto::Duration;
use rxe_proto::cm::{CmError, CmEvent, ConnId, ConnState, ConnectFailure, DisconnectReason};
use rxe_proto::wire::DropReason;
use rxe_proto::wire::cm::{Answered, CmMessage, RejReason, Rep};

// [CM-ACTIVE-REJ]
#[test]
fn every_reason_of_a_rejection_reaches_the_user() {
    for code in 0..=36 {
        let reason = RejReason::from_code(code);
        // The REJ of a new REQ has no id; that of a REQ which the peer has passed to its program has one.
        for (theirs, answered) in [(0, Answered::Req), (PEER, Answered::Req), (PEER, Answered::Other)] {
            let mut target = Target::default();
            let conn = target.req_sent();
            let mut message = rej(theirs, conn.comm_id(), answered, reason, &[7]);
            if let CmMessage::Rej(rej) = &mut message {
                rej.private_data[..2].copy_from_slice(b"no");
            }
            target.feed(&message).unwrap();
            let (which, failure, rej) = target.connect_failed();
            assert_eq!((which, failure), (conn, ConnectFailure::PeerRejected(reason)));
            let rej = rej.unwrap();
            assert_eq!((rej.reason.code(), rej.ari(), &rej.private_data[..3]), (code, &[7][..], &b"no\0"[..]));
            assert_eq!((target.sent(), target.cm.len(), target.cm.next_timeout()), (vec![], 0, None));
        }
    }
}

// [CM-ACTIVE-REJ]
#[test]
fn a_rejection_of_something_else_is_not_ours() {
    let mut target = Target::default();
    let conn = target.req_sent();
    let wrong = rej(0, conn.comm_id() ^ 1, Answered::Req, RejReason::NoQp, &[]);
    assert_eq!(target.feed(&wrong), Err(DropReason::CmUnknownId));
    let of_rep = rej(PEER, conn.comm_id(), Answered::Rep, RejReason::NoQp, &[]);
    assert_eq!(target.feed(&of_rep), Err(DropReason::CmUnknownId));
    // On an established connection the REQ has been answered.
    let conn = target.confirmed(PEER);
    let late = rej(PEER, conn.comm_id(), Answered::Req, RejReason::ConsumerDefined, &[]);
    assert_eq!(target.feed(&late), Err(DropReason::CmUnexpected));
    // But a peer that has received no RTU may time out.
    let timeout = rej(PEER, conn.comm_id(), Answered::Other, RejReason::Timeout, &CLIENT_GUID.to_be_bytes());
    target.feed(&timeout).unwrap();
    let reason = DisconnectReason::PeerRejected(RejReason::Timeout);
    assert_eq!(target.events(), [CmEvent::Disconnected { conn, reason }]);
}

// [CM-ACTIVE-UNKNOWN]
#[test]
fn a_grant_that_nobody_waits_for_is_rejected() {
    let mut target = Target::default();
    let expect_rejected = |target: &mut Target, ours: u32, theirs: u32| {
        target.feed(&CmMessage::Rep(rep(theirs, ours))).unwrap();
        let CmMessage::Rej(rej) = target.sent_one() else { panic!() };
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (ours, theirs));
        assert_eq!((rej.answered, rej.reason), (Answered::Rep, RejReason::InvalidCommId));
        assert_eq!(target.events(), []);
    };
    expect_rejected(&mut target, 77, PEER);
    // A second REP to the same REQ.
    let conn = target.confirmed(PEER);
    expect_rejected(&mut target, conn.comm_id(), PEER + 1);
    assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::Established);
    // A REP to a REQ that the user has cancelled.
    let conn = target.req_sent();
    target.cm.disconnect(target.now, conn).unwrap();
    let _gone = (target.sent(), target.events());
    expect_rejected(&mut target, conn.comm_id(), PEER + 2);
    assert_eq!(target.cm.stats().rx_rep_unknown.get(), 3);
}

// [CM-REJ-IDS]
#[test]
fn the_user_may_reject_a_grant() {
    let mut target = Target::default();
    let conn = target.rep_received(PEER);
    target.cm.reject(conn, RejReason::ConsumerDefined, &[1], b"no").unwrap();
    let CmMessage::Rej(rej) = target.sent_one() else { panic!() };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (conn.comm_id(), PEER));
    assert_eq!((rej.answered, rej.reason, rej.ari()), (Answered::Rep, RejReason::ConsumerDefined, &[1][..]));
    assert_eq!((target.events(), target.cm.len(), target.cm.next_timeout()), (vec![], 0, None));
    // A REQ that is not answered yet can be cancelled, not rejected.
    let conn = target.req_sent();
    assert_eq!(target.cm.reject(conn, RejReason::NoQp, &[], &[]), Err(CmError::WrongState));
}

// [CM-ACTIVE-RETRY]
#[test]
fn the_user_may_give_up_at_any_time() {
    let local = |conn| CmEvent::Disconnected { conn, reason: DisconnectReason::Local };
    let mut target = Target::default();
    let conn = target.req_sent();
    target.cm.disconnect(target.now, conn).unwrap();
    assert_eq!(target.events(), [local(conn)]);
    let CmMessage::Rej(rej) = target.sent_one() else { panic!() };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.reason), (conn.comm_id(), 0, RejReason::Timeout));
    assert_eq!(rej.ari(), SERVER_GUID.to_be_bytes());
    assert_eq!(target.cm.stats().abandoned.get(), 1);

    let conn = target.rep_received(PEER);
    target.cm.disconnect(target.now, conn).unwrap();
    assert_eq!(target.events(), [local(conn)]);
    let CmMessage::Rej(rej) = target.sent_one() else { panic!() };
    assert_eq!((rej.answered, rej.reason), (Answered::Rep, RejReason::ConsumerDefined));

    let conn = target.confirmed(PEER);
    target.cm.disconnect(target.now, conn).unwrap();
    let CmMessage::Dreq(bye) = target.sent_one() else { panic!() };
    assert_eq!((bye.local_comm_id, bye.remote_comm_id, bye.remote_qpn), (conn.comm_id(), PEER, CLIENT_QPN));
    target.feed(&drep(PEER, conn.comm_id())).unwrap();
    assert_eq!(target.events(), [local(conn)]);
    target.advance(Duration::from_secs(3));
    assert!(target.cm.is_empty());
}

// [CM-ACTIVE-DREQ]
#[test]
fn the_peer_may_disconnect_at_any_time() {
    let bye = |conn: ConnId| dreq(PEER, conn.comm_id(), SERVER_QPN);
    let answered = |target: &mut Target, conn: ConnId| {
        let drep = target.sent_one();
        assert!(matches!(drep, CmMessage::Drep(_)));
        assert_eq!(drep.comm_ids(), (conn.comm_id(), PEER));
        assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::Timewait);
    };
    // Its REP was lost, or arrives later.
    let mut target = Target::default();
    let conn = target.req_sent();
    target.feed(&bye(conn)).unwrap();
    answered(&mut target, conn);
    assert_eq!(target.connect_failed(), (conn, ConnectFailure::PeerDisconnected, None));
    target.feed(&CmMessage::Rep(rep(PEER, conn.comm_id()))).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Rej(_)));
    assert_eq!(target.events(), [], "no connection after its end");
    // Another queue pair is another connection; the DREQ is answered all the same.
    let mut target = Target::default();
    let conn = target.req_sent();
    target.feed(&dreq(PEER, conn.comm_id(), SERVER_QPN + 1)).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Drep(_)));
    assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::ReqSent);

    let mut target = Target::default();
    let conn = target.rep_received(PEER);
    target.feed(&bye(conn)).unwrap();
    answered(&mut target, conn);
    assert_eq!(target.connect_failed(), (conn, ConnectFailure::PeerDisconnected, None));
    assert_eq!(target.cm.confirm(conn, &[]), Err(CmError::WrongState));

    let mut target = Target::default();
    let conn = target.confirmed(PEER);
    target.feed(&bye(conn)).unwrap();
    answered(&mut target, conn);
    assert_eq!(target.events(), [CmEvent::Disconnected { conn, reason: DisconnectReason::Peer }]);
    // Its DREP was lost.
    target.feed(&bye(conn)).unwrap();
    answered(&mut target, conn);
    assert_eq!(target.events(), []);
}

// [CM-DREQ-CROSS]
#[test]
fn dreqs_may_cross() {
    let mut target = Target::default();
    let conn = target.confirmed(PEER);
    target.cm.disconnect(target.now, conn).unwrap();
    let _dreq = target.sent();
    target.feed(&dreq(PEER, conn.comm_id(), SERVER_QPN)).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Drep(_)));
    assert_eq!(target.events(), [CmEvent::Disconnected { conn, reason: DisconnectReason::Local }]);
    assert_eq!(target.feed(&drep(PEER, conn.comm_id())), Err(DropReason::CmDuplicate));
    target.advance(RESEND * 2);
    assert_eq!((target.sent(), target.events(), target.cm.len()), (vec![], vec![], 0));
}

// [CM-STALE]
#[test]
fn a_restarted_peer_replaces_its_old_connections() {
    // The queue pair of the old connection, its id, or both, in the REP of a new one; or in a REQ of the peer.
    let again = |ours: u32| {
        let other = Rep { local_qpn: CLIENT_QPN + 1, ..rep(PEER, ours) };
        [rep(PEER + 1, ours), other, rep(PEER, ours)]
    };
    for which in 0..3 {
        let mut target = Target::default();
        let old = target.confirmed(PEER);
        let new = target.req_sent();
        target.feed(&CmMessage::Rep(again(new.comm_id())[which].clone())).unwrap();
        let events = target.events();
        let [CmEvent::Disconnected { conn, reason: DisconnectReason::Stale }, CmEvent::ConnectReply(reply)] =
            events.as_slice()
        else {
            panic!("{events:?}")
        };
        assert_eq!((*conn, reply.conn), (old, new));
        let CmMessage::Dreq(told) = target.sent_one() else { panic!() };
        assert_eq!((told.local_comm_id, told.remote_comm_id), (old.comm_id(), PEER));
        target.cm.confirm(new, &[]).unwrap();
        assert_eq!(target.events(), [CmEvent::Established { conn: new }]);
    }
    let mut target = Target::default();
    let old = target.rep_received(PEER);
    target.feed(&CmMessage::Req(req(PEER + 1))).unwrap();
    let events = target.events();
    let [CmEvent::ConnectFailed { conn, reason: ConnectFailure::Stale, rej: None }, CmEvent::ConnectRequest(_)] =
        events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!(*conn, old);
    assert_eq!(target.cm.stats().stale.get(), 1);
}

#[test]
fn ids_and_queue_pairs_may_be_used_again_right_after_the_end() {
    let mut target = Target::default();
    let first = target.confirmed(PEER);
    target.feed(&dreq(PEER, first.comm_id(), SERVER_QPN)).unwrap();
    let _ended = (target.events(), target.sent());
    let second = target.confirmed(PEER);
    assert_ne!(first.comm_id(), second.comm_id());
    // The old connection's DREQ is still answered, without effect on the new one.
    target.feed(&dreq(PEER, first.comm_id(), SERVER_QPN)).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Drep(_)));
    target.advance(Duration::from_secs(3));
    assert_eq!((target.cm.len(), target.events()), (1, vec![]));
    assert_eq!(target.cm.connection(second).unwrap().state, ConnState::Established);
    // The new connection is found by its own ids.
    target.feed(&CmMessage::Req(req(PEER + 1))).unwrap();
    let new = target.request().conn;
    assert_eq!(target.cm.replaced_by(new), [second]);
}
