//! Round trip time, and the retransmission timeout derived from it.
//!
//! Mean and deviation are smoothed after Jacobson and Karels, in the terms of RFC 6298 ("Computing TCP's Retransmission
//! Timer"). One packet is timed at a time, and by Karn's rule none that was retransmitted after a timeout: the ACK may
//! be for either copy. After a NAK or a gap, nothing from the missing packet on was received, so retransmissions can be
//! timed like new packets; otherwise a lossy link would never be measured.
//!
//! The second half of Karn's rule: the backoff after a timeout is kept until the next RTT sample. If the first response
//! undid it, a round trip longer than the timeout would never be measured, and every packet would be sent twice.

use std::num::NonZeroU64;

use crate::time::{Duration, Instant};
use crate::transport::seq::Seq;

/// The minimum margin of the timeout above the round trip, in nanoseconds: one iteration of a busy caller.
const GRANULARITY: u64 = 10_000;

/// Time after which the shortest round trip becomes longer, in nanoseconds.
const AGE: u64 = 10_000_000_000;

/// RTT estimate, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    /// Smoothed round trip time (SRTT), which is never 0.
    mean: NonZeroU64,
    /// Smoothed deviation from it (RTTVAR).
    deviation: u64,
}

/// Measures one queue pair's round trips.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    estimate: Option<Estimate>,
    /// The packet being timed, and when it was written.
    timed: Option<(Seq, Instant)>,
    /// Doublings of the timeout since the last sample (backoff).
    doublings: u8,
    /// The shortest sample, which becomes longer with time, or 0.
    shortest: u64,
    /// When it did so last.
    aged: Instant,
}

impl RoundTrip {
    /// The smoothed round trip in nanoseconds; 0 before the first one.
    pub(super) fn mean(&self) -> u64 {
        self.estimate.map_or(0, |estimate| estimate.mean.get())
    }

