//! What a reload of the configuration file did, as plain data.

use serde::{Deserialize, Serialize};

/// The differences between the running target and its configuration file, and what became of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reload {
    /// The configuration file.
    pub file: String,
    /// Changes that are in force now.
    pub applied: Vec<String>,
    /// Changes that were refused, each with a colon and the reason.
    pub refused: Vec<String>,
    /// Names of settings that take effect with the next start.
    pub needs_restart: Vec<String>,
}

impl Reload {
    /// Whether the target runs as the file says, as before.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.refused.is_empty() && self.needs_restart.is_empty()
    }
}
