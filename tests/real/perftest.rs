//! perftest's clients, as they are, against the service `perftest`.

use crate::Check;
use crate::matrix::{Bed, Port};
use crate::report::Report;
use crate::target::{TARGET_V4, Target};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(150);
/// What the target at MTU 4200 is told of ib_write_lat's messages.
const WRITE_LAT: u64 = 65536;

/// The groups `perftest-1500`, `perftest-4200`, `perftest-cm-1500` and `perftest-cm-4200`.
pub fn run(report: &mut Report, world: &World) {
    for mtu in [1500, 4200] {
        if report.group(&format!("perftest-{mtu}")) {
            group(report, world, mtu, "0", cases(mtu));
        }
        if report.group(&format!("perftest-cm-{mtu}")) {
            // On two lcores the connections of one client are with either.
            let lcores = if mtu > 1500 { "0,1" } else { "0" };
            group(report, world, mtu, lcores, cm_cases(mtu));
        }
    }
}

/// What a client has to print: rows that begin with size and number of messages.
enum Rows {
    /// One.
    One(u64, u64),
    /// One for each power of two from 2 up to this size.
    All(u64, u64),
    /// One, with as many messages as the time allows.
    Timed(u64),
}

impl Rows {
    fn check(&self, text: &str) -> Check {
        let rows: Vec<(u64, u64)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let row = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                // A result, not a line of the header.
                words.next()?.parse::<f64>().ok().map(|_| row)
            })
            .collect();
        let right = match *self {
            Rows::One(size, count) => rows == [(size, count)],
            Rows::All(largest, count) => {
                rows.iter().copied().eq((1..=largest.ilog2()).map(|shift| (1 << shift, count)))
            }
            Rows::Timed(size) => matches!(rows[..], [(s, count)] if s == size && count > 0),
        };
        if right { Ok(()) } else { Err(format!("the rows are {rows:?}: {text}")) }
    }
}

fn perftest(bed: &Bed, command: &str, rows: &Rows) -> Check {
    rows.check(&bed.guest.expect(command, LIMIT, &[])?.text)
}

