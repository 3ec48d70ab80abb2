//! Command lines of the programs that take DPDK ports: what stands before the first `--` is for EAL, the rest is ours.

use std::ffi::OsString;

use clap::Parser;
use clap::error::ErrorKind;

use crate::mistake::Mistake;
use crate::sentence::sentence;

/// A command line, without the program's name.
#[derive(PartialEq, Eq, Debug)]
pub struct CommandLine {
    /// What stands before the first `--`, or all of it where there is none.
    pub before: Vec<String>,
    /// What stands behind it.
    pub behind: Option<Vec<String>>,
}

impl CommandLine {
    /// Finds the `--`.
    pub fn split(argv: impl IntoIterator<Item = OsString>) -> Result<CommandLine, Mistake> {
        let mut before = argv.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let behind = before.iter().position(|arg| arg == "--").map(|at| {
            let behind = before.split_off(at + 1);
            before.pop();
            behind
        });
        Ok(CommandLine { before, behind })
    }
}

fn text(arg: OsString) -> Result<String, Mistake> {
    arg.into_string().map_err(|arg| Mistake::new(format!("the argument {arg:?} is not UTF-8 text: write it in UTF-8")))
}

/// What our part of a command line asks for.
#[derive(Debug)]
pub enum Asked<A> {
    /// Print this text, help or version, and be done.
    Print(String),
    /// These options.
    Args(A),
}

/// Understands our part of the command line of `program`.
pub fn understand<A: Parser>(program: &str, ours: &[String]) -> Result<Asked<A>, Mistake> {
    match A::try_parse_from(ours) {
        Ok(args) => Ok(Asked::Args(args)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(Asked::Print(error.to_string()))
        }
        Err(error) => Err(Mistake::new(sentence(program, &error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> CommandLine {
        CommandLine::split(line.split_whitespace().map(OsString::from)).unwrap_or_else(|mistake| panic!("{mistake}"))
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
    fn an_argument_that_is_not_text_is_a_sentence() {
        use std::os::unix::ffi::OsStringExt;
        let mistake = CommandLine::split([OsString::from_vec(vec![0xFF])]).map(|_| ()).expect_err("not UTF-8");
        assert_eq!(mistake.to_string(), "the argument \"\\xFF\" is not UTF-8 text: write it in UTF-8");
    }
}
