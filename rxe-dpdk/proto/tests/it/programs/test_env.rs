//! Carries out a program: lays out the memory of both ends, makes the queue pairs, posts, and lets time pass.

use rxe_proto::mem::Access;
use rxe_proto::transport::{
    AhId, EngineConfig, PostError, QpCaps, QpInit, QpTransition, QpType, Qpn, RecvWr, RemoteAddr, RtrAttr, RtsAttr,
    SendOp, SendWr, Sge, SrqId, SrqInit,
};
use rxe_proto::wire::Psn;
use rxe_proto::{Duration, Instant};

use super::plan::{CELLS, Connection, Op, PLACES, Program, RecvTiming, Size, Step};
use crate::harness::pair::Pair;
use crate::harness::{Node, PORT, Rng, path};

/// Timeout code of every reliable queue pair.
pub const TIMEOUT: u8 = 8;
/// The time of the timeout code.
pub const TIMEOUT_TIME: Duration = Duration::from_nanos(4096 << TIMEOUT);
pub const QKEY: u32 = 0x1EAF;
/// In the numbers of receives.
pub const RECEIVE: u64 = 1 << 63;
const MAX_INLINE: usize = 128;
const MAX_SGE: u32 = 16;
/// Length of the GRH in front of a received datagram.
pub const GRH: usize = 40;

/// Parts of a region that buffers are made of, in order: offset and length.
pub type Pieces = Vec<(usize, usize)>;

/// A step with its memory.
pub struct Placed {
    pub step: Step,
    pub len: usize,
    /// The poster's buffers: source or landing place.
    pub local: Pieces,
    /// Offset in the peer's region.
    pub remote: usize,
    /// The word's value before, as the order of steps has it (compare-and-swap, fetch-and-add).
    pub before: u64,
    pub compare: u64,
    /// The peer's key that it invalidates.
    pub invalidates: Option<u32>,
}

pub struct Conn {
    pub plan: Connection,
    pub qpns: [Qpn; 2],
    pub steps: [Vec<Placed>; 2],
    /// Places that this end's steps share, and the words, in the other end's region.
    pub places: [Vec<usize>; 2],
    next: [usize; 2],
    /// When the next step may be posted.
    ready: [Instant; 2],
}

/// A posted receive.
pub struct Receive {
    pub pieces: Pieces,
    /// The connection whose own it is.
    pub own: Option<usize>,
}

pub struct TestEnv {
    pub pair: Pair,
    pub connections: Vec<Conn>,
    pub receives: [Vec<Receive>; 2],
    /// How many of them have been posted.
    pub posted: [usize; 2],
    pub srqs: [SrqId; 2],
    /// Content of the memory at the start.
    pub initial: [Vec<u8>; 2],
    /// Offset of the word that all queue pairs of the other end count in.
    pub counter: [usize; 2],
    ahs: [AhId; 2],
}

