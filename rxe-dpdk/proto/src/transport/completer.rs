//! The completer: handles responses.
//!
//! Responses are accepted in PSN order only. A response to a PSN also acknowledges every SEND and WRITE before it, but
//! never a READ or atomic: those complete with their own responses and nothing else. A response past an outstanding
//! READ or atomic therefore means that its response was lost.

use crate::time::Instant;
use crate::wire::{Aeth, DropReason, NakCode, Opcode, RocePacket, Syndrome};

use super::common::{Common, Failure};
use super::context::Context;
use super::requester::{RNR_RETRY_INFINITE, Requester, RnrWait, SendWqe};
use super::seq::Seq;
use super::work::OpTraits;
use super::{Operation, QpErrorCause, SendFlags, WcStatus, WorkCompletion, sge};

/// Why the requester retransmits.
#[derive(Clone, Copy)]
enum Retry {
    /// A sequence NAK.
    SequenceNak,
    /// A response past an outstanding READ or atomic.
    Implied,
    /// A missing packet within the responses to a READ.
    ReadGap,
}

/// Counts the time of a work request that was posted at `posted` and completes now.
#[inline(always)]
fn measure(common: &Common, cx: &Context, operation: Operation, posted: Instant) {
    let nanos = cx.now.as_nanos().wrapping_sub(posted.as_nanos());
    common.latencies.requester(operation).record(nanos);
}

impl Requester {
    /// Handles a response whose source, partition and ICRC have been checked.
    ///
    /// # Errors
    /// Why the queue pair must go to error.
    pub(super) fn respond(
        &mut self,
        common: &Common,
        cx: &mut Context,
        now: Instant,
        packet: &RocePacket<'_>,
    ) -> Result<(), Failure> {
        let psn = self.una.nearest(packet.psn());
        // compliance.md [RC-REQ-GHOST]: A response to a PSN that was not sent is ignored and counted.
        if psn >= self.sent {
            cx.stats.ghost_responses.inc();
            cx.drop(DropReason::ResponseUnexpected);
            return Ok(());
        }
        let before = self.una;
        if psn < before {
            // A repeated ACK may carry new credits ("unsolicited ACK").
            // compliance.md [RC-REQ-STALE]: A response to an acknowledged PSN is ignored.
            let is_last = psn.add(1) == before && packet.opcode() == Opcode::Acknowledge;
            let credited = is_last && self.take_credits(packet.aeth());
            if !self.heard_again(now) && !credited {
                cx.drop(DropReason::ResponseStale);
            }
        } else {
            let aeth = packet.aeth();
            self.take_credits(aeth);
            self.handle_new(common, cx, now, packet, aeth, psn)?;
        }
        if self.una > before {
            self.progressed(cx, now);
        } else if packet.opcode() != Opcode::Acknowledge {
            self.still_answering(psn, now);
        }
        Ok(())
    }

    /// Handles a response to `psn`, which is outstanding.
    #[inline]
    fn handle_new(
        &mut self,
        common: &Common,
        cx: &mut Context,
        now: Instant,
        packet: &RocePacket<'_>,
        aeth: Option<&Aeth>,
        psn: Seq,
    ) -> Result<(), Failure> {
        match packet.opcode() {
            Opcode::Acknowledge => match aeth.map(Aeth::syndrome) {
                Some(Syndrome::Ack { .. }) => self.ack(common, cx, now, psn),
                Some(Syndrome::Rnr { timer }) => self.receiver_not_ready(common, cx, now, psn, timer),
                // compliance.md [RC-REQ-SEQ-NAK]: A sequence NAK acknowledges everything before its PSN and retransmits
                // the rest, once per gap.
                Some(Syndrome::Nak(NakCode::PsnSequence)) => {
                    cx.stats.rcvd_seq_err.inc();
                    self.acknowledge(common, cx, psn)?;
                    // If a READ before it is still outstanding, the retry begins there.
                    self.retry(cx, now, Retry::SequenceNak, psn, false).map(|_| ())
                }
                Some(Syndrome::Nak(code)) => self.refused(common, cx, psn, code),
                Some(Syndrome::Reserved(_)) | None => {
                    cx.drop(DropReason::ResponseUnexpected);
                    Ok(())
                }
            },
            Opcode::AtomicAcknowledge => self.atomic_response(common, cx, now, packet, psn),
            _ => self.read_response(common, cx, now, packet, aeth, psn),
        }
    }

