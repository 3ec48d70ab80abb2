//! REQs that reach a service, REQs that are rejected and with which reason, and the content of the answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cm_support::{
    CLIENT_GUID, CLIENT_IP, CLIENT_QPN, SERVER_GUID, SERVER_IP, SERVER_QPN, Target, accept_params, mad_of, ms, path,
    path_from, req,
};
use rxe_proto::cm::{AcceptParams, CmConfig, CmError, CmEvent, ConnState, ConnectFailure};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{Answered, CmMessage, CmTransport, IpAddressing, PortSpace, RejReason, Rep, Req, ServiceId};
use rxe_proto::wire::{DropReason, Gid, PathMtu, Psn};

#[test]
fn connect_request_has_every_field_of_the_req() {
    let mut target = Target::default();
    let mut req = req(0x1111);
    req.flow_control = true;
    req.primary.flow_label = 0xC28C3;
    req.primary.traffic_class = 0xB9;
    req.rnr_retry_count = 0;
    target.feed(&CmMessage::Req(req)).unwrap();
    let request = target.request();
    assert_eq!(request.source, (CLIENT_IP.into(), 40000));
    assert_eq!(request.dest, (SERVER_IP.into(), 7174));
    assert_eq!(request.service_id, ServiceId::new(PortSpace::Tcp, 7174));
    assert_eq!((request.remote_qpn, request.starting_psn), (CLIENT_QPN, Psn::new(0x29480F)));
    assert_eq!(request.path_mtu, PathMtu::Mtu1024);
    assert_eq!((request.retry_count, request.rnr_retry_count, request.local_ack_timeout), (7, 0, 19));
    assert_eq!((request.flow_label, request.traffic_class), (0xC28C3, 0xB9));
    assert_eq!((request.peer_gid, request.local_gid), (CLIENT_IP.into(), SERVER_IP.into()));
    assert_eq!((request.ca_guid, request.remote_comm_id), (CLIENT_GUID, 0x1111));
    assert!(request.flow_control && !request.srq);
    assert_eq!(&request.private_data[..4], b"ulp\0");
    assert_eq!(request.path.traffic_class, 0xB8, "the REQ's, without congestion marks");
    let info = target.cm.connection(request.conn).unwrap();
    assert_eq!((info.state, info.local_qpn), (ConnState::ReqReceived, None));
}

// [CM-TRANSACTION] [CM-REP-DEPTHS]
#[test]
fn the_rep_has_the_accepted_parameters() {
    let mut target = Target::default();
    let mut asked = req(0x1111);
    asked.flow_control = true;
    asked.responder_resources = 128;
    asked.initiator_depth = 4;
    target.feed_from(&path(), 0xABCD_0000_1234, &CmMessage::Req(asked)).unwrap();
    let request = target.request();
    let params = AcceptParams {
        private_data: b"welcome".to_vec(),
        ..AcceptParams::for_request(&request, Qpn::new(SERVER_QPN), Psn::new(0xDCD52E), 16, 16)
    };
    assert_eq!((params.responder_resources, params.initiator_depth), (4, 16));
    target.cm.accept(target.now, request.conn, params).unwrap();
    let transmit = target.cm.poll_transmit().unwrap();
    assert_eq!(transmit.path, path());
    let (header, message) = CmMessage::parse(&*transmit.mad).unwrap();
    assert_eq!(header.transaction_id, 0xABCD_0000_1234, "echoed");
    assert_eq!((header.attribute_modifier, header.status), (0, 0));
    let mut private_data = [0; Rep::PRIVATE_DATA_LEN];
    private_data[..7].copy_from_slice(b"welcome");
    let expect = Rep {
        local_comm_id: request.conn.comm_id(),
        remote_comm_id: 0x1111,
        local_qpn: SERVER_QPN,
        starting_psn: Psn::new(0xDCD52E),
        responder_resources: 4,
        initiator_depth: 16,
        target_ack_delay: 15,
        flow_control: true,
        rnr_retry_count: 7,
        local_ca_guid: SERVER_GUID,
        private_data,
        ..Rep::default()
    };
    assert_eq!(message, CmMessage::Rep(expect));
    assert_eq!(target.cm.connection(request.conn).unwrap().local_qpn, Some(Qpn::new(SERVER_QPN)));
}

