//! Commands that no program should write: errors, never a panic, and nothing is left of them.

use std::net::SocketAddr;

use nix::errno::Errno;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use rxe_proto::Duration;
use zerocopy::{FromZeros, IntoBytes};

use super::support::{CLIENT, Net, Node, SERVER, command_bytes, conn_param, ps};
use crate::backend::Answer;
use crate::rdma_cm::abi::{self, cmd};
use crate::rdma_cm::address;
use crate::rdma_cm::id::{Link, Phase, State};

#[test]
fn malformed_headers_are_refused() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let write = |node: &mut Node, bytes: &[u8]| node.write(file, bytes).unwrap_err();
    assert_eq!(write(&mut node, &[]), Errno::EINVAL);
    assert_eq!(write(&mut node, &[0; 7]), Errno::EINVAL);
    assert_eq!(write(&mut node, &[23, 0, 0, 0, 0, 0, 0, 0]), Errno::EINVAL);
    assert_eq!(write(&mut node, &[0xFF; 8]), Errno::EINVAL);
    assert_eq!(write(&mut node, &[7, 0, 0, 0, 1, 0, 0, 0]), Errno::EINVAL, "shorter than it says");
    assert_eq!(node.write(file + 1000, &[0; 8]).unwrap_err(), Errno::EBADF);
}

#[test]
fn commands_for_foreign_ids_are_refused() {
    let mut node = Node::new(SERVER);
    let (file, other) = (node.open(), node.open());
    let id = node.create(file, 1, ps::TCP);
    for (id, errno) in [(id, Errno::EINVAL), (77, Errno::ENOENT)] {
        assert_eq!(node.bind(other, id, (SERVER, 0)), Err(errno));
        assert_eq!(node.listen(other, id, 1), Err(errno));
        assert_eq!(node.resolve(other, id, (SERVER, 1)), Err(errno));
        assert_eq!(node.resolve_route(other, id), Err(errno));
        assert_eq!(node.query_route(other, id).err(), Some(errno));
        assert_eq!(node.connect(other, id, conn_param(1, b"")), Err(errno));
        assert_eq!(node.accept(other, id, 1, conn_param(1, b"")), Err(errno));
        assert_eq!(node.reject(other, id, b""), Err(errno));
        assert_eq!(node.disconnect(other, id), Err(errno));
        assert_eq!(node.qp_attr(other, id, 1).err(), Some(errno));
        assert_eq!(node.destroy(other, id), Err(errno));
        assert_eq!(node.tell(other, cmd::NOTIFY, &abi::Notify { id, event: 4 }), Err(errno));
    }
    assert_eq!(node.destroy(file, id), Ok(0));
}

#[test]
fn commands_in_a_wrong_state_are_refused() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    assert_eq!(node.create_typed(file, 1, 0x1234, 0), Err(Errno::EINVAL), "no such port space");
    let id = node.create(file, 1, ps::TCP);
    assert_eq!(node.qp_attr(file, id, 1).err(), Some(Errno::EINVAL), "no adapter");
    assert_eq!(node.disconnect(file, id), Err(Errno::EINVAL));
    node.bind(file, id, (SERVER, 0)).unwrap();
    assert_eq!(node.qp_attr(file, id, 7).err(), Some(Errno::EINVAL), "no such state");
    assert_eq!(node.disconnect(file, id), Err(Errno::EINVAL), "no connection");
    assert_eq!(node.reject(file, id, b""), Err(Errno::EINVAL));
    assert_eq!(node.accept(file, id, 1, conn_param(1, b"")), Err(Errno::EINVAL));
    assert_eq!(node.tell(file, cmd::NOTIFY, &abi::Notify { id, event: 4 }), Err(Errno::EINVAL));
    let reason = abi::Reject { id, reason: 8, ..abi::Reject::new_zeroed() };
    assert_eq!(node.tell(file, cmd::REJECT, &reason), Err(Errno::EINVAL));
    // Shorter than the first version of the ABI.
    let short = [0_u8; 279];
    assert_eq!(node.tell(file, cmd::CONNECT, &short), Err(Errno::EINVAL));
    assert_eq!(node.tell(file, cmd::ACCEPT, &short), Err(Errno::EINVAL));
}

