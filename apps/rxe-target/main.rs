//! rxe-target: a RoCEv2 target in userspace on DPDK.
//!
//! [`cli`] understands the command line, [`config`] turns it and the configuration file into a checked configuration,
//! [`serve`] starts DPDK and runs the [`services`] until a signal comes; [`manage`] answers `rxe-ctl` and Prometheus.

mod cli;
#[path = "../common/command_line.rs"]
mod command_line;
mod config;
#[path = "../common/generate.rs"]
mod generate;
#[path = "../common/lcores.rs"]
mod lcores;
mod log;
mod manage;
#[path = "../common/mistake.rs"]
mod mistake;
#[path = "../common/sentence.rs"]
mod sentence;
mod serve;
mod services;
#[path = "../common/signals.rs"]
mod signals;

use std::io::{self, Write};
use std::process::ExitCode;

use cli::Command;
use config::Config;
use mistake::Mistake;
use rxe_dpdk::output;

fn main() -> ExitCode {
    let code = match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(mistake) => {
            // Where standard error is closed or not read nobody can be told, and the exit code says it all the same.
            output::stderr().enqueue(format!("rxe-target: {mistake}\n").as_bytes());
            ExitCode::from(mistake.exit_code())
        }
    };
    output::finish();
    code
}

fn run() -> Result<(), Mistake> {
    match cli::parse(std::env::args_os().skip(1))? {
        Command::Print(text) => print(&text),
        Command::Check(path, settings) => {
            let config = Config::resolve(*settings, &services::names())?;
            services::factories(&config)?;
            print(&format!("{} is right: {config}\n", path.display()));
        }
        Command::Generate(folder) => generate::generate(cli::command(), &folder).map_err(Mistake::new)?,
        Command::Serve(settings) => serve::serve(Config::resolve(*settings, &services::names())?)?,
    }
    Ok(())
}

/// Writes to standard output at once, before there is anything that must not wait for its reader. It may be closed, as by
/// `head`.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
