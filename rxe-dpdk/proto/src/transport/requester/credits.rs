//! End-to-end flow control of the requester: a message that needs a receive waits until the peer has one.
//!
//! Each ACK carries the number of messages that the peer has completed (MSN) and of receives that it has for more
//! (credits). Messages are numbered as they are posted (SSN), so the sum is the number of the last message that may be
//! sent; messages that need no receive may go beyond it. IBTA: "End-to-End (Message Level) Flow Control".
//!
//! The limit is a hint: a peer may have posted receives since. So a message beyond it waits only while something before
//! it is outstanding. Then its first packet is sent alone, as a probe; when that is acknowledged, the rest follows. A
//! lost probe, or one that finds no receive, is handled like any other packet.

use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::transport::work::OpTraits;
use crate::wire::{Aeth, Syndrome, credit_count};

use super::{Requester, SendWqe};

/// State of the peer's credits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Credits {
    /// SSN of the last message that may be sent, modulo 2^24; `None` while the peer sets no limit.
    limit: Option<u32>,
    /// The PSN of an unacknowledged probe: a message's first packet, sent without a credit.
    probe: Option<Seq>,
}

/// How far `ssn` is beyond `limit`, both modulo 2^24; within the limit when 0 or less.
#[inline]
const fn beyond(ssn: u32, limit: u32) -> i32 {
    ((ssn.wrapping_sub(limit) << 8) as i32) >> 8
}

impl Credits {
    /// Updates the limit from an ACK with MSN `msn` and credit code `code`. Returns whether it moved.
    #[inline]
    fn update(&mut self, msn: u32, code: u8) -> bool {
        let new = credit_count(code).map(|count| msn.wrapping_add(count) & 0xFF_FFFF);
        // compliance.md [RC-REQ-CREDIT-FORWARD]: The credit limit only moves forward, also across the wrap.
        let moves = match (self.limit, new) {
            // Credits never go back: an ACK from before further receives were posted takes none away.
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
    /// Updates the credits from the AETH of a response. Returns whether the limit moved.
    #[inline]
    pub(in crate::transport) fn take_credits(&mut self, aeth: Option<&Aeth>) -> bool {
        match aeth.map(|aeth| (aeth.syndrome(), aeth.msn())) {
            Some((Syndrome::Ack { credits }, msn)) => self.credits.update(msn, credits),
            _ => false,
        }
    }

    /// Forgets the probe: it is retransmitted with everything else.
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
        // compliance.md [RC-REQ-CREDIT-LIMIT]: A message that needs a receive waits, while anything before it is
        // outstanding, until MSN and credits reach its number.
        // A message that was begun is finished: it has a receive.
        self.credits.limit.is_some_and(|limit| {
            self.cursor == wqe.first && wqe.is(OpTraits::NEEDS_RECEIVE) && beyond(wqe.ssn, limit) > 0
        })
    }

    /// Whether the packet of `wqe` at the cursor has to wait for a response that may carry credits. If not, and it
    /// lacks a credit, it is sent as a probe.
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
        assert!(!credits.update(0, 31), "no limit before the first credits");
        assert!(credits.update(0xFF_FFFE, credit_code(1)));
        assert_eq!(credits.limit, Some(0xFF_FFFF));
        assert!(credits.update(0xFF_FFFE, credit_code(4)));
        assert_eq!(credits.limit, Some(2));
        assert!(!credits.update(0xFF_FFFF, 0) && !credits.update(1, 1));
        assert_eq!(credits.limit, Some(2));
        assert!(credits.update(1, 31));
        assert_eq!(credits.limit, None);
        assert!(credits.update(7, 0));
        assert_eq!(credits.limit, Some(7), "a peer that starts to limit");
    }

    #[test]
    fn ssn_and_limit_compare_modulo_2_to_the_24() {
        assert_eq!((beyond(5, 5), beyond(6, 5), beyond(4, 5)), (0, 1, -1));
        assert_eq!((beyond(1, 0xFF_FFFF), beyond(0xFF_FFFF, 1)), (2, -2));
    }
}
