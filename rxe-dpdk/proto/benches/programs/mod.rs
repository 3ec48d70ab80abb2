//! Packet programs: two engines and the frames between them, one side of which is measured. All frames come from an
//! engine, so PSNs, credits and ICRCs are always right.

#![allow(dead_code)]

use std::ops::Range;

use harness::{Agreed, Node, PORT};
use rxe_proto::mem::{Access, KeyDomain, KeyTable, Memory, MemoryRegion};
use rxe_proto::transport::{EngineConfig, Qpn, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Wait, WorkCompletion};
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Frame, HeaderTemplate, PathMtu, PortId, Psn, TxQueue, classify,
};
use rxe_proto::{Duration, Instant};

#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../../tests/it/harness/mod.rs"]
mod harness;

/// Frames that come in together.
pub const BURST: usize = 32;
/// As in a DPDK buffer.
const HEADROOM: usize = 128;
const CACHE_LINE: usize = 64;

/// Frames side by side in memory that stays warm.
pub struct Frames {
    bytes: Vec<u8>,
    at: Vec<Range<usize>>,
}

impl Frames {
    fn new(room: usize) -> Frames {
        Frames { bytes: vec![0; room], at: Vec::with_capacity(room / (HEADROOM + CACHE_LINE)) }
    }

    fn clear(&mut self) {
        self.at.clear();
    }

    pub fn len(&self) -> usize {
        self.at.len()
    }
}

impl TxQueue for Frames {
    #[inline]
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        let end = self.at.last().map_or(0, |last| last.end);
        let at = end.next_multiple_of(CACHE_LINE) + HEADROOM;
        if at + len > self.bytes.len() || self.at.len() == self.at.capacity() {
            return None;
        }
        self.at.push(at..at + len);
        self.bytes.get_mut(at..at + len)
    }
}

/// The operation of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Write,
    Read,
    Send,
    FetchAdd,
}

/// A packet program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub work: Work,
    /// Bytes of a message.
    pub size: usize,
    pub qps: usize,
    pub mtu: PathMtu,
    /// Messages of a round, in turn on all queue pairs.
    pub messages: usize,
    /// What makes the initiator send less than it could.
    pub held_back: HeldBack,
}

/// What makes the initiator of a program send less than it could.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeldBack {
    Nothing,
    /// Congestion notifications before each round: packets wait for the rate.
    Rate,
    /// The last message of a round has 64 bytes, so that the others are limited.
    ShortMessage,
}

impl Program {
    /// Small messages on eight queue pairs, 16 bursts of them.
    pub const fn small(work: Work, size: usize) -> Program {
        Program { work, size, qps: 8, mtu: PathMtu::Mtu1024, messages: 16 * BURST, held_back: HeldBack::Nothing }
    }

    /// Few large messages on one queue pair.
    pub const fn large(work: Work, size: usize, mtu: PathMtu) -> Program {
        Program { work, size, qps: 1, mtu, messages: 4, held_back: HeldBack::Nothing }
    }

    /// A large message on each of several queue pairs and what holds them back.
    pub const fn held_back(work: Work, size: usize, qps: usize, held_back: HeldBack) -> Program {
        Program { work, size, qps, mtu: PathMtu::Mtu1024, messages: qps, held_back }
    }

    /// Bytes of a message.
    #[inline]
    fn len(&self, message: usize) -> usize {
        if self.held_back == HeldBack::ShortMessage && message + 1 == self.messages { 64 } else { self.size }
    }

    /// Offset of a message in the region of either side.
    #[inline]
    fn offset(&self, message: usize) -> usize {
        let size = self.size.next_multiple_of(8);
        message % (REGION / size) * size
    }
}

/// A region of several targets, each of which uses a part.
pub struct SharedRegion(MemoryRegion);

impl SharedRegion {
    pub fn new(parts: usize) -> SharedRegion {
        let mut keys = KeyTable::new([9; 32], KeyDomain::Shared);
        let pd = keys.alloc_pd();
        let access = harness::ALL_ACCESS;
        SharedRegion(keys.register(pd, Memory::heap(parts * REGION), 0x100_0000, access).unwrap())
    }
}