impl TestEnv {
    pub fn new(program: &Program) -> TestEnv {
        let mut rng = Rng(program.seed);
        // Until the size of the regions is known.
        let mut used = [64; 2];
        let mut connections = Vec::new();
        let mtu = program.mtu.bytes();
        let mut take = |end: usize, len: usize| take(&mut used[end], len);
        let counter = [take(0, 8), take(1, 8)];
        for plan in &program.connections {
            let (mut steps, mut places) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
            for end in 0..2 {
                let peer = 1 - end;
                let cells: Vec<usize> = (0..CELLS).map(|_| take(peer, 8)).collect();
                places[end] = (0..PLACES).map(|_| take(peer, Size::MOST_PACKETS * mtu)).collect();
                for &step in &plan.steps[end] {
                    let len = length(step, mtu);
                    let local = cut(&mut rng, take(end, len + 16 * 4), len, step.cuts);
                    let remote = match step.op {
                        Op::Write { .. } | Op::AtomicWrite | Op::Read => take(peer, len),
                        Op::WriteShared { place } | Op::ReadShared { place } => places[end][place],
                        Op::CompareSwap { cell, .. } | Op::FetchAdd { cell, .. } => cells[cell],
                        Op::Count { .. } | Op::Flush => counter[peer],
                        Op::Send { .. } | Op::SendInvalidate | Op::Datagram { .. } => 0,
                    };
                    steps[end].push(Placed { step, len, local, remote, before: 0, compare: 0, invalidates: None });
                }
            }
            let (next, ready) = ([0; 2], [Instant::ZERO; 2]);
            connections.push(Conn { plan: plan.clone(), qpns: [Qpn::default(); 2], steps, places, next, ready });
        }
        let mut receives = [Vec::new(), Vec::new()];
        for (end, receives) in receives.iter_mut().enumerate() {
            for own in owners(program, end) {
                let len = GRH + Size::MOST_PACKETS * mtu;
                let cuts = 1 + rng.below(16) as usize;
                let pieces = cut(&mut rng, take(end, len + 16 * 4), len, cuts);
                receives.push(Receive { pieces, own });
            }
        }
        let mut nodes = [0, 1].map(|end| node(program, end, used[end]));
        let initial = [0, 1].map(|end| {
            let mut bytes = vec![0; used[end]];
            rng.fill(&mut bytes);
            nodes[end].write(0, &bytes);
            bytes
        });
        let srqs = [0, 1].map(|end| {
            let node = &mut nodes[end];
            let init = SrqInit { pd: node.pd, max_wr: 256, max_sge: MAX_SGE, limit: 0 };
            node.engine.create_srq(&init).unwrap()
        });
        let ahs = [0, 1].map(|end| {
            let node = &mut nodes[end];
            node.engine.create_ah(node.pd, &path(node.end, 3 - node.end)).unwrap()
        });
        let pair = Pair::of(rng.next(), nodes, program.link);
        let posted = [0; 2];
        let mut env = TestEnv { pair, connections, receives, posted, srqs, initial, counter, ahs };
        env.compute_expected_words();
        for c in 0..env.connections.len() {
            env.connect(program, c);
            for end in 0..2 {
                let to_invalidate = env.connections[c].steps[end].iter_mut();
                for placed in to_invalidate.filter(|placed| placed.step.op == Op::SendInvalidate) {
                    placed.invalidates = Some(env.pair.nodes[1 - end].fast_region(8));
                }
            }
        }
        env
    }

    /// Computes what each word holds before each atomic, in posting order.
    fn compute_expected_words(&mut self) {
        for conn in &mut self.connections {
            for end in 0..2 {
                let mut words = std::collections::HashMap::new();
                for placed in conn.steps[end].iter_mut().filter(|placed| placed.step.op.is_atomic()) {
                    let initial = word(&self.initial[1 - end], placed.remote);
                    let value = words.entry(placed.remote).or_insert(initial);
                    placed.before = *value;
                    match placed.step.op {
                        Op::CompareSwap { equal, .. } => {
                            placed.compare = if equal { *value } else { !*value };
                            if equal {
                                *value = swap_value(placed);
                            }
                        }
                        Op::FetchAdd { add, .. } => *value = value.wrapping_add(add),
                        _ => {}
                    }
                }
            }
        }
    }

    fn connect(&mut self, program: &Program, c: usize) {
        let conn = &mut self.connections[c];
        for end in 0..2 {
            let node = &mut self.pair.nodes[end];
            let init = QpInit {
                qp_type: conn.plan.qp_type,
                pd: node.pd,
                send_cq: node.cq,
                recv_cq: node.cq,
                srq: conn.plan.srq[end].then_some(self.srqs[end]),
                caps: QpCaps {
                    max_send_wr: conn.plan.depth[end],
                    max_recv_wr: 256,
                    max_send_sge: MAX_SGE,
                    max_recv_sge: MAX_SGE,
                    max_inline_data: MAX_INLINE as u32,
                },
                sq_sig_all: conn.plan.sig_all,
            };
            conn.qpns[end] = node.engine.create_qp(Instant::ZERO, &init).unwrap();
        }
        for end in 0..2 {
            let node = &mut self.pair.nodes[end];
            for transition in transitions(program, conn, end) {
                node.engine.modify_qp(conn.qpns[end], transition).unwrap();
            }
        }
    }

