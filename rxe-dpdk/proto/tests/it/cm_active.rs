//! The active side establishes connections: REQ, REP, RTU, and every message in between.

use std::net::Ipv4Addr;

use crate::cm_support::{
    CLIENT_GUID, CLIENT_IP, CLIENT_QPN, PEER, RESEND, SERVER_GUID, SERVER_IP, SERVER_QPN, Target, connect_params, drep,
    mra, ms, path, rep, req, rtu,
};
use rxe_proto::Duration;
use rxe_proto::cm::{CmConfig, CmError, CmEvent, ConnState, ConnectFailure, ConnectParams, ConnectReply, MadPath};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{Answered, CmMessage, CmTransport, IpAddressing, PortSpace, RejReason, Rep, Req, ServiceId};
use rxe_proto::wire::{DropReason, Gid, PathMtu, Psn};

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
        // At most the requested number; our queue pair accepts or refuses the other.
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
    assert_eq!(target.connect_failed(), (conn, ConnectFailure::Timeout, None));
    // If only the answers were lost, the REJ ends the peer's wait for our RTU.
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
    assert_eq!(target.connect_failed(), (conn, ConnectFailure::Timeout, None));
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
    // No RTU after the end of the connection: the DREQ announces that.
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
    assert_eq!(target.connect_failed(), (conn, ConnectFailure::NotAnswered, None));
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
    // A service timeout of hours is limited.
    target.feed(&mra(PEER, conn.comm_id(), Answered::Req, 31)).unwrap();
    target.advance(Duration::from_secs(80));
    assert_eq!(target.sent().len(), 1);
    assert_eq!(target.feed(&mra(PEER, conn.comm_id(), Answered::Rep, 21)), Err(DropReason::CmUnexpected));
    target.feed(&CmMessage::Rep(rep(PEER, conn.comm_id()))).unwrap();
    assert_eq!(target.feed(&mra(PEER, conn.comm_id(), Answered::Req, 21)), Err(DropReason::CmUnexpected));
    assert_eq!(target.cm.stats().mra_honoured.get(), 2);
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
