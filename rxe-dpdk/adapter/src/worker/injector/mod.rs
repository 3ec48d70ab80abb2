//! Fault injection between a port and a worker: frames are dropped, duplicated, reordered, delayed, corrupted and
//! CE-marked, as rules and their seeds decide.
//!
//! An [`Injector`] serves one direction of one worker's queue of one port. A frame enters by
//! [`accept`](Injector::accept) and leaves by [`next`](Injector::next) when it is due. Where frames are classified anyway, the
//! rules are applied to them first ([`judge`](Injector::judge)), and those that pass unchanged need not enter. Between two
//! turns an injector holds at most [`Room::capacity`] frames; if there are more, the earliest leave before they are due.
//! Requests are refused by [`Refusals`], at the worker that owns their queue pair.

mod list;
mod refusals;
mod rule;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rxe_proto::wire::{DropReason, Frame, PortId, RocePacket, classify, mark_congestion};
use rxe_proto::{Duration, Instant, counters};

pub use list::Faults;
pub use list::{ActiveFault, MAX_FAULTS};
use list::{RuleState, rule_states};
pub use refusals::Refusals;
pub use rule::{Direction, FaultAction, FaultMatch, FaultRule, FaultScope, Probability, PsnRange, nak_name};

counters! {
    /// Fault injection in one direction.
    /// `frames` + `out_of_scope` + `duplicated` = `dropped` + `delivered` + the frames held at the moment.
    pub struct FaultStats {
        /// Frames that rules apply to.
        frames,
        /// Frames passed because no rule applies to their kind.
        out_of_scope,
        /// Frames dropped.
        dropped,
        /// Copies made.
        duplicated,
        /// Frames not duplicated because no buffer was free.
        not_duplicated,
        /// Frames held back until later ones have passed.
        reordered,
        /// Frames with a bit flipped.
        corrupted,
        /// Frames marked "congestion experienced".
        marked,
        /// Frames delayed.
        delayed,
        /// Frames and copies released, to the worker or to the port.
        delivered,
        /// Those of them released before they were due, to make room.
        released_early,
        /// Frames refused to the worker because the injector or the pool was full; the worker sends them later (back-pressure).
        stalled,
        /// Requests refused, by NAK or RNR NAK; no part of the sum above.
        refused,
    }
}

/// Maximum number of frames that an injector may hold. Its port's pool has buffers for as many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Most frames held between two turns.
    pub capacity: usize,
    /// Most frames accepted between two rounds of [`Injector::next`].
    pub batch: usize,
}

impl Room {
    /// For rules known at start.
    pub const WIDE: Room = Room { capacity: 1024, batch: 256 };
    /// Reserved up front for rules added at run time.
    pub const NARROW: Room = Room { capacity: 256, batch: 64 };

    /// Most buffers that one injector holds: every frame of a batch may be duplicated.
    pub const fn max_held(self) -> usize {
        self.capacity + 2 * self.batch
    }
}

/// A time at which every frame is due.
pub const FOREVER: Instant = Instant::from_nanos(u64::MAX);

/// A reordered frame is overtaken by at most this many later ones.
const MAX_OVERTAKERS: u32 = 4;

/// How long a reordered frame waits if no later frame arrives.
const PATIENCE: Duration = Duration::from_millis(1);

/// Bytes of the Ethernet header, which is never corrupted: other stations must not receive the frame.
const ETHERNET: usize = 14;

/// A frame that an injector can hold.
pub trait Packet: Sized {
    /// The frame.
    fn bytes(&self) -> &[u8];
    /// The frame, for corruption.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// A copy; `None` if no buffer is free.
    fn try_copy(&self) -> Option<Self>;
}

/// A queued frame, ordered by due time, then by number.
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

/// A reordered frame: it waits for `overtakers` later ones, at most until `until`, and is then delayed by `late`.
struct HeldBack<P> {
    overtakers: u32,
    until: Instant,
    late: Duration,
    packet: P,
}