    /// Runs the program until nothing is left to happen. Returns how long it took until every work request was done.
    pub fn run(&mut self, program: &Program) -> Duration {
        let start = self.pair.now;
        let end = start + Duration::from_secs(20);
        let mut receives_at = match program.recv_timing {
            RecvTiming::Early => start,
            RecvTiming::Late(after) | RecvTiming::Trickle(after) => start + after,
        };
        let mut done = None;
        loop {
            if done.is_none() && self.is_done() {
                done = Some(self.pair.now - start);
            }
            if self.pair.now >= receives_at && !self.has_all_receives() {
                self.supply_receives(program.recv_timing);
                if let RecvTiming::Trickle(every) = program.recv_timing {
                    receives_at = self.pair.now + every;
                }
            }
            let before = (self.steps_posted(), self.pair.frames);
            let paused = self.pump();
            let due = paused.into_iter().chain((!self.has_all_receives()).then_some(receives_at)).min();
            match due {
                Some(due) => self.pair.step_before(due),
                None if self.pair.step() => {}
                // Unreliable messages that were sent in this step make room for more.
                None if (self.steps_posted(), self.pair.frames) == before => return done.expect("stuck"),
                None => {}
            }
            assert!(self.pair.now <= end, "never comes to rest");
        }
    }

    fn steps_posted(&self) -> usize {
        self.connections.iter().flat_map(|conn| conn.next).sum()
    }

    fn is_done(&self) -> bool {
        self.connections.iter().all(|conn| {
            (0..2).all(|end| {
                let info = self.pair.nodes[end].engine.query_qp(conn.qpns[end]).unwrap();
                conn.next[end] == conn.steps[end].len() && info.send_queued == 0
            })
        })
    }

    fn has_all_receives(&self) -> bool {
        (0..2).all(|end| self.posted[end] == self.receives[end].len())
    }

    fn supply_receives(&mut self, recv_timing: RecvTiming) {
        for end in 0..2 {
            loop {
                let index = self.posted[end];
                let Some(receive) = self.receives[end].get(index) else { break };
                let wr_id = RECEIVE | index as u64;
                let node = &mut self.pair.nodes[end];
                let sges = sges(node, &receive.pieces);
                let wr = RecvWr { wr_id, sges: &sges };
                match receive.own {
                    Some(c) => node.engine.post_recv(self.connections[c].qpns[end], &wr),
                    None => node.engine.post_srq_recv(self.srqs[end], &wr),
                }
                .unwrap();
                self.posted[end] += 1;
                if matches!(recv_timing, RecvTiming::Trickle(_)) {
                    break;
                }
            }
        }
    }

    /// Posts what is due. When the next step is due that only waits for its time.
    fn pump(&mut self) -> Option<Instant> {
        let mut due = None;
        for c in 0..self.connections.len() {
            for end in 0..2 {
                while self.connections[c].next[end] < self.connections[c].steps[end].len() {
                    let ready = self.connections[c].ready[end];
                    if ready > self.pair.now {
                        due = Some(due.map_or(ready, |due: Instant| due.min(ready)));
                        break;
                    }
                    match self.post(c, end) {
                        Ok(()) => {}
                        Err(PostError::QueueFull) => break,
                        Err(error) => panic!("not posted: {error}"),
                    }
                    let conn = &mut self.connections[c];
                    conn.ready[end] = self.pair.now + conn.steps[end][conn.next[end]].step.pause;
                    conn.next[end] += 1;
                }
            }
        }
        due
    }