/// An initiator and a target. A round is [`request`](TestEnv::request), [`respond`](TestEnv::respond),
/// [`complete`](TestEnv::complete).
pub struct TestEnv {
    program: Program,
    initiator: Node,
    target: Node,
    /// At the initiator, at the target.
    qpns: Vec<(Qpn, Qpn)>,
    now: Instant,
    there: Frames,
    back: Frames,
    completions: Vec<WorkCompletion>,
    posted: usize,
    completed: usize,
    /// Offset in the target's region.
    part_at: usize,
}

/// Bytes in which messages are placed round robin, on either side.
const REGION: usize = 128 << 10;
const _: () = assert!(REGION.is_multiple_of(64));

impl TestEnv {
    pub fn new(program: Program) -> TestEnv {
        TestEnv::on(program, None)
    }

    /// With a part of a shared region at the target.
    pub fn on(program: Program, shared: Option<(&SharedRegion, usize)>) -> TestEnv {
        // A round fits into the window, and queue pairs take turns packet by packet.
        let config = |worker| EngineConfig {
            worker,
            seed: [worker + 1; 32],
            window: 1 << 12,
            send_quantum: 1,
            ..EngineConfig::default()
        };
        let agreed = Agreed { mtu: program.mtu, rd_atomic: 128, timeout: 18, ..Agreed::default() };
        let (depth, cqe) = (2 * program.messages as u32, 4 * program.messages as u32);
        let mut initiator = Node::bare(1, config(1), cqe, REGION);
        let mut target = Node::bare(2, config(2), cqe, REGION);
        let mut part_at = 0;
        if let Some((SharedRegion(region), part)) = shared {
            target.region = target.engine.keys_mut().adopt(target.pd, region).unwrap();
            part_at = part * REGION;
        }
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mut qpns = Vec::new();
        for _ in 0..program.qps {
            let (ours, theirs) = (initiator.create_qp(depth, access), target.create_qp(depth, access));
            (initiator.qpn, target.qpn) = (ours, theirs);
            initiator.connect(&mut target, &agreed);
            qpns.push((ours, theirs));
        }
        let packets = program.messages * program.size.div_ceil(program.mtu.bytes()).max(1);
        let room = packets * (HEADROOM + CACHE_LINE + 128 + program.size.min(program.mtu.bytes()));
        let (there, back) = (Frames::new(room), Frames::new(room));
        let now = Instant::from_nanos(1_000_000);
        let completions = Vec::with_capacity(program.messages);
        let mut env = TestEnv {
            program,
            initiator,
            target,
            qpns,
            now,
            there,
            back,
            completions,
            posted: 0,
            completed: 0,
            part_at,
        };
        if program.work == Work::Send {
            for message in 0..program.messages {
                let (_, qpn) = env.qpns[message % program.qps];
                let sge = env.target.sge(part_at + program.offset(message), program.size);
                env.target.engine.post_recv(qpn, &RecvWr { wr_id: message as u64, sges: &[sge] }).unwrap();
            }
        }
        // Warm-up: lazy initialisation is done, and credits, window and round trip are in their steady state.
        for _ in 0..4 {
            env.round();
        }
        env
    }

    pub fn round(&mut self) {
        self.notify();
        self.request();
        self.respond();
        self.complete();
    }

    /// Requests of a round that have been written, and their answers.
    pub fn frames(&self) -> [&Frames; 2] {
        [&self.there, &self.back]
    }

