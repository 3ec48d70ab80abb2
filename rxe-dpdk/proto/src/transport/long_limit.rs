//! How long messages give way to short ones.
//!
//! A port is a queue: what is written to it leaves in order, and many drivers do not tell when. With a few long messages in progress
//! a window of each queue pair waits in that queue, or in the peer's, and a short message waits behind all of them. So while
//! short messages are sent by a port, the bytes that its long messages have outstanding, in either direction, are limited: requests
//! that are not acknowledged, and responses to READs that have not arrived. The limit follows the round trips of the short
//! messages, as a window of delay-based congestion control does: it keeps them near a multiple of the shortest one that their queue
//! pair has measured. Without short messages there is no limit. All this is for reliable connections: nothing tells when unreliable
//! messages have arrived.
//!
//! A peer that never answers holds its bytes for two periods at most: then they are taken for lost, and until it answers or the
//! retransmission begins nothing more is sent to it.

use crate::time::{Duration, Instant};
use crate::wire::PortId;

use super::congestion_control::DelayControl;
use super::delay_window::DelayWindow;

/// How long the limit lasts after a short message, in nanoseconds.
const HOLD: u64 = 10_000_000;

/// Half of the time for which bytes of a peer that does not answer count, in nanoseconds.
const PERIOD: u64 = 2_000_000;

/// The round trip of a short message that is wanted, in shortest round trips.
const SHORTEST_ROUND_TRIPS: u64 = 3;

/// The limit's unit, which a short round trip adds: so little that many are measured before the limit has grown.
const UNIT: u64 = 128;

/// The least and the most, in units: 48 KiB and 1 MiB. The first round trips of a queue pair are measured with the least; fewer packets keep
/// two cores from working at the same time (docs/performance-notes.md).
const LEAST: u32 = 384;
const MOST: u32 = 8192;

/// What a queue pair has outstanding of a port's limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charge {
    pub(super) port: PortId,
    pub(super) packets: u64,
    mtu: u32,
    /// The period of its last progress.
    period: u64,
}

