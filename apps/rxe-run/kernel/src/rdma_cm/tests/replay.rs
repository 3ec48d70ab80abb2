//! Recorded kernels as the peer (tests/captures).

use std::net::{IpAddr, SocketAddr};

use rxe_proto::cm::{MadPath, read_mad};
use rxe_proto::wire::cm::{CmMessage, Rep, Req, SidrRep, SidrReq};
use rxe_proto::wire::mad::MAD_LEN;
use rxe_proto::wire::{Frame, PathMtu, PortId, classify};
use zerocopy::FromZeros;

use super::support::{Node, conn_of, conn_param, ps, qps, ud_of};
use crate::rdma_cm::abi::{self, event};

/// A recorded MAD, seen from the machine that it was sent to.
struct Recorded {
    path: MadPath,
    transaction_id: u64,
    message: CmMessage,
}

fn recorded(name: &str) -> Vec<Recorded> {
    let frames = rxe_testkit::pcap::recorded(name);
    let mads = frames.iter().filter_map(|frame| {
        let Ok(Frame::Roce(packet)) = classify(frame) else { return None };
        let (path, mad) = read_mad(PortId(0), &packet).ok()?;
        let (header, message) = CmMessage::parse(mad).unwrap();
        Some(Recorded { path, transaction_id: header.transaction_id, message })
    });
    mads.collect()
}

impl Node {
    /// Receives a message of a recorded peer.
    fn receive(&mut self, recorded: &Recorded, message: &CmMessage) {
        let mut mad = [0; MAD_LEN];
        message.emit(recorded.transaction_id, &mut mad);
        self.cm.handle_mad(self.now, &recorded.path, &mad, &self.local).unwrap();
        self.handle_events();
    }

    /// The message that is sent next.
    fn sent(&mut self) -> CmMessage {
        CmMessage::parse(&*self.cm.poll_transmit().expect("a message").mad).unwrap().1
    }
}

fn req_of(recorded: &[Recorded]) -> (&Recorded, &Req) {
    let found = recorded.iter().find_map(|r| if let CmMessage::Req(req) = &r.message { Some((r, req)) } else { None });
    found.expect("a REQ")
}

fn rep_of(recorded: &[Recorded]) -> (&Recorded, &Rep) {
    let found = recorded.iter().find_map(|r| if let CmMessage::Rep(rep) = &r.message { Some((r, rep)) } else { None });
    found.expect("a REP")
}

/// The parameters of rping, which has one READ outstanding in each direction.
fn rping_param(qp_num: u32) -> abi::ConnParam {
    abi::ConnParam { responder_resources: 1, initiator_depth: 1, ..conn_param(qp_num, b"") }
}

#[test]
fn a_recorded_rping_client_is_served() {
    for name in ["cm-rping-ipv4.pcap", "cm-rping-ipv6.pcap"] {
        let recorded = recorded(name);
        let ((request, req), (_, rep)) = (req_of(&recorded), rep_of(&recorded));
        let mut server = Node::new(request.path.local.ip());
        let file = server.open();
        let listener = server.create(file, 1, ps::TCP);
        server.bind(file, listener, SocketAddr::new(request.path.local.ip(), 7174)).unwrap();
        server.listen(file, listener, 3).unwrap();

        server.receive(request, &request.message);
        let event = server.expect(file, event::CONNECT_REQUEST);
        let param = conn_of(&event);
        assert_eq!((param.qp_num, param.responder_resources, param.initiator_depth), (req.local_qpn, 1, 1));
        let rtr = server.qp_attr(file, event.id, qps::RTR).unwrap();
        let rts = server.qp_attr(file, event.id, qps::RTS).unwrap();
        assert_eq!((rtr.dest_qp_num, rtr.path_mtu), (req.local_qpn, u32::from(req.path_mtu)));
        assert_eq!((rts.sq_psn, rts.timeout), (req.starting_psn.get(), req.primary.ack_timeout));
        server.accept(file, event.id, 2, rping_param(rep.local_qpn)).unwrap();
        let CmMessage::Rep(ours) = server.sent() else { panic!("no REP") };
        let expected = Rep {
            local_comm_id: ours.local_comm_id,
            local_ca_guid: ours.local_ca_guid,
            starting_psn: ours.starting_psn,
            ..rep.clone()
        };
        assert_eq!((&ours, ours.starting_psn.get()), (&expected, rtr.rq_psn));

        for r in &recorded {
            match r.message.clone() {
                CmMessage::Rtu(mut rtu) => {
                    rtu.remote_comm_id = ours.local_comm_id;
                    server.receive(r, &CmMessage::Rtu(rtu));
                    server.expect(file, event::ESTABLISHED);
                }
                CmMessage::Dreq(mut dreq) if dreq.local_comm_id == req.local_comm_id => {
                    dreq.remote_comm_id = ours.local_comm_id;
                    server.receive(r, &CmMessage::Dreq(dreq));
                    server.expect(file, event::DISCONNECTED);
                    assert!(matches!(server.sent(), CmMessage::Drep(_)));
                }
                _ => {}
            }
        }
        assert_eq!((server.destroy(file, event.id), server.destroy(file, listener)), (Ok(2), Ok(1)), "{name}");
    }
}

