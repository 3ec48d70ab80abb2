//! Results and their JSON. docs/measuring.md describes every key.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::plan::{Length, Plan, Protocol, Test};
use crate::retransmissions::Retransmissions;

/// The result for one size.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the test on the command line.
    pub test: String,
    /// Size of a message in bytes.
    pub size: u32,
    /// Number of queue pairs.
    pub qps: u32,
    /// Path MTU in bytes; 0 if the run ended before it was known.
    pub mtu: u32,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Messages completed during the measurement.
    pub messages: u64,
    /// Messages per second.
    pub msg_rate: f64,
    /// Messages per second of the fastest slice.
    pub msg_rate_peak: f64,
    /// Bandwidth of the payload in Gb/s.
    pub bw_gbps: f64,
    /// Bandwidth in the fastest slice.
    pub bw_peak_gbps: f64,
    /// Latency of the messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lat_us: Option<Latency>,
    /// Bandwidth of the additional load in Gb/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk_gbps: Option<f64>,
    /// Frames that were not reflected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmissions: Option<Retransmissions>,
    /// How the measurement ended.
    pub end: End,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub parameters: Parameters,
}

/// How a measurement ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// As planned.
    Complete,
    /// By a signal.
    Interrupted,
    /// By an error, for example a target that went away.
    Failed,
}

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
    pub mean: f64,
    /// Standard deviation.
    pub stdev: f64,
}

/// The parameters of the run.
#[derive(Clone, Debug, Serialize)]
pub struct Parameters {
    /// Of rxe-bench and DPDK.
    pub version: &'static str,
    pub address: String,
    pub peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<&'static str>,
    /// Name of the region; empty for the target's first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Number of numbered regions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions: Option<u32>,
    /// Outstanding messages of a queue pair.
    pub tx_depth: u32,
    /// Messages per completion.
    pub cq_mod: u32,
    /// Outstanding READs and atomics of a queue pair.
    pub outs: u8,
    /// Planned messages of a queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iters: Option<u64>,
    /// Planned seconds; with `--run_infinitely` those of an interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    pub run_infinitely: bool,
    /// Seconds.
    pub warm_up: f64,
    pub bidirectional: bool,
    pub verify: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk: Option<BulkParameters>,
}

/// The parameters of the additional load.
#[derive(Clone, Debug, Serialize)]
pub struct BulkParameters {
    pub test: String,
    pub qps: u32,
    pub size: u32,
}

impl Latency {
    /// From a histogram of nanoseconds.
    pub fn of(nanos: &Histogram<u64>) -> Latency {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        let at = |quantile| micros(nanos.value_at_quantile(quantile));
        Latency {
            min: micros(nanos.min()),
            p50: at(0.5),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: micros(nanos.max()),
            mean: nanos.mean() / 1000.0,
            stdev: nanos.stdev() / 1000.0,
        }
    }
}

impl Parameters {
    fn new(plan: &Plan, size: u32) -> Parameters {
        let (iters, duration) = match plan.length {
            Length::Messages(messages) => (Some(messages), None),
            Length::Time(time) | Length::Endless(time) => (None, Some(time.as_secs_f64())),
        };
        // `echo` sends bare frames.
        let connects = plan.test != Test::Echo;
        let region = plan.protocol == Protocol::Region && connects;
        Parameters {
            version: rxe::VERSION,
            address: plan.address.to_string(),
            peer: if connects { plan.peer.to_string() } else { plan.peer.ip().to_string() },
            gateway: plan.gateway.map(|gateway| gateway.to_string()),
            protocol: connects.then(|| plan.protocol.name()),
            region: region.then(|| plan.region.clone()),
            regions: plan.regions,
            tx_depth: plan.depth_of(size),
            cq_mod: plan.group(size),
            outs: plan.reads,
            iters,
            duration,
            run_infinitely: matches!(plan.length, Length::Endless(_)),
            warm_up: plan.warm_up.as_secs_f64(),
            bidirectional: plan.both_ways,
            verify: plan.verify,
            bulk: plan.bulk.map(|bulk| BulkParameters { test: bulk.test.name(), qps: bulk.qps, size: bulk.size }),
        }
    }
}

impl Outcome {
    /// `messages` of `size` bytes in `seconds`.
    pub fn new(plan: &Plan, size: u32, mtu: u32, messages: u64, seconds: f64) -> Outcome {
        let per_second = if seconds > 0.0 { messages as f64 / seconds } else { 0.0 };
        let mut outcome = Outcome {
            test: plan.test.name(),
            size,
            qps: plan.qps,
            mtu,
            seconds,
            messages,
            msg_rate: per_second,
            msg_rate_peak: 0.0,
            bw_gbps: gbps(size, per_second),
            bw_peak_gbps: 0.0,
            lat_us: None,
            bulk_gbps: None,
            lost: None,
            retransmissions: None,
            end: End::Complete,
            error: None,
            parameters: Parameters::new(plan, size),
        };
        outcome.set_peak(per_second);
        outcome
    }

