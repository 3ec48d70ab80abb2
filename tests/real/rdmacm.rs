//! librdmacm's small programs, as they are, against the services of their names.

use crate::Check;
use crate::client::{self, Client, UCMATOSE, UDADDY, Wants};
use crate::matrix::{Bed, Port};
use crate::report::Report;
use crate::target::{TARGET_V4, Target};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// The groups `rdmacm-1500` and `rdmacm-4200`.
pub fn run(report: &mut Report, world: &World) {
    for mtu in [1500, 4200] {
        if report.group(&format!("rdmacm-{mtu}")) {
            group(report, world, mtu);
        }
    }
}

fn group(report: &mut Report, world: &World, mtu: u32) {
    let Some(mut bed) = report.fixture("boot", || Bed::with(world, "cm", "0", Port::Vhost, mtu, &[])) else { return };
    // The service waits for 15 s; the others do not wait for that.
    let started = || bed.guest.start(&format!("silent_client {TARGET_V4} 7471 50"), LIMIT);
    let Some(silent) = report.fixture("a client that connects as ucmatose and says nothing", started) else { return };
    ucmatose(report, &bed);
    cmtime(report, &bed);
    udaddy(report, &bed, mtu);
    report.case(
        "the silent client is given up",
        || bed.context(),
        || silent.wait()?.expect(0, &["connected", "given up"]).map(drop),
    );
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        let summary = bed.stop_target()?;
        counted(&summary, "ucmatose", &["connections=23", "exchanges=21", "idle_ended=1"])?;
        counted(&summary, "udaddy", &["connections=12", "exchanges=282"])?;
        counted(&summary, "cmtime", &["connections=2202", "exchanges=2202"])
    });
}

/// The summary's line of a service has to hold these counters and no others. Clients given up need not be told: those
/// of udaddy never say that they have ended; nor lines withheld from the log, which depend on how fast clients are.
pub fn counted(summary: &str, service: &str, counters: &[&str]) -> Check {
    let start = format!("service {service}: ");
    let line = summary.lines().find_map(|line| line.strip_prefix(&start));
    let may_be = |counter: &&str| ["idle_ended=", "lines_withheld="].iter().any(|name| counter.starts_with(name));
    match line {
        Some(line) if line.split(' ').filter(|c| counters.contains(c) || !may_be(c)).eq(counters.iter().copied()) => {
            Ok(())
        }
        Some(line) => Err(format!("{service} counts {line}, not {}", counters.join(" "))),
        None => Err(format!("no line of {service} in the summary: {summary}")),
    }
}

fn ucmatose(report: &mut Report, bed: &Bed) {
    let context = || bed.context();
    for ip in ["IPV4", "IPV6"] {
        // Messages in one packet and in several, one, many; several connections.
        let flags = ["", " -C 3 -S 33", " -C 1 -S 1", " -C 3 -S 33333", " -C 100 -S 2000", " -c 4"];
        client::cases(report, bed, flags.map(|flags| Client::new(format!("ucmatose -s {ip}{flags}"), UCMATOSE)));
        Client::new(format!("ucmatose -s {ip} -C 0"), Wants::Texts(&["return status 0"])).case(report, bed);
    }
    report.case("a ucmatose is killed, the next one works", context, || {
        // With so many messages to take it is still at it.
        client::kill_at_work(bed, &format!("ucmatose -s {TARGET_V4} -C 16000 -S 1"))?;
        Client::new("ucmatose -s IPV4", UCMATOSE).run(bed)
    });
}

fn udaddy(report: &mut Report, bed: &Bed, mtu: u32) {
    let largest = if mtu > 1500 { 4096 } else { 1024 };
    for ip in ["IPV4", "IPV6"] {
        let flags = ["".to_owned(), " -C 1 -S 1".to_owned(), format!(" -C 100 -S {largest}"), " -c 3".to_owned()];
        client::cases(report, bed, flags.map(|flags| Client::new(format!("udaddy -s {ip}{flags}"), UDADDY)));
    }
}

fn cmtime(report: &mut Report, bed: &Bed) {
    for ip in ["IPV4", "IPV6"] {
        let count = |count| Client::new(format!("cmtime -s {ip} -c {count}"), Wants::Steps);
        client::cases(report, bed, [1, 100, 1000].map(count));
    }
}
