//! rxe-bench: measures RoCEv2 targets, as an initiator on the same engine as rxe-target.
//!
//! [`cli`] turns the command line into a [`plan`], and [`run`] carries it out. Tests of messages are the service
//! [`initiator`] of an adapter: it connects as [`session`] says, or as perftest does ([`perftest`], [`control`]), and puts
//! its [`work`] on the peer, which is [`load`] for figures and [`verify`] for certainty, with [`bulk`] beside it. [`connect_rate`] is another such
//! service. [`echo`] sends bare [`frames`], without any adapter. [`report`] says what came out, [`progress`] how far it is.

mod bulk;
mod cli;
#[path = "../common/command_line.rs"]
mod command_line;
mod connect_rate;
mod control;
mod echo;
mod frames;
#[path = "../common/generate.rs"]
mod generate;
mod initiator;
#[path = "../common/lcores.rs"]
mod lcores;
mod load;
#[path = "../common/mistake.rs"]
mod mistake;
mod perftest;
mod plan;
mod progress;
mod region;
mod report;
mod run;
#[path = "../common/sentence.rs"]
mod sentence;
mod session;
#[path = "../common/signals.rs"]
mod signals;
mod verify;
mod work;

use std::process::ExitCode;

use cli::Command;
use mistake::Mistake;
use rxe_dpdk::output;

fn main() -> ExitCode {
    let code = match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(mistake) => {
            // Where standard error is closed or not read nobody can be told, and the exit code says it all the same.
            output::stderr().enqueue(format!("rxe-bench: {mistake}\n").as_bytes());
            ExitCode::from(mistake.exit_code())
        }
    };
    output::finish();
    code
}

fn run() -> Result<(), Mistake> {
    match cli::parse(std::env::args_os().skip(1))? {
        Command::Print(text) => run::print(&text),
        Command::Generate(folder) => generate::generate(cli::command(), &folder).map_err(Mistake::new),
        Command::Run(plan) => run::run(&plan),
    }
}
