//! Command lines of the programs that use DPDK ports: EAL's arguments, `--`, and the program's own.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli_error::CliError;

/// Options of DPDK's EAL that users give.
const EAL_OPTIONS: [&str; 30] = [
    "-a",
    "-b",
    "-c",
    "-d",
    "-l",
    "-m",
    "-n",
    "--allow",
    "--base-virtaddr",
    "--block",
    "--file-prefix",
    "--help",
    "--huge-dir",
    "--huge-unlink",
    "--in-memory",
    "--iova-mode",
    "--lcores",
    "--legacy-mem",
    "--log-level",
    "--main-lcore",
    "--no-huge",
    "--no-pci",
    "--no-shconf",
    "--no-telemetry",
    "--proc-type",
    "--single-file-segments",
    "--socket-limit",
    "--socket-mem",
    "--vdev",
    "--version",
];

/// Whether `name` is an option of EAL.
pub fn is_eal(name: &str) -> bool {
    EAL_OPTIONS.contains(&name)
}

/// A command line, without the program's name.
#[derive(PartialEq, Eq, Debug)]
pub struct CommandLine {
    /// The arguments before the first `--`, or all of them where there is none.
    pub before: Vec<String>,
    /// The arguments after it.
    pub behind: Option<Vec<String>>,
}

impl CommandLine {
    /// Splits a command line at the first `--`.
    ///
    /// # Errors
    /// An argument is not UTF-8.
    pub fn split(argv: impl IntoIterator<Item = OsString>) -> Result<CommandLine, CliError> {
        let mut before = argv.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let behind = before.iter().position(|arg| arg == "--").map(|at| {
            let behind = before.split_off(at + 1);
            before.pop();
            behind
        });
        Ok(CommandLine { before, behind })
    }
}

/// Explains clap's error where an option of EAL stands among the program's own; every other error stays clap's.
pub fn explain(error: clap::Error) -> CliError {
    let argument = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(argument))) => argument.clone(),
        _ => return error.into(),
    };
    let name = argument.split('=').next().unwrap_or_default();
    if is_eal(name) {
        return CliError::new(format!("{name} is an option of DPDK's EAL: it belongs in front of `--`"));
    }
    error.into()
}

fn text(arg: OsString) -> Result<String, CliError> {
    arg.into_string().map_err(|arg| CliError::new(format!("the argument {arg:?} is not UTF-8 text: write it in UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> CommandLine {
        CommandLine::split(line.split_whitespace().map(OsString::from)).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_first_separator_divides() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = |before, behind: Option<&str>| CommandLine { before: words(before), behind: behind.map(words) };
        assert_eq!(split("-l 0 -- a -- b"), line("-l 0", Some("a -- b")));
        assert_eq!(split("-- a"), line("", Some("a")));
        assert_eq!(split("-l 0 --"), line("-l 0", Some("")));
        assert_eq!(split("-l 0"), line("-l 0", None));
    }

    #[test]
    fn options_of_eal_among_the_own_ones_are_explained() {
        let said = |words: &[&str]| {
            let parsed = clap::Command::new("x").no_binary_name(true).try_get_matches_from(words);
            explain(parsed.expect_err("no argument is known")).to_string()
        };
        assert_eq!(said(&["--no-pci"]), "--no-pci is an option of DPDK's EAL: it belongs in front of `--`");
        assert_eq!(said(&["--vdev=net_null0"]), "--vdev is an option of DPDK's EAL: it belongs in front of `--`");
        assert_eq!(said(&["-l", "0"]), "-l is an option of DPDK's EAL: it belongs in front of `--`");
        assert!(said(&["--vdve=net_null0"]).contains("unexpected argument '--vdve' found"));
        assert!(said(&["stray"]).contains("unexpected argument 'stray' found"));
    }

    #[test]
    fn an_argument_that_is_not_utf8_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let error = CommandLine::split([OsString::from_vec(vec![0xFF])]).expect_err("not UTF-8");
        assert_eq!(error.to_string(), "the argument \"\\xFF\" is not UTF-8 text: write it in UTF-8");
    }
}
