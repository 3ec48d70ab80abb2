//! Command lines of the programs that use DPDK ports: EAL's arguments, `--`, and the program's own.

use std::ffi::OsString;

use crate::cli_error::CliError;

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
    fn an_argument_that_is_not_utf8_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let error = CommandLine::split([OsString::from_vec(vec![0xFF])]).expect_err("not UTF-8");
        assert_eq!(error.to_string(), "the argument \"\\xFF\" is not UTF-8 text: write it in UTF-8");
    }
}
