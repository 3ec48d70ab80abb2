//! The counters of a running adapter: sums over its workers, group by group.
//!
//! Every counter has one writer (its lcore) and may be read at any time. A [`Snapshot`] is the sum over the workers, under
//! the names that the layers give.

use std::fmt;
use std::sync::Arc;

use rxe_inspect::report::{Counter, CounterGroup};
use rxe_proto::cm::CmStats;
use rxe_proto::transport::{Latencies, TransportStats};
use rxe_proto::wire::{DropCounters, DropReason};
use rxe_service::{ControlStats, ServiceLatencies, ServiceStats};

use crate::host_stats::HostStats;
use crate::output;
use crate::worker::{CaptureStats, FaultStats, TurnTimes, WorkerStats};

/// The counters of one worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerCounters {
    /// The poll loop: bursts, hand-offs.
    pub worker: Arc<WorkerStats>,
    /// Fault injection for received frames.
    pub rx_faults: Arc<FaultStats>,
    /// Fault injection for sent frames.
    pub tx_faults: Arc<FaultStats>,
    /// Queue pairs.
    pub transport: Arc<TransportStats>,
    /// Connections and streams.
    pub services: Arc<ServiceStats>,
    /// Recorders.
    pub capture: Arc<CaptureStats>,
    /// Times of turns that found something to do.
    pub turn_times: Arc<TurnTimes>,
    /// Times of operations, by service.
    pub latencies: Vec<ServiceLatencies>,
    /// Times of operations on queue pairs of no service.
    pub other_latencies: Arc<Latencies>,
    /// Dropped packets by reason: those of the loop and those of the queue pairs.
    pub drops: [Arc<DropCounters>; 2],
}

/// The counters of a port that only ports of its type have.
#[derive(Clone)]
pub struct PortCounters {
    /// The group's name in listings.
    pub group: &'static str,
    /// Name and description of each counter.
    pub descriptions: &'static [(&'static str, &'static str)],
    /// Reads all of them.
    pub read: Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>,
}

impl fmt::Debug for PortCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortCounters({})", self.group)
    }
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
    /// Counters of the ports' own, by port.
    pub ports: Vec<PortCounters>,
}

/// Sums over all workers at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Group name and its counters, in a fixed order.
    pub groups: Vec<(&'static str, Vec<(&'static str, u64)>)>,
}

/// The description of a counter, one sentence; `None` if there is no such counter.
pub fn describe(group: &str, name: &str) -> Option<&'static str> {
    let find = |list: &[(&str, &'static str)]| list.iter().find(|(n, _)| *n == name).map(|(_, text)| *text);
    match group {
        "worker" => find(WorkerStats::DESCRIPTIONS),
        "rx_fault" | "tx_fault" => find(FaultStats::DESCRIPTIONS),
        "transport" => find(TransportStats::DESCRIPTIONS),
        "service" => find(ServiceStats::DESCRIPTIONS),
        "capture" => find(CaptureStats::DESCRIPTIONS),
        "control" => find(ControlStats::DESCRIPTIONS),
        "cm" => find(CmStats::DESCRIPTIONS),
        "host" => find(HostStats::DESCRIPTIONS),
        "output" => find(output::DESCRIPTIONS),
        "drop" => DropReason::ALL.iter().find(|reason| reason.name() == name).map(|reason| reason.describe()),
        "port" => find(&[
            ("rx_frames", "Frames received."),
            ("tx_frames", "Frames sent."),
            ("rx_bytes", "Bytes received."),
            ("tx_bytes", "Bytes sent."),
            ("rx_missed", "Frames that the device dropped because its receive queue was full."),
            ("rx_errors", "Frames received with errors."),
            ("tx_errors", "Frames that could not be sent."),
            ("rx_no_mbuf", "Frames dropped because no buffer was free."),
        ]),
        _ => None,
    }
}

impl Telemetry {
    /// The description of a counter of this adapter, one sentence; `None` if there is no such counter.
    pub fn describe(&self, group: &str, name: &str) -> Option<&'static str> {
        let own = self.ports.iter().filter(|port| port.group == group).flat_map(|port| port.descriptions);
        own.clone().find(|(own, _)| *own == name).map(|(_, text)| *text).or_else(|| describe(group, name))
    }

    /// Every counter: by lcore, by port, or of the whole target.
    pub fn groups(&self, lcores: &[u32]) -> Vec<CounterGroup> {
        let mut groups = Vec::new();
        let mut add = |group: &str, scope: &str, id: u32, values: Vec<(&'static str, u64)>| {
            let counters = report(values.into_iter());
            groups.push(CounterGroup { group: group.to_owned(), scope: scope.to_owned(), id, counters });
        };
        let reasons = |drops: &DropCounters| drops.iter().map(|(reason, count)| (reason.name(), count)).collect();
        for (worker, &lcore) in self.workers.iter().zip(lcores) {
            add("worker", "lcore", lcore, worker.worker.iter().collect());
            add("rx_fault", "lcore", lcore, worker.rx_faults.iter().collect());
            add("tx_fault", "lcore", lcore, worker.tx_faults.iter().collect());
            add("transport", "lcore", lcore, worker.transport.iter().collect());
            add("service", "lcore", lcore, worker.services.iter().collect());
            add("capture", "lcore", lcore, worker.capture.iter().collect());
            add("drop", "lcore", lcore, sum(worker.drops.iter().map(|drops| reasons(drops))));
        }
        add("control", "target", 0, self.control.iter().collect());
        add("cm", "target", 0, self.cm.iter().collect());
        add("drop", "target", 0, reasons(&self.control_drops));
        add("output", "target", 0, output::counters());
        for (host, number) in self.hosts.iter().zip(0..) {
            add("host", "port", number, host.iter().collect());
        }
        for (port, number) in self.ports.iter().zip(0..) {
            add(port.group, "port", number, (port.read)());
        }
        groups
    }

    /// Reads and sums all counters.
    pub fn snapshot(&self) -> Snapshot {
        let workers = &self.workers;
        let drops = workers.iter().flat_map(|w| &w.drops).chain([&self.control_drops]);
        let ports = self.ports.iter().map(|port| (port.group, (port.read)()));
        let groups = vec![
            ("worker", sum(workers.iter().map(|w| w.worker.iter().collect()))),
            ("rx_fault", sum(workers.iter().map(|w| w.rx_faults.iter().collect()))),
            ("tx_fault", sum(workers.iter().map(|w| w.tx_faults.iter().collect()))),
            ("transport", sum(workers.iter().map(|w| w.transport.iter().collect()))),
            ("service", sum(workers.iter().map(|w| w.services.iter().collect()))),
            ("capture", sum(workers.iter().map(|w| w.capture.iter().collect()))),
            ("control", self.control.iter().collect()),
            ("cm", self.cm.iter().collect()),
            ("host", sum(self.hosts.iter().map(|h| h.iter().collect()))),
            ("output", output::counters()),
            ("drop", sum(drops.map(|d| d.iter().map(|(reason, count)| (reason.name(), count)).collect()))),
        ];
        Snapshot { groups: groups.into_iter().chain(ports).collect() }
    }
}

