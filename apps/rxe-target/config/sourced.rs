//! Values with the place that they come from, so that an error can name it.

use std::fmt;
use std::path::PathBuf;

/// Origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// An option of the command line.
    Flag(&'static str),
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key.
        key: &'static str,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => f.write_str(flag),
            Origin::File { path, line, key } => write!(f, "{}, line {line}, key '{key}'", path.display()),
        }
    }
}

/// A value and its origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where the value was given: command line, file or default.
    pub origin: Origin,
}
