//! rxe-ctl: inspects and controls a running rxe-target.
//!
//! [`cli`] defines the command line, [`target`] finds the target's socket, [`verbs`] sends the requests and [`show`] formats
//! the answers; [`top`] does so repeatedly.

mod address;
mod capture;
mod cli;
mod config;
mod digest;
mod drain;
mod events;
mod fault;
mod nvmf;
mod output;
mod region;
mod service;
mod show;
mod stat;
mod table;
mod target;
mod top;
mod values;
mod verbs;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rxe::CliError;

use cli::Cli;

fn main() -> ExitCode {
    match run() {
        Ok(text) => {
            // Standard output may be closed, as by `head`.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => error.report("rxe-ctl", io::stderr()),
    }
}

fn run() -> Result<String, CliError> {
    verbs::run(Cli::try_parse()?)
}
