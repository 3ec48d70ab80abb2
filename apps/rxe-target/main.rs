//! rxe-target: a RoCEv2 target in userspace on DPDK.
//!
//! [`cli`] parses the command line, [`config`] turns it and the configuration file into a checked configuration, [`serve`]
//! starts DPDK and runs the [`services`] until a signal arrives; [`manage`] answers `rxe-ctl` and Prometheus.

mod cli;
mod config;
mod log;
mod manage;
mod serve;
mod services;

use std::io::{self, Write};
use std::process::ExitCode;

use rxe::{CliError, manual_pages};
use rxe_adapter::output;

use cli::Command;
use config::Config;

fn main() -> ExitCode {
    let code = match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report("rxe-target", output::stderr()),
    };
    output::finish();
    code
}

fn run() -> Result<(), CliError> {
    match cli::parse(std::env::args_os().skip(1))? {
        Command::Check(path, settings) => {
            let config = Config::resolve(*settings, &services::names())?;
            services::factories(&config)?;
            // Standard output may be closed, as by `head`.
            let _ = writeln!(io::stdout(), "{}: configuration OK: {config}", path.display());
        }
        Command::Generate(folder) => manual_pages::generate(cli::command(), &cli::SECTIONS, &folder)?,
        Command::Serve(settings, source) => {
            serve::serve(Config::resolve(*settings, &services::names())?, source.map(|source| *source))?;
        }
    }
    Ok(())
}
