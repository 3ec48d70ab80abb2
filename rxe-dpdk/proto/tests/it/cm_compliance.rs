//! A rule of docs/compliance.md that no other test of the connection manager holds.

use crate::cm_support::{SERVER_QPN, Target, req};
use rxe_proto::cm::AcceptParams;
use rxe_proto::transport::Qpn;
use rxe_proto::wire::Psn;
use rxe_proto::wire::cm::{CmMessage, Req};

// [CM-REP-DEPTHS]
#[test]
fn a_rep_grants_no_more_than_requested() {
    let mut target = Target::default();
    target.feed(&CmMessage::Req(Req { responder_resources: 4, initiator_depth: 2, ..req(0x77) })).unwrap();
    let request = target.request();
    let usual = AcceptParams::for_request(&request, Qpn::new(SERVER_QPN), Psn::new(1), 16, 16);
    let params = AcceptParams { responder_resources: 16, initiator_depth: 16, ..usual };
    target.cm.accept(target.now, request.conn, params).unwrap();
    let CmMessage::Rep(rep) = target.sent_one() else { panic!() };
    assert_eq!((rep.responder_resources, rep.initiator_depth), (2, 4), "what one asks for the other holds");
}
