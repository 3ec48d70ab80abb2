//! Rates between two snapshots.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::{CounterGroup, Device, Qp, Service};
use serde::Serialize;

use super::SortBy;

/// The state and counters of a target at one time.
pub struct Snapshot {
    at: Instant,
    device: Device,
    counters: Vec<CounterGroup>,
    services: Vec<Service>,
    qps: Vec<Qp>,
}

impl Snapshot {
    /// Requests all of it from the target.
    pub fn take(target: &mut Client) -> Result<Snapshot, CliError> {
        Ok(Snapshot {
            at: Instant::now(),
            device: target.ask(&Request::Device)?,
            counters: target.ask(&Request::Counters)?,
            services: target.ask(&Request::Services)?,
            qps: target.ask_all(|start| Request::Qps { start })?,
        })
    }

    fn counter(&self, group: &str, lcore: u32, name: &str) -> u64 {
        let groups = self.counters.iter().filter(|g| g.group == group && g.scope == "lcore" && g.id == lcore);
        groups.filter_map(|g| g.get(name)).sum()
    }

    fn drops(&self, lcore: u32) -> u64 {
        let groups = self.counters.iter().filter(|g| g.group == "drop" && g.scope == "lcore" && g.id == lcore);
        groups.flat_map(|g| &g.counters).map(|counter| counter.value).sum()
    }
}

/// Changes between two snapshots, per second.
#[derive(Debug, Serialize)]
pub struct Rates {
    /// The device.
    pub device: String,
    /// Uptime of the target in seconds.
    pub uptime: u64,
    /// Time between the snapshots.
    pub seconds: f64,
    /// Rates of each lcore.
    pub lcores: Vec<LcoreRate>,
    /// Services with queue pairs or a counter above zero, busiest first.
    pub services: Vec<ServiceRate>,
    /// Queue pairs, sorted.
    pub qps: Vec<QpRate>,
}

/// An lcore's rates.
#[derive(Debug, Serialize)]
pub struct LcoreRate {
    pub lcore: u32,
    /// Share of poll loop iterations that found work, in percent.
    pub busy: f64,
    pub rx_pps: f64,
    pub tx_pps: f64,
    /// Bits of RoCE frames.
    pub rx_bps: f64,
    pub tx_bps: f64,
    pub drops: f64,
    pub retransmits: f64,
    pub completions: f64,
}

/// A service's rates.
#[derive(Debug, Serialize)]
pub struct ServiceRate {
    pub service: String,
    pub qps: usize,
    pub connections: usize,
    pub new_connections: f64,
    pub exchanges: f64,
    pub packets: f64,
}

/// A queue pair's rates.
#[derive(Debug, Serialize)]
pub struct QpRate {
    pub lqpn: u32,
    #[serde(rename = "type")]
    pub qp_type: String,
    pub state: String,
    pub service: String,
    pub peer: String,
    pub lcore: u32,
    /// Packets of the peer's requests, READ responses included.
    pub rx_pps: f64,
    /// Packets of our acknowledged requests, READ responses included.
    pub tx_pps: f64,
    pub sends: f64,
    pub recvs: f64,
    pub retries: f64,
    pub outstanding: u64,
    pub waits: String,
}

impl Rates {
    /// The rates from `before` to `after`.
    pub fn between(before: &Snapshot, after: &Snapshot, sort: SortBy) -> Rates {
        let seconds = (after.at - before.at).max(Duration::from_millis(1)).as_secs_f64();
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let lcores = after.device.lcores.iter().map(|&lcore| {
            let of =
                |group: &str, name: &str| rate(before.counter(group, lcore, name), after.counter(group, lcore, name));
            let (turns, idle) = (of("worker", "turns"), of("worker", "idle_turns"));
            LcoreRate {
                lcore,
                busy: if turns > 0.0 { (100.0 * (turns - idle) / turns).clamp(0.0, 100.0) } else { 0.0 },
                rx_pps: of("worker", "rx_frames"),
                tx_pps: of("worker", "tx_frames"),
                rx_bps: 8.0 * of("transport", "rcvd_bytes"),
                tx_bps: 8.0 * of("transport", "sent_bytes"),
                drops: rate(before.drops(lcore), after.drops(lcore)),
                retransmits: of("transport", "retransmitted_pkts"),
                completions: of("service", "completions"),
            }
        });
        let old: HashMap<u32, &Qp> = before.qps.iter().map(|qp| (qp.lqpn, qp)).collect();
        let qps = after.qps.iter().map(|qp| {
            // A queue pair that is new, or reused for another peer, starts at zero.
            let was = old.get(&qp.lqpn).filter(|was| was.rqpn == qp.rqpn && was.peer == qp.peer).copied().unwrap_or(qp);
            QpRate {
                lqpn: qp.lqpn,
                qp_type: qp.qp_type.clone(),
                state: qp.state.clone(),
                service: qp.service.clone().unwrap_or_default(),
                peer: qp.peer.clone().unwrap_or_default(),
                lcore: qp.lcore,
                rx_pps: rate(was.rx_packets, qp.rx_packets),
                tx_pps: rate(was.tx_packets, qp.tx_packets),
                sends: rate(was.sends_completed, qp.sends_completed),
                recvs: f64::from(qp.recvs_completed.wrapping_sub(was.recvs_completed)) / seconds,
                retries: rate(was.retries, qp.retries),
                outstanding: qp.outstanding,
                waits: qp.waits.clone(),
            }
        });
        let mut rates = Rates {
            device: after.device.name.clone(),
            uptime: after.device.uptime,
            seconds,
            lcores: lcores.collect(),
            services: Vec::new(),
            qps: qps.collect(),
        };
        rates.services = services(before, after, &rates.qps, seconds);
        rates.sort(sort);
        rates
    }