/// Program and flags, and what comes of it. Counts are small, as an emulated guest moves some 20 MiB a second.
fn cases(mtu: u32) -> Vec<(String, Rows)> {
    let mut cases = vec![
        ("ib_send_lat -n 200".to_owned(), Rows::One(2, 200)),
        ("ib_send_lat -n 50 -s 65536".to_owned(), Rows::One(65536, 50)),
        ("ib_send_lat -n 100 -e".to_owned(), Rows::One(2, 100)),
        ("ib_send_lat -D 2".to_owned(), Rows::Timed(2)),
        ("ib_send_lat -n 100 -c UC".to_owned(), Rows::One(2, 100)),
        ("ib_send_lat -n 100 -c UC -s 10000".to_owned(), Rows::One(10000, 100)),
        ("ib_send_lat -n 100 -c UD".to_owned(), Rows::One(2, 100)),
        ("ib_send_lat -n 100 -c UD -s 1024".to_owned(), Rows::One(1024, 100)),
        ("ib_send_bw -n 200".to_owned(), Rows::One(65536, 200)),
        ("ib_send_bw -n 5 -s 1".to_owned(), Rows::One(1, 5)),
        ("ib_send_bw -n 5 -s 8388608".to_owned(), Rows::One(8 << 20, 5)),
        ("ib_send_bw -n 100 -b".to_owned(), Rows::One(65536, 100)),
        ("ib_send_bw -n 100 -s 1000 -q 4".to_owned(), Rows::One(1000, 400)),
        ("ib_send_bw -n 100 -s 1000 -q 4 -b".to_owned(), Rows::One(1000, 400)),
        ("ib_send_bw -n 10 -s 1000 -q 64".to_owned(), Rows::One(1000, 640)),
        ("ib_send_bw -D 2".to_owned(), Rows::Timed(65536)),
        ("ib_send_bw -n 100 -c UC".to_owned(), Rows::One(65536, 100)),
        ("ib_send_bw -n 200 -c UD".to_owned(), Rows::One(1024.max(u64::from(mtu > 1500) * 4096), 200)),
        ("ib_send_bw -n 100 -m 256 -s 5000".to_owned(), Rows::One(5000, 100)),
        ("ib_write_bw -n 200".to_owned(), Rows::One(65536, 200)),
        ("ib_write_bw -n 100 -s 64 -b".to_owned(), Rows::One(64, 100)),
        ("ib_write_bw -n 100 -s 4096 -q 4".to_owned(), Rows::One(4096, 400)),
        ("ib_write_bw -D 2 -s 1024".to_owned(), Rows::Timed(1024)),
        ("ib_write_bw -n 100 -c UC".to_owned(), Rows::One(65536, 100)),
        ("ib_read_bw -n 200".to_owned(), Rows::One(65536, 200)),
        ("ib_read_bw -n 100 -b -s 3000".to_owned(), Rows::One(3000, 100)),
        ("ib_read_bw -n 100 -s 4096 -q 4 -o 4".to_owned(), Rows::One(4096, 400)),
        ("ib_read_bw -n 50 -s 4096 -o 1".to_owned(), Rows::One(4096, 50)),
        ("ib_read_lat -n 200".to_owned(), Rows::One(2, 200)),
        ("ib_atomic_bw -n 200".to_owned(), Rows::One(8, 200)),
        ("ib_atomic_bw -n 200 -A CMP_AND_SWAP -q 2".to_owned(), Rows::One(8, 400)),
        ("ib_atomic_bw -n 200 -b".to_owned(), Rows::One(8, 200)),
        ("ib_atomic_lat -n 200".to_owned(), Rows::One(8, 200)),
        ("ib_atomic_lat -n 200 -A CMP_AND_SWAP".to_owned(), Rows::One(8, 200)),
    ];
    // The long ones once each.
    if mtu <= 1500 {
        cases.extend([
            ("ib_send_lat -n 5 -a".to_owned(), Rows::All(8 << 20, 5)),
            ("ib_send_bw -n 5 -a -b".to_owned(), Rows::All(8 << 20, 5)),
            ("ib_read_bw -n 5 -a".to_owned(), Rows::All(8 << 20, 5)),
            ("ib_write_lat -n 100".to_owned(), Rows::One(2, 100)),
            ("ib_write_lat -n 300 -s 4096".to_owned(), Rows::One(4096, 300)),
            ("ib_write_lat -n 100 -s 33 -c UC".to_owned(), Rows::One(33, 100)),
            ("ib_write_lat -n 5 -a".to_owned(), Rows::All(8 << 20, 5)),
        ]);
    } else {
        cases.extend([
            ("ib_send_bw -n 5 -a".to_owned(), Rows::All(8 << 20, 5)),
            ("ib_write_bw -n 5 -a".to_owned(), Rows::All(8 << 20, 5)),
            ("ib_write_bw -n 5 -a -b".to_owned(), Rows::All(8 << 20, 5)),
            ("ib_read_lat -n 5 -a".to_owned(), Rows::All(8 << 20, 5)),
            // The size that the target is told.
            (format!("ib_write_lat -n 20 -s {WRITE_LAT}"), Rows::One(WRITE_LAT, 20)),
            (format!("ib_write_lat -n 20 -s {WRITE_LAT} -c UC"), Rows::One(WRITE_LAT, 20)),
            ("ib_send_bw -n 100 -m 2048".to_owned(), Rows::One(65536, 100)),
            ("ib_send_lat -n 100 -c UD -s 4096".to_owned(), Rows::One(4096, 100)),
            // Longer than the silence by which ib_write_lat is known.
            ("ib_send_lat -D 8 -c UD".to_owned(), Rows::Timed(2)),
            ("ib_write_bw -D 8 -c UC".to_owned(), Rows::Timed(65536)),
            ("ib_write_bw -n 100 -m 1024 -s 10001".to_owned(), Rows::One(10001, 100)),
        ]);
    }
    cases
}