impl Snapshot {
    /// The value of counter `name` in `group`.
    pub fn get(&self, group: &str, name: &str) -> Option<u64> {
        let (_, counters) = self.groups.iter().find(|(g, _)| *g == group)?;
        counters.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }
}

/// Names and values as they go into reports.
pub fn report<'a>(values: impl Iterator<Item = (&'a str, u64)>) -> Vec<Counter> {
    values.map(|(name, value)| Counter { name: name.to_owned(), value }).collect()
}

/// Adds lists with the same names in the same order.
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

/// One line per group, with its non-zero counters.
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
    fn every_counter_is_described() {
        let telemetry = Telemetry {
            workers: vec![WorkerCounters::default()],
            control: Arc::default(),
            cm: Arc::default(),
            hosts: vec![Arc::default()],
            control_drops: Arc::default(),
            ports: vec![PortCounters {
                group: "socket",
                descriptions: &[("datagrams", "Datagrams received.")],
                read: Arc::new(|| vec![("datagrams", 7)]),
            }],
        };
        telemetry.cm.rx_req.add(3);
        let groups = telemetry.groups(&[5]);
        let names: Vec<&str> = groups.iter().map(|group| group.group.as_str()).collect();
        for (group, _) in telemetry.snapshot().groups {
            assert!(names.contains(&group), "{group} is in the summary only");
        }
        for group in &groups {
            for counter in &group.counters {
                let text =
                    telemetry.describe(&group.group, &counter.name).unwrap_or_else(|| panic!("{group:?} {counter:?}"));
                assert!(text.ends_with('.'), "{}: {text}", counter.name);
            }
        }
        assert_eq!(groups.iter().find(|group| group.group == "cm").and_then(|cm| cm.get("rx_req")), Some(3));
        assert_eq!((groups[0].scope.as_str(), groups[0].id), ("lcore", 5));
        assert_eq!(groups.iter().find_map(|group| group.get("datagrams")), Some(7));
        assert_eq!(describe("cm", "nonsense"), None);
        assert_eq!(describe("nonsense", "rx_req"), None);
    }

    #[test]
    fn zero_counters_stay_out_of_the_text() {
        let snapshot = Snapshot { groups: vec![("drop", vec![("a", 0), ("b", 2)]), ("cm", vec![("c", 0)])] };
        assert_eq!(snapshot.to_string(), "drop: b=2\ncm: nothing\n");
        assert_eq!(snapshot.get("drop", "b"), Some(2));
        assert_eq!(snapshot.get("drop", "x"), None);
    }
}
