//! Packets beyond the expected PSN: what the peer is told, and what becomes of a NAK that is not sent yet.
//!
//! The peer must learn of each packet that was dropped, or it waits for its ACK timeout. One sequence NAK, or RNR NAK, is
//! enough for all packets dropped before it is sent, as the peer then goes back to the expected PSN. When the expected
//! packet comes before the NAK has been sent, as from a network that reorders, the NAK moves on to the next packet that is
//! missing, and is given up only when none is.

use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::wire::{DropReason, NakCode, Syndrome};

use super::{Gap, Nak, NakSent, Responder};

impl Responder {
    /// A request from beyond the expected PSN: something is missing.
    pub(super) fn out_of_sequence(&mut self, cx: &Context, psn: Seq) {
        self.dropped(psn);
        match self.nak_sent {
            NakSent::None => {
                // [RC-RSP-GAP-NAK]
                self.schedule_sequence_nak();
                cx.stats.out_of_seq_request.inc();
                cx.drop(DropReason::PsnOutOfSequence);
            }
            // [RC-RSP-GAP-NAK]
            NakSent::Sequence => cx.drop(DropReason::PsnOutOfSequence),
            // [RC-RSP-SILENT-AFTER-RNR]
            NakSent::NotReady => cx.drop(DropReason::PsnAfterRnr),
        }
    }

    /// The packet `psn`, the expected one or one beyond it, is dropped. To be called before `told` is set.
    pub(super) fn dropped(&mut self, psn: Seq) {
        if self.nak_sent == NakSent::None {
            self.gap = Gap { last: psn, again: false };
            return;
        }
        // What is in flight comes in order, so a PSN not above the last one is sent again (or was overtaken; then the peer
        // repeats more than it has to).
        self.gap.again |= self.nak.is_none() && psn > self.expected && psn <= self.gap.last;
        self.gap.last = self.gap.last.max(psn);
    }

    /// The expected packet has come although the peer was told, or is to be told, that something is missing.
    #[cold]
    #[inline(never)]
    pub(super) fn expected_came(&mut self) {
        if self.nak.is_some() || self.gap.again {
            self.schedule_sequence_nak();
        } else {
            // The NAK was sent: all that was dropped comes again.
            self.nak_sent = NakSent::None;
        }
    }

    /// Notes a sequence NAK for whatever packet is expected when it is written.
    fn schedule_sequence_nak(&mut self) {
        self.nak_sent = NakSent::Sequence;
        self.gap.again = false;
        let syndrome = Syndrome::Nak(NakCode::PsnSequence);
        self.nak = Some(Nak { psn: self.expected.psn(), msn: self.msn, syndrome });
    }

    /// Before a NAK is written: a sequence NAK names the packet expected now, and is given up when nothing is missing.
    #[cold]
    #[inline(never)]
    pub(super) fn update_nak(&mut self) {
        if !self.nak.is_some_and(Nak::is_sequence) {
            return;
        }
        // [RC-RSP-GAP-NAK]
        if self.gap.last < self.expected {
            self.nak_sent = NakSent::None;
            self.nak = None;
        } else {
            self.schedule_sequence_nak();
        }
    }
}
