//! Faults made on purpose, as plain data.

use serde::{Deserialize, Serialize};

/// A rule for faults, and what it has done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// Its number.
    pub id: u32,
    /// `rx` is from the wire, `tx` to it.
    pub direction: String,
    /// What happens: `drop`, `duplicate`, `corrupt`, `corrupt-payload`, `corrupt-icrc`, `ecn`, `delay`, `reorder`, `nak` or
    /// `rnr`.
    pub action: String,
    /// The whole rule in a line.
    pub rule: String,
    /// `roce`, or `all` frames.
    pub frames: String,
    /// Opcodes that it is for; `None` is any.
    pub opcode: Option<String>,
    /// Destination queue pair that it is for; `None` is any.
    pub qpn: Option<u32>,
    /// First and last PSN that it is for; `None` is any.
    pub psn: Option<(u32, u32)>,
    /// How often it happens to these, from 0 to 1.
    pub probability: f64,
    /// How many times at most; `None` is without end.
    pub count: Option<u64>,
    /// What its choices follow from.
    pub seed: u64,
    /// Of `delay`: nanoseconds at least.
    pub delay_ns: Option<u64>,
    /// Of `delay`: and up to so many more.
    pub jitter_ns: Option<u64>,
    /// Of `nak`: what it says.
    pub code: Option<String>,
    /// Of `rnr`: the code of the timer.
    pub timer: Option<u8>,
    /// Frames that it was for while it was not used up.
    pub matched: u64,
    /// Frames to which it happened.
    pub hits: u64,
}
