//! Requests on an unreliable connection: a message arrives whole or not at all, and nothing is ever answered.
//!
//! Any invalid packet ends its message, and packets are dropped until a new message begins. (Bytes already written by
//! an incomplete WRITE stay.) The receive of an incomplete SEND is used for the next message. See "Unreliable
//! Connection" under "Responder behavior" of the standard; docs/protocol-notes.md lists the differences.

use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::{QpErrorCause, seq::Seq};
use crate::wire::{DropReason, Opcode, RocePacket};

use super::{FatalError, Message, Refusal, Responder, drop_reason};

/// How far behind the expected PSN a packet counts as duplicated or late, and is dropped; farther behind, the sender
/// must have advanced unnoticed. More packets than the network ever holds, far less than half the PSN space.
const STALE_SPAN: u64 = 1 << 16;

/// How far ahead of the expected PSN a single packet that starts a message is accepted: the number of consecutive
/// packets that can be lost without losing the message behind them. It is also how many packets one forged packet can
/// cost, as they seem stale then.
const NEAR_SPAN: u64 = 256;

/// A packet far from the expected PSN, which was dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far {
    psn: Seq,
    /// The expected PSN at that time.
    expected: Seq,
}

impl Responder {
    /// Handles a request whose source, partition and ICRC have been checked. Returns whether it was executed.
    ///
    /// # Errors
    /// Why the queue pair must go to error: only for errors of its own receives.
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
        // compliance.md [UC-RSP-WHOLE]: A message is delivered whole or not at all.
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
        // compliance.md [UC-RSP-SILENT]: No packet is ever acknowledged, whatever AckReq says.
        if self.ack_due {
            self.acknowledged(common, cx);
        }
        let Err(refusal) = executed else { return Ok(true) };
        self.skip(psn);
        // compliance.md [UC-RSP-NO-RECEIVE]: Without a receive the message is dropped.
        let Refusal::Fatal { cause, receive, .. } = refusal else {
            self.message = Message::None;
            cx.stats.uc_messages_lost.inc();
            cx.stats.receive_queue_empty.inc();
            cx.drop(DropReason::NoReceive);
            return Ok(false);
        };
        // compliance.md [UC-RSP-BAD-REQUEST]: A bad key, range, right or length drops the message and leaves the queue
        // pair as it is.
        if let Some(reason) = drop_reason(cause) {
            cx.drop(reason);
        }
        // compliance.md [UC-RSP-OWN-FAULT]: A message longer than its receive, or a bad key of the receive, takes the
        // queue pair to error.
        if matches!(cause, QpErrorCause::ReceiveTooSmall | QpErrorCause::ReceiveKey | QpErrorCause::CqOverflow) {
            return Err(FatalError { cause, receive: Some(receive) });
        }
        self.message = Message::None;
        cx.stats.uc_messages_lost.inc();
        Ok(false)
    }

    /// Handles a packet with an unexpected PSN: only one that starts a message can move the expected PSN.
    ///
    /// # Errors
    /// Why the packet is dropped.
    #[cold]
    #[inline(never)]
    fn resynchronize(&mut self, cx: &Context, psn: Seq, starts: bool) -> Result<(), DropReason> {
        // compliance.md [UC-RSP-STALE]: A packet up to 65,536 PSNs behind the expected one is dropped even if it begins
        // a message.
        if psn < self.expected && self.expected.since(psn) <= STALE_SPAN {
            return Err(DropReason::UcPsnStale);
        }
        let near = psn > self.expected && psn.since(self.expected) <= NEAR_SPAN;
        // compliance.md [UC-RSP-RESYNC]: A packet that begins a message is accepted up to 256 PSNs ahead, and sets the
        // expected PSN.
        let second = self.far.is_some_and(|far| far.expected == self.expected && far.psn.add(1) == psn);
        if starts && (near || second) {
            self.expected = psn;
            return Ok(());
        }
        if near {
            // A packet of the message in progress was lost.
            self.break_message(cx);
            return Err(DropReason::UcMessageBroken);
        }
        self.far = Some(Far { psn, expected: self.expected });
        Err(if starts { DropReason::UcPsnJump } else { DropReason::UcMessageBroken })
    }

    /// Discards the message in progress.
    #[inline]
    fn break_message(&mut self, cx: &Context) {
        if !matches!(self.message, Message::None) {
            // compliance.md [UC-RSP-SRQ-KEEP]: With a shared receive queue the receive of an incomplete message stays
            // with the queue pair, for its next message.
            self.message = Message::None;
            cx.stats.uc_messages_lost.inc();
        }
    }

    #[inline]
    fn skip(&mut self, psn: Seq) {
        self.expected = psn.add(1);
    }
}
