//! The totals of a run.

use std::fmt;

use rxe_adapter::counters::Snapshot;

/// The totals of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// All counters.
    pub counters: Snapshot,
    /// Packets that the port received and sent, by its own count.
    pub port: (u64, u64),
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rx, tx) = self.port;
        writeln!(f, "port0: rx_frames={rx} tx_frames={tx}")?;
        write!(f, "{}", self.counters)
    }
}
