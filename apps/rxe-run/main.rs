//! rxe-run: runs a program with an RDMA device of its own, in user space and without privileges.
//!
//! [`cli`] parses the command line. [`library`] finds the preload library and [`program`] the program, which then takes the
//! place of this one. [`list`] prints which programs run.

mod cli;
mod elf;
mod library;
mod list;
mod program;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rxe::{CliError, manual_pages};
use rxe_uverbs::settings::{ADDRESS, CAPTURE, DEVICE, LOG};

use cli::{Action, Run};
use program::StartError;

fn main() -> ExitCode {
    match run() {
        Ok(text) => {
            // Standard output may be closed, as by `head`.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Error::Cli(error)) => error.report("rxe-run", io::stderr()),
        Err(Error::Start(error)) => {
            let _ = writeln!(io::stderr(), "rxe-run: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Why no program runs.
enum Error {
    Cli(CliError),
    Start(StartError),
}

impl From<CliError> for Error {
    fn from(error: CliError) -> Error {
        Error::Cli(error)
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Error {
        Error::Start(error)
    }
}

fn run() -> Result<String, Error> {
    match cli::parse(std::env::args_os())? {
        Action::List => Ok(list::table(&rxe_uverbs::instance::running())),
        Action::Generate(folder) => {
            manual_pages::generate(cli::command(), &cli::SECTIONS, &folder)?;
            Ok(String::new())
        }
        Action::Run(run) => Err(start(run)?.into()),
    }
}

/// Replaces this process by the program. Returns only when that fails.
fn start(run: Run) -> Result<StartError, Error> {
    let library = library::find()?;
    let path = program::find(&run.program)?;
    if let Some(reason) = program::warning(&path, &library) {
        let _ = writeln!(io::stderr(), "rxe-run: warning: {} {reason}", path.display());
    }
    if let Some(argument) = run.arguments.iter().find(|argument| drops(argument, &library)) {
        let _ = writeln!(
            io::stderr(),
            "rxe-run: warning: {} takes librxe_verbs.so from the program: set LD_PRELOAD for rxe-run, which keeps both",
            argument.display()
        );
    }
    let mut command = Command::new(&path);
    command
        .arg0(&run.program)
        .args(&run.arguments)
        .env("LD_PRELOAD", preload(std::env::var_os("LD_PRELOAD"), &library));
    let settings = [
        (ADDRESS, run.address.map(|address| address.to_string().into())),
        (DEVICE, run.device.map(OsString::from)),
        (LOG, run.log.map(OsString::from)),
        (CAPTURE, run.capture.map(OsString::from)),
    ];
    for (variable, value) in settings {
        if let Some(value) = value {
            command.env(variable, value);
        }
    }
    Ok(StartError::NotExecutable(path, command.exec()))
}

/// Whether an argument, as of `env`, sets LD_PRELOAD to libraries without ours.
fn drops(argument: &OsStr, library: &Path) -> bool {
    let libraries = argument.as_encoded_bytes().strip_prefix(b"LD_PRELOAD=");
    let ours = library.as_os_str().as_encoded_bytes();
    libraries.is_some_and(|libraries| !libraries.split(|byte| b": ".contains(byte)).any(|entry| entry == ours))
}

/// The libraries to preload: ours after those that are there already, as a sanitizer has to be the first.
fn preload(before: Option<OsString>, library: &Path) -> OsString {
    let mut libraries = before.unwrap_or_default();
    let is_ours = |entry: &[u8]| entry == library.as_os_str().as_encoded_bytes();
    if libraries.as_encoded_bytes().split(|byte| b": ".contains(byte)).any(is_ours) {
        return libraries;
    }
    if !libraries.is_empty() {
        libraries.push(":");
    }
    libraries.push(library);
    libraries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_sets_other_libraries_is_found() {
        let drops = |argument: &str| drops(OsStr::new(argument), Path::new("/lib/us.so"));
        assert!(drops("LD_PRELOAD=") && drops("LD_PRELOAD=/lib/asan.so") && drops("LD_PRELOAD=/lib/us.so.1"));
        assert!(!drops("LD_PRELOAD=/lib/asan.so:/lib/us.so") && !drops("XLD_PRELOAD=") && !drops("--"));
    }

    #[test]
    fn libraries_that_are_preloaded_already_stay_in_front() {
        let preload = |before: &str| preload(Some(before.into()), Path::new("/lib/us.so")).into_string().unwrap();
        assert_eq!(preload(""), "/lib/us.so");
        assert_eq!(preload("/lib/asan.so"), "/lib/asan.so:/lib/us.so");
        assert_eq!(preload("/lib/us.so /lib/other.so"), "/lib/us.so /lib/other.so");
    }
}
