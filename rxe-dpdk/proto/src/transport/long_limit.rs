//! How long messages give way to short ones.
//!
//! A port is a queue: what is written to it leaves in order, and many drivers do not tell when. With a few long messages in progress
//! a window of each queue pair waits in that queue, or in the peer's, and a short message waits behind all of them. So while
//! short messages are sent by a port, the bytes that its long messages have outstanding are limited, in each direction: requests
//! that are not acknowledged, and responses to READs that have not arrived. Without short messages there is no limit. All this is
//! for reliable connections: nothing tells when unreliable messages have arrived.
//!
//! The limit begins with what is outstanding, and follows the round trips of the short messages. One beyond three of the shortest that its
//! queue pair has measured lowers the limit in proportion; a shorter one raises it where something had to wait for it. A round trip
//! counts when its message was sent after the limit was last changed and kept. So the limit costs nothing where a long
//! round trip is that of the path, and where it costs something, that was waiting time of short messages.
//!
//! A queue pair that has measured beside long messages only does not know a long round trip from a long queue. For its first message the limit is
//! the lowest one, from which it grows again; such probes are rare enough to cost little.
//!
//! A peer that does not answer must not use up the limit: when nothing was answered for a while and a queue pair waits,
//! what is outstanding counts no longer.

use crate::time::Instant;

/// How long the limit lasts after a short message, in nanoseconds; three round trips if that is longer.
const HOLD: u64 = 10_000_000;

/// Time without an answer after which what is outstanding is taken for lost, in nanoseconds; two round trips if that is longer.
const PATIENCE: u64 = 4_000_000;

/// Time in which what is outstanding comes down to a lowered limit, or its round trips count all the same: a long READ that was
/// requested before cannot be taken back. In nanoseconds.
const SETTLING: u64 = 20_000_000;

/// The same for a probe, which a round trip behind a queue would teach that the queue is the path. What is outstanding keeps the line
/// busy meanwhile.
const PROBE_SETTLING: u64 = 1_000_000_000;

/// The round trip of a short message that is wanted, in shortest round trips.
const SHORTEST_ROUND_TRIPS: u64 = 3;

/// The lowest limit in bytes: fewer packets keep two cores from working at the same time (docs/performance-notes.md).
const LEAST: u64 = 48 << 10;

/// Far above what any port can have outstanding.
const MOST: u64 = 1 << 40;

/// Time between two probes, in times that the last one took.
const PROBE_PAUSE: u64 = 30;

/// The two directions of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// SENDs and WRITEs.
    Out,
    /// Responses to READs.
    In,
}

/// Bytes of long messages that are outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Outstanding {
    pub(super) out: u64,
    pub(super) in_: u64,
}

impl Outstanding {
    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.out | self.in_ == 0
    }

    fn of(self, direction: Direction) -> u64 {
        match direction {
            Direction::Out => self.out,
            Direction::In => self.in_,
        }
    }

    fn min(self, other: Outstanding) -> Outstanding {
        Outstanding { out: self.out.min(other.out), in_: self.in_.min(other.in_) }
    }
}

/// Whether the messages of a port affect each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Mix {
    /// No long message is outstanding, and there is no limit.
    #[default]
    NoneLong,
    /// Some are, and there is no limit.
    SomeLong,
    /// There is a limit.
    Limited,
}

/// Packets of long messages that a queue pair may send in a turn, where they are limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LongBudget {
    /// Of SENDs and WRITEs.
    pub(super) out: u32,
    /// Responses to READs that may be requested.
    pub(super) in_: u32,
}

/// The limit of a port. See the module.
#[derive(Debug)]
pub(super) struct LongLimit {
    /// The sums of all queue pairs.
    outstanding: Outstanding,
    /// The part of it that is taken for lost.
    lost: Outstanding,
    /// When the sums last became less.
    answered_at: Instant,
    is_limited: bool,
    limited_until: Instant,
    /// Bytes that may be outstanding in a direction, while there is a limit.
    limit: u64,
    changed_at: Instant,
    /// Since when what is outstanding is within the limit, after it was changed.
    kept_since: Option<Instant>,
    /// A queue pair had to wait for the limit since it was changed.
    is_bound: bool,
    /// When the probe in progress began.
    probe: Option<Instant>,
    next_probe: Instant,
    /// The last round trip of a short message, in nanoseconds.
    round_trip: u64,
}

impl Default for LongLimit {
    fn default() -> LongLimit {
        LongLimit {
            outstanding: Outstanding::default(),
            lost: Outstanding::default(),
            answered_at: Instant::ZERO,
            is_limited: false,
            limited_until: Instant::ZERO,
            limit: MOST,
            changed_at: Instant::ZERO,
            kept_since: None,
            is_bound: false,
            probe: None,
            next_probe: Instant::ZERO,
            round_trip: 0,
        }
    }
}