/// Offsets of the parts of a RoCE packet in its frame.
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

/// What the rules that drop frames leave to be decided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Nothing: the frame is dropped.
    Dropped,
    /// Nothing: no other rule applies to it.
    Unchanged,
    /// The other rules have to be applied.
    Open,
}

/// The decision of the other rules about a frame.
#[derive(Default)]
struct Verdict {
    /// The frame is duplicated; the delay of the copy.
    copy: Option<Duration>,
    /// A bit for each rule that corrupts or marks the frame.
    changes: u64,
    late: Duration,
    /// The frame is reordered behind this many later ones.
    overtakers: Option<u32>,
}

impl Verdict {
    fn changes_nothing(&self) -> bool {
        self.changes == 0 && self.late.is_zero() && self.copy.is_none() && self.overtakers.is_none()
    }
}

/// The decision about a frame.
pub enum Judged {
    /// It passes unchanged, and has passed.
    Passes,
    /// It is dropped.
    Dropped,
    /// It enters the injector.
    Enters(Entry),
}

/// How a frame enters the injector.
pub struct Entry {
    verdict: Verdict,
    parts: Parts,
}

impl Entry {
    /// For a frame that was classified so.
    #[cold]
    fn new(verdict: Verdict, classified: &Result<Frame<'_>, DropReason>) -> Entry {
        Entry { verdict, parts: roce(classified).map(Parts::of).unwrap_or_default() }
    }
}

/// The RoCE packet, if it is one.
fn roce<'c, 'f>(classified: &'c Result<Frame<'f>, DropReason>) -> Option<&'c RocePacket<'f>> {
    match classified {
        Ok(Frame::Roce(packet)) => Some(packet),
        _ => None,
    }
}

/// See the module.
pub struct Injector<P> {
    worker: usize,
    port: PortId,
    direction: Direction,
    /// In the order of their actions, at most [`MAX_FAULTS`].
    rules: Vec<RuleState>,
    /// The first rules, which drop frames.
    drops: usize,
    /// Whether a rule may apply to frames that are no RoCE packets.
    takes_all: bool,
    room: Room,
    /// Bytes at the beginning of a frame that no rule corrupts.
    protected: usize,
    /// The frames that no rule delays, in order.
    undelayed: VecDeque<Waiting<P>>,
    /// The others.
    delayed: BinaryHeap<Waiting<P>>,
    /// At most [`MAX_OVERTAKERS`] from one frame to the next.
    held_back: Vec<HeldBack<P>>,
    /// Number of the next frame.
    number: u64,
    stats: Arc<FaultStats>,
}

impl<P: Packet> Injector<P> {
    /// An injector without rules, for one direction of worker number `worker`'s queue of `port`.
    pub fn new(direction: Direction, worker: usize, port: PortId, room: Room, stats: Arc<FaultStats>) -> Injector<P> {
        Injector {
            worker,
            port,
            direction,
            rules: Vec::new(),
            drops: 0,
            takes_all: false,
            room,
            protected: ETHERNET,
            undelayed: VecDeque::with_capacity(room.max_held()),
            delayed: BinaryHeap::with_capacity(room.max_held()),
            held_back: Vec::with_capacity(MAX_OVERTAKERS as usize + 1),
            number: 0,
            stats,
        }
    }

    /// The same for frames whose first `headers` bytes are no part of what is sent, but say where to.
    pub fn with_headers(self, headers: usize) -> Injector<P> {
        Injector { protected: headers, ..self }
    }

    /// Whether one of `faults` acts in this direction.
    pub fn is_wanted(direction: Direction, faults: &[Arc<ActiveFault>]) -> bool {
        faults.iter().any(|fault| acts(direction, &fault.rule))
    }

