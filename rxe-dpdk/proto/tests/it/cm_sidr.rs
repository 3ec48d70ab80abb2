//! SIDR, the passive side: one request, one reply, the same reply again.

use std::net::Ipv4Addr;

use crate::cm_support::{CLIENT_IP, SERVER_GUID, SERVER_IP, Target, ms, path, path_from};
use rxe_proto::Duration;
use rxe_proto::cm::{CmConfig, CmError, CmEvent, SidrReply, SidrRequest};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::DropReason;
use rxe_proto::wire::cm::{CmMessage, IpAddressing, PortSpace, ServiceId, SidrRep, SidrReq, SidrStatus};

fn question(request_id: u32) -> SidrReq {
    let addressing = IpAddressing::new((CLIENT_IP.into(), 40000), SERVER_IP.into()).unwrap();
    let mut private_data = [0; SidrReq::PRIVATE_DATA_LEN];
    private_data[..36].copy_from_slice(&addressing.to_bytes());
    private_data[36..39].copy_from_slice(b"ulp");
    SidrReq {
        request_id,
        pkey: 0xFFFF,
        service_id: ServiceId::new(PortSpace::Udp, 7174),
        private_data,
        ..SidrReq::default()
    }
}

fn asked(target: &mut Target) -> SidrRequest {
    match target.events().as_slice() {
        [CmEvent::SidrRequest(request)] => (**request).clone(),
        other => panic!("{other:?}"),
    }
}

// [CM-SIDR]
#[test]
fn a_question_is_answered_and_answered_again() {
    let mut target = Target::default();
    let req = CmMessage::SidrReq(question(42));
    target.feed_from(&path(), 0x5EED, &req).unwrap();
    let request = asked(&mut target);
    assert_eq!((request.source, request.dest), ((CLIENT_IP.into(), 40000), (SERVER_IP.into(), 7174)));
    assert_eq!(&request.private_data[..4], b"ulp\0");
    assert_eq!(target.feed_from(&path(), 0x5EED, &req), Err(DropReason::CmDuplicate), "still thinking");

    let reply = SidrReply { private_data: b"hi".to_vec(), ..SidrReply::valid(Qpn::new(0x33)) };
    let long = SidrReply { private_data: vec![0; 137], ..reply.clone() };
    assert_eq!(target.cm.reply_sidr(target.now, request.id, long), Err(CmError::TooLong));
    target.cm.reply_sidr(target.now, request.id, reply.clone()).unwrap();
    assert_eq!(target.cm.reply_sidr(target.now, request.id, reply), Err(CmError::WrongState));
    let first = target.transmits();
    let (header, message) = CmMessage::parse(&*first[0].mad).unwrap();
    let mut private_data = [0; SidrRep::PRIVATE_DATA_LEN];
    private_data[..2].copy_from_slice(b"hi");
    let expect = SidrRep {
        request_id: 42,
        status: SidrStatus::Valid,
        qpn: 0x33,
        service_id: ServiceId::new(PortSpace::Udp, 7174),
        qkey: 0x0123_4567,
        private_data,
        ..SidrRep::default()
    };
    assert_eq!((header.transaction_id, message), (0x5EED, CmMessage::SidrRep(expect)));

    // 15 retries, 4.1 s apart.
    for _ in 0..15 {
        target.advance(ms(4200));
        target.feed_from(&path(), 0x5EED, &req).unwrap();
        assert_eq!(target.transmits(), first);
    }
    assert_eq!(target.events(), []);
    target.advance(Duration::from_secs(70));
    assert_eq!((target.cm.sidr_len(), target.cm.next_timeout()), (0, None));
}

// [CM-SIDR-REFUSE]
#[test]
fn invalid_connect_parameters_are_refused() {
    let with = |change: &dyn Fn(&mut SidrReq)| {
        let mut req = question(42);
        change(&mut req);
        req
    };
    let cases = [
        (with(&|req| req.service_id = ServiceId::new(PortSpace::Tcp, 7174)), SidrStatus::ServiceIdNotSupported),
        (with(&|req| req.pkey = 0x1234), SidrStatus::Rejected),
        (with(&|req| req.private_data[0] = 0x10), SidrStatus::Rejected),
        (with(&|req| req.private_data[1] = 0x50), SidrStatus::Rejected),
        (with(&|req| req.private_data[35] = 99), SidrStatus::Rejected),
        (with(&|req| req.private_data[16..20].fill(0)), SidrStatus::Rejected),
    ];
    for (req, status) in cases {
        let mut target = Target::default();
        let service_id = req.service_id;
        target.feed(&CmMessage::SidrReq(req)).unwrap();
        let CmMessage::SidrRep(rep) = target.sent_one() else { panic!() };
        assert_eq!((rep.request_id, rep.status, rep.qpn, rep.service_id), (42, status, 0, service_id));
        assert_eq!((target.events(), target.cm.sidr_len()), (vec![], 0));
    }
}

// [CM-SIDR]
#[test]
fn the_service_may_refuse() {
    let mut target = Target::default();
    target.feed(&CmMessage::SidrReq(question(42))).unwrap();
    let id = asked(&mut target).id;
    target.cm.reply_sidr(target.now, id, SidrReply::refuse(SidrStatus::ServiceIdNotSupported)).unwrap();
    let CmMessage::SidrRep(rep) = target.sent_one() else { panic!() };
    assert_eq!((rep.status, rep.qpn, rep.qkey), (SidrStatus::ServiceIdNotSupported, 0, 0));
}

