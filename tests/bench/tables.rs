//! The tables of docs/performance.md.

pub mod others;

use std::fmt::Write as _;

use crate::disks;
use crate::matrix::{self, GOALS, Goal, PORT_TESTS, PORTS, Section, Server, Unit, VERBS};
use crate::results::{Figure, Machine, Results, Sample};
pub use others::{nvmf, programs};

/// A table of Markdown.
struct Table(String);

impl Table {
    fn new(head: &[&str]) -> Table {
        let mut table = Table(String::new());
        table.row(head);
        let _ = writeln!(table.0, "|{}", "---|".repeat(head.len()));
        table
    }

    fn row<T: AsRef<str>>(&mut self, cells: &[T]) {
        let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
        let _ = writeln!(self.0, "| {} |", cells.join(" | "));
    }
}

/// A number with three digits that count.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// A number, or that there is none.
fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), number)
}

/// A number of bytes as people write it.
pub fn bytes(bytes: f64) -> String {
    match bytes {
        1_048_576.0.. => format!("{} MiB", bytes / 1_048_576.0),
        1024.0.. => format!("{} KiB", bytes / 1024.0),
        _ => format!("{bytes} B"),
    }
}

/// Machine, date, versions, command and duration.
pub fn head(results: &Results) -> String {
    let Machine { date, cpu, cpus, memory_gib, system, kernel, version, rustc, testpmd, .. } = &results.machine;
    let minutes = results.seconds / 60.0;
    format!(
        "`{}` on {date}, {minutes:.0} minutes: {cpu}, {cpus} CPUs, {memory_gib} GiB; {system}, Linux {kernel}; {version}; {rustc}; \
         {testpmd}. Figures are medians, with the least and the most in brackets.\n",
        results.command
    )
}

/// The unit of a goal, and the figure that it is compared with.
fn measured(goal: &Goal) -> (&'static str, impl Fn(&Sample) -> Option<f64> + Copy) {
    let unit = goal.unit;
    let name = match unit {
        Unit::Mega => "M/s",
        Unit::Gbps => "Gb/s",
        Unit::Micros => "us",
    };
    let find = move |sample: &Sample| match unit {
        Unit::Mega => Some(sample.rate / 1e6),
        Unit::Gbps => Some(sample.gbps),
        Unit::Micros => sample.latency.map(|latency| latency.p50),
    };
    (name, find)
}

/// The length of a goal's messages.
fn size_of(goal: &Goal) -> f64 {
    match goal.unit {
        Unit::Gbps => 65_536.0,
        _ => 64.0,
    }
}

/// A row divided by a limit: packets by frames, or latency by latency.
pub fn ratio(results: &Results, goal: &Goal, limit: &str) -> Option<f64> {
    let figure = results.figure(Section::Rows, goal.row, 0.0)?;
    let limit = results.figure(Section::Rows, limit, goal.frame.into())?;
    if goal.unit == Unit::Micros {
        return Some(figure.latency(|l| l.p50)? / limit.latency(|l| l.p50)?);
    }
    let size = size_of(goal);
    Some(figure.median(|sample| Some(sample.packets(size)))? / limit.median(|sample| Some(sample.rate))?)
}

fn range(figure: &Figure, what: impl Fn(&Sample) -> Option<f64>) -> String {
    brackets(figure.range(what))
}

/// The least and the most in brackets.
fn brackets(range: Option<(f64, f64)>) -> String {
    range.map_or_else(String::new, |(least, most)| format!(" ({} to {})", number(least), number(most)))
}

