//! Programs as librdmacm is one, on adapters that exchange MADs in memory.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use rxe_proto::cm::{Cm, MadPath, MadTransmit};
use rxe_proto::wire::cm::CmMessage;
use rxe_proto::wire::{Gid, PathMtu};
use rxe_proto::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::backend::Answer;
use crate::local::Local;
use crate::rdma_cm::abi::{self, cmd};
use crate::rdma_cm::{Action, Host, RdmaCm, address, cm_config};

pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);

/// Port spaces.
pub mod ps {
    pub const IPOIB: u16 = 0x0002;
    pub const IB: u16 = 0x013F;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
}

/// States of queue pairs.
pub mod qps {
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
}

/// A process with an adapter.
pub struct Node {
    pub device: RdmaCm,
    pub cm: Cm,
    pub local: Local,
    pub now: Instant,
    /// Addresses that have no route.
    pub unreachable: Vec<IpAddr>,
    /// The port of another process at this address.
    pub taken: Option<u16>,
    /// The program's descriptors of its channels. In commands a channel's handle stands for its descriptor.
    pub descriptors: BTreeMap<u32, OwnedFd>,
}

/// The adapter that has `address`.
pub fn local(address: IpAddr) -> Local {
    Local {
        address,
        gids: vec![Gid::from(address); 2],
        interface: "eth0".to_owned(),
        ifindex: 2,
        path_mtu: PathMtu::Mtu1024,
        node_guid: 0x5054_00FF_FE00_0000 | u64::from(Gid::from(address).0[15]),
    }
}

impl Node {
    pub fn new(address: impl Into<IpAddr>) -> Node {
        let local = local(address.into());
        let seed = [local.node_guid as u8; 32];
        Node {
            device: RdmaCm::new(seed),
            cm: Cm::new(cm_config(local.node_guid, seed)),
            local,
            now: Instant::from_nanos(1_000_000_000),
            unreachable: Vec::new(),
            taken: None,
            descriptors: BTreeMap::new(),
        }
    }

