//! A small initiator on one port: our own connection manager and our own engine.

mod connection;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rxe_dpdk::eal::{Clock, Eal, Port, PortMonitor, RxBurst, RxQueue, TxStage};
use rxe_dpdk::host::{Host, HostConfig};
use rxe_dpdk::rxe_proto::cm::{
    Cm, CmConfig, CmEvent, ConnectParams, ConnectReply, GSI_UDP_SRC_PORT, LocalAddresses, MadPath, MadTransmit,
    ResolveParams, read_mad, write_mad,
};
use rxe_dpdk::rxe_proto::mem::{Access, Memory, PdId};
use rxe_dpdk::rxe_proto::transport::{
    CqId, Engine, EngineConfig, QpCaps, QpInit, QpTransition, QpType, Qpn, RecvWr, RtrAttr, RtsAttr, SendFlags, SendOp,
    SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
use rxe_dpdk::rxe_proto::wire::cm::Rej;
use rxe_dpdk::rxe_proto::wire::{
    Cidr, Frame, Gid, MacAddr, Path, PathMtu, PortId, Psn, TxQueue, classify, udp_source_port,
};

pub use connection::{Connection, Posted};

/// Our address.
pub const OWN: [u8; 4] = [10, 77, 0, 2];
/// The target's address.
pub const PEER: [u8; 4] = [10, 77, 0, 1];

/// The address of another host, behind the same port.
pub const OTHER: [u8; 4] = [10, 77, 0, 3];

/// An address from which connection requests are forged; it answers ARP.
pub const FLOODER: [u8; 4] = [10, 77, 0, 66];

/// Nothing here takes longer than this.
const LIMIT: Duration = Duration::from_secs(20);

/// The port's transmit queue.
pub struct Tx(TxStage);

impl TxQueue for Tx {
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        self.0.push(len)
    }
}

/// Our addresses.
struct Own;

impl LocalAddresses for Own {
    fn is_local(&self, _port: PortId, gid: Gid) -> bool {
        [OWN, OTHER, FLOODER].map(|ip| std::net::Ipv4Addr::from(ip).into()).contains(&gid)
    }

    fn path_mtu(&self, _port: PortId) -> PathMtu {
        PathMtu::Mtu4096
    }
}

pub struct Initiator {
    clock: Clock,
    monitor: PortMonitor,
    rx: RxQueue,
    tx: Tx,
    burst: RxBurst,
    engine: Engine,
    pd: PdId,
    cq: CqId,
    cm: Cm,
    path: MadPath,
    gsi_psn: Psn,
    /// A MAD for which the port had no room.
    unsent: Option<MadTransmit>,
    /// Answers ARP for all our addresses.
    host: Host,
    /// ACK timeout code of new connections.
    pub ack_timeout: u8,
    /// Another host behind the same port.
    pub neighbour: Option<Rc<RefCell<dyn Neighbour>>>,
}

/// A host behind the initiator's port with a MAC address of its own.
pub trait Neighbour {
    /// Handles a received frame, whatever its destination.
    fn receive(&mut self, now: rxe_dpdk::rxe_proto::Instant, frame: &[u8], tx: &mut Tx);

    /// Sends frames; called once per turn.
    fn poll(&mut self, now: rxe_dpdk::rxe_proto::Instant, tx: &mut Tx);
}

