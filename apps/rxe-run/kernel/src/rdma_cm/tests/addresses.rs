//! Addresses, ports, routes and options.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use nix::errno::Errno;
use rxe_proto::wire::Gid;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::support::{CLIENT, Net, Node, SERVER, conn_of, conn_param, ps, qps};
use crate::rdma_cm::abi::{self, cmd, event};
use crate::rdma_cm::address;
use crate::rdma_cm::ports::Ports;
use crate::rdma_cm::table::Table;

const PORT: u16 = 7471;
const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const ANY6: [u16; 8] = [0; 8];

/// Options of level 0.
const TOS: u32 = 0;
const REUSE: u32 = 1;
const FAMILY_ONLY: u32 = 2;
const ACK_TIMEOUT: u32 = 3;
const ON: [u8; 4] = 1_u32.to_ne_bytes();

fn source_of(node: &mut Node, file: u32, id: u32) -> Option<SocketAddr> {
    address::read(&node.query_route(file, id).unwrap().src_addr)
}

#[test]
fn only_the_adapters_address_can_be_bound() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    assert_eq!(node.bind(file, id, (CLIENT, PORT)), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(node.bind(file, id, SocketAddrV6::new("fe80::1".parse().unwrap(), 1, 0, 0)), Err(Errno::EINVAL));
    node.bind(file, id, (SERVER, PORT)).unwrap();
    assert_eq!(node.bind(file, id, (SERVER, PORT)), Err(Errno::EINVAL), "once only");
    let route = node.query_route(file, id).unwrap();
    assert_eq!((route.port_num, route.num_paths, route.ibdev_index), (1, 0, u32::MAX));
    assert_eq!(u64::from_be_bytes(route.node_guid), node.local.node_guid);
    assert_eq!((route.ib_route[0].sgid, route.ib_route[0].pkey), (Gid::from(SERVER).0, [0xFF; 2]));
    // A wildcard has no adapter.
    let any = node.create(file, 1, ps::TCP);
    node.bind(file, any, (ANY, 0)).unwrap();
    let route = node.query_route(file, any).unwrap();
    assert_eq!((route.node_guid, route.port_num), ([0; 8], 0));
    assert!((32768..=60999).contains(&address::read(&route.src_addr).unwrap().port()));
    let loopback = node.create(file, 1, ps::TCP);
    node.bind(file, loopback, (Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ipoib = node.create(file, 1, ps::IPOIB);
    assert_eq!(node.bind(file, ipoib, (SERVER, 1)), Err(Errno::EINVAL));
}

#[test]
fn an_adapter_at_a_loopback_address_reaches_others_also_from_a_source_that_stands_for_its_own() {
    let own = Ipv4Addr::new(127, 0, 0, 2);
    let mut node = Node::new(own);
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    node.bind(file, id, (own, PORT)).unwrap();
    for source in [None, Some((Ipv4Addr::LOCALHOST, 0).into())] {
        let client = node.create(file, 1, ps::TCP);
        node.resolve_from(file, client, source, (Ipv4Addr::new(127, 0, 0, 3), PORT)).unwrap();
        node.expect(file, event::ADDR_RESOLVED);
        let route = node.query_route(file, client).unwrap();
        assert_eq!(address::read(&route.dst_addr), Some(SocketAddr::from(([127, 0, 0, 3], PORT))));
        assert_eq!(address::read(&route.src_addr).map(|source| source.ip()), Some(own.into()));
    }
}

#[test]
fn a_port_has_one_owner_unless_all_allow_to_share_it() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let ids: Vec<u32> = (0..6).map(|_| node.create(file, 1, ps::TCP)).collect();
    node.bind(file, ids[0], (SERVER, PORT)).unwrap();
    assert_eq!(node.bind(file, ids[1], (SERVER, PORT)), Err(Errno::EADDRINUSE));
    assert_eq!(node.bind(file, ids[1], (ANY, PORT)), Err(Errno::EADDRNOTAVAIL), "as Linux has it");
    // Another port space.
    let datagram = node.create(file, 1, ps::UDP);
    node.bind(file, datagram, (SERVER, PORT)).unwrap();
    // Freed with its id.
    node.destroy(file, ids[0]).unwrap();
    node.bind(file, ids[1], (SERVER, PORT)).unwrap();
    // Both must allow it, and only one listens.
    node.set_option(file, ids[2], 0, REUSE, &ON).unwrap();
    assert_eq!(node.bind(file, ids[2], (SERVER, PORT)), Err(Errno::EADDRINUSE));
    node.set_option(file, ids[1], 0, REUSE, &ON).unwrap();
    node.bind(file, ids[2], (SERVER, PORT)).unwrap();
    assert_eq!(node.listen(file, ids[1], 1), Err(Errno::EADDRINUSE));
    node.destroy(file, ids[2]).unwrap();
    node.listen(file, ids[1], 1).unwrap();
    assert_eq!(node.set_option(file, ids[1], 0, REUSE, &ON), Err(Errno::EINVAL));
    assert_eq!(node.listen(file, ids[1], 1), Err(Errno::EINVAL));
    // An IPv6 wildcard is one for IPv4, too, unless it says otherwise.
    node.bind(file, ids[3], (ANY, PORT + 1)).unwrap();
    assert_eq!(node.bind(file, ids[4], (ANY6, PORT + 1)), Err(Errno::EADDRNOTAVAIL));
    node.set_option(file, ids[4], 0, FAMILY_ONLY, &ON).unwrap();
    node.bind(file, ids[4], (ANY6, PORT + 1)).unwrap();
}

#[test]
fn listening_binds_if_need_be() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    node.listen(file, id, 5).unwrap();
    assert!(source_of(&mut node, file, id).is_some_and(|source| source.ip().is_unspecified() && source.port() != 0));
    let resolved = node.create(file, 1, ps::TCP);
    node.resolve(file, resolved, (CLIENT, 1)).unwrap();
    assert_eq!(node.listen(file, resolved, 5), Err(Errno::EINVAL));
}

