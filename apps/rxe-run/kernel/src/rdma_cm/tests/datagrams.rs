//! Datagram services and multicast groups: udaddy, mckey and their like.

use std::net::{IpAddr, Ipv4Addr};

use nix::errno::Errno;
use rxe_proto::wire::Gid;
use rxe_proto::wire::cm::CmMessage;

use super::support::{CLIENT, Net, Node, SERVER, conn_param, ps, qps, ud_of};
use crate::rdma_cm::abi::{self, cmd, event};
use crate::rdma_cm::{Action, address};

const PORT: u16 = 7174;
const QKEY: u32 = 0x0123_4567;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

#[test]
fn udaddy_client_learns_the_queue_pair_of_the_server() {
    let mut net = Net::pair();
    let (listen_file, listener) = net.listening(ps::UDP, PORT);
    let (file, id) = net.routed(ps::UDP, PORT);
    let init = net.client().qp_attr(file, id, qps::INIT).unwrap();
    assert_eq!((init.qp_attr_mask, init.qkey, init.port_num), (1 | 1 << 4 | 1 << 5 | 1 << 6, QKEY, 1));
    net.client().connect(file, id, conn_param(0x11, b"who")).unwrap();
    net.run();
    let request = net.server().expect(listen_file, event::CONNECT_REQUEST);
    let param = ud_of(&request);
    assert_eq!((param.private_data_len, &param.private_data[..4]), (180, &b"who\0"[..]));
    let child = request.id;
    let route = net.server().query_route(listen_file, child).unwrap();
    assert_eq!((route.num_paths, route.ib_route[0].dgid), (0, Gid::from(CLIENT).0));
    net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"me")).unwrap();
    net.run();
    let established = net.client().expect(file, event::ESTABLISHED);
    let param = ud_of(&established);
    assert_eq!((param.qp_num, param.qkey, param.private_data_len), (0x22, QKEY, 136));
    assert_eq!(&param.private_data[..3], b"me\0");
    let ah = param.ah_attr;
    assert_eq!((ah.grh.dgid, ah.grh.sgid_index, ah.grh.hop_limit), (Gid::from(SERVER).0, 0, 64));
    assert_eq!((ah.is_global, ah.port_num, ah.dlid), (1, 1, 0));
    assert!(net.server().event(listen_file).is_none(), "a server has no further event");
    // There is no connection to end.
    assert_eq!((net.client().disconnect(file, id), net.server().disconnect(listen_file, child)), (Ok(()), Ok(())));
    assert_eq!(net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")), Err(Errno::EINVAL));
    assert_eq!(net.client().destroy(file, id), Ok(3));
    assert_eq!((net.server().destroy(listen_file, child), net.server().destroy(listen_file, listener)), (Ok(0), Ok(1)));
}

