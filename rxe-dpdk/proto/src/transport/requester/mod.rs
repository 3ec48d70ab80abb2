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
mod long;
mod packet;
mod retransmit;
mod rnr;
mod rtt;
mod send_queue;
mod unreliable;
mod wait;

use crate::time::{Duration, Instant};
use crate::wire::{Psn, TxQueue};

use super::common::{Common, Failure, packets_of};
use super::context::{Context, TxOutcome};
use super::delay_window::DelayWindow;
use super::link::Link;
use super::seq::Seq;
use super::work::OpTraits;
use super::{
    CongestionControl, EngineConfig, PostError, QpAttrChange, RtsAttr, SendFlags, SendOp, SendProgress, SendWr,
    WcStatus, sge,
};

use credits::Credits;
use packet::Sent;
pub(super) use rnr::RNR_RETRY_INFINITE;
use rtt::RoundTrip;
pub(super) use send_queue::{SendQueue, SendWqe};

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
    /// READs and atomics outstanding.
    pub(super) rd_outstanding: u32,
    max_rd_atomic: u32,
    /// Packets written since the last one with AckReq.
    since_ack: u32,
    /// The limit where long messages are limited: an ACK is requested after that many, and a READ is requested in parts of it.
    part: u32,
    /// The end of the newest message of several packets that was begun.
    long_end: Seq,
    /// Packets of such messages below are taken for lost: they do not count for the limit.
    long_from: Seq,
    /// The end of those that were charged last.
    long_charged: Seq,
    rtt: RoundTrip,
    /// The window of delay-based congestion control.
    pub(super) delay: Option<Box<DelayWindow>>,
    /// Its packets; without it as many as there can be.
    delay_window: u32,
    /// Packets below were retransmitted after a timeout. Either copy may be acknowledged, so no RTT sample is taken
    /// (Karn's rule).
    untimed: Seq,
    /// The current retransmission timeout in nanoseconds.
    timeout: u64,
    /// The local ACK timeout: nanoseconds without progress that use up a retry; `None` waits for ever.
    ack_timeout: Option<u64>,
    /// When the ACK timeout expires.
    expires: Instant,
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
    /// Deadline of the retransmission timer.
    pub(super) deadline: Option<Instant>,
    /// Times that the cursor went back to retransmit.
    retries: u64,
    /// Keep-alive state, if enabled.
    keep_alive: Option<Box<keep_alive::PeerProbe>>,
}