    /// The initiator posts a round's work requests and writes their packets.
    #[inline(never)]
    pub fn request(&mut self) {
        self.there.clear();
        self.now += Duration::from_micros(10);
        let region = &self.target.region;
        let base = RemoteAddr { addr: region.addr() + self.part_at as u64, rkey: region.rkey() };
        for message in 0..self.program.messages {
            let offset = self.program.offset(message);
            let remote = RemoteAddr { addr: base.addr + offset as u64, ..base };
            let op = match self.program.work {
                Work::Write => SendOp::Write { remote, imm: None },
                Work::Read => SendOp::Read { remote },
                Work::Send => SendOp::Send { imm: None },
                Work::FetchAdd => SendOp::FetchAdd { remote, add: 1 },
            };
            let sge = self.initiator.sge(offset, self.program.len(message));
            let wr = SendWr { wr_id: message as u64, op, sges: &[sge], flags: SendFlags::SIGNALED };
            let (qpn, _) = self.qpns[message % self.program.qps];
            self.initiator.engine.post_send(qpn, &wr).unwrap();
            self.posted += 1;
            if message % BURST == BURST - 1 {
                self.initiator.engine.transmit(self.now, &mut self.there);
            }
        }
        while self.initiator.engine.transmit(self.now, &mut self.there) > 0 {}
        if self.program.held_back == HeldBack::Rate {
            self.wait_for_the_rate();
        }
        assert!(!self.initiator.engine.wants_transmit(), "a round does not fit");
    }

    /// Time passes until all packets are written. That is before the retransmission timer expires.
    fn wait_for_the_rate(&mut self) {
        let unsent = |env: &TestEnv| {
            let waits =
                |(qpn, _): &(Qpn, Qpn)| env.initiator.engine.query_qp(*qpn).is_some_and(|qp| qp.waits == Wait::Rate);
            env.qpns.iter().any(waits)
        };
        while unsent(self) {
            self.now = self.initiator.engine.next_timeout().expect("waits for the rate");
            self.initiator.engine.handle_timeout(self.now);
            while self.initiator.engine.transmit(self.now, &mut self.there) > 0 {}
        }
    }

    /// Congestion notifications for each queue pair of the initiator, if the program has some.
    pub fn notify(&mut self) {
        if self.program.held_back != HeldBack::Rate {
            return;
        }
        let template = HeaderTemplate::new(&harness::path(2, 1));
        for (qpn, _) in &self.qpns {
            let fields = BthFields {
                opcode: BthOpcode::CNP,
                dest_qp: qpn.get(),
                psn: Psn::new(0),
                solicited: false,
                ack_req: false,
                pkey: DEFAULT_PKEY,
            };
            let mut frame = vec![0; template.frame_len(fields.opcode, 0)];
            let mut packet = template.build(&mut frame, fields, 0);
            packet.congestion(false, true);
            packet.finish();
            take_in(&mut self.initiator, self.now, &frame);
        }
    }

    /// The target receives the requests, burst by burst, and answers each burst.
    #[inline(never)]
    pub fn respond(&mut self) {
        self.back.clear();
        for burst in self.there.at.chunks(BURST) {
            for at in burst {
                take_in(&mut self.target, self.now, &self.there.bytes[at.clone()]);
            }
            if self.program.work == Work::Send {
                self.completions.clear();
                self.target.engine.poll_cq(self.target.cq, &mut self.completions, BURST);
                for wc in &self.completions {
                    let at = self.part_at + self.program.offset(wc.wr_id as usize);
                    let sge = self.target.sge(at, self.program.size);
                    let wr = RecvWr { wr_id: wc.wr_id, sges: &[sge] };
                    self.target.engine.post_recv(wc.qpn, &wr).unwrap();
                }
            }
            while self.target.engine.transmit(self.now, &mut self.back) > 0 {}
        }
        assert!(!self.target.engine.wants_transmit(), "the answers do not fit");
    }

    /// The initiator receives the answers, burst by burst, and polls completions.
    #[inline(never)]
    pub fn complete(&mut self) {
        self.now += Duration::from_micros(10);
        for burst in self.back.at.chunks(BURST) {
            for at in burst {
                take_in(&mut self.initiator, self.now, &self.back.bytes[at.clone()]);
            }
            self.completions.clear();
            self.completed +=
                self.initiator.engine.poll_cq(self.initiator.cq, &mut self.completions, self.program.messages);
        }
        assert_eq!(self.completed, self.posted, "not everything was answered");
    }
}

#[inline]
fn take_in(node: &mut Node, now: Instant, frame: &[u8]) {
    match &classify(frame) {
        Ok(Frame::Roce(packet)) => node.engine.receive(now, PORT, packet),
        other => panic!("{other:?}"),
    }
}