/// A REQ with one fault.
fn faulty(fault: impl FnOnce(&mut Req)) -> Req {
    let mut req = req(0x77);
    fault(&mut req);
    req
}

fn addressed(req: &mut Req, change: impl FnOnce(&mut IpAddressing)) {
    let mut addressing = req.ip_addressing();
    change(&mut addressing);
    assert!(req.set_private_data(&addressing, b""));
}

// [CM-IP-HEADER] [CM-REJ-REASON] [CM-NO-APM]
#[test]
fn invalid_reqs_are_rejected_with_their_reason() {
    let ours = Gid::from(SERVER_IP).0;
    let v6 = Gid::from("fd00:77::2".parse::<Ipv6Addr>().unwrap());
    let cases: Vec<(&str, Req, RejReason, &[u8])> = vec![
        ("all zero", Req { local_comm_id: 0x77, ..Req::default() }, RejReason::InvalidServiceId, &[]),
        (
            "datagram port",
            faulty(|req| req.service_id = ServiceId::new(PortSpace::Udp, 7174)),
            RejReason::InvalidServiceId,
            &[],
        ),
        ("stray bit", faulty(|req| req.service_id.0 |= 1 << 40), RejReason::InvalidServiceId, &[]),
        ("RD", faulty(|req| req.transport = CmTransport::Rd), RejReason::InvalidTransportType, &[]),
        ("XRC", faulty(|req| req.transport = CmTransport::Extended), RejReason::InvalidTransportType, &[]),
        ("partition", faulty(|req| req.pkey = 0x1234), RejReason::InvalidGid, &ours),
        ("foreign GID", faulty(|req| req.primary.remote_gid = CLIENT_IP.into()), RejReason::InvalidGid, &ours),
        ("no peer GID", faulty(|req| req.primary.local_gid = Gid::default()), RejReason::InvalidGid, &ours),
        (
            "multicast peer",
            faulty(|req| req.primary.local_gid = Ipv4Addr::new(239, 1, 1, 1).into()),
            RejReason::InvalidGid,
            &ours,
        ),
        ("mixed families", faulty(|req| req.primary.local_gid = v6), RejReason::InvalidGid, &ours),
        ("alternate path", faulty(|req| req.alternate.local_lid = 1), RejReason::InvalidAlternateGid, &ours),
        ("MTU 0", faulty(|req| req.path_mtu = 0), RejReason::InvalidMtu, &[3]),
        ("MTU 2048", faulty(|req| req.path_mtu = 4), RejReason::InvalidMtu, &[3]),
        ("MTU 7", faulty(|req| req.path_mtu = 7), RejReason::InvalidMtu, &[3]),
        ("header version", faulty(|req| addressed(req, |ip| ip.version = 0x10)), RejReason::ConsumerDefined, &[]),
        ("IP version", faulty(|req| addressed(req, |ip| ip.ip_version = 5)), RejReason::ConsumerDefined, &[]),
        ("foreign IP", faulty(|req| addressed(req, |ip| ip.dst[15] = 9)), RejReason::ConsumerDefined, &[]),
        ("no source IP", faulty(|req| addressed(req, |ip| ip.src = [0; 16])), RejReason::ConsumerDefined, &[]),
        ("broadcast", faulty(|req| addressed(req, |ip| ip.src = [255; 16])), RejReason::ConsumerDefined, &[]),
    ];
    for (name, req, reason, ari) in cases {
        let mut target = Target::default();
        target.feed_from(&path(), 0x5EED, &CmMessage::Req(req)).unwrap();
        assert_eq!(target.events(), [], "{name}");
        let transmit = target.cm.poll_transmit().unwrap();
        let (header, message) = CmMessage::parse(&*transmit.mad).unwrap();
        let CmMessage::Rej(rej) = message else { panic!("{name}: {message:?}") };
        assert_eq!(header.transaction_id, 0x5EED, "{name}");
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (0, 0x77), "{name}");
        assert_eq!((rej.answered, rej.reason, rej.ari()), (Answered::Req, reason, ari), "{name}");
        assert_eq!(rej.private_data, [0; 148], "{name}");
        assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None), "{name}");
    }
}

