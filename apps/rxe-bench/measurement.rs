//! One measurement: what is complete, the fastest slice of it, and what was sent again meanwhile.

use hdrhistogram::Histogram;
use rxe_proto::{Duration, Instant};

use crate::outcome::{End, Latency, Outcome};
use crate::plan::{Length, Plan};
use crate::retransmissions::Retransmissions;

/// The peak is the rate of the fastest slice of this length: long enough for several completions of long messages.
const SLICE: Duration = Duration::from_millis(100);
/// Longest latency that is recorded, in nanoseconds; longer ones count as this.
const LONGEST: u64 = 60_000_000_000;

/// An empty histogram of latencies in nanoseconds.
pub fn latencies() -> Option<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST, 3).ok()
}

/// A time, and what was complete and counted then.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub at: Instant,
    /// Messages completed.
    pub done: u64,
    /// Messages of the additional load that were complete.
    pub bulk: u64,
    /// Frames that were not reflected, for `echo`.
    pub lost: Option<u64>,
    /// `None` for tests without an adapter or without messages.
    pub retransmissions: Option<Retransmissions>,
}

/// The rate of the fastest slice.
#[derive(Clone, Copy, Debug)]
struct Peak {
    since: Instant,
    done: u64,
    per_second: f64,
}

impl Peak {
    fn new(from: Mark) -> Peak {
        Peak { since: from.at, done: from.done, per_second: 0.0 }
    }

    fn sample(&mut self, now: Instant, done: u64) {
        let time = now.saturating_since(self.since);
        if time >= SLICE {
            let rate = (done - self.done) as f64 / time.as_secs_f64();
            *self = Peak { since: now, done, per_second: self.per_second.max(rate) };
        }
    }
}

/// A measurement in progress.
#[derive(Debug)]
pub struct Measurement {
    size: u32,
    mtu: u32,
    start: Mark,
    peak: Peak,
    /// Start and peak of the present interval, with `--run_infinitely`.
    interval: (Mark, Peak),
    /// Latencies of the intervals before.
    latencies: Option<Histogram<u64>>,
    /// Number of completed messages at which it ends.
    enough: u64,
    /// Duration after which it ends, or the length of an interval.
    time: Option<Duration>,
    endless: bool,
}

impl Measurement {
    /// A measurement of messages of `size` bytes with this path MTU.
    pub fn start(plan: &Plan, size: u32, mtu: u32, start: Mark) -> Measurement {
        let (enough, time) = match plan.length {
            Length::Messages(messages) => (start.done + messages * u64::from(plan.qps) * plan.messages_each(), None),
            Length::Time(time) | Length::Endless(time) => (u64::MAX, Some(time)),
        };
        let peak = Peak::new(start);
        let endless = matches!(plan.length, Length::Endless(_));
        let interval = (start, peak);
        Measurement { size, mtu, start, peak, interval, latencies: None, enough, time, endless }
    }

    /// Whether as many messages are complete as the plan has.
    #[inline]
    pub fn has_enough(&self, done: u64) -> bool {
        done >= self.enough
    }

    /// Whether the plan's duration is over.
    #[inline]
    pub fn is_over(&self, now: Instant) -> bool {
        !self.endless && self.time.is_some_and(|time| now.saturating_since(self.start.at) >= time)
    }

    /// Notes progress, for the peak. Call it once a millisecond or more often.
    #[inline]
    pub fn sample(&mut self, now: Instant, done: u64) {
        self.peak.sample(now, done);
        self.interval.1.sample(now, done);
    }

    /// Whether an interval of `--run_infinitely` is over.
    #[inline]
    pub fn is_interval_over(&self, now: Instant) -> bool {
        self.endless && self.time.is_some_and(|time| now.saturating_since(self.interval.0.at) >= time)
    }

    /// The result of an interval of `--run_infinitely`, and starts the next one. `latencies` are those since the last one.
    pub fn interval(&mut self, plan: &Plan, now: Mark, latencies: &mut Option<Histogram<u64>>) -> Outcome {
        let (start, peak) = std::mem::replace(&mut self.interval, (now, Peak::new(now)));
        let outcome = self.outcome_of(plan, (start, peak), now, latencies.as_ref());
        self.keep(latencies);
        outcome
    }

    /// The result until `now`. `latencies` are those since the last interval.
    pub fn outcome(mut self, plan: &Plan, now: Mark, latencies: Option<Histogram<u64>>, end: End) -> Outcome {
        let mut latencies = latencies;
        self.keep(&mut latencies);
        let all = self.latencies.take();
        Outcome { end, ..self.outcome_of(plan, (self.start, self.peak), now, all.as_ref()) }
    }