#[test]
fn ephemeral_ports_differ_until_they_are_used_up() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let mut ports: Vec<u16> = (0..500)
        .map(|_| {
            let id = node.create(file, 1, ps::TCP);
            node.resolve(file, id, (CLIENT, PORT)).unwrap();
            source_of(&mut node, file, id).unwrap().port()
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 500);
}

#[test]
fn ids_with_different_peers_share_an_ephemeral_port_when_all_are_taken() {
    let mut node = Node::new(SERVER);
    node.device.ports = Ports::new(40000..=40002);
    let file = node.open();
    let mut resolve = |port| {
        let id = node.create(file, 1, ps::TCP);
        node.resolve(file, id, (CLIENT, port)).map(|()| source_of(&mut node, file, id).unwrap().port())
    };
    let mut ports: Vec<u16> = (0..3).map(|_| resolve(PORT).unwrap()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [40000, 40001, 40002]);
    assert_eq!(resolve(PORT), Err(Errno::EADDRNOTAVAIL));
    assert!(ports.contains(&resolve(PORT + 1).unwrap()));
}

#[test]
fn ids_are_limited() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    node.device.ids = Table::new(8);
    for expected in 0..8 {
        assert_eq!(node.create(file, 1, ps::TCP), expected);
    }
    assert_eq!(node.create_typed(file, 1, ps::TCP, 0), Err(Errno::ENOMEM));
    node.destroy(file, 7).unwrap();
    assert_eq!(node.create(file, 1, ps::TCP), 7);
}

