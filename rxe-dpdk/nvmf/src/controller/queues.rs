//! Queues from the acceptance of their connection to their end.

use rxe_proto::Instant;

use super::fence::FenceId;
use super::{ControllerId, QueueKey, Target};
use crate::wire::private_data::{QueueAccept, QueueRequest, RejectStatus};

/// A queue whose connection is accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    pub(super) qid: u16,
    /// Posted receives, the most entries that Connect may ask for.
    pub(super) depth: u16,
    pub(super) state: QueueState,
    /// Of a connected I/O queue.
    pub(super) fence: Option<FenceId>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum QueueState {
    /// No Connect succeeded yet.
    Waiting {
        deadline: Instant,
    },
    Connected(ControllerId),
}

impl Target {
    /// Decides on a REQ of the connection manager. If it is accepted, the embedder posts the receives of the answer
    /// before it sends the REP, and must call [`disconnected`](Self::disconnected) when the queue's connection ends.
    /// The Connect of the queue may arrive before the RTU.
    ///
    /// # Errors
    /// The status for the private data of a REJ. A key that is in use is refused for lack of resources.
    pub fn accept(&mut self, now: Instant, key: QueueKey, request: &QueueRequest) -> Result<QueueAccept, RejectStatus> {
        let accept = self.config.limits.accept(request)?;
        if self.waiting >= self.config.limits.waiting_queues || self.queues.contains_key(&key) {
            return Err(RejectStatus::NoResources);
        }
        let state = QueueState::Waiting { deadline: now + self.config.limits.connect_timeout };
        self.queues.insert(key, Queue { qid: request.qid, depth: accept.controller_receives, state, fence: None });
        self.waiting += 1;
        Ok(accept)
    }

    /// Marks an accepted queue as connected.
    pub(super) fn set_connected(&mut self, key: QueueKey, controller: ControllerId, fence: Option<FenceId>) {
        if let Some(queue) = self.queues.get_mut(&key)
            && let QueueState::Waiting { .. } = queue.state
        {
            (queue.state, queue.fence) = (QueueState::Connected(controller), fence);
            self.waiting -= 1;
        }
    }

    /// Forgets a queue.
    pub(super) fn forget(&mut self, key: QueueKey) -> Option<Queue> {
        let queue = self.queues.remove(&key)?;
        if let QueueState::Waiting { .. } = queue.state {
            self.waiting -= 1;
        }
        if let Some(fence) = queue.fence {
            self.fences.end(fence);
        }
        Some(queue)
    }
}
