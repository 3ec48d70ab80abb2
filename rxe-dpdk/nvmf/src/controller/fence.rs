//! I/O queues that have ended, and whose commands may still be in the storage.
//!
//! A command of a host that has disconnected must not change blocks that the host has written again over a new connection. So the
//! embedder stops the commands of a queue that ends, and until it says that none is left, the same host's Connect has to wait.

use std::collections::BTreeMap;

use super::ControllerId;
use crate::wire::Nqn;

/// The commands of a connected I/O queue. A number is not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FenceId(u64);

/// Which host has the queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Association {
    pub(super) subsystem: Nqn,
    pub(super) host: Nqn,
    pub(super) host_id: [u8; 16],
}

#[derive(Debug)]
struct Fence {
    association: Association,
    controller: ControllerId,
}

/// The queues whose commands may be in the storage: all that are connected, and some that have ended.
#[derive(Debug, Default)]
pub(super) struct Fences {
    queues: BTreeMap<FenceId, Fence>,
    /// Those of them that have ended.
    ended: BTreeMap<FenceId, Fence>,
    next: u64,
}

impl Fences {
    /// A queue is connected.
    pub(super) fn open(&mut self, association: Association, controller: ControllerId) -> FenceId {
        let id = FenceId(self.next);
        self.next += 1;
        self.queues.insert(id, Fence { association, controller });
        id
    }

    /// The queue has ended.
    pub(super) fn end(&mut self, id: FenceId) {
        if let Some(fence) = self.queues.remove(&id) {
            self.ended.insert(id, fence);
        }
    }

    /// No command of the queue is left.
    pub(super) fn close(&mut self, id: FenceId) {
        self.queues.remove(&id);
        self.ended.remove(&id);
    }

    /// Whether commands of a queue of the host that has ended may be in the storage.
    pub(super) fn holds(&self, association: &Association) -> bool {
        self.ended.values().any(|fence| fence.association == *association)
    }

    /// Whether commands of a queue of the controller that has ended may be in the storage.
    pub(super) fn holds_queue_of(&self, controller: ControllerId) -> bool {
        self.ended.values().any(|fence| fence.controller == controller)
    }

    /// Number of queues.
    pub(super) fn len(&self) -> usize {
        self.queues.len() + self.ended.len()
    }
}