    fn post(&mut self, c: usize, end: usize) -> Result<(), PostError> {
        let conn = &self.connections[c];
        let index = conn.next[end];
        let placed = &conn.steps[end][index];
        let remote = &self.pair.nodes[1 - end].region;
        let remote = RemoteAddr { addr: remote.addr() + placed.remote as u64, rkey: remote.rkey() };
        let imm = |with: bool| with.then_some(immediate(c, index));
        let op = match placed.step.op {
            Op::Send { imm: with } => SendOp::Send { imm: imm(with) },
            Op::Write { imm: with } => SendOp::Write { remote, imm: imm(with) },
            Op::WriteShared { .. } => SendOp::Write { remote, imm: None },
            Op::Read | Op::ReadShared { .. } => SendOp::Read { remote },
            Op::CompareSwap { .. } => SendOp::CompareSwap { remote, compare: placed.compare, swap: swap_value(placed) },
            Op::FetchAdd { add, .. } => SendOp::FetchAdd { remote, add },
            Op::Count { add } => SendOp::FetchAdd { remote, add: add.into() },
            Op::AtomicWrite => SendOp::AtomicWrite { remote },
            Op::Flush => SendOp::Flush { remote, length: 8, whole_region: false, persistent: false },
            Op::SendInvalidate => SendOp::SendInvalidate { rkey: placed.invalidates.unwrap() },
            Op::Datagram { to, imm: with, own_qkey } => {
                let qpn = self.connections[self.datagram_target(to)].qpns[1 - end];
                let qkey = if own_qkey { 1 << 31 } else { QKEY };
                SendOp::Datagram { ah: self.ahs[end], qpn, qkey, imm: imm(with) }
            }
        };
        let (qpn, wr_id) = (conn.qpns[end], number(c, index));
        let node = &mut self.pair.nodes[end];
        if placed.step.inline && placed.step.op.sends_data() && placed.len <= MAX_INLINE {
            let data = gathered(node, &placed.local);
            let wr = SendWr { wr_id, op, sges: &[], flags: placed.step.flags };
            node.engine.post_send_inline(qpn, &wr, &data)
        } else {
            let sges = sges(node, &placed.local);
            node.engine.post_send(qpn, &SendWr { wr_id, op, sges: &sges, flags: placed.step.flags })
        }
    }

    /// The connection that a datagram to `to` goes to.
    pub fn datagram_target(&self, to: usize) -> usize {
        let datagram = |conn: &&(usize, &Conn)| conn.1.plan.qp_type == QpType::Ud;
        let targets: Vec<usize> = self.connections.iter().enumerate().filter(|c| datagram(&c)).map(|c| c.0).collect();
        targets[to % targets.len()]
    }

    /// The bytes in buffers of an end.
    pub fn bytes(&self, end: usize, pieces: &[(usize, usize)]) -> Vec<u8> {
        gathered(&self.pair.nodes[end], pieces)
    }
}

/// The number of a step's work request.
pub fn number(c: usize, index: usize) -> u64 {
    (c << 16 | index) as u64
}

/// A step's immediate data.
pub fn immediate(c: usize, index: usize) -> u32 {
    0xABC0_0000 | number(c, index) as u32
}

