//! End-to-end flow control as requester: who needs a receive at the peer waits until there is one.
//!
//! Each ACK says how many messages the peer has completed (MSN) and how many receives it has for more (credits).
//! Messages are numbered as they are posted (SSN), so the two together are the number of the last message that may be
//! sent; messages that need no receive go beyond it. IBTA: "End-to-End (Message Level) Flow Control".
//!
//! The limit is advice: a peer may have posted receives without saying so. So a message beyond it waits only while
//! something before it is unanswered. Then its first packet goes out alone, as a probe; when that is acknowledged the
//! rest follows. What comes of a lost probe, or of one that finds no receive, is no different from any other packet.

use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::transport::work::OpTraits;
use crate::wire::{Aeth, Syndrome, credit_count};

use super::{Requester, SendWqe};

/// What the peer's credits mean to the requester.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// SSN of the last message that may be sent, modulo 2^24; `None` while the peer does not limit us.
    limit: Option<u32>,
    /// The PSN of a message's first packet that was sent without a credit and is not acknowledged yet.
    probe: Option<Seq>,
}

/// How far `ssn` is beyond `limit`, both modulo 2^24: not at all when 0 or less.
#[inline]
const fn beyond(ssn: u32, limit: u32) -> i32 {
    ((ssn.wrapping_sub(limit) << 8) as i32) >> 8
}

impl Credits {
    /// An ACK with MSN `msn` and credit code `code`. Whether it moves the limit.
    #[inline]
    fn update(&mut self, msn: u32, code: u8) -> bool {
        let new = credit_count(code).map(|count| msn.wrapping_add(count) & 0xFF_FFFF);
        // [RC-REQ-CREDIT-FORWARD]
        let moves = match (self.limit, new) {
            // Receives that were promised stay: an answer from before others were posted takes nothing back.
            (Some(old), Some(new)) => beyond(new, old) > 0,
            (old, new) => old != new,
        };
        if moves {
            self.limit = new;
        }
        moves
    }
}

impl Requester {
    /// What the AETH of a response says of the receives at the peer, if it does. Whether that is news.
    #[inline]
    pub(in crate::transport) fn take_credits(&mut self, aeth: Option<&Aeth>) -> bool {
        match aeth.map(|aeth| (aeth.syndrome(), aeth.msn())) {
            Some((Syndrome::Ack { credits }, msn)) => self.credits.update(msn, credits),
            _ => false,
        }
    }

    /// What was sent as a probe is to be sent again, with all the rest.
    pub(super) fn forget_probe(&mut self) {
        self.credits.probe = None;
    }

    /// The packet at the cursor has been written as a probe.
    #[inline]
    pub(super) fn probed(&mut self, cx: &Context) {
        self.credits.probe = Some(self.cursor);
        cx.stats.credit_probes.inc();
    }

    /// Whether the packet at the cursor begins a message of `wqe` that is beyond the peer's credits.
    #[inline]
    pub(super) fn lacks_credit(&self, wqe: &SendWqe) -> bool {
        // [RC-REQ-CREDIT-LIMIT]
        // A message that was begun is finished: whether there is a receive has been found out.
        self.credits.limit.is_some_and(|limit| {
            self.cursor == wqe.first && wqe.is(OpTraits::NEEDS_RECEIVE) && beyond(wqe.ssn, limit) > 0
        })
    }

    /// Whether the packet of `wqe` at the cursor has to wait for an answer that may bring credits. If not, and it lacks
    /// one, it may go as a probe.
    #[inline]
    pub(super) fn waits_for_credit(&self, wqe: &SendWqe) -> bool {
        self.credits.probe.is_some_and(|probe| self.una <= probe) || self.una < wqe.first && self.lacks_credit(wqe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::credit_code;

    // [RC-REQ-CREDIT-FORWARD]
    #[test]
    fn the_limit_moves_forward_across_the_wrap_and_never_back() {
        let mut credits = Credits::default();
        assert!(!credits.update(0, 31), "not limited anyway");
        assert!(credits.update(0xFF_FFFE, credit_code(1)));
        assert_eq!(credits.limit, Some(0xFF_FFFF));
        assert!(credits.update(0xFF_FFFE, credit_code(4)));
        assert_eq!(credits.limit, Some(2));
        assert!(!credits.update(0xFF_FFFF, 0) && !credits.update(1, 1));
        assert_eq!(credits.limit, Some(2));
        assert!(credits.update(1, 31));
        assert_eq!(credits.limit, None);
        assert!(credits.update(7, 0));
        assert_eq!(credits.limit, Some(7), "a peer that begins to count");
    }

    #[test]
    fn ssn_and_limit_compare_modulo_2_to_the_24() {
        assert_eq!((beyond(5, 5), beyond(6, 5), beyond(4, 5)), (0, 1, -1));
        assert_eq!((beyond(1, 0xFF_FFFF), beyond(0xFF_FFFF, 1)), (2, -2));
    }
}
