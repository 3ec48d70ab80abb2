//! The engine under test, its objects, and their peers.

use std::net::Ipv4Addr;

use rxe_proto::mem::Access;
use rxe_proto::transport::{
    AhId, CqId, Engine, EngineConfig, QpCaps, QpInit, QpTransition, QpType, Qpn, RtrAttr, RtsAttr, SrqId, SrqInit,
};
use rxe_proto::wire::{Gid, MacAddr, Path, PathMtu, PortId, Psn};
use rxe_proto::{Duration, Instant};

use super::memory::Bytes;
use super::work::{Posted, Work};

/// Settings of a program: one bit each, see the functions.
#[derive(Clone, Copy, Debug)]
pub struct Setup(pub u8);

impl Setup {
    /// Peers may FLUSH and do ATOMIC WRITEs, and their rights include it.
    pub const PLACEMENT: u8 = 1;
    /// ACKs carry credits.
    pub const CREDITS: u8 = 2;
    /// The path MTU is 1024 instead of 256.
    pub const LARGE_MTU: u8 = 4;
    /// Queue pairs start in RESET instead of RTS.
    pub const RESET: u8 = 8;
    /// The path is IPv6.
    pub const IPV6: u8 = 16;
    /// Every work request is signaled.
    pub const SIGNAL_ALL: u8 = 32;

    /// Whether a bit is set.
    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// The path MTU of all queue pairs.
    pub fn mtu(self) -> PathMtu {
        if self.has(Setup::LARGE_MTU) { PathMtu::Mtu1024 } else { PathMtu::Mtu256 }
    }
}

/// A kind of queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpKind {
    pub qp_type: QpType,
    /// Receives come from the shared receive queue.
    shared: bool,
    /// Number of its protection domain.
    pub pd: usize,
    /// It completes to the completion queue of few entries, so that completions may be lost.
    pub lossy: bool,
    access: Access,
}

const ALL: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

const fn kind(qp_type: QpType, access: Access) -> QpKind {
    QpKind { qp_type, shared: false, pd: 0, lossy: false, access }
}

/// The queue pairs of every engine.
pub const KINDS: [QpKind; 8] = [
    kind(QpType::Rc, ALL),
    kind(QpType::Rc, Access::REMOTE_READ),
    QpKind { shared: true, ..kind(QpType::Rc, ALL) },
    QpKind { pd: 1, ..kind(QpType::Rc, ALL) },
    QpKind { lossy: true, ..kind(QpType::Rc, ALL) },
    kind(QpType::Uc, ALL),
    QpKind { shared: true, ..kind(QpType::Uc, Access::REMOTE_WRITE) },
    kind(QpType::Ud, ALL),
];

pub const PORT: PortId = PortId(0);
pub const QKEY: u32 = 0x1EAF;
/// The PSN of our first request, and of the peers'.
const SQ_PSN: Psn = Psn::new(0xFF_FFFC);
const RQ_PSN: Psn = Psn::new(0xFF_FFFD);
/// Number of the first peer's queue pair.
pub const FIRST_PEER: u32 = 0x100;
/// Entries of the completion queue that overflows.
const FEW: usize = 4;

/// A queue pair and its work.
pub struct Slot {
    pub kind: QpKind,
    pub qpn: Qpn,
    /// The peer's queue pair: another one for each of ours.
    pub peer: u32,
    pub work: Work,
    /// Key and next address of a WRITE in progress.
    pub write: Option<(u32, u64)>,
}

pub struct Env {
    pub setup: Setup,
    pub engine: Engine,
    pub now: Instant,
    pub bytes: Bytes,
    pub slots: Vec<Slot>,
    /// Completion queues: polled after every step, and only when a step says so.
    pub cqs: [CqId; 2],
    pub srq: SrqId,
    pub shared: Vec<Posted>,
    /// Receives of the shared receive queue that a queue pair took and that will not complete, at most.
    pub taken: usize,
    pub ah: AhId,
    pub next_wr_id: u64,
    next_peer: u32,
}