impl LongLimit {
    /// Bytes outstanding.
    pub(super) fn outstanding(&self) -> Outstanding {
        self.outstanding
    }

    pub(super) fn has_long(&self) -> bool {
        !self.outstanding.is_none()
    }

    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// How the messages are mixed now. `waits`: a queue pair waits for the limit.
    #[inline]
    pub(super) fn mix(&mut self, now: Instant, waits: bool) -> Mix {
        if self.is_limited {
            self.mix_of_limited(now, waits)
        } else if self.outstanding.is_none() {
            Mix::NoneLong
        } else {
            Mix::SomeLong
        }
    }

    #[cold]
    fn mix_of_limited(&mut self, now: Instant, waits: bool) -> Mix {
        if now >= self.limited_until {
            self.is_limited = false;
            self.probe = None;
            return if self.outstanding.is_none() { Mix::NoneLong } else { Mix::SomeLong };
        }
        if waits && now >= self.lost_at() {
            self.lost = self.outstanding;
            self.answered_at = now;
        }
        if self.kept_since.is_none() {
            self.settled_late(now);
        }
        Mix::Limited
    }

    /// More is outstanding than the limit since it was changed.
    fn settled_late(&mut self, now: Instant) {
        match self.probe {
            None if now >= self.changed_at.after(SETTLING) => self.kept_since = Some(now),
            // It has failed.
            Some(began) if now >= began.after(PROBE_SETTLING) => self.end_probe(now, began),
            _ => {}
        }
    }

    fn end_probe(&mut self, now: Instant, began: Instant) {
        self.probe = None;
        self.next_probe = now.after(PROBE_PAUSE * now.nanos_since(began));
    }

    /// When what is outstanding will be taken for lost, if nothing is answered.
    fn lost_at(&self) -> Instant {
        self.answered_at.after(PATIENCE.max(2 * self.round_trip))
    }

    /// When queue pairs that wait for the limit may go on even if no packet arrives.
    pub(super) fn expires(&self) -> Instant {
        self.limited_until.min(self.lost_at())
    }

    /// A queue pair's part of the sums changes from `before` to `after`.
    pub(super) fn settle(&mut self, now: Instant, before: Outstanding, after: Outstanding) {
        if after.out < before.out || after.in_ < before.in_ {
            self.answered_at = now;
        }
        self.outstanding.out = self.outstanding.out + after.out - before.out;
        self.outstanding.in_ = self.outstanding.in_ + after.in_ - before.in_;
        self.lost = self.lost.min(self.outstanding);
        if self.kept_since.is_none() && self.is_kept() {
            self.kept_since = Some(now);
        }
    }

    /// What is outstanding and not taken for lost.
    fn counted(&self, direction: Direction) -> u64 {
        self.outstanding.of(direction) - self.lost.of(direction)
    }

    fn is_kept(&self) -> bool {
        self.counted(Direction::Out) <= self.limit && self.counted(Direction::In) <= self.limit
    }

    /// Whether long messages may be sent in a direction.
    #[cfg(test)]
    pub(super) fn has_room(&self, direction: Direction) -> bool {
        !self.is_limited || self.counted(direction) < self.limit
    }

    /// Whether a queue pair that waits may go on in a direction: with a quarter of the limit, so that all get as much.
    pub(super) fn has_room_again(&self, direction: Direction) -> bool {
        !self.is_limited || self.counted(direction) + self.limit / 4 <= self.limit
    }

    /// Packets of `mtu` bytes that a queue pair may send now: at most half of the limit, so that the peer can answer one half while the
    /// other one is sent.
    pub(super) fn budget(&self, mtu: u32) -> LongBudget {
        let packets = |direction| {
            let left = self.limit.saturating_sub(self.counted(direction));
            let packets = (left.min(self.limit / 2) / u64::from(mtu)).max(u64::from(left > 0));
            u32::try_from(packets).unwrap_or(u32::MAX)
        };
        LongBudget { out: packets(Direction::Out), in_: packets(Direction::In) }
    }

    /// A queue pair has used up its budget.
    pub(super) fn bind(&mut self) {
        self.is_bound = true;
    }

    /// A queue pair without long messages outstanding has sent a short one. `knows_path`: it has measured a round trip
    /// while no long message was under way, or in a probe. `mean` is its mean round trip, in nanoseconds, or 0.
    pub(super) fn short_sent(&mut self, now: Instant, knows_path: bool, mean: u64) {
        if !self.is_limited {
            if self.outstanding.is_none() {
                return;
            }
            self.is_limited = true;
            self.answered_at = now;
            self.limit = self.limit.min(self.outstanding.out.max(self.outstanding.in_).max(LEAST));
            self.changed(now);
        }
        self.limited_until = now.after(HOLD.max(3 * self.round_trip.max(mean)));
        if !knows_path && self.probe.is_none() && now >= self.next_probe {
            self.probe = Some(now);
            self.limit = LEAST;
            self.changed(now);
        }
    }

