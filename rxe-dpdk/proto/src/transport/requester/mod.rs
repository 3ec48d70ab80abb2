//! The requester: turns work requests into request packets, and retransmits them when needed.
//!
//! PSNs are assigned when work is posted. Four pointers move over them:
//!
//! ```text
//!      una            cursor          sent            next
//! ------+---------------+---------------+---------------+------
//! acked | outstanding   | to be         | not yet sent  | not yet
//!       |               | retransmitted |               | assigned
//! ```
//!
//! `cursor` goes back to `una` for a retry and usually equals `sent`. The [completer](super::completer) moves `una`.
//! Local operations take no PSN; they are identified by their number in the queue.

mod credits;
mod flush;
mod keep_alive;
mod local;
mod packet;
mod reads;
mod rnr;
mod rtt;
mod send_queue;
mod timer;
mod unreliable;
mod wait;

use crate::time::{Duration, Instant};
use crate::wire::{Psn, TxQueue};

use super::common::{Common, Failure, packets_of};
use super::context::Context;
use super::link::Link;
use super::long_limit::{Direction, Outstanding};
use super::send_policy::{Grant, Left};
use super::seq::Seq;
use super::work::OpTraits;
use super::{
    EngineConfig, PostError, QpAttrChange, QpErrorCause, RtsAttr, SendFlags, SendOp, SendProgress, SendWr, WcStatus,
    sge,
};

use credits::Credits;
use packet::Sent;
use reads::Reads;
pub(super) use rnr::RNR_RETRY_INFINITE;
use send_queue::LongTotals;
pub(super) use send_queue::{SendQueue, SendWqe};
use timer::{Expiry, RetransmitTimer};

/// Most PSNs between the oldest unacknowledged one and the newest: less than half the space, so that they compare.
const MAX_SPAN: u64 = (1 << 23) - 1;

/// The most packets of one message: a READ of that many behind a full window is still within [`MAX_SPAN`].
const MAX_PACKETS: u32 = 1 << 22;

/// The requester half of a queue pair. The completer works on the same state.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) sq: SendQueue,
    /// The oldest unacknowledged PSN.
    pub(super) una: Seq,
    /// The next PSN to write, and the number of the work request that it belongs to.
    pub(super) cursor: Seq,
    pub(super) cursor_wqe: u64,
    /// One past the newest PSN ever written.
    pub(super) sent: Seq,
    /// Local operations with a lower number have been executed.
    pub(super) local_done: u64,
    /// Value of `sent` when `cursor` last went back.
    before_retry: Seq,
    /// The first PSN of the next work request posted.
    next: Seq,
    /// Messages posted, modulo 2^24: the SSN of the newest one.
    ssn: u32,
    credits: Credits,
    reads: Reads,
    /// Packets of long messages that were posted.
    long_posted: LongTotals,
    /// The end of the newest message of several packets that was begun.
    long_end: Seq,
    timer: RetransmitTimer,
    /// A round trip was measured that was that of the path, and not of long messages of the port.
    pub(super) knows_path: bool,
    retry_cnt: u8,
    rnr_retry: u8,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// Whether a NAK or missing response has used up a retry since the last progress or whole ACK timeout. One may.
    pub(super) nak_counted: bool,
    /// The missing PSN of the last retry caused by a NAK or a missing response: another such retry for it, or for a PSN
    /// before it, is suppressed, as the retransmission is in progress. Timeouts ignore it.
    pub(super) retried: Option<Seq>,
    /// The newest PSN of a READ response received beyond a gap since the last retry.
    pub(super) beyond_gap: Option<Seq>,
    /// Set after an RNR NAK: nothing is sent until the wait is over.
    pub(super) rnr_wait: Option<RnrWait>,
    /// The message that got the last RNR NAK, and how many further ones it has got in a row.
    rnr_row: (Option<Seq>, u32),
    /// Times that the cursor went back to retransmit.
    retries: u64,
    /// Keep-alive state, if enabled.
    keep_alive: Option<Box<keep_alive::PeerProbe>>,
}

/// What a requester did in a turn.
pub(super) struct Requested {
    /// Packets written.
    pub(super) packets: u32,
    pub(super) left: Left,
    /// The next packet is one of a long message and waits for the limit of these.
    pub(super) held: Option<Direction>,
    pub(super) failure: Option<Failure>,
}

/// The wait after an RNR NAK.
#[derive(Clone, Copy, Debug)]
pub(super) struct RnrWait {
    /// The PSN of the RNR NAK.
    pub(super) psn: Seq,
    pub(super) until: Instant,
}

