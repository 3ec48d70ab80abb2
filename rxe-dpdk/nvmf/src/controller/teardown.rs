//! The end of queues and controllers, and the passing of time.

use rxe_proto::Instant;

use super::event::{Event, TeardownReason};
use super::fence::FenceId;
use super::queues::{Queue, QueueState};
use super::{ControllerId, QueueKey, Target};

impl Target {
    /// A queue's connection ended, for whatever reason. Unknown queues are ignored: the target forgets queues with
    /// [`Event::TearDown`].
    ///
    /// A controller ends with its admin queue. It survives the loss of I/O queues, since the host shuts it down after it
    /// has disconnected them.
    pub fn disconnected(&mut self, key: QueueKey) {
        let Some(Queue { qid, state: QueueState::Connected(id), .. }) = self.forget(key) else { return };
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        if qid != 0 {
            controller.io_queues.remove(&qid);
        } else if controller.registers.is_shut_down() {
            self.tear_down(id, TeardownReason::HostShutdown);
        } else {
            self.tear_down(id, TeardownReason::AdminQueueLost);
        }
    }

    /// Tears a controller down after a fatal error on one of its queues, such as a NAK for the host's memory.
    pub fn fail(&mut self, controller: ControllerId) {
        self.tear_down(controller, TeardownReason::QueueError);
    }

    /// No command of an I/O queue is in the storage any more, and none will be submitted. To be called once for each queue after
    /// its end.
    pub fn fenced(&mut self, queue: FenceId) {
        self.fences.close(queue);
    }

    /// Forgets a controller and its queues, and tells the embedder to destroy those that are still connected.
    pub(super) fn tear_down(&mut self, id: ControllerId, reason: TeardownReason) {
        let Some(controller) = self.controllers.remove(&id) else { return };
        let queues: Vec<QueueKey> = controller.queues().filter(|&key| self.forget(key).is_some()).collect();
        self.events.push_back(Event::TearDown { controller: Some(id), reason, queues });
    }

    /// Tears down what has expired: controllers whose host has not sent its Keep Alive, queues without Connect. A host without a
    /// timeout stays until its admin queue is [disconnected](Self::disconnected): the embedder finds out whether it exists.
    pub fn poll(&mut self, now: Instant) {
        let expired: Vec<ControllerId> = self
            .controllers
            .values()
            .filter(|controller| controller.keep_alive.deadline().is_some_and(|deadline| deadline <= now))
            .map(|controller| controller.id)
            .collect();
        for id in expired {
            self.tear_down(id, TeardownReason::KeepAliveTimeout);
        }
        if self.waiting == 0 {
            return;
        }
        let is_late = |queue: &Queue| matches!(queue.state, QueueState::Waiting { deadline } if deadline <= now);
        let mut late: Vec<QueueKey> =
            self.queues.iter().filter(|(_, queue)| is_late(queue)).map(|(&key, _)| key).collect();
        late.sort_unstable();
        for key in late {
            self.forget(key);
            let reason = TeardownReason::ConnectTimeout;
            self.events.push_back(Event::TearDown { controller: None, reason, queues: vec![key] });
        }
    }

    /// When [`poll`](Self::poll) is to be called next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let controllers = self.controllers.values().filter_map(|controller| controller.keep_alive.deadline());
        let queues = self.queues.values().filter_map(|queue| match queue.state {
            QueueState::Waiting { deadline } => Some(deadline),
            QueueState::Connected(_) => None,
        });
        controllers.chain(queues).min()
    }
}
