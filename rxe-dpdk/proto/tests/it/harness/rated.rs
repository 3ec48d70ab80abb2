//! Two connected engines and a link with a rate: frames follow each other on the line as fast as it is, and arrive
//! after its delay, in order, unless they are lost.

use std::collections::VecDeque;

use rxe_proto::transport::EngineConfig;
use rxe_proto::wire::{Frame, RocePacket, TxFrames, classify};
use rxe_proto::{Duration, Instant};

use super::{Agreed, Node, PORT, Rng};

/// Parameters of the link, the same in both directions.
#[derive(Clone, Copy, Debug)]
pub struct LinkParams {
    /// Bits per microsecond.
    pub rate: u64,
    /// One-way delay.
    pub delay: Duration,
    /// Frames lost, in parts per million.
    pub loss: u32,
}

impl Default for LinkParams {
    /// 100 Gb/s.
    fn default() -> LinkParams {
        LinkParams { rate: 100_000, delay: Duration::from_micros(10), loss: 0 }
    }
}

/// When the CPU of an end is there again, or how long it still is.
#[derive(Clone, Copy)]
enum Away {
    Until(Instant),
    From(Instant),
}

/// Whether a frame from an end is lost.
pub type DropFilter = Box<dyn FnMut(usize, &RocePacket<'_>) -> bool>;

pub struct RatedPair {
    pub nodes: [Node; 2],
    pub now: Instant,
    pub line: LinkParams,
    /// Frames that a port takes before the line has sent the first of them.
    pub ring: usize,
    /// A port with less room than this takes none: like those whose driver frees several at a time.
    pub least_room: usize,
    /// Drops chosen frames.
    pub drop_filter: DropFilter,
    /// Frames written by each end.
    pub frames: [u64; 2],
    /// Frames that an end receives at once, before its timers.
    pub burst: usize,
    /// How long the CPU of an end is taken away, and then left, if it is.
    pub gaps: Option<[Duration; 2]>,
    /// Until when it is, or when it will be.
    away: [Away; 2],
    rng: Rng,
    /// When the line of each end has sent what the port has taken: the last frame, and each of them.
    free_at: [Instant; 2],
    in_ring: [VecDeque<Instant>; 2],
    /// Frames on their way from each end, with the time of arrival.
    flights: [VecDeque<(Instant, Vec<u8>)>; 2],
}

impl RatedPair {
    /// Two ends with queues of `depth` and `memory` bytes each, both in RTS. `agreed.sq_psn` and `rq_psn` are those of
    /// the first end.
    pub fn new(
        seed: u64,
        agreed: &Agreed,
        config: &EngineConfig,
        depth: u32,
        memory: usize,
        line: LinkParams,
    ) -> RatedPair {
        let now = Instant::from_nanos(1_000_000);
        RatedPair {
            nodes: Node::connected(config, agreed, depth, memory),
            now,
            line,
            ring: 1,
            least_room: 1,
            drop_filter: Box::new(|_, _| false),
            frames: [0; 2],
            burst: usize::MAX,
            gaps: None,
            away: [Away::From(now); 2],
            rng: Rng(seed),
            free_at: [now; 2],
            in_ring: [VecDeque::new(), VecDeque::new()],
            flights: [VecDeque::new(), VecDeque::new()],
        }
    }

    /// How long a frame of `len` bytes takes to pass.
    pub fn serialization(&self, len: usize) -> Duration {
        Duration::from_nanos(len as u64 * 8_000 / self.line.rate)
    }

    /// Each end whose port has room writes frames; then time jumps to the next thing that happens, which is handled.
    /// False when nothing is left to happen.
    pub fn step(&mut self) -> bool {
        let mut next: Option<Instant> = None;
        for end in 0..2 {
            while self.in_ring[end].front().is_some_and(|sent| *sent <= self.now) {
                self.in_ring[end].pop_front();
            }
            let room = if self.away_until(end).is_some() { 0 } else { self.ring - self.in_ring[end].len() };
            if room >= self.least_room {
                let mut tx = TxFrames { room: Some(room), ..TxFrames::default() };
                self.nodes[end].engine.transmit(self.now, &mut tx);
                for (_, frame) in tx.frames {
                    self.frames[end] += 1;
                    self.free_at[end] = self.free_at[end].max(self.now) + self.serialization(frame.len());
                    self.in_ring[end].push_back(self.free_at[end]);
                    let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
                    if !self.rng.chance(self.line.loss) && !(self.drop_filter)(end, &packet) {
                        self.flights[end].push_back((self.free_at[end] + self.line.delay, frame));
                    }
                }
            }
        }
        for end in 0..2 {
            let mut sooner = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
            // What happens at this end does so when its CPU is there.
            let from = self.away_until(end).unwrap_or(self.now);
            if self.nodes[end].engine.wants_transmit() {
                // Frames that have to leave the ring first.
                let too_many = self.in_ring[end].len().saturating_sub(self.ring - self.least_room);
                let room_at = too_many.checked_sub(1).map_or(self.now, |last| self.in_ring[end][last]);
                sooner(room_at.max(self.now + Duration::from_nanos(1)).max(from));
            }
            if let Some((at, _)) = self.flights[1 - end].front() {
                sooner((*at).max(from));
            }
            if let Some(at) = self.nodes[end].engine.next_timeout() {
                sooner(at.max(from));
            }
        }
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        for end in 0..2 {
            if self.away_until(end).is_some() {
                continue;
            }
            for _ in 0..self.burst {
                if self.flights[1 - end].front().is_none_or(|(at, _)| *at > self.now) {
                    break;
                }
                let Some((_, frame)) = self.flights[1 - end].pop_front() else { break };
                let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("not a RoCE frame") };
                self.nodes[end].engine.receive(self.now, PORT, &packet);
            }
            let node = &mut self.nodes[end];
            if node.engine.next_timeout().is_some_and(|at| at <= self.now) {
                node.engine.handle_timeout(self.now);
            }
            node.collect();
        }
        true
    }

    /// Until when the CPU of an end is away now.
    fn away_until(&mut self, end: usize) -> Option<Instant> {
        let [gap, presence] = self.gaps?;
        loop {
            // Half to one and a half times as long.
            let mut about = |time: Duration| time / 2 + Duration::from_nanos(self.rng.below(time.as_nanos() as u64));
            match self.away[end] {
                Away::Until(at) if self.now < at => return Some(at),
                Away::Until(at) => self.away[end] = Away::From(at + about(presence)),
                Away::From(at) if self.now < at => return None,
                Away::From(at) => self.away[end] = Away::Until(at + about(gap)),
            }
        }
    }

    /// Steps until `done`; returns how long that took. Panics when nothing happens any more or `limit` has passed.
    pub fn drive(&mut self, limit: Duration, mut done: impl FnMut(&RatedPair) -> bool) -> Duration {
        let start = self.now;
        while !done(self) {
            let query = |rated: &RatedPair| format!("{:#?}", rated.nodes[0].engine.query_qp(rated.nodes[0].qpn));
            assert!(self.step(), "stuck at {:?}: {}", self.now, query(self));
            let stats = self.nodes[0].engine.stats();
            assert!(self.now - start <= limit, "too slow: {} {stats:?}", query(self));
        }
        self.now - start
    }
}
