//! What tutorials begin with: the RC example of the manual "RDMA Aware Networks Programming", and a server that shows what
//! its client writes.

use crate::client::{Client, Wants};
use crate::matrix::{Bed, Port};
use crate::pingpong::gid_index;
use crate::rdmacm::counted;
use crate::report::Report;
use crate::target::{GUEST_V4, TARGET_V4, Target};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const RC_EXAMPLE: Wants = Wants::Texts(&[
    "the server has sent \"SEND operation \"",
    "the server's buffer holds \"RDMA read operat\"",
    "test result is 0",
]);

/// The groups `rc-example-1500` and `rc-example-4200`.
pub fn run(report: &mut Report, world: &World) {
    for mtu in [1500, 4200] {
        if report.group(&format!("rc-example-{mtu}")) {
            group(report, world, mtu);
        }
    }
}

fn group(report: &mut Report, world: &World, mtu: u32) {
    let boot = || {
        let watched = ["--region", "board=64K,watch"].map(str::to_owned);
        let bed = Bed::with(world, "tu", "0", Port::Vhost, mtu, &watched)?;
        let index = gid_index(&bed, GUEST_V4)?;
        Ok((bed, index))
    };
    let Some((mut bed, index)) = report.fixture("boot", boot) else { return };
    let context = || bed.context();
    Client::new("rc_example_client IPV4 GID4", RC_EXAMPLE).case(report, &bed);
    let example = format!("rc_example_client {TARGET_V4} {index}");
    report.case("RDMA_RC_example, eight at once", context, || {
        let one = format!("{example} >/tmp/rc$i 2>&1 || {{ echo client $i; cat /tmp/rc$i; }}");
        let script = format!("for i in 1 2 3 4 5 6 7 8; do {{ {one}; }} & done; wait; echo all ended");
        let text = bed.guest.expect(&script, LIMIT, &[])?.text;
        if text == "all ended\n" { Ok(()) } else { Err(format!("not all clients succeeded: {text}")) }
    });
    report.case("RDMA_RC_example without a GID is refused", context, || {
        let hello = "\\0\\0\\0\\0\\0\\0\\020\\0\\0\\0\\0\\01\\0\\0\\0\\021\\0\\0";
        let script =
            format!("{{ printf '{hello}'; head -c 16 /dev/zero; sleep 3; }} | nc -w 5 {TARGET_V4} 19875 | wc -c");
        bed.guest.expect(&script, LIMIT, &["0\n"])?;
        let log = bed.target.as_ref().map(Target::log).unwrap_or_default();
        let why = "rc-example: a queue pair refused: it names no GID: give it the index of one with -g";
        if log.iter().any(|line| line.contains(why) && line.contains(GUEST_V4)) { Ok(()) } else { Err(log.join("\n")) }
    });
    let shown =
        |line: &str| bed.target.as_ref().ok_or("no target")?.wait_for_line(line, Duration::from_secs(5)).map(drop);
    let write = |text: &str| {
        bed.guest.expect(&format!("region_client -r board {TARGET_V4} write 0 '{text}'"), LIMIT, &["done"]).map(drop)
    };
    report.case("a watched region is shown when its first byte changes, until that is a 'q'", context, || {
        for (text, line) in [
            ("hello", "region board: \"hello\""),
            ("Good morning", "region board: \"Good morning\""),
            ("quit", "region board: \"quit morning\", which ends the watch"),
        ] {
            write(text)?;
            shown(line)?;
        }
        // The region stays, and is watched no more.
        write("after the watch")?;
        bed.guest.expect(&format!("region_client -r board {TARGET_V4} read 0 5"), LIMIT, &["\"after\""]).map(drop)
    });
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        let log = bed.target.as_ref().map(Target::log).unwrap_or_default();
        let written = log.iter().filter(|line| line.contains("the client has written \"RDMA write opera\"")).count();
        if written != 9 {
            return Err(format!("the log has {written} of 9 lines with what clients wrote: {}", log.join("\n")));
        }
        let summary = bed.stop_target()?;
        counted(&summary, "rc-example", &["connections=10", "refused=1", "exchanges=9"])?;
        counted(&summary, "region", &["connections=5", "texts_shown=3"])
    });
}