impl Charge {
    fn bytes(&self) -> u64 {
        self.packets * u64::from(self.mtu)
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

/// The limit of a port.
#[derive(Debug)]
pub(super) struct LongLimit {
    /// Bytes outstanding, with progress in this period and the one before.
    recent: u64,
    older: u64,
    period: u64,
    period_ends: Instant,
    limited_until: Instant,
    window: DelayWindow,
}

impl Default for LongLimit {
    fn default() -> LongLimit {
        LongLimit {
            recent: 0,
            older: 0,
            period: 2,
            period_ends: Instant::ZERO,
            limited_until: Instant::ZERO,
            window: DelayWindow::of(LEAST),
        }
    }
}

impl LongLimit {
    /// How the messages are mixed now.
    #[inline]
    pub(super) fn mix(&mut self, now: Instant) -> Mix {
        if self.recent | self.older == 0 && now >= self.limited_until { Mix::NoneLong } else { self.mix_of_some(now) }
    }

    #[inline(never)]
    fn mix_of_some(&mut self, now: Instant) -> Mix {
        if now >= self.period_ends {
            self.begin_period(now);
        }
        if now < self.limited_until { Mix::Limited } else { Mix::SomeLong }
    }

    #[cold]
    fn begin_period(&mut self, now: Instant) {
        (self.older, self.recent) = (self.recent, 0);
        if now >= self.period_ends.after(PERIOD) {
            self.older = 0;
            self.period += 1;
        }
        self.period += 1;
        self.period_ends = now.after(PERIOD);
    }

    /// When bytes of peers that do not answer may count no longer.
    pub(super) fn expires(&self) -> Instant {
        self.period_ends
    }

    /// A queue pair without long messages outstanding has sent a short one.
    pub(super) fn short_sent(&mut self, now: Instant) {
        if self.recent | self.older > 0 {
            self.limited_until = now.after(HOLD);
        }
    }

    /// A short message was answered after `round_trip`; the shortest time that its queue pair has measured is `shortest`. In
    /// nanoseconds.
    pub(super) fn short_answered(&mut self, now: Instant, round_trip: u64, shortest: u64) {
        if self.recent + self.older > self.limit() {
            // What was sent before there was a limit: the round trip tells nothing about the limit.
            return;
        }
        let target = Duration::from_nanos(shortest.saturating_mul(SHORTEST_ROUND_TRIPS));
        self.window.measured(&DelayControl { target, scaling: Duration::ZERO }, now, round_trip, MOST);
    }

    /// Bytes that may be outstanding.
    fn limit(&self) -> u64 {
        u64::from(self.window.packets().max(LEAST)) * UNIT
    }

    /// Whether more may be outstanding.
    pub(super) fn has_room(&self) -> bool {
        self.recent + self.older < self.limit()
    }

    /// Packets of `mtu` bytes that a queue pair may send now: at most half of the limit, so that the peer can answer one half while the
    /// other one is sent.
    pub(super) fn room(&self, mtu: u32) -> u32 {
        let limit = self.limit();
        let left = limit.saturating_sub(self.recent + self.older);
        if left == 0 { 0 } else { (left.min(limit / 2) / u64::from(mtu)).max(1) as u32 }
    }

    /// Whether `charge` counts no longer, as the peer does not answer.
    pub(super) fn has_expired(&self, charge: Charge) -> bool {
        charge.packets > 0 && charge.period + 1 < self.period
    }

    /// `charge` counts no longer.
    pub(super) fn release(&mut self, charge: Charge) {
        if charge.period == self.period {
            self.recent -= charge.bytes();
        } else if charge.period + 1 == self.period {
            self.older -= charge.bytes();
        }
    }

    /// Changes a charge of the present period to `packets`; false, without a change, if it is of another one. It counts for the port that it
    /// was made for.
    #[inline]
    pub(super) fn change(&mut self, now: Instant, charge: &mut Charge, packets: u64) -> bool {
        let is_present = charge.period == self.period && now < self.period_ends && charge.packets > 0;
        if is_present {
            self.recent = self.recent + packets * u64::from(charge.mtu) - charge.bytes();
            charge.packets = packets;
        }
        is_present
    }

    /// Counts `packets` of `mtu` bytes that a queue pair has outstanding, in place of its `last` charge, which was released. `progress`:
    /// its peer has answered since.
    pub(super) fn charge(
        &mut self,
        now: Instant,
        (port, packets, mtu): (PortId, u64, u32),
        last: Charge,
        progress: bool,
    ) -> Charge {
        if now >= self.period_ends {
            self.begin_period(now);
        }
        let stays = !progress && last.packets > 0 && last.period + 1 == self.period;
        let period = if stays { last.period } else { self.period };
        let charge = Charge { port, packets, mtu, period };
        *(if stays { &mut self.older } else { &mut self.recent }) += charge.bytes();
        charge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(0);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1_000 * micros)
    }

    /// A limit, `packets` of 4096 bytes outstanding, and a short message sent at 100 us.
    fn limited(packets: u64) -> (LongLimit, Charge) {
        let mut limit = LongLimit::default();
        let charge = limit.charge(at(100), (PORT, packets, 4096), Charge::default(), false);
        assert_eq!(limit.mix(at(100)), Mix::SomeLong);
        limit.short_sent(at(100));
        (limit, charge)
    }

    #[test]
    fn a_short_message_begins_a_limit_that_ends() {
        let (mut limit, charge) = limited(1);
        assert_eq!(limit.mix(at(100)), Mix::Limited);
        limit.release(charge);
        assert_eq!(limit.mix(at(10_099)), Mix::Limited, "also while nothing is outstanding");
        limit.short_sent(at(10_099));
        assert_eq!(limit.mix(at(10_100)), Mix::NoneLong, "short messages alone need none");
    }

    #[test]
    fn room_is_half_of_the_limit_and_what_is_left_of_it() {
        let (mut limit, charge) = limited(1);
        assert_eq!((limit.room(4096), limit.room(1024), limit.room(256)), (6, 24, 96));
        limit.release(charge);
        let charge = limit.charge(at(100), (PORT, 11, 4096), charge, true);
        assert_eq!((limit.room(4096), limit.room(1024)), (1, 4));
        limit.release(charge);
        limit.charge(at(100), (PORT, 12, 4096), charge, true);
        assert_eq!((limit.has_room(), limit.room(256)), (false, 0));
    }

    #[test]
    fn the_limit_follows_the_round_trip_of_short_messages() {
        let (mut limit, _) = limited(1);
        let steps = |limit: &mut LongLimit, round_trip: u64, count: u64| {
            (0..count).for_each(|n| limit.short_answered(at(200 + 2_000 * n), round_trip, 2_000));
            limit.limit()
        };
        assert_eq!(steps(&mut limit, 5_000, 800), 148 * 1024);
        assert!(steps(&mut limit, 10_000, 1) < 110 * 1024);
        assert_eq!(steps(&mut limit, 1_000_000, 100), 48 * 1024);
        assert_eq!(steps(&mut limit, 5_000, 9_000), 1024 * 1024);
        let charge = limit.charge(at(1_000_000), (PORT, 1_000, 4096), Charge::default(), true);
        assert_eq!(steps(&mut limit, 1_000_000, 10), 1024 * 1024, "more is outstanding than the limit allows");
        limit.release(charge);
    }

    #[test]
    fn bytes_of_a_silent_peer_count_for_two_periods() {
        let (mut limit, silent) = limited(12);
        let mut other = Charge::default();
        for millis in 0..4 {
            limit.release(other);
            other = limit.charge(at(100 + 1_000 * millis), (PORT, 1, 4096), other, true);
            assert!(!limit.has_expired(silent) && !limit.has_expired(other));
            assert!(!limit.has_room());
        }
        limit.mix(at(4_100));
        assert!(limit.has_expired(silent) && !limit.has_expired(other));
        assert_eq!(limit.room(4096), 6);
        // It has no effect any more.
        limit.release(silent);
        assert_eq!(limit.room(4096), 6);
        // What it sends next counts.
        let silent = limit.charge(at(4_100), (PORT, 11, 4096), silent, false);
        assert!(!limit.has_room() && !limit.has_expired(silent));
        // Nothing at all for a long time.
        limit.mix(at(100_000));
        assert!(limit.has_expired(silent) && limit.has_expired(other));
        assert_eq!(limit.mix(at(100_000)), Mix::NoneLong);
    }
}
