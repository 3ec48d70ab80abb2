//! rxe-bench: measures RoCEv2 targets, as an initiator on the same engine as rxe-target.
//!
//! [`cli`] turns the command line into a [`plan`], and [`run`] carries it out. Tests of messages are the service
//! [`initiator`] of an adapter: it connects as [`session`] says, or as perftest does ([`perftest`], [`control`]), and puts
//! its [`work`] on the peer, which is [`load`] for figures and [`verify`] for certainty, with [`bulk`] beside it. [`connect_rate`] is another such
//! service. [`echo`] sends bare [`frames`], without any adapter. [`report`] says what came out, [`progress`] how far it is.

mod bulk;
mod cli;
mod connect_rate;
mod control;
mod echo;
mod frames;
mod initiator;
mod load;
mod payload;
mod perftest;
mod plan;
mod progress;
mod region;
mod report;
mod run;
mod session;
mod values;
mod verify;
mod work;

use std::process::ExitCode;

use rxe::{CliError, manual_pages};
use rxe_dpdk::output;

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
        Command::Generate(folder) => manual_pages::generate(cli::command(), &folder),
        Command::Run(plan) => run::run(&plan),
    }
}
