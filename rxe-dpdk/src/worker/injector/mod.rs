//! Faults on purpose, between a port and a worker: frames are dropped, repeated, held back behind later ones, delayed
//! and damaged, as a seed chooses.
//!
//! An [`Injector`] stands in one direction of one worker's queue of one port. Every frame goes in by
//! [`accept`](Injector::accept) and comes out by [`next`](Injector::next) when it is due. It holds at most
//! [`CAPACITY`] frames from turn to turn; when more would have to wait, those that are due first leave early.

mod settings;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rxe_proto::wire::{Frame, PortId, classify};
use rxe_proto::{Duration, Instant, counters};

use crate::eal::Mbuf;
pub use settings::{FaultRates, FaultScope, FaultSettings, Probability};

counters! {
    /// What happened on purpose to the frames of one direction.
    /// `frames` + `out_of_scope` + `duplicated` = `dropped` + `delivered` + what is held at the moment.
    pub struct FaultStats {
        /// Frames that faults could happen to.
        frames,
        /// Frames let through because faults are not for their kind.
        out_of_scope,
        /// Frames dropped.
        dropped,
        /// Copies made.
        duplicated,
        /// Frames to be repeated, for whose copy there was no buffer.
        not_duplicated,
        /// Frames held back behind later ones.
        reordered,
        /// Frames with a bit flipped.
        corrupted,
        /// Frames delayed.
        delayed,
        /// Frames and copies let go, to the worker or to the port.
        delivered,
        /// Those of them that left before they were due, to make room.
        released_early,
        /// Frames of the worker not accepted for want of room or of a buffer; it comes again with them.
        stalled,
    }
}

/// Most frames that an injector holds from turn to turn.
pub(crate) const CAPACITY: usize = 1024;

/// Most frames that may be accepted between two times that [`Injector::next`] is called until it has no more.
pub(crate) const BATCH: usize = 256;

/// Buffers that one injector can hold on to: every frame of a batch may be repeated.
pub(crate) const MAX_HELD: usize = CAPACITY + 2 * BATCH;

/// At this time everything is due.
pub(crate) const FOREVER: Instant = Instant::from_nanos(u64::MAX);

/// A frame held back goes behind at most this many later ones.
const MAX_OVERTAKERS: u32 = 4;

/// How long a frame is held back when nothing comes to overtake it.
const PATIENCE: Duration = Duration::from_millis(1);

/// Bytes of the Ethernet header, which is never damaged: a frame to another station would not be a damaged one of ours.
const ETHERNET: usize = 14;

/// What passes through an injector.
pub(crate) trait Packet: Sized {
    /// The frame.
    fn bytes(&self) -> &[u8];
    /// The frame, to damage.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// The same again; `None` for want of a buffer.
    fn try_copy(&self) -> Option<Self>;
}

impl Packet for Mbuf {
    fn bytes(&self) -> &[u8] {
        self.data()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.data_mut()
    }

    fn try_copy(&self) -> Option<Mbuf> {
        Mbuf::try_copy(self)
    }
}

/// From the wire or to it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Rx,
    Tx,
}

/// A frame that leaves at a time; of several of the same time, the lowest number first.
struct Waiting<P> {
    key: Reverse<(Instant, u64)>,
    packet: P,
}

impl<P> PartialEq for Waiting<P> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<P> Eq for Waiting<P> {}

impl<P> PartialOrd for Waiting<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Waiting<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// A frame that waits for `overtakers` later ones, but not past `until`. Then it is late by `late` as it would have
/// been anyway.
struct HeldBack<P> {
    overtakers: u32,
    until: Instant,
    late: Duration,
    packet: P,
}

/// See the module.
pub(crate) struct Injector<P> {
    rates: FaultRates,
    scope: FaultScope,
    rng: ChaCha8Rng,
    queue: BinaryHeap<Waiting<P>>,
    /// At most [`MAX_OVERTAKERS`] from one frame to the next.
    held_back: Vec<HeldBack<P>>,
    /// Frames that have been in the queue.
    number: u64,
    stats: Arc<FaultStats>,
}

