//! The reaction point of DCQCN: a rate that notifications lower, and that grows with time and with bytes sent.
//!
//! Between two notifications the rate first comes back, in steps that halve the distance, to what it was before the last
//! one (fast recovery), then grows by a constant per step (additive), and faster when both time and bytes give steps
//! (hyper). How much a notification lowers it follows from `alpha`, an estimate of the share of intervals with
//! notifications.

use crate::time::Instant;

use crate::transport::congestion_control::Dcqcn;

/// The congestion estimate of 1.
const ONE: u32 = 1 << 16;

/// Intervals without a call that count at most: a queue pair that sends nothing gains no rate.
const MAX_INTERVALS: u64 = 64;

/// The bits per second that a queue pair really sends, measured over a time of [`MEASURE`] or more.
#[derive(Debug)]
struct Throughput {
    since: Instant,
    bytes: u64,
    rate: Option<u64>,
}

/// Time over which the throughput is measured, in nanoseconds. After twice this time without a packet it is not known.
const MEASURE: u64 = 1_000_000;

impl Throughput {
    fn sent(&mut self, now: Instant, bytes: u64) {
        let elapsed = now.nanos_since(self.since);
        if elapsed >= MEASURE {
            let rate = u128::from(self.bytes) * 8 * 1_000_000_000 / u128::from(elapsed);
            self.rate = (elapsed < 2 * MEASURE).then_some(rate as u64);
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }
}

/// Rates in bits per second.
#[derive(Debug)]
pub(in crate::transport) struct ReactionPoint {
    rate: u64,
    /// What the rate returns to, or grows to.
    target: u64,
    alpha: u32,
    alpha_at: Instant,
    increase_at: Instant,
    throughput: Throughput,
    /// Bytes since the last step that bytes gave.
    bytes: u64,
    /// Steps since the last notification.
    steps_by_time: u8,
    steps_by_bytes: u8,
}

/// Takes the intervals that have passed from `at` on; `at` becomes the end of the present one.
fn elapsed(at: &mut Instant, now: Instant, interval: u64) -> u64 {
    if now < *at {
        return 0;
    }
    let passed = 1 + now.nanos_since(*at) / interval;
    *at = at.after(passed.saturating_mul(interval));
    passed.min(MAX_INTERVALS)
}

/// A larger one than this has no effect, as the estimate has 16 bits.
fn gain_shift(settings: &Dcqcn) -> u32 {
    settings.gain_shift.min(16)
}

/// Time that gives a step, in nanoseconds. Not less than a round trip, as what a step did shows no earlier: many queue pairs with a long
/// queue at a switch would else grow faster than its notifications cut them.
fn increase_interval(settings: &Dcqcn, round_trip: u64) -> u64 {
    nanos(settings.increase_interval).max(round_trip)
}

fn nanos(interval: crate::time::Duration) -> u64 {
    u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl ReactionPoint {
    /// The state before the first notification.
    pub(in crate::transport) fn new(settings: &Dcqcn, now: Instant) -> ReactionPoint {
        ReactionPoint {
            rate: settings.line_rate,
            target: settings.line_rate,
            alpha: ONE,
            alpha_at: now + settings.alpha_interval,
            increase_at: now + settings.increase_interval,
            throughput: Throughput { since: now, bytes: 0, rate: None },
            bytes: 0,
            steps_by_time: 0,
            steps_by_bytes: 0,
        }
    }

    /// The rate; `None` when it is no limit any more.
    pub(in crate::transport) fn rate(&self, settings: &Dcqcn) -> Option<u64> {
        (self.rate < settings.line_rate).then_some(self.rate)
    }

    /// Lowers the rate after a notification. `round_trip` as for [`advance`](Self::advance).
    pub(in crate::transport) fn notified(&mut self, settings: &Dcqcn, now: Instant, round_trip: u64) {
        self.advance(settings, now, round_trip);
        // A rate far above what is sent, as the window or the program limits that, would not be lowered by a cut.
        if let Some(sent) = self.throughput.rate {
            self.rate = self.rate.min(sent + sent / 4).max(settings.min_rate);
        }
        self.target = self.rate;
        let cut = (u128::from(self.rate) * u128::from(self.alpha) / u128::from(2 * ONE)) as u64;
        self.rate = (self.rate - cut).max(settings.min_rate);
        self.alpha += (ONE - self.alpha) >> gain_shift(settings);
        self.alpha_at = now + settings.alpha_interval;
        self.increase_at = now.after(increase_interval(settings, round_trip));
        self.bytes = 0;
        (self.steps_by_time, self.steps_by_bytes) = (0, 0);
    }

    /// Takes the steps that time has given, with round trips of `round_trip` nanoseconds.
    pub(in crate::transport) fn advance(&mut self, settings: &Dcqcn, now: Instant, round_trip: u64) {
        for _ in 0..elapsed(&mut self.alpha_at, now, nanos(settings.alpha_interval)) {
            self.alpha -= self.alpha >> gain_shift(settings);
        }
        for _ in 0..elapsed(&mut self.increase_at, now, increase_interval(settings, round_trip)) {
            self.steps_by_time = self.steps_by_time.saturating_add(1);
            self.increase(settings);
        }
    }

    /// Counts bytes sent, and takes the steps that they give.
    pub(in crate::transport) fn sent(&mut self, settings: &Dcqcn, now: Instant, bytes: u64) {
        self.throughput.sent(now, bytes);
        self.bytes += bytes;
        while self.bytes >= settings.increase_bytes.max(1) {
            self.bytes -= settings.increase_bytes.max(1);
            self.steps_by_bytes = self.steps_by_bytes.saturating_add(1);
            self.increase(settings);
        }
    }

    fn increase(&mut self, settings: &Dcqcn) {
        let (time, bytes, recovery) = (self.steps_by_time, self.steps_by_bytes, settings.recovery_steps);
        if time.min(bytes) > recovery {
            self.target += settings.hyper;
        } else if time.max(bytes) >= recovery {
            self.target += settings.additive;
        }
        self.target = self.target.min(settings.line_rate);
        // Rounded up, so that the rate reaches the target.
        self.rate = (self.rate + self.target).div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGA: u64 = 1_000_000_000;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn notified(times: u64) -> (Dcqcn, ReactionPoint) {
        let settings = Dcqcn::default();
        let mut point = ReactionPoint::new(&settings, at(1000));
        assert_eq!(point.rate(&settings), None);
        for _ in 0..times {
            point.notified(&settings, at(1000), 0);
        }
        (settings, point)
    }

    #[test]
    fn the_first_notifications_halve_the_rate_down_to_the_lowest() {
        let (settings, point) = notified(2);
        assert_eq!(point.rate(&settings), Some(25 * GIGA));
        let (settings, point) = notified(100);
        assert_eq!(point.rate(&settings), Some(settings.min_rate));
    }

    #[test]
    fn fast_recovery_halves_the_distance_then_the_target_grows() {
        let (settings, mut point) = notified(1);
        let mut rates = Vec::new();
        for step in 1..=7 {
            point.advance(&settings, at(1000 + 55 * step), 0);
            rates.push(point.rate(&settings).unwrap_or(settings.line_rate) / 1_000_000);
        }
        assert_eq!(rates, [75_000, 87_500, 93_750, 96_875, 98_437, 99_218, 99_609], "the target is the line's rate");
        let (settings, mut point) = notified(2);
        point.advance(&settings, at(1000 + 55 * 20), 0);
        let rate = point.rate(&settings).unwrap();
        // Sixteen additive steps beyond 50 Gb/s, the last of which is half done.
        assert!(rate > 50 * GIGA + 14 * settings.additive && rate < 50 * GIGA + 16 * settings.additive, "{rate}");
    }

    #[test]
    fn a_step_takes_a_round_trip_where_that_is_longer() {
        let (settings, mut point) = notified(0);
        point.notified(&settings, at(1000), 400_000);
        point.advance(&settings, at(1399), 400_000);
        assert_eq!(point.rate(&settings), Some(50 * GIGA));
        point.advance(&settings, at(1400), 400_000);
        assert_eq!(point.rate(&settings), Some(75 * GIGA));
    }

    #[test]
    fn bytes_give_steps_too_and_both_together_larger_ones() {
        let (settings, mut point) = notified(3);
        point.sent(&settings, at(1000), 4 * settings.increase_bytes);
        let recovered = point.rate(&settings).unwrap();
        assert!(recovered < 25 * GIGA && recovered > 24 * GIGA, "{recovered}");
        point.advance(&settings, at(1000 + 55 * 10), 0);
        point.sent(&settings, at(1000 + 55 * 10), 10 * settings.increase_bytes);
        let hyper = point.rate(&settings).unwrap();
        assert!(hyper > 25 * GIGA + 5 * settings.hyper, "{hyper}");
    }

    #[test]
    fn the_less_often_notifications_come_the_less_they_lower_the_rate() {
        let (settings, mut point) = notified(1);
        // A pause makes the estimate smaller.
        for pause in 1..=10 {
            point.advance(&settings, at(1000 + 55 * 60 * pause), 0);
        }
        let before = point.rate(&settings).unwrap_or(settings.line_rate);
        point.notified(&settings, at(40_000), 0);
        let after = point.rate(&settings).unwrap();
        assert!(after > before * 9 / 10, "{before} {after}");
    }

    #[test]
    fn any_gain_shift_is_a_weight() {
        let settings = Dcqcn { gain_shift: u32::MAX, ..Dcqcn::default() };
        let mut point = ReactionPoint::new(&settings, at(1000));
        point.notified(&settings, at(1000), 0);
        point.advance(&settings, at(2000), 0);
        assert_eq!(point.alpha, ONE - 1, "the smallest weight");
    }

    #[test]
    fn a_pause_of_years_gives_no_more_than_some_steps() {
        let (settings, mut point) = notified(8);
        point.advance(&settings, Instant::from_nanos(u64::MAX), 0);
        let rate = point.rate(&settings).unwrap();
        assert!(rate < GIGA + MAX_INTERVALS * settings.additive, "{rate}");
    }
}