    /// Calls the device with everything that it needs.
    pub fn with<R>(&mut self, call: impl FnOnce(&mut RdmaCm, &mut Host<'_>) -> R) -> R {
        let own = self.local.address;
        let unreachable = &self.unreachable;
        let routes = |dest: IpAddr| (!unreachable.contains(&dest)).then_some(own);
        let file_at = |fd| u32::try_from(fd).ok();
        let taken = self.taken;
        let claim = |_, port| if taken == Some(port) { Err(Errno::EADDRINUSE) } else { Ok(None) };
        let (cm, local, now) = (&mut self.cm, &self.local, self.now);
        let mut host = Host { cm, local, routes: &routes, file_at: &file_at, claim: &claim, now };
        call(&mut self.device, &mut host)
    }

    pub fn open(&mut self) -> u32 {
        let (file, descriptor) = self.device.open().unwrap();
        self.descriptors.insert(file, descriptor);
        file
    }

    pub fn close(&mut self, file: u32) {
        assert!(self.descriptors.remove(&file).is_some() && self.device.is_open(file));
        self.with(|device, host| device.close(host, file));
        assert!(!self.device.is_open(file));
    }

    /// Writes to the device.
    pub fn write(&mut self, file: u32, bytes: &[u8]) -> Result<Answer, Errno> {
        self.with(|device, host| device.command(host, file, bytes, false))
    }

    /// Writes to the device again, after a byte was read.
    pub fn write_again(&mut self, file: u32, bytes: &[u8]) -> Result<Answer, Errno> {
        self.with(|device, host| device.command(host, file, bytes, true))
    }

    /// A command without a response.
    pub fn tell<T: IntoBytes + Immutable>(&mut self, file: u32, number: u32, command: &T) -> Result<(), Errno> {
        let buf = command_bytes(number, command, 0);
        self.write(file, &buf).map(|answer| assert_eq!(answer, Answer::Done))
    }

    /// A command with a response, whose address is passed to `command`.
    pub fn ask<T: IntoBytes + Immutable, R: FromBytes + IntoBytes>(
        &mut self,
        file: u32,
        number: u32,
        command: impl FnOnce(u64) -> T,
    ) -> Result<R, Errno> {
        let mut response = Box::new(R::new_zeroed());
        let to = response.as_mut_bytes().as_mut_ptr() as u64;
        let buf = command_bytes(number, &command(to), size_of::<R>());
        self.write(file, &buf).map(|answer| assert_eq!(answer, Answer::Done))?;
        std::hint::black_box(&mut response);
        Ok(*response)
    }

    pub fn create(&mut self, file: u32, uid: u64, ps: u16) -> u32 {
        self.create_typed(file, uid, ps, 0).unwrap()
    }

    pub fn create_typed(&mut self, file: u32, uid: u64, ps: u16, qp_type: u8) -> Result<u32, Errno> {
        let command = |response| abi::CreateId { uid, response, ps, qp_type, reserved: [0; 5] };
        self.ask(file, cmd::CREATE_ID, command).map(|response: abi::CreateIdResp| response.id)
    }

    /// Returns the number of events that were reported.
    pub fn destroy(&mut self, file: u32, id: u32) -> Result<u32, Errno> {
        let command = |response| abi::DestroyId { response, id, reserved: 0 };
        self.ask(file, cmd::DESTROY_ID, command).map(|response: abi::DestroyIdResp| response.events_reported)
    }

    pub fn bind(&mut self, file: u32, id: u32, to: impl Into<SocketAddr>) -> Result<(), Errno> {
        self.tell(file, cmd::BIND_IP, &abi::BindIp { response: 0, addr: address::write(Some(to.into())), id })
    }

    pub fn listen(&mut self, file: u32, id: u32, backlog: u32) -> Result<(), Errno> {
        self.tell(file, cmd::LISTEN, &abi::Listen { id, backlog })
    }

    pub fn resolve(&mut self, file: u32, id: u32, dest: impl Into<SocketAddr>) -> Result<(), Errno> {
        self.resolve_from(file, id, None, dest)
    }

    pub fn resolve_from(
        &mut self,
        file: u32,
        id: u32,
        source: Option<SocketAddr>,
        dest: impl Into<SocketAddr>,
    ) -> Result<(), Errno> {
        let (src_addr, dst_addr) = (address::write(source), address::write(Some(dest.into())));
        self.tell(file, cmd::RESOLVE_IP, &abi::ResolveIp { src_addr, dst_addr, id, timeout_ms: 2000 })
    }

    pub fn resolve_route(&mut self, file: u32, id: u32) -> Result<(), Errno> {
        self.tell(file, cmd::RESOLVE_ROUTE, &abi::ResolveRoute { id, timeout_ms: 2000 })
    }

    pub fn query_route(&mut self, file: u32, id: u32) -> Result<abi::QueryRouteResp, Errno> {
        self.ask(file, cmd::QUERY_ROUTE, |response| abi::Query { response, id, option: 0 })
    }

    pub fn qp_attr(&mut self, file: u32, id: u32, qp_state: u32) -> Result<abi::QpAttr, Errno> {
        self.ask(file, cmd::INIT_QP_ATTR, |response| abi::InitQpAttr { response, id, qp_state })
    }

    pub fn connect(&mut self, file: u32, id: u32, conn_param: abi::ConnParam) -> Result<(), Errno> {
        self.tell(file, cmd::CONNECT, &abi::Connect { conn_param, id, reserved: 0, ece: NO_ECE })
    }

    pub fn accept(&mut self, file: u32, id: u32, uid: u64, conn_param: abi::ConnParam) -> Result<(), Errno> {
        self.tell(file, cmd::ACCEPT, &abi::Accept { uid, conn_param, id, reserved: 0, ece: NO_ECE })
    }

    /// What librdmacm does with a connect response.
    pub fn confirm(&mut self, file: u32, id: u32) -> Result<(), Errno> {
        self.accept(file, id, 0, abi::ConnParam::new_zeroed())
    }

    pub fn reject(&mut self, file: u32, id: u32, data: &[u8]) -> Result<(), Errno> {
        let mut command = abi::Reject { id, private_data_len: data.len() as u8, ..abi::Reject::new_zeroed() };
        command.private_data[..data.len()].copy_from_slice(data);
        self.tell(file, cmd::REJECT, &command)
    }

    pub fn disconnect(&mut self, file: u32, id: u32) -> Result<(), Errno> {
        self.tell(file, cmd::DISCONNECT, &abi::Disconnect { id })
    }

    pub fn set_option(&mut self, file: u32, id: u32, level: u32, optname: u32, value: &[u8]) -> Result<(), Errno> {
        let (optval, optlen) = (value.as_ptr() as u64, value.len() as u32);
        self.tell(file, cmd::SET_OPTION, &abi::SetOption { optval, id, level, optname, optlen })
    }

    pub fn migrate(&mut self, to: u32, from: u32, id: u32) -> Result<u32, Errno> {
        let command = |response| abi::MigrateId { response, id, fd: from };
        self.ask(to, cmd::MIGRATE_ID, command).map(|response: abi::MigrateResp| response.events_reported)
    }

    pub fn join(&mut self, file: u32, id: u32, uid: u64, group: Ipv4Addr) -> Result<u32, Errno> {
        let addr = address::write(Some(SocketAddr::from((group, 0))));
        let command = |response| abi::JoinIpMcast { response, uid, addr, id };
        self.ask(file, cmd::JOIN_IP_MCAST, command).map(|response: abi::CreateIdResp| response.id)
    }

    pub fn leave(&mut self, file: u32, membership: u32) -> Result<u32, Errno> {
        let command = |response| abi::DestroyId { response, id: membership, reserved: 0 };
        self.ask(file, cmd::LEAVE_MCAST, command).map(|response: abi::DestroyIdResp| response.events_reported)
    }

    /// The next event; `None` when a program would wait. A descriptor is readable if and only if there is an event.
    pub fn event(&mut self, file: u32) -> Option<abi::EventResp> {
        let readable = self.is_readable(file);
        let mut response = Box::new(abi::EventResp::new_zeroed());
        let to = response.as_mut_bytes().as_mut_ptr() as u64;
        let buf = command_bytes(cmd::GET_EVENT, &abi::GetEvent { response: to }, size_of::<abi::EventResp>());
        let result = self.write(file, &buf);
        std::hint::black_box(&mut response);
        match result {
            Ok(Answer::Done) => {
                assert!(readable);
                Some(*response)
            }
            Ok(Answer::ReadByte) => {
                assert!(!readable);
                None
            }
            Err(errno) => panic!("{errno}"),
        }
    }

    /// The next event, which must be this one.
    #[track_caller]
    pub fn expect(&mut self, file: u32, event: u32) -> abi::EventResp {
        let found = self.event(file).expect("an event");
        assert_eq!(found.event, event, "status {}", found.status);
        found
    }

    /// Whether `poll` finds the descriptor readable.
    pub fn is_readable(&self, file: u32) -> bool {
        self.is_ready(file, PollFlags::POLLIN)
    }

    /// Whether `poll` finds the descriptor ready.
    pub fn is_ready(&self, file: u32, for_what: PollFlags) -> bool {
        let mut fds = [PollFd::new(self.descriptors[&file].as_fd(), for_what)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    }

    pub fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.device.poll_action()).collect()
    }