// [CM-LENIENT]
#[test]
fn reqs_that_linux_accepts_are_accepted() {
    let cases: Vec<(&str, Req)> = vec![
        ("limited member", faulty(|req| req.pkey = 0x7FFF)),
        ("LIDs", faulty(|req| (req.primary.local_lid, req.primary.remote_lid) = (0, 0))),
        ("subnet local", faulty(|req| req.primary.subnet_local = true)),
        ("no GUID", faulty(|req| req.local_ca_guid = 0)),
        ("no QPN", faulty(|req| req.local_qpn = 0)),
        ("no id", faulty(|req| req.local_comm_id = 0)),
        ("no retries", faulty(|req| (req.retry_count, req.max_cm_retries, req.local_response_timeout) = (0, 0, 0))),
        ("small MTU", faulty(|req| req.path_mtu = 1)),
        ("vendor options", faulty(|req| req.vendor_id = 0x15B3)),
        ("another source", faulty(|req| addressed(req, |ip| ip.src[15] = 77))),
    ];
    for (name, req) in cases {
        let mut target = Target::default();
        target.feed(&CmMessage::Req(req)).unwrap();
        assert!(matches!(target.events().as_slice(), [CmEvent::ConnectRequest(_)]), "{name}");
    }
}

#[test]
fn the_request_says_which_transport() {
    for transport in [CmTransport::Rc, CmTransport::Uc] {
        let mut target = Target::default();
        target.feed(&CmMessage::Req(faulty(|req| req.transport = transport))).unwrap();
        assert_eq!(target.request().transport, transport);
    }
}

// [CM-IP-HEADER]
#[test]
fn ipv6_requests_have_ipv6_addresses() {
    let (client, server): (Ipv6Addr, Ipv6Addr) = ("fd00:77::2".parse().unwrap(), "fd00:77::1".parse().unwrap());
    let mut target = Target::default();
    target.local.0 = vec![server.into()];
    let mut req = req(1);
    (req.primary.local_gid, req.primary.remote_gid) = (client.into(), server.into());
    let addressing = IpAddressing::new((client.into(), 99), server.into()).unwrap();
    assert!(req.set_private_data(&addressing, b""));
    let mut path = path();
    (path.local, path.peer) = (server.into(), client.into());
    target.feed_from(&path, 1, &CmMessage::Req(req)).unwrap();
    let request = target.request();
    assert_eq!((request.source, request.dest), ((IpAddr::V6(client), 99), (IpAddr::V6(server), 7174)));
}

// [CM-REJ-IDS]
#[test]
fn the_service_may_refuse() {
    let mut target = Target::default();
    target.feed_from(&path(), 0x5EED, &CmMessage::Req(req(0x77))).unwrap();
    let conn = target.request().conn;
    let too_long = target.cm.reject(conn, RejReason::ConsumerDefined, &[], &[0; 149]);
    assert_eq!(too_long, Err(CmError::TooLong));
    assert_eq!(target.cm.reject(conn, RejReason::InvalidGid, &[0; 73], &[]), Err(CmError::TooLong));
    assert_eq!(target.transmits(), []);
    target.cm.reject(conn, RejReason::ConsumerDefined, &[1, 2], b"no").unwrap();
    let CmMessage::Rej(rej) = target.sent_one() else { panic!() };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.answered), (0, 0x77, Answered::Req));
    assert_eq!(
        (rej.reason, rej.ari(), &rej.private_data[..3]),
        (RejReason::ConsumerDefined, &[1, 2][..], &b"no\0"[..])
    );
    assert_eq!(target.cm.reject(conn, RejReason::NoQp, &[], &[]), Err(CmError::Unknown));
    assert_eq!(target.cm.accept(target.now, conn, accept_params()), Err(CmError::Unknown));
    assert_eq!((target.cm.len(), target.cm.next_timeout()), (0, None));
}

