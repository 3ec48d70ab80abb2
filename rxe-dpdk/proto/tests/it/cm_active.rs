//! The active side: REQ, REP, RTU, and every message in between.

use std::net::Ipv4Addr;

use crate::cm_support::{
    CLIENT_GUID, CLIENT_IP, CLIENT_QPN, SERVER_GUID, SERVER_IP, SERVER_QPN, Target, connect_params, drep, dreq, mra,
    ms, path, rej, rep, req, rtu,
};
use rxe_proto::Duration;
use rxe_proto::cm::{
    CmConfig, CmError, CmEvent, ConnId, ConnState, ConnectFailure, ConnectParams, ConnectReply, DisconnectReason,
    MadPath,
};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{
    Answered, CmMessage, CmTransport, IpAddressing, PortSpace, Rej, RejReason, Rep, Req, ServiceId,
};
use rxe_proto::wire::{DropReason, Gid, PathMtu, Psn};

/// 4.096 us * (2^20 + 2^19): the peer's time to answer and an ACK timeout.
const RESEND: Duration = Duration::from_nanos(6_442_450_944);
/// The peer's id.
const PEER: u32 = 0x1111;

fn failed_by(target: &mut Target) -> (ConnId, ConnectFailure, Option<Box<Rej>>) {
    match target.events().as_slice() {
        [CmEvent::ConnectFailed { conn, reason, rej }] => (*conn, *reason, rej.clone()),
        other => panic!("{other:?}"),
    }
}

// [CM-ACTIVE-REQ]
#[test]
fn our_req_has_every_requested_field() {
    let mut target = Target::default();
    let path = MadPath { traffic_class: 0xB9, ..path() };
    let ports = (40000, 7174);
    let params = ConnectParams {
        responder_resources: 16,
        initiator_depth: 4,
        retry_count: 200,
        rnr_retry_count: 3,
        srq: true,
        private_data: b"hello".to_vec(),
        ..ConnectParams::new(path, ports, Qpn::new(SERVER_QPN), Psn::new(0x29480F), PathMtu::Mtu4096)
    };
    let conn = target.cm.connect(target.now, params).unwrap();
    let transmit = target.cm.poll_transmit().unwrap();
    assert_eq!(transmit.path.traffic_class, 0xB8, "without congestion marks");
    let CmMessage::Req(sent) = CmMessage::parse(&*transmit.mad).unwrap().1 else { panic!() };
    let mut expect = Req {
        local_comm_id: conn.comm_id(),
        service_id: ServiceId::new(PortSpace::Tcp, 7174),
        local_ca_guid: SERVER_GUID,
        local_qpn: SERVER_QPN,
        responder_resources: 16,
        initiator_depth: 4,
        remote_response_timeout: 20,
        starting_psn: Psn::new(0x29480F),
        local_response_timeout: 20,
        retry_count: 7,
        pkey: 0xFFFF,
        path_mtu: 5,
        rnr_retry_count: 3,
        max_cm_retries: 15,
        srq: true,
        ..Req::default()
    };
    (expect.primary.local_lid, expect.primary.remote_lid) = (0xFFFF, 0xFFFF);
    (expect.primary.local_gid, expect.primary.remote_gid) = (SERVER_IP.into(), CLIENT_IP.into());
    (expect.primary.traffic_class, expect.primary.hop_limit) = (0xB8, 64);
    (expect.primary.flow_label, expect.primary.ack_timeout) = ((40000 * 31 + 7174) & 0xF_FFFF, 19);
    let addressing = IpAddressing::new((SERVER_IP.into(), 40000), CLIENT_IP.into()).unwrap();
    assert!(expect.set_private_data(&addressing, b"hello"));
    assert_eq!(sent, expect);
    let info = target.cm.connection(conn).unwrap();
    assert_eq!((info.state, info.local_qpn), (ConnState::ReqSent, Some(Qpn::new(SERVER_QPN))));
    assert_eq!((info.remote_qpn, info.remote_comm_id, info.remote_ca_guid), (0, 0, 0));
}