    /// Completes SENDs and WRITEs up to, not including, `end`; stops at a READ or atomic.
    #[inline]
    fn acknowledge(&mut self, common: &Common, cx: &mut Context, end: Seq) -> Result<(), Failure> {
        let (mut una, mut done) = (self.una, Ok(()));
        while una < end
            && done.is_ok()
            && let Some(wqe) = self.sq.front()
            && !wqe.is(OpTraits::WANTS_RESPONSE)
        {
            let wqe_end = wqe.end();
            una = wqe_end.min(end);
            if wqe_end <= end {
                done = self.complete_oldest(common, cx, true).and_then(|()| self.complete_local(common, cx));
            }
        }
        // compliance.md [RC-REQ-COALESCED-ACK]: An ACK acknowledges every SEND and WRITE before it.
        if una > self.una {
            self.advance(una);
        }
        done
    }

    /// Completes the oldest work request with success, and the executed local operations behind it.
    #[inline(always)]
    pub(super) fn complete(&mut self, common: &Common, cx: &mut Context) -> Result<(), Failure> {
        self.complete_oldest(common, cx, false)?;
        self.complete_local(common, cx)
    }

    /// Completes the executed local operations that are the oldest work requests.
    #[inline]
    fn complete_local(&mut self, common: &Common, cx: &mut Context) -> Result<(), Failure> {
        if self.sq.head() < self.local_done { self.complete_executed(common, cx) } else { Ok(()) }
    }

    /// [`complete_local`](Self::complete_local), where a local operation has been executed.
    #[cold]
    fn complete_executed(&mut self, common: &Common, cx: &mut Context) -> Result<(), Failure> {
        while self.sq.head() < self.local_done && self.sq.front().is_some_and(|wqe| wqe.is(OpTraits::LOCAL)) {
            self.complete_oldest(common, cx, false)?;
        }
        Ok(())
    }

    /// `acknowledged`: it is a SEND or WRITE that the peer has acknowledged.
    #[inline(always)]
    fn complete_oldest(&mut self, common: &Common, cx: &mut Context, acknowledged: bool) -> Result<(), Failure> {
        let Some(wqe) = self.pop() else { return Ok(()) };
        if wqe.is(OpTraits::SEND) {
            cx.stats.rdma_sends.inc();
            if acknowledged {
                measure(common, cx, Operation::Send, wqe.posted);
            }
        } else if acknowledged {
            measure(common, cx, Operation::Write, wqe.posted);
        }
        // compliance.md [REQ-SIGNALED]: Successes complete when signalled or with sq_sig_all.
        if !common.sq_sig_all && !wqe.flags.contains(SendFlags::SIGNALED) {
            return Ok(());
        }
        let wc = WorkCompletion {
            wr_id: wqe.wr_id,
            status: WcStatus::Success,
            opcode: wqe.op.wc_opcode(),
            qpn: common.qpn,
            byte_len: if wqe.is(OpTraits::RETURNS_DATA) { wqe.length } else { 0 },
            imm: None,
            invalidated_rkey: None,
            solicited: false,
            src_qpn: None,
        };
        if cx.complete(common.send_cq, wc) { Ok(()) } else { Err(Failure::of_none(QpErrorCause::CqOverflow)) }
    }

    /// Handles a plain ACK.
    #[inline]
    fn ack(&mut self, common: &Common, cx: &mut Context, now: Instant, psn: Seq) -> Result<(), Failure> {
        self.acknowledge(common, cx, psn.add(1))?;
        if self.una > psn {
            return Ok(());
        }
        // Stopped at a READ or atomic.
        if self.sq.front().is_some_and(|wqe| psn < wqe.end()) {
            // compliance.md [RC-REQ-BARE-ACK]: A plain ACK never completes a READ, an atomic, a FLUSH or an ATOMIC
            // WRITE.
            cx.stats.bare_acks.inc();
            cx.drop(DropReason::ResponseUnexpected);
            return Ok(());
        }
        cx.drop(DropReason::ResponseGap);
        // compliance.md [RC-REQ-IMPLIED-NAK]: A response past an outstanding READ or atomic means that its response was
        // lost.
        self.retry(cx, now, Retry::Implied, self.una, false).map(|_| ())
    }

    /// Acknowledges everything before the READ or atomic response `psn`. Returns the work request that it belongs to if
    /// this is the next response due.
    #[inline]
    fn due(&mut self, common: &Common, cx: &mut Context, now: Instant, psn: Seq) -> Result<Option<&SendWqe>, Failure> {
        if self.una == psn {
            return Ok(self.sq.front());
        }
        self.due_later(common, cx, now, psn)
    }

