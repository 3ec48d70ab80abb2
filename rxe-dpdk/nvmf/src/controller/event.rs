//! Actions for the embedder.

use super::{ControllerId, QueueKey};
use crate::wire::{Nqn, Response};

/// Why queues are torn down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TeardownReason {
    /// The host disconnected the admin queue after a shutdown.
    #[error("the host shut the controller down")]
    HostShutdown,
    /// The admin queue was disconnected without a shutdown.
    #[error("the admin queue was disconnected")]
    AdminQueueLost,
    /// The host sent no Keep Alive in time.
    #[error("keep alive timeout")]
    KeepAliveTimeout,
    /// A queue was accepted, but no Connect arrived in time.
    #[error("no Connect command")]
    ConnectTimeout,
    /// The embedder found a fatal error on a queue.
    #[error("fatal error on a queue")]
    QueueError,
    /// The subsystem was removed.
    #[error("the subsystem was removed")]
    SubsystemRemoved,
    /// The host may not use the subsystem any more.
    #[error("the host is not allowed any more")]
    HostRemoved,
}

/// An action for the embedder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Send the response of a held Asynchronous Event Request.
    Respond {
        /// The admin queue.
        queue: QueueKey,
        /// The response.
        response: Response,
    },
    /// Disconnect and destroy queues, without touching the host's memory any more. The target has forgotten them.
    TearDown {
        /// The controller; `None` for a queue that sent no Connect.
        controller: Option<ControllerId>,
        /// Why.
        reason: TeardownReason,
        /// The queues that are still connected.
        queues: Vec<QueueKey>,
    },
    /// Pass CSTS.RDY on to the I/O queues, see [`IoQueue::set_ready`](crate::io::IoQueue::set_ready).
    Ready {
        /// The controller.
        controller: ControllerId,
        /// The I/O queues.
        queues: Vec<QueueKey>,
        /// CSTS.RDY.
        ready: bool,
    },
    /// Pass the namespaces of a subsystem on to workers, see [`Target::namespace_views`](super::Target::namespace_views).
    /// Precedes the notification of the hosts.
    NamespacesChanged {
        /// The subsystem.
        subsystem: Nqn,
        /// I/O queues of the subsystem, on all its controllers.
        queues: Vec<QueueKey>,
    },
}