impl Initiator {
    pub fn new(eal: &Eal, port: &Port, (rx, tx): (RxQueue, TxStage), target: MacAddr) -> Initiator {
        let mut engine = Engine::new(EngineConfig { seed: [9; 32], ..EngineConfig::default() });
        let pd = engine.keys_mut().alloc_pd();
        let cq = engine.create_cq(64).unwrap();
        let path = MadPath {
            port: port.id(),
            local_mac: port.mac(),
            peer_mac: target,
            vlan: None,
            local: std::net::Ipv4Addr::from(OWN).into(),
            peer: std::net::Ipv4Addr::from(PEER).into(),
            traffic_class: 0,
        };
        let clock = Clock::new(eal);
        let (tx, burst) = (Tx(tx), RxBurst::new());
        let cm = Cm::new(CmConfig::new(0x0202, [9; 32]));
        let addresses = [OWN, OTHER, FLOODER].map(|ip| Cidr::new(std::net::Ipv4Addr::from(ip).into(), 24)).to_vec();
        let config = HostConfig { port: port.id(), mac: port.mac(), addresses, ..HostConfig::default() };
        let host = Host::new(&config).unwrap();
        let gsi_psn = Psn::default();
        // 0.5 s: a busy machine may stop the target for longer than the usual 67 ms, eight times in a row.
        let ack_timeout = 17;
        let (monitor, unsent, neighbour) = (port.monitor(), None, None);
        Initiator {
            clock,
            monitor,
            rx,
            tx,
            burst,
            engine,
            pd,
            cq,
            cm,
            path,
            gsi_psn,
            unsent,
            host,
            ack_timeout,
            neighbour,
        }
    }

    /// Communication ids that differ from those of another initiator with another number; by default all have the same.
    pub fn number_ids(&mut self, number: u8) {
        self.cm = Cm::new(CmConfig::new(0x0202, [number; 32]));
    }

    /// Path of its MADs.
    pub fn mad_path(&self) -> &MadPath {
        &self.path
    }

    /// Frames that the port has sent.
    pub fn sent_frames(&self) -> u64 {
        self.monitor.stats().unwrap().tx_frames
    }

    /// Handles a burst of received frames, and sends.
    pub fn turn(&mut self) {
        let now = self.clock.now();
        let count = self.rx.burst(&mut self.burst);
        for index in 0..count {
            if let Some(neighbour) = &self.neighbour {
                neighbour.borrow_mut().receive(now, self.burst.data(index), &mut self.tx);
            }
            let packet = match classify(self.burst.data(index)) {
                Ok(Frame::Roce(packet)) => packet,
                Ok(Frame::Host) => {
                    let _dropped = self.host.handle_frame(now, self.burst.data(index), &mut self.tx);
                    continue;
                }
                Err(_) => continue,
            };
            if packet.dest_qp() != Qpn::GSI.get() {
                self.engine.receive(now, self.path.port, &packet);
            } else if let Ok((path, mad)) = read_mad(self.path.port, &packet)
                && packet.icrc_ok()
                && Own.is_local(path.port, path.local)
            {
                let _dropped = self.cm.handle_mad(now, &path, mad, &Own);
            }
        }
        self.burst.clear();
        self.host.poll(now, &mut self.tx);
        self.engine.handle_timeout(now);
        self.cm.handle_timeout(now);
        self.engine.transmit(now, &mut self.tx);
        while let Some(transmit) = self.unsent.take().or_else(|| self.cm.poll_transmit()) {
            if !write_mad(&mut self.tx, &transmit.path, GSI_UDP_SRC_PORT, self.gsi_psn, &transmit.mad) {
                self.unsent = Some(transmit);
                break;
            }
            self.gsi_psn = self.gsi_psn.next();
        }
        if let Some(neighbour) = &self.neighbour {
            neighbour.borrow_mut().poll(now, &mut self.tx);
        }
        self.tx.0.flush();
    }

    /// Responds to the peer's packets, and does nothing else, until `done`.
    pub fn turn_until(&mut self, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        let mut looked = began;
        loop {
            self.turn();
            if looked.elapsed() > Duration::from_millis(200) {
                if done() {
                    return;
                }
                looked = Instant::now();
            }
            assert!(began.elapsed() < LIMIT, "it does not happen");
        }
    }

    /// Takes turns until `done`.
    #[track_caller]
    pub fn wait_for(&mut self, mut done: impl FnMut() -> bool) {
        let began = Instant::now();
        while !done() {
            self.turn();
            assert!(began.elapsed() < LIMIT, "it does not happen");
        }
    }