    /// [`due`](Self::due), where something before the response is not acknowledged.
    #[inline(never)]
    fn due_later(
        &mut self,
        common: &Common,
        cx: &mut Context,
        now: Instant,
        psn: Seq,
    ) -> Result<Option<&SendWqe>, Failure> {
        // compliance.md [RC-REQ-READ-ACKS]: A response to a READ or atomic also acknowledges the SENDs and WRITEs
        // before it.
        self.acknowledge(common, cx, psn)?;
        if self.una == psn {
            return Ok(self.sq.front());
        }
        let Some(&wqe) = self.sq.front() else { return Ok(None) };
        cx.drop(DropReason::ResponseGap);
        // compliance.md [RC-REQ-READ-GAP]: A gap in the responses of a READ is requested again at once, from the
        // missing PSN on.
        let why = if psn < wqe.end() { Retry::ReadGap } else { Retry::Implied };
        // PSNs already seen beyond this gap arrive again: these are responses to the last retry, and its first ones
        // were lost, too. (Or the network reordered; then this costs one retransmission.)
        let again = self.retried >= Some(self.una) && self.beyond_gap.is_some_and(|newest| psn <= newest);
        if self.retry(cx, now, why, self.una, again)? {
            self.beyond_gap = Some(psn);
        } else {
            self.beyond_gap = self.beyond_gap.max(Some(psn));
        }
        Ok(None)
    }

    fn read_response(
        &mut self,
        common: &Common,
        cx: &mut Context,
        now: Instant,
        packet: &RocePacket<'_>,
        aeth: Option<&Aeth>,
        psn: Seq,
    ) -> Result<(), Failure> {
        let Some(wqe) = self.due(common, cx, now, psn)? else { return Ok(()) };
        let posted = wqe.posted;
        let is_read = wqe.is(OpTraits::RETURNS_DATA);
        let is_atomic = wqe.is(OpTraits::EIGHT_BYTES);
        if !wqe.is(OpTraits::WANTS_RESPONSE) || is_read && is_atomic {
            cx.drop(DropReason::ResponseUnexpected);
            return Ok(());
        }
        let offset = if psn == wqe.first { 0 } else { wqe.offset_of(psn, common.mtu) };
        let expected = if is_read { (wqe.length - offset).min(common.mtu) } else { 0 };
        let last = psn.add(1) == wqe.end();
        let position = packet.info().position;
        // compliance.md [RC-REQ-READ-PARTS]: A READ may be requested in parts, each with a request of its own that counts
        // for max_rd_atomic.
        let ends_part = is_read && !last && self.ends_part(psn);
        // FIRST and MIDDLE are not distinguished, nor LAST and ONLY: the standard requires FIRST or ONLY at the start
        // of a repeated READ, rxe does not send it. FLUSH and ATOMIC WRITE are answered by ONLY.
        // compliance.md [RC-REQ-READ-BEGIN]: The responses to a retried READ may begin with FIRST or with MIDDLE, and
        // end with LAST or ONLY.
        if position.is_end() != (last || ends_part)
            || !is_read && !position.is_start()
            || packet.payload().len() != expected as usize
            || !matches!(aeth.map(Aeth::syndrome), None | Some(Syndrome::Ack { .. }))
        {
            cx.drop(DropReason::PayloadLength);
            // compliance.md [RC-REQ-BAD-RESPONSE]: A READ response with a wrong length or position is a bad response
            // and takes the queue pair to error.
            return Err(self.oldest_failed(WcStatus::BadRespErr, QpErrorCause::BadResponse));
        }
        if is_read {
            self.store(common, cx, offset, packet.payload())?;
        }
        if ends_part {
            self.part_answered(psn);
        }
        self.advance(psn.add(1));
        if !last {
            return Ok(());
        }
        if is_read {
            measure(common, cx, Operation::Read, posted);
        } else {
            measure(common, cx, if is_atomic { Operation::Atomic } else { Operation::Flush }, posted);
        }
        self.complete(common, cx)
    }

    fn atomic_response(
        &mut self,
        common: &Common,
        cx: &mut Context,
        now: Instant,
        packet: &RocePacket<'_>,
        psn: Seq,
    ) -> Result<(), Failure> {
        let Some(wqe) = self.due(common, cx, now, psn)? else { return Ok(()) };
        let posted = wqe.posted;
        let is_atomic = wqe.is(OpTraits::RETURNS_DATA | OpTraits::EIGHT_BYTES);
        let (true, Some(original)) = (is_atomic, packet.atomic_ack()) else {
            cx.drop(DropReason::ResponseUnexpected);
            return Ok(());
        };
        self.store(common, cx, 0, &original.to_ne_bytes())?;
        measure(common, cx, Operation::Atomic, posted);
        self.advance(psn.add(1));
        self.complete(common, cx)
    }

