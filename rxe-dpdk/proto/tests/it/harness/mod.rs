//! Both ends of a connection, or one end and a script, without IO: virtual clock, seeded link, real frames.
//!
//! * [`bottleneck`]: several senders and a switch that marks packets.
//! * [`pair`]: two engines and a link that loses, repeats, reorders, delays and corrupts.
//! * [`rated`]: two engines and a link with a rate.
//! * [`scripted_peer`]: one engine; the test plays its peer packet by packet.
//! * [`variants`]: scripted peers with other queue pairs.

pub mod bottleneck;
pub mod ops;
pub mod pair;
pub mod rated;
pub mod receives;
pub mod scripted_peer;
pub mod variants;

use std::net::Ipv4Addr;

use rxe_proto::Instant;
use rxe_proto::mem::{Access, Memory, MemoryRegion, PdId};
use rxe_proto::transport::{
    AsyncEvent, CqId, Engine, EngineConfig, QpCaps, QpInit, QpState, QpTransition, QpType, Qpn, RecvWr, RtrAttr,
    RtsAttr, SendFlags, SendOp, SendWr, Sge, SrqId, SrqInit, WorkCompletion,
};
use rxe_proto::wire::{Gid, MacAddr, Path, PathMtu, PortId, Psn};

pub use rxe_testkit::rng::Rng;

/// Attributes that the two ends of a connection agree on.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    pub mtu: PathMtu,
    /// First PSN of the end itself, and of its peer.
    pub sq_psn: Psn,
    pub rq_psn: Psn,
    pub rd_atomic: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    /// Remote access rights of the peer.
    pub access: Access,
}

impl Default for Agreed {
    fn default() -> Agreed {
        Agreed {
            mtu: PathMtu::Mtu1024,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            rd_atomic: 4,
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        }
    }
}

pub const PORT: PortId = PortId(0);
/// The queue key of all queue pairs for datagrams.
pub const QKEY: u32 = 0x1EAF;

pub fn gid_of(end: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 77, 0, end))
}

/// The path from end `from` to end `to`.
pub fn path(from: u8, to: u8) -> Path {
    Path {
        port: PORT,
        src_mac: MacAddr([2, 0, 0, 0, 0, from]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, to]),
        vlan: None,
        src: gid_of(from),
        dst: gid_of(to),
        udp_src_port: 0xC123,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
    }
}

pub const ALL_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// One engine with one queue pair and one region.
pub struct Node {
    pub end: u8,
    pub engine: Engine,
    pub cq: CqId,
    pub pd: PdId,
    pub qpn: Qpn,
    pub region: MemoryRegion,
    /// Completions and events not taken yet.
    pub completions: Vec<WorkCompletion>,
    pub events: Vec<AsyncEvent>,
}

impl Node {
    /// A queue pair in INIT with queues of `depth`, and a region of `memory` bytes.
    pub fn new(end: u8, config: EngineConfig, depth: u32, memory: usize, access: Access) -> Node {
        let mut node = Node::bare(end, config, 4 * depth, memory);
        node.qpn = node.create_qp(depth, access);
        node
    }

    /// Two ends with queues of `depth` and `memory` bytes each, connected and in RTS. `agreed.sq_psn` and `rq_psn` are those
    /// of the first end; `config` needs neither worker nor seed.
    pub fn connected(config: &EngineConfig, agreed: &Agreed, depth: u32, memory: usize) -> [Node; 2] {
        let config = |worker| EngineConfig { worker, seed: [worker + 1; 32], ..config.clone() };
        let mut a = Node::new(1, config(0), depth, memory, agreed.access);
        let mut b = Node::new(2, config(3), depth, memory, agreed.access);
        a.connect(&mut b, agreed);
        [a, b]
    }

    /// The queue pairs of both ends, in INIT, are connected. `agreed.sq_psn` and `rq_psn` are those of this end.
    pub fn connect(&mut self, peer: &mut Node, agreed: &Agreed) {
        let theirs = Agreed { sq_psn: agreed.rq_psn, rq_psn: agreed.sq_psn, ..*agreed };
        self.ready_to_receive(peer.end, peer.qpn, agreed);
        peer.ready_to_receive(self.end, self.qpn, &theirs);
        self.ready_to_send(agreed);
        peer.ready_to_send(&theirs);
    }

    /// No queue pair yet: a completion queue of `cqe` entries and a region of `memory` bytes.
    pub fn bare(end: u8, config: EngineConfig, cqe: u32, memory: usize) -> Node {
        let mut engine = Engine::new(config);
        let cq = engine.create_cq(cqe as usize).unwrap();
        let pd = engine.keys_mut().alloc_pd();
        let iova = 0x1_0000 * u64::from(end);
        let region =
            engine.keys_mut().register(pd, Memory::heap(memory), iova, ALL_ACCESS | Access::FLUSH_GLOBAL).unwrap();
        let (completions, events) = (Vec::new(), Vec::new());
        Node { end, engine, cq, pd, qpn: Qpn::default(), region, completions, events }
    }

