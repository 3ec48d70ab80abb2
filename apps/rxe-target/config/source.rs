//! A configuration file and the options over it, which can be read again.

use std::path::PathBuf;

use rxe::CliError;

use super::file;
use super::settings::Settings;

/// A configuration file and the options of the command line, which take precedence.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub file: PathBuf,
    /// The options.
    pub flags: Settings,
}

impl Source {
    /// The settings as they are now.
    pub fn read(&self) -> Result<Settings, CliError> {
        Ok(self.flags.clone().over(file::load(&self.file)?))
    }
}
