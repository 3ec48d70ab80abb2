//! Real-kernel tests: rxe-target as its users run it, against the Linux kernel's own soft-RoCE driver in a QEMU guest.
//!
//! `cargo test --test real [-- FILTER...]`, FILTER being `GROUP` or `GROUP/CASE` (parts of the names); `-- --demo` runs
//! the demonstration instead. The groups that need root, hugepages and QEMU run in network, mount and process
//! namespaces of their own, so that nothing of them can outlive the run. Where a machine lacks something these groups
//! are skipped, and say so; with the environment variable CI set that is a failure. RXE_REAL_PCAP=FOLDER writes captures
//! of the guests on tap interfaces and on wires to each other. RXE_WRITE_DOCS=1 writes docs/clients.md and the outputs in docs/tutorial.md anew. With
//! RXE_NIGHTLY some groups run a second time in a guest with a newer kernel, whose version is in their names.

mod bench;
mod capture;
mod cli;
mod client;
mod client_table;
mod demo;
mod fault;
mod kernel;
mod loss;
mod matrix;
mod mckey;
mod net;
mod operate;
mod outbound;
mod pci;
mod perftest;
mod pingpong;
mod quick_start;
mod rc_example;
mod rdmacm;
mod report;
mod rsocket;
mod sample;
mod symptoms;
mod target;
mod tutorial_document;
mod vanish;
mod verbs;
mod world;

#[path = "../support/mod.rs"]
mod support;

use report::Report;
use std::process::ExitCode;
use support::{guest, process};
use world::World;

/// What a case returns: nothing, or what went wrong.
pub type Check = Result<(), String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|a| a == "--list") {
        return ExitCode::SUCCESS; // cargo-nextest asks; these cases run under `cargo test` only
    }
    let demo = arguments.iter().any(|a| a == "--demo");
    let filters: Vec<String> = arguments.into_iter().filter(|a| !a.starts_with('-')).collect();
    match world::enter() {
        world::Entered::Outside(code) => code,
        world::Entered::Inside(world) if demo => demo::run(&world),
        world::Entered::Inside(world) => run(filters, Some(&world), None),
        world::Entered::Lacking(why) if demo => {
            eprintln!("make demo cannot run: {why}");
            ExitCode::FAILURE
        }
        world::Entered::Lacking(why) => run(filters, None, Some(why)),
    }
}

/// The groups whose outcome depends on the kernel at the other end, with a newer one.
fn newer_kernel(report: &mut Report, world: &World) {
    report.group("newer-kernel");
    let Some(newer) = report.fixture("its image", || world.newer()) else { return };
    kernel::run(report, &newer);
    matrix::run_one(report, &newer, matrix::Port::Vhost, 4200);
    verbs::run(report, &newer);
}

/// Runs all groups; without a world only those that need none.
fn run(filters: Vec<String>, world: Option<&World>, lacking: Option<String>) -> ExitCode {
    let mut report = Report::new(filters);
    cli::run(&mut report, world);
    if let Some(world) = world {
        kernel::run(&mut report, world);
        operate::run(&mut report, world);
        capture::run(&mut report, world);
        symptoms::run(&mut report, world);
        quick_start::run(&mut report, world);
        tutorial_document::run(&mut report, world);
        pci::run(&mut report, world);
        matrix::run(&mut report, world);
        outbound::run(&mut report, world);
        verbs::run(&mut report, world);
        loss::run(&mut report, world);
        fault::run(&mut report, world);
        pingpong::run(&mut report, world);
        perftest::run(&mut report, world);
        rsocket::run(&mut report, world);
        rdmacm::run(&mut report, world);
        mckey::run(&mut report, world);
        rc_example::run(&mut report, world);
        vanish::run(&mut report, world);
        sample::run(&mut report, world);
        bench::run(&mut report, world);
        if world::nightly() {
            newer_kernel(&mut report, world);
        }
        report.client_table(&world.image.release().unwrap_or_default());
    }
    if let Some(why) = lacking {
        report.skipped(&why, std::env::var_os("CI").is_some_and(|v| !v.is_empty()));
    }
    report.finish()
}