/// The same over the connection manager: `-z` for what the ends tell each other, `-R` for the tests too.
fn cm_cases(mtu: u32) -> Vec<(String, Rows)> {
    let datagram = if mtu > 1500 { 4096 } else { 1024 };
    // The size of ib_write_lat that the target expects.
    let write_lat = if mtu > 1500 { WRITE_LAT } else { 2 };
    let mut cases = Vec::new();
    for way in ["-z", "-R"] {
        for (command, rows) in [
            ("ib_send_lat -n 100".to_owned(), Rows::One(2, 100)),
            ("ib_send_lat -n 20 -s 16".to_owned(), Rows::One(16, 20)),
            ("ib_send_lat -n 20 -s 20000".to_owned(), Rows::One(20000, 20)),
            ("ib_send_lat -n 50 -c UD".to_owned(), Rows::One(2, 50)),
            ("ib_send_bw -n 100".to_owned(), Rows::One(65536, 100)),
            ("ib_send_bw -n 50 -b -q 4 -s 4096".to_owned(), Rows::One(4096, 200)),
            ("ib_send_bw -n 100 -c UD".to_owned(), Rows::One(datagram, 100)),
            ("ib_send_bw -n 50 -c UD -b".to_owned(), Rows::One(datagram, 50)),
            ("ib_write_bw -n 100".to_owned(), Rows::One(65536, 100)),
            ("ib_write_bw -n 100 -b -q 2 -s 1000".to_owned(), Rows::One(1000, 200)),
            (format!("ib_write_lat -n 50 -s {write_lat}"), Rows::One(write_lat, 50)),
            ("ib_read_bw -n 100 -q 4".to_owned(), Rows::One(65536, 400)),
            ("ib_read_lat -n 100".to_owned(), Rows::One(2, 100)),
            ("ib_atomic_bw -n 100".to_owned(), Rows::One(8, 100)),
            ("ib_atomic_lat -n 100 -A CMP_AND_SWAP".to_owned(), Rows::One(8, 100)),
        ] {
            cases.push((format!("{command} {way}"), rows));
        }
    }
    // The client refuses UC with -R itself.
    cases.push(("ib_send_lat -n 50 -c UC -z".to_owned(), Rows::One(2, 50)));
    cases.push(("ib_write_bw -n 50 -c UC -z".to_owned(), Rows::One(65536, 50)));
    cases
}

fn group(report: &mut Report, world: &World, mtu: u32, lcores: &str, cases: Vec<(String, Rows)>) {
    let boot = || {
        let mut more = Vec::new();
        if mtu > 1500 {
            let file = world.path("perftest.toml");
            let text = format!("[service.perftest]\nwrite-lat-size = {WRITE_LAT}\n");
            std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
            more = vec!["--config".to_owned(), file.to_string_lossy().into_owned()];
        }
        Bed::with(world, "pt", lcores, Port::Vhost, mtu, &more)
    };
    let Some(mut bed) = report.fixture("boot", boot) else { return };
    let context = || bed.context();
    for (command, rows) in cases {
        report.case(&command, context, || perftest(&bed, &format!("{command} -F {TARGET_V4}"), &rows));
    }
    report.case("a client is killed: the next one works", context, || {
        let victim = bed.guest.start(&format!("exec ib_send_bw -F -n 100000000 {TARGET_V4}"), LIMIT)?;
        std::thread::sleep(Duration::from_secs(3));
        if !victim.running() {
            return Err(format!("the client ended by itself: {}", victim.so_far()));
        }
        victim.kill(9)?;
        victim.wait()?.expect(137, &[])?;
        perftest(&bed, &format!("ib_send_lat -F -n 20 {TARGET_V4}"), &Rows::One(2, 20))
    });
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("a client that talks nonsense is counted, and the target still runs", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        bed.guest.run(&format!("printf '6.06 or so, I think' | nc -w 2 {TARGET_V4} 18515"), LIMIT)?;
        let summary = bed.stop_target()?;
        let line = summary.lines().find(|line| line.starts_with("service perftest:"));
        let line = line.ok_or_else(|| format!("no line of the service in the summary: {summary}"))?;
        let clean = !line.contains(" refused=") && !line.contains(" post_failures=") && line.contains(" malformed=1");
        if clean { Ok(()) } else { Err(line.to_owned()) }
    });
}
