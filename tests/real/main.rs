//! Real-kernel tests: rxe-target as its users run it, against the Linux kernel's own soft-RoCE driver in a QEMU guest.
//!
//! `cargo test --test real [-- FILTER...]`, FILTER being `GROUP` or `GROUP/CASE` (parts of the names), runs one case for
//! each behaviour and each client program. `--include-ignored` adds the full product of flags, MTUs, port types and
//! kernels, as does RXE_NIGHTLY=1, which `make nightly` sets. `--list` prints all names; crate libtest-mimic has the
//! other options. `-- --demo` runs the demonstration instead.
//!
//! The groups that need root, hugepages and QEMU run in network, mount and process namespaces of their own, so that
//! nothing of them can outlive the run. Where a machine lacks something these groups are skipped; with the environment
//! variable CI set that is a failure. RXE_REAL_PCAP=FOLDER writes captures of the guests on tap interfaces and on wires to
//! each other. RXE_WRITE_DOCS=1 writes docs/clients.md and the outputs in docs/tutorial.md.

mod anywhere;
mod bed;
mod bench;
mod capture;
mod cli;
mod client;
mod client_table;
mod clients;
mod demo;
mod env;
mod fault;
mod idle;
mod kernel;
mod loss;
mod matrix;
mod mckey;
mod net;
mod nvmf;
mod operate;
mod outbound;
mod pci;
mod perftest;
mod pingpong;
mod quick_start;
mod rc_example;
mod rdmacm;
mod rsocket;
mod scheduler;
mod station;
mod suite;
mod symptoms;
mod target;
mod tutorial_document;
mod verbs;

#[path = "../support/mod.rs"]
mod support;

use env::{Entered, TestEnv};
use scheduler::{CommandLine, Finished, Place};
use station::{Kernel, Port, StationKey};
use std::process::ExitCode;
use std::sync::Arc;
use suite::AnyGroup;
use support::guest;

/// The result of a case: nothing, or the reason of its failure.
pub type Check = Result<(), String>;

/// All groups, in the order in which they begin: those with a long time and a guest of their own first.
fn groups() -> Vec<AnyGroup> {
    let mut groups = vec![scheduler::group()];
    groups.extend(cli::groups());
    groups.push(operate::group());
    groups.push(quick_start::group());
    groups.push(pci::group());
    groups.push(kernel::group(Kernel::Stable));
    groups.extend(clients::groups());
    groups.extend(idle::groups());
    groups.extend(rsocket::groups());
    groups.extend(perftest::groups());
    groups.extend(matrix::groups());
    groups.push(capture::group());
    groups.push(symptoms::group());
    groups.extend(outbound::groups());
    groups.push(anywhere::group());
    groups.push(nvmf::group());
    groups.push(bench::group());
    groups.extend(verbs::groups(Kernel::Stable));
    groups.extend(loss::groups());
    groups.push(fault::group());
    groups.extend(pingpong::groups());
    groups.extend(rdmacm::groups());
    groups.extend(mckey::groups());
    groups.extend(rc_example::groups());
    groups.push(tutorial_document::group());
    // The groups whose outcome depends on the kernel at the other end, with a newer one.
    groups.push(kernel::group(Kernel::Newer));
    groups.push(matrix::group(StationKey { port: Port::Vhost, mtu: 4200, kernel: Kernel::Newer }));
    groups.extend(verbs::groups(Kernel::Newer));
    groups.push(client_table::group(&groups));
    groups
}

fn main() -> ExitCode {
    if std::env::var_os("RXE_GUESTS").is_some_and(|when| when == "later") {
        println!("RXE_GUESTS=later: tests/run runs these tests in a step of their own");
        return ExitCode::SUCCESS;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let demo = words.iter().any(|word| word == "--demo");
    let command_line = CommandLine::parse(words.into_iter().filter(|word| word != "--demo"));
    if command_line.list() {
        scheduler::run(command_line, groups(), Err("nothing runs"));
        return ExitCode::SUCCESS;
    }
    match env::enter(command_line.full()) {
        Entered::Outside(code) => code,
        Entered::Inside(env) if demo => demo::run(&Arc::new(env)),
        Entered::Inside(env) => run(command_line, Ok(&Arc::new(env))),
        Entered::Lacking(why) if demo => {
            eprintln!("make demo cannot run: {why}");
            ExitCode::FAILURE
        }
        Entered::Lacking(why) => {
            let line = "*".repeat(100);
            eprintln!("{line}\nSKIPPED: the real-kernel tests do not run: {why}\n{line}");
            run(command_line, Err(&why))
        }
    }
}

/// Runs the groups, and prints times, notes and the number of guests after the results.
fn run(command_line: CommandLine, place: Place) -> ExitCode {
    let mut finished = scheduler::run(command_line, groups(), place);
    if let Ok(env) = place {
        eprintln!("{}{} guests booted", finished.summary(), env.boots());
        for note in env.notes() {
            eprintln!("{note}");
        }
        if let Err(why) = write_documents(&finished, env) {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    }
    if finished.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Compares docs/clients.md with the settings that groups had or, if that is asked for, writes the results there.
fn write_documents(finished: &Finished, env: &TestEnv) -> Check {
    let release = env.image(Kernel::Stable).and_then(|image| image.release()).unwrap_or_default();
    client_table::keep(finished, &release)
}
