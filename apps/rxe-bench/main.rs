//! rxe-bench: measures RoCEv2 targets, as an initiator on the same engine as rxe-target.
//!
//! [`cli`] parses the command line into a [`plan`], and [`run`] carries it out. The tests of messages are a service of an
//! adapter, the [`initiator`]: it connects to the target ([`session`], [`connections`]), with perftest's protocol if required
//! ([`perftest`], [`control`]), and posts its [`work`]: [`load`] to measure, or [`verify`] to check data, with [`bulk`] as
//! additional load. [`connect_rate`] is another such service. [`echo`] sends [`frames`] without an adapter. A [`measurement`]
//! becomes an [`outcome`], which is JSON or a row of a [`table`]; [`progress`] prints what is to be seen during the run. [`nvme`] is
//! the load of NVMe commands.

mod args;
mod bulk;
mod cli;
mod connect_rate;
mod connections;
mod control;
#[cfg(feature = "dpdk")]
mod echo;
#[cfg(not(feature = "dpdk"))]
#[path = "no_echo.rs"]
mod echo;
mod ends;
#[cfg(feature = "dpdk")]
mod frames;
mod initiator;
mod load;
mod manual;
mod measurement;
mod nvme;
mod outcome;
mod payload;
mod perftest;
mod perftest_options;
mod plan;
mod progress;
mod region;
mod retransmissions;
mod run;
mod session;
mod table;
mod values;
mod verify;
mod work;

use std::process::ExitCode;

use rxe::{CliError, manual_pages};
use rxe_adapter::output;

use cli::Command;

fn main() -> ExitCode {
    let code = match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report("rxe-bench", output::stderr()),
    };
    output::finish();
    code
}

fn run() -> Result<(), CliError> {
    match cli::parse(std::env::args_os().skip(1))? {
        Command::Generate(folder) => manual_pages::generate(cli::command(), &manual::SECTIONS, &folder),
        Command::Run(plan) => run::run(&plan),
        Command::Nvme(plan) => nvme::run(&plan),
    }
}
