//! Results as text, in the manner of perftest: the parameters, a header, a row for each size, what was sent again.

use std::fmt::Write as _;

use crate::outcome::{Latency, Outcome, Parameters};
use crate::plan::Plan;

/// The line around the parameters.
pub const LINE: &str =
    "---------------------------------------------------------------------------------------------------------\n";

/// Parameters, one in a line.
pub fn named(parameters: Vec<(&str, String)>) -> String {
    parameters.into_iter().map(|(name, value)| format!(" {name:<17} : {value}\n")).collect()
}

/// How long a run measures that is limited by time.
pub fn length(seconds: f64, run_infinitely: bool) -> String {
    if run_infinitely { format!("until stopped, a row every {seconds} s") } else { format!("{seconds} s") }
}

/// The parameters and the header of the columns.
pub fn head(plan: &Plan, first: &Outcome) -> String {
    format!("{LINE}{}{LINE}{}", banner(plan, first), header(plan, first))
}

/// The parameters of the run, one in a line.
fn banner(plan: &Plan, Outcome { mtu, parameters, test, qps, .. }: &Outcome) -> String {
    let Parameters { version, address, peer, protocol, tx_depth, cq_mod, outs, .. } = parameters;
    let mut lines = vec![
        ("Test", test.clone()),
        ("Version", format!("rxe-bench {version}")),
        ("Address", address.clone()),
        ("Peer", peer.clone()),
    ];
    lines.extend(parameters.gateway.clone().map(|gateway| ("Gateway", gateway)));
    lines.extend(protocol.map(|protocol| ("Protocol", protocol.to_owned())));
    match (&parameters.region, parameters.regions) {
        (Some(region), Some(count)) => lines.push(("Regions", format!("{region}0 to {region}{}", count - 1))),
        (Some(region), None) if !region.is_empty() => lines.push(("Region", region.clone())),
        _ => {}
    }
    lines.push(("Queue pairs", qps.to_string()));
    if plan.test.verb().is_some() {
        let depth =
            if plan.sizes.len() > 1 { format!("{tx_depth}, fewer for long messages") } else { tx_depth.to_string() };
        lines.push(("TX depth", depth));
        lines.push(("CQ moderation", cq_mod.to_string()));
        lines.push(("Outstanding reads", outs.to_string()));
    } else if protocol.is_none() {
        lines.push(("Frames in flight", (u64::from(*tx_depth) * u64::from(*qps)).to_string()));
    }
    lines.push(("Path MTU", format!("{mtu} bytes")));
    let length = match parameters.iters {
        Some(iters) => format!("{iters} messages of each queue pair"),
        None => length(parameters.duration.unwrap_or_default(), parameters.run_infinitely),
    };
    lines.push(("Length", length));
    lines.push(("Warm-up", format!("{} s", parameters.warm_up)));
    if parameters.bidirectional {
        lines.push(("Bidirectional", "yes".to_owned()));
    }
    if parameters.verify {
        lines.push(("Verify", "the data of every message".to_owned()));
    }
    lines.extend(parameters.bulk.as_ref().map(|bulk| {
        let (test, qps, size) = (&bulk.test, bulk.qps, bulk.size);
        ("Bulk", format!("{test}, {qps} queue pairs, {size} bytes"))
    }));
    named(lines)
}

/// Whether rows have latencies: these tests measure each message.
fn has_latency(plan: &Plan) -> bool {
    plan.test.is_latency() || plan.test.verb().is_none()
}

fn header(plan: &Plan, first: &Outcome) -> String {
    let mut text = if has_latency(plan) {
        format!(
            " {:<10} {:<12} {:>12} {:>12} {:>15} {:>12} {:>14} {:>20} {:>22} {:>23} {:>14}",
            "#bytes",
            "#iterations",
            "t_min[usec]",
            "t_max[usec]",
            "t_typical[usec]",
            "t_avg[usec]",
            "t_stdev[usec]",
            "99% percentile[usec]",
            "99.9% percentile[usec]",
            "99.99% percentile[usec]",
            "MsgRate[Mpps]"
        )
    } else {
        let unit = if plan.gbits { "Gb/sec" } else { "MiB/sec" };
        format!(
            " {:<10} {:<12} {:>18} {:>20} {:>15}",
            "#bytes",
            "#iterations",
            format!("BW peak[{unit}]"),
            format!("BW average[{unit}]"),
            "MsgRate[Mpps]"
        )
    };
    if first.bulk_gbps.is_some() {
        text += &format!(" {:>14}", "bulk[Gb/sec]");
    }
    text + "\n"
}

/// The columns of one result.
pub fn row(plan: &Plan, outcome: &Outcome) -> String {
    let Outcome { size, messages, .. } = outcome;
    let rate = outcome.msg_rate / 1e6;
    let mut text = format!(" {size:<10} {messages:<12} ");
    // Writing to a string cannot fail.
    let _ = match outcome.lat_us {
        Some(Latency { min, p50, p99, p99_9, p99_99, max, mean, stdev }) if has_latency(plan) => write!(
            text,
            "{min:>12.3} {max:>12.3} {p50:>15.3} {mean:>12.3} {stdev:>14.3} {p99:>20.3} {p99_9:>22.3} {p99_99:>23.3} \
             {rate:>14.6}"
        ),
        // No message of the interval is complete.
        None if has_latency(plan) => {
            let none = "-";
            write!(
                text,
                "{none:>12} {none:>12} {none:>15} {none:>12} {none:>14} {none:>20} {none:>22} {none:>23} {rate:>14.6}"
            )
        }
        _ => {
            let unit = |gbps: f64| if plan.gbits { gbps } else { gbps * 1e9 / 8.0 / 1_048_576.0 };
            let (peak, average) = (unit(outcome.bw_peak_gbps), unit(outcome.bw_gbps));
            write!(text, "{peak:>18.2} {average:>20.2} {rate:>15.6}")
        }
    };
    text += &outcome.bulk_gbps.map_or_else(String::new, |bulk| format!(" {bulk:>14.2}"));
    text + "\n"
}