#[test]
fn resolution_fails_with_an_event_and_can_be_repeated() {
    let mut node = Node::new(SERVER);
    node.unreachable.push(CLIENT.into());
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    node.resolve(file, id, (CLIENT, PORT)).unwrap();
    assert_eq!(node.expect(file, event::ADDR_ERROR).status, -(Errno::ENETUNREACH as i32));
    assert_eq!(node.resolve_route(file, id), Err(Errno::EINVAL));
    node.unreachable.clear();
    node.resolve(file, id, (CLIENT, PORT)).unwrap();
    node.expect(file, event::ADDR_RESOLVED);
    assert_eq!(node.resolve(file, id, (CLIENT, PORT)), Err(Errno::EINVAL));
    let no_time = abi::ResolveRoute { id, timeout_ms: 0 };
    assert_eq!(node.tell(file, cmd::RESOLVE_ROUTE, &no_time), Err(Errno::EINVAL));
    assert_eq!(node.connect(file, id, conn_param(1, b"")), Err(Errno::EINVAL), "no route yet");
    node.resolve_route(file, id).unwrap();
    node.expect(file, event::ROUTE_RESOLVED);
    assert_eq!(node.resolve_route(file, id), Err(Errno::EINVAL));
    // Another family than it is bound to.
    let bound = node.create(file, 1, ps::TCP);
    node.bind(file, bound, (SERVER, 0)).unwrap();
    assert_eq!(node.resolve(file, bound, ([0xFD00_u16, 0, 0, 0, 0, 0, 0, 1], PORT)), Err(Errno::EINVAL));
    // An adapter without such addresses.
    let other = node.create(file, 1, ps::TCP);
    node.resolve(file, other, ([0xFD00_u16, 0, 0, 0, 0, 0, 0, 1], PORT)).unwrap();
    assert_eq!(node.expect(file, event::ADDR_ERROR).status, -(Errno::ENODEV as i32));
    let ipoib = node.create(file, 1, ps::IPOIB);
    node.resolve(file, ipoib, (CLIENT, PORT)).unwrap();
    assert_eq!(node.expect(file, event::ADDR_ERROR).status, -(Errno::EINVAL as i32));
}

#[test]
fn a_port_of_another_process_at_the_address_is_in_use() {
    let mut node = Node::new(SERVER);
    node.taken = Some(PORT);
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    assert_eq!(node.bind(file, id, (SERVER, PORT)), Err(Errno::EADDRINUSE));
    node.bind(file, id, (SERVER, PORT + 1)).unwrap();
    node.listen(file, id, 7).unwrap();
    // One that may share its address finds out when it listens.
    let shares = node.create(file, 2, ps::TCP);
    node.set_option(file, shares, 0, REUSE, &ON).unwrap();
    node.bind(file, shares, (SERVER, PORT)).unwrap();
    assert_eq!(node.listen(file, shares, 7), Err(Errno::EADDRINUSE));
    node.taken = None;
    node.listen(file, shares, 7).unwrap();
}

#[test]
fn a_route_that_comes_from_another_address_is_of_another_adapter() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    let Node { device, cm, local, now, .. } = &mut node;
    let routes = |_: IpAddr| Some(IpAddr::from([10, 0, 0, 7]));
    let (file_at, claim) = (|_| None, |_, _| Ok(None));
    let mut host = crate::rdma_cm::Host { cm, local, routes: &routes, file_at: &file_at, claim: &claim, now: *now };
    let (src_addr, dst_addr) = (address::write(None), address::write(Some((CLIENT, PORT).into())));
    let command = abi::ResolveIp { src_addr, dst_addr, id, timeout_ms: 1 };
    let buf = super::support::command_bytes(cmd::RESOLVE_IP, &command, 0);
    device.command(&mut host, file, &buf, false).unwrap();
    assert_eq!(node.expect(file, event::ADDR_ERROR).status, -(Errno::ENODEV as i32));
}

#[test]
fn a_program_connects_to_its_own_adapter() {
    for dest in [SERVER, ANY, Ipv4Addr::LOCALHOST] {
        let mut net = Net::new(&[SERVER.into()]);
        let (listen_file, listener) = net.listening(ps::TCP, PORT);
        let server = net.server();
        let file = server.open();
        let id = server.create(file, 0xC1, ps::TCP);
        server.resolve(file, id, (dest, PORT)).unwrap();
        server.expect(file, event::ADDR_RESOLVED);
        server.resolve_route(file, id).unwrap();
        server.expect(file, event::ROUTE_RESOLVED);
        let route = server.query_route(file, id).unwrap();
        assert_eq!((route.ib_route[0].sgid, route.ib_route[0].dgid), (Gid::from(SERVER).0, Gid::from(SERVER).0));
        server.connect(file, id, conn_param(0x11, b"")).unwrap();
        net.run();
        let server = net.server();
        let child = server.expect(listen_file, event::CONNECT_REQUEST).id;
        server.accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
        net.run();
        let server = net.server();
        assert_eq!(conn_of(&server.expect(file, event::CONNECT_RESPONSE)).qp_num, 0x22);
        server.confirm(file, id).unwrap();
        net.run();
        let server = net.server();
        server.expect(listen_file, event::ESTABLISHED);
        server.disconnect(file, id).unwrap();
        net.run();
        let server = net.server();
        server.expect(file, event::DISCONNECTED);
        server.expect(listen_file, event::DISCONNECTED);
        let counts =
            [server.destroy(file, id), server.destroy(listen_file, child), server.destroy(listen_file, listener)];
        assert_eq!(counts, [Ok(4), Ok(2), Ok(1)]);
    }
}

