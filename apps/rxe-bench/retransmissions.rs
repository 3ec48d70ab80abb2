//! What was lost and sent again.

use std::sync::Arc;

use rxe_proto::transport::TransportStats;
use serde::Serialize;

/// Packets of the bench that were lost, as the bench notices it, and sent again.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Retransmissions {
    /// Request packets that were sent again.
    pub packets: u64,
    /// Losses: the sum of the next three.
    pub losses: u64,
    /// Gaps that the peer reported.
    pub sequence_naks: u64,
    /// Gaps in the peer's responses.
    pub response_gaps: u64,
    /// Requests that the peer did not answer in time.
    pub timeouts: u64,
    /// SENDs for which the peer had no receive.
    pub rnr_naks: u64,
}

impl Retransmissions {
    /// The counters of the adapter's workers.
    pub fn read(workers: &[Arc<TransportStats>]) -> Retransmissions {
        let mut sum = Retransmissions::default();
        for stats in workers {
            sum.packets += stats.retransmitted_pkts.get();
            sum.sequence_naks += stats.rcvd_seq_err.get();
            sum.response_gaps += stats.implied_naks.get() + stats.read_gaps.get();
            sum.timeouts += stats.timeouts.get();
            sum.rnr_naks += stats.rcvd_rnr_err.get();
        }
        sum.losses = sum.sequence_naks + sum.response_gaps + sum.timeouts;
        sum
    }

    /// The difference to `before`.
    pub fn since(self, before: Retransmissions) -> Retransmissions {
        Retransmissions {
            packets: self.packets - before.packets,
            losses: self.losses - before.losses,
            sequence_naks: self.sequence_naks - before.sequence_naks,
            response_gaps: self.response_gaps - before.response_gaps,
            timeouts: self.timeouts - before.timeouts,
            rnr_naks: self.rnr_naks - before.rnr_naks,
        }
    }
}