    /// Takes turns for a time.
    pub fn turn_for(&mut self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.turn();
        }
    }

    /// Connects to another address of the target from now on.
    pub fn aim_at(&mut self, address: [u8; 4]) {
        self.path.peer = std::net::Ipv4Addr::from(address).into();
    }

    /// Takes another address from now on, for new connections.
    pub fn move_to(&mut self, address: [u8; 4]) {
        self.path.local = std::net::Ipv4Addr::from(address).into();
    }

    /// Repeats `what` until `done`.
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool) {
        while !done() {
            for _ in 0..100 {
                self.turn();
            }
        }
    }

    /// The connection manager's next event.
    fn event(&mut self) -> CmEvent {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            self.turn();
            if let Some(event) = self.cm.poll_event() {
                return event;
            }
        }
        panic!("no answer: {:?}", self.cm);
    }

    /// The end of a connection that the target requests.
    pub fn await_any_disconnect(&mut self) {
        let event = self.event();
        assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
    }

    /// Requests a connection that the target refuses; returns its REJ, or `None` when it gives no answer.
    pub fn refused_connect(&mut self, port: u16, region: &str) -> Option<Rej> {
        let params = ConnectParams {
            // Two REQs, 0.5 s apart.
            response_timeout: 17,
            max_cm_retries: 1,
            private_data: region.as_bytes().to_vec(),
            ..ConnectParams::new(self.path.clone(), (40_000, port), Qpn::new(0x99), Psn::new(1), PathMtu::Mtu1024)
        };
        let requested = self.cm.connect(self.clock.now(), params).unwrap();
        match self.event() {
            CmEvent::ConnectFailed { conn, rej, .. } if conn == requested => rej.map(|rej| *rej),
            other => panic!("{other:?}"),
        }
    }

    pub fn connect(&mut self, port: u16, region: &str, mtu: PathMtu) -> Connection {
        self.try_connect(port, region, mtu).unwrap_or_else(|rej| panic!("no connection: {rej:?}"))
    }

    /// As [`connect`](Self::connect); an error is a REJ, or no answer.
    pub fn try_connect(&mut self, port: u16, region: &str, mtu: PathMtu) -> Result<Connection, Option<Box<Rej>>> {
        let (qpn, reply) = self.establish(port, region.as_bytes(), mtu)?;
        let data = &reply.private_data;
        let (address, len) = (data[..8].try_into().unwrap(), data[8..16].try_into().unwrap());
        let rkey = u32::from_be_bytes(data[16..20].try_into().unwrap());
        assert_eq!(&data[24..24 + region.len()], region.as_bytes());
        let (address, len) = (u64::from_be_bytes(address), u64::from_be_bytes(len));
        Ok(Connection { qpn, conn: reply.conn, peer_qpn: reply.remote_qpn, address, len, rkey })
    }

    /// A queue pair in INIT.
    fn create_qp(&mut self) -> Qpn {
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let init = QpInit { qp_type: QpType::Rc, pd: self.pd, send_cq, recv_cq, srq: None, caps, sq_sig_all: false };
        let qpn = self.engine.create_qp(self.clock.now(), &init).unwrap();
        self.engine.modify_qp(qpn, QpTransition::ToInit { access: Access::empty() }).unwrap();
        qpn
    }

    /// Connects a queue pair to the service at `port`.
    fn establish(
        &mut self,
        port: u16,
        private_data: &[u8],
        mtu: PathMtu,
    ) -> Result<(Qpn, Box<ConnectReply>), Option<Box<Rej>>> {
        let qpn = self.create_qp();
        let params = ConnectParams {
            responder_resources: 1,
            initiator_depth: 4,
            local_ack_timeout: self.ack_timeout,
            // The first frames may be lost while the link comes up: 16 REQs in about 5 s.
            response_timeout: 16,
            private_data: private_data.to_vec(),
            ..ConnectParams::new(self.path.clone(), (40_000, port), qpn, Psn::new(0xFF_FFF0), mtu)
        };
        let (rq_psn, flow_label) = (params.starting_psn, params.flow_label);
        let conn = self.cm.connect(self.clock.now(), params).unwrap();
        let reply = match self.event() {
            CmEvent::ConnectReply(reply) => reply,
            CmEvent::ConnectFailed { rej, .. } => {
                self.engine.destroy_qp(self.clock.now(), qpn).unwrap();
                return Err(rej);
            }
            other => panic!("{other:?}"),
        };
        self.bring_up(qpn, &reply, rq_psn, flow_label, mtu);
        self.cm.confirm(conn, &[]).unwrap();
        assert_eq!(self.event(), CmEvent::Established { conn });
        Ok((qpn, reply))
    }

    /// SENDs 16 bytes to the service `rdma-server` on a connection of its own, and returns its message.
    pub fn exchange(&mut self, message: [u8; 16]) -> [u8; 16] {
        let (qpn, reply) = self.establish(7471, &[], PathMtu::Mtu1024).unwrap();
        let memory = Memory::heap(32);
        memory.write(0, &message).unwrap();
        let region = self.engine.keys_mut().register(self.pd, memory, 0x1000, Access::LOCAL_WRITE).unwrap();
        let sge = |at: u64| Sge { addr: region.addr() + at, length: 16, lkey: region.lkey() };
        self.engine.post_recv(qpn, &RecvWr { wr_id: 1, sges: &[sge(16)] }).unwrap();
        let op = SendOp::Send { imm: None };
        let wr = SendWr { wr_id: 0, op, sges: &[sge(0)], flags: SendFlags::SIGNALED };
        self.engine.post_send(qpn, &wr).unwrap();
        for _ in 0..2 {
            let completion = self.completion(&op);
            let opcode = if completion.wr_id == 1 { WcOpcode::Recv } else { WcOpcode::Send };
            assert_eq!((completion.status, completion.opcode), (WcStatus::Success, opcode));
        }
        let mut answer = [0; 16];
        region.memory().read(16, &mut answer).unwrap();
        self.cm.disconnect(self.clock.now(), reply.conn).unwrap();
        let event = self.event();
        assert!(matches!(event, CmEvent::Disconnected { conn, .. } if conn == reply.conn), "{event:?}");
        self.engine.destroy_qp(self.clock.now(), qpn).unwrap();
        self.engine.keys_mut().deregister(region.lkey()).unwrap();
        answer
    }

    /// Asks which datagram queue pair serves `port`.
    pub fn resolve_datagram(&mut self, port: u16) -> Qpn {
        let params = ResolveParams { response_timeout: 16, ..ResolveParams::new(self.path.clone(), (40_000, port)) };
        let requested = self.cm.resolve_datagram(self.clock.now(), params).unwrap();
        match self.event() {
            CmEvent::DatagramResolved(reply) if reply.id == requested => reply.qpn,
            other => panic!("{other:?}"),
        }
    }

    /// The next completion, of `op` or of a receive.
    fn completion(&mut self, op: &SendOp) -> WorkCompletion {
        let began = Instant::now();
        loop {
            self.turn();
            if let Some(completion) = self.engine.poll_cq_one(self.cq) {
                return completion;
            }
            assert!(began.elapsed() < LIMIT, "{op:?} does not end: {:?}", self.engine.stats());
        }
    }

    /// Takes the queue pair to RTS with the parameters of REQ and REP.
    fn bring_up(&mut self, qpn: Qpn, reply: &ConnectReply, rq_psn: Psn, flow_label: u32, path_mtu: PathMtu) {
        let path = Path {
            port: self.path.port,
            src_mac: self.path.local_mac,
            dst_mac: self.path.peer_mac,
            vlan: None,
            src: self.path.local,
            dst: self.path.peer,
            udp_src_port: udp_source_port(flow_label, qpn.get(), reply.remote_qpn),
            traffic_class: 0,
            flow_label,
            hop_limit: 64,
        };
        let rtr = RtrAttr {
            path,
            path_mtu,
            dest_qpn: Qpn::new(reply.remote_qpn),
            rq_psn,
            max_dest_rd_atomic: reply.initiator_depth,
            min_rnr_timer: 12,
        };
        self.engine.modify_qp(qpn, QpTransition::ToRtr(rtr)).unwrap();
        let rts = RtsAttr {
            sq_psn: reply.starting_psn,
            timeout: reply.local_ack_timeout,
            retry_cnt: 7,
            rnr_retry: reply.rnr_retry_count,
            max_rd_atomic: reply.responder_resources,
        };
        self.engine.modify_qp(qpn, QpTransition::ToRts(rts)).unwrap();
    }
}
