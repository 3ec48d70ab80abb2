//! The responder: executes requests.
//!
//! A request is checked in this order: PSN, opcode sequence, rights, resources, lengths, keys; then it is executed.
//! Nothing is sent here. Replies are recorded, and [`reply`] writes them when the engine transmits, in PSN order:
//!
//! * responses to READs and atomics, the oldest first;
//! * one plain ACK for all SENDs and WRITEs of a burst, never past a READ or atomic whose response is pending: the peer
//!   would
//!   conclude that the response was lost;
//! * a NAK, after everything before it has been answered.

mod acknowledge;
mod atomic;
mod attributes;
mod checks;
mod flush;
mod gap;
mod read;
mod reply;
mod resources;
mod send;
mod uc;
mod ud;
mod write;

use crate::mem::{Access, AtomicError};
use crate::time::Instant;
use crate::wire::{DropReason, NakCode, Opcode, Psn, RocePacket, Syndrome, credit_code};

use super::common::Common;
use super::context::Context;
use super::recv_queue::RecvQueue;
use super::seq::Seq;
use super::{QpErrorCause, RequestRefusal, WcOpcode, WcStatus, WorkCompletion};

use acknowledge::Unanswered;
use checks::{check_remote, part_at, payload_fits};

#[cfg(test)]
pub(super) use resources::Resource;
pub(super) use resources::Resources;
pub(super) use ud::Undelivered;

/// The receiving half of a queue pair.
#[derive(Debug)]
pub(super) struct Responder {
    /// The PSN of the next request.
    expected: Seq,
    /// Messages completed, modulo 2^24.
    msn: u32,
    /// PSN of the newest SEND or WRITE packet that has ended its message or asked for an ACK, and the MSN then: the content of a
    /// plain ACK. Never the PSN of a READ or atomic, because rxe completes those on a plain ACK, without data.
    acknowledges: (Seq, u32),
    /// A plain ACK is pending.
    ack_due: bool,
    unanswered: Unanswered,
    /// A pending NAK.
    nak: Option<Nak>,
    /// The NAK sent, or pending in `nak`, for the expected PSN. `None` when everything before it was executed in order:
    /// then
    /// `nak` is empty, too.
    nak_sent: NakSent,
    gap: Gap,
    /// UC: the newest packet far from the expected PSN, if newer than the last one executed.
    far: Option<uc::Far>,
    /// The message in progress.
    message: Message,
    /// When the first packet of a message of several packets came.
    begun: Instant,
    /// Remote access rights.
    access: Access,
    min_rnr_timer: u8,
    max_dest_rd_atomic: u8,
    resources: Resources,
    pub(super) rq: RecvQueue,
}

/// A multi-packet message in progress.
#[derive(Clone, Copy, Debug)]
enum Message {
    None,
    /// A SEND into the oldest receive.
    Send {
        received: u32,
    },
    /// A WRITE to `left` bytes at `va`.
    Write {
        rkey: u32,
        va: u64,
        left: u32,
        total: u32,
    },
}

/// Whether the peer knows that it must retransmit. One NAK per gap is enough; further ones would make it go back
/// several times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NakSent {
    None,
    /// A sequence NAK.
    Sequence,
    /// An RNR NAK. Packets in flight behind the refused one are dropped silently: an additional sequence NAK would cost
    /// the peer a retry.
    NotReady,
}

/// The packets from the expected PSN on that were dropped since `nak_sent` was set.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// Their highest PSN.
    last: Seq,
    /// Whether one arrived a second time after the NAK was sent: the retransmission arrived out of order, and the peer
    /// does not know that a part of it was dropped.
    again: bool,
    /// The last burst in which one was dropped after an RNR NAK was sent. If the expected packet follows in the same
    /// burst, both belong to the retransmission, which arrived out of order.
    after_rnr: Option<u64>,
}

/// A pending NAK. A sequence NAK gets its final PSN and MSN when it is written; see [`Responder::update_nak`].
#[derive(Clone, Copy, Debug)]
struct Nak {
    psn: Psn,
    msn: u32,
    syndrome: Syndrome,
}

impl Nak {
    /// Whether the NAK ends the connection.
    fn is_fatal(self) -> bool {
        matches!(self.syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequence)
    }

    fn is_sequence(self) -> bool {
        self.syndrome == Syndrome::Nak(NakCode::PsnSequence)
    }
}

/// Why a request in sequence was not executed.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// No receive is posted: RNR NAK.
    NotReady,
    /// The connection ends. `nak` is the reply, if there is one; `receive` the status of the receive in use.
    Fatal { nak: Option<NakCode>, cause: QpErrorCause, receive: WcStatus },
}

