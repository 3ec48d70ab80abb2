//! Results as JSON and as text. docs/measuring.md describes every key.

use std::fmt::Write as _;

use hdrhistogram::Histogram;
use rxe_nvmf::wire::StatusCode;
use serde::Serialize;

use super::host::Host;
use super::plan::NvmePlan;
use crate::outcome::{End, Latency, gbps};
use crate::plan::Length;
use crate::retransmissions::Retransmissions;
use crate::table::{LINE, length, named};

/// A result.
#[derive(Clone, Debug, Serialize)]
pub struct NvmeOutcome {
    /// `nvme`.
    pub test: &'static str,
    /// Name of the workload on the command line.
    pub workload: String,
    /// Bytes of an I/O.
    pub size: u32,
    /// Number of I/O queues.
    pub queues: u16,
    /// Outstanding I/Os of a queue.
    pub depth: u16,
    /// Path MTU in bytes; 0 if the run ended before it was known.
    pub mtu: u32,
    /// Duration of the measurement.
    pub seconds: f64,
    /// I/Os that succeeded during the measurement.
    pub ios: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// I/Os per second.
    pub iops: f64,
    /// Their data in MiB per second.
    pub mib_per_second: f64,
    /// The rate in Gb/s of data.
    pub bw_gbps: f64,
    /// Time from sending a command to its response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lat_us: Option<IoLatency>,
    /// Blocks that were checked, with `--verify`; since the start of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checked_blocks: Option<u64>,
    /// Commands that failed, by status; since the start of the run.
    pub errors: Vec<Failures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmissions: Option<Retransmissions>,
    /// How the measurement ended.
    pub end: End,
    /// Why the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub parameters: Parameters,
}

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct IoLatency {
    #[serde(flatten)]
    pub common: Latency,
    pub p90: f64,
}

/// Commands that failed with one status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failures {
    /// The status as text.
    pub status: String,
    /// Status code type and status code, as the completion entry has them.
    pub code: u16,
    pub count: u64,
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
    pub subsystem: String,
    pub host: String,
    pub namespace: u32,
    /// Bytes of a block, when connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Whether the data of writes are in the capsule, when connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_capsule: Option<bool>,
    /// Percentage of reads.
    pub reads: u8,
    /// Planned seconds; with `--run_infinitely` those of an interval.
    pub duration: f64,
    pub run_infinitely: bool,
    /// Seconds.
    pub warm_up: f64,
    pub verify: bool,
}

impl IoLatency {
    /// From a histogram of nanoseconds.
    pub fn of(nanos: &Histogram<u64>) -> IoLatency {
        IoLatency { common: Latency::of(nanos), p90: nanos.value_at_quantile(0.9) as f64 / 1000.0 }
    }
}

impl Parameters {
    fn new(plan: &NvmePlan) -> Parameters {
        let duration = match plan.length {
            Length::Time(time) | Length::Endless(time) => time.as_secs_f64(),
            Length::Messages(_) => 0.0,
        };
        Parameters {
            version: rxe::VERSION,
            address: plan.address.to_string(),
            peer: plan.peer.to_string(),
            gateway: plan.gateway.map(|gateway| gateway.to_string()),
            subsystem: plan.subsystem.to_string(),
            host: plan.host_nqn.to_string(),
            namespace: plan.namespace,
            block_size: None,
            in_capsule: None,
            reads: plan.reads,
            duration,
            run_infinitely: matches!(plan.length, Length::Endless(_)),
            warm_up: plan.warm_up.as_secs_f64(),
            verify: plan.verify,
        }
    }
}

impl NvmeOutcome {
    /// The outcome of a run that completed `reads` and `writes` in `seconds`.
    pub fn new(plan: &NvmePlan, host: &Host, mtu: u32, (reads, writes): (u64, u64), seconds: f64) -> NvmeOutcome {
        let ios = reads + writes;
        let iops = if seconds > 0.0 { ios as f64 / seconds } else { 0.0 };
        let mut outcome = NvmeOutcome {
            mtu,
            seconds,
            ios,
            reads,
            writes,
            iops,
            mib_per_second: iops * f64::from(plan.size) / 1_048_576.0,
            bw_gbps: gbps(plan.size, iops),
            ..NvmeOutcome::nothing(plan, End::Complete)
        };
        outcome.set_totals(host);
        outcome
    }

