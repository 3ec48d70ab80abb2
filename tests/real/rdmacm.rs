//! librdmacm's small programs, as they are, against the services of their names.

use crate::Check;
use crate::matrix::{Bed, Port};
use crate::report::Report;
use crate::target::{TARGET_V4, TARGET_V6, Target};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const ADDRESSES: [(&str, &str); 2] = [("v4", TARGET_V4), ("v6", TARGET_V6)];

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
    ucmatose(report, &bed);
    cmtime(report, &bed);
    udaddy(report, &bed, mtu);
    silent(report, &bed);
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        let summary = bed.stop_target()?;
        counted(&summary, "ucmatose", &["connections=19", "exchanges=17", "idle_ended=1"])?;
        counted(&summary, "udaddy", &["connections=12", "exchanges=282"])?;
        counted(&summary, "cmtime", &["connections=2202", "exchanges=2202"])
    });
}

/// The summary's line of a service has to hold these counters and no others. Clients given up need not be told: those
/// of udaddy never say that they have ended.
fn counted(summary: &str, service: &str, counters: &[&str]) -> Check {
    let start = format!("service {service}: ");
    let line = summary.lines().find_map(|line| line.strip_prefix(&start));
    match line {
        Some(line)
            if line
                .split(' ')
                .filter(|c| counters.contains(c) || !c.starts_with("idle_ended="))
                .eq(counters.iter().copied()) =>
        {
            Ok(())
        }
        Some(line) => Err(format!("{service} counts {line}, not {}", counters.join(" "))),
        None => Err(format!("no line of {service} in the summary: {summary}")),
    }
}

fn ucmatose(report: &mut Report, bed: &Bed) {
    let context = || bed.context();
    let texts = ["receiving data transfers", "sending replies", "data transfers complete", "return status 0"];
    for (name, address) in ADDRESSES {
        // Messages in one packet and in several, one, many, none at all; several connections.
        for flags in ["", " -C 1 -S 1", " -C 3 -S 33333", " -C 100 -S 2000", " -c 3", " -C 0"] {
            let command = format!("ucmatose -s {address}{flags}");
            let quiet = flags == " -C 0";
            report.case(&format!("{name} ucmatose{flags}"), context, || {
                bed.guest.expect(&command, LIMIT, if quiet { &texts[3..] } else { &texts }).map(drop)
            });
        }
    }
    report.case("a ucmatose is killed, the next one works", context, || {
        // Killed as soon as it is connected: with so many messages to take it is still at it.
        let script = format!(
            "ucmatose -s {TARGET_V4} -C 16000 -S 1 & pid=$!\n\
             until rdma resource show qp | grep -q \"RTS.* pid $pid \"; do kill -0 $pid || exit 99; done\n\
             kill -KILL $pid; wait $pid"
        );
        bed.guest.run(&script, LIMIT)?.expect(137, &[])?;
        bed.guest.expect(&format!("ucmatose -s {TARGET_V4}"), LIMIT, &texts).map(drop)
    });
}

fn udaddy(report: &mut Report, bed: &Bed, mtu: u32) {
    let context = || bed.context();
    let texts = ["initiating data transfers", "receiving data transfers", "data transfers complete", "return status 0"];
    let largest = if mtu > 1500 { 4096 } else { 1024 };
    for (name, address) in ADDRESSES {
        for flags in ["".to_owned(), " -C 1 -S 1".to_owned(), format!(" -C 100 -S {largest}"), " -c 3".to_owned()] {
            report.case(&format!("{name} udaddy{flags}"), context, || {
                bed.guest.expect(&format!("udaddy -s {address}{flags}"), LIMIT, &texts).map(drop)
            });
        }
    }
}

/// The service waits for 15 s.
fn silent(report: &mut Report, bed: &Bed) {
    report.case(
        "a client that connects as ucmatose and says nothing is given up",
        || bed.context(),
        || {
            let texts = ["connected", "given up"];
            bed.guest.expect(&format!("silent_client {TARGET_V4} 7471 50"), LIMIT, &texts).map(drop)
        },
    );
}

fn cmtime(report: &mut Report, bed: &Bed) {
    let context = || bed.context();
    for (name, address) in ADDRESSES {
        for count in [1, 100, 1000] {
            let command = format!("cmtime -s {address} -c {count}");
            report.case(&format!("{name} cmtime -c {count}"), context, || {
                let text = bed.guest.expect(&command, LIMIT, &[])?.text;
                // Its exit code is 0 whatever happens.
                let bad = text.lines().any(|line| line.starts_with("event:") || line.starts_with("RDMA_CM_EVENT_"));
                let rows =
                    ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];
                let all = rows.iter().all(|row| text.lines().any(|line| line.starts_with(row)));
                if all && !bad { Ok(()) } else { Err(format!("cmtime printed {text}")) }
            });
        }
    }
}