/// The rows that have goals.
pub fn rows(results: &Results) -> String {
    let mut table = Table::new(&[
        "work",
        "rxe-bench",
        "at least",
        "aim",
        "measured",
        "of `echo`",
        "of testpmd, round",
        "of testpmd, one way",
    ]);
    for goal in &GOALS {
        let (unit, find) = measured(goal);
        let Some(figure) = results.figure(Section::Rows, goal.row, 0.0) else { continue };
        let mut value = format!("{} {unit}{}", cell(figure.median(find)), range(figure, find));
        let (mut least, mut aim) = (number(goal.least), number(goal.aim));
        if let Some((share, way)) = goal.share() {
            least += &format!(" ({share:.2} {way})");
        }
        let micros = goal.unit == Unit::Micros;
        if micros {
            value += &format!("; p99.9 {} us", cell(figure.latency(|l| l.p99_9)));
            least += &format!(", p99.9 {}", number(matrix::TAIL.0));
            aim += &format!(", p99.9 {}", number(matrix::TAIL.1));
        }
        let echo = if micros { matrix::ECHO_LATENCY } else { matrix::ECHO };
        let limits = [echo, matrix::SWAP, matrix::ONE_WAY];
        let mut cells = vec![goal.row.to_owned(), format!("`{}`", goal.words), least, aim, value];
        // testpmd measures no latency.
        cells.extend(limits.map(|limit| cell(ratio(results, goal, limit).filter(|_| !micros || limit == echo))));
        table.row(&cells);
    }
    if let Some(figure) = results.figure(Section::Rows, matrix::AF_PACKET_ROW, 0.0) {
        let rate = |sample: &Sample| Some(sample.rate / 1e6);
        let ratio = af_packet_ratio(results);
        let value = format!("{} M/s{}", cell(figure.mega()), range(figure, rate));
        let goals = ["0.6 of testpmd", "0.9"];
        let words = "`write-bw -s 64 -q 8`";
        table.row(&[matrix::AF_PACKET_ROW, words, goals[0], goals[1], &value, "-", &cell(ratio), "-"]);
    }
    table.0
}

/// The rate on net_af_packet, divided by that of testpmd.
fn af_packet_ratio(results: &Results) -> Option<f64> {
    let rate = |row| results.figure(Section::Rows, row, 0.0).and_then(Figure::mega);
    Some(rate(matrix::AF_PACKET_ROW)? / rate(matrix::AF_PACKET_LIMIT)?)
}

/// The rows of the summary, which README.md shows too.
pub fn summary(results: &Results) -> String {
    let mut table = Table::new(&["work", "measured", "beside the port without RDMA"]);
    for row in matrix::SUMMARY {
        let Some(goal) = GOALS.iter().find(|goal| goal.row == row) else { continue };
        let (unit, find) = measured(goal);
        let Some(figure) = results.figure(Section::Rows, row, 0.0) else { continue };
        let (percentile, limit, of) = match goal.unit {
            Unit::Micros => (", p50", matrix::ECHO_LATENCY, "times that of a bare frame (`echo`)"),
            _ => ("", matrix::ECHO, "of bare frames (`echo`)"),
        };
        table.row(&[
            format!("{row}{percentile}"),
            format!("{} {unit}", cell(figure.median(find))),
            format!("{} {of}", cell(ratio(results, goal, limit))),
        ]);
    }
    if let Some(figure) = results.figure(Section::Rows, matrix::AF_PACKET_ROW, 0.0) {
        let (rate, ratio) = (cell(figure.mega()), cell(af_packet_ratio(results)));
        table.row(&[matrix::AF_PACKET_ROW, &format!("{rate} M/s"), &format!("{ratio} of testpmd")]);
    }
    let Machine { date, cpu, cpus, memory_gib, kernel, version, .. } = &results.machine;
    format!(
        "{}\nMeasured on {date} with one CPU for each end: {cpu}, {cpus} CPUs, {memory_gib} GiB; Linux {kernel}; {version}.\n",
        table.0
    )
}

/// The limits of the port itself.
pub fn limits(results: &Results) -> String {
    let mut table = Table::new(&["frame of a WRITE of", "`echo`, M/s", "testpmd 5tswap, M/s", "testpmd one way, M/s"]);
    for figure in results.series(Section::Rows, matrix::ECHO) {
        let at = |row| results.figure(Section::Rows, row, figure.x).and_then(Figure::mega);
        let others = [at(matrix::SWAP), at(matrix::ONE_WAY)].map(cell);
        table.row(&[bytes(figure.x), cell(figure.mega()), others[0].clone(), others[1].clone()]);
    }
    if let Some(single) = results.figure(Section::Rows, matrix::ECHO_LATENCY, 64.0) {
        let (p50, tail) = (cell(single.latency(|l| l.p50)), cell(single.latency(|l| l.p99_9)));
        let _ =
            writeln!(table.0, "\nOne frame of 64 bytes at a time comes back after {p50} us (p50), {tail} us (p99.9).");
    }
    table.0
}