#[test]
fn invalid_sidr_parameters_are_refused() {
    let mut target = Target::default();
    let with = |change: &dyn Fn(&mut ConnectParams)| {
        let mut params = connect_params();
        change(&mut params);
        params
    };
    let v6 = Gid([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let cases = [
        (with(&|params| params.path.peer = v6), CmError::Address),
        (with(&|params| params.path.peer = Ipv4Addr::new(239, 1, 1, 1).into()), CmError::Address),
        (with(&|params| params.path.local = Gid::default()), CmError::Address),
        (with(&|params| params.private_data = vec![0; 57]), CmError::TooLong),
        (with(&|params| params.transport = CmTransport::Rd), CmError::Transport),
        (with(&|params| params.transport = CmTransport::Extended), CmError::Transport),
    ];
    for (params, error) in cases {
        assert_eq!(target.cm.connect(target.now, params), Err(error));
    }
    assert_eq!((target.sent(), target.cm.len(), target.cm.next_timeout()), (vec![], 0, None));

    let config = CmConfig { max_connections: 3, max_pending: 2, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    let first = target.confirmed(1);
    let _two = (target.req_sent(), target.req_sent());
    assert_eq!(target.cm.connect(target.now, connect_params()), Err(CmError::Limit), "three in all, two pending");
    target.cm.disconnect(target.now, first).unwrap();
    assert_eq!(target.cm.connect(target.now, connect_params()), Err(CmError::Limit), "two pending");
    assert_eq!(target.cm.stats().connects.get(), 3);
}

// [CM-ACTIVE-RTU] [CM-ACTIVE-GRANT]
#[test]
fn connect_reply_has_every_field_of_the_rep() {
    let mut target = Target::default();
    let params = ConnectParams { responder_resources: 16, initiator_depth: 4, ..connect_params() };
    let conn = target.cm.connect(target.now, params).unwrap();
    let req = target.transmits();
    let mut private_data = [0; Rep::PRIVATE_DATA_LEN];
    private_data[..7].copy_from_slice(b"welcome");
    let answer = Rep {
        responder_resources: 128,
        initiator_depth: 128,
        target_ack_delay: 18,
        rnr_retry_count: 5,
        flow_control: true,
        srq: true,
        private_data,
        ..rep(PEER, conn.comm_id())
    };
    target.feed(&CmMessage::Rep(answer)).unwrap();
    let expect = ConnectReply {
        conn,
        remote_qpn: CLIENT_QPN,
        starting_psn: Psn::new(0xDCD52E),
        // No more than we asked for; the other is for our queue pair to hold or to refuse.
        responder_resources: 4,
        initiator_depth: 128,
        rnr_retry_count: 5,
        local_ack_timeout: 20,
        flow_control: true,
        srq: true,
        ca_guid: CLIENT_GUID,
        remote_comm_id: PEER,
        private_data,
    };
    assert_eq!(target.reply(), expect);
    let info = target.cm.connection(conn).unwrap();
    assert_eq!((info.state, info.remote_comm_id, info.remote_qpn), (ConnState::RepReceived, PEER, CLIENT_QPN));
    assert_eq!(target.sent(), [], "the queue pair comes first");
    assert_eq!(target.cm.confirm(conn, &[0; 225]), Err(CmError::TooLong));
    target.cm.confirm(conn, b"thanks").unwrap();
    let sent = target.transmits();
    let [rtu] = sent.as_slice() else { panic!("{sent:?}") };
    let (header, message) = CmMessage::parse(&*rtu.mad).unwrap();
    let (asked, _) = CmMessage::parse(&*req[0].mad).unwrap();
    assert_eq!(header.transaction_id, asked.transaction_id, "one exchange");
    let CmMessage::Rtu(rtu) = message else { panic!() };
    assert_eq!(
        (rtu.local_comm_id, rtu.remote_comm_id, &rtu.private_data[..7]),
        (conn.comm_id(), PEER, &b"thanks\0"[..])
    );
    assert_eq!(target.events(), [CmEvent::Established { conn }]);
    assert_eq!(target.cm.next_timeout(), None);
    assert_eq!(target.cm.confirm(conn, &[]), Err(CmError::WrongState));
}

#[test]
fn unreliable_connections_are_requested_by_transport() {
    let mut target = Target::default();
    let params = ConnectParams { transport: CmTransport::Uc, ..connect_params() };
    target.cm.connect(target.now, params).unwrap();
    let CmMessage::Req(req) = target.sent_one() else { panic!() };
    assert_eq!(req.transport, CmTransport::Uc);
}

// [CM-ACTIVE-RETRY]
#[test]
fn a_req_is_sent_again_until_answered() {
    let mut target = Target::default();
    let conn = target.cm.connect(target.now, connect_params()).unwrap();
    let first = target.transmits();
    target.advance(RESEND - ms(1));
    assert_eq!(target.transmits(), []);
    for _ in 0..3 {
        target.advance(RESEND);
        assert_eq!(target.transmits(), first, "byte for byte");
    }
    target.feed(&CmMessage::Rep(rep(PEER, conn.comm_id()))).unwrap();
    assert_eq!(target.reply().conn, conn);
    target.advance(RESEND * 2);
    assert_eq!(target.transmits(), []);
    assert_eq!(target.cm.stats().tx_req_retry.get(), 3);
}

// [CM-ACTIVE-RETRY]
#[test]
fn an_unanswered_req_is_given_up() {
    let mut target = Target::default();
    let conn = target.req_sent();
    target.advance(RESEND * 15);
    assert_eq!((target.sent().len(), target.events()), (15, vec![]), "16 in all");
    target.advance(RESEND);
    assert_eq!(failed_by(&mut target), (conn, ConnectFailure::Timeout, None));
    // Perhaps only the answers are lost: then the peer must not wait for our RTU.
    let CmMessage::Rej(rej) = target.sent_one() else { panic!() };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (conn.comm_id(), 0));
    assert_eq!((rej.answered, rej.reason), (Answered::Other, RejReason::Timeout));
    assert_eq!(rej.ari(), SERVER_GUID.to_be_bytes());
    assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None));
    assert_eq!(target.cm.stats().req_timeout.get(), 1);
}