/// Why a queue pair must go to error, and the status of the receive in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct FatalError {
    pub(super) cause: QpErrorCause,
    pub(super) receive: Option<WcStatus>,
}

impl Refusal {
    const fn invalid(cause: QpErrorCause) -> Refusal {
        Refusal::Fatal { nak: Some(NakCode::InvalidRequest), cause, receive: WcStatus::RemInvReqErr }
    }

    const fn access() -> Refusal {
        Refusal::Fatal {
            nak: Some(NakCode::RemoteAccess),
            cause: QpErrorCause::RemoteKey,
            receive: WcStatus::RemAccessErr,
        }
    }

    /// The refusal of an atomic access within bounds that failed.
    #[cold]
    fn atomic(error: AtomicError) -> Refusal {
        match error {
            AtomicError::Lost | AtomicError::Fault => Refusal::access(),
            AtomicError::OutOfBounds | AtomicError::Misaligned => Refusal::invalid(QpErrorCause::Misaligned),
        }
    }
}

impl Responder {
    pub(super) fn new(rq: RecvQueue) -> Responder {
        let start = Seq::start(Psn::new(0));
        Responder {
            expected: start,
            msn: 0,
            acknowledges: (start.prev(), 0),
            ack_due: false,
            unanswered: Unanswered::NONE,
            nak: None,
            nak_sent: NakSent::None,
            gap: Gap { last: start.prev(), again: false, after_rnr: None },
            far: None,
            message: Message::None,
            begun: Instant::ZERO,
            access: Access::empty(),
            min_rnr_timer: 0,
            max_dest_rd_atomic: 0,
            resources: Resources::default(),
            rq,
        }
    }

    /// Clears all state, for a transition to RESET.
    pub(super) fn reset(&mut self) {
        let mut rq = std::mem::replace(&mut self.rq, RecvQueue::new(0, 0));
        rq.clear();
        *self = Responder::new(rq);
    }

    pub(super) fn expected_psn(&self) -> Psn {
        self.expected.psn()
    }

    /// Messages completed, modulo 2^24.
    pub(super) fn msn(&self) -> u32 {
        self.msn
    }

    /// The peer's packets served so far, from an arbitrary start.
    pub(super) fn packets_served(&self) -> u64 {
        self.expected.count()
    }

    /// Whether a message found no receive, was answered by an RNR NAK, and none has been posted since.
    pub(super) fn lacks_receive(&self) -> bool {
        self.nak_sent == NakSent::NotReady && self.rq.is_empty()
    }

    /// Whether an ACK, a NAK or a response is pending.
    #[inline]
    pub(super) fn has_replies(&self) -> bool {
        self.ack_due || self.nak.is_some() || self.resources.is_due()
    }

    /// Whether responses to READs or atomics are pending.
    pub(super) fn has_responses_due(&self) -> bool {
        self.resources.is_due()
    }

    /// Whether a fatal NAK is pending.
    pub(super) fn has_fatal_nak(&self) -> bool {
        self.nak.is_some_and(Nak::is_fatal)
    }

    /// Completes every receive: the one in use with `status`, the others as flushed.
    pub(super) fn flush(&mut self, common: &Common, cx: &mut Context, status: Option<WcStatus>) {
        // compliance.md [REQ-ERROR-FLUSH]: In ERROR every outstanding work request completes in order.
        let mut status = match self.message {
            Message::Send { .. } => status,
            _ => None,
        };
        while let Some(wqe) = self.rq.pop() {
            let status = status.take().unwrap_or(WcStatus::WrFlushErr);
            cx.complete(common.recv_cq, common.failed(wqe.wr_id, WcOpcode::Recv, status));
        }
        self.message = Message::None;
    }

    /// Drops all pending replies.
    pub(super) fn abandon_replies(&mut self) {
        self.ack_due = false;
        self.unanswered = Unanswered::NONE;
        self.nak = None;
        self.resources.abandon();
    }

    /// The syndrome of an ACK, with the credits for posted receives; see [`credit_code`].
    #[inline]
    fn credits(&self, common: &Common, cx: &Context) -> Syndrome {
        // compliance.md [RC-RSP-CREDITS]: ACKs and responses carry the number of posted receives that are not in use.
        if !cx.config.credits || common.srq.is_some() {
            return Syndrome::ACK;
        }
        // The receive in use counts: the peer adds the credits to the MSN, which does not include that message yet.
        Syndrome::Ack { credits: credit_code(self.rq.len()) }
    }

    #[inline]
    fn message_done(&mut self) {
        // compliance.md [RC-RSP-MSN]: The MSN counts completed messages.
        self.msn = self.msn.wrapping_add(1) & 0xFF_FFFF;
    }