/// Rate and bandwidth by size.
pub fn sizes(results: &Results) -> String {
    let mut table = Table::new(&[
        "message",
        "WRITE, M/s",
        "WRITE, Gb/s",
        "READ, M/s",
        "READ, Gb/s",
        "SEND, M/s",
        "SEND, Gb/s",
        "`echo`, M/s",
    ]);
    for figure in results.series(Section::Sizes, VERBS[0].0) {
        let at = |row| results.figure(Section::Sizes, row, figure.x);
        let mut cells = vec![bytes(figure.x)];
        for (row, _) in VERBS {
            cells.extend([cell(at(row).and_then(Figure::mega)), cell(at(row).and_then(Figure::gbps))]);
        }
        cells.push(cell(at(matrix::ECHO).and_then(Figure::mega)));
        table.row(&cells);
    }
    table.0
}

/// Percentiles by size.
pub fn latency(results: &Results) -> String {
    let mut table = Table::new(&[
        "message",
        "WRITE p50",
        "p99",
        "p99.9",
        "READ p50",
        "p99",
        "p99.9",
        "SEND p50",
        "p99",
        "p99.9",
        "`echo` p50",
    ]);
    for figure in results.series(Section::Latency, VERBS[0].0) {
        let at = |row| results.figure(Section::Latency, row, figure.x);
        let mut cells = vec![bytes(figure.x)];
        for (row, _) in VERBS {
            let figure = at(row);
            cells.push(cell(figure.and_then(|f| f.latency(|l| l.p50))));
            cells.push(cell(figure.and_then(|f| f.latency(|l| l.p99))));
            cells.push(cell(figure.and_then(|f| f.latency(|l| l.p99_9))));
        }
        cells.push(cell(at(matrix::ECHO_LATENCY).and_then(|f| f.latency(|l| l.p50))));
        table.row(&cells);
    }
    table.0
}

/// Rates by the section's variable, a row each.
fn rates(results: &Results, section: Section, row: &str, head: [&str; 2]) -> String {
    let mut table = Table::new(&[head[0], head[1], "M/s", "runs"]);
    for figure in results.series(section, row) {
        let rate = |sample: &Sample| Some(sample.rate / 1e6);
        table.row(&[
            figure.x.to_string(),
            format!("`{}`", matrix::without_times(&figure.command)),
            cell(figure.mega()),
            range(figure, rate).trim().to_owned(),
        ]);
    }
    table.0
}

/// Rate by queue pairs.
pub fn queue_pairs(results: &Results) -> String {
    rates(results, Section::QueuePairs, matrix::QPS_ROW, ["queue pairs", "rxe-bench"])
}

/// Rate by regions.
pub fn regions(results: &Results) -> String {
    rates(results, Section::Regions, matrix::REGIONS_ROW, ["regions", "rxe-bench"])
}

/// Rate by lcores.
pub fn lcores(results: &Results) -> String {
    let mut table = Table::new(&["lcores of the target", matrix::HAND_OFF, matrix::QUEUES]);
    for figure in results.series(Section::Lcores, matrix::HAND_OFF) {
        let queues = results.figure(Section::Lcores, matrix::QUEUES, figure.x).and_then(Figure::mega);
        table.row(&[figure.x.to_string(), cell(figure.mega()), cell(queues)]);
    }
    if results.machine.cpus < 3 {
        let _ = writeln!(
            table.0,
            "\nThe machine has {} CPUs, one for each end: more lcores of the target would share a CPU with each other or with \
             rxe-bench, which measures the scheduler. With three CPUs or more, `make bench` measures more lcores too.",
            results.machine.cpus
        );
    }
    table.0
}

/// A queue pair beside others.
pub fn fairness(results: &Results) -> String {
    let mut table = Table::new(&["64 B WRITE", "p50, us", "p99, us", "p99.9, us", "the others, Gb/s"]);
    for (row, _) in matrix::BESIDE {
        let Some(figure) = results.figure(Section::Fairness, row, 0.0) else { continue };
        let at = [figure.latency(|l| l.p50), figure.latency(|l| l.p99), figure.latency(|l| l.p99_9)].map(cell);
        let [p50, p99, p99_9] = at;
        table.row(&[row.to_owned(), p50, p99, p99_9, cell(figure.median(|sample| sample.bulk_gbps))]);
    }
    table.0
}

/// The goodput of go-back-N at a loss of `p`, with `n` packets retransmitted for each that is lost.
pub fn go_back_n(p: f64, n: f64) -> f64 {
    (1.0 - p) / (1.0 - p + n * p)
}

