//! State that all queue pairs of an engine share.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::mem::KeyTable;
use crate::time::Instant;
use crate::wire::{
    AckTemplate, BthFields, DropCounters, DropReason, HeaderTemplate, PacketBuilder, Psn, RocePacket, Syndrome, TxQueue,
};

use super::ah::AhTable;
use super::cq::CqTable;
use super::recv_queue::RecvQueue;
use super::srq::{SrqTable, Taken};
use super::timer::TimerHeap;
use super::tx_scheduler::TxScheduler;
use super::{AsyncEvent, CqId, EngineConfig, Latencies, Qpn, SrqId, TransportStats, WorkCompletion};

/// Packets that caused errors, kept until they are taken.
const MAX_ERROR_PACKETS: usize = 64;

/// Everything of an [`Engine`](super::Engine) except its queue pairs: passed along with one queue pair to the code that
/// works on it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: EngineConfig,
    pub(super) keys: KeyTable,
    pub(super) cqs: CqTable,
    pub(super) srqs: SrqTable,
    pub(super) ahs: AhTable,
    pub(super) timers: TimerHeap,
    pub(super) events: VecDeque<AsyncEvent>,
    /// The last packets that made queue pairs go to error, as text without remote keys.
    pub(super) error_packets: VecDeque<(Qpn, String)>,
    /// Queue pairs that may have something to transmit.
    pub(super) scheduler: TxScheduler,
    pub(super) stats: Arc<TransportStats>,
    pub(super) drops: Arc<DropCounters>,
    /// Time of the call in progress: one turn of the caller's loop has one time.
    pub(super) now: Instant,
    /// Times of operations on queue pairs that nobody has [assigned](super::Engine::set_latencies).
    pub(super) latencies: Arc<Latencies>,
    /// Calls of `transmit`. Packets handled between the same two calls arrived in one burst.
    pub(super) bursts: u64,
}

impl Context {
    /// Records the packet that makes a queue pair go to error.
    #[cold]
    pub(super) fn record_error_packet(&mut self, qpn: Qpn, packet: &RocePacket<'_>) {
        if self.error_packets.len() == MAX_ERROR_PACKETS {
            self.error_packets.pop_front();
        }
        self.error_packets.push_back((qpn, packet.without_rkeys().to_string()));
    }

    /// Counts a dropped packet.
    #[inline]
    pub(super) fn drop(&self, reason: DropReason) {
        self.drops.count(reason);
    }

    /// Adds a completion; false (counted) when its queue is full.
    #[inline]
    pub(super) fn complete(&mut self, cq: CqId, wc: WorkCompletion) -> bool {
        let fits = self.cqs.push(cq, wc);
        if !fits {
            self.completion_lost(cq);
        }
        fits
    }

    #[cold]
    fn completion_lost(&mut self, cq: CqId) {
        self.stats.cq_overflows.inc();
        // compliance.md [CQ-OVERFLOW]: A completion queue that loses a completion because it is full raises an event.
        if self.cqs.record_overflow(cq) {
            self.events.push_back(AsyncEvent::CqError { cq });
        }
    }

    /// Ensures that `rq` holds a receive, taking one from the shared receive queue if the queue pair has one. False
    /// when there is none.
    #[inline]
    pub(super) fn ensure_recv_wqe(&mut self, srq: Option<SrqId>, rq: &mut RecvQueue) -> bool {
        if !rq.is_empty() {
            return true;
        }
        srq.is_some_and(|srq| self.take_recv_wqe(srq, rq))
    }

    /// Takes a receive from a shared receive queue; false when there is none.
    fn take_recv_wqe(&mut self, srq: SrqId, rq: &mut RecvQueue) -> bool {
        match self.srqs.take(srq, rq) {
            Taken::None => false,
            Taken::One => true,
            Taken::OneBelowLimit => {
                self.srq_below_limit(srq);
                true
            }
        }
    }

    #[cold]
    pub(super) fn srq_below_limit(&mut self, srq: SrqId) {
        self.stats.srq_limit_events.inc();
        self.events.push_back(AsyncEvent::SrqLimitReached { srq });
    }

    /// Arms the timer of the queue pair in `slot` for `at`, unless it expires earlier.
    #[inline]
    pub(super) fn arm_timer_at(&mut self, slot: u16, at: Instant) {
        self.timers.arm(u32::from(slot), at);
    }
}

/// Reserves room in `tx`, counts the frame and writes everything up to the BTH; `None` when there is no room. A packet
/// that was begun must be finished: `tx` sends it in any case.
#[inline(always)]
pub(super) fn begin_packet<'t>(
    tx: &'t mut impl TxQueue,
    stats: &TransportStats,
    template: &HeaderTemplate,
    fields: BthFields,
    payload_len: usize,
) -> Option<PacketBuilder<'t>> {
    let len = template.frame_len(fields.opcode, payload_len);
    let (frame, sealed_later) = tx.push_unsealed(template.port(), len, template.seal())?;
    count_frame(stats, len);
    Some(template.build(frame, fields, payload_len).sealed_later(sealed_later))
}

/// As [`begin_packet`] for a packet without payload whose ICRC is known: the queue is not asked to write it.
#[inline(always)]
pub(super) fn begin_bare_packet<'t>(
    tx: &'t mut impl TxQueue,
    stats: &TransportStats,
    template: &HeaderTemplate,
    fields: BthFields,
) -> Option<PacketBuilder<'t>> {
    let len = template.frame_len(fields.opcode, 0);
    let frame = tx.push(template.port(), len)?;
    count_frame(stats, len);
    Some(template.build(frame, fields, 0))
}

/// Writes an acknowledge packet; false when there is no room.
#[inline(always)]
pub(super) fn write_acknowledge(
    tx: &mut impl TxQueue,
    stats: &TransportStats,
    acks: &AckTemplate,
    psn: Psn,
    syndrome: Syndrome,
    msn: u32,
) -> bool {
    // Its ICRC is not read back from the frame.
    let Some(frame) = tx.push(acks.port(), acks.frame_len()) else { return false };
    count_frame(stats, acks.frame_len());
    acks.write(frame, psn, syndrome, msn);
    true
}

#[inline(always)]
fn count_frame(stats: &TransportStats, len: usize) {
    stats.sent_pkts.inc();
    stats.sent_bytes.add(len as u64);
}