#[test]
fn times_and_retries_are_the_users() {
    let mut target = Target::default();
    let hasty = ConnectParams { response_timeout: 10, local_ack_timeout: 10, max_cm_retries: 2, ..connect_params() };
    let conn = target.cm.connect(target.now, hasty).unwrap();
    target.advance(ms(149));
    assert_eq!(target.sent().len(), 3);
    assert_eq!(target.events(), []);
    target.advance(ms(1));
    assert_eq!(failed_by(&mut target), (conn, ConnectFailure::Timeout, None));
}

// [CM-ACTIVE-RTU]
#[test]
fn a_lost_rtu_is_sent_again() {
    let mut target = Target::default();
    let conn = target.req_sent();
    let answer = CmMessage::Rep(rep(PEER, conn.comm_id()));
    target.feed(&answer).unwrap();
    let _reply = target.events();
    target.cm.confirm(conn, b"once").unwrap();
    let first = target.transmits();
    for _ in 0..3 {
        target.feed(&answer).unwrap();
        assert_eq!(target.transmits(), first, "byte for byte");
    }
    assert_eq!(target.events(), [CmEvent::Established { conn }]);
    // Not any more once it is over: the DREQ says so, or has said so.
    target.cm.disconnect(target.now, conn).unwrap();
    let _dreq = target.sent();
    assert_eq!(target.feed(&answer), Err(DropReason::CmDuplicate));
    target.feed(&drep(PEER, conn.comm_id())).unwrap();
    assert_eq!(target.feed(&answer), Err(DropReason::CmDuplicate));
    assert_eq!(target.sent(), []);
    let stats = target.cm.stats();
    assert_eq!((stats.rx_rep_duplicate_answered.get(), stats.rx_rep_duplicate.get(), stats.tx_rtu.get()), (3, 2, 4));
}

// [CM-ANSWER-TIMEOUT] [CM-MRA-SEND]
#[test]
fn a_repeated_rep_before_confirm_is_answered_by_an_mra() {
    let mut target = Target::default();
    let conn = target.rep_received(PEER);
    target.feed(&CmMessage::Rep(rep(PEER, conn.comm_id()))).unwrap();
    let CmMessage::Mra(mra) = target.sent_one() else { panic!() };
    assert_eq!((mra.local_comm_id, mra.remote_comm_id), (conn.comm_id(), PEER));
    assert_eq!((mra.answered, mra.service_timeout), (Answered::Rep, 20));
    assert_eq!(target.events(), [], "told once");
    target.cm.confirm(conn, &[]).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Rtu(_)));

    // Too slow.
    let mut target = Target::default();
    let conn = target.rep_received(PEER);
    target.advance(ms(90_000));
    assert_eq!(failed_by(&mut target), (conn, ConnectFailure::NotAnswered, None));
    let CmMessage::Rej(rej) = target.sent_one() else { panic!() };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (conn.comm_id(), PEER));
    assert_eq!((rej.answered, rej.reason), (Answered::Rep, RejReason::NoResources));
    assert_eq!(target.cm.confirm(conn, &[]), Err(CmError::Unknown));
    assert!(target.cm.is_empty());
}

