//! Long messages, of more than one packet, where the port limits what they have outstanding.

use crate::time::Instant;
use crate::transport::SendOp;
use crate::transport::seq::Seq;
use crate::transport::work::OpTraits;

use super::{Requester, SendWqe};

/// Packets of a READ that one request asks for where long messages are limited. Each ends at a multiple of it in the message.
const READ_PART: u32 = 8;

impl Requester {
    /// Whether long messages are outstanding.
    #[inline]
    pub(in crate::transport) fn has_long(&self) -> bool {
        self.una < self.long_end
    }

    /// Counts packets of long messages that are outstanding and not taken for lost. Short messages between long ones count.
    pub(in crate::transport) fn count_long(&self) -> u64 {
        let (from, to) = (self.una.max(self.long_from), self.sent.min(self.long_end));
        if from < to { to.since(from) } else { 0 }
    }

    /// The packets of long messages that are outstanding are charged.
    pub(in crate::transport) fn note_charged(&mut self) {
        self.long_charged = self.sent.min(self.long_end);
    }

    /// Those that were charged last are taken for lost.
    pub(in crate::transport) fn forget_long(&mut self) {
        self.long_from = self.long_from.max(self.long_charged);
    }

    /// Whether outstanding packets were taken for lost.
    pub(in crate::transport) fn has_forgotten(&self) -> bool {
        self.una < self.long_from
    }

    /// Whether the packet at the cursor is of a long message and new.
    pub(in crate::transport) fn continues_long(&self) -> bool {
        self.cursor >= self.sent && self.sq.get(self.cursor_wqe).is_some_and(|wqe| wqe.packets > 1)
    }

    /// Whether packets were sent after the last one that requested an ACK.
    pub(in crate::transport) fn lacks_ack_request(&self) -> bool {
        self.since_ack > 0
    }

    /// Long messages are limited: `packets` may be sent, with the last of them requesting an ACK. Returns how many request packets may be
    /// written for it.
    pub(in crate::transport) fn limit_long(&mut self, packets: u32) -> usize {
        self.part = packets;
        let is_read = self.sq.get(self.cursor_wqe).is_some_and(|wqe| matches!(wqe.op, SendOp::Read { .. }));
        if is_read { packets.div_ceil(READ_PART) as usize } else { packets as usize }
    }

    /// Long messages are not limited.
    #[inline]
    pub(in crate::transport) fn lift_limit(&mut self) {
        self.part = u32::MAX;
    }

    /// The last round trip, if it was not taken before, and the shortest one, in nanoseconds.
    pub(in crate::transport) fn take_round_trip(&mut self, now: Instant) -> Option<(u64, u64)> {
        self.rtt.take(now)
    }

    /// Whether long messages are limited.
    #[inline]
    pub(super) fn limits_long(&self) -> bool {
        self.part != u32::MAX
    }

    /// The READ at the cursor is requested in parts, unless it was requested before.
    #[cold]
    pub(super) fn begin_in_parts(&mut self) {
        if !self.retransmits() && self.sq.get(self.cursor_wqe).is_some_and(|wqe| self.cursor == wqe.first) {
            self.sq.set_parts(self.cursor_wqe);
        }
    }

    /// One past the last packet that is requested with the one at the cursor, of a READ.
    #[inline]
    pub(super) fn read_end(&self, wqe: &SendWqe) -> Seq {
        if !wqe.is(OpTraits::IN_PARTS) {
            return wqe.end();
        }
        let done = self.cursor.since(wqe.first) as u32;
        wqe.first.add((done / READ_PART + 1) * READ_PART).min(wqe.end())
    }

    /// Whether the responses to a part of the READ end with `psn`.
    #[cold]
    pub(in crate::transport) fn ends_part(wqe: &SendWqe, psn: Seq) -> bool {
        wqe.is(OpTraits::IN_PARTS) && (psn.since(wqe.first) + 1).is_multiple_of(u64::from(READ_PART))
    }
}
