//! Retransmission and ACK timeouts.
//!
//! Two timers run while packets are outstanding. The retransmission timeout follows the measured round trip (see
//! [`RoundTrip`](super::rtt::RoundTrip)): when it expires, everything from the first unacknowledged PSN on is
//! retransmitted, and that costs no retry. The ACK timeout of the connection (IBTA: "Local ACK Timeout") limits the
//! attempts: each whole one without progress uses up a retry. So a connection ends no earlier than with the ACK timeout
//! alone, and a lost packet costs only a few round trips.

use crate::time::{Duration, Instant};
use crate::transport::common::Failure;
use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::transport::{CongestionControl, EngineConfig, QpErrorCause, WcStatus};

use super::Requester;

/// The local ACK timeout of the standard, in nanoseconds: 4.096 microseconds times 2 to the power of the code; 0 disables the timer.
pub(super) fn ack_timeout(code: u8) -> Option<u64> {
    // compliance.md [RC-REQ-TIMER-0]: ACK timeout code 0 disables the timer.
    (code > 0).then_some(4096 << (code & 0x1F))
}

/// The code of an ACK timeout in nanoseconds.
pub(super) fn code_of(ack_timeout: u64) -> u8 {
    (ack_timeout / 4096).trailing_zeros() as u8
}

impl Requester {
    /// Recomputes the retransmission timeout after a change of round trip, backoff or ACK timeout.
    pub(super) fn set_timeout(&mut self, config: &EngineConfig) {
        let longest = self.ack_timeout.map_or(Duration::MAX, Duration::from_nanos);
        let timeout = self.rtt.timeout(config, longest).as_nanos();
        self.timeout = u64::try_from(timeout).unwrap_or(u64::MAX);
    }

    /// Restarts both timers, with the first packet or after progress.
    #[inline]
    pub(super) fn rearm(&mut self, now: Instant) {
        self.expect_progress(now);
        self.schedule(now);
    }

    /// Restarts the ACK timeout.
    #[inline]
    pub(in crate::transport) fn expect_progress(&mut self, now: Instant) {
        if let Some(ack_timeout) = self.ack_timeout {
            self.expires = now.after(ack_timeout);
        }
    }

    /// Restarts the retransmission timeout.
    #[inline]
    pub(in crate::transport) fn schedule(&mut self, now: Instant) {
        self.deadline = match (self.rnr_wait, self.ack_timeout) {
            (Some(wait), _) => Some(wait.until),
            (None, Some(_)) if self.una < self.sent => {
                // compliance.md [RC-REQ-EARLY-RETRY]: The requester retransmits before the ACK timeout of the
                // connection has expired, when the measured round trip shows that the answer is lost.
                let early = now.after(self.timeout);
                // Leave time for an answer to the retransmission before the ACK timeout.
                Some(if early.after(self.timeout) > self.expires { self.expires } else { early })
            }
            _ => None,
        };
    }

    /// Records progress: a response moved `una`, if only by one packet of a long READ.
    #[inline]
    pub(in crate::transport) fn progressed(&mut self, cx: &Context, now: Instant) {
        self.measure(cx, now);
        self.rearm(now);
    }

    /// Takes an RTT sample, if the timed packet has been acknowledged.
    #[inline]
    pub(super) fn measure(&mut self, cx: &Context, now: Instant) {
        let Some(round_trip) = self.rtt.answered(self.una, now) else { return };
        cx.stats.rtt_samples.inc();
        self.set_timeout(&cx.config);
        if let (Some(delay), CongestionControl::Delay(settings)) = (&mut self.delay, &cx.config.congestion) {
            delay.measured(settings, now, round_trip, cx.config.window);
            self.follow_delay();
        }
    }

    /// Handles a READ or atomic response that did not move `una`. While the peer still answers requests from before the
    /// last retry, it has not processed the retransmission yet: the retransmission timeout restarts, the ACK timeout
    /// does not.
    #[inline]
    pub(in crate::transport) fn still_answering(&mut self, psn: Seq, now: Instant) {
        // compliance.md [RC-REQ-STILL-ANSWERING]: Responses to requests from before the last retry restart the
        // retransmission timeout, but not the ACK timeout.
        if psn < self.before_retry && self.deadline.is_some() {
            self.schedule(now);
        }
    }

    /// Handles the expired retransmission timer.
    ///
    /// # Errors
    /// The failure of the oldest work request when all retries are used up.
    pub(in crate::transport) fn handle_timeout(&mut self, cx: &mut Context, now: Instant) -> Result<(), Failure> {
        if self.rnr_wait.take().is_some() {
            // The RNR wait is over; the timer starts when something is sent.
            self.deadline = None;
            return Ok(());
        }
        cx.stats.timeouts.inc();
        // compliance.md [RC-REQ-RETRY-COUNT]: Each whole ACK timeout without progress uses up a retry.
        if now >= self.expires {
            if self.retries_left == 0 {
                cx.stats.retry_exceeded_err.inc();
                return Err(Failure::of(self.sq.head(), WcStatus::RetryExcErr, QpErrorCause::RetryExceeded));
            }
            self.retries_left -= 1;
            self.nak_counted = false;
            self.expect_progress(now);
        }
        cx.stats.completer_retry_err.inc();
        self.rtt.double();
        self.set_timeout(&cx.config);
        // The last retransmission is lost, too: the next NAK counts again.
        // compliance.md [RC-REQ-TIMEOUT]: When the retransmission timeout expires, everything from the first
        // unacknowledged PSN on is retransmitted, also from the middle of a message.
        self.retried = None;
        self.rewind(cx, now, false);
        self.schedule(now);
        Ok(())
    }
}