#[test]
fn a_number_may_be_used_for_another_question() {
    let mut target = Target::default();
    target.feed_from(&path(), 1, &CmMessage::SidrReq(question(42))).unwrap();
    let first = asked(&mut target);
    target.feed_from(&path(), 2, &CmMessage::SidrReq(question(42))).unwrap();
    let second = asked(&mut target);
    let reply = SidrReply::valid(Qpn::new(0x33));
    assert_eq!(target.cm.reply_sidr(target.now, first.id, reply.clone()), Err(CmError::Unknown));
    assert_eq!(target.cm.reply_sidr(target.now, second.id, reply), Ok(()));
    // The same request id of another client is another request.
    let other = path_from(Ipv4Addr::new(192, 168, 77, 3));
    target.feed_from(&other, 2, &CmMessage::SidrReq(question(42))).unwrap();
    assert_eq!(asked(&mut target).path, other);
    assert_eq!(target.cm.sidr_len(), 2);
}

#[test]
fn memory_is_bounded() {
    let config = CmConfig { max_sidr: 4, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    for number in 0..100 {
        target.feed(&CmMessage::SidrReq(question(number))).unwrap();
        let id = asked(&mut target).id;
        target.cm.reply_sidr(target.now, id, SidrReply::valid(Qpn::new(2))).unwrap();
        assert!(target.cm.sidr_len() <= 4);
    }
    // The newest answers are the ones kept.
    assert_eq!(target.sent().len(), 100);
    target.feed(&CmMessage::SidrReq(question(99))).unwrap();
    assert_eq!((target.sent().len(), target.events()), (1, vec![]));
    // Unanswered ones are not pushed out.
    for number in 200..204 {
        target.feed(&CmMessage::SidrReq(question(number))).unwrap();
    }
    assert_eq!(target.feed(&CmMessage::SidrReq(question(204))), Err(DropReason::CmLimit));
    assert_eq!(target.cm.stats().sidr_limit.get(), 1);
    // Without an answer the request is removed silently, and reported again when the client retries.
    let _unread = target.events();
    target.advance(Duration::from_secs(90));
    assert_eq!((target.cm.sidr_len(), target.sent(), target.cm.next_timeout()), (0, vec![], None));
    target.feed(&CmMessage::SidrReq(question(200))).unwrap();
    let _again = asked(&mut target);
}

/// An address that has its share replaces answered requests of its own, never those of others.
#[test]
fn one_address_cannot_take_the_whole_table() {
    let config = CmConfig { max_sidr: 4, max_sidr_per_peer: 2, ..CmConfig::new(SERVER_GUID, [1; 32]) };
    let mut target = Target::new(config);
    let ask = |target: &mut Target, ip: Ipv4Addr, request_id: u32| {
        target.feed_from(&path_from(ip), u64::from(request_id), &CmMessage::SidrReq(question(request_id)))
    };
    let answer = |target: &mut Target| {
        let id = asked(target).id;
        target.cm.reply_sidr(target.now, id, SidrReply::valid(Qpn::new(0x33))).unwrap();
        target.transmits();
    };
    let other = Ipv4Addr::new(192, 168, 77, 66);
    for request_id in [1, 2] {
        ask(&mut target, CLIENT_IP, request_id).unwrap();
        assert_eq!(target.events().len(), 1);
    }
    assert_eq!(ask(&mut target, CLIENT_IP, 3), Err(DropReason::CmLimit), "both wait for their answers");
    assert_eq!((target.cm.stats().sidr_peer_limit.get(), target.cm.stats().sidr_limit.get()), (1, 0));
    for request_id in 1..=9 {
        ask(&mut target, other, request_id).unwrap();
        answer(&mut target);
    }
    assert_eq!(target.cm.sidr_len(), 4);
    // The latest of the other address are still answered as before.
    for request_id in [8, 9] {
        ask(&mut target, other, request_id).unwrap();
        assert_eq!((target.transmits().len(), target.events()), (1, vec![]));
    }
    // A third address finds the table full, and replaces the oldest answered request.
    ask(&mut target, Ipv4Addr::new(192, 168, 77, 67), 1).unwrap();
    answer(&mut target);
    ask(&mut target, other, 8).unwrap();
    assert_eq!(target.events().len(), 1, "request 8 is new again");
}

#[test]
fn the_ib_port_space_is_the_users_if_it_wants_it() {
    let request = || {
        let service_id = ServiceId::new(PortSpace::Ib, 7174);
        CmMessage::SidrReq(SidrReq { service_id, ..question(42) })
    };
    let mut target = Target::default();
    target.feed(&request()).unwrap();
    let refused = SidrStatus::ServiceIdNotSupported;
    assert!(matches!(target.sent_one(), CmMessage::SidrRep(rep) if rep.status == refused));
    let mut target = Target::new(CmConfig { ib_port_space: true, ..CmConfig::new(SERVER_GUID, [1; 32]) });
    target.feed(&request()).unwrap();
    assert_eq!(asked(&mut target).service_id, ServiceId::new(PortSpace::Ib, 7174));
}
