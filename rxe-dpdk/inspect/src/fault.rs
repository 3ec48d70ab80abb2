//! Fault rules, as plain data.

use serde::{Deserialize, Serialize};

/// A fault rule and its hits.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// Number of the rule, from 1.
    pub id: u32,
    /// `rx` or `tx`.
    pub direction: String,
    /// The action: `drop`, `duplicate`, `corrupt`, `corrupt-payload`, `corrupt-icrc`, `ecn`, `delay`, `reorder`, `nak` or
    /// `rnr`.
    pub action: String,
    /// The whole rule in one line.
    pub rule: String,
    /// The frames that it applies to: `roce` or `all`.
    pub frames: String,
    /// Opcodes that it applies to; `None` is any.
    pub opcode: Option<String>,
    /// Destination queue pair that it applies to; `None` is any.
    pub qpn: Option<u32>,
    /// First and last PSN that it applies to; `None` is any.
    pub psn: Option<(u32, u32)>,
    /// Probability for each of these frames, from 0 to 1.
    pub probability: f64,
    /// Maximum number of hits; `None` is unlimited.
    pub count: Option<u64>,
    /// Seed of its random choices.
    pub seed: u64,
    /// Of `delay`: minimum delay in nanoseconds.
    pub delay_ns: Option<u64>,
    /// Of `delay`: maximum additional delay in nanoseconds.
    pub jitter_ns: Option<u64>,
    /// Of `nak`: the NAK code.
    pub code: Option<String>,
    /// Of `rnr`: the encoded RNR timer.
    pub timer: Option<u8>,
    /// Frames that it matched before its count was reached.
    pub matched: u64,
    /// Frames that it was applied to.
    pub hits: u64,
}