#[test]
fn a_datagram_port_without_listener_is_unreachable_with_status_1() {
    let mut net = Net::pair();
    let (file, id) = net.routed(ps::UDP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    assert_eq!(net.wait_for(1, file, event::UNREACHABLE).status, 1);
}

#[test]
fn a_datagram_client_may_come_shortly_before_its_server_listens() {
    let mut net = Net::pair();
    let (file, id) = net.routed(ps::UDP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    net.listening(ps::TCP, PORT);
    let (listen_file, _) = net.listening(ps::UDP, PORT);
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
    net.run();
    net.client().expect(file, event::ESTABLISHED);
    assert_eq!(net.server().device.next_timeout(), None);
}

#[test]
fn a_server_refuses_a_datagram_client_with_private_data() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::UDP, PORT);
    let (file, id) = net.routed(ps::UDP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    assert_eq!(net.server().reject(listen_file, child, &[0; 137]), Err(Errno::EINVAL));
    net.server().reject(listen_file, child, b"no").unwrap();
    net.run();
    let unreachable = net.client().expect(file, event::UNREACHABLE);
    assert_eq!((unreachable.status, &ud_of(&unreachable).private_data[..3]), (2, &b"no\0"[..]));
}

#[test]
fn destroying_a_datagram_id_ends_its_request() {
    let mut net = Net::pair();
    let (listen_file, listener) = net.listening(ps::UDP, PORT);
    let (file, id) = net.routed(ps::UDP, PORT);
    let (other_file, other) = net.routed(ps::UDP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.client().connect(other_file, other, conn_param(0x12, b"")).unwrap();
    net.run();
    net.client().destroy(file, id).unwrap();
    assert_eq!(net.client().cm.resolving(), 1);
    // One request is read, one is not: both clients are refused.
    net.server().expect(listen_file, event::CONNECT_REQUEST);
    net.server().destroy(listen_file, listener).unwrap();
    assert!(net.server().event(listen_file).is_none());
    net.run();
    assert_eq!(net.client().expect(other_file, event::UNREACHABLE).status, 2);
    assert!(net.client().event(file).is_none());
}

#[test]
fn a_silent_datagram_peer_is_unreachable() {
    let mut net = Net::pair();
    net.loss = 100;
    let (file, id) = net.routed(ps::UDP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    assert_eq!(net.wait_for(1, file, event::UNREACHABLE).status, -(Errno::ETIMEDOUT as i32));
    assert_eq!(net.sent.iter().filter(|message| matches!(message, CmMessage::SidrReq(_))).count(), 16);
}

#[test]
fn a_datagram_service_is_found_on_a_lossy_network() {
    for seed in 0..20 {
        let mut net = Net::pair();
        net.seed(seed);
        net.loss = 50;
        let (listen_file, _) = net.listening(ps::UDP, PORT);
        let (file, id) = net.routed(ps::UDP, PORT);
        net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
        let child = net.wait_for(0, listen_file, event::CONNECT_REQUEST).id;
        net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
        net.wait_for(1, file, event::ESTABLISHED);
    }
}

/// A datagram id that knows its address, as mckey has it.
fn group_member(node: &mut Node) -> (u32, u32) {
    let file = node.open();
    let id = node.create(file, 0x3C, ps::UDP);
    node.resolve(file, id, (GROUP, 0)).unwrap();
    node.expect(file, event::ADDR_RESOLVED);
    (file, id)
}

#[test]
fn mckey_joins_and_leaves_a_group() {
    let mut node = Node::new(SERVER);
    let (file, id) = group_member(&mut node);
    let membership = node.join(file, id, 0x77, GROUP).unwrap();
    assert_eq!(node.actions(), [Action::JoinGroup(IpAddr::from(GROUP))]);
    let joined = node.expect(file, event::MULTICAST_JOIN);
    assert_eq!((joined.uid, joined.id, joined.status), (0x77, membership, 0));
    let param = ud_of(&joined);
    assert_eq!((param.qp_num, param.qkey, param.private_data_len), (0xFF_FFFF, QKEY, 0));
    assert_eq!((param.ah_attr.grh.dgid, param.ah_attr.grh.sgid_index), (Gid::from(GROUP).0, 0));
    assert_eq!(node.leave(file, membership), Ok(1));
    assert_eq!(node.actions(), [Action::LeaveGroup(IpAddr::from(GROUP))]);
    assert_eq!(node.leave(file, membership), Err(Errno::ENOENT));
    assert_eq!(node.destroy(file, id), Ok(2), "events of a group are events of its id");
}

#[test]
fn the_adapter_leaves_a_group_with_its_last_member() {
    let mut node = Node::new(SERVER);
    let (file, id) = group_member(&mut node);
    let (other_file, other) = group_member(&mut node);
    let first = node.join(file, id, 1, GROUP).unwrap();
    node.join(other_file, other, 2, GROUP).unwrap();
    assert_eq!(node.actions(), [Action::JoinGroup(IpAddr::from(GROUP))]);
    // The event is gone with the membership.
    assert_eq!(node.leave(file, first), Ok(0));
    assert!(node.event(file).is_none());
    assert_eq!(node.actions(), []);
    assert_eq!(node.leave(file, 1), Err(Errno::EINVAL), "another channel's");
    node.close(other_file);
    assert_eq!(node.actions(), [Action::LeaveGroup(IpAddr::from(GROUP))]);
    assert_eq!(node.device.memberships.len(), 0);
}

#[test]
fn a_member_that_only_sends_does_not_make_the_adapter_join() {
    let mut node = Node::new(SERVER);
    let (file, id) = group_member(&mut node);
    let addr = address::write_storage(Some((GROUP, 0).into()));
    let join =
        |join_flags, addr_size| move |response| abi::JoinMcast { response, uid: 5, id, addr_size, join_flags, addr };
    let joined: Result<abi::CreateIdResp, _> = node.ask(file, cmd::JOIN_MCAST, join(1, 16));
    assert!(joined.is_ok());
    node.expect(file, event::MULTICAST_JOIN);
    for (flags, size) in [(2, 16), (0, 28), (0, 0)] {
        let joined: Result<abi::CreateIdResp, _> = node.ask(file, cmd::JOIN_MCAST, join(flags, size));
        assert_eq!(joined.err(), Some(Errno::EINVAL));
    }
    node.destroy(file, id).unwrap();
    assert_eq!(node.actions(), []);
}

#[test]
fn groups_are_for_datagram_ids_with_an_address() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let stream = node.create(file, 1, ps::TCP);
    node.bind(file, stream, (SERVER, 0)).unwrap();
    assert_eq!(node.join(file, stream, 2, GROUP), Err(Errno::EINVAL));
    let unbound = node.create(file, 1, ps::UDP);
    assert_eq!(node.join(file, unbound, 2, GROUP), Err(Errno::EINVAL));
    node.bind(file, unbound, (SERVER, 0)).unwrap();
    assert_eq!(node.join(file, unbound, 2, SERVER), Err(Errno::EINVAL), "no group");
    assert_eq!(node.join(file, 99, 2, GROUP), Err(Errno::ENOENT));
    node.join(file, unbound, 2, GROUP).unwrap();
}
