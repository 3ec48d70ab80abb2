//! The section `[limits]`: how much of the adapter peers may use.

use std::str::FromStr;

use rxe::{CliError, cli_error};
use serde::Deserialize;

use super::values::Text;

/// A count from 1 to `MOST`.
#[derive(Clone, Copy, Debug)]
struct Count<const MOST: u32>(u32);

impl<const MOST: u32> FromStr for Count<MOST> {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Count<MOST>, CliError> {
        match text.parse() {
            Ok(count) if (1..=MOST).contains(&count) => Ok(Count(count)),
            _ => cli_error!("'{text}' is not a limit: it goes from 1 to {MOST}"),
        }
    }
}

/// Limits on what peers may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Simultaneous connections of all lcores.
    pub connections: u32,
    /// Connections of all lcores that are not established yet.
    pub pending: u32,
    /// Of these, connections that one address has requested.
    pub pending_per_address: u32,
    /// Queue pairs of one lcore.
    pub queue_pairs: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 16_384, pending: 8192, pending_per_address: 4096, queue_pairs: 16_384 }
    }
}

/// The section as the file has it.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LimitsSection {
    connections: Option<Text<Count<65_536>>>,
    pending: Option<Text<Count<65_536>>>,
    pending_per_address: Option<Text<Count<65_536>>>,
    queue_pairs: Option<Text<Count<65_534>>>,
}

impl LimitsSection {
    /// Fills in the defaults.
    pub fn resolve(&self) -> Limits {
        let default = Limits::default();
        Limits {
            connections: self.connections.as_ref().map_or(default.connections, |text| text.0.0),
            pending: self.pending.as_ref().map_or(default.pending, |text| text.0.0),
            pending_per_address: (self.pending_per_address.as_ref())
                .map_or(default.pending_per_address, |text| text.0.0),
            queue_pairs: self.queue_pairs.as_ref().map_or(default.queue_pairs, |text| text.0.0),
        }
    }
}
