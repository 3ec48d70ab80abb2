//! What all queue pairs of an engine share.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::mem::KeyTable;
use crate::time::Instant;
use crate::wire::{BthFields, DropCounters, DropReason, HeaderTemplate, PacketBuilder, TxQueue};

use super::ah::AhTable;
use super::cq::CqTable;
use super::recv_queue::RecvQueue;
use super::srq::{SrqTable, Taken};
use super::timer::TimerHeap;
use super::{AsyncEvent, CqId, EngineConfig, SrqId, TransportStats, WorkCompletion};

/// Everything of an [`Engine`](super::Engine) but its queue pairs: handed, beside one queue pair, to whatever works on
/// that.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: EngineConfig,
    pub(super) keys: KeyTable,
    pub(super) cqs: CqTable,
    pub(super) srqs: SrqTable,
    pub(super) ahs: AhTable,
    pub(super) timers: TimerHeap,
    pub(super) events: VecDeque<AsyncEvent>,
    /// Slots of queue pairs that may have something to transmit, each at most once (a flag in the queue pair).
    pub(super) active: VecDeque<u16>,
    pub(super) stats: Arc<TransportStats>,
    pub(super) drops: Arc<DropCounters>,
    pub(super) emitter: Emitter,
}

impl Context {
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
            self.stats.cq_overflows.inc();
        }
        fits
    }

    /// Makes sure that `rq` holds a receive, if there is one: a queue pair with a shared receive queue takes its next one
    /// from there when it needs it.
    #[inline]
    pub(super) fn supply(&mut self, srq: Option<SrqId>, rq: &mut RecvQueue) -> bool {
        if rq.front().is_some() {
            return true;
        }
        let Some(srq) = srq else { return false };
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

    /// Makes sure that the queue pair in `slot` is looked at by `at`.
    #[inline]
    pub(super) fn wake_at(&mut self, slot: u16, at: Instant) {
        self.timers.arm(u32::from(slot), at);
    }
}

/// Starts frames.
#[derive(Debug)]
pub(super) struct Emitter {
    /// Identification of the last IPv4 packet.
    ip_id: u16,
    stats: Arc<TransportStats>,
}

impl Emitter {
    pub(super) fn new(stats: Arc<TransportStats>) -> Emitter {
        Emitter { ip_id: 0, stats }
    }

    /// Asks `tx` for room and writes everything up to the BTH; `None` when there is no room. What is begun must be
    /// finished: `tx` sends it in any case.
    #[inline]
    pub(super) fn begin<'t>(
        &mut self,
        tx: &'t mut impl TxQueue,
        template: &HeaderTemplate,
        fields: BthFields,
        payload_len: usize,
    ) -> Option<PacketBuilder<'t>> {
        let len = template.frame_len(fields.opcode, payload_len);
        let frame = tx.push(template.port(), len)?;
        // Linux peers send no zero here either; some middleboxes take zero for "not set".
        self.ip_id = self.ip_id.checked_add(1).unwrap_or(1);
        self.stats.sent_pkts.inc();
        self.stats.sent_bytes.add(len as u64);
        Some(template.build(frame, self.ip_id, fields, payload_len))
    }
}

/// The outcome of a queue pair's turn to transmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Nothing more to send until something happens.
    Idle,
    /// The quantum is used up; there is more.
    More,
    /// The port takes no more now.
    Refused,
}