#[test]
fn commands_know_their_states() {
    let mut target = Target::default();
    target.feed(&CmMessage::Req(req(0x77))).unwrap();
    let conn = target.request().conn;
    let long = AcceptParams { private_data: vec![0; 197], ..accept_params() };
    assert_eq!(target.cm.accept(target.now, conn, long), Err(CmError::TooLong));
    assert_eq!(target.cm.established(conn), Err(CmError::WrongState));
    assert_eq!(target.cm.disconnect(target.now, conn), Err(CmError::WrongState));
    target.accept(conn);
    assert_eq!(target.cm.accept(target.now, conn, accept_params()), Err(CmError::WrongState));
    assert_eq!(target.cm.reject(conn, RejReason::NoQp, &[], &[]), Err(CmError::WrongState));
    target.cm.disconnect(target.now, conn).unwrap();
    assert_eq!(target.cm.established(conn), Err(CmError::WrongState));
    assert_eq!(target.cm.disconnect(target.now, conn), Ok(()), "goes on");
}

// [CM-LIMITS]
#[test]
fn too_many_connections_are_rejected() {
    let config = CmConfig { max_connections: 3, max_pending: 2, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    let connect = |target: &mut Target, id: u32| {
        target.feed(&CmMessage::Req(Req { local_qpn: id, ..req(id) })).unwrap();
    };
    let refused = |target: &mut Target| match target.sent_one() {
        CmMessage::Rej(rej) => rej.reason,
        other => panic!("{other:?}"),
    };
    let requests = |target: &mut Target| -> Vec<_> {
        let events = target.events().into_iter();
        events
            .map(|event| if let CmEvent::ConnectRequest(request) = event { Ok(request.conn) } else { Err(event) })
            .collect()
    };
    connect(&mut target, 1);
    connect(&mut target, 2);
    let [Ok(first), Ok(second)] = requests(&mut target)[..] else { panic!() };
    target.accept(first);
    target.cm.established(first).unwrap();
    let (_rep, _established) = (target.sent(), target.events());
    connect(&mut target, 3);
    assert_eq!((target.sent(), requests(&mut target).len()), (vec![], 1));
    connect(&mut target, 4);
    assert_eq!(refused(&mut target), RejReason::NoQp, "three in all");
    // A connection that is closing counts no more.
    target.cm.disconnect(target.now, first).unwrap();
    let _dreq = target.sent();
    connect(&mut target, 4);
    assert_eq!(target.sent(), []);
    let events = requests(&mut target);
    let [Err(CmEvent::ConnectFailed { conn, reason: ConnectFailure::Evicted, .. }), Ok(_)] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(*conn, second, "the oldest one gives way");
    assert_eq!(target.cm.stats().req_connection_limit.get(), 1);
    assert_eq!(target.cm.stats().pending_evicted.get(), 1);

    // Where none of the pending connections is a peer's.
    let config = CmConfig { max_pending: 2, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    for _ in 0..2 {
        target.req_sent();
    }
    connect(&mut target, 1);
    assert_eq!(refused(&mut target), RejReason::NoResources);
    assert_eq!(target.cm.stats().req_pending_limit.get(), 1);
}

#[test]
fn unread_events_and_unsent_mads_are_bounded() {
    let config = CmConfig { max_events: 4, max_transmits: 4, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    for id in 1..=10 {
        let result = target.feed(&CmMessage::Req(Req { local_qpn: id, ..req(id) }));
        assert_eq!(result, if id <= 4 { Ok(()) } else { Err(DropReason::CmLimit) });
    }
    assert_eq!(target.events().len(), 4);
    for id in 1..=10 {
        target.feed(&CmMessage::Req(Req { pkey: 1, ..req(1000 + id) })).unwrap();
    }
    assert_eq!(target.transmits().len(), 4);
    assert_eq!(target.cm.stats().tx_queue_full.get(), 6);
    assert_eq!(target.cm.stats().tx_rej.get(), 4);
}

// [CM-ANSWER-TIMEOUT]
#[test]
fn a_service_that_never_answers_is_noticed() {
    let mut target = Target::default();
    target.feed(&CmMessage::Req(req(0x77))).unwrap();
    let conn = target.request().conn;
    target.advance(ms(89_999));
    assert_eq!((target.events(), target.transmits()), (vec![], vec![]));
    target.advance(ms(1));
    assert_eq!(target.events(), [CmEvent::ConnectFailed { conn, reason: ConnectFailure::NotAnswered, rej: None }]);
    let CmMessage::Rej(rej) = target.sent_one() else { panic!() };
    assert_eq!((rej.answered, rej.reason), (Answered::Req, RejReason::NoResources));
    assert!(target.cm.is_empty());
}

// [CM-MAD] [CM-NO-APM]
#[test]
fn other_mads_are_dropped_with_a_reason() {
    let mut target = Target::default();
    let good = mad_of(&CmMessage::Req(req(1)), 1);
    let mut feed = |mad: &[u8]| target.cm.handle_mad(target.now, &path(), mad, &target.local);
    let with = |at: usize, value: u8| {
        let mut mad = good;
        mad[at] = value;
        mad
    };
    assert_eq!(feed(&good[..255]), Err(DropReason::MadMalformed));
    assert_eq!(feed(&[&good[..], &[0]].concat()), Err(DropReason::MadMalformed));
    assert_eq!(feed(&[]), Err(DropReason::MadMalformed));
    assert_eq!(feed(&with(0, 2)), Err(DropReason::MadMalformed), "base version");
    assert_eq!(feed(&with(2, 1)), Err(DropReason::MadMalformed), "class version");
    assert_eq!(feed(&with(1, 3)), Err(DropReason::MadUnsupported), "subnet administration");
    assert_eq!(feed(&with(3, 1)), Err(DropReason::MadUnsupported), "Get");
    assert_eq!(feed(&with(3, 2)), Err(DropReason::MadUnsupported), "Set");
    assert_eq!(feed(&with(17, 0x30)), Err(DropReason::MadUnsupported), "attribute");
    assert_eq!(feed(&with(17, 0x19)), Err(DropReason::MadUnsupported), "LAP");
    assert_eq!(feed(&with(17, 0x1A)), Err(DropReason::MadUnsupported), "APR");
    let stats = target.cm.stats();
    assert_eq!((stats.rx_malformed.get(), stats.rx_unsupported.get()), (5, 4));
    assert_eq!((stats.rx_lap.get(), stats.rx_apr.get()), (1, 1));
    assert_eq!((target.cm.len(), target.transmits().len()), (0, 0));
}

// [CM-CLONE]
#[test]
fn a_clone_of_a_peer_is_another_peer() {
    // Two virtual machines from one image: same GUID, same ids, same queue pair numbers.
    let mut target = Target::default();
    let other = Ipv4Addr::new(192, 168, 77, 3);
    let first = target.established(req(5));
    let mut clone = req(5);
    clone.primary.local_gid = other.into();
    target.feed_from(&path_from(other), 1, &CmMessage::Req(clone)).unwrap();
    let second = target.request();
    assert_ne!(second.conn, first);
    assert_eq!(target.cm.connection(first).unwrap().state, ConnState::Established);
}

#[test]
fn the_ib_port_space_is_the_users_if_it_wants_it() {
    let request = || CmMessage::Req(Req { service_id: ServiceId::new(PortSpace::Ib, 7174), ..req(0x77) });
    let mut target = Target::default();
    target.feed(&request()).unwrap();
    assert!(matches!(target.sent_one(), CmMessage::Rej(rej) if rej.reason == RejReason::InvalidServiceId));
    let mut target = Target::new(CmConfig { ib_port_space: true, ..CmConfig::new(SERVER_GUID, [1; 32]) });
    target.feed(&request()).unwrap();
    assert_eq!(target.request().service_id, ServiceId::new(PortSpace::Ib, 7174));
}