#[test]
fn ipv6_connections_have_ipv6_gids() {
    let (a, b): (IpAddr, IpAddr) = ("fd00:77::1".parse().unwrap(), "fd00:77::2".parse().unwrap());
    let mut net = Net::new(&[a, b]);
    let server = net.server();
    let listen_file = server.open();
    let listener = server.create(listen_file, 1, ps::TCP);
    server.bind(listen_file, listener, (ANY6, PORT)).unwrap();
    server.listen(listen_file, listener, 1).unwrap();
    let client = net.client();
    let file = client.open();
    let id = client.create(file, 2, ps::TCP);
    // The program chooses the flow label.
    let source = SocketAddr::V6(SocketAddrV6::new("fd00:77::2".parse().unwrap(), 0, 0x12345, 0));
    client.resolve_from(file, id, Some(source), SocketAddr::new(a, PORT)).unwrap();
    client.expect(file, event::ADDR_RESOLVED);
    client.resolve_route(file, id).unwrap();
    client.expect(file, event::ROUTE_RESOLVED);
    client.connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    let rtr = net.server().qp_attr(listen_file, child, qps::RTR).unwrap();
    assert_eq!((rtr.ah_attr.grh.dgid, rtr.ah_attr.grh.flow_label), (Gid::from(b).0, 0x12345));
    let dest = address::read(&net.server().query_route(listen_file, child).unwrap().dst_addr).unwrap();
    assert_eq!(dest.ip(), b);
}

#[test]
fn options_shape_the_path_and_the_queue_pair() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, PORT);
    let client = net.client();
    let file = client.open();
    let id = client.create(file, 1, ps::TCP);
    client.set_option(file, id, 0, TOS, &[0x68]).unwrap();
    client.set_option(file, id, 0, ACK_TIMEOUT, &[14]).unwrap();
    client.resolve(file, id, (SERVER, PORT)).unwrap();
    client.expect(file, event::ADDR_RESOLVED);
    client.resolve_route(file, id).unwrap();
    client.expect(file, event::ROUTE_RESOLVED);
    let route = client.query_route(file, id).unwrap();
    let path = &route.ib_route[0];
    assert_eq!((route.num_paths, path.traffic_class, path.packet_life_time), (1, 0x68, 13));
    assert_eq!((path.mtu, path.hop_limit, path.reversible, path.mtu_selector), (3, 64, 1, 2));
    client.connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let server = net.server();
    let child = server.expect(listen_file, event::CONNECT_REQUEST).id;
    assert_eq!(server.qp_attr(listen_file, child, qps::RTR).unwrap().ah_attr.grh.traffic_class, 0x68);
    // The REQ has the timeout with the device's delay, unless the server sets its own.
    assert_eq!(server.qp_attr(listen_file, child, qps::RTS).unwrap().timeout, 16);
    server.set_option(listen_file, child, 0, ACK_TIMEOUT, &[21]).unwrap();
    assert_eq!(server.qp_attr(listen_file, child, qps::RTS).unwrap().timeout, 21);
    server.accept(listen_file, child, 1, conn_param(0x22, b"")).unwrap();
    net.run();
    net.client().expect(file, event::CONNECT_RESPONSE);
    assert_eq!(net.client().qp_attr(file, id, qps::RTS).unwrap().timeout, 14);
}