    /// Replaces the rules. Without a rule for this injector, every frame that it holds is due.
    pub fn set_rules(&mut self, faults: &[Arc<ActiveFault>]) {
        let (before, direction) = (std::mem::take(&mut self.rules), self.direction);
        self.rules = rule_states(before, faults, |rule| acts(direction, rule), self.worker, Some(self.port));
        self.drops = self.rules.partition_point(|rule| rule.fault.rule.action == FaultAction::Drop);
        self.takes_all = self.rules.iter().any(|rule| rule.fault.rule.matches.scope == FaultScope::All);
    }

    /// Whether there is no rule.
    pub fn is_off(&self) -> bool {
        self.rules.is_empty()
    }

    /// Number of held frames.
    pub fn held(&self) -> usize {
        self.undelayed.len() + self.delayed.len() + self.held_back.len()
    }

    /// Maximum numbers of frames that the injector holds and accepts.
    pub fn room(&self) -> Room {
        self.room
    }

    /// Counters of the injector.
    pub fn stats(&self) -> &FaultStats {
        &self.stats
    }

    /// Applies the rules to a frame and queues it. Returns false if it was dropped.
    pub fn accept(&mut self, now: Instant, packet: P) -> bool {
        let frame = packet.bytes();
        let classified = classify(frame);
        let fate = self.decide(roce(&classified));
        if fate == Fate::Dropped {
            return false;
        }
        let verdict = self.verdict(fate, frame.len(), roce(&classified));
        let entry = Entry::new(verdict, &classified);
        self.enter(now, packet, entry);
        true
    }

    /// Applies the rules to the next frame, which was classified.
    #[inline]
    pub fn judge(&mut self, frame: &[u8], classified: &Result<Frame<'_>, DropReason>) -> Judged {
        match self.decide(roce(classified)) {
            Fate::Dropped => Judged::Dropped,
            Fate::Unchanged if self.held() == 0 => {
                self.stats.delivered.inc();
                Judged::Passes
            }
            fate => self.judge_further(fate, frame, classified),
        }
    }

    /// As [`judge`](Self::judge), for a frame that no rule drops.
    fn judge_further(&mut self, fate: Fate, frame: &[u8], classified: &Result<Frame<'_>, DropReason>) -> Judged {
        let verdict = self.verdict(fate, frame.len(), roce(classified));
        if verdict.changes_nothing() && self.held() == 0 {
            self.stats.delivered.inc();
            return Judged::Passes;
        }
        Judged::Enters(Entry::new(verdict, classified))
    }

    /// Queues a frame as was decided.
    pub fn enter(&mut self, now: Instant, mut packet: P, Entry { verdict, parts }: Entry) {
        // Copied before corruption: the copy stays intact.
        let copy = verdict.copy.and_then(|late| Some((late, self.copy(&packet)?)));
        if verdict.changes != 0 {
            self.change(packet.bytes_mut(), &parts, verdict.changes);
        }
        let earlier = self.held_back.len();
        if let Some(overtakers) = verdict.overtakers {
            self.stats.reordered.inc();
            self.held_back.push(HeldBack { overtakers, until: now + PATIENCE, late: verdict.late, packet });
        } else {
            self.enqueue(now, verdict.late, packet);
        }
        if let Some((late, copy)) = copy {
            self.enqueue(now, late, copy);
        }
        for held in &mut self.held_back[..earlier] {
            held.overtakers -= 1;
        }
        self.release(now, |held| held.overtakers == 0);
    }

    /// Applies the rules that drop frames.
    #[inline]
    fn decide(&mut self, roce: Option<&RocePacket<'_>>) -> Fate {
        if roce.is_none() && !self.takes_all {
            self.stats.out_of_scope.inc();
            return Fate::Unchanged;
        }
        self.stats.frames.inc();
        if self.rules.iter_mut().take(self.drops).any(|rule| rule.hits(roce, true)) {
            self.stats.dropped.inc();
            return Fate::Dropped;
        }
        if self.drops == self.rules.len() { Fate::Unchanged } else { Fate::Open }
    }