    fn changed(&mut self, now: Instant) {
        self.changed_at = now;
        self.is_bound = false;
        self.kept_since = self.is_kept().then_some(now);
    }

    /// A short message was answered after `round_trip`; the shortest time that its queue pair has measured is `shortest`. In
    /// nanoseconds. Returns whether that ends a probe: the round trip is that of the path.
    pub(super) fn short_answered(&mut self, now: Instant, round_trip: u64, shortest: u64) -> bool {
        self.round_trip = round_trip;
        if !self.is_limited || self.kept_since.is_none_or(|since| now.nanos_since(since) < round_trip) {
            return false;
        }
        let probe = self.probe;
        if let Some(began) = probe {
            self.end_probe(now, began);
        }
        let target = shortest.saturating_mul(SHORTEST_ROUND_TRIPS).max(1);
        if round_trip > target {
            let share = u128::from(self.limit) * u128::from(target) / u128::from(round_trip);
            self.limit = (share as u64).max(self.limit / 4).max(LEAST);
            self.changed(now);
        } else if self.is_bound {
            // Up to half of what is wanted, the path makes up most of the round trip.
            let step = if 2 * round_trip <= target { self.limit } else { self.limit / 8 };
            self.limit = (self.limit + step).min(MOST);
            self.changed(now);
        }
        probe.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1_000 * micros)
    }

    fn out(bytes: u64) -> Outstanding {
        Outstanding { out: bytes, in_: 0 }
    }

    /// A limit, and `bytes` outstanding when the first short message is sent, at 100 us, by a queue pair that has measured.
    fn limited(bytes: u64) -> LongLimit {
        let mut limit = LongLimit::default();
        limit.settle(at(100), Outstanding::default(), out(bytes));
        assert_eq!(limit.mix(at(100), false), Mix::SomeLong);
        limit.short_sent(at(100), true, 0);
        limit
    }

    #[test]
    fn a_short_message_begins_a_limit_that_ends() {
        let mut limit = limited(4096);
        assert_eq!(limit.mix(at(100), false), Mix::Limited);
        limit.settle(at(100), out(4096), out(0));
        assert_eq!(limit.mix(at(10_099), false), Mix::Limited, "also while nothing is outstanding");
        assert_eq!(limit.mix(at(10_100), false), Mix::NoneLong);
        limit.short_sent(at(10_100), true, 0);
        assert_eq!(limit.mix(at(10_100), false), Mix::NoneLong, "short messages alone need none");
        let mut limit = limited(4096);
        limit.short_sent(at(200), true, 34_000_000);
        assert_eq!(limit.mix(at(102_199), false), Mix::Limited, "three round trips");
        assert_eq!(limit.mix(at(102_200), false), Mix::SomeLong);
    }

    #[test]
    fn the_budget_is_half_of_the_limit_and_what_is_left_of_it_in_each_direction() {
        let mut limit = limited(4096);
        assert_eq!(limit.limit, LEAST);
        assert_eq!((limit.budget(4096).out, limit.budget(1024).out, limit.budget(256).in_), (6, 24, 96));
        limit.settle(at(101), out(4096), Outstanding { out: 11 * 4096, in_: 1 << 30 });
        assert_eq!(limit.budget(4096), LongBudget { out: 1, in_: 0 });
        assert_eq!(
            (limit.budget(1024).out, limit.has_room(Direction::Out), limit.has_room(Direction::In)),
            (4, true, false)
        );
        limit.settle(at(102), Outstanding { out: 11 * 4096, in_: 1 << 30 }, out(12 * 4096 - 1));
        assert_eq!(limit.budget(4096), LongBudget { out: 1, in_: 6 }, "a part of a packet is room for one");
    }

    #[test]
    fn a_long_round_trip_lowers_the_limit_when_it_was_kept_and_a_short_one_raises_it_when_it_was_needed() {
        let mut limit = limited(1 << 20);
        assert_eq!(limit.limit, 1 << 20, "it begins with what is outstanding");
        limit.short_answered(at(200), 100_000, 20_000);
        assert_eq!(limit.limit, (1 << 20) * 6 / 10, "three of 20 us are wanted");
        limit.short_answered(at(300), 90_000, 20_000);
        assert_eq!(limit.limit, (1 << 20) * 6 / 10, "more is outstanding than that");
        limit.settle(at(310), out(1 << 20), out(1 << 19));
        limit.short_answered(at(380), 90_000, 20_000);
        assert_eq!(limit.limit, (1 << 20) * 6 / 10, "it was sent before");
        limit.short_answered(at(400), 90_000, 20_000);
        assert_eq!(limit.limit, (1 << 20) * 6 / 10 * 2 / 3);
        limit.settle(at(401), out(1 << 19), out(100_000));
        limit.short_answered(at(440), 30_000, 20_000);
        let unbound = limit.limit;
        assert_eq!(unbound, (1 << 20) * 6 / 10 * 2 / 3, "nothing waited for it");
        limit.bind();
        limit.short_answered(at(480), 31_000, 20_000);
        assert_eq!(limit.limit, unbound + unbound / 8);
        limit.bind();
        limit.short_answered(at(520), 30_000, 20_000);
        assert_eq!(limit.limit, 2 * (unbound + unbound / 8), "most of that is the path");
        limit.settle(at(530), out(100_000), out(1_000));
        for n in 0..40 {
            limit.short_answered(at(2_000 * (1 + n)), 1_000_000, 20_000);
        }
        assert_eq!(limit.limit, LEAST);
    }

    #[test]
    fn a_queue_pair_that_knows_path_nothing_measures_with_the_lowest_limit_but_not_all_the_time() {
        let mut limit = limited(1 << 22);
        limit.short_sent(at(200), false, 0);
        assert_eq!((limit.limit, limit.has_room(Direction::Out)), (LEAST, false));
        limit.settle(at(1_000), out(1 << 22), out(10_000));
        limit.bind();
        limit.short_answered(at(1_200), 200_000, 200_000);
        assert_eq!(limit.limit, 2 * LEAST);
        // The probe took 1 ms.
        limit.short_sent(at(31_199), false, 0);
        assert_eq!(limit.limit, 2 * LEAST);
        limit.short_sent(at(31_200), false, 0);
        assert_eq!(limit.limit, LEAST);
    }

    #[test]
    fn what_is_not_answered_for_a_while_counts_no_longer_if_something_waits() {
        let mut limit = limited(LEAST);
        for millis in 1..4 {
            limit.short_sent(at(1_000 * millis), true, 0);
            assert_eq!((limit.mix(at(1_000 * millis), true), limit.has_room(Direction::Out)), (Mix::Limited, false));
        }
        assert_eq!(limit.expires(), at(4_100));
        limit.mix(at(4_100), false);
        assert!(!limit.has_room(Direction::Out), "nothing waits");
        limit.mix(at(4_100), true);
        assert_eq!(limit.budget(4096).out, 6);
        // Another queue pair's bytes count, and then it is answered.
        limit.settle(at(4_200), out(0), out(11 * 4096));
        assert_eq!(limit.budget(4096).out, 1);
        limit.settle(at(4_300), out(11 * 4096), out(0));
        assert_eq!(limit.budget(4096).out, 6);
        // The silent peer answers, and is sent as much again.
        limit.settle(at(4_400), out(LEAST), out(0));
        limit.settle(at(4_500), out(0), out(LEAST));
        assert!(!limit.has_room(Direction::Out));
    }

    #[test]
    fn a_read_that_was_requested_whole_does_not_keep_the_limit_from_changing_for_ever() {
        let mut limit = limited(4096);
        limit.settle(at(100), out(4096), Outstanding { out: 4096, in_: 1 << 26 });
        limit.short_answered(at(200), 100_000, 1_000);
        limit.short_sent(at(10_000), true, 0);
        limit.mix(at(10_000), false);
        assert_eq!(limit.kept_since, None);
        limit.short_sent(at(20_199), true, 0);
        limit.mix(at(20_199), false);
        assert_eq!(limit.kept_since, None);
        limit.mix(at(20_200), false);
        assert_eq!(limit.kept_since, Some(at(20_200)));
    }

    #[test]
    fn a_probe_measures_when_what_was_sent_before_has_arrived_or_fails() {
        let mut limit = limited(4096);
        limit.settle(at(100), out(4096), Outstanding { out: 4096, in_: 1 << 26 });
        limit.short_sent(at(100), false, 0);
        for millis in (10..1_000).step_by(5) {
            limit.short_sent(at(1_000 * millis), false, 0);
            limit.mix(at(1_000 * millis), false);
            assert!(!limit.short_answered(at(1_000 * millis), 500_000, 500_000), "behind the READ");
        }
        limit.short_sent(at(1_000_099), false, 0);
        limit.mix(at(1_000_099), false);
        assert!(limit.probe.is_some());
        limit.mix(at(1_000_100), false);
        assert_eq!((limit.probe, limit.next_probe), (None, at(31_000_100)));
        // Another one, and the READ has arrived.
        limit.settle(at(31_000_000), Outstanding { out: 4096, in_: 1 << 26 }, out(4096));
        limit.short_sent(at(31_000_100), false, 0);
        limit.short_sent(at(31_000_100), false, 0);
        assert!(limit.short_answered(at(31_000_200), 50_000, 50_000));
    }
}