pub fn word(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

/// The value that a compare-and-swap stores.
pub fn swap_value(placed: &Placed) -> u64 {
    placed.before.rotate_left(13) ^ 0x5A5A_5A5A
}

fn length(step: Step, mtu: usize) -> usize {
    match step.op {
        op if op.is_atomic() => 8,
        Op::AtomicWrite => 8,
        Op::Flush => 0,
        Op::Datagram { .. } => step.size.bytes(mtu).min(mtu),
        _ => step.size.bytes(mtu),
    }
}

/// The next `len` bytes, behind a gap of bytes that no step uses.
fn take(used: &mut usize, len: usize) -> usize {
    let at = *used + 8;
    *used = at + len.next_multiple_of(8);
    at
}

/// Cuts `len` bytes from `at` on into pieces with up to 3 bytes between them.
fn cut(rng: &mut Rng, at: usize, len: usize, cuts: usize) -> Pieces {
    let mut marks: Vec<usize> = (1..cuts).map(|_| rng.below(len as u64 + 1) as usize).collect();
    marks.sort_unstable();
    marks.push(len);
    let (mut from, mut gap) = (0, 0);
    let mut pieces = Vec::new();
    for mark in marks {
        pieces.push((at + from + gap, mark - from));
        from = mark;
        gap += rng.below(4) as usize;
    }
    pieces
}

fn sges(node: &Node, pieces: &[(usize, usize)]) -> Vec<Sge> {
    pieces.iter().map(|&(offset, len)| node.sge(offset, len)).collect()
}

fn gathered(node: &Node, pieces: &[(usize, usize)]) -> Vec<u8> {
    pieces.iter().flat_map(|&(offset, len)| node.read(offset, len)).collect()
}

/// The queue pair of each receive of an end: enough for every message, in the order of posting.
fn owners(program: &Program, end: usize) -> Vec<Option<usize>> {
    let datagrams: Vec<usize> =
        (0..program.connections.len()).filter(|&c| program.connections[c].qp_type == QpType::Ud).collect();
    // A datagram that the link repeats is delivered twice.
    let copies = 1 + usize::from(program.link.duplicate > 0);
    let mut owners = Vec::new();
    for (c, connection) in program.connections.iter().enumerate() {
        let receiver = |c: usize| (!program.connections[c].srq[end]).then_some(c);
        for step in connection.steps[1 - end].iter().filter(|step| step.op.takes_receive()) {
            match step.op {
                Op::Datagram { to, .. } => {
                    let owner = receiver(datagrams[to % datagrams.len()]);
                    owners.extend(std::iter::repeat_n(owner, copies));
                }
                _ => owners.push(receiver(c)),
            }
        }
        owners.extend(std::iter::repeat_n(receiver(c), program.ends[end].spare));
    }
    owners
}

fn node(program: &Program, end: usize, memory: usize) -> Node {
    let plan = &program.ends[end];
    let config = EngineConfig {
        worker: 3 * end as u8,
        seed: [end as u8 + 1; 32],
        credits: plan.credits,
        window: plan.window,
        ack_every: plan.ack_every,
        read_quantum: plan.quantum,
        send_quantum: plan.quantum,
        congestion: plan.congestion.clone(),
        short_messages_first: plan.short_first,
        flush: true,
        atomic_write: true,
        ..EngineConfig::default()
    };
    Node::bare(end as u8 + 1, config, 512, memory)
}

fn transitions(program: &Program, conn: &Conn, end: usize) -> Vec<QpTransition> {
    let peer = 1 - end;
    let plan = &conn.plan;
    if plan.qp_type == QpType::Ud {
        return vec![
            QpTransition::ToInitDatagram { port: PORT, qkey: QKEY },
            QpTransition::ToRtrDatagram { path_mtu: program.mtu },
            QpTransition::ToRtsDatagram { sq_psn: Psn::new(plan.psn[end]) },
        ];
    }
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
    vec![
        QpTransition::ToInit { access },
        QpTransition::ToRtr(RtrAttr {
            path: path(end as u8 + 1, peer as u8 + 1),
            path_mtu: program.mtu,
            dest_qpn: conn.qpns[peer],
            rq_psn: Psn::new(plan.psn[peer]),
            max_dest_rd_atomic: plan.rd_atomic[peer],
            min_rnr_timer: 1,
        }),
        QpTransition::ToRts(RtsAttr {
            sq_psn: Psn::new(plan.psn[end]),
            timeout: TIMEOUT,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: plan.rd_atomic[end],
        }),
    ]
}