    /// The result of a run that ended before its measurement.
    pub fn nothing(plan: &NvmePlan, end: End) -> NvmeOutcome {
        NvmeOutcome {
            test: "nvme",
            workload: plan.workload.name(),
            size: plan.size,
            queues: plan.queues,
            depth: plan.depth,
            mtu: 0,
            seconds: 0.0,
            ios: 0,
            reads: 0,
            writes: 0,
            iops: 0.0,
            mib_per_second: 0.0,
            bw_gbps: 0.0,
            lat_us: None,
            checked_blocks: None,
            errors: Vec::new(),
            retransmissions: None,
            end,
            error: None,
            parameters: Parameters::new(plan),
        }
    }

    /// Sets what is counted from the start to the end of the run.
    pub fn set_totals(&mut self, host: &Host) {
        let of = |&(code, count): &(StatusCode, u64)| Failures { status: code.to_string(), code: code.bits(), count };
        self.errors = host.counts.errors.iter().map(of).collect();
        self.checked_blocks = self.parameters.verify.then_some(host.counts.checked);
        if let Some(layout) = host.layout() {
            self.parameters.block_size = Some(1 << layout.block_shift);
            self.parameters.in_capsule = Some(layout.in_capsule);
        }
    }

    /// Number of failed commands.
    pub fn failed(&self) -> u64 {
        self.errors.iter().map(|failures| failures.count).sum()
    }

    /// Failed commands by status, in one line.
    pub fn failures(&self) -> String {
        let each: Vec<String> = self.errors.iter().map(|one| format!("{} {}", one.count, one.status)).collect();
        each.join(", ")
    }
}

/// The result as JSON.
pub fn json(outcome: &NvmeOutcome) -> String {
    // Serialization cannot fail: there are numbers and strings only. A NaN becomes null.
    serde_json::to_string(outcome).unwrap_or_default() + "\n"
}

/// The parameters and the header of the columns.
pub fn head(outcome: &NvmeOutcome) -> String {
    let NvmeOutcome { parameters, size, queues, depth, mtu, workload, .. } = outcome;
    let workload = match parameters.reads {
        0 | 100 => workload.clone(),
        percent => format!("{workload}, {percent}% reads"),
    };
    let mut lines = vec![
        ("Test", format!("nvme {workload}")),
        ("Version", format!("rxe-bench {}", parameters.version)),
        ("Address", parameters.address.clone()),
        ("Peer", parameters.peer.clone()),
    ];
    lines.extend(parameters.gateway.clone().map(|gateway| ("Gateway", gateway)));
    lines.push(("Subsystem", parameters.subsystem.clone()));
    lines.push(("Host", parameters.host.clone()));
    let blocks = parameters.block_size.map_or_else(String::new, |size| format!(", blocks of {size} bytes"));
    lines.push(("Namespace", format!("{}{blocks}", parameters.namespace)));
    lines.push(("I/O size", format!("{size} bytes")));
    lines.push(("Queues", format!("{queues}, {depth} outstanding I/Os each")));
    lines.push(("Path MTU", format!("{mtu} bytes")));
    lines.push(("Length", length(parameters.duration, parameters.run_infinitely)));
    lines.push(("Warm-up", format!("{} s", parameters.warm_up)));
    if parameters.verify {
        lines.push(("Verify", "every written block".to_owned()));
    }
    let banner = named(lines);
    let mut text = format!("{LINE}{banner}{LINE} {:<12} {:>12} {:>12}", "#I/Os", "IOPS", "BW[MiB/sec]");
    for name in [
        "t_avg[usec]",
        "t_min[usec]",
        "50%[usec]",
        "90%[usec]",
        "99%[usec]",
        "99.9%[usec]",
        "99.99%[usec]",
        "t_max[usec]",
    ] {
        // Writing to a string cannot fail.
        let _ = write!(text, " {name:>12}");
    }
    text + "  #errors\n"
}

