//! One measurement: what is complete in it, and the latencies.

use hdrhistogram::Histogram;
use rxe_proto::{Duration, Instant};

use super::host::{Counts, Host};
use super::plan::NvmePlan;
use super::report::{IoLatency, NvmeOutcome};
use crate::measurement::latencies;
use crate::outcome::End;
use crate::plan::Length;
use crate::retransmissions::Retransmissions;

/// A time, and what was complete then.
#[derive(Clone, Debug)]
pub struct Mark {
    at: Instant,
    counts: Counts,
    retransmissions: Option<Retransmissions>,
}

impl Mark {
    /// What `host` has completed at `at`.
    pub fn new(at: Instant, host: &Host, retransmissions: Option<Retransmissions>) -> Mark {
        Mark { at, counts: host.counts.clone(), retransmissions }
    }
}

/// A measurement in progress.
#[derive(Debug)]
pub struct Measurement {
    mtu: u32,
    start: Mark,
    /// Start of the present interval, with `--run_infinitely`.
    interval: Mark,
    /// Latencies of the intervals before.
    before: Option<Histogram<u64>>,
    /// Duration of the measurement, or of an interval.
    time: Duration,
    endless: bool,
}

impl Measurement {
    /// A measurement with this path MTU, from `start` on. From now on `host` records latencies.
    pub fn start(host: &mut Host, plan: &NvmePlan, mtu: u32, start: Mark) -> Measurement {
        let (time, endless) = match plan.length {
            Length::Endless(time) => (time, true),
            Length::Time(time) => (time, false),
            // The command line has no such option.
            Length::Messages(_) => (Duration::ZERO, false),
        };
        host.latency = latencies();
        Measurement { mtu, interval: start.clone(), start, before: None, time, endless }
    }

    /// Whether the plan's duration is over.
    pub fn is_over(&self, now: Instant) -> bool {
        !self.endless && now.saturating_since(self.start.at) >= self.time
    }

    /// Whether an interval of `--run_infinitely` is over.
    pub fn is_interval_over(&self, now: Instant) -> bool {
        self.endless && now.saturating_since(self.interval.at) >= self.time
    }

    /// The result of an interval of `--run_infinitely`; the next one starts.
    pub fn interval(&mut self, host: &mut Host, plan: &NvmePlan, now: Mark) -> NvmeOutcome {
        let start = std::mem::replace(&mut self.interval, now.clone());
        let outcome = outcome(plan, self.mtu, host, &start, &now, host.latency.as_ref());
        self.keep(host);
        outcome
    }

    /// The result until `now`.
    pub fn outcome(mut self, host: &mut Host, plan: &NvmePlan, now: &Mark, end: End) -> NvmeOutcome {
        self.keep(host);
        host.latency = None;
        NvmeOutcome { end, ..outcome(plan, self.mtu, host, &self.start, now, self.before.as_ref()) }
    }

    /// Adds the latencies of the host to those of the whole measurement, and empties them.
    fn keep(&mut self, host: &mut Host) {
        let Some(new) = &mut host.latency else { return };
        match &mut self.before {
            // Both have the same bounds.
            Some(all) => {
                let _ = all.add(&*new);
            }
            None => self.before = Some(new.clone()),
        }
        new.reset();
    }
}

fn outcome(
    plan: &NvmePlan,
    mtu: u32,
    host: &Host,
    start: &Mark,
    now: &Mark,
    latency: Option<&Histogram<u64>>,
) -> NvmeOutcome {
    let (reads, writes) = (now.counts.reads - start.counts.reads, now.counts.writes - start.counts.writes);
    let seconds = now.at.saturating_since(start.at).as_secs_f64();
    let mut outcome = NvmeOutcome::new(plan, host, mtu, (reads, writes), seconds);
    outcome.lat_us = latency.filter(|latency| !latency.is_empty()).map(IoLatency::of);
    outcome.retransmissions = now.retransmissions.zip(start.retransmissions).map(|(now, before)| now.since(before));
    outcome
}
