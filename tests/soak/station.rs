//! One client host: a MAC address, an IP host, a connection manager and an engine with one queue pair, connected to a service
//! of the target. Many of them share a DPDK port.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rxe_dpdk::eal::TxStage;
use rxe_dpdk::host::{Host, HostConfig, HostEvent, StreamEvent, TcpStreamId};
use rxe_dpdk::rxe_proto::Instant;
use rxe_dpdk::rxe_proto::cm::{
    Cm, CmConfig, CmEvent, ConnId, ConnectParams, ConnectReply, GSI_UDP_SRC_PORT, LocalAddresses, MadPath, MadTransmit,
    ResolveParams, read_mad, write_mad,
};
use rxe_dpdk::rxe_proto::mem::{Access, Memory, MemoryRegion, PdId};
use rxe_dpdk::rxe_proto::transport::{
    AhId, CqId, Engine, EngineConfig, QpCaps, QpInit, QpTransition, QpType, Qpn, RecvWr, RemoteAddr, RtrAttr, RtsAttr,
    SendFlags, SendOp, SendWr, Sge, WorkCompletion,
};
use rxe_dpdk::rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_dpdk::rxe_proto::wire::{
    Cidr, Frame, Gid, MacAddr, Path, PathMtu, PortId, Psn, TxQueue, classify, udp_source_port,
};

/// The target's address.
const TARGET: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Bytes of memory of a client.
pub const MEMORY: usize = 128 << 10;

/// Address of that memory for the target.
pub const MEMORY_ADDR: u64 = 0x10_0000;

/// The path MTU of all connections.
const MTU: PathMtu = PathMtu::Mtu1024;

/// ACK timeout of either side, 268 ms: a busy machine may stop a process for longer than the usual 67 ms.
const ACK_TIMEOUT: u8 = 16;

/// The port's transmit queue.
pub struct Tx(pub TxStage);

impl TxQueue for Tx {
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        self.0.push(len)
    }
}

/// A service of the target, and the queue pair with which a client uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// RC by the connection manager, to this port.
    Connected(u16),
    /// UD: udaddy.
    Datagram,
    /// RC or UC by a TCP stream: pingpong.
    Stream(QpType),
}

/// An event of a station.
#[derive(Clone, Debug)]
pub enum Event {
    /// The queue pair can send.
    Ready,
    Completion(WorkCompletion),
    /// The connection is over, or was not established.
    Ended(String),
}

/// How far the connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Closed,
    Connecting,
    Exchanging(TcpStreamId),
    Open,
}

pub struct Station {
    service: Service,
    private_data: Vec<u8>,
    address: Ipv4Addr,
    path: Path,
    host: Host,
    cm: Cm,
    engine: Engine,
    pd: PdId,
    cq: CqId,
    qpn: Qpn,
    state: State,
    conn: Option<ConnId>,
    memory: MemoryRegion,
    ah: Option<AhId>,
    peer_qpn: Qpn,
    /// The region that the target has described.
    remote: Option<RemoteAddr>,
    gsi_psn: Psn,
    unsent: Option<MadTransmit>,
    events: VecDeque<Event>,
}

/// The address of the only host.
struct Own(Ipv4Addr);

impl LocalAddresses for Own {
    fn is_local(&self, _port: PortId, gid: Gid) -> bool {
        gid == self.0.into()
    }

    fn path_mtu(&self, _port: PortId) -> PathMtu {
        MTU
    }
}

/// The MAC address in slot `slot`.
pub fn mac(slot: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0x50, 0xAC, slot])
}

impl Station {
    /// The host in `slot`, with all its numbers from `seed`. `private_data` is for the service.
    pub fn new(
        now: Instant,
        slot: u8,
        seed: [u8; 32],
        target: MacAddr,
        service: Service,
        private_data: &[u8],
    ) -> Station {
        let address = Ipv4Addr::new(10, 77, 0, 10 + slot);
        let mut engine = Engine::new(EngineConfig { seed, max_qp: 4, ..EngineConfig::default() });
        let pd = engine.keys_mut().alloc_pd();
        let cq = engine.create_cq(64).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = engine.keys_mut().register(pd, Memory::heap(MEMORY), MEMORY_ADDR, access).unwrap();
        let qp_type = match service {
            Service::Connected(_) => QpType::Rc,
            Service::Datagram => QpType::Ud,
            Service::Stream(qp_type) => qp_type,
        };
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit { qp_type, pd, send_cq: cq, recv_cq: cq, srq: None, caps, sq_sig_all: false };
        let qpn = engine.create_qp(now, &init).unwrap();
        let transition = match qp_type {
            QpType::Ud => QpTransition::ToInitDatagram { port: PortId(0), qkey: RDMA_UDP_QKEY },
            _ => QpTransition::ToInit { access: Access::REMOTE_READ | Access::REMOTE_WRITE },
        };
        engine.modify_qp(qpn, transition).unwrap();
        let addresses = vec![Cidr::new(address.into(), 24)];
        let host = Host::new(&HostConfig { mac: mac(slot), addresses, seed, ..HostConfig::default() }).unwrap();
        let (src, dst) = (address.into(), TARGET.into());
        let path = Path { src_mac: mac(slot), dst_mac: target, src, dst, ..Path::default() };
        Station {
            service,
            private_data: private_data.to_vec(),
            address,
            path,
            host,
            cm: Cm::new(CmConfig::new(0x5000 + u64::from(slot), seed)),
            engine,
            pd,
            cq,
            qpn,
            state: State::Closed,
            conn: None,
            memory,
            ah: None,
            peer_qpn: Qpn::default(),
            remote: None,
            gsi_psn: Psn::default(),
            unsent: None,
            events: VecDeque::new(),
        }
    }