    /// Adds latencies to those of the whole measurement, and empties them.
    fn keep(&mut self, latencies: &mut Option<Histogram<u64>>) {
        let Some(new) = latencies else { return };
        match &mut self.latencies {
            // Both have the same bounds.
            Some(all) => {
                let _ = all.add(&*new);
            }
            None => self.latencies = Some(new.clone()),
        }
        new.reset();
    }

    fn outcome_of(
        &self,
        plan: &Plan,
        (start, peak): (Mark, Peak),
        now: Mark,
        latencies: Option<&Histogram<u64>>,
    ) -> Outcome {
        let seconds = now.at.saturating_since(start.at).as_secs_f64();
        let mut outcome = Outcome::new(plan, self.size, self.mtu, now.done - start.done, seconds);
        // The last slice is shorter, and shorter measurements have none.
        outcome.set_peak(peak.per_second.max(outcome.msg_rate));
        outcome.lat_us = latencies.filter(|latencies| !latencies.is_empty()).map(Latency::of);
        let of_bulk = |size: u32| (now.bulk - start.bulk) as f64 * f64::from(size) * 8e-9;
        outcome.bulk_gbps = plan.bulk.filter(|_| seconds > 0.0).map(|bulk| of_bulk(bulk.size) / seconds);
        outcome.lost = now.lost.zip(start.lost).map(|(now, before)| now - before);
        outcome.retransmissions = now.retransmissions.zip(start.retransmissions).map(|(now, before)| now.since(before));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    fn mark(millis: u64, done: u64) -> Mark {
        let retransmissions = Some(Retransmissions { packets: done / 10, losses: 1, ..Retransmissions::default() });
        Mark { at: Instant::ZERO + Duration::from_millis(millis), done, bulk: done / 2, lost: Some(5), retransmissions }
    }

    #[test]
    fn the_peak_is_the_rate_of_the_fastest_slice() {
        let plan = Plan { length: Length::Time(Duration::from_secs(1)), ..plan() };
        let mut measurement = Measurement::start(&plan, 64, 1024, mark(1000, 50));
        // 1,000 messages in each slice, 3,000 in the fourth.
        for millis in 1..=950 {
            let slices = millis / 100;
            let done = 50 + slices * 1000 + if slices >= 4 { 2000 } else { 0 };
            measurement.sample(mark(1000 + millis, 0).at, done);
            assert!(!measurement.is_over(mark(1000 + millis, 0).at) && !measurement.has_enough(done));
        }
        assert!(measurement.is_over(mark(2000, 0).at));
        let outcome = measurement.outcome(&plan, mark(2000, 12_050), None, End::Complete);
        assert_eq!((outcome.messages, outcome.seconds, outcome.msg_rate), (12_000, 1.0, 12_000.0));
        assert!((outcome.msg_rate_peak / 30_000.0 - 1.0).abs() < 1e-9, "{outcome:?}");
        assert_eq!((outcome.lost, outcome.bulk_gbps), (Some(0), None));
        assert_eq!(outcome.retransmissions.map(|r| (r.packets, r.losses)), Some((1200, 0)));
        let short = Measurement::start(&plan, 64, 1024, mark(0, 0));
        let outcome = short.outcome(&plan, mark(10, 5), None, End::Interrupted);
        assert!((outcome.msg_rate_peak / 500.0 - 1.0).abs() < 1e-9, "{outcome:?}");
        assert_eq!(outcome.end, End::Interrupted);
    }

    #[test]
    fn the_whole_of_an_endless_run_contains_every_interval() {
        let plan = Plan { length: Length::Endless(Duration::from_secs(1)), ..plan() };
        let mut measurement = Measurement::start(&plan, 64, 1024, mark(0, 0));
        let mut now = latencies();
        for (second, each) in [(1, 2000), (2, 4000), (3, 6000)] {
            for _ in 0..each {
                now.as_mut().expect("bounds").record(each).expect("in range");
            }
            let at = mark(second * 1000, (1..=second).map(|n| n * 2000).sum());
            assert!(measurement.is_interval_over(at.at) && !measurement.is_over(at.at));
            let interval = measurement.interval(&plan, at, &mut now);
            assert_eq!((interval.messages, interval.seconds), (each, 1.0));
            let p50 = interval.lat_us.expect("latencies").p50;
            assert!((p50 / (each as f64 / 1000.0) - 1.0).abs() < 0.01, "{p50}");
            assert!(!measurement.is_interval_over(at.at) && now.as_ref().is_some_and(Histogram::is_empty));
        }
        let all = measurement.outcome(&plan, mark(3500, 12_000), now, End::Interrupted);
        let latency = all.lat_us.expect("latencies");
        assert_eq!((all.messages, all.seconds), (12_000, 3.5));
        assert!((latency.min - 2.0).abs() < 0.01 && (latency.max - 6.0).abs() < 0.01, "{latency:?}");
        assert!((latency.mean - 4.667).abs() < 0.01 && (latency.stdev - 1.491).abs() < 0.01, "{latency:?}");
    }
}
