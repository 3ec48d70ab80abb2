//! What is the same for all subsystems of a target.

use std::net::IpAddr;

use crate::subsystem::Limits;
use crate::wire::identify::OptionalCommands;

/// An address where hosts reach the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portal {
    /// Address, not a wildcard.
    pub address: IpAddr,
    /// Port of the connection manager's service; 4420 by convention.
    pub port: u16,
}

/// Configuration of a [`Target`](super::Target).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetConfig {
    /// Limits.
    pub limits: Limits,
    /// Optional I/O commands that the backends execute.
    pub commands: OptionalCommands,
    /// Whether written data can be lost before a Flush. If not, hosts send neither Flush nor FUA.
    pub write_cache: bool,
    /// Firmware revision: printable ASCII, at most 8 characters.
    pub firmware: String,
    /// Addresses, in the order of the discovery log.
    pub portals: Vec<Portal>,
}

impl Default for TargetConfig {
    /// Default limits, all optional commands, a write cache, no portals.
    fn default() -> TargetConfig {
        TargetConfig {
            limits: Limits::default(),
            commands: OptionalCommands::COMPARE
                | OptionalCommands::DATASET_MANAGEMENT
                | OptionalCommands::WRITE_ZEROES
                | OptionalCommands::VERIFY,
            write_cache: true,
            firmware: env!("CARGO_PKG_VERSION").into(),
            portals: Vec::new(),
        }
    }
}