    /// Sorts the queue pairs, largest first.
    pub fn sort(&mut self, by: SortBy) {
        // Rates are never NaN, and a resolution of 0.001 is enough.
        let thousandths = |rate: f64| (1000.0 * rate) as u64;
        self.qps.sort_by_key(|qp| {
            let key = match by {
                SortBy::Packets => thousandths(qp.rx_pps + qp.tx_pps),
                SortBy::Retries => thousandths(qp.retries),
                SortBy::Outstanding => qp.outstanding,
            };
            (Reverse(key), qp.lqpn)
        });
    }
}

/// The sum. `Iterator::sum` of no numbers is -0.0, which would be printed with its sign.
fn total(rates: impl Iterator<Item = f64>) -> f64 {
    rates.fold(0.0, |sum, rate| sum + rate)
}

fn services(before: &Snapshot, after: &Snapshot, qps: &[QpRate], seconds: f64) -> Vec<ServiceRate> {
    let counter = |services: &[Service], service: &str, name: &str| {
        let service = services.iter().find(|s| s.name == service)?;
        service.counters.iter().find(|c| c.name == name).map(|c| c.value)
    };
    let mut rates: Vec<ServiceRate> = Vec::new();
    for service in &after.services {
        // Services that share a port have their queue pairs in common, under both names.
        let is_its = |name: &str| name.split(' ').any(|name| name == service.name);
        let its = |qp: &&Qp| qp.service.as_deref().is_some_and(is_its);
        let rate = |name: &str| {
            let now = counter(&after.services, &service.name, name).unwrap_or(0);
            now.saturating_sub(counter(&before.services, &service.name, name).unwrap_or(0)) as f64 / seconds
        };
        rates.push(ServiceRate {
            service: service.name.clone(),
            qps: after.qps.iter().filter(its).count(),
            connections: after.qps.iter().filter(its).filter(|qp| qp.connection.is_some()).count(),
            new_connections: rate("connections"),
            exchanges: rate("exchanges"),
            packets: total(qps.iter().filter(|qp| is_its(&qp.service)).map(|qp| qp.rx_pps + qp.tx_pps)),
        });
    }
    let counted = |name: &str| {
        let service = after.services.iter().find(|s| s.name == name);
        service.is_some_and(|s| s.counters.iter().any(|c| c.value > 0))
    };
    rates.retain(|rate| rate.qps > 0 || counted(&rate.service));
    rates.sort_by(|a, b| b.packets.total_cmp(&a.packets).then_with(|| a.service.cmp(&b.service)));
    rates
}

#[cfg(test)]
mod tests {
    use rxe_inspect::report::Counter;

    use super::*;

    fn snapshot() -> Snapshot {
        let counter = Counter { name: "connections".to_owned(), value: 1 };
        Snapshot {
            at: Instant::now(),
            device: Device { lcores: vec![0], ..Device::default() },
            counters: Vec::new(),
            services: vec![Service {
                name: "region".to_owned(),
                listens: Vec::new(),
                stopped: false,
                counters: vec![counter],
            }],
            qps: Vec::new(),
        }
    }

    #[test]
    fn no_rate_of_an_idle_target_is_negative() {
        let (before, after) = (snapshot(), snapshot());
        let rates = Rates::between(&before, &after, SortBy::Packets);
        assert_eq!(rates.services.len(), 1, "a service with a counter above zero");
        let json = serde_json::to_string(&rates).expect("JSON");
        let text = super::super::view::text(&rates);
        assert!(!json.contains("-0") && !text.contains("-0"), "{json}\n{text}");
    }
}
