//! The wait after an RNR NAK.

use crate::time::Duration;
use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::wire::rnr_timer;

use super::Requester;

/// RNR retry count without limit.
pub(in crate::transport) const RNR_RETRY_INFINITE: u8 = 7;

/// The longest RNR timer.
const MAX_RNR_TIMER: Duration = rnr_timer(0);

impl Requester {
    /// How long to wait before the message at `psn` is retransmitted, after an RNR NAK with `timer`. With unlimited
    /// retries, a peer that never posts a receive would get a thousand requests per second: every further RNR NAK for
    /// the same message doubles the wait, up to the longest RNR timer. It is never shorter than the peer's timer.
    pub(in crate::transport) fn rnr_time(&mut self, cx: &Context, psn: Seq, timer: u8) -> Duration {
        let asked = rnr_timer(timer);
        let again = match self.rnr_row {
            (Some(last), again) if last == psn && self.rnr_retry == RNR_RETRY_INFINITE => {
                cx.stats.rnr_backoffs.inc();
                again + 1
            }
            _ => 0,
        };
        self.rnr_row = (Some(psn), again);
        // compliance.md [RC-REQ-RNR-BACKOFF]: With unlimited retries, each further RNR NAK for the same message doubles
        // the wait, up to 655 ms.
        asked.saturating_mul(1 << again.min(16)).min(MAX_RNR_TIMER).max(asked)
    }
}