#[test]
fn programs_without_the_newest_fields_are_served() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, 7471);
    let (file, id) = net.routed(ps::TCP, 7471);
    // CONNECT without its ECE.
    let command = abi::Connect { conn_param: conn_param(1, b""), id, ..abi::Connect::new_zeroed() };
    let command: [u8; 280] = *command.as_bytes().first_chunk().unwrap();
    net.client().tell(file, cmd::CONNECT, &command).unwrap();
    net.run();
    // GET_EVENT without reserved and ECE, QUERY_ROUTE without the index of the device.
    let server = net.server();
    let event: [u8; 324] = server.ask(listen_file, cmd::GET_EVENT, |response| abi::GetEvent { response }).unwrap();
    let child = u32::from_ne_bytes(*event[8..].first_chunk().unwrap());
    let query = |response| abi::Query { response, id: child, option: 0 };
    let route: [u8; 200] = server.ask(listen_file, cmd::QUERY_ROUTE, query).unwrap();
    assert_eq!(route[192..197], [1, 0, 0, 0, 1]);
    let short: Result<[u8; 199], _> = server.ask(listen_file, cmd::QUERY_ROUTE, query);
    assert_eq!(short.err(), Some(Errno::ENOSPC));
}

#[test]
fn unwritable_responses_leave_nothing_behind() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let create = abi::CreateId { uid: 1, response: 8, ps: ps::TCP, qp_type: 0, reserved: [0; 5] };
    let create = command_bytes(cmd::CREATE_ID, &create, 4);
    assert_eq!(node.write(file, &create), Err(Errno::EFAULT));
    assert_eq!(node.device.ids.len(), 0);
    let id = node.create(file, 1, ps::UDP);
    node.bind(file, id, (SERVER, 0)).unwrap();
    let addr = address::write(Some(([239, 1, 2, 3], 0).into()));
    let join = command_bytes(cmd::JOIN_IP_MCAST, &abi::JoinIpMcast { response: 8, uid: 1, addr, id }, 4);
    assert_eq!(node.write(file, &join), Err(Errno::EFAULT));
    assert_eq!((node.device.memberships.len(), node.actions()), (0, vec![]));
    let no_room = command_bytes(cmd::DESTROY_ID, &abi::DestroyId { response: 8, id, reserved: 0 }, 3);
    assert_eq!(node.write(file, &no_room), Err(Errno::ENOSPC));
    // As in a kernel, the id is destroyed all the same.
    let destroy = command_bytes(cmd::DESTROY_ID, &abi::DestroyId { response: 8, id, reserved: 0 }, 4);
    assert_eq!(node.write(file, &destroy), Err(Errno::EFAULT));
    assert_eq!(node.device.ids.len(), 0);
}

/// Two programs that write anything.
struct Chaos {
    net: Net,
    rng: ChaCha12Rng,
    files: [Vec<u32>; 2],
    /// Where responses may go.
    response: Box<[u8; 1024]>,
}