/// What follows the rows: losses of all of them.
pub fn foot(outcomes: &[Outcome]) -> String {
    let mut text = LINE.to_owned();
    let sum = |what: fn(&Outcome) -> Option<u64>| outcomes.iter().filter_map(what).reduce(|a, b| a + b);
    if let Some(packets) = sum(|outcome| outcome.retransmissions.map(|r| r.packets)) {
        let [losses, naks, gaps, timeouts, rnr] = [
            sum(|outcome| outcome.retransmissions.map(|r| r.losses)),
            sum(|outcome| outcome.retransmissions.map(|r| r.sequence_naks)),
            sum(|outcome| outcome.retransmissions.map(|r| r.response_gaps)),
            sum(|outcome| outcome.retransmissions.map(|r| r.timeouts)),
            sum(|outcome| outcome.retransmissions.map(|r| r.rnr_naks)),
        ]
        .map(Option::unwrap_or_default);
        text += &format!(
            " Retransmitted     : {packets} packets; losses: {losses} ({naks} sequence NAKs, {gaps} response gaps, {timeouts} \
             timeouts); RNR NAKs: {rnr}\n"
        );
    }
    if let Some(lost) = sum(|outcome| outcome.lost) {
        text += &format!(" Lost              : {lost} frames\n");
    }
    text
}

/// The whole text.
pub fn table(plan: &Plan, outcomes: &[Outcome]) -> String {
    let Some(first) = outcomes.first() else { return String::new() };
    let rows: String = outcomes.iter().map(|outcome| row(plan, outcome)).collect();
    head(plan, first) + &rows + &foot(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::{latency, outcome};
    use crate::plan::tests::plan;
    use crate::plan::{Beside, Length, Test};
    use crate::retransmissions::Retransmissions;

    #[test]
    fn the_table_has_the_requested_unit() {
        let mebi = table(&plan(), &[outcome()]);
        assert!(mebi.contains(" BW peak[MiB/sec]  BW average[MiB/sec]") && mebi.contains(" 610.35 "), "{mebi}");
        let giga = table(&Plan { gbits: true, ..plan() }, &[outcome()]);
        assert!(giga.contains("BW average[Gb/sec]") && giga.contains(" 5.12 ") && giga.contains("10.000000"), "{giga}");
    }

    #[test]
    fn columns_have_perftests_names_and_units() {
        let lat = Plan { test: Test::WriteLat, ..plan() };
        let slow = Outcome { lat_us: Some(latency()), ..outcome() };
        let names = header(&lat, &slow);
        let wanted = "#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] 99% percentile[usec] \
                      99.9% percentile[usec] 99.99% percentile[usec] MsgRate[Mpps]";
        assert_eq!(names.split_whitespace().collect::<Vec<_>>().join(" "), wanted);
        assert_eq!((names.len(), row(&lat, &slow).len()), (names.len(), names.len()));
        assert_eq!(row(&lat, &outcome()).len(), names.len(), "an interval without a message");
        let beside = Outcome { bulk_gbps: Some(12.345), ..slow };
        assert!(header(&lat, &beside).len() == row(&lat, &beside).len() && row(&lat, &beside).ends_with(" 12.35\n"));
        assert_eq!(header(&plan(), &outcome()).len(), row(&plan(), &outcome()).len());
    }

    #[test]
    fn the_parameters_precede_and_losses_follow_the_rows() {
        let bulk = Some(Beside { test: Test::ReadBw, qps: 8, size: 1 << 20 });
        let plan = Plan { bulk, region: "a".to_owned(), regions: Some(10), verify: true, ..plan() };
        let lossy =
            Retransmissions { packets: 12, losses: 3, sequence_naks: 2, timeouts: 1, ..Retransmissions::default() };
        let outcome = Outcome { retransmissions: Some(lossy), ..Outcome::new(&plan, 64, 1024, 1000, 1.0) };
        let text = table(&plan, &[outcome.clone(), outcome.clone()]);
        for line in [
            " Peer              : 10.0.0.1:4792\n",
            " Protocol          : region\n",
            " Regions           : a0 to a9\n",
            " TX depth          : 128\n",
            " Path MTU          : 1024 bytes\n",
            " Length            : 1000 messages of each queue pair\n",
            " Bulk              : read-bw, 8 queue pairs, 1048576 bytes\n",
            " Retransmitted     : 24 packets; losses: 6 (4 sequence NAKs, 0 response gaps, 2 timeouts); RNR NAKs: 0\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
        assert!(text.contains(&format!(" Version           : rxe-bench {}\n", rxe::VERSION)), "{text}");
        let endless = Plan { length: Length::Endless(std::time::Duration::from_secs(1)), ..plan };
        let first = Outcome::new(&endless, 64, 1024, 1, 1.0);
        assert!(head(&endless, &first).contains(" : until stopped, a row every 1 s\n"));
    }
}
