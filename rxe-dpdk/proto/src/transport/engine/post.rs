//! Commands: posting work requests and polling completions.

use crate::transport::{CqError, CqId, PostError, Qpn, RecvWr, SendWr, SrqId, WorkCompletion};

use super::Engine;

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
    pub fn poll_ready(&mut self) -> Option<CqId> {
        self.cx.cqs.poll_ready()
    }
}