/// A queue pair's turn to write requests.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) now: Instant,
    /// Packets to be written at most.
    pub(super) quantum: usize,
    /// The send queue is being drained (SQD).
    pub(super) draining: bool,
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
            rd_outstanding: 0,
            max_rd_atomic: 0,
            since_ack: 0,
            part: u32::MAX,
            long_end: start,
            long_from: start,
            long_charged: start,
            rtt: RoundTrip::default(),
            delay: None,
            delay_window: u32::MAX,
            untimed: start,
            timeout: 0,
            ack_timeout: None,
            expires: Instant::ZERO,
            retry_cnt: 0,
            rnr_retry: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            nak_counted: false,
            retried: None,
            beyond_gap: None,
            rnr_wait: None,
            rnr_row: (None, 0),
            deadline: None,
            retries: 0,
            keep_alive: None,
        }
    }

    /// Starts at the PSN and with the attributes of RTS.
    pub(super) fn start(&mut self, attr: &RtsAttr, config: &EngineConfig) {
        self.start_at(attr.sq_psn);
        self.delay = matches!(config.congestion, CongestionControl::Delay(_)).then(|| Box::new(DelayWindow::new()));
        self.follow_delay();
        self.max_rd_atomic = u32::from(attr.max_rd_atomic);
        self.ack_timeout = retransmit::ack_timeout(attr.timeout);
        self.set_timeout(config);
        // compliance.md [RC-REQ-RETRY-7]: retry_cnt 7 means seven retries, not unlimited ones.
        (self.retry_cnt, self.retries_left) = (attr.retry_cnt, attr.retry_cnt);
        (self.rnr_retry, self.rnr_retries_left) = (attr.rnr_retry, attr.rnr_retry);
    }

    /// Starts at a PSN: all that an unreliable queue pair needs.
    pub(super) fn start_at(&mut self, psn: Psn) {
        let start = Seq::start(psn);
        (self.una, self.cursor, self.sent, self.next) = (start, start, start, start);
        (self.before_retry, self.untimed) = (start, start);
        (self.long_end, self.long_from, self.long_charged) = (start, start, start);
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
            self.max_rd_atomic = u32::from(max_rd_atomic);
        }
        if let Some(timeout) = change.timeout {
            self.ack_timeout = retransmit::ack_timeout(timeout);
            self.set_timeout(&cx.config);
            self.rearm(now);
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

    pub(super) fn next_psn(&self) -> Psn {
        self.next.psn()
    }

    /// The PSN of the next packet that is written for the first time.
    pub(super) fn unsent_psn(&self) -> Psn {
        self.sent.psn()
    }

    /// The code of the ACK timeout.
    pub(super) fn timeout_code(&self) -> u8 {
        self.ack_timeout.map_or(0, retransmit::code_of)
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
            rd_outstanding: self.rd_outstanding,
            max_rd_atomic: self.max_rd_atomic,
            retries: self.retries,
            retries_left: self.retries_left,
            retry_cnt: self.retry_cnt,
            rnr_retries_left: self.rnr_retries_left,
            rnr_retry: self.rnr_retry,
            timeout: Duration::from_nanos(self.timeout),
            ack_timeout: self.ack_timeout.map(Duration::from_nanos),
        }
    }

    /// Packets that may be outstanding.
    #[inline]
    pub(super) fn window(&self, cx: &Context) -> u32 {
        self.delay_window.min(cx.config.window)
    }

    /// Packets after which an ACK is requested: at most half of the window, which may become half as long before the ACK comes.
    #[inline]
    fn ack_every(&self, cx: &Context) -> u32 {
        (self.delay_window / 2).min(cx.config.ack_every).min(self.part)
    }

    /// Follows the window of delay-based control.
    fn follow_delay(&mut self) {
        self.delay_window = self.delay.as_deref().map_or(u32::MAX, DelayWindow::packets);
    }

    /// The measured round trip time.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt.mean()
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
        if wqe.is(OpTraits::WANTS_RESPONSE) && self.max_rd_atomic == 0 {
            return Err(PostError::NoReadResources);
        }
        self.next = wqe.end();
        self.ssn = wqe.ssn;
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
        self.measure(cx, now);
        if let Some(delay) = &mut self.delay {
            delay.lost(now);
            self.follow_delay();
        }
        // compliance.md [RC-REQ-RTT-KARN]: One packet at a time is timed, none that was retransmitted after a timeout.
        self.rtt.forget();
        self.untimed = if known_lost { self.una } else { self.sent };
        self.forget_probe();
        self.cursor = self.una;
        self.cursor_wqe = self.sq.head();
        self.before_retry = self.sent;
        self.rd_outstanding = 0;
        self.since_ack = 0;
        self.beyond_gap = None;
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
            self.rd_outstanding = self.rd_outstanding.saturating_sub(1);
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
        self.rd_outstanding = 0;
        self.rnr_wait = None;
        self.deadline = None;
        self.keep_alive = None;
    }
}

impl Requester {
    /// Writes up to a quantum of request packets. Returns the number of packets, why it stopped, and the failure, if
    /// any.
    pub(super) fn send_requests(
        &mut self,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        Turn { now, quantum, draining }: Turn,
    ) -> (usize, TxOutcome, Option<Failure>) {
        let mut written = 0;
        let (outcome, failure) = loop {
            if !self.has_unsent() {
                break (TxOutcome::Done, None);
            }
            if written >= quantum {
                break (TxOutcome::Quantum, None);
            }
            match self.send_one(common, link, cx, now, tx, draining) {
                Sent::Written => written += 1,
                Sent::Local => {}
                Sent::Blocked => break (TxOutcome::Done, None),
                Sent::Backpressure => break (TxOutcome::Backpressure, None),
                Sent::Failed(failure) => break (TxOutcome::Done, Some(failure)),
            }
        };
        if written > 0 && self.deadline.is_none() {
            self.rearm(now);
        }
        (written, outcome, failure)
    }
}

impl SendWqe {
    /// Whether it waits for earlier READs and atomics.
    #[inline]
    fn is_fenced(&self) -> bool {
        self.flags.contains(SendFlags::FENCE)
    }
}