impl Chaos {
    fn below(&mut self, limit: u32) -> u32 {
        self.rng.next_u32() % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    fn to(&mut self) -> u64 {
        if self.below(10) == 0 { 8 } else { self.response.as_mut_ptr() as u64 }
    }

    /// An address: often one that means something.
    fn addr(&mut self) -> abi::SockaddrStorage {
        let ip = self.pick(&[[192, 168, 77, 1], [192, 168, 77, 2], [0; 4], [239, 1, 2, 3], [127, 0, 0, 1], [9; 4]]);
        let port = self.pick(&[0, 7471, 7472]);
        let mut addr = address::write_storage(Some((ip, port).into()));
        match self.below(20) {
            0 => self.rng.fill_bytes(&mut addr),
            1 => addr[0] = self.below(30) as u8,
            _ => {}
        }
        addr
    }

    fn conn_param(&mut self) -> abi::ConnParam {
        let mut param = abi::ConnParam::new_zeroed();
        if self.below(10) == 0 {
            self.rng.fill_bytes(param.as_mut_bytes());
        }
        param.qp_num = self.below(4);
        param.private_data_len = self.pick(&[0, 1, 56, 57, 148, 196, 255]);
        param.valid = self.pick(&[0, 1, 1, 1]);
        param
    }

    /// A random command for one of the programs.
    fn command(&mut self, node: usize) {
        let id = self.below(12);
        let (uid, flags) = (u64::from(self.below(3)), self.below(3) as u16);
        let (response, number) = (self.to(), self.below(24));
        let (addr, other) = (self.addr(), self.addr());
        let (addr6, other6) = (*addr.first_chunk().unwrap(), *other.first_chunk().unwrap());
        let (size, conn_param) = (self.pick(&[16, 16, 28, 0]), self.conn_param());
        let room = self.pick(&[0, 4, 1024, 1024, 1024, 1024]);
        let (ps, qp_type) = (self.pick(&[ps::TCP, ps::UDP, ps::IB, ps::IPOIB, 7]), self.pick(&[2, 3, 4, 9]));
        let (file, from) = (self.files[node].clone(), self.files[node].clone());
        let (file, from) = (self.pick(&file), self.pick(&from));
        let (optval, optlen) = (self.to(), self.pick(&[0, 1, 4, 72, 432, u32::MAX]));
        let (level, small) = (self.below(3), self.below(8));
        let bytes = match number {
            cmd::CREATE_ID => {
                command_bytes(number, &abi::CreateId { uid, response, ps, qp_type, reserved: [0; 5] }, room)
            }
            cmd::DESTROY_ID if self.below(4) > 0 => return,
            cmd::DESTROY_ID | cmd::LEAVE_MCAST => {
                command_bytes(number, &abi::DestroyId { response, id, reserved: 0 }, room)
            }
            cmd::BIND_IP => command_bytes(number, &abi::BindIp { response, addr: addr6, id }, room),
            cmd::RESOLVE_IP => {
                let command = abi::ResolveIp { src_addr: addr6, dst_addr: other6, id, timeout_ms: small };
                command_bytes(number, &command, room)
            }
            cmd::RESOLVE_ROUTE => command_bytes(number, &abi::ResolveRoute { id, timeout_ms: small }, room),
            cmd::QUERY_ROUTE | cmd::QUERY => command_bytes(number, &abi::Query { response, id, option: small }, room),
            cmd::CONNECT => {
                let command = abi::Connect { conn_param, id, ..abi::Connect::new_zeroed() };
                command_bytes(number, &command, room)
            }
            cmd::LISTEN => command_bytes(number, &abi::Listen { id, backlog: small }, room),
            cmd::ACCEPT => {
                command_bytes(number, &abi::Accept { uid, conn_param, id, ..abi::Accept::new_zeroed() }, room)
            }
            cmd::REJECT => {
                let private_data_len = conn_param.private_data_len;
                let reason = [0, 28, 35, 1][small as usize % 4];
                let command = abi::Reject { id, reason, private_data_len, ..abi::Reject::new_zeroed() };
                command_bytes(number, &command, room)
            }
            cmd::DISCONNECT => command_bytes(number, &abi::Disconnect { id }, room),
            cmd::INIT_QP_ATTR => command_bytes(number, &abi::InitQpAttr { response, id, qp_state: small }, room),
            cmd::GET_EVENT => command_bytes(number, &abi::GetEvent { response }, room),
            cmd::SET_OPTION => {
                let command = abi::SetOption { optval, id, level, optname: small, optlen };
                command_bytes(number, &command, room)
            }
            cmd::NOTIFY => command_bytes(number, &abi::Notify { id, event: small }, room),
            cmd::JOIN_IP_MCAST => command_bytes(number, &abi::JoinIpMcast { response, uid, addr: addr6, id }, room),
            cmd::MIGRATE_ID => command_bytes(number, &abi::MigrateId { response, id, fd: from }, room),
            cmd::BIND => command_bytes(number, &abi::Bind { id, addr_size: size, reserved: 0, addr }, room),
            cmd::RESOLVE_ADDR => {
                let command = abi::ResolveAddr {
                    id,
                    timeout_ms: small,
                    src_size: size,
                    dst_size: 16,
                    reserved: 0,
                    src_addr: addr,
                    dst_addr: other,
                };
                command_bytes(number, &command, room)
            }
            cmd::JOIN_MCAST => {
                let command = abi::JoinMcast { response, uid, id, addr_size: size, join_flags: flags, addr };
                command_bytes(number, &command, room)
            }
            _ => command_bytes(number, &[0_u8; 8], room),
        };
        let len = match self.below(20) {
            0 => self.below(bytes.len() as u32 + 1) as usize,
            _ => bytes.len(),
        };
        match self.net.nodes[node].write(file, &bytes[..len]) {
            Ok(Answer::Done) => {}
            Ok(Answer::ReadByte) => assert_eq!(number, cmd::GET_EVENT),
            Err(errno) => assert_ne!(errno, Errno::EBADF),
        }
    }

    /// What a program does next with one of its ids.
    fn proceed(&mut self, node: usize) {
        let ids: Vec<u32> = self.net.nodes[node].device.ids.handles().collect();
        if ids.is_empty() {
            return;
        }
        let (id, dest) = (self.pick(&ids), self.pick(&[SERVER, CLIENT]));
        let (listens, data) = (self.below(2) == 0, self.below(40) as usize);
        let node = &mut self.net.nodes[node];
        let found = node.device.ids.get(id).unwrap();
        let (file, state) = (found.channel, found.state);
        let phase = found.connection().map(|connection| connection.phase);
        let datagram = matches!(found.link, Link::SidrReceived(Some(_)));
        let (own, param) = (node.local.address, conn_param(id, &[7; 40][..data]));
        // They fail when other commands have come before.
        let _result = match (state, phase) {
            (State::Idle, _) if listens => node.bind(file, id, SocketAddr::new(own, 7471)),
            (State::Bound, _) if listens => node.listen(file, id, 8),
            (State::Idle | State::Bound, _) => node.resolve(file, id, (dest, 7471)),
            (State::AddressResolved, _) => node.resolve_route(file, id),
            (State::RouteResolved, _) => node.connect(file, id, param),
            (_, Some(Phase::ReqReceived)) => node.accept(file, id, 9, param),
            (_, Some(Phase::RepReceived)) => node.confirm(file, id),
            (_, Some(Phase::Established)) if listens => node.disconnect(file, id),
            _ if datagram => node.accept(file, id, 9, param),
            (_, Some(Phase::Ended)) => node.destroy(file, id).map(drop),
            _ => Ok(()),
        };
    }

    /// What must hold between commands.
    fn check(&self) {
        for node in &self.net.nodes {
            let device = &node.device;
            for (&file, channel) in &device.channels {
                assert_eq!(node.is_readable(file), channel.len() > 0);
                assert!(channel.ids.iter().all(|&id| device.ids.get(id).unwrap().channel == file));
            }
            let listed: usize = device.channels.values().map(|channel| channel.ids.len()).sum();
            assert_eq!(listed, device.ids.len());
            for handle in device.ids.handles() {
                let id = device.ids.get(handle).unwrap();
                assert!(id.multicasts.iter().all(|&membership| device.memberships.get(membership).is_some()));
            }
        }
    }
}

#[test]
fn random_commands_of_two_programs_never_panic_and_leave_nothing() {
    let (mut established, mut resolved) = (0, 0);
    for seed in 0..30_u8 {
        let mut chaos = Chaos {
            net: Net::pair(),
            rng: ChaCha12Rng::from_seed([seed; 32]),
            files: [Vec::new(), Vec::new()],
            response: Box::new([0; 1024]),
        };
        chaos.net.loss = 10;
        for node in 0..2 {
            chaos.files[node] = (0..3).map(|_| chaos.net.nodes[node].open()).collect();
        }
        for _ in 0..5_000 {
            let node = chaos.below(2) as usize;
            match chaos.below(2) {
                0 => chaos.proceed(node),
                _ => chaos.command(node),
            }
            match chaos.below(300) {
                0..100 => chaos.net.run(),
                100..105 => {
                    chaos.net.step();
                }
                105..110 => {
                    let qpn = chaos.below(4);
                    chaos.net.nodes[node].with(|device, host| device.established(host, qpn));
                }
                110 => {
                    let files = chaos.files[node].clone();
                    let which = chaos.below(files.len() as u32) as usize;
                    chaos.net.nodes[node].close(files[which]);
                    chaos.files[node][which] = chaos.net.nodes[node].open();
                }
                _ => {}
            }
            chaos.check();
        }
        for node in 0..2 {
            for file in chaos.files[node].clone() {
                chaos.net.nodes[node].close(file);
            }
        }
        let stats = chaos.net.nodes[0].cm.stats();
        established += stats.established.get();
        resolved += stats.resolved.get();
        chaos.net.loss = 0;
        chaos.net.advance(Duration::from_secs(7200));
        for node in &mut chaos.net.nodes {
            let device = &node.device;
            assert_eq!((device.ids.len(), device.memberships.len(), device.groups.len()), (0, 0, 0));
            assert!(device.connections.is_empty() && device.sidr_requests.is_empty() && device.unconfirmed.is_empty());
            assert!(device.ports.is_empty() && node.cm.is_empty() && device.next_timeout().is_none());
        }
    }
    assert!(established > 10 && resolved > 10, "{established} connections and {resolved} datagram services");
}
