//! How long turns of the workers' loops and operations take, as reports.

use std::sync::Arc;

use rxe_inspect::latency::{Bucket, Histogram, Latency, OperationTimes, TurnTimes};
use rxe_proto::transport::{Latencies, Operation};

use crate::counters::WorkerCounters;

/// The bounds of the buckets are these powers of two, in nanoseconds: 256 ns to 4.3 s.
const EXPONENTS: std::ops::RangeInclusive<u32> = 8..=32;

/// The service of queue pairs that belong to none.
const NO_SERVICE: &str = "none";

/// Latencies counted by the workers on these lcores. Every lcore and every service with all operations is in it, counted or not.
pub fn report(workers: &[WorkerCounters], lcores: &[u32]) -> Latency {
    let turns = workers.iter().zip(lcores);
    let turns = turns.map(|(worker, &lcore)| TurnTimes { lcore, times: histogram(&worker.turn_times) }).collect();
    let mut operations: Vec<OperationTimes> = Vec::new();
    for worker in workers {
        let services = worker.latencies.iter().flat_map(|service| service.iter());
        let mut places = operations.iter_mut();
        let mut more = Vec::new();
        for (service, latencies) in services.chain([(NO_SERVICE, &worker.other_latencies)]) {
            for times in of_service(service, latencies) {
                // Every worker has the same services in the same order.
                match places.next() {
                    Some(place) => place.times.add(&times.times),
                    None => more.push(times),
                }
            }
        }
        operations.append(&mut more);
    }
    Latency { turns, operations, namespaces: Vec::new() }
}

fn of_service(service: &str, latencies: &Arc<Latencies>) -> impl Iterator<Item = OperationTimes> {
    let responder = Operation::ALL.map(|operation| ("responder", operation, latencies.responder(operation)));
    let requester = Operation::ALL.map(|operation| ("requester", operation, latencies.requester(operation)));
    let both = responder.into_iter().chain(requester);
    both.map(move |(role, operation, times)| OperationTimes {
        service: service.to_owned(),
        role: role.to_owned(),
        operation: operation.name().to_owned(),
        times: histogram(times),
    })
}

/// A histogram with the bounds of all reports.
pub fn histogram(counted: &rxe_sync::Histogram) -> Histogram {
    let buckets = EXPONENTS.map(|exponent| Bucket { up_to_ns: 1 << exponent, count: counted.count_below(exponent) });
    let buckets: Vec<Bucket> = buckets.collect();
    // Counted since: a later bucket's number includes those of the earlier ones.
    let least = buckets.last().map_or(0, |bucket| bucket.count);
    Histogram { buckets, count: counted.count_below(u64::BITS).max(least), sum_ns: counted.sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_summed_over_workers_and_turns_are_not() {
        let workers = [WorkerCounters::default(), WorkerCounters::default()];
        for (worker, nanos) in workers.iter().zip([300, 5_000_000_000]) {
            worker.turn_times.record(nanos);
            worker.other_latencies.responder(Operation::Read).record(nanos);
        }
        let Latency { turns, operations, .. } = report(&workers, &[3, 7]);
        let turns: Vec<(u32, u64, u64)> = turns.iter().map(|of| (of.lcore, of.times.count, of.times.sum_ns)).collect();
        assert_eq!(turns, [(3, 1, 300), (7, 1, 5_000_000_000)]);
        assert_eq!(operations.len(), 2 * Operation::ALL.len());
        let counted: Vec<&OperationTimes> = operations.iter().filter(|of| of.times.count > 0).collect();
        let [OperationTimes { service, role, operation, times }] = counted[..] else { panic!("{counted:?}") };
        assert_eq!((service.as_str(), role.as_str(), operation.as_str()), ("none", "responder", "read"));
        assert_eq!((times.count, times.sum_ns), (2, 5_000_000_300));
        let below = |nanos| times.buckets.iter().find(|bucket| bucket.up_to_ns == nanos).map(|bucket| bucket.count);
        // One is above the last bound.
        assert_eq!([256, 512, 1 << 32].map(below), [Some(0), Some(1), Some(1)]);
    }
}
