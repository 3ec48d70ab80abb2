//! Commands: posting work requests and polling completions.

use crate::transport::{CqError, CqId, PostError, Qpn, RecvWr, SendWr, SrqId, WorkCompletion};

use super::Engine;

/// Where the receives of a queue pair come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvSource {
    /// From its own receive queue.
    Own,
    /// From a shared receive queue.
    Shared(SrqId),
}

impl Engine {
    /// Posts a work request to the send queue. In the error state it completes at once, as flushed.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then. Bad local keys show up as a completion later.
    pub fn post_send(&mut self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.qps.get_mut(qpn).ok_or(PostError::Unknown(qpn))?.post_send(&mut self.cx, wr, None)
    }

    /// Posts a work request that brings its bytes along (inline): `data` is copied now, may be changed at once and
    /// needs no key. `wr` names no buffers. For SEND, WRITE, ATOMIC WRITE and datagrams.
    ///
    /// # Errors
    /// [`PostError::InlineTooLong`], and as for [`post_send`](Engine::post_send).
    pub fn post_send_inline(&mut self, qpn: Qpn, wr: &SendWr<'_>, data: &[u8]) -> Result<(), PostError> {
        self.qps.get_mut(qpn).ok_or(PostError::Unknown(qpn))?.post_send(&mut self.cx, wr, Some(data))
    }

    /// Posts a receive. In the error state it completes at once, as flushed.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then. Bad local keys show up as a completion later.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.qps.get_mut(qpn).ok_or(PostError::Unknown(qpn))?.post_recv(&mut self.cx, wr)
    }

    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.cx.srqs.post(srq, wr)
    }

    /// Where the receives of a queue pair come from; `None` for an unknown queue pair.
    ///
    /// A host whose programs post receives without telling it (into a ring in shared memory) moves them to the engine before
    /// it hands over a packet: for each queue pair that the packet is for, as many as there is
    /// [room](Self::recv_room) for, or [room](Self::srq_room) in its shared receive queue. For a multicast datagram these
    /// are [several queue pairs](Self::multicast_members).
    #[inline]
    pub fn recv_source(&self, qpn: Qpn) -> Option<RecvSource> {
        self.qps.get(qpn).map(|qp| qp.common.srq.map_or(RecvSource::Own, RecvSource::Shared))
    }

    /// Receives that can be posted to a queue pair now; `None` for an unknown queue pair. 0 in RESET and with a shared
    /// receive queue.
    #[inline]
    pub fn recv_room(&self, qpn: Qpn) -> Option<u32> {
        self.qps.get(qpn).map(|qp| qp.recv_room())
    }

    /// Receives that can be posted to a shared receive queue now; `None` for an unknown one.
    #[inline]
    pub fn srq_room(&self, srq: SrqId) -> Option<u32> {
        self.cx.srqs.room(srq)
    }

    /// Work requests that can be posted to the send queue of a queue pair now; `None` for an unknown queue pair. 0 in RESET,
    /// INIT and RTR.
    #[inline]
    pub fn send_room(&self, qpn: Qpn) -> Option<u32> {
        self.qps.get(qpn).map(|qp| qp.send_room())
    }

    /// Receives of a queue pair's own receive queue that have not completed; `None` for an unknown queue pair. With a shared
    /// receive queue, 1 while a message is being received.
    ///
    /// A host that gives a program its entries of a ring back when they have completed compares this with what it has moved.
    #[inline]
    pub fn recv_queued(&self, qpn: Qpn) -> Option<u32> {
        self.qps.get(qpn).map(|qp| qp.responder.rq.len())
    }

    /// Work requests of the send queue that have not completed, unsignaled ones included; `None` for an unknown queue pair.
    #[inline]
    pub fn send_queued(&self, qpn: Qpn) -> Option<u32> {
        self.qps.get(qpn).map(|qp| (qp.requester.sq.tail() - qp.requester.sq.head()) as u32)
    }

    /// Packets of the send queue that were transmitted and are not acknowledged; `None` for an unknown queue pair.
    #[inline]
    pub fn send_unacked(&self, qpn: Qpn) -> Option<u64> {
        self.qps.get(qpn).map(|qp| qp.requester.progress().unacked)
    }

    /// Arms a notification for the next completion in a queue: [`poll_cq_event`](Engine::poll_cq_event) returns the
    /// queue then, once. With `solicited_only`, only receives with the solicited bit, and failures, notify. Completions
    /// that are in the queue already do not.
    ///
    /// # Errors
    /// [`CqError::Unknown`].
    pub fn request_notify(&mut self, cq: CqId, solicited_only: bool) -> Result<(), CqError> {
        self.cx.cqs.request_notify(cq, solicited_only)
    }

    /// Dequeues the oldest notification.
    pub fn poll_cq_event(&mut self) -> Option<CqId> {
        self.cx.cqs.poll_notified()
    }

    /// Moves up to `max` completions, the oldest first, to the end of `out`. Returns how many.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut Vec<WorkCompletion>, max: usize) -> usize {
        self.cx.cqs.poll(cq, out, max)
    }

    /// Dequeues the oldest completion.
    pub fn poll_cq_one(&mut self, cq: CqId) -> Option<WorkCompletion> {
        self.cx.cqs.poll_one(cq)
    }

    /// A completion queue that holds completions; round robin if there are several.
    ///
    /// A queue whose completions stay in it is returned again after the others. An owner that cannot take them all, as the
    /// program's own queue is full, therefore calls this [`ready_cqs`](Self::ready_cqs) times at most, which visits each
    /// queue once:
    ///
    /// ```
    /// # use rxe_proto::transport::{CqId, Engine, WorkCompletion};
    /// # fn deliver(engine: &mut Engine, room: fn(CqId) -> usize, taken: &mut Vec<WorkCompletion>) {
    /// for _ in 0..engine.ready_cqs() {
    ///     let Some(cq) = engine.poll_ready() else { break };
    ///     engine.poll_cq(cq, taken, room(cq));
    /// }
    /// # }
    /// ```
    pub fn poll_ready(&mut self) -> Option<CqId> {
        self.cx.cqs.poll_ready()
    }

    /// At most as many completion queues as this hold completions.
    #[inline]
    pub fn ready_cqs(&self) -> usize {
        self.cx.cqs.listed()
    }

    /// Completions in a queue; `None` for an unknown one.
    #[inline]
    pub fn cq_len(&self, cq: CqId) -> Option<usize> {
        self.cx.cqs.entries(cq)
    }
}