    /// Whether there is a receive for a message; takes one from the shared receive queue if need be.
    #[inline]
    fn has_receive(&mut self, common: &Common, cx: &mut Context) -> bool {
        cx.ensure_recv_wqe(common.srq, &mut self.rq)
    }

    /// Dequeues the oldest receive and completes it with `byte_len` bytes, for the message that ends with `packet`.
    #[inline]
    fn complete_receive(
        &mut self,
        common: &Common,
        cx: &mut Context,
        packet: &RocePacket<'_>,
        opcode: WcOpcode,
        byte_len: u32,
    ) -> Result<(), Refusal> {
        let Some(wqe) = self.rq.pop() else { return Err(Refusal::NotReady) };
        let wc = WorkCompletion {
            wr_id: wqe.wr_id,
            status: WcStatus::Success,
            opcode,
            qpn: common.qpn,
            byte_len,
            imm: packet.imm(),
            invalidated_rkey: packet.invalidate_rkey(),
            solicited: packet.solicited(),
            src_qpn: None,
        };
        if cx.complete(common.recv_cq, wc) {
            Ok(())
        } else {
            // compliance.md [RC-RSP-CQ-OVERFLOW]: A full completion queue takes the queue pair to error.
            Err(Refusal::Fatal { nak: None, cause: QpErrorCause::CqOverflow, receive: WcStatus::WrFlushErr })
        }
    }

    /// Executes the request with the expected PSN.
    #[inline]
    fn execute(&mut self, common: &Common, cx: &mut Context, packet: &RocePacket<'_>) -> Result<(), Refusal> {
        use Opcode::*;
        if self.nak_sent != NakSent::None {
            self.expected_came(cx);
        }
        match packet.opcode() {
            SendFirst | SendMiddle | SendLast | SendLastImm | SendLastInvalidate | SendOnly | SendOnlyImm
            | SendOnlyInvalidate => self.send(common, cx, packet),
            WriteFirst | WriteMiddle | WriteLast | WriteLastImm | WriteOnly | WriteOnlyImm => {
                self.write(common, cx, packet)
            }
            ReadRequest => self.read(common, cx, packet),
            CompareSwap => self.atomic(common, cx, packet, resources::AtomicKind::CompareSwap),
            FetchAdd => self.atomic(common, cx, packet, resources::AtomicKind::FetchAdd),
            Flush if cx.config.flush => self.flush_memory(common, cx, packet),
            AtomicWrite if cx.config.atomic_write => self.atomic_write(common, cx, packet),
            // compliance.md [RC-RSP-UNSUPPORTED]: A known operation that is not supported is an invalid request.
            _ => Err(Refusal::invalid(QpErrorCause::OpcodeUnsupported)),
        }
    }

    /// Handles a duplicate request: nothing is executed again, but the reply may have been lost and is repeated.
    fn duplicate(&mut self, common: &Common, cx: &mut Context, packet: &RocePacket<'_>, psn: Seq) {
        use Opcode::*;
        // compliance.md [RC-RSP-DUP-SEND-WRITE]: A duplicate SEND or WRITE is not executed.
        cx.stats.duplicate_request.inc();
        let answered = match packet.opcode() {
            SendFirst | SendMiddle | SendLast | SendLastImm | SendLastInvalidate | SendOnly | SendOnlyImm
            | SendOnlyInvalidate | WriteFirst | WriteMiddle | WriteLast | WriteLastImm | WriteOnly | WriteOnlyImm => {
                // The first copy of a packet may not have asked for an ACK. No message has ended since the last one that is
                // acknowledged.
                if packet.ack_req() && psn > self.acknowledges.0 {
                    self.acknowledges = (psn, self.msn);
                }
                self.owe_ack(cx, cx.now);
                true
            }
            ReadRequest => self.read_again(common, cx, packet, psn),
            CompareSwap => self.atomic_again(cx, resources::AtomicKind::CompareSwap, psn),
            FetchAdd => self.atomic_again(cx, resources::AtomicKind::FetchAdd, psn),
            Flush | AtomicWrite => self.flush_again(cx, psn),
            _ => false,
        };
        // compliance.md [RC-RSP-DUP-TOO-OLD]: A duplicate READ or atomic whose resource is gone is dropped silently.
        if !answered {
            cx.drop(DropReason::PsnDuplicateGone);
        }
    }

    /// Checks that the queue pair grants a remote operation.
    #[inline]
    fn require(&self, access: Access) -> Result<(), Refusal> {
        // IBTA has no NAK code of its own for this; rxe and hardware answer invalid request.
        // compliance.md [RC-RSP-QP-ACCESS]: An operation that the queue pair does not grant is an invalid request.
        if self.access.contains(access) { Ok(()) } else { Err(Refusal::invalid(QpErrorCause::AccessFlags)) }
    }
}

