//! Results as a table and as JSON.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::plan::Plan;

/// The result for one size.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the test on the command line.
    pub test: String,
    /// Size of a message in bytes.
    pub size: u32,
    /// Number of queue pairs.
    pub qps: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Messages completed during the measurement.
    pub messages: u64,
    /// Messages per second.
    pub msg_rate: f64,
    /// Bandwidth of the payload in Gb/s.
    pub bw_gbps: f64,
    /// Latency of the messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lat_us: Option<Latency>,
    /// Bandwidth of the additional load in Gb/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bulk_gbps: Option<f64>,
    /// Frames that were not reflected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}

/// Latency percentiles in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
    pub mean: f64,
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
        }
    }
}

impl Outcome {
    /// `messages` of `size` bytes in `seconds`.
    pub fn new(plan: &Plan, size: u32, mtu: u32, messages: u64, seconds: f64) -> Outcome {
        let per_second = if seconds > 0.0 { messages as f64 / seconds } else { 0.0 };
        Outcome {
            test: plan.test.name(),
            size,
            qps: plan.qps,
            mtu,
            seconds,
            messages,
            msg_rate: per_second,
            bw_gbps: per_second * f64::from(size) * 8.0 / 1e9,
            lat_us: None,
            bulk_gbps: None,
            lost: None,
        }
    }
}

/// The results as JSON: an object, or with several sizes an array of objects.
pub fn json(outcomes: &[Outcome]) -> String {
    let text = match outcomes {
        [one] => serde_json::to_string(one),
        all => serde_json::to_string(all),
    };
    // Serialization cannot fail: there are numbers and strings only. A NaN becomes null.
    text.unwrap_or_default() + "\n"
}

/// The results as a table like perftest's.
pub fn table(plan: &Plan, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let latency = outcomes.iter().any(|outcome| outcome.lat_us.is_some());
    let unit = if plan.gbits { "Gb/s" } else { "MiB/s" };
    // Writing to a string cannot fail.
    let _ = if latency {
        write!(
            text,
            "{:>10} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>14}",
            "#bytes",
            "messages",
            "min[us]",
            "p50[us]",
            "mean[us]",
            "p99[us]",
            "p99.9[us]",
            "p99.99[us]",
            "max[us]",
            "MsgRate[Mpps]"
        )
    } else {
        write!(text, "{:>10} {:>12} {:>18} {:>16}", "#bytes", "messages", format!("BW[{unit}]"), "MsgRate[Mpps]")
    };
    let bulk = outcomes.iter().any(|outcome| outcome.bulk_gbps.is_some());
    text += if bulk { "     bulk[Gb/s]\n" } else { "\n" };
    for outcome in outcomes {
        let Outcome { size, messages, .. } = outcome;
        let rate = outcome.msg_rate / 1e6;
        let _ = match outcome.lat_us {
            Some(Latency { min, p50, p99, p99_9, p99_99, max, mean }) => write!(
                text,
                "{size:>10} {messages:>12} {min:>10.3} {p50:>10.3} {mean:>10.3} {p99:>10.3} {p99_9:>10.3} {p99_99:>10.3} {max:>10.3} {rate:>14.6}"
            ),
            None => {
                let bandwidth = if plan.gbits { outcome.bw_gbps } else { outcome.bw_gbps * 1e9 / 8.0 / 1_048_576.0 };
                write!(text, "{size:>10} {messages:>12} {bandwidth:>18.2} {rate:>16.6}")
            }
        };
        text += &outcome.bulk_gbps.map_or_else(|| "\n".to_owned(), |bulk| format!(" {bulk:>14.2}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    fn outcome() -> Outcome {
        Outcome::new(&plan(), 64, 4096, 20_000_000, 2.0)
    }

    #[test]
    fn json_is_an_object_or_an_array() {
        let one: serde_json::Value = serde_json::from_str(&json(&[outcome()])).expect("JSON");
        assert_eq!((&one["test"], &one["messages"]), (&"write-bw".into(), &20_000_000.into()));
        assert_eq!((one["msg_rate"].as_f64(), one["bw_gbps"].as_f64()), (Some(1e7), Some(5.12)));
        assert_eq!(one.get("lat_us"), None);
        let two: serde_json::Value = serde_json::from_str(&json(&[outcome(), outcome()])).expect("JSON");
        assert_eq!(two.as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut nanos = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds");
        for n in 1..=10_000 {
            nanos.record(n * 1000).expect("in range");
        }
        let latency = Latency::of(&nanos);
        for (found, wanted) in [(latency.min, 1.0), (latency.p50, 5000.0), (latency.p99, 9900.0), (latency.max, 1e4)] {
            assert!((found / wanted - 1.0).abs() < 0.002, "{found} for {wanted}");
        }
        let slow = Outcome { lat_us: Some(latency), ..outcome() };
        let value: serde_json::Value = serde_json::from_str(&json(std::slice::from_ref(&slow))).expect("JSON");
        assert!(value["lat_us"]["p99_99"].is_f64());
        assert_eq!(table(&plan(), std::slice::from_ref(&slow)).lines().count(), 2);
        let beside = Outcome { bulk_gbps: Some(12.345), ..slow };
        let lines: Vec<usize> = table(&plan(), std::slice::from_ref(&beside)).lines().map(str::len).collect();
        assert!(lines.len() == 2 && lines[0] == lines[1] && table(&plan(), &[beside]).contains(" 12.3"), "{lines:?}");
    }

    #[test]
    fn the_table_has_the_requested_unit() {
        let mebi = table(&plan(), &[outcome()]);
        assert!(mebi.contains("BW[MiB/s]") && mebi.contains("610.35"), "{mebi}");
        let giga = table(&Plan { gbits: true, ..plan() }, &[outcome()]);
        assert!(giga.contains("BW[Gb/s]") && giga.contains(" 5.12 ") && giga.contains("10.000000"), "{giga}");
    }
}