#[test]
fn options_are_checked() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let (id, datagram) = (node.create(file, 1, ps::TCP), node.create(file, 1, ps::UDP));
    for name in [TOS, REUSE, FAMILY_ONLY, ACK_TIMEOUT] {
        assert_eq!(node.set_option(file, id, 0, name, &[0; 3]), Err(Errno::EINVAL));
    }
    assert_eq!(node.set_option(file, id, 0, 9, &[0]), Err(Errno::ENOSYS));
    assert_eq!(node.set_option(file, id, 1, 9, &[0]), Err(Errno::ENOSYS));
    assert_eq!(node.set_option(file, id, 7, 0, &[0]), Err(Errno::ENOSYS));
    assert_eq!(node.set_option(file, id, 1, 1, &[0; 72]), Err(Errno::EINVAL), "no path");
    assert_eq!(node.set_option(file, id, 0, TOS, &[0; 1000]), Err(Errno::EINVAL));
    assert_eq!(node.set_option(file, datagram, 0, ACK_TIMEOUT, &[14]), Err(Errno::EINVAL));
    assert_eq!(node.set_option(file, 99, 0, TOS, &[0]), Err(Errno::ENOENT));
    let nowhere = abi::SetOption { optval: 8, id, level: 0, optname: TOS, optlen: 1 };
    assert_eq!(node.tell(file, cmd::SET_OPTION, &nowhere), Err(Errno::EFAULT));
    let get = [cmd::GET_OPTION, 0];
    assert_eq!(node.tell(file, cmd::GET_OPTION, &get), Err(Errno::ENOSYS));
}

#[test]
fn a_path_of_the_programs_own_replaces_route_resolution() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    node.resolve(file, id, (CLIENT, PORT)).unwrap();
    node.expect(file, event::ADDR_RESOLVED);
    let mut path = abi::PathRecord::new_zeroed();
    path.flow_label_hop_limit = [0x01, 0x23, 0x45, 64];
    (path.traffic_class, path.mtu, path.packet_life_time) = (0x20, 2 << 6 | 2, 2 << 6 | 15);
    let data = abi::PathRecData { flags: 0b101011, reserved: 0, path_rec: path };
    node.set_option(file, id, 1, 1, data.as_bytes()).unwrap();
    node.expect(file, event::ROUTE_RESOLVED);
    // It can be read back.
    let (room, query) = (80, |response| abi::Query { response, id, option: 1 });
    let found: [u8; 80] = node.ask(file, cmd::QUERY, query).unwrap();
    assert_eq!((found.len(), &found[..8]), (room, &[1, 0, 0, 0, 0, 0, 0, 0][..]));
    let found = abi::PathRecData::read_from_bytes(&found[8..]).unwrap();
    assert_eq!((found.flags, found.path_rec.flow_label_hop_limit), (0b101011, [0x01, 0x23, 0x45, 64]));
    assert_eq!((found.path_rec.mtu, found.path_rec.packet_life_time), (path.mtu, path.packet_life_time));
    assert_eq!(node.query_route(file, id).unwrap().ib_route[0].flow_label, [0, 0x01, 0x23, 0x45]);
}

