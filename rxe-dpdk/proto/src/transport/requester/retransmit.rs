//! When a requester sends again unasked, and when it gives up.
//!
//! Two clocks run while something is unanswered. The retransmission timeout follows the measured round trip (see
//! [`RoundTrip`](super::rtt::RoundTrip)): when it ends, everything from the first PSN without an answer on is sent
//! again, and that costs no retry. The ACK timeout that the connection agreed on ("Local ACK Timeout" in the IBTA's
//! words) is the unit of giving up: each whole one without progress uses up a retry. So a peer is given up no earlier
//! than with the ACK timeout alone, and a lost packet costs some round trips.

use crate::time::{Duration, Instant};
use crate::transport::common::Failure;
use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::transport::{EngineConfig, QpErrorCause, WcStatus};

use super::Requester;

/// The local ACK timeout of the standard: 4.096 microseconds times 2 to the power of the code; 0 disables the timer.
pub(super) fn ack_timeout(code: u8) -> Option<Duration> {
    // [RC-REQ-TIMER-0]
    (code > 0).then(|| Duration::from_nanos(4096 << (code & 0x1F)))
}

impl Requester {
    /// The round trip, the doubling or the ACK timeout has changed.
    pub(super) fn set_timeout(&mut self, config: &EngineConfig) {
        self.timeout = self.rtt.timeout(config, self.ack_timeout.unwrap_or(Duration::MAX));
    }

    /// Starts both clocks anew, before the first packet of all or after progress.
    #[inline]
    pub(super) fn rearm(&mut self, now: Instant) {
        self.expect_progress(now);
        self.schedule(now);
    }

    /// Starts the ACK timeout anew.
    #[inline]
    pub(in crate::transport) fn expect_progress(&mut self, now: Instant) {
        if let Some(ack_timeout) = self.ack_timeout {
            self.expires = now + ack_timeout;
        }
    }

    /// Starts the retransmission timeout anew, as when something is to be sent again.
    #[inline]
    pub(in crate::transport) fn schedule(&mut self, now: Instant) {
        self.deadline = match (self.rnr_wait, self.ack_timeout) {
            (Some(wait), _) => Some(wait.until),
            (None, Some(_)) if self.una < self.sent => {
                // [RC-REQ-EARLY-RETRY]
                let early = now + self.timeout;
                // What is sent again shall have time to be answered before the next time.
                Some(if early + self.timeout > self.expires { self.expires } else { early })
            }
            _ => None,
        };
    }

    /// An answer moved `una`, be it by one packet of a long READ.
    #[inline]
    pub(in crate::transport) fn progressed(&mut self, cx: &Context, now: Instant) {
        self.measure(cx, now);
        self.rearm(now);
    }

    /// Takes the round trip of the packet that is being timed, if it has its answer.
    #[inline]
    pub(super) fn measure(&mut self, cx: &Context, now: Instant) {
        if self.rtt.answered(self.una, now) {
            cx.stats.rtt_samples.inc();
            self.set_timeout(&cx.config);
        }
    }

    /// A response to a READ or atomic did not move `una`. As long as the peer still answers what was sent before the
    /// last retry it has not come to what was sent again, however long the queue before that is. The ACK timeout runs
    /// on.
    #[inline]
    pub(in crate::transport) fn still_answering(&mut self, psn: Seq, now: Instant) {
        // [RC-REQ-STILL-ANSWERING]
        if psn < self.before_retry && self.deadline.is_some() {
            self.schedule(now);
        }
    }

    /// The deadline has passed.
    ///
    /// # Errors
    /// The failure of the oldest work request when all retries are used up.
    pub(in crate::transport) fn handle_timeout(&mut self, cx: &mut Context, now: Instant) -> Result<(), Failure> {
        if self.rnr_wait.take().is_some() {
            // The wait is over; the clock starts when something is sent.
            self.deadline = None;
            return Ok(());
        }
        cx.stats.timeouts.inc();
        // [RC-REQ-RETRY-COUNT]
        if now >= self.expires {
            if self.retries_left == 0 {
                cx.stats.retry_exceeded_err.inc();
                let wqe = Some((self.sq.head(), WcStatus::RetryExcErr));
                return Err(Failure { wqe, cause: QpErrorCause::RetryExceeded });
            }
            self.retries_left -= 1;
            self.nak_counted = false;
            self.expect_progress(now);
        }
        cx.stats.completer_retry_err.inc();
        self.rtt.double();
        self.set_timeout(&cx.config);
        // Whatever was sent for the last retry is lost too: the next NAK is news.
        // [RC-REQ-TIMEOUT]
        self.retried = None;
        self.rewind(cx, now, false);
        self.schedule(now);
        Ok(())
    }
}
