//! Reports of how long turns of workers' loops and operations take.

use serde::{Deserialize, Serialize};

/// How long turns and operations took since the target started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// Turns of each worker's loop that found something to do.
    pub turns: Vec<TurnTimes>,
    /// Operations that span turns, by service.
    pub operations: Vec<OperationTimes>,
    /// Commands of NVMe over Fabrics, by namespace.
    #[serde(default)]
    pub namespaces: Vec<NamespaceTimes>,
}

/// How long the turns of one worker's loop took.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TurnTimes {
    /// The worker's lcore.
    pub lcore: u32,
    /// Their times.
    #[serde(flatten)]
    pub times: Histogram,
}

/// How long one kind of operation took, on the queue pairs of one service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OperationTimes {
    /// The service; `none` for queue pairs of no service.
    pub service: String,
    /// `responder` for operations of peers, `requester` for those of the service.
    pub role: String,
    /// `send`, `write`, `read`, `atomic` or `flush`.
    pub operation: String,
    /// Their times.
    #[serde(flatten)]
    pub times: Histogram,
}

/// How long one kind of NVMe command took on a namespace: from the turn of the worker's loop in which the command arrived to the
/// one in which its response was posted, so 0 within a turn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamespaceTimes {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// NSID of the namespace.
    pub nsid: u32,
    /// `read`, `write`, `flush` or `other`.
    pub command: String,
    /// Their times.
    #[serde(flatten)]
    pub times: Histogram,
}

/// Numbers of events by their duration.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Histogram {
    /// Numbers of values up to certain bounds, which are the same in all histograms, in ascending order.
    pub buckets: Vec<Bucket>,
    /// Number of values.
    pub count: u64,
    /// The sum of all values in nanoseconds.
    pub sum_ns: u64,
}

/// Number of values up to a bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bucket {
    /// The bound in nanoseconds.
    pub up_to_ns: u64,
    /// Number of values up to it, those of lower buckets included.
    pub count: u64,
}

impl Histogram {
    /// The lowest bound up to which at least `percent` of the values are; `None` if there is none, or no value.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        // Without rounding down: the 50th percentile of three values is the second.
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100);
        if self.count == 0 {
            return None;
        }
        self.buckets.iter().find(|bucket| u128::from(bucket.count) >= rank).map(|bucket| bucket.up_to_ns)
    }

    /// The mean in nanoseconds; `None` if there is no value.
    #[must_use]
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }

    /// Adds the values of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        if self.buckets.is_empty() {
            *self = other.clone();
            return;
        }
        for (bucket, other) in self.buckets.iter_mut().zip(&other.buckets) {
            bucket.count = bucket.count.wrapping_add(other.count);
        }
        self.count = self.count.wrapping_add(other.count);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// Removes the values that `before`, an earlier report of the same histogram, has.
    pub fn subtract(&mut self, before: &Histogram) {
        for (bucket, before) in self.buckets.iter_mut().zip(&before.buckets) {
            bucket.count = bucket.count.wrapping_sub(before.count);
        }
        self.count = self.count.wrapping_sub(before.count);
        self.sum_ns = self.sum_ns.wrapping_sub(before.sum_ns);
    }
}

impl Latency {
    /// Removes what `before`, an earlier report, has.
    pub fn subtract(&mut self, before: &Latency) {
        for TurnTimes { lcore, times } in &mut self.turns {
            if let Some(before) = before.turns.iter().find(|turns| turns.lcore == *lcore) {
                times.subtract(&before.times);
            }
        }
        for OperationTimes { service, role, operation, times } in &mut self.operations {
            let same = |of: &&OperationTimes| (&of.service, &of.role, &of.operation) == (service, role, operation);
            if let Some(before) = before.operations.iter().find(same) {
                times.subtract(&before.times);
            }
        }
        for NamespaceTimes { subsystem, nsid, command, times } in &mut self.namespaces {
            let same = |of: &&NamespaceTimes| (&of.subsystem, of.nsid, &of.command) == (subsystem, *nsid, command);
            if let Some(before) = before.namespaces.iter().find(same) {
                times.subtract(&before.times);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(counts: [u64; 3], count: u64, sum_ns: u64) -> Histogram {
        let buckets = [256, 512, 1024].into_iter().zip(counts);
        let buckets = buckets.map(|(up_to_ns, count)| Bucket { up_to_ns, count }).collect();
        Histogram { buckets, count, sum_ns }
    }

    #[test]
    fn a_percentile_is_the_bound_that_enough_values_are_below() {
        let ten = histogram([5, 9, 9], 10, 9000);
        assert_eq!([50, 51, 90, 91].map(|percent| ten.percentile(percent)), [Some(256), Some(512), Some(512), None]);
        assert_eq!(ten.mean_ns(), Some(900));
        assert_eq!((Histogram::default().percentile(50), Histogram::default().mean_ns()), (None, None));
    }

    #[test]
    fn the_times_within_an_interval_are_the_later_report_less_the_earlier_one() {
        let report = |times: Histogram| {
            let [service, role, operation] = ["region", "responder", "read"].map(str::to_owned);
            let turns = vec![TurnTimes { lcore: 3, times: histogram([1, 1, 1], 1, 100) }];
            let subsystem = "nqn.2026-01.test:disk".to_owned();
            let namespaces =
                vec![NamespaceTimes { subsystem, nsid: 1, command: operation.clone(), times: times.clone() }];
            Latency { turns, operations: vec![OperationTimes { service, role, operation, times }], namespaces }
        };
        let mut now = report(histogram([1, 2, 4], 5, 5000));
        now.subtract(&report(histogram([1, 1, 1], 1, 200)));
        assert_eq!(now.operations[0].times, histogram([0, 1, 3], 4, 4800));
        assert_eq!(now.namespaces[0].times, histogram([0, 1, 3], 4, 4800));
        assert_eq!(now.turns[0].times.count, 0);
    }

    #[test]
    fn histograms_add_up() {
        let mut sum = Histogram::default();
        sum.add(&histogram([1, 2, 3], 4, 10));
        sum.add(&histogram([0, 1, 1], 2, 5));
        assert_eq!(sum, histogram([1, 3, 4], 6, 15));
    }
}