// [CM-MRA]
#[test]
fn an_mra_puts_the_next_req_off() {
    let mut target = Target::default();
    let conn = target.req_sent();
    target.advance(RESEND);
    assert_eq!(target.sent().len(), 1);
    // 2^21 * 4.096 us and 2.1 s on top.
    target.feed(&mra(PEER, conn.comm_id(), Answered::Req, 21)).unwrap();
    target.advance(Duration::from_nanos(4096 * ((1 << 21) + (1 << 19)) - 1));
    assert_eq!(target.sent(), []);
    target.advance(Duration::from_nanos(1));
    assert_eq!(target.sent().len(), 1);
    target.advance(RESEND);
    assert_eq!(target.sent().len(), 1, "once only");
    // A promise of hours is not believed.
    target.feed(&mra(PEER, conn.comm_id(), Answered::Req, 31)).unwrap();
    target.advance(Duration::from_secs(80));
    assert_eq!(target.sent().len(), 1);
    assert_eq!(target.feed(&mra(PEER, conn.comm_id(), Answered::Rep, 21)), Err(DropReason::CmUnexpected));
    target.feed(&CmMessage::Rep(rep(PEER, conn.comm_id()))).unwrap();
    assert_eq!(target.feed(&mra(PEER, conn.comm_id(), Answered::Req, 21)), Err(DropReason::CmUnexpected));
    assert_eq!(target.cm.stats().mra_honoured.get(), 2);
}

// [CM-ACTIVE-REJ]
#[test]
fn every_reason_of_a_rejection_reaches_the_user() {
    for code in 0..=36 {
        let reason = RejReason::from_code(code);
        // A fresh REQ is rejected without an id, one that the peer had shown to its program with one.
        for (theirs, answered) in [(0, Answered::Req), (PEER, Answered::Req), (PEER, Answered::Other)] {
            let mut target = Target::default();
            let conn = target.req_sent();
            let mut message = rej(theirs, conn.comm_id(), answered, reason, &[7]);
            if let CmMessage::Rej(rej) = &mut message {
                rej.private_data[..2].copy_from_slice(b"no");
            }
            target.feed(&message).unwrap();
            let (which, failure, rej) = failed_by(&mut target);
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
    // An established connection is past its REQ.
    let conn = target.confirmed(PEER);
    let late = rej(PEER, conn.comm_id(), Answered::Req, RejReason::ConsumerDefined, &[]);
    assert_eq!(target.feed(&late), Err(DropReason::CmUnexpected));
    // But a peer whose RTUs were all lost has given it up.
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
    // A second grant of the same REQ.
    let conn = target.confirmed(PEER);
    expect_rejected(&mut target, conn.comm_id(), PEER + 1);
    assert_eq!(target.cm.connection(conn).unwrap().state, ConnState::Established);
    // One that the user did not want to wait for.
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
    // A REQ that is not answered yet is given up, not rejected.
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
    // Its REP was lost, or comes later.
    let mut target = Target::default();
    let conn = target.req_sent();
    target.feed(&bye(conn)).unwrap();
    answered(&mut target, conn);
    assert_eq!(failed_by(&mut target), (conn, ConnectFailure::PeerDisconnected, None));
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
    assert_eq!(failed_by(&mut target), (conn, ConnectFailure::PeerDisconnected, None));
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
    // The queue pair of the old connection, its id, or both, in the grant of a new one; or in a REQ of the peer's own.
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
    // The old one's DREQ is still answered, without harm to the new one.
    target.feed(&dreq(PEER, first.comm_id(), SERVER_QPN)).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Drep(_)));
    target.advance(Duration::from_secs(3));
    assert_eq!((target.cm.len(), target.events()), (1, vec![]));
    assert_eq!(target.cm.connection(second).unwrap().state, ConnState::Established);
    // And the new one's keys are its own.
    target.feed(&CmMessage::Req(req(PEER + 1))).unwrap();
    let new = target.request().conn;
    assert_eq!(target.cm.replaced_by(new), [second]);
}

#[test]
fn the_sides_do_not_mix() {
    let mut target = Target::default();
    let conn = target.confirmed(PEER);
    assert_eq!(target.feed(&rtu(PEER, conn.comm_id())), Err(DropReason::CmUnexpected));
    assert_eq!(target.cm.accept(target.now, conn, crate::cm_support::accept_params()), Err(CmError::WrongState));
    assert_eq!(target.cm.established(conn), Ok(()), "it is");
    let mut target = Target::default();
    let conn = target.rep_sent(req(PEER));
    assert_eq!(target.feed(&CmMessage::Rep(rep(PEER, conn.comm_id()))), Err(DropReason::CmUnexpected));
    assert_eq!(target.cm.confirm(conn, &[]), Err(CmError::WrongState));
}

#[test]
fn a_grant_waits_while_too_much_is_unread() {
    let config = CmConfig { max_events: 2, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    let conn = target.req_sent();
    target.feed(&CmMessage::Req(Req { local_qpn: 1, ..req(1) })).unwrap();
    target.feed(&CmMessage::Req(Req { local_qpn: 2, ..req(2) })).unwrap();
    let answer = CmMessage::Rep(rep(PEER, conn.comm_id()));
    assert_eq!(target.feed(&answer), Err(DropReason::CmLimit));
    let _requests = target.events();
    target.feed(&answer).unwrap();
    assert_eq!(target.reply().conn, conn);
}