impl Requester {
    pub(super) fn new(sq: SendQueue) -> Requester {
        let start = Seq::start(Psn::new(0));
        Requester {
            sq,
            una: start,
            cursor: start,
            cursor_wqe: 0,
            sent: start,
            local_done: 0,
            before_retry: start,
            next: start,
            ssn: 0,
            credits: Credits::default(),
            reads: Reads::default(),
            long_posted: LongTotals::default(),
            long_end: start,
            timer: RetransmitTimer::new(start),
            knows_path: false,
            retry_cnt: 0,
            rnr_retry: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            nak_counted: false,
            retried: None,
            beyond_gap: None,
            rnr_wait: None,
            rnr_row: (None, 0),
            retries: 0,
            keep_alive: None,
        }
    }

    /// Starts at the PSN and with the attributes of RTS.
    pub(super) fn start(&mut self, attr: &RtsAttr, config: &EngineConfig) {
        self.start_at(attr.sq_psn);
        self.reads.start(attr.max_rd_atomic);
        self.timer.start(self.una, attr.timeout, config);
        // compliance.md [RC-REQ-RETRY-7]: retry_cnt 7 means seven retries, not unlimited ones.
        (self.retry_cnt, self.retries_left) = (attr.retry_cnt, attr.retry_cnt);
        (self.rnr_retry, self.rnr_retries_left) = (attr.rnr_retry, attr.rnr_retry);
    }

    /// Starts at a PSN: all that an unreliable queue pair needs.
    pub(super) fn start_at(&mut self, psn: Psn) {
        let start = Seq::start(psn);
        (self.una, self.cursor, self.sent, self.next) = (start, start, start, start);
        (self.before_retry, self.long_end) = (start, start);
        self.cursor_wqe = self.sq.tail();
    }

    /// Changes the attributes that are the requester's. Returns whether deadlines or what may be sent have changed.
    pub(super) fn change(&mut self, cx: &Context, now: Instant, change: &QpAttrChange) -> bool {
        if let Some(retry_cnt) = change.retry_cnt {
            (self.retry_cnt, self.retries_left) = (retry_cnt, retry_cnt);
        }
        if let Some(rnr_retry) = change.rnr_retry {
            (self.rnr_retry, self.rnr_retries_left) = (rnr_retry, rnr_retry);
        }
        if let Some(max_rd_atomic) = change.max_rd_atomic {
            self.reads.set_max(max_rd_atomic);
        }
        if let Some(timeout) = change.timeout {
            self.timer.set_ack_timeout(now, self.una, timeout, &cx.config);
        }
        change.timeout.is_some() || change.max_rd_atomic.is_some()
    }

    /// Clears all state, for a transition to RESET.
    pub(super) fn reset(&mut self) {
        let mut sq = std::mem::replace(&mut self.sq, SendQueue::new(0, 0, 0));
        sq.clear();
        *self = Requester::new(sq);
    }

    /// Whether everything begun has been acknowledged.
    pub(super) fn is_drained(&self) -> bool {
        self.una == self.sent && self.sq.front().is_none_or(|wqe| wqe.first == self.una)
    }