impl Responder {
    /// Handles a request whose source, partition and ICRC have been checked. Returns whether it was executed.
    ///
    /// # Errors
    /// Why the queue pair must go to error; the NAK, if there is one, is pending.
    #[inline]
    pub(super) fn handle_request(
        &mut self,
        common: &Common,
        cx: &mut Context,
        packet: &RocePacket<'_>,
    ) -> Result<bool, FatalError> {
        let psn = self.expected.nearest(packet.psn());
        // compliance.md [RC-RSP-IN-ORDER]: Only the request with the expected PSN is executed.
        if psn == self.expected {
            return match self.execute(common, cx, packet) {
                Ok(()) => Ok(true),
                Err(refusal) => self.refuse(cx, refusal).map(|()| false),
            };
        }
        if psn < self.expected {
            self.duplicate(common, cx, packet, psn);
        } else {
            self.out_of_sequence(cx, psn);
        }
        Ok(false)
    }

    /// Refuses the request with the expected PSN (fault injection).
    ///
    /// # Errors
    /// As for [`handle_request`](Self::handle_request).
    pub(super) fn refuse_on_purpose(&mut self, cx: &mut Context, refusal: RequestRefusal) -> Result<(), FatalError> {
        let (nak_sent, syndrome) = match refusal {
            RequestRefusal::NotReady { timer } => (NakSent::NotReady, Syndrome::Rnr { timer }),
            RequestRefusal::PsnSequence => (NakSent::Sequence, Syndrome::Nak(NakCode::PsnSequence)),
            RequestRefusal::InvalidRequest => return self.refuse_fatally(cx, NakCode::InvalidRequest),
            RequestRefusal::RemoteAccess => return self.refuse_fatally(cx, NakCode::RemoteAccess),
            RequestRefusal::RemoteOperational => return self.refuse_fatally(cx, NakCode::RemoteOperational),
        };
        // Packets in flight behind it are dropped silently, as behind any gap.
        self.dropped(cx, self.expected);
        (self.gap.again, self.gap.after_rnr) = (false, None);
        self.nak_sent = nak_sent;
        self.nak = Some(Nak { psn: self.expected.psn(), msn: self.msn, syndrome });
        cx.drop(DropReason::Injected);
        Ok(())
    }

    fn refuse_fatally(&mut self, cx: &mut Context, code: NakCode) -> Result<(), FatalError> {
        let receive = match code {
            NakCode::InvalidRequest => WcStatus::RemInvReqErr,
            NakCode::RemoteAccess => WcStatus::RemAccessErr,
            _ => WcStatus::LocQpOpErr,
        };
        self.refuse(cx, Refusal::Fatal { nak: Some(code), cause: QpErrorCause::Injected, receive })
    }

    fn refuse(&mut self, cx: &mut Context, refusal: Refusal) -> Result<(), FatalError> {
        let (psn, msn) = (self.expected.psn(), self.msn);
        match refusal {
            Refusal::NotReady => {
                self.dropped(cx, self.expected);
                self.gap.after_rnr = None;
                self.nak_sent = NakSent::NotReady;
                // compliance.md [RC-RSP-RNR]: Without a receive the reply is an RNR NAK with the queue pair's timer.
                self.nak = Some(Nak { psn, msn, syndrome: Syndrome::Rnr { timer: self.min_rnr_timer } });
                cx.stats.receive_queue_empty.inc();
                cx.drop(DropReason::NoReceive);
                Ok(())
            }
            Refusal::Fatal { nak, cause, receive } => {
                self.nak = nak.map(|code| Nak { psn, msn, syndrome: Syndrome::Nak(code) });
                if let Some(reason) = drop_reason(cause) {
                    cx.drop(reason);
                }
                Err(FatalError { cause, receive: Some(receive) })
            }
        }
    }
}

/// The drop reason of a packet that caused an error; `None` when it was executed.
fn drop_reason(cause: QpErrorCause) -> Option<DropReason> {
    Some(match cause {
        QpErrorCause::OpcodeSequence => DropReason::OpcodeOutOfSequence,
        QpErrorCause::OpcodeUnsupported => DropReason::OpcodeNotSupported,
        QpErrorCause::Length | QpErrorCause::ReceiveTooSmall => DropReason::PayloadLength,
        QpErrorCause::ReadDepth => DropReason::TooManyReads,
        QpErrorCause::AccessFlags | QpErrorCause::Misaligned | QpErrorCause::RemoteKey => DropReason::RemoteAccess,
        QpErrorCause::ReceiveKey => DropReason::NoReceive,
        QpErrorCause::Injected => DropReason::Injected,
        _ => return None,
    })
}