    /// The result of a run that ended before the measurement of `size`.
    pub fn nothing(plan: &Plan, size: u32, end: End) -> Outcome {
        Outcome { end, ..Outcome::new(plan, size, 0, 0, 0.0) }
    }

    /// Sets the highest rate, in messages per second.
    pub fn set_peak(&mut self, per_second: f64) {
        self.msg_rate_peak = per_second;
        self.bw_peak_gbps = gbps(self.size, per_second);
    }
}

/// The bandwidth of `per_second` transfers of `size` bytes, in Gb/s.
pub fn gbps(size: u32, per_second: f64) -> f64 {
    per_second * f64::from(size) * 8.0 / 1e9
}

/// The results as JSON: an object, or an array of objects for a plan with several sizes.
pub fn json(plan: &Plan, outcomes: &[Outcome]) -> String {
    let text = match outcomes {
        [one] if plan.sizes.len() <= 1 => serde_json::to_string(one),
        all => serde_json::to_string(all),
    };
    // Serialization cannot fail: there are numbers and strings only. A NaN becomes null.
    text.unwrap_or_default() + "\n"
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::plan::Beside;
    use crate::plan::tests::plan;

    /// 20 million messages of 64 bytes in 2 seconds.
    pub fn outcome() -> Outcome {
        Outcome::new(&plan(), 64, 4096, 20_000_000, 2.0)
    }

    /// Latencies of 1 us to 10 ms.
    pub fn latency() -> Latency {
        let mut nanos = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds");
        for n in 1..=10_000 {
            nanos.record(n * 1000).expect("in range");
        }
        Latency::of(&nanos)
    }

    fn value(plan: &Plan, outcomes: &[Outcome]) -> Value {
        serde_json::from_str(&json(plan, outcomes)).expect("JSON")
    }

    #[test]
    fn json_is_an_object_or_an_array() {
        let one = value(&plan(), &[outcome()]);
        assert_eq!((&one["test"], &one["messages"]), (&"write-bw".into(), &20_000_000.into()));
        assert_eq!((one["msg_rate"].as_f64(), one["bw_gbps"].as_f64()), (Some(1e7), Some(5.12)));
        assert_eq!((&one["end"], &one["parameters"]["tx_depth"]), (&"complete".into(), &128.into()));
        assert_eq!(one.get("lat_us"), None);
        let all = Plan { sizes: vec![2, 4], ..plan() };
        assert_eq!(value(&all, &[outcome(), outcome()]).as_array().map(Vec::len), Some(2));
        assert_eq!(value(&all, &[outcome()]).as_array().map(Vec::len), Some(1), "--all that ended early");
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let latency = latency();
        for (found, wanted) in [
            (latency.min, 1.0),
            (latency.p50, 5000.0),
            (latency.p99, 9900.0),
            (latency.max, 1e4),
            (latency.stdev, 2886.75),
        ] {
            assert!((found / wanted - 1.0).abs() < 0.002, "{found} for {wanted}");
        }
    }

    /// Names of all values, with those of the objects around them.
    pub fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                keys(value, format!("{path}.{name}").trim_start_matches('.'), found);
            }),
            Value::Array(elements) => elements.iter().for_each(|value| keys(value, path, found)),
            _ => {
                found.insert(path.to_owned());
            }
        }
    }

    /// The keys of the tables in a section of docs/measuring.md.
    pub fn documented(section: &str) -> BTreeSet<String> {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/measuring.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let (_, section) = page.split_once(&format!("## {section}")).expect("the section");
        let section = section.split("\n## ").next().expect("its text");
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" |"));
        rows.flat_map(|(names, _)| names.trim_end_matches('`').split("`, `")).map(str::to_owned).collect()
    }

    #[test]
    fn the_documentation_lists_every_key() {
        let bulk = Some(Beside { test: Test::ReadBw, qps: 8, size: 1 << 20 });
        let timed = Length::Time(std::time::Duration::from_secs(1));
        let gateway = Some([10, 0, 0, 254].into());
        let mut found = BTreeSet::new();
        for plan in [Plan { bulk, regions: Some(3), gateway, ..plan() }, Plan { length: timed, ..plan() }] {
            let full = Outcome {
                lat_us: Some(latency()),
                bulk_gbps: Some(1.0),
                lost: Some(0),
                retransmissions: Some(Retransmissions::default()),
                error: Some("gone".to_owned()),
                ..Outcome::new(&plan, 64, 4096, 1, 1.0)
            };
            keys(&value(&plan, &[full]), "", &mut found);
        }
        assert_eq!(documented("JSON"), found);
    }
}
