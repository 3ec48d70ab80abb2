//! How long turns and operations take.

use rxe_inspect::latency::{Histogram, Latency, NamespaceTimes, OperationTimes, TurnTimes};

use crate::table::{Align, Table};

/// A table, with one row for the turns of each lcore and one for each kind of operation of each service, and of
/// command of each namespace, that was counted; with `all`
/// for the others, too. Empty if there is none.
pub fn latency(latency: &Latency, all: bool) -> String {
    let right = |heading| (heading, Align::Right);
    let columns = [right("COUNT"), right("MEAN"), right("P50 <"), right("P90 <"), right("P99 <")];
    let mut table = Table::new("", &[&[("OF", Align::Left)], &columns[..]].concat());
    let mut row = |of: String, times: &Histogram| {
        if all || times.count > 0 {
            let percentile = |percent| times.percentile(percent);
            let mean = times.mean_ns().map_or_else(|| "-".to_owned(), time);
            let bounds = [50, 90, 99].map(|percent| match (times.count, percentile(percent)) {
                (0, _) => "-".to_owned(),
                (_, Some(bound)) => time(bound),
                (_, None) => "inf".to_owned(),
            });
            table.rows.push([of, times.count.to_string(), mean].into_iter().chain(bounds).collect());
        }
    };
    for TurnTimes { lcore, times } in &latency.turns {
        row(format!("turns of lcore {lcore}"), times);
    }
    for OperationTimes { service, role, operation, times } in &latency.operations {
        row(format!("{service} {role} {operation}"), times);
    }
    for NamespaceTimes { subsystem, nsid, command, times } in &latency.namespaces {
        row(format!("{subsystem} {nsid} {command}"), times);
    }
    if table.rows.is_empty() {
        return String::new();
    }
    let lines = table.text();
    lines.lines().fold("latency\n".to_owned(), |text, line| text + "    " + line + "\n")
}

/// Nanoseconds with a unit, three digits.
fn time(nanos: u64) -> String {
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let value = nanos as f64 / f64::from(unit);
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    use rxe_inspect::latency::Bucket;

    use super::*;

    fn histogram(counts: [u64; 3], sum_ns: u64) -> Histogram {
        let [first, second, count] = counts;
        let buckets = [(1 << 12, first), (1 << 21, second)].map(|(up_to_ns, count)| Bucket { up_to_ns, count });
        Histogram { buckets: buckets.into(), count, sum_ns }
    }

    #[test]
    fn a_row_has_the_mean_and_the_bounds_of_percentiles() {
        let operation = |operation: &str, times| {
            let [service, role] = ["region", "responder"].map(str::to_owned);
            OperationTimes { service, role, operation: operation.to_owned(), times }
        };
        let report = Latency {
            turns: vec![TurnTimes { lcore: 3, times: histogram([10, 10, 10], 12_340) }],
            operations: vec![
                operation("read", histogram([5, 9, 10], 70_000_000_000)),
                operation("write", histogram([0, 0, 0], 0)),
            ],
            namespaces: vec![NamespaceTimes {
                subsystem: "nqn.test:d".to_owned(),
                nsid: 1,
                command: "read".to_owned(),
                times: histogram([1, 1, 1], 900),
            }],
        };
        let of_turns = "    turns of lcore 3          10  1.23 us  4.10 us  4.10 us  4.10 us\n";
        let of_reads = "    region responder read     10   7.00 s  4.10 us  2.10 ms      inf\n";
        let of_disk = "    nqn.test:d 1 read          1   900 ns  4.10 us  4.10 us  4.10 us\n";
        let heading = "latency\n    OF                     COUNT     MEAN    P50 <    P90 <    P99 <\n";
        assert_eq!(latency(&report, false), format!("{heading}{of_turns}{of_reads}{of_disk}"));
        assert!(latency(&report, true).contains("region responder write      0        -        -        -        -\n"));
        assert_eq!(latency(&Latency::default(), true), "");
    }

    #[test]
    fn a_time_has_three_digits_and_a_unit() {
        let times = [0, 999, 1_000, 65_536, 131_072, 4_294_967_296].map(time);
        assert_eq!(times, ["0 ns", "999 ns", "1.00 us", "65.5 us", "131 us", "4.29 s"]);
    }
}