    /// Its memory.
    pub fn memory(&self) -> &Memory {
        self.memory.memory()
    }

    /// The key of its memory for the target.
    pub fn rkey(&self) -> u32 {
        self.memory.rkey()
    }

    /// Byte `offset` of the region that the target lends.
    pub fn remote(&self, offset: usize) -> RemoteAddr {
        let region = self.remote.expect("a connection to a region");
        RemoteAddr { addr: region.addr + offset as u64, ..region }
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: MEMORY_ADDR + offset as u64, length: len as u32, lkey: self.memory.lkey() }
    }

    /// Posts an operation on `len` bytes of its memory; false when the queue pair is in error, as an event will say.
    pub fn post_send(&mut self, wr_id: u64, op: SendOp, offset: usize, len: usize) -> bool {
        let sges = [self.sge(offset, len)];
        let wr = SendWr { wr_id, op, sges: &sges, flags: SendFlags::SIGNALED };
        self.engine.post_send(self.qpn, &wr).is_ok()
    }

    /// Posts a message: a SEND, or a datagram to the target's queue pair.
    pub fn post_message(&mut self, wr_id: u64, offset: usize, len: usize) -> bool {
        let op = match self.ah {
            Some(ah) => SendOp::Datagram { ah, qpn: self.peer_qpn, qkey: RDMA_UDP_QKEY, imm: None },
            None => SendOp::Send { imm: None },
        };
        self.post_send(wr_id, op, offset, len)
    }

    pub fn post_recv(&mut self, wr_id: u64, offset: usize, len: usize) -> bool {
        let sges = [self.sge(offset, len)];
        self.engine.post_recv(self.qpn, &RecvWr { wr_id, sges: &sges }).is_ok()
    }

    /// Disconnects; [`Event::Ended`] follows. A queue pair without a connection ends at once.
    pub fn disconnect(&mut self, now: Instant) {
        let disconnected = self.conn.is_some_and(|conn| self.cm.disconnect(now, conn).is_ok());
        if !disconnected {
            self.end("left");
        }
    }

    fn end(&mut self, why: impl std::fmt::Display) {
        self.events.push_back(Event::Ended(why.to_string()));
    }

    pub fn next_event(&mut self) -> Option<Event> {
        if let Some(completion) = self.engine.poll_cq_one(self.cq) {
            return Some(Event::Completion(completion));
        }
        self.events.pop_front()
    }

    fn mad_path(&self) -> MadPath {
        MadPath {
            port: PortId(0),
            local_mac: self.path.src_mac,
            peer_mac: self.path.dst_mac,
            vlan: None,
            local: self.path.src,
            peer: self.path.dst,
            traffic_class: 0,
        }
    }

    /// Begins to connect.
    fn connect(&mut self, now: Instant) {
        self.state = State::Connecting;
        match self.service {
            Service::Connected(port) => {
                let ports = (40_000, port);
                let params = ConnectParams {
                    responder_resources: 1,
                    initiator_depth: 4,
                    local_ack_timeout: ACK_TIMEOUT,
                    response_timeout: 16,
                    private_data: self.private_data.clone(),
                    ..ConnectParams::new(self.mad_path(), ports, self.qpn, Psn::new(self.qpn.get()), MTU)
                };
                self.conn = Some(self.cm.connect(now, params).unwrap());
            }
            Service::Datagram => {
                let params =
                    ResolveParams { response_timeout: 16, ..ResolveParams::new(self.mad_path(), (40_000, 7174)) };
                self.cm.resolve_datagram(now, params).unwrap();
            }
            Service::Stream(_) => match self.host.connect(now, SocketAddr::new(TARGET.into(), 18515)) {
                Ok(stream) => self.state = State::Exchanging(stream),
                Err(error) => self.end(error),
            },
        }
    }

    /// Takes a connected queue pair to RTS.
    fn open(&mut self, peer_qpn: Qpn, sq_psn: Psn, reply: Option<&ConnectReply>) {
        let udp_src_port = udp_source_port(0, self.qpn.get(), peer_qpn.get());
        let rtr = RtrAttr {
            path: Path { udp_src_port, ..self.path.clone() },
            path_mtu: MTU,
            dest_qpn: peer_qpn,
            rq_psn: reply.map_or(sq_psn, |_| Psn::new(self.qpn.get())),
            max_dest_rd_atomic: reply.map_or(1, |reply| reply.initiator_depth),
            min_rnr_timer: 12,
        };
        let sq_psn = reply.map_or(Psn::new(self.qpn.get()), |reply| reply.starting_psn);
        let max_rd_atomic = reply.map_or(1, |reply| reply.responder_resources);
        let rts = RtsAttr { sq_psn, timeout: ACK_TIMEOUT, retry_cnt: 7, rnr_retry: 7, max_rd_atomic };
        for transition in [QpTransition::ToRtr(rtr), QpTransition::ToRts(rts)] {
            self.engine.modify_qp(self.qpn, transition).unwrap();
        }
        self.peer_qpn = peer_qpn;
        self.ready();
    }

    fn ready(&mut self) {
        self.state = State::Open;
        self.events.push_back(Event::Ready);
    }

    fn cm_event(&mut self, event: CmEvent) {
        match event {
            CmEvent::ConnectReply(reply) => {
                if let Ok(place) = reply.private_data[..24].try_into() {
                    let place: [u8; 24] = place;
                    let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| place[at + byte]));
                    self.remote = Some(RemoteAddr { addr: number(0), rkey: (number(16) >> 32) as u32 });
                }
                if self.cm.confirm(reply.conn, &[]).is_ok() {
                    self.open(Qpn::new(reply.remote_qpn), reply.starting_psn, Some(&reply));
                }
            }
            CmEvent::DatagramResolved(reply) => {
                let transitions = [
                    QpTransition::ToRtrDatagram { path_mtu: MTU },
                    QpTransition::ToRtsDatagram { sq_psn: Psn::default() },
                ];
                for transition in transitions {
                    self.engine.modify_qp(self.qpn, transition).unwrap();
                }
                self.ah = Some(self.engine.create_ah(self.pd, &self.path).unwrap());
                self.peer_qpn = reply.qpn;
                self.ready();
            }
            CmEvent::ConnectFailed { reason, .. } => self.end(format_args!("{reason:?}")),
            CmEvent::Disconnected { reason, .. } => self.end(format_args!("{reason:?}")),
            CmEvent::ResolveFailed { reason, .. } => self.end(format_args!("{reason:?}")),
            CmEvent::Established { .. } | CmEvent::ConnectRequest(_) | CmEvent::SidrRequest(_) => {}
        }
    }

    /// Exchanges pingpong's lines: queue pair, first PSN and GID each way.
    fn stream_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Opened { stream, .. } if self.state == State::Exchanging(stream) => {
                let gid = u128::from_be_bytes(Gid::from(IpAddr::V4(self.address)).0);
                let line = format!("0000:{:06x}:{:06x}:{gid:032x}\0", self.qpn.get(), self.qpn.get());
                self.host.send(stream, line.as_bytes());
            }
            StreamEvent::Readable { stream } if self.state == State::Exchanging(stream) => {
                let mut line = [0; 52];
                let length = self.host.recv(stream, &mut line);
                let text = String::from_utf8_lossy(&line[..length]).into_owned();
                let mut numbers = text.split(':').skip(1).map(|word| u32::from_str_radix(word, 16));
                let (Some(Ok(qpn)), Some(Ok(psn))) = (numbers.next(), numbers.next()) else {
                    return self.end(format_args!("pingpong answers {text:?}"));
                };
                self.host.send(stream, b"done\0");
                self.host.close(stream);
                self.open(Qpn::new(qpn), Psn::new(psn), None);
            }
            StreamEvent::Closed { stream, .. } if self.state == State::Exchanging(stream) => self.end("stream closed"),
            _ => {}
        }
    }

    /// Handles a frame to its MAC address or to a group.
    pub fn receive(&mut self, now: Instant, frame: &[u8], tx: &mut Tx) {
        match classify(frame) {
            Ok(Frame::Roce(packet)) if packet.dest_qp() == Qpn::GSI.get() => {
                if let Ok((path, mad)) = read_mad(PortId(0), &packet)
                    && packet.icrc_ok()
                {
                    let _dropped = self.cm.handle_mad(now, &path, mad, &Own(self.address));
                }
            }
            Ok(Frame::Roce(packet)) => self.engine.receive(now, PortId(0), &packet),
            Ok(Frame::Host) => {
                let _dropped = self.host.handle_frame(now, frame, tx);
            }
            Err(_) => {}
        }
    }

    pub fn poll(&mut self, now: Instant, tx: &mut Tx) {
        if self.state == State::Closed {
            self.connect(now);
        }
        self.host.poll(now, tx);
        while let Some(event) = self.host.poll_event() {
            if let HostEvent::Stream(event) = event {
                self.stream_event(event);
            }
        }
        self.cm.handle_timeout(now);
        while let Some(event) = self.cm.poll_event() {
            self.cm_event(event);
        }
        self.engine.handle_timeout(now);
        self.engine.transmit(now, tx);
        while let Some(transmit) = self.unsent.take().or_else(|| self.cm.poll_transmit()) {
            if !write_mad(tx, &transmit.path, GSI_UDP_SRC_PORT, self.gsi_psn, &transmit.mad) {
                self.unsent = Some(transmit);
                break;
            }
            self.gsi_psn = self.gsi_psn.next();
        }
    }
}