    /// Starts timing a packet that the peer answers at once.
    #[inline]
    pub(super) fn begin(&mut self, psn: Seq, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((psn, now));
        }
    }

    /// Stops timing, before a retransmission.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.timed = None;
    }

    /// Everything before `una` has been acknowledged. Returns the RTT sample that this gave, in nanoseconds.
    #[inline]
    pub(super) fn answered(&mut self, una: Seq, now: Instant) -> Option<u64> {
        match self.timed {
            Some((psn, since)) if psn < una => {
                self.timed = None;
                // compliance.md [RC-REQ-RTT-KARN]: One packet at a time is timed, none that was retransmitted after a
                // timeout.
                self.doublings = 0;
                let sample = now.nanos_since(since);
                self.measured(sample);
                self.follow_shortest(sample.max(1), now);
                Some(sample)
            }
            _ => None,
        }
    }

    /// The shortest sample in nanoseconds, 0 before the first one. It grows by an eighth in [`AGE`], as the path may have changed.
    pub(super) fn shortest(&self) -> u64 {
        self.shortest
    }

    #[inline]
    fn follow_shortest(&mut self, sample: u64, now: Instant) {
        if now >= self.aged.after(AGE) {
            self.aged = now;
            self.shortest += self.shortest / 8;
        }
        self.shortest = if self.shortest == 0 { sample } else { self.shortest.min(sample) };
    }

    fn measured(&mut self, sample: u64) {
        let (mean, deviation) = match self.estimate {
            None => (sample, sample / 2),
            // Rounding each term separately makes the mean of a constant round trip converge to it exactly.
            Some(Estimate { mean, deviation }) => {
                let mean = mean.get();
                (mean - mean / 8 + sample / 8, deviation - deviation / 4 + mean.abs_diff(sample) / 4)
            }
        };
        self.estimate = Some(Estimate { mean: NonZeroU64::new(mean).unwrap_or(NonZeroU64::MIN), deviation });
    }

    /// Doubles the timeout (backoff).
    pub(super) fn double(&mut self) {
        self.doublings = self.doublings.saturating_add(1);
    }

    /// The retransmission timeout: `initial` before the first sample, at least `shortest`.
    pub(super) fn timeout(&self, shortest: Duration, initial: Duration) -> Duration {
        self.timeout_once(shortest, initial).saturating_mul(1 << self.doublings.min(31))
    }

    /// The same without backoff.
    pub(super) fn timeout_once(&self, shortest: Duration, initial: Duration) -> Duration {
        match self.estimate {
            None => initial,
            // compliance.md [RC-REQ-RTT]: The retransmission timeout follows the measured round trip, between its
            // minimum and the ACK timeout.
            Some(Estimate { mean, deviation }) => {
                let nanos = mean.get().saturating_add(deviation.saturating_mul(4).max(GRANULARITY));
                Duration::from_nanos(nanos).max(shortest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Psn;

    const SHORTEST: Duration = Duration::from_millis(1);
    const INITIAL: Duration = Duration::from_millis(32);

    /// Measures packets that are acknowledged after these times, in microseconds.
    fn measure(samples: impl IntoIterator<Item = u64>) -> RoundTrip {
        let mut rtt = RoundTrip::default();
        let (mut psn, mut now) = (Seq::start(Psn::new(0)), Instant::ZERO);
        for micros in samples {
            rtt.begin(psn, now);
            assert_eq!(rtt.answered(psn, now), None, "not yet");
            now += Duration::from_micros(micros);
            psn = psn.add(1);
            assert_eq!(rtt.answered(psn, now), Some(1000 * micros));
        }
        rtt
    }

    #[test]
    fn the_first_sample_counts_three_times() {
        let rtt = measure([2000]);
        assert_eq!(rtt.mean(), 2_000_000);
        assert_eq!(rtt.timeout(SHORTEST, INITIAL), Duration::from_micros(6000));
    }

    #[test]
    fn a_constant_round_trip_is_the_timeout_but_for_the_granularity() {
        let rtt = measure([8000; 200]);
        assert_eq!(rtt.mean(), 8_000_000);
        let timeout = rtt.timeout(SHORTEST, INITIAL);
        assert!(timeout >= Duration::from_micros(8010) && timeout < Duration::from_micros(8011), "{timeout:?}");
    }

    #[test]
    fn a_varying_round_trip_stays_below_the_timeout() {
        let rtt = measure((0..1000).map(|i| 3000 + i * 7919 % 2000));
        let timeout = rtt.timeout(SHORTEST, INITIAL);
        assert!(timeout > Duration::from_micros(5000) && timeout < Duration::from_micros(8000), "{timeout:?}");
    }

    #[test]
    fn the_timeout_is_no_shorter_than_its_minimum() {
        let none = RoundTrip::default();
        assert_eq!((none.mean(), none.shortest()), (0, 0));
        assert_eq!(none.timeout(SHORTEST, INITIAL), INITIAL);
        assert_eq!(measure([10; 50]).timeout(SHORTEST, INITIAL), SHORTEST);
        assert_eq!(measure([10; 50]).timeout(16 * SHORTEST, INITIAL), 16 * SHORTEST);
    }

    #[test]
    fn the_shortest_round_trip_grows_with_time() {
        let mut rtt = measure([70, 30, 50]);
        assert_eq!(rtt.shortest(), 30_000);
        let psn = Seq::start(Psn::new(3));
        let late = Instant::from_nanos(AGE + 1_000_000);
        rtt.begin(psn, late);
        assert_eq!(rtt.answered(psn.add(1), late + Duration::from_micros(90)), Some(90_000));
        assert_eq!(rtt.shortest(), 33_750);
    }

    #[test]
    fn doubling_lasts_until_the_next_measurement() {
        let mut rtt = measure([10; 50]);
        for doublings in 0..8 {
            assert_eq!(rtt.timeout(SHORTEST, INITIAL), SHORTEST * (1 << doublings));
            assert_eq!(rtt.timeout_once(SHORTEST, INITIAL), SHORTEST);
            rtt.double();
        }
        let longest = SHORTEST * (1 << 31);
        for _ in 0..300 {
            rtt.double();
        }
        assert_eq!(rtt.timeout(SHORTEST, INITIAL), longest);
        // The ACK of a retransmitted packet gives no sample.
        let psn = Seq::start(Psn::new(7));
        rtt.begin(psn, Instant::ZERO);
        rtt.forget();
        assert_eq!(rtt.answered(psn.add(1), Instant::from_nanos(50_000)), None);
        assert_eq!(rtt.timeout(SHORTEST, INITIAL), longest);
        rtt.begin(psn.add(1), Instant::from_nanos(60_000));
        rtt.begin(psn.add(2), Instant::from_nanos(65_000));
        let sample = rtt.answered(psn.add(2), Instant::from_nanos(70_000));
        assert_eq!(sample, Some(10_000), "one packet at a time, the first one");
        assert_eq!(rtt.timeout(SHORTEST, INITIAL), SHORTEST);
    }
}