    /// Whether packets are to be written, for the first time or again.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.cursor_wqe < self.sq.tail()
    }

    /// Whether what was sent is sent again.
    #[inline]
    pub(super) fn retransmits(&self) -> bool {
        self.cursor < self.sent
    }

    /// Packets of what a timeout repeats that may be written now, if they are limited. When the peer has not answered the last
    /// repetition either, only the first packet goes out until it does: it may be gone, or slow. `is_limited`: long messages are
    /// limited; then so is the first repetition. Without early retransmission none is.
    #[inline]
    pub(super) fn repeated_room(&self, is_limited: bool, config: &EngineConfig) -> Option<u32> {
        let repetitions = self.timer.repetitions();
        if repetitions == 0 || !config.early_retransmission {
            return None;
        }
        (is_limited || repetitions > 1).then_some(u32::from(self.cursor == self.una))
    }

    pub(super) fn next_psn(&self) -> Psn {
        self.next.psn()
    }

    /// The PSN of the next packet that is written for the first time.
    pub(super) fn unsent_psn(&self) -> Psn {
        self.sent.psn()
    }

    /// The code of the ACK timeout.
    pub(super) fn timeout_code(&self) -> u8 {
        self.timer.code()
    }

    pub(super) fn una_psn(&self) -> Psn {
        self.una.psn()
    }

    /// Whether `psn` is outstanding.
    pub(super) fn awaits(&self, psn: Psn) -> bool {
        let psn = self.una.nearest(psn);
        self.una <= psn && psn < self.sent
    }

    /// Progress, for queries.
    pub(super) fn progress(&self) -> SendProgress {
        SendProgress {
            packets: self.una.count(),
            completed: self.sq.head(),
            unacked: self.sent.since(self.una),
            rd_outstanding: self.reads.outstanding(),
            max_rd_atomic: self.reads.max(),
            retries: self.retries,
            retries_left: self.retries_left,
            retry_cnt: self.retry_cnt,
            rnr_retries_left: self.rnr_retries_left,
            rnr_retry: self.rnr_retry,
            timeout: self.timer.timeout(),
            ack_timeout: self.timer.ack_timeout(),
        }
    }

    /// The mean round trip in nanoseconds; 0 before one was measured.
    pub(super) fn mean_round_trip(&self) -> u64 {
        self.timer.mean()
    }

    /// The measured round trip time.
    pub(super) fn rtt(&self) -> Option<Duration> {
        let mean = self.timer.mean();
        (mean > 0).then(|| Duration::from_nanos(mean))
    }

    /// The shortest round trip that was measured, in nanoseconds; 0 before the first one.
    pub(super) fn shortest_round_trip(&self) -> u64 {
        self.timer.shortest()
    }

    /// The round trip that was measured last, in nanoseconds, if it was not taken before.
    #[inline]
    pub(super) fn take_sample(&mut self) -> Option<u64> {
        self.timer.take_sample()
    }

    /// Times that sending went back to retransmit.
    pub(super) fn retries(&self) -> u64 {
        self.retries
    }

    /// When the wait after an RNR NAK or the retransmission timer ends.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.rnr_wait {
            None => self.timer.deadline(),
            Some(wait) => Some(wait.until),
        }
    }

    /// Whether packets are outstanding behind the last one that asks for an answer.
    pub(super) fn has_unasked(&self) -> bool {
        self.timer.unasked(self.una, self.cursor) > 0
    }

    /// Whether long messages are outstanding.
    #[inline]
    pub(super) fn has_long(&self) -> bool {
        self.una < self.long_end
    }

    /// Whether what is outstanding is to be counted after an answer, with `before` the oldest PSN without one before: the responses to
    /// a long READ count four at a time.
    #[inline]
    pub(super) fn ends_step(&self, before: Seq) -> bool {
        self.una.since(before) != 1 || self.una.count().is_multiple_of(4) || self.una >= self.cursor
    }

    /// Bytes of long messages that are under way, of packets of `mtu` bytes. What is taken for lost is not.
    pub(super) fn long_outstanding(&self, mtu: u32) -> Outstanding {
        if self.una >= self.long_end {
            return Outstanding::default();
        }
        let (from, to) = (self.long_before(self.una, self.sq.head()), self.long_before(self.cursor, self.cursor_wqe));
        let bytes = |from: u32, to: u32| u64::from(to.wrapping_sub(from)) * u64::from(mtu);
        Outstanding { out: bytes(from.sends, to.sends), in_: bytes(from.reads, to.reads) }
    }

    /// Packets of long messages before the one at `psn`, which is of the work request of this number.
    fn long_before(&self, psn: Seq, number: u64) -> LongTotals {
        let Some(wqe) = self.sq.get(number) else { return self.long_posted };
        let mut totals = wqe.long_before;
        if wqe.packets > 1 {
            totals.add(wqe.is(OpTraits::RETURNS_DATA), psn.since(wqe.first) as u32);
        }
        totals
    }

    /// Checks a work request and puts it into the queue.
    #[inline]
    pub(super) fn post(
        &mut self,
        common: &Common,
        cx: &Context,
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        let wqe = self.check(common, cx, wr, inline)?;
        // compliance.md [RC-REQ-POST-CHECK]: A work request that can never be sent is refused when posted.
        if wqe.is(OpTraits::WANTS_RESPONSE) && self.reads.max() == 0 {
            return Err(PostError::NoReadResources);
        }
        self.next = wqe.end();
        self.ssn = wqe.ssn;
        if wqe.packets > 1 {
            self.long_posted.add(wqe.is(OpTraits::RETURNS_DATA), wqe.packets);
        }
        self.sq.push(wqe, wr.sges, inline.unwrap_or_default());
        Ok(())
    }

    /// Checks a work request and converts it into its queue entry.
    // Inlined, so that the entry is built in place.
    #[inline(always)]
    pub(super) fn check(
        &self,
        common: &Common,
        cx: &Context,
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
    ) -> Result<SendWqe, PostError> {
        let traits = wr.op.traits();
        let local = traits.contains(OpTraits::LOCAL);
        // compliance.md [UC-OPERATIONS]: READ, atomics, SEND with invalidate, FLUSH and ATOMIC WRITE do not exist on
        // UC.
        if !wr.op.is_of(common.qp_type) {
            return Err(PostError::Opcode(common.qp_type));
        }
        // compliance.md [RC-REQ-POST-CHECK]: A work request that can never be sent is refused when posted.
        if self.sq.is_full() {
            return Err(PostError::QueueFull);
        }
        if wr.sges.len() > self.sq.max_sge() || local && !wr.sges.is_empty() {
            return Err(PostError::TooManySges);
        }
        let length = match inline {
            None => sge::total_len(wr.sges).ok_or(PostError::MessageTooLong)?,
            Some(_) if !wr.sges.is_empty() => return Err(PostError::TooManySges),
            Some(data) if data.len() > self.sq.max_inline() || !traits.contains(OpTraits::SENDS_DATA) => {
                return Err(PostError::InlineTooLong);
            }
            Some(data) => data.len() as u32,
        };
        if traits.contains(OpTraits::EIGHT_BYTES) && length != 8 {
            return Err(PostError::AtomicLength);
        }
        match wr.op {
            SendOp::Flush { .. } if length != 0 => return Err(PostError::TooManySges),
            SendOp::Datagram { ah, .. } => {
                // compliance.md [UD-REQ-AH]: A datagram is sent to its address handle's destination.
                if cx.ahs.template(ah, common.pd).is_none() {
                    return Err(PostError::UnknownAddressHandle);
                }
                // compliance.md [UD-REQ-LENGTH]: A datagram longer than the path MTU is refused when posted, inline or
                // not.
                if length > common.mtu {
                    return Err(PostError::MessageTooLong);
                }
            }
            _ => {}
        }
        // A FLUSH has no bytes, and an atomic fits into a packet.
        let packets = if local { 0 } else { packets_of(length, common.mtu) };
        if packets > MAX_PACKETS {
            return Err(PostError::MessageTooLong);
        }
        let is_message = u32::from(packets > 0);
        Ok(SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            first: self.next,
            packets,
            long_before: self.long_posted,
            ssn: self.ssn.wrapping_add(is_message) & 0xFF_FFFF,
            length,
            num_sge: wr.sges.len() as u8,
            flags: wr.flags,
            traits,
            inline: inline.is_some(),
            posted: cx.now,
        })
    }

    /// Goes back to the first unacknowledged PSN. `known_lost`: a NAK or a gap shows that it was not received;
    /// otherwise a timeout suggests it.
    pub(super) fn rewind(&mut self, cx: &Context, now: Instant, known_lost: bool) {
        self.retries += 1;
        self.timer.measure(now, self.una, &cx.stats, &cx.config);
        self.timer.go_back(now, self.una, self.sent, known_lost);
        self.reads.go_back();
        self.forget_probe();
        self.cursor = self.una;
        self.cursor_wqe = self.sq.head();
        self.before_retry = self.sent;
        self.beyond_gap = None;
    }

    /// Whether a part of the oldest READ, and not all of it, ends with `psn`.
    #[inline]
    pub(super) fn ends_part(&self, psn: Seq) -> bool {
        self.reads.is_part_end(psn.add(1))
    }

    /// The part of a READ that ends with `psn` is answered.
    #[cold]
    pub(super) fn part_answered(&mut self, psn: Seq) {
        self.reads.part_answered(psn.add(1), psn < self.cursor);
    }

    /// The ACK timeout begins again.
    pub(super) fn expect_progress(&mut self, now: Instant) {
        self.timer.expect_progress(now);
    }

    /// A response has acknowledged something.
    #[inline]
    pub(super) fn progressed(&mut self, cx: &Context, now: Instant) {
        if self.timer.progressed(now, self.una, &cx.stats, &cx.config) {
            self.knows_path |= !cx.scheduler.has_long();
        }
    }

    /// Handles a READ or atomic response that did not move `una`. While the peer still answers requests from before the
    /// last retry, it has not processed the retransmission yet.
    #[inline]
    pub(super) fn still_answering(&mut self, psn: Seq, now: Instant) {
        if psn < self.before_retry {
            self.timer.still_answering(now);
        }
    }

    /// Handles the end of the wait after an RNR NAK, or the expired retransmission timer.
    ///
    /// # Errors
    /// The failure of the oldest work request when all retries are used up.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context, now: Instant) -> Result<(), Failure> {
        if self.rnr_wait.take().is_some() {
            return Ok(());
        }
        cx.stats.timeouts.inc();
        if self.timer.expire(now, &cx.config) == Expiry::AckTimeout {
            // compliance.md [RC-REQ-RETRY-COUNT]: Each whole ACK timeout without progress uses up a retry.
            if self.retries_left == 0 {
                cx.stats.retry_exceeded_err.inc();
                return Err(Failure::of(self.sq.head(), WcStatus::RetryExcErr, QpErrorCause::RetryExceeded));
            }
            self.retries_left -= 1;
            self.nak_counted = false;
            self.timer.expect_progress(now);
        }
        cx.stats.completer_retry_err.inc();
        // The last retransmission is lost, too: the next NAK counts again.
        // compliance.md [RC-REQ-TIMEOUT]: When the retransmission timeout expires, everything from the first unacknowledged PSN on
        // is retransmitted, also from the middle of a message; if the last retransmission was not answered either, only the
        // first packet until the peer answers.
        self.retried = None;
        self.rewind(cx, now, false);
        Ok(())
    }

    /// Acknowledges everything before `psn`. That is progress: all retries are restored.
    #[inline]
    pub(super) fn advance(&mut self, psn: Seq) {
        self.una = psn;
        // A late answer may overtake a retry.
        self.cursor = self.cursor.max(psn);
        self.restore_retries();
        self.rnr_retries_left = self.rnr_retry;
        // compliance.md [RC-REQ-RNR]: An RNR NAK delays sending by its timer.
        if self.rnr_wait.is_some_and(|wait| wait.psn < psn) {
            self.rnr_wait = None;
        }
    }

    /// Restores the transport retries (not the RNR retries).
    #[inline]
    pub(super) fn restore_retries(&mut self) {
        // compliance.md [RC-REQ-PROGRESS]: Any progress restores all retries and restarts both timers.
        self.retries_left = self.retry_cnt;
        self.nak_counted = false;
    }

    /// Removes the oldest work request, which has been acknowledged.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<&SendWqe> {
        let number = self.sq.head();
        let wqe = self.sq.pop()?;
        if wqe.is(OpTraits::WANTS_RESPONSE) && number < self.cursor_wqe {
            self.reads.answered(true);
        }
        // A late answer may overtake a retry.
        self.cursor_wqe = self.cursor_wqe.max(number + 1);
        Some(wqe)
    }

    /// Completes every work request: the one that failed with its status, the others as flushed.
    pub(super) fn flush(&mut self, common: &Common, cx: &mut Context, failed: Option<(u64, WcStatus)>) {
        loop {
            let number = self.sq.head();
            let Some(&wqe) = self.sq.pop() else { break };
            // compliance.md [REQ-ERROR-FLUSH]: In ERROR every outstanding work request completes in order.
            let status = match failed {
                Some((blamed, status)) if blamed == number => status,
                _ => WcStatus::WrFlushErr,
            };
            cx.complete(common.send_cq, common.failed(wqe.wr_id, wqe.op.wc_opcode(), status));
        }
        (self.una, self.cursor, self.sent) = (self.next, self.next, self.next);
        self.cursor_wqe = self.sq.tail();
        self.reads.clear();
        self.rnr_wait = None;
        self.timer.stop();
        self.keep_alive = None;
    }
}

impl Requester {
    /// Writes request packets, as many as are granted.
    // Called per turn, from one place.
    #[inline(always)]
    pub(super) fn send_requests(
        &mut self,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        mut grant: Grant,
    ) -> Requested {
        let granted = grant.packets;
        let (mut left, mut held, mut failure) = (Left::Nothing, None, None);
        while self.has_unsent() {
            if grant.packets == 0 {
                left = Left::More;
                break;
            }
            match self.send_one(common, link, cx, tx, &mut grant) {
                Sent::Written => {
                    grant.packets -= 1;
                    continue;
                }
                Sent::Local => continue,
                Sent::Blocked => {}
                Sent::Held(direction) => held = Some(direction),
                Sent::Backpressure => left = Left::Refused,
                Sent::Failed(cause) => failure = Some(cause),
            }
            break;
        }
        Requested { packets: granted - grant.packets, left, held, failure }
    }
}

impl SendWqe {
    /// Whether it waits for earlier READs and atomics.
    #[inline]
    fn is_fenced(&self) -> bool {
        self.flags.contains(SendFlags::FENCE)
    }
}