    /// Applies the other rules to a frame of `len` bytes.
    fn verdict(&mut self, fate: Fate, len: usize, roce: Option<&RocePacket<'_>>) -> Verdict {
        let mut verdict = Verdict::default();
        if fate != Fate::Open {
            return verdict;
        }
        for (index, rule) in self.rules.iter_mut().enumerate().skip(self.drops) {
            match rule.fault.rule.action {
                FaultAction::Duplicate => {
                    if verdict.copy.is_none() && rule.hits(roce, true) {
                        verdict.copy = Some(Duration::ZERO);
                    }
                }
                FaultAction::Corrupt => verdict.changes |= u64::from(rule.hits(roce, len > self.protected)) << index,
                FaultAction::CorruptPayload => {
                    let has_payload = roce.is_some_and(|roce| !roce.payload_range().is_empty());
                    verdict.changes |= u64::from(rule.hits(roce, has_payload)) << index;
                }
                FaultAction::CorruptIcrc | FaultAction::Ecn => {
                    verdict.changes |= u64::from(rule.hits(roce, roce.is_some())) << index;
                }
                FaultAction::Delay { delay, jitter } => {
                    for late in std::iter::once(&mut verdict.late).chain(&mut verdict.copy) {
                        if rule.hits(roce, true) {
                            self.stats.delayed.inc();
                            let jitter = u64::try_from(jitter.as_nanos()).unwrap_or(u64::MAX - 1);
                            *late += delay + Duration::from_nanos(rule.below(jitter + 1));
                        }
                    }
                }
                FaultAction::Reorder => {
                    if verdict.overtakers.is_none() && rule.hits(roce, true) {
                        verdict.overtakers = Some(1 + rule.below(u64::from(MAX_OVERTAKERS)) as u32);
                    }
                }
                // Evaluated before; applied by `Refusals`.
                FaultAction::Drop | FaultAction::Refuse(_) => {}
            }
        }
        verdict
    }

    /// Applies the corrupting and marking rules whose bits are set.
    fn change(&mut self, frame: &mut [u8], parts: &Parts, changes: u64) {
        let chosen = self.rules.iter_mut().enumerate().filter(|(index, _)| changes >> index & 1 != 0);
        for (_, rule) in chosen {
            let within = match rule.fault.rule.action {
                FaultAction::Corrupt => self.protected..frame.len(),
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

    /// The next frame that is due, or that must leave because there are too many.
    pub fn next(&mut self, now: Instant) -> Option<P> {
        let now = if self.is_off() { FOREVER } else { now };
        self.release(now, |held| held.until <= now);
        // The greater one is due earlier.
        let is_delayed = match (self.undelayed.front(), self.delayed.peek()) {
            (Some(undelayed), Some(delayed)) => delayed > undelayed,
            (undelayed, _) => undelayed.is_none(),
        };
        let next = if is_delayed { self.delayed.peek() } else { self.undelayed.front() };
        let Reverse((due, _)) = next?.key;
        if due > now {
            if self.held() <= self.room.capacity {
                return None;
            }
            self.stats.released_early.inc();
        }
        self.stats.delivered.inc();
        let next = if is_delayed { self.delayed.pop() } else { self.undelayed.pop_front() };
        next.map(|waiting| waiting.packet)
    }

    /// Queues the reordered frames that have waited long enough.
    fn release(&mut self, now: Instant, enough: impl Fn(&HeldBack<P>) -> bool) {
        while let Some(index) = self.held_back.iter().position(&enough) {
            let held = self.held_back.remove(index);
            self.enqueue(now, held.late, held.packet);
        }
    }

    fn enqueue(&mut self, now: Instant, late: Duration, packet: P) {
        let waiting = Waiting { key: Reverse((now + late, self.number)), packet };
        if late.is_zero() {
            self.undelayed.push_back(waiting);
        } else {
            self.delayed.push(waiting);
        }
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