/// The columns of a result.
pub fn row(outcome: &NvmeOutcome) -> String {
    let mut text = format!(" {:<12} {:>12.0} {:>12.2}", outcome.ios, outcome.iops, outcome.mib_per_second);
    let times = outcome.lat_us.map(|IoLatency { common, p90 }| {
        let Latency { min, p50, p99, p99_9, p99_99, max, mean, .. } = common;
        [mean, min, p50, p90, p99, p99_9, p99_99, max]
    });
    for nth in 0..8 {
        // Writing to a string cannot fail.
        let _ = match times {
            Some(times) => write!(text, " {:>12.2}", times[nth]),
            None => write!(text, " {:>12}", "-"),
        };
    }
    text + &format!(" {:>8}\n", outcome.failed())
}

/// What follows the row: failed commands by status, checked blocks, and what was sent again.
pub fn foot(outcome: &NvmeOutcome) -> String {
    let mut text = LINE.to_owned();
    for Failures { status, count, .. } in &outcome.errors {
        text += &format!(" Failed            : {count} with status {status}\n");
    }
    if let Some(blocks) = outcome.checked_blocks {
        text += &format!(" Checked           : {blocks} blocks\n");
    }
    if let Some(sent) = outcome.retransmissions {
        text += &format!(" Retransmitted     : {} packets; losses: {}\n", sent.packets, sent.losses);
    }
    text
}

/// The whole text; nothing without a measurement.
pub fn text(outcome: &NvmeOutcome) -> String {
    if outcome.seconds > 0.0 { head(outcome) + &row(outcome) + &foot(outcome) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::measurement::latencies;
    use crate::nvme::plan::tests::plan;
    use crate::outcome::tests::{documented, keys};

    /// A result with every optional part.
    fn full() -> NvmeOutcome {
        let mut latency = latencies().expect("a histogram");
        (1..=1000u64).for_each(|micros| latency.record(micros * 1000).expect("within its bounds"));
        let plan = NvmePlan { gateway: Some([10, 0, 0, 254].into()), verify: true, reads: 70, ..plan() };
        let mut outcome = NvmeOutcome {
            mtu: 4096,
            seconds: 2.0,
            ios: 1000,
            reads: 700,
            writes: 300,
            iops: 500.0,
            lat_us: Some(IoLatency::of(&latency)),
            checked_blocks: Some(300),
            errors: vec![Failures { status: "invalid field (0x002)".to_owned(), code: 2, count: 3 }],
            retransmissions: Some(Retransmissions::default()),
            error: Some("3 commands failed".to_owned()),
            ..NvmeOutcome::nothing(&plan, End::Failed)
        };
        (outcome.parameters.block_size, outcome.parameters.in_capsule) = (Some(512), Some(true));
        outcome
    }

    #[test]
    fn the_documentation_lists_every_key() {
        let mut found = BTreeSet::new();
        keys(&serde_json::from_str(&json(&full())).expect("JSON"), "", &mut found);
        assert_eq!(documented("NVMe over Fabrics"), found);
    }

    #[test]
    fn the_text_has_parameters_percentiles_and_failures() {
        let text = text(&full());
        for words in [
            " Test              : nvme randread, 70% reads\n",
            " Gateway           : 10.0.0.254\n",
            " Namespace         : 1, blocks of 512 bytes\n",
            " Queues            : 1, 4 outstanding I/Os each\n",
            "t_avg[usec]",
            " Failed            : 3 with status invalid field (0x002)\n",
            " Checked           : 300 blocks\n",
            " Retransmitted     : 0 packets; losses: 0\n",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let header = text.lines().find(|line| line.contains("#I/Os")).expect("the header");
        let row = text.lines().find(|line| line.starts_with(" 1000 ")).expect("the row");
        assert_eq!(header.split_whitespace().count(), row.split_whitespace().count(), "{text}");
        let times: Vec<f64> =
            row.split_whitespace().skip(4).take(7).map(|time| time.parse().expect("a time")).collect();
        assert!(times.is_sorted() && (times[1] - 500.0).abs() < 1.0, "{row}");
    }

    #[test]
    fn a_run_without_a_measurement_has_no_text() {
        assert_eq!(text(&NvmeOutcome::nothing(&plan(), End::Failed)), "");
    }
}
