//! Whether the next packet may be written: the checks, in order, and the reason for queries.

use crate::transport::Wait;
use crate::transport::work::OpTraits;

use super::{MAX_SPAN, Requester, SendWqe};

impl Requester {
    /// Why the packet of `wqe` at the cursor has to wait, if it has to, where `window` packets may be outstanding.
    #[inline]
    pub(super) fn blocked_by(&self, wqe: &SendWqe, window: u32, draining: bool) -> Option<Wait> {
        let in_flight = self.cursor.since(self.una);
        // compliance.md [RC-REQ-WINDOW]: At most one window of PSNs is outstanding.
        // The window may have become shorter: then one packet more goes out, and asks, if the last one has not asked. A READ is
        // begun within the window, and may be longer than that.
        let wants_response = wqe.is(OpTraits::WANTS_RESPONSE);
        if in_flight >= u64::from(window) && !self.has_unasked() && !(wants_response && self.cursor > wqe.first) {
            return Some(Wait::Window);
        }
        if self.waits_for_credit(wqe) {
            return Some(Wait::Credit);
        }
        if self.cursor == wqe.first {
            // SQD: what was begun is finished (or retransmitted), nothing new is begun.
            // compliance.md [REQ-SQD]: In SQD, messages that were begun are finished and retransmitted, no other is
            // begun, requests are served.
            if draining && self.cursor >= self.sent {
                return Some(Wait::Drain);
            }
            // compliance.md [RC-REQ-FENCE]: A fenced work request waits for all READs and atomics before it.
            if wqe.is_fenced() && self.reads.outstanding() > 0 {
                return Some(Wait::Fence);
            }
        }
        let span = in_flight + u64::from(wqe.packets);
        // compliance.md [RC-REQ-RD-ATOMIC]: No more READs, atomics, FLUSHes and ATOMIC WRITEs than max_rd_atomic are
        // outstanding.
        if wants_response && (self.reads.is_full() && !self.repeats_oldest() || span > MAX_SPAN) {
            return Some(Wait::RdAtomic);
        }
        None
    }

    /// Whether the packet at the cursor is a repeated READ or atomic with none outstanding: it goes out also when the maximum has become 0.
    fn repeats_oldest(&self) -> bool {
        self.reads.outstanding() == 0 && self.retransmits()
    }

    /// The event that the requester waits for now, where `window` packets may be outstanding.
    pub(in crate::transport) fn waits_for(&self, window: u32, draining: bool) -> Wait {
        if self.rnr_wait.is_some() {
            return Wait::PeerReceive;
        }
        match self.sq.get(self.cursor_wqe) {
            None if self.una < self.sent => Wait::Answer,
            None => Wait::Nothing,
            Some(wqe) if draining && self.cursor == wqe.first && self.cursor >= self.sent => Wait::Drain,
            Some(wqe) if wqe.is(OpTraits::LOCAL) && wqe.is_fenced() && self.reads.outstanding() > 0 => Wait::Fence,
            Some(wqe) if wqe.is(OpTraits::LOCAL) && self.sq.head() != self.cursor_wqe => Wait::Invalidate,
            Some(wqe) if wqe.is(OpTraits::LOCAL) => Wait::Turn,
            Some(wqe) => self.blocked_by(wqe, window, draining).unwrap_or(Wait::Turn),
        }
    }
}
