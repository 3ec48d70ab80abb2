//! What the listening sockets of management count.

use std::sync::Arc;

use rxe_inspect::report::{Counter, CounterGroup};
use rxe_inspect::server::{ClientStats, DESCRIPTIONS};

/// The counters of both listening sockets.
#[derive(Clone, Debug, Default)]
pub struct ManagementStats {
    /// Clients of the metrics.
    pub metrics: Arc<ClientStats>,
    /// Clients of the socket of `rxe-ctl`.
    pub socket: Arc<ClientStats>,
}

/// The group of these counters.
pub const MANAGEMENT: &str = "management";
/// Prefixes of the counters of each socket.
const METRICS: &str = "metrics_";
const SOCKET: &str = "socket_";

impl ManagementStats {
    /// As a group of `rxe-ctl stat`.
    pub fn group(&self) -> CounterGroup {
        let both = [(METRICS, &self.metrics), (SOCKET, &self.socket)];
        let counters = both.into_iter().flat_map(|(socket, stats)| {
            let named = DESCRIPTIONS.into_iter().zip(stats.values());
            named.map(move |((name, _), value)| Counter { name: format!("{socket}{name}"), value })
        });
        CounterGroup { group: MANAGEMENT.to_owned(), scope: "target".to_owned(), id: 0, counters: counters.collect() }
    }
}

/// Description of the counter `name` of the group.
pub fn describe(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix(METRICS).or_else(|| name.strip_prefix(SOCKET))?;
    DESCRIPTIONS.iter().find(|(counter, _)| *counter == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn every_counter_is_listed_and_described() {
        let stats = ManagementStats::default();
        stats.socket.timeouts.fetch_add(1, Ordering::Relaxed);
        let group = stats.group();
        assert_eq!((group.get("socket_timeouts"), group.get("metrics_timeouts")), (Some(1), Some(0)));
        for counter in group.counters {
            assert!(describe(&counter.name).is_some_and(|text| text.ends_with('.')), "{}", counter.name);
        }
        assert_eq!(describe("timeouts"), None);
    }
}
