//! rxe-ctl: a look inside a running rxe-target.
//!
//! [`cli`] understands the command line, [`target`] finds the target, [`verbs`] ask it and [`show`] what it answers;
//! [`top`] goes on asking.

mod capture;
mod cli;
mod fault;
#[path = "../common/generate.rs"]
mod generate;
#[path = "../common/sentence.rs"]
mod sentence;
mod show;
mod table;
mod target;
mod top;
mod verbs;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use rxe_inspect::client::AskError;

use cli::Cli;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The user has to do something else: a sentence that says what.
    #[error("{0}")]
    Mistake(String),
    /// The target did not answer as it should.
    #[error("{0}")]
    Target(#[from] AskError),
    /// A port is not ACTIVE.
    #[error("{0}")]
    Down(String),
    /// The terminal does not do as it should.
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] io::Error),
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Mistake(_) | Failure::Target(AskError::Refused(_)) => 2,
            Failure::Target(AskError::Io(_)) | Failure::Down(_) | Failure::Terminal(_) => 1,
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(text) => {
            // Who reads no further, as `head` does, has what it wanted.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let _ = writeln!(io::stderr(), "rxe-ctl: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run() -> Result<String, Failure> {
    match Cli::try_parse() {
        Ok(cli) => verbs::run(cli),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(error.to_string())
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Err(Failure::Mistake(
            "there is no verb: say what to look at, as in rxe-ctl qp (see rxe-ctl --help)".to_owned(),
        )),
        Err(error) => Err(Failure::Mistake(sentence::sentence("rxe-ctl", &error))),
    }
}