    /// Copies bytes of a response into the buffers of the oldest work request.
    #[inline(always)]
    fn store(&self, common: &Common, cx: &Context, offset: u32, bytes: &[u8]) -> Result<(), Failure> {
        let sges = self.sq.sges(self.sq.head());
        sge::scatter(&cx.keys, common.pd, sges, offset as usize, bytes)
            .map_err(|_| self.oldest_failed(WcStatus::LocProtErr, QpErrorCause::LocalKey))
    }

    fn oldest_failed(&self, status: WcStatus, cause: QpErrorCause) -> Failure {
        Failure::of(self.sq.head(), status, cause)
    }

    /// Handles an RNR NAK: the peer has no receive for the packet at `psn`.
    fn receiver_not_ready(
        &mut self,
        common: &Common,
        cx: &mut Context,
        now: Instant,
        psn: Seq,
        timer: u8,
    ) -> Result<(), Failure> {
        cx.stats.rcvd_rnr_err.inc();
        self.acknowledge(common, cx, psn)?;
        if self.rnr_wait.is_some() {
            return Ok(());
        }
        // The peer is alive: earlier losses no longer count.
        // compliance.md [RC-REQ-RNR-ALIVE]: An RNR NAK restores all transport retries.
        self.restore_retries();
        if self.rnr_retries_left == 0 {
            cx.stats.retry_rnr_exceeded_err.inc();
            return Err(self.failed_at(psn, WcStatus::RnrRetryExcErr, QpErrorCause::RnrRetryExceeded));
        }
        // compliance.md [RC-REQ-RNR-COUNT]: rnr_retry counts RNR NAKs between two progresses.
        if self.rnr_retries_left < RNR_RETRY_INFINITE {
            self.rnr_retries_left -= 1;
        }
        // compliance.md [RC-REQ-RNR]: An RNR NAK delays sending by its timer.
        self.rnr_wait = Some(RnrWait { psn, until: now + self.rnr_time(cx, psn, timer) });
        self.rewind(cx, now, true);
        self.expect_progress(now);
        Ok(())
    }

    /// Handles a fatal NAK: it ends the connection.
    fn refused(&mut self, common: &Common, cx: &mut Context, psn: Seq, code: NakCode) -> Result<(), Failure> {
        cx.stats.fatal_naks_rcvd.inc();
        self.acknowledge(common, cx, psn)?;
        // compliance.md [RC-REQ-FATAL-NAK]: A fatal NAK fails the work request of its PSN with the status of its code,
        // and flushes the rest.
        let (status, cause) = match code {
            NakCode::InvalidRequest => (WcStatus::RemInvReqErr, QpErrorCause::PeerInvalidRequest),
            NakCode::RemoteAccess => (WcStatus::RemAccessErr, QpErrorCause::PeerAccess),
            _ => (WcStatus::RemOpErr, QpErrorCause::PeerOperational),
        };
        Err(self.failed_at(psn, status, cause))
    }

    /// The failure of the work request that `psn` belongs to.
    fn failed_at(&self, psn: Seq, status: WcStatus, cause: QpErrorCause) -> Failure {
        let mut number = self.sq.head();
        while self.sq.get(number).is_some_and(|wqe| wqe.end() <= psn) {
            number += 1;
        }
        Failure::of(number, status, cause)
    }

    /// Goes back to the first unacknowledged PSN to retransmit `missing`, unless that retransmission is in progress
    /// (then it returns false). `again`: the retransmission in progress has failed, too.
    fn retry(&mut self, cx: &Context, now: Instant, why: Retry, missing: Seq, again: bool) -> Result<bool, Failure> {
        if self.rnr_wait.is_some() || self.retried >= Some(missing) && !again {
            return Ok(false);
        }
        match why {
            Retry::SequenceNak => {}
            Retry::Implied => cx.stats.implied_naks.inc(),
            Retry::ReadGap => cx.stats.read_gaps.inc(),
        }
        // A missing READ response shows that the peer is alive and costs no retry. If it never answers, the ACK timeout
        // ends the connection, as it is not restarted here.
        // compliance.md [RC-REQ-NAK-RETRY]: NAKs and implied NAKs use up at most one retry between two progresses and
        // per ACK timeout.
        if !again && !matches!(why, Retry::ReadGap) && !self.nak_counted {
            if self.retries_left == 0 {
                cx.stats.retry_exceeded_err.inc();
                return Err(self.oldest_failed(WcStatus::RetryExcErr, QpErrorCause::RetryExceeded));
            }
            self.retries_left -= 1;
            self.nak_counted = true;
            self.expect_progress(now);
        }
        cx.stats.completer_retry_err.inc();
        self.retried = Some(missing);
        self.rewind(cx, now, true);
        Ok(true)
    }
}