impl Env {
    pub fn new(setup: Setup) -> Env {
        let config = EngineConfig {
            flush: setup.has(Setup::PLACEMENT),
            atomic_write: setup.has(Setup::PLACEMENT),
            credits: setup.has(Setup::CREDITS),
            max_qp: 16,
            window: 32,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config);
        let bytes = Bytes::new(engine.keys_mut());
        let cqs = [1024, FEW].map(|depth| engine.create_cq(depth).expect("a completion queue"));
        let srq = SrqInit { pd: bytes.pd(0), max_wr: 16, max_sge: 3, limit: 2 };
        let srq = engine.create_srq(&srq).expect("a shared receive queue");
        let ah = engine.create_ah(bytes.pd(0), &path_to_peer(setup)).expect("an address handle");
        let mut env = Env {
            setup,
            engine,
            now: Instant::from_nanos(1_000),
            bytes,
            slots: Vec::new(),
            cqs,
            srq,
            shared: Vec::new(),
            taken: 0,
            ah,
            next_wr_id: 0,
            next_peer: FIRST_PEER,
        };
        for kind in KINDS {
            let slot = env.create(kind);
            env.slots.push(slot);
        }
        if !setup.has(Setup::RESET) {
            for index in 0..env.slots.len() {
                env.bring_up(index);
            }
        }
        env
    }

    /// A queue pair in RESET.
    pub fn create(&mut self, kind: QpKind) -> Slot {
        let cq = self.cqs[usize::from(kind.lossy)];
        let init = QpInit {
            pd: self.bytes.pd(kind.pd),
            qp_type: kind.qp_type,
            send_cq: cq,
            recv_cq: cq,
            srq: kind.shared.then_some(self.srq),
            caps: QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 3, max_recv_sge: 3, max_inline_data: 32 },
            sq_sig_all: self.setup.has(Setup::SIGNAL_ALL),
        };
        let qpn = self.engine.create_qp(self.now, &init).expect("a queue pair");
        self.next_peer += 1;
        Slot { kind, qpn, peer: self.next_peer, work: Work::default(), write: None }
    }

    /// From RESET to RTS, as far as the state allows.
    pub fn bring_up(&mut self, index: usize) {
        for number in 0..3 {
            let transition = self.transition(index, number);
            let _not_from_here = self.engine.modify_qp(self.slots[index].qpn, transition);
        }
    }

    /// A transition for queue pair `index`; of the first three each leads from the state before to INIT, RTR and RTS.
    pub fn transition(&self, index: usize, number: usize) -> QpTransition {
        let slot = &self.slots[index];
        let path_mtu = self.setup.mtu();
        let placement = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let access = slot.kind.access | if self.setup.has(Setup::PLACEMENT) { placement } else { Access::empty() };
        match (number % 7, slot.kind.qp_type) {
            (0, QpType::Ud) => QpTransition::ToInitDatagram { port: PORT, qkey: QKEY },
            (0, _) => QpTransition::ToInit { access },
            (1, QpType::Ud) => QpTransition::ToRtrDatagram { path_mtu },
            (1, _) => QpTransition::ToRtr(RtrAttr {
                path: path_to_peer(self.setup),
                path_mtu,
                dest_qpn: Qpn::new(slot.peer),
                rq_psn: RQ_PSN,
                max_dest_rd_atomic: 2,
                min_rnr_timer: 1,
            }),
            (2, QpType::Ud) => QpTransition::ToRtsDatagram { sq_psn: SQ_PSN },
            (2, _) => QpTransition::ToRts(RtsAttr {
                sq_psn: SQ_PSN,
                timeout: 8,
                retry_cnt: 3,
                rnr_retry: 3,
                max_rd_atomic: 2,
            }),
            (3, _) => QpTransition::ToSqd,
            (4, _) => QpTransition::Resume,
            (5, _) => QpTransition::ToError,
            _ => QpTransition::ToReset,
        }
    }

    /// Lets time pass; every timer expires at its time.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.engine.next_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.engine.handle_timeout(self.now);
        }
        self.now = end;
    }
}

fn gid(setup: Setup, end: u8) -> Gid {
    if setup.has(Setup::IPV6) {
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (0xFD, end);
        Gid(gid)
    } else {
        Ipv4Addr::new(10, 77, 0, end).into()
    }
}

/// The multicast group.
pub fn group(setup: Setup) -> Gid {
    if setup.has(Setup::IPV6) {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[15]) = (0xFF, 0x0E, 7);
        Gid(gid)
    } else {
        Ipv4Addr::new(239, 7, 7, 7).into()
    }
}

fn path(setup: Setup, from: u8, to: u8) -> Path {
    let mac = |end| MacAddr([2, 0, 0, 0, 0, end]);
    Path {
        port: PORT,
        src_mac: mac(from),
        dst_mac: mac(to),
        src: gid(setup, from),
        dst: gid(setup, to),
        ..Path::default()
    }
}

pub fn path_to_peer(setup: Setup) -> Path {
    path(setup, 1, 2)
}

/// The path of a peer's packets, or of another host's.
pub fn path_from_peer(setup: Setup, foreign: bool) -> Path {
    path(setup, if foreign { 3 } else { 2 }, 1)
}