impl<P: Packet> Injector<P> {
    /// For one direction of worker number `worker`'s queue of `port`; `None` when nothing shall happen there.
    pub(crate) fn new(
        settings: &FaultSettings,
        direction: Direction,
        worker: usize,
        port: PortId,
        stats: Arc<FaultStats>,
    ) -> Option<Injector<P>> {
        let (rates, mark) = match direction {
            Direction::Rx => (settings.rx, 0),
            Direction::Tx => (settings.tx, 1),
        };
        if rates.is_off() {
            return None;
        }
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&settings.seed.to_le_bytes());
        seed[8..16].copy_from_slice(&(worker as u64).to_le_bytes());
        seed[16..18].copy_from_slice(&port.0.to_le_bytes());
        seed[18] = mark;
        Some(Injector {
            rates,
            scope: settings.scope,
            rng: ChaCha8Rng::from_seed(seed),
            queue: BinaryHeap::with_capacity(MAX_HELD),
            held_back: Vec::with_capacity(MAX_OVERTAKERS as usize + 1),
            number: 0,
            stats,
        })
    }

    /// How many frames it holds.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.held_back.len()
    }

    /// What it counts.
    pub(crate) fn stats(&self) -> &FaultStats {
        &self.stats
    }

    /// Decides what happens to a frame and takes it in. `false` when it was dropped.
    pub(crate) fn accept(&mut self, now: Instant, mut packet: P) -> bool {
        if self.scope == FaultScope::Roce && !matches!(classify(packet.bytes()), Ok(Frame::Roce(_))) {
            self.stats.out_of_scope.inc();
            self.enqueue(now, packet);
            return true;
        }
        self.stats.frames.inc();
        if self.chance(self.rates.drop) {
            self.stats.dropped.inc();
            return false;
        }
        // The copy before the damage: a repeated frame need not be damaged twice.
        let copy = if self.chance(self.rates.duplicate) { self.copy(&packet) } else { None };
        if self.chance(self.rates.corrupt) {
            self.damage(packet.bytes_mut());
        }
        let late = self.lateness();
        let earlier = self.held_back.len();
        if self.chance(self.rates.reorder) {
            self.stats.reordered.inc();
            let overtakers = 1 + self.below(u64::from(MAX_OVERTAKERS)) as u32;
            self.held_back.push(HeldBack { overtakers, until: now + PATIENCE, late, packet });
        } else {
            self.enqueue(now + late, packet);
        }
        if let Some(copy) = copy {
            let late = self.lateness();
            self.enqueue(now + late, copy);
        }
        for held in &mut self.held_back[..earlier] {
            held.overtakers -= 1;
        }
        self.let_go(now, |held| held.overtakers == 0);
        true
    }

    /// The next frame that is due, or has to go because there are too many.
    pub(crate) fn next(&mut self, now: Instant) -> Option<P> {
        self.let_go(now, |held| held.until <= now);
        let Reverse((due, _)) = self.queue.peek()?.key;
        if due > now {
            if self.len() <= CAPACITY {
                return None;
            }
            self.stats.released_early.inc();
        }
        self.stats.delivered.inc();
        self.queue.pop().map(|waiting| waiting.packet)
    }

    /// Puts those frames into the queue that have been held back long enough.
    fn let_go(&mut self, now: Instant, enough: impl Fn(&HeldBack<P>) -> bool) {
        while let Some(index) = self.held_back.iter().position(&enough) {
            let held = self.held_back.remove(index);
            self.enqueue(now + held.late, held.packet);
        }
    }

    fn enqueue(&mut self, due: Instant, packet: P) {
        self.queue.push(Waiting { key: Reverse((due, self.number)), packet });
        self.number += 1;
    }

    fn copy(&self, packet: &P) -> Option<P> {
        let copy = packet.try_copy();
        let counter = if copy.is_some() { &self.stats.duplicated } else { &self.stats.not_duplicated };
        counter.inc();
        copy
    }

    fn damage(&mut self, frame: &mut [u8]) {
        let Some(body) = frame.get_mut(ETHERNET..).filter(|body| !body.is_empty()) else { return };
        let bit = self.below(body.len() as u64 * 8);
        body[(bit / 8) as usize] ^= 1 << (bit % 8);
        self.stats.corrupted.inc();
    }

    fn lateness(&mut self) -> Duration {
        if !self.rates.delays() || !self.chance(self.rates.delayed) {
            return Duration::ZERO;
        }
        self.stats.delayed.inc();
        let jitter = u64::try_from(self.rates.jitter.as_nanos()).unwrap_or(u64::MAX - 1);
        self.rates.delay + Duration::from_nanos(self.below(jitter + 1))
    }

    /// Draws only where both outcomes are possible.
    fn chance(&mut self, probability: Probability) -> bool {
        match probability {
            Probability::NEVER => false,
            Probability::ALWAYS => true,
            _ => probability.hits(self.rng.next_u32()),
        }
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests;
