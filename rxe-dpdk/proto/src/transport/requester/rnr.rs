//! How long to wait for a peer without receives.

use crate::time::Duration;
use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::wire::rnr_timer;

use super::Requester;

/// As retry count: never give up.
pub(in crate::transport) const RNR_RETRY_INFINITE: u8 = 7;

/// The longest time that a peer can ask for.
const LONGEST: Duration = rnr_timer(0);

impl Requester {
    /// How long to wait before the message at `psn` is sent again, of which the peer has said by `timer` that it has no
    /// receive. A peer that never posts one, while we never give up, would else be asked a thousand times a second: every
    /// further refusal of the same message doubles the time, which must be as long as the peer asks, up to the longest that
    /// a peer can ask for.
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
        // [RC-REQ-RNR-BACKOFF]
        asked.saturating_mul(1 << again.min(16)).min(LONGEST).max(asked)
    }
}
