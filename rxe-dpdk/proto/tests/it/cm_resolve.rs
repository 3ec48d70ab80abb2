//! SIDR, the active side.

use crate::cm_support::{CLIENT_IP, SERVER_GUID, SERVER_IP, Target, ms, path};
use rxe_proto::Duration;
use rxe_proto::cm::{CmConfig, CmError, CmEvent, MadPath, ResolveFailure, ResolveParams, SidrId};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{CmMessage, IpAddressing, PortSpace, ServiceId, SidrRep, SidrReq, SidrStatus};
use rxe_proto::wire::{DropReason, Gid};

/// 4.096 us * 2^20.
const RESEND: Duration = Duration::from_nanos(4_294_967_296);

fn params() -> ResolveParams {
    ResolveParams { private_data: b"ulp".to_vec(), ..ResolveParams::new(path(), (40000, 7174)) }
}

/// An outstanding SIDR request, and its request id.
fn asked(target: &mut Target) -> (SidrId, u32) {
    let id = target.cm.resolve_datagram(target.now, params()).unwrap();
    let CmMessage::SidrReq(req) = target.sent_one() else { panic!() };
    (id, req.request_id)
}

fn answer(request_id: u32, status: SidrStatus) -> CmMessage {
    let (qpn, qkey) = if status == SidrStatus::Valid { (0x33, 0x0123_4567) } else { (0, 0) };
    let mut private_data = [0; SidrRep::PRIVATE_DATA_LEN];
    private_data[..2].copy_from_slice(b"hi");
    let service_id = ServiceId::new(PortSpace::Udp, 7174);
    CmMessage::SidrRep(SidrRep { request_id, status, qpn, qkey, service_id, private_data, ..SidrRep::default() })
}

// [CM-SIDR-ASK]
#[test]
fn a_sidr_request_has_service_and_addresses() {
    let mut target = Target::default();
    let path = MadPath { traffic_class: 0xB9, ..path() };
    target.cm.resolve_datagram(target.now, ResolveParams { path, ..params() }).unwrap();
    let transmit = target.cm.poll_transmit().unwrap();
    assert_eq!(transmit.path.traffic_class, 0xB8, "without congestion marks");
    let CmMessage::SidrReq(req) = CmMessage::parse(&*transmit.mad).unwrap().1 else { panic!() };
    let addressing = IpAddressing::new((SERVER_IP.into(), 40000), CLIENT_IP.into()).unwrap();
    let mut private_data = [0; SidrReq::PRIVATE_DATA_LEN];
    private_data[..36].copy_from_slice(&addressing.to_bytes());
    private_data[36..39].copy_from_slice(b"ulp");
    let service_id = ServiceId::new(PortSpace::Udp, 7174);
    let request_id = req.request_id;
    assert_ne!(request_id, 0);
    assert_eq!(req, SidrReq { request_id, pkey: 0xFFFF, service_id, private_data, ..SidrReq::default() });
}

#[test]
fn the_answer_names_the_queue_pair() {
    let mut target = Target::default();
    let (first, first_request) = asked(&mut target);
    let (second, second_request) = asked(&mut target);
    assert!(first != second && first_request != second_request);
    target.feed(&answer(second_request, SidrStatus::Valid)).unwrap();
    let events = target.events();
    let [CmEvent::DatagramResolved(reply)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((reply.id, reply.qpn, reply.qkey), (second, Qpn::new(0x33), 0x0123_4567));
    assert_eq!(&reply.private_data[..3], b"hi\0");
    // Once.
    assert_eq!(target.feed(&answer(second_request, SidrStatus::Valid)), Err(DropReason::CmUnknownId));
    assert_eq!((target.events(), target.cm.resolving()), (vec![], 1));
    target.feed(&answer(first_request, SidrStatus::Valid)).unwrap();
    assert_eq!((target.cm.resolving(), target.cm.next_timeout()), (0, None));
}

// [CM-SIDR-ASK]
#[test]
fn every_status_reaches_the_user() {
    for code in 1..=7 {
        let mut target = Target::default();
        let (id, request_id) = asked(&mut target);
        let status = SidrStatus::from_code(code);
        target.feed(&answer(request_id, status)).unwrap();
        let events = target.events();
        let [CmEvent::ResolveFailed { id: failed, reason, private_data: Some(data) }] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!((*failed, *reason, &data[..3]), (id, ResolveFailure::Refused(status), &b"hi\0"[..]));
        assert_eq!((target.cm.resolving(), target.cm.next_timeout()), (0, None));
    }
}

// [CM-SIDR-ASK]
#[test]
fn a_sidr_request_is_retransmitted_and_given_up() {
    let mut target = Target::default();
    let id = target.cm.resolve_datagram(target.now, params()).unwrap();
    let first = target.transmits();
    target.advance(RESEND - ms(1));
    assert_eq!(target.transmits(), []);
    for _ in 0..15 {
        target.advance(RESEND);
        assert_eq!(target.transmits(), first, "byte for byte");
    }
    assert_eq!(target.events(), []);
    target.advance(RESEND);
    let reason = ResolveFailure::Timeout;
    assert_eq!(target.events(), [CmEvent::ResolveFailed { id, reason, private_data: None }]);
    assert_eq!((target.transmits(), target.cm.resolving(), target.cm.next_timeout()), (vec![], 0, None));
    let stats = target.cm.stats();
    assert_eq!((stats.tx_sidr_req.get(), stats.tx_sidr_req_retry.get(), stats.resolve_timeout.get()), (16, 15, 1));
}

#[test]
fn invalid_sidr_parameters_are_refused() {
    let mut target = Target::new(CmConfig { max_sidr: 2, ..CmConfig::new(SERVER_GUID, [1; 32]) });
    let v6 = Gid([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let mixed = ResolveParams { path: MadPath { peer: v6, ..path() }, ..params() };
    assert_eq!(target.cm.resolve_datagram(target.now, mixed), Err(CmError::Address));
    let long = ResolveParams { private_data: vec![0; 181], ..params() };
    assert_eq!(target.cm.resolve_datagram(target.now, long), Err(CmError::TooLong));
    assert_eq!((target.sent(), target.cm.next_timeout()), (vec![], None));
    let _two = (asked(&mut target), asked(&mut target));
    assert_eq!(target.cm.resolve_datagram(target.now, params()), Err(CmError::Limit));
    assert_eq!(target.sent(), []);
}

#[test]
fn a_cancelled_sidr_request_has_no_event() {
    let mut target = Target::default();
    let (first, first_request) = asked(&mut target);
    let (second, second_request) = asked(&mut target);
    target.cm.cancel_resolve(first);
    assert_eq!(target.cm.resolving(), 1);
    assert_eq!(target.feed(&answer(first_request, SidrStatus::Valid)), Err(DropReason::CmUnknownId));
    target.feed(&answer(second_request, SidrStatus::Valid)).unwrap();
    assert!(matches!(target.events().as_slice(), [CmEvent::DatagramResolved(reply)] if reply.id == second));
    target.cm.cancel_resolve(second);
    assert_eq!((target.cm.resolving(), target.cm.next_timeout()), (0, None));
}

#[test]
fn the_ib_port_space_is_asked_for_by_name() {
    let mut target = Target::default();
    let params = ResolveParams { port_space: PortSpace::Ib, ..params() };
    target.cm.resolve_datagram(target.now, params).unwrap();
    let CmMessage::SidrReq(req) = target.sent_one() else { panic!() };
    assert_eq!(req.service_id, ServiceId::new(PortSpace::Ib, 7174));
}
