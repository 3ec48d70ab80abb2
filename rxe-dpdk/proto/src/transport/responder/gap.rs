//! Packets beyond the expected PSN, and the sequence NAK for them.
//!
//! The peer must learn of each packet that was dropped, or it waits for its ACK timeout. One sequence NAK, or RNR NAK,
//! is enough for all packets dropped before it is sent, as the peer then goes back to the expected PSN. When the
//! expected packet arrives before the NAK has been sent, because the network reorders, the NAK moves on to the next
//! missing packet, and is dropped only when none is missing.

use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::wire::{DropReason, NakCode, Syndrome};

use super::{Gap, Nak, NakSent, Responder};

impl Responder {
    /// Handles a request beyond the expected PSN: packets before it are missing.
    pub(super) fn out_of_sequence(&mut self, cx: &Context, psn: Seq) {
        self.dropped(cx, psn);
        match self.nak_sent {
            NakSent::None => {
                // compliance.md [RC-RSP-GAP-NAK]: A request beyond the expected PSN is dropped.
                self.schedule_sequence_nak();
                cx.stats.out_of_seq_request.inc();
                cx.drop(DropReason::PsnOutOfSequence);
            }
            // compliance.md [RC-RSP-GAP-NAK]: A request beyond the expected PSN is dropped.
            NakSent::Sequence => cx.drop(DropReason::PsnOutOfSequence),
            // compliance.md [RC-RSP-SILENT-AFTER-RNR]: No sequence NAK for the packets in flight behind an RNR NAK.
            NakSent::NotReady => cx.drop(DropReason::PsnAfterRnr),
        }
    }

    /// Records that packet `psn`, the expected one or one beyond it, is dropped. Call it before setting `nak_sent`.
    pub(super) fn dropped(&mut self, cx: &Context, psn: Seq) {
        if self.nak_sent == NakSent::None {
            self.gap = Gap { last: psn, again: false, after_rnr: None };
            return;
        }
        // Packets in flight arrive in order, so a PSN not above the last one is a retransmission (or was reordered;
        // then the peer retransmits more than necessary).
        self.gap.again |= self.nak.is_none() && psn > self.expected && psn <= self.gap.last;
        if self.nak.is_none() && self.nak_sent == NakSent::NotReady {
            self.gap.after_rnr = Some(cx.bursts);
        }
        self.gap.last = self.gap.last.max(psn);
    }

    /// Updates the NAK state when the expected packet arrives after a NAK was sent or is pending.
    #[cold]
    #[inline(never)]
    pub(super) fn expected_came(&mut self, cx: &Context) {
        // The peer waits before it retransmits after an RNR NAK, so packets in flight arrive in earlier bursts.
        let overtaken = self.gap.after_rnr == Some(cx.bursts);
        if self.nak.is_some() || self.gap.again || overtaken {
            self.schedule_sequence_nak();
        } else {
            // The NAK was sent: everything dropped is retransmitted.
            self.nak_sent = NakSent::None;
        }
    }

    /// Schedules a sequence NAK for the PSN that is expected when it is written.
    fn schedule_sequence_nak(&mut self) {
        self.nak_sent = NakSent::Sequence;
        (self.gap.again, self.gap.after_rnr) = (false, None);
        let syndrome = Syndrome::Nak(NakCode::PsnSequence);
        self.nak = Some(Nak { psn: self.expected.psn(), msn: self.msn, syndrome });
    }

    /// Updates a pending sequence NAK to the PSN expected now, or drops it when nothing is missing.
    #[cold]
    #[inline(never)]
    pub(super) fn update_nak(&mut self) {
        if !self.nak.is_some_and(Nak::is_sequence) {
            return;
        }
        // compliance.md [RC-RSP-GAP-NAK]: A request beyond the expected PSN is dropped.
        if self.gap.last < self.expected {
            self.nak_sent = NakSent::None;
            self.nak = None;
        } else {
            self.schedule_sequence_nak();
        }
    }
}