    /// A queue pair in INIT.
    pub fn create_qp(&mut self, depth: u32, access: Access) -> Qpn {
        self.create_typed_qp(QpType::Rc, None, depth, access)
    }

    /// A queue pair in INIT, with a shared receive queue if one is given. Those for datagrams have [`QKEY`].
    pub fn create_typed_qp(&mut self, qp_type: QpType, srq: Option<SrqId>, depth: u32, access: Access) -> Qpn {
        let init = QpInit {
            pd: self.pd,
            qp_type,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq,
            caps: QpCaps {
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 16,
                max_recv_sge: 16,
                max_inline_data: 64,
            },
            sq_sig_all: false,
        };
        let qpn = self.engine.create_qp(Instant::ZERO, &init).unwrap();
        let transition = match qp_type {
            QpType::Ud => QpTransition::ToInitDatagram { port: PORT, qkey: QKEY },
            QpType::Rc | QpType::Uc => QpTransition::ToInit { access },
        };
        self.engine.modify_qp(qpn, transition).unwrap();
        qpn
    }

    /// A shared receive queue of `max_wr` receives.
    pub fn create_srq(&mut self, max_wr: u32, limit: u32) -> SrqId {
        self.engine.create_srq(&SrqInit { pd: self.pd, max_wr, max_sge: 16, limit }).unwrap()
    }

    /// From INIT to RTS, for a queue pair for datagrams.
    pub fn ready_for_datagrams(&mut self, agreed: &Agreed) {
        for transition in [
            QpTransition::ToRtrDatagram { path_mtu: agreed.mtu },
            QpTransition::ToRtsDatagram { sq_psn: agreed.sq_psn },
        ] {
            self.engine.modify_qp(self.qpn, transition).unwrap();
        }
    }

    pub fn ready_to_receive(&mut self, peer: u8, dest_qpn: Qpn, agreed: &Agreed) {
        let attr = RtrAttr {
            path: path(self.end, peer),
            path_mtu: agreed.mtu,
            dest_qpn,
            rq_psn: agreed.rq_psn,
            max_dest_rd_atomic: agreed.rd_atomic,
            min_rnr_timer: agreed.min_rnr_timer,
        };
        self.engine.modify_qp(self.qpn, QpTransition::ToRtr(attr)).unwrap();
    }

    pub fn ready_to_send(&mut self, agreed: &Agreed) {
        let attr = RtsAttr {
            sq_psn: agreed.sq_psn,
            timeout: agreed.timeout,
            retry_cnt: agreed.retry_cnt,
            rnr_retry: agreed.rnr_retry,
            max_rd_atomic: agreed.rd_atomic,
        };
        self.engine.modify_qp(self.qpn, QpTransition::ToRts(attr)).unwrap();
    }

    /// The key of a valid fast-registration MR of `len` bytes at address 0, which peers may invalidate.
    pub fn fast_region(&mut self, len: usize) -> u32 {
        let keys = self.engine.keys_mut();
        let key = keys.alloc_fast_reg_mr(self.pd, len).unwrap();
        keys.map_fast_reg_mr(key, Memory::heap(len)).unwrap();
        keys.fast_register(key, self.pd, 0, ALL_ACCESS).unwrap();
        key
    }

    /// The buffer of `length` bytes at `offset` of the region.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.region.addr() + offset as u64, length: length as u32, lkey: self.region.lkey() }
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.region.memory().read(offset, &mut bytes).unwrap();
        bytes
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.region.memory().write(offset, bytes).unwrap();
    }

    pub fn post_send(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.post_flags(wr_id, op, sges, SendFlags::SIGNALED);
    }

    pub fn post_flags(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) {
        self.engine.post_send(self.qpn, &SendWr { wr_id, op, sges, flags }).unwrap();
    }

    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.engine.post_recv(self.qpn, &RecvWr { wr_id, sges }).unwrap();
    }

    /// Collects completions and events.
    pub fn collect(&mut self) {
        while let Some(cq) = self.engine.poll_ready() {
            self.engine.poll_cq(cq, &mut self.completions, usize::MAX);
        }
        while let Some(event) = self.engine.poll_event() {
            self.events.push(event);
        }
    }

    /// The completions since the last call.
    pub fn take_completions(&mut self) -> Vec<WorkCompletion> {
        self.collect();
        std::mem::take(&mut self.completions)
    }

    /// The events since the last call.
    pub fn take_events(&mut self) -> Vec<AsyncEvent> {
        self.collect();
        std::mem::take(&mut self.events)
    }

    /// The state of the queue pair.
    pub fn state(&self) -> QpState {
        self.engine.query_qp(self.qpn).unwrap().state
    }

    /// A counter by name.
    pub fn stat(&self, name: &str) -> u64 {
        self.engine.stats().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// A drop counter by name.
    pub fn dropped(&self, name: &str) -> u64 {
        let mut drops = self.engine.drops().iter();
        drops.find(|(reason, _)| reason.name() == name).unwrap_or_else(|| panic!("no drop reason {name}")).1
    }
}
