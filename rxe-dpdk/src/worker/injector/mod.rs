//! Faults on purpose, between a port and a worker: frames are dropped, repeated, held back behind later ones, delayed,
//! damaged and marked, as rules say and seeds choose.
//!
//! An [`Injector`] stands in one direction of one worker's queue of one port. Every frame goes in by
//! [`accept`](Injector::accept) and comes out by [`next`](Injector::next) when it is due. From turn to turn it holds at
//! most what its [`Room`] says; when more would have to wait, those that are due first leave early. Requests are refused
//! elsewhere: by [`Refusals`], at the worker that owns their queue pair.

mod list;
mod refusals;
mod rule;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rxe_proto::wire::{Frame, PortId, RocePacket, classify, mark_congestion};
use rxe_proto::{Duration, Instant, counters};

use crate::eal::Mbuf;
pub(crate) use list::Faults;
pub use list::{ActiveFault, MAX_FAULTS};
use list::{Chooser, choosers};
pub(crate) use refusals::Refusals;
pub use rule::{Direction, FaultAction, FaultMatch, FaultRule, FaultScope, Probability, PsnRange, nak_name};

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
        /// Frames marked as having met congestion.
        marked,
        /// Frames delayed.
        delayed,
        /// Frames and copies let go, to the worker or to the port.
        delivered,
        /// Those of them that left before they were due, to make room.
        released_early,
        /// Frames of the worker not accepted for want of room or of a buffer; it comes again with them.
        stalled,
        /// Requests refused, by NAK or RNR NAK. They are no part of the sum above.
        refused,
    }
}

/// How many frames an injector may keep. Its port's pool has buffers for as many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// Most frames that it holds from turn to turn.
    pub(crate) capacity: usize,
    /// Most frames that may be accepted between two times that [`Injector::next`] is called until it has no more.
    pub(crate) batch: usize,
}

impl Room {
    /// Where rules are known at start.
    pub(crate) const WIDE: Room = Room { capacity: 1024, batch: 256 };
    /// Where they may come later: what it takes is kept for nothing until then.
    pub(crate) const NARROW: Room = Room { capacity: 256, batch: 64 };

    /// Buffers that one injector can hold on to: every frame of a batch may be repeated.
    pub(crate) const fn max_held(self) -> usize {
        self.capacity + 2 * self.batch
    }
}

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

/// Where the parts of a RoCE packet are in its frame.
#[derive(Clone, Default)]
struct Parts {
    ip_at: usize,
    payload: std::ops::Range<usize>,
    icrc: std::ops::Range<usize>,
}

impl Parts {
    fn of(packet: &RocePacket<'_>) -> Parts {
        Parts { ip_at: packet.ip_at(), payload: packet.payload_range(), icrc: packet.icrc_range() }
    }
}

/// What happens to a frame.
#[derive(Default)]
struct Fate {
    dropped: bool,
    /// It is repeated, and the copy is late by this.
    copy: Option<Duration>,
    /// A bit for each rule that damages or marks it.
    changes: u64,
    late: Duration,
    /// It goes behind so many.
    overtakers: Option<u32>,
}

/// See the module.
pub(crate) struct Injector<P> {
    worker: usize,
    port: PortId,
    direction: Direction,
    /// In the order in which they act, at most [`MAX_FAULTS`].
    rules: Vec<Chooser>,
    room: Room,
    queue: BinaryHeap<Waiting<P>>,
    /// At most [`MAX_OVERTAKERS`] from one frame to the next.
    held_back: Vec<HeldBack<P>>,
    /// Frames that have been in the queue.
    number: u64,
    stats: Arc<FaultStats>,
}

impl<P: Packet> Injector<P> {
    /// For one direction of worker number `worker`'s queue of `port`. Nothing happens before it has rules.
    pub(crate) fn new(
        direction: Direction,
        worker: usize,
        port: PortId,
        room: Room,
        stats: Arc<FaultStats>,
    ) -> Injector<P> {
        Injector {
            worker,
            port,
            direction,
            rules: Vec::new(),
            room,
            queue: BinaryHeap::with_capacity(room.max_held()),
            held_back: Vec::with_capacity(MAX_OVERTAKERS as usize + 1),
            number: 0,
            stats,
        }
    }

    /// Whether one of `faults` is for this direction.
    pub(crate) fn is_wanted(direction: Direction, faults: &[Arc<ActiveFault>]) -> bool {
        faults.iter().any(|fault| acts(direction, &fault.rule))
    }

    /// Goes by these from now on. When none is for it, all that it holds is due.
    pub(crate) fn set_rules(&mut self, faults: &[Arc<ActiveFault>]) {
        let (before, direction) = (std::mem::take(&mut self.rules), self.direction);
        self.rules = choosers(before, faults, |rule| acts(direction, rule), self.worker, Some(self.port));
    }

    /// Whether it goes by no rule.
    pub(crate) fn is_off(&self) -> bool {
        self.rules.is_empty()
    }

