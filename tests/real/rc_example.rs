//! The programs that tutorials begin with: the RC example of the manual "RDMA Aware Networks Programming", and a server
//! that prints its client's writes.

use crate::Check;
use crate::bed::{BedConfig, TestBed, expect_counters, needs};
use crate::client::{Client, Wants};
use crate::station::{GUEST_V4, Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Group};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const RC_EXAMPLE: Wants = Wants::Texts(&[
    "the server has sent \"SEND operation \"",
    "the server's buffer holds \"RDMA read operat\"",
    "test result is 0",
]);

/// The groups `rc-example-4200` and, nightly, `rc-example-1500`.
pub fn groups() -> Vec<AnyGroup> {
    [4200, 1500].map(group).into()
}

fn group(mtu: u32) -> AnyGroup {
    let mut group = Group::new(format!("rc-example-{mtu}"), needs(StationKey::new(Port::Vhost, mtu)), move |env| {
        let watched = ["--region", "board=64K,watch"].map(str::to_owned);
        TestBed::start(env, BedConfig::new(Port::Vhost, mtu).arguments(&watched))
    });
    group.nightly(mtu == 1500);
    Client::new("rc_example_client IPV4 GID4", RC_EXAMPLE).case(&mut group);
    group.case("RDMA_RC_example, eight at once", |bed| {
        let example = format!("rc_example_client {TARGET_V4} {}", bed.gid4()?);
        let one = format!("{example} >/tmp/rc$i 2>&1 || {{ echo client $i; cat /tmp/rc$i; }}");
        let script = format!("for i in 1 2 3 4 5 6 7 8; do {{ {one}; }} & done; wait; echo all ended");
        let text = bed.guest().expect(&script, LIMIT, &[])?.text;
        if text == "all ended\n" { Ok(()) } else { Err(format!("not all clients succeeded: {text}")) }
    });
    group.case("RDMA_RC_example without a GID is refused", |bed| {
        let hello = "\\0\\0\\0\\0\\0\\0\\020\\0\\0\\0\\0\\01\\0\\0\\0\\021\\0\\0";
        let script =
            format!("{{ printf '{hello}'; head -c 16 /dev/zero; sleep 3; }} | nc -w 5 {TARGET_V4} 19875 | wc -c");
        bed.guest().expect(&script, LIMIT, &["0\n"])?;
        let log = bed.log();
        let why = "rc-example: a queue pair refused: it names no GID: give it the index of one with -g";
        if log.iter().any(|line| line.contains(why) && line.contains(GUEST_V4)) { Ok(()) } else { Err(log.join("\n")) }
    });
    group.case("a watched region is shown when its first byte changes, until that is a 'q'", |bed| watched_region(bed));
    group.case("the target still runs and counts", |bed| {
        let log = bed.log();
        let written = log.iter().filter(|line| line.contains("the client has written \"RDMA write opera\"")).count();
        if written != 9 {
            return Err(format!("the log has {written} of 9 lines with what clients wrote: {}", log.join("\n")));
        }
        let summary = bed.stop_target()?;
        expect_counters(&summary, "rc-example", &["connections=10", "refused=1", "exchanges=9"])?;
        expect_counters(&summary, "region", &["connections=5", "texts_shown=3"])
    });
    group.build()
}

fn watched_region(bed: &TestBed) -> Check {
    let write = |text: &str| {
        let command = format!("region_client -r board {TARGET_V4} write 0 '{text}'");
        bed.guest().expect(&command, LIMIT, &["done"]).map(drop)
    };
    for (text, line) in [
        ("hello", "region board: \"hello\""),
        ("Good morning", "region board: \"Good morning\""),
        ("quit", "region board: \"quit morning\", which ends the watch"),
    ] {
        write(text)?;
        bed.target()?.wait_for_line(line, Duration::from_secs(5))?;
    }
    // The region stays, and is watched no more.
    write("after the watch")?;
    let read = format!("region_client -r board {TARGET_V4} read 0 5");
    bed.guest().expect(&read, LIMIT, &["\"after\""]).map(drop)
}
