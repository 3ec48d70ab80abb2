//! The section `[limits]`: how much of the adapter peers may use.

use std::str::FromStr;

use rxe::{CliError, cli_error};
use rxe_adapter::texts::Text;
use serde::Deserialize;

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
    /// Connections that one address has requested.
    pub connections_per_address: u32,
    /// Connections of all lcores that are not established yet.
    pub pending: u32,
    /// Of these, connections that one address has requested.
    pub pending_per_address: u32,
    /// Connection and SIDR requests per second of one address; `None` is no limit.
    pub requests_per_second: Option<u32>,
    /// Queue pairs of one lcore.
    pub queue_pairs: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        LimitsSection::default().resolve()
    }
}

/// The connections that one address may have where the configuration does not say: some stay for others.
fn share(connections: u32) -> u32 {
    (connections - connections / 8).max(1)
}

/// The section as the file has it.
#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LimitsSection {
    connections: Option<Text<Count<65_536>>>,
    connections_per_address: Option<Text<Count<65_536>>>,
    pending: Option<Text<Count<65_536>>>,
    pending_per_address: Option<Text<Count<65_536>>>,
    requests_per_second: Option<Text<Count<1_000_000>>>,
    queue_pairs: Option<Text<Count<65_534>>>,
}

impl LimitsSection {
    /// Fills in the defaults.
    pub fn resolve(&self) -> Limits {
        let connections = self.connections.as_ref().map_or(16_384, |text| text.0.0);
        Limits {
            connections,
            connections_per_address: (self.connections_per_address.as_ref())
                .map_or_else(|| share(connections), |text| text.0.0),
            pending: self.pending.as_ref().map_or(8192, |text| text.0.0),
            pending_per_address: self.pending_per_address.as_ref().map_or(4096, |text| text.0.0),
            requests_per_second: self.requests_per_second.as_ref().map(|text| text.0.0),
            queue_pairs: self.queue_pairs.as_ref().map_or(16_384, |text| text.0.0),
        }
    }
}