#[test]
fn a_recorded_rping_server_gets_the_req_of_a_kernel() {
    let recorded = recorded("cm-rping-ipv4.pcap");
    let ((request, req), (reply, rep)) = (req_of(&recorded), rep_of(&recorded));
    let (server, client) = (request.path.local.ip(), request.path.peer.ip());
    let addressing = req.ip_addressing();
    let port = addressing.source().unwrap().1;
    let mut node = Node::new(client);
    node.local.path_mtu = PathMtu::from_code(req.path_mtu).unwrap();
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    node.resolve_from(file, id, Some(SocketAddr::new(client, port)), SocketAddr::new(server, 7174)).unwrap();
    node.expect(file, event::ADDR_RESOLVED);
    node.resolve_route(file, id).unwrap();
    node.expect(file, event::ROUTE_RESOLVED);
    node.connect(file, id, rping_param(req.local_qpn)).unwrap();
    let CmMessage::Req(ours) = node.sent() else { panic!("no REQ") };
    let expected = Req {
        local_comm_id: ours.local_comm_id,
        local_ca_guid: ours.local_ca_guid,
        starting_psn: ours.starting_psn,
        ..req.clone()
    };
    assert_eq!(ours, expected);

    let answer = Rep { remote_comm_id: ours.local_comm_id, ..rep.clone() };
    node.receive(reply, &CmMessage::Rep(answer));
    let param = conn_of(&node.expect(file, event::CONNECT_RESPONSE));
    assert_eq!((param.qp_num, param.responder_resources, param.initiator_depth), (rep.local_qpn, 1, 1));
    let (rtr, rts) = (node.qp_attr(file, id, qps::RTR).unwrap(), node.qp_attr(file, id, qps::RTS).unwrap());
    assert_eq!((rtr.rq_psn, rts.sq_psn), (ours.starting_psn.get(), rep.starting_psn.get()));
    assert_eq!((rtr.dest_qp_num, rts.timeout, rts.max_rd_atomic), (rep.local_qpn, 19, 1));
    node.confirm(file, id).unwrap();
    assert!(matches!(node.sent(), CmMessage::Rtu(rtu) if rtu.remote_comm_id == rep.local_comm_id));
}

#[test]
fn a_recorded_udaddy_is_served_and_resolved() {
    let recorded = recorded("cm-udaddy.pcap");
    let request = recorded.iter().find(|r| matches!(r.message, CmMessage::SidrReq(_))).unwrap();
    let reply = recorded.iter().find(|r| matches!(r.message, CmMessage::SidrRep(_))).unwrap();
    let (CmMessage::SidrReq(req), CmMessage::SidrRep(rep)) = (&request.message, &reply.message) else { panic!() };
    let (server_ip, client_ip): (IpAddr, IpAddr) = (request.path.local.ip(), request.path.peer.ip());

    let mut server = Node::new(server_ip);
    let file = server.open();
    let listener = server.create(file, 1, ps::UDP);
    server.bind(file, listener, SocketAddr::new(server_ip, 7174)).unwrap();
    server.listen(file, listener, 3).unwrap();
    server.receive(request, &request.message);
    let event = server.expect(file, event::CONNECT_REQUEST);
    assert_eq!(ud_of(&event).private_data[..180], req.ulp_data());
    server.accept(file, event.id, 2, conn_param(rep.qpn, b"")).unwrap();
    let CmMessage::SidrRep(ours) = server.sent() else { panic!("no SIDR_REP") };
    assert_eq!(ours, SidrRep { private_data: ours.private_data, ..rep.clone() });

    let mut client = Node::new(client_ip);
    let file = client.open();
    let id = client.create(file, 1, ps::UDP);
    let source = SocketAddr::new(client_ip, req.ip_addressing().source().unwrap().1);
    client.resolve_from(file, id, Some(source), SocketAddr::new(server_ip, 7174)).unwrap();
    client.expect(file, event::ADDR_RESOLVED);
    client.resolve_route(file, id).unwrap();
    client.expect(file, event::ROUTE_RESOLVED);
    client.connect(file, id, conn_param(0x11, &req.ulp_data()[..])).unwrap();
    let CmMessage::SidrReq(ours) = client.sent() else { panic!("no SIDR_REQ") };
    assert_eq!(ours, SidrReq { request_id: ours.request_id, ..req.clone() });
    client.receive(reply, &CmMessage::SidrRep(SidrRep { request_id: ours.request_id, ..rep.clone() }));
    let param = ud_of(&client.expect(file, event::ESTABLISHED));
    assert_eq!((param.qp_num, param.qkey), (rep.qpn, 0x0123_4567));
}

/// A queue pair has one Q_Key, and a peer may not change it.
#[test]
fn a_peer_with_another_qkey_is_an_address_error() {
    let mut client = Node::new(super::support::CLIENT);
    let recorded = recorded("cm-udaddy.pcap");
    let reply = recorded.iter().find(|r| matches!(r.message, CmMessage::SidrRep(_))).unwrap();
    let CmMessage::SidrRep(rep) = &reply.message else { panic!() };
    let file = client.open();
    let id = client.create(file, 1, ps::UDP);
    client.resolve(file, id, SocketAddr::new(reply.path.peer.ip(), 7174)).unwrap();
    client.expect(file, event::ADDR_RESOLVED);
    client.resolve_route(file, id).unwrap();
    client.expect(file, event::ROUTE_RESOLVED);
    client.qp_attr(file, id, qps::INIT).unwrap();
    let param = abi::ConnParam { valid: 1, ..abi::ConnParam::new_zeroed() };
    client.connect(file, id, param).unwrap();
    let CmMessage::SidrReq(ours) = client.sent() else { panic!("no SIDR_REQ") };
    client.receive(reply, &CmMessage::SidrRep(SidrRep { request_id: ours.request_id, qkey: 1, ..rep.clone() }));
    assert_eq!(client.expect(file, event::ADDR_ERROR).status, -22);
}