    /// Passes the connection manager's events to the device.
    pub fn handle_events(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            self.with(|device, host| device.handle(host, event));
        }
    }
}

pub const NO_ECE: abi::Ece = abi::Ece { vendor_id: 0, attr_mod: 0 };

/// The parameters that a program with a queue pair `qp_num` passes. The two READ limits are unequal: each belongs to one direction.
pub fn conn_param(qp_num: u32, data: &[u8]) -> abi::ConnParam {
    let mut param = abi::ConnParam {
        qp_num,
        private_data_len: data.len() as u8,
        responder_resources: 7,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 7,
        valid: 1,
        ..abi::ConnParam::new_zeroed()
    };
    param.private_data[..data.len()].copy_from_slice(data);
    param
}

/// A command as a program writes it.
pub fn command_bytes<T: IntoBytes + Immutable>(cmd: u32, command: &T, room: usize) -> Vec<u8> {
    let header = abi::CmdHdr { cmd, r#in: size_of::<T>() as u16, out: room as u16 };
    [header.as_bytes(), command.as_bytes()].concat()
}

/// The parameters of an event of a connection.
pub fn conn_of(event: &abi::EventResp) -> abi::ConnParam {
    abi::ConnParam::read_from_prefix(&event.param).unwrap().0
}

/// The parameters of an event of a datagram service.
pub fn ud_of(event: &abi::EventResp) -> abi::UdParam {
    abi::UdParam::read_from_bytes(&event.param).unwrap()
}

/// Adapters, and the network between them.
pub struct Net {
    pub nodes: Vec<Node>,
    /// Percentage of MADs that are lost.
    pub loss: u32,
    rng: ChaCha12Rng,
    wire: VecDeque<MadTransmit>,
    /// Every MAD, lost or not.
    pub sent: Vec<CmMessage>,
}

impl Net {
    pub fn new(addresses: &[IpAddr]) -> Net {
        Net {
            nodes: addresses.iter().map(|&address| Node::new(address)).collect(),
            loss: 0,
            rng: ChaCha12Rng::from_seed([1; 32]),
            wire: VecDeque::new(),
            sent: Vec::new(),
        }
    }

    /// A network of a server and a client.
    pub fn pair() -> Net {
        Net::new(&[SERVER.into(), CLIENT.into()])
    }

    pub fn server(&mut self) -> &mut Node {
        &mut self.nodes[0]
    }

    pub fn client(&mut self) -> &mut Node {
        &mut self.nodes[1]
    }

    pub fn seed(&mut self, seed: u8) {
        self.rng = ChaCha12Rng::from_seed([seed; 32]);
    }

    /// Delivers MADs and events until there are none.
    pub fn run(&mut self) {
        loop {
            for node in &mut self.nodes {
                node.handle_events();
                self.wire.extend(std::iter::from_fn(|| node.cm.poll_transmit()));
            }
            let Some(transmit) = self.wire.pop_front() else { return };
            self.sent.push(CmMessage::parse(&*transmit.mad).unwrap().1);
            if self.rng.next_u32() % 100 < self.loss {
                continue;
            }
            let Some(node) = self.nodes.iter_mut().find(|node| Gid::from(node.local.address) == transmit.path.peer)
            else {
                continue;
            };
            let path = MadPath { local: transmit.path.peer, peer: transmit.path.local, ..transmit.path };
            let _dropped = node.cm.handle_mad(node.now, &path, &*transmit.mad, &node.local);
        }
    }

    /// Lets the time of the next timer come. False when there is none.
    pub fn step(&mut self) -> bool {
        self.run();
        let timeouts = |node: &Node| [node.cm.next_timeout(), node.device.next_timeout()];
        let Some(at) = self.nodes.iter().flat_map(timeouts).flatten().min() else { return false };
        for node in &mut self.nodes {
            node.now = node.now.max(at);
            node.cm.handle_timeout(node.now);
            node.with(RdmaCm::handle_timeout);
        }
        self.run();
        true
    }

    /// Lets time pass.
    pub fn advance(&mut self, by: Duration) {
        let end = self.nodes[0].now + by;
        let is_due = |net: &Net| {
            net.nodes.iter().flat_map(|n| [n.cm.next_timeout(), n.device.next_timeout()]).flatten().any(|at| at <= end)
        };
        self.run();
        while is_due(self) {
            self.step();
        }
        self.nodes.iter_mut().for_each(|node| node.now = end);
    }

    /// Lets time pass until a node has an event.
    #[track_caller]
    pub fn wait(&mut self, node: usize, file: u32) -> abi::EventResp {
        loop {
            self.run();
            if let Some(event) = self.nodes[node].event(file) {
                return event;
            }
            assert!(self.step(), "no event, and none will come");
        }
    }

    /// [`wait`](Self::wait) for an event that must be this one.
    #[track_caller]
    pub fn wait_for(&mut self, node: usize, file: u32, event: u32) -> abi::EventResp {
        let found = self.wait(node, file);
        assert_eq!(found.event, event, "status {}", found.status);
        found
    }

    /// A listener of the server on a port.
    pub fn listening(&mut self, ps: u16, port: u16) -> (u32, u32) {
        let server = self.server();
        let file = server.open();
        let id = server.create(file, 0x5E, ps);
        server.bind(file, id, (SERVER, port)).unwrap();
        server.listen(file, id, 0).unwrap();
        (file, id)
    }

    /// An id of the client with a route to a port of the server.
    pub fn routed(&mut self, ps: u16, port: u16) -> (u32, u32) {
        let client = self.client();
        let file = client.open();
        let id = client.create(file, 0xC1, ps);
        client.resolve(file, id, (SERVER, port)).unwrap();
        client.expect(file, abi::event::ADDR_RESOLVED);
        client.resolve_route(file, id).unwrap();
        client.expect(file, abi::event::ROUTE_RESOLVED);
        (file, id)
    }
}

/// The ids of a connection, each with its channel.
pub struct Connected {
    pub client: (u32, u32),
    pub server: (u32, u32),
}

impl Net {
    /// A connection, all of whose events were read.
    pub fn connected(&mut self, ps: u16, port: u16) -> Connected {
        let (listen_file, _) = self.listening(ps, port);
        let (file, id) = self.routed(ps, port);
        self.client().connect(file, id, conn_param(0x11, b"")).unwrap();
        self.run();
        let child = self.server().expect(listen_file, abi::event::CONNECT_REQUEST).id;
        self.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
        self.run();
        self.client().expect(file, abi::event::CONNECT_RESPONSE);
        self.client().confirm(file, id).unwrap();
        self.run();
        self.server().expect(listen_file, abi::event::ESTABLISHED);
        Connected { client: (file, id), server: (listen_file, child) }
    }
}
