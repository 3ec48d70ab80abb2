//! Requests on an unreliable connection: a message arrives whole or not at all, and nothing is ever answered.
//!
//! Whatever is wrong with a packet breaks its message, and packets are dropped until a new message begins. (What a
//! broken WRITE had written before stays.) The receive that a broken SEND was being written to is used for the next
//! message. See "Unreliable Connection" under "Responder behavior" of the standard; docs/protocol-notes.md says where we
//! differ.

use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::{QpErrorCause, seq::Seq};
use crate::wire::{DropReason, Opcode, RocePacket};

use super::{FatalError, Message, Refusal, Responder, drop_reason};

/// How far behind the expected PSN a packet is taken for a copy or a straggler, and dropped; further behind, the sender
/// must have gone on unheard. More packets than the network ever holds, far less than half the PSNs.
const STALE_SPAN: u64 = 1 << 16;

/// How far ahead of the expected PSN one packet that starts a message is believed: as many packets as may get lost at
/// once without the message behind them being lost, too. It is also how many packets one forged or damaged packet costs,
/// as they then seem stale.
const NEAR_SPAN: u64 = 256;

/// A packet far from the expected PSN, which was dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far {
    psn: Seq,
    /// The PSN expected then.
    expected: Seq,
}

impl Responder {
    /// A request whose source, partition and ICRC have been checked. Whether it was executed.
    ///
    /// # Errors
    /// Why the queue pair must go to error: only for faults of our own receives.
    #[inline]
    pub(in crate::transport) fn handle_unreliable(
        &mut self,
        common: &Common,
        cx: &mut Context,
        packet: &RocePacket<'_>,
    ) -> Result<bool, FatalError> {
        use Opcode::*;
        let psn = self.expected.nearest(packet.psn());
        let starts = packet.info().position.is_start();
        if psn != self.expected
            && let Err(reason) = self.resynchronize(cx, psn, starts)
        {
            cx.drop(reason);
            return Ok(false);
        }
        if starts {
            self.break_message(cx);
        }
        // [UC-RSP-WHOLE]
        let fits = match self.message {
            Message::None => starts,
            Message::Send { .. } => matches!(packet.opcode(), SendMiddle | SendLast | SendLastImm),
            Message::Write { .. } => matches!(packet.opcode(), WriteMiddle | WriteLast | WriteLastImm),
        };
        if !fits {
            self.break_message(cx);
            cx.drop(DropReason::UcMessageBroken);
            return Ok(false);
        }
        let executed = match packet.opcode() {
            SendFirst | SendMiddle | SendLast | SendLastImm | SendOnly | SendOnlyImm => self.send(common, cx, packet),
            _ => self.write(common, cx, packet),
        };
        // [UC-RSP-SILENT]
        self.ack_due = false;
        let Err(refusal) = executed else { return Ok(true) };
        self.skip(psn);
        // [UC-RSP-NO-RECEIVE]
        let Refusal::Fatal { cause, receive, .. } = refusal else {
            self.message = Message::None;
            cx.stats.uc_messages_lost.inc();
            cx.stats.receive_queue_empty.inc();
            cx.drop(DropReason::NoReceive);
            return Ok(false);
        };
        // [UC-RSP-BAD-REQUEST]
        if let Some(reason) = drop_reason(cause) {
            cx.drop(reason);
        }
        // [UC-RSP-OWN-FAULT]
        if matches!(cause, QpErrorCause::ReceiveTooSmall | QpErrorCause::ReceiveKey | QpErrorCause::CqOverflow) {
            return Err(FatalError { cause, receive: Some(receive) });
        }
        self.message = Message::None;
        cx.stats.uc_messages_lost.inc();
        Ok(false)
    }

    /// A packet with another PSN than the expected one: only one that starts a message moves that.
    ///
    /// # Errors
    /// Why the packet is dropped.
    #[cold]
    #[inline(never)]
    fn resynchronize(&mut self, cx: &Context, psn: Seq, starts: bool) -> Result<(), DropReason> {
        // [UC-RSP-STALE]
        if psn < self.expected && self.expected.since(psn) <= STALE_SPAN {
            return Err(DropReason::UcPsnStale);
        }
        let near = psn > self.expected && psn.since(self.expected) <= NEAR_SPAN;
        // [UC-RSP-RESYNC]
        let second = self.far.is_some_and(|far| far.expected == self.expected && far.psn.add(1) == psn);
        if starts && (near || second) {
            self.expected = psn;
            return Ok(());
        }
        if near {
            // A packet of the message under way was lost.
            self.break_message(cx);
            return Err(DropReason::UcMessageBroken);
        }
        self.far = Some(Far { psn, expected: self.expected });
        Err(if starts { DropReason::UcPsnJump } else { DropReason::UcMessageBroken })
    }

    /// What was received of the message under way is worth nothing.
    #[inline]
    fn break_message(&mut self, cx: &Context) {
        if !matches!(self.message, Message::None) {
            // [UC-RSP-SRQ-KEEP]
            self.message = Message::None;
            cx.stats.uc_messages_lost.inc();
        }
    }

    #[inline]
    fn skip(&mut self, psn: Seq) {
        self.expected = psn.add(1);
    }
}
