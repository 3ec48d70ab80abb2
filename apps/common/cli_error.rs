//! Errors that end a program.

use std::io::Write;
use std::process::ExitCode;

use rxe_adapter::texts::Invalid;
use rxe_inspect::client::AskError;

/// Why a program ends, and with which exit code.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The command line asks for help or the version, or is wrong. clap prints its own text and chooses the exit code: 0 or 2.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// The program cannot start, or the target refuses the request: one sentence that names the option or file, what is
    /// wrong, and what to do. Exit code 2.
    #[error("{0}")]
    Rejected(String),
    /// The program started and then failed. Exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl From<Invalid> for CliError {
    fn from(Invalid(sentence): Invalid) -> CliError {
        CliError::new(sentence)
    }
}

impl CliError {
    /// The program cannot start or the request is refused, for the reason in `sentence`.
    pub fn new(sentence: impl Into<String>) -> CliError {
        CliError::Rejected(one_line(sentence.into()))
    }

    /// The program started and then failed, for the reason in `sentence`.
    pub fn failed(sentence: impl Into<String>) -> CliError {
        CliError::Failed(one_line(sentence.into()))
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            // clap has the codes 0 and 2 only.
            CliError::CommandLine(error) => error.exit_code() as u8,
            CliError::Rejected(_) => 2,
            CliError::Failed(_) => 1,
        }
    }

    /// Prints the error of `program` to `stderr`, and returns its exit code. Help and version go to standard output.
    pub fn report(&self, program: &str, mut stderr: impl Write) -> ExitCode {
        // If the stream is closed, the exit code still tells what happened.
        let _ = match self {
            CliError::CommandLine(error) => error.print(),
            _ => stderr.write_all(format!("{program}: {self}\n").as_bytes()),
        };
        ExitCode::from(self.exit_code())
    }
}

/// Escapes control characters: a sentence may quote a name of the user's, and must stay one line of the log.
fn one_line(sentence: String) -> String {
    if !sentence.contains(char::is_control) {
        return sentence;
    }
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    sentence.chars().map(escaped).collect()
}

/// Equal errors print the same text and give the same exit code; `clap::Error` has no comparison of its own.
impl PartialEq for CliError {
    fn eq(&self, other: &CliError) -> bool {
        self.exit_code() == other.exit_code() && self.to_string() == other.to_string()
    }
}

impl From<AskError> for CliError {
    fn from(error: AskError) -> CliError {
        match error {
            AskError::Refused(_) => CliError::new(error.to_string()),
            AskError::Io(_) => CliError::failed(error.to_string()),
        }
    }
}

/// `Err(CliError::new(...))` from a format string.
#[macro_export]
macro_rules! cli_error {
    ($($arg:tt)*) => { Err($crate::CliError::new(format!($($arg)*))) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_sentences_go_to_the_writer() {
        let printed = |error: CliError| {
            let mut text = Vec::new();
            let _ = error.report("rxe-x", &mut text);
            (String::from_utf8(text).expect("UTF-8"), error.exit_code())
        };
        assert_eq!(printed(CliError::new("no port")), ("rxe-x: no port\n".to_owned(), 2));
        assert_eq!(printed(CliError::failed("gone")), ("rxe-x: gone\n".to_owned(), 1));
        // A name may have any characters.
        assert_eq!(printed(CliError::new("no 'a\nb\u{1b}\u{e9}'")), ("rxe-x: no 'a\\nb\\u{1b}\u{e9}'\n".to_owned(), 2));
        let wrong =
            clap::Command::new("rxe-x").try_get_matches_from(["rxe-x", "stray"]).expect_err("no argument is known");
        assert_eq!(CliError::from(wrong).exit_code(), 2);
        let help =
            clap::Command::new("rxe-x").try_get_matches_from(["rxe-x", "--version"]).expect_err("no version is set");
        assert_eq!(CliError::from(help).exit_code(), 2);
        let help = clap::Command::new("rxe-x")
            .try_get_matches_from(["rxe-x", "--help"])
            .expect_err("help is an error to clap");
        assert_eq!(CliError::from(help).exit_code(), 0);
    }
}