#[test]
fn queries_answer_with_addresses_and_gids() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    let query = |option| move |response| abi::Query { response, id, option };
    let unbound: abi::QueryAddrResp = node.ask(file, cmd::QUERY, query(0)).unwrap();
    assert_eq!((unbound.src_size, unbound.dst_size, unbound.port_num), (0, 0, 0));
    // As a newer librdmacm binds and resolves.
    let mut bind =
        abi::Bind { id, addr_size: 16, reserved: 0, addr: address::write_storage(Some((SERVER, PORT).into())) };
    bind.addr_size = 28;
    assert_eq!(node.tell(file, cmd::BIND, &bind), Err(Errno::EINVAL));
    bind.addr_size = 16;
    node.tell(file, cmd::BIND, &bind).unwrap();
    let dst_addr = address::write_storage(Some((CLIENT, PORT).into()));
    let mut resolve = abi::ResolveAddr { id, dst_addr, dst_size: 16, timeout_ms: 1, ..abi::ResolveAddr::new_zeroed() };
    resolve.src_size = 16;
    assert_eq!(node.tell(file, cmd::RESOLVE_ADDR, &resolve), Err(Errno::EINVAL));
    resolve.src_size = 0;
    node.tell(file, cmd::RESOLVE_ADDR, &resolve).unwrap();
    let found: abi::QueryAddrResp = node.ask(file, cmd::QUERY, query(0)).unwrap();
    assert_eq!((found.src_size, found.dst_size, found.port_num, found.pkey), (16, 16, 1, [0xFF; 2]));
    assert_eq!(address::read(&found.src_addr), Some(SocketAddr::from((SERVER, PORT))));
    let gids: abi::QueryAddrResp = node.ask(file, cmd::QUERY, query(2)).unwrap();
    assert_eq!((gids.src_size, &gids.src_addr[..4]), (48, &[27, 0, 0xFF, 0xFF][..]));
    assert_eq!((&gids.src_addr[8..24], &gids.dst_addr[8..24]), (&Gid::from(SERVER).0[..], &Gid::from(CLIENT).0[..]));
    assert_eq!(gids.src_addr[24..32], [0, 0, 0, 0, 0x01, 0x06, 0x1D, 0x2F]);
    let unknown: Result<abi::QueryAddrResp, _> = node.ask(file, cmd::QUERY, query(3));
    assert_eq!(unknown.err(), Some(Errno::ENOSYS));
    let small: Result<[u8; 8], _> = node.ask(file, cmd::QUERY, query(0));
    assert_eq!(small.err(), Some(Errno::ENOSPC));
}

/// librdmacm checks once whether native addresses are supported.
#[test]
fn native_addresses_are_refused() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let id = node.create_typed(file, 1, ps::IB, 2).unwrap();
    let (addr, addr_size) = address::write_ib([0; 2], [0; 16], 0x0106_0000);
    let bind = abi::Bind { id, addr_size, reserved: 0, addr };
    assert_eq!(node.tell(file, cmd::BIND, &bind), Err(Errno::EAFNOSUPPORT));
    assert_eq!(node.destroy(file, id), Ok(0));
}

#[test]
fn the_ib_port_space_serves_queue_pairs_of_other_types() {
    const UC: u8 = 3;
    let mut net = Net::pair();
    let server = net.server();
    let listen_file = server.open();
    let listener = server.create_typed(listen_file, 1, ps::IB, UC).unwrap();
    server.bind(listen_file, listener, (SERVER, PORT)).unwrap();
    server.listen(listen_file, listener, 1).unwrap();
    let connect = |net: &mut Net, qp_type| {
        let client = net.client();
        let file = client.open();
        let id = client.create_typed(file, 2, ps::IB, qp_type).unwrap();
        client.resolve(file, id, (SERVER, PORT)).unwrap();
        client.expect(file, event::ADDR_RESOLVED);
        client.resolve_route(file, id).unwrap();
        client.expect(file, event::ROUTE_RESOLVED);
        client.connect(file, id, conn_param(0x11, b"")).map(|()| (file, id))
    };
    let (file, id) = connect(&mut net, UC).unwrap();
    net.run();
    let server = net.server();
    let child = server.expect(listen_file, event::CONNECT_REQUEST).id;
    // Unreliable queue pairs have no READs and no retries.
    let (rtr, rts) =
        (server.qp_attr(listen_file, child, qps::RTR).unwrap(), server.qp_attr(listen_file, child, qps::RTS).unwrap());
    assert_eq!((rtr.qp_attr_mask, rts.qp_attr_mask), (1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20, 1 | 1 << 16));
    server.accept(listen_file, child, 3, conn_param(0x22, b"")).unwrap();
    net.run();
    net.client().expect(file, event::CONNECT_RESPONSE);
    net.client().confirm(file, id).unwrap();
    net.run();
    net.server().expect(listen_file, event::ESTABLISHED);
    // The listener's type is the only one.
    let (file, _) = connect(&mut net, 2).unwrap();
    net.run();
    assert_eq!(net.client().expect(file, event::REJECTED).status, 28);
    assert_eq!(connect(&mut net, 9), Err(Errno::EINVAL), "XRC");
}