    /// How many frames it holds.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.held_back.len()
    }

    /// How many it may hold.
    pub(crate) fn room(&self) -> Room {
        self.room
    }

    /// What it counts.
    pub(crate) fn stats(&self) -> &FaultStats {
        &self.stats
    }

    /// Decides what happens to a frame and takes it in. `false` when it was dropped.
    pub(crate) fn accept(&mut self, now: Instant, mut packet: P) -> bool {
        let roce = match classify(packet.bytes()) {
            Ok(Frame::Roce(roce)) => Some(roce),
            _ => None,
        };
        if roce.is_none() && self.rules.iter().all(|rule| rule.fault.rule.matches.scope == FaultScope::Roce) {
            self.stats.out_of_scope.inc();
            self.enqueue(now, packet);
            return true;
        }
        self.stats.frames.inc();
        let parts = roce.as_ref().map(Parts::of).unwrap_or_default();
        let fate = self.decide(packet.bytes().len(), roce.as_ref(), &parts);
        if fate.dropped {
            self.stats.dropped.inc();
            return false;
        }
        // The copy before the damage: a repeated frame need not be damaged twice.
        let copy = fate.copy.and_then(|late| Some((late, self.copy(&packet)?)));
        if fate.changes != 0 {
            self.change(packet.bytes_mut(), &parts, fate.changes);
        }
        let earlier = self.held_back.len();
        if let Some(overtakers) = fate.overtakers {
            self.stats.reordered.inc();
            self.held_back.push(HeldBack { overtakers, until: now + PATIENCE, late: fate.late, packet });
        } else {
            self.enqueue(now + fate.late, packet);
        }
        if let Some((late, copy)) = copy {
            self.enqueue(now + late, copy);
        }
        for held in &mut self.held_back[..earlier] {
            held.overtakers -= 1;
        }
        self.let_go(now, |held| held.overtakers == 0);
        true
    }

    /// What the rules want of a frame of `len` bytes.
    fn decide(&mut self, len: usize, roce: Option<&RocePacket<'_>>, parts: &Parts) -> Fate {
        let mut fate = Fate::default();
        for (index, rule) in self.rules.iter_mut().enumerate() {
            match rule.fault.rule.action {
                FaultAction::Drop => {
                    if rule.hits(roce, true) {
                        return Fate { dropped: true, ..Fate::default() };
                    }
                }
                FaultAction::Duplicate => {
                    if fate.copy.is_none() && rule.hits(roce, true) {
                        fate.copy = Some(Duration::ZERO);
                    }
                }
                FaultAction::Corrupt => fate.changes |= u64::from(rule.hits(roce, len > ETHERNET)) << index,
                FaultAction::CorruptPayload => {
                    fate.changes |= u64::from(rule.hits(roce, !parts.payload.is_empty())) << index;
                }
                FaultAction::CorruptIcrc | FaultAction::Ecn => {
                    fate.changes |= u64::from(rule.hits(roce, roce.is_some())) << index;
                }
                FaultAction::Delay { delay, jitter } => {
                    for late in std::iter::once(&mut fate.late).chain(&mut fate.copy) {
                        if rule.hits(roce, true) {
                            self.stats.delayed.inc();
                            let jitter = u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX - 1);
                            *late += delay + Duration::from_nanos(rule.below(jitter + 1));
                        }
                    }
                }
                FaultAction::Reorder => {
                    if fate.overtakers.is_none() && rule.hits(roce, true) {
                        fate.overtakers = Some(1 + rule.below(u64::from(MAX_OVERTAKERS)) as u32);
                    }
                }
                // Not here.
                FaultAction::Refuse(_) => {}
            }
        }
        fate
    }

    /// Damages and marks a frame as the rules want whose bits are set.
    fn change(&mut self, frame: &mut [u8], parts: &Parts, changes: u64) {
        let chosen = self.rules.iter_mut().enumerate().filter(|(index, _)| changes >> index & 1 != 0);
        for (_, rule) in chosen {
            let within = match rule.fault.rule.action {
                FaultAction::Corrupt => ETHERNET..frame.len(),
                FaultAction::CorruptPayload => parts.payload.clone(),
                FaultAction::CorruptIcrc => parts.icrc.clone(),
                _ => {
                    self.stats.marked.add(u64::from(mark_congestion(frame, parts.ip_at)));
                    continue;
                }
            };
            let Some(bytes) = frame.get_mut(within).filter(|bytes| !bytes.is_empty()) else { continue };
            let bit = rule.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.stats.corrupted.inc();
        }
    }

    /// The next frame that is due, or has to go because there are too many.
    pub(crate) fn next(&mut self, now: Instant) -> Option<P> {
        let now = if self.is_off() { FOREVER } else { now };
        self.let_go(now, |held| held.until <= now);
        let Reverse((due, _)) = self.queue.peek()?.key;
        if due > now {
            if self.len() <= self.room.capacity {
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
}

/// Whether a rule acts in an injector of this direction.
fn acts(direction: Direction, rule: &FaultRule) -> bool {
    rule.direction == direction && !matches!(rule.action, FaultAction::Refuse(_))
}

#[cfg(test)]
mod tests;