/// Goodput under loss.
pub fn loss(results: &Results) -> String {
    let mut table = Table::new(&["loss, %", "Gb/s", "of that without loss", "go-back-N, 256 packets"]);
    let all = results.series(Section::Loss, matrix::LOSS_ROW);
    let whole = all.first().filter(|figure| figure.x == 0.0).and_then(|figure| figure.gbps());
    for figure in all {
        let share = figure.gbps().zip(whole).map(|(goodput, whole)| goodput / whole);
        let theory = go_back_n(figure.x / 100.0, matrix::WINDOW);
        table.row(&[figure.x.to_string(), cell(figure.gbps()), cell(share), number(theory)]);
    }
    table.0
}

/// Rates of the types of ports.
pub fn ports(results: &Results) -> String {
    let mut table = Table::new(&[
        "port",
        "64 B WRITE, M/s",
        "64 KiB WRITE, Gb/s",
        "path MTU",
        "64 B WRITE, p50 and p99.9, us",
        "`echo`, 64 B, M/s",
    ]);
    for port in PORTS {
        let at = |test| results.figure(Section::Ports, &matrix::port_row(port, test), 0.0);
        let [small, large, latency] = PORT_TESTS.map(|(test, _)| at(test));
        if let Some(why) = small.filter(|figure| figure.runs.is_empty()).and_then(|figure| figure.failures.first()) {
            table.row(&[
                port.to_string(),
                format!("does not run here: {why}"),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ]);
            continue;
        }
        if small.is_none() {
            continue;
        }
        let times = latency.map(|figure| [figure.latency(|l| l.p50), figure.latency(|l| l.p99_9)].map(cell).join(", "));
        table.row(&[
            port.to_string(),
            cell(small.and_then(Figure::mega)),
            cell(large.and_then(Figure::gbps)),
            large.and_then(|figure| figure.runs.first()).map_or_else(String::new, |sample| sample.mtu.to_string()),
            times.unwrap_or_default(),
            cell(at(matrix::ECHO).and_then(Figure::mega)),
        ]);
    }
    table.0
}

/// How much faster than with the kernel's server a kernel's client is with rxe-target: the ratio of the rates, of times
/// the other way round.
pub fn beside_kernel(results: &Results, section: Section, work: &str) -> Option<f64> {
    let [kernel, target] =
        [Server::Kernel, Server::Target].map(|server| results.figure(section, &matrix::client_row(server, work), 0.0));
    let (kernel, target) = (kernel?, target?);
    match (kernel.latency(|l| l.p50), target.latency(|l| l.p50)) {
        (Some(kernel), Some(target)) => Some(kernel / target),
        _ => Some(target.mega()? / kernel.mega()?),
    }
}

/// A kernel's client against a kernel's server and against rxe-target.
pub fn kernel(results: &Results) -> String {
    in_guests(results, Section::Kernel, "perftest", &matrix::CLIENTS)
}

/// A kernel's disk, served by a kernel and by rxe-target.
pub fn guest_disks(results: &Results) -> String {
    in_guests(results, Section::Nvmf, "kind, bytes and depth", &disks::LOADS)
}

fn in_guests(results: &Results, section: Section, program: &str, works: &[(&str, &str)]) -> String {
    let servers = [Server::Kernel, Server::Target];
    let heads = servers.map(|server| server.to_string());
    let mut table = Table::new(&["work", program, &heads[0], &heads[1], "ratio"]);
    let mut failure = None;
    for (work, words) in works {
        let figures = servers.map(|server| results.figure(section, &matrix::client_row(server, work), 0.0));
        failure = failure.or_else(|| figures.into_iter().flatten().find_map(|figure| figure.failures.first()));
        let value = |figure: Option<&Figure>| {
            let Some(figure) = figure else { return cell(None) };
            let time = |sample: &Sample| sample.latency.map(|latency| latency.p50);
            let rate = |sample: &Sample| Some(sample.rate / 1e3);
            match figure.median(time) {
                Some(p50) => format!("{} us{}", number(p50), range(figure, time)),
                None => format!("{} k/s{}", cell(figure.median(rate)), range(figure, rate)),
            }
        };
        let [kernel, target] = figures.map(value);
        table.row(&[*work, &format!("`{words}`"), &kernel, &target, &cell(beside_kernel(results, section, work))]);
    }
    if let Some(why) = failure {
        let _ = writeln!(table.0, "\nNot all of it was measured: {}", why.lines().next().unwrap_or_default());
    }
    table.0
}
