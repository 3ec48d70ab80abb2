//! What stops a program: one sentence for the user.

/// Why the program does not start, or broke down, said to its user: what is wrong and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct Mistake {
    sentence: String,
    exit_code: u8,
}

impl Mistake {
    /// The program cannot start, as this sentence says.
    pub fn new(sentence: impl Into<String>) -> Mistake {
        Mistake { sentence: sentence.into(), exit_code: 2 }
    }

    /// The program worked and then broke down.
    pub fn broken(sentence: impl Into<String>) -> Mistake {
        Mistake { exit_code: 1, ..Mistake::new(sentence) }
    }

    /// What the process exits with.
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

/// `Err(Mistake)` from a format string.
macro_rules! mistake {
    ($($arg:tt)*) => { Err($crate::mistake::Mistake::new(format!($($arg)*))) };
}
pub(crate) use mistake;
