//! Sums what the layers count.
//!
//! Every counter has one writer (its lcore) and is read here at any time. A [`Snapshot`] is the sum over the workers,
//! group by group, under the names that the layers gave.

use std::fmt;
use std::sync::Arc;

use rxe_proto::cm::CmStats;
use rxe_proto::transport::TransportStats;
use rxe_proto::wire::DropCounters;

use crate::host::HostStats;
use crate::worker::{ControlStats, FaultStats, ServiceStats, WorkerStats};

/// The counters of one worker.
#[derive(Clone, Debug)]
pub struct WorkerCounters {
    /// The loop: bursts, hand-offs.
    pub worker: Arc<WorkerStats>,
    /// Faults made on purpose to frames from the wire.
    pub rx_faults: Arc<FaultStats>,
    /// The same to the wire.
    pub tx_faults: Arc<FaultStats>,
    /// Queue pairs.
    pub transport: Arc<TransportStats>,
    /// Connections and streams.
    pub services: Arc<ServiceStats>,
    /// Dropped packets by reason: those of the loop and those of the queue pairs.
    pub drops: [Arc<DropCounters>; 2],
}

/// All counters of a running adapter.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// One entry per worker.
    pub workers: Vec<WorkerCounters>,
    /// The control side.
    pub control: Arc<ControlStats>,
    /// The connection manager.
    pub cm: Arc<CmStats>,
    /// The host stacks, by port.
    pub hosts: Vec<Arc<HostStats>>,
    /// Packets that the control side dropped.
    pub control_drops: Arc<DropCounters>,
}

/// Sums at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Group name and its counters, in a fixed order.
    pub groups: Vec<(&'static str, Vec<(&'static str, u64)>)>,
}

impl Telemetry {
    /// Reads everything.
    pub fn snapshot(&self) -> Snapshot {
        let workers = &self.workers;
        let drops = workers.iter().flat_map(|w| &w.drops).chain([&self.control_drops]);
        Snapshot {
            groups: vec![
                ("worker", sum(workers.iter().map(|w| w.worker.iter().collect()))),
                ("rx_fault", sum(workers.iter().map(|w| w.rx_faults.iter().collect()))),
                ("tx_fault", sum(workers.iter().map(|w| w.tx_faults.iter().collect()))),
                ("transport", sum(workers.iter().map(|w| w.transport.iter().collect()))),
                ("service", sum(workers.iter().map(|w| w.services.iter().collect()))),
                ("control", self.control.iter().collect()),
                ("cm", self.cm.iter().collect()),
                ("host", sum(self.hosts.iter().map(|h| h.iter().collect()))),
                ("drop", sum(drops.map(|d| d.iter().map(|(reason, count)| (reason.name(), count)).collect()))),
            ],
        }
    }
}

impl Snapshot {
    /// The value of counter `name` in `group`.
    pub fn get(&self, group: &str, name: &str) -> Option<u64> {
        let (_, counters) = self.groups.iter().find(|(g, _)| *g == group)?;
        counters.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }
}

/// Adds lists of the same names in the same order.
fn sum(lists: impl Iterator<Item = Vec<(&'static str, u64)>>) -> Vec<(&'static str, u64)> {
    lists
        .reduce(|mut total, list| {
            for ((_, sum), (_, value)) in total.iter_mut().zip(list) {
                *sum += value;
            }
            total
        })
        .unwrap_or_default()
}

/// One line per group, with the counters that are not zero.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (group, counters) in &self.groups {
            write!(f, "{group}:")?;
            let mut any = false;
            for (name, value) in counters.iter().filter(|(_, value)| *value != 0) {
                any = true;
                write!(f, " {name}={value}")?;
            }
            writeln!(f, "{}", if any { "" } else { " nothing" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_added_by_position() {
        let total = sum([vec![("a", 1), ("b", 2)], vec![("a", 10), ("b", 0)]].into_iter());
        assert_eq!(total, [("a", 11), ("b", 2)]);
    }

    #[test]
    fn zero_counters_stay_out_of_the_text() {
        let snapshot = Snapshot { groups: vec![("drop", vec![("a", 0), ("b", 2)]), ("cm", vec![("c", 0)])] };
        assert_eq!(snapshot.to_string(), "drop: b=2\ncm: nothing\n");
        assert_eq!(snapshot.get("drop", "b"), Some(2));
        assert_eq!(snapshot.get("drop", "x"), None);
    }
}
