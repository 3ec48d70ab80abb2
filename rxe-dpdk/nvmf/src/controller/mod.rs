//! The state that the queues of all hosts share: subsystems, controllers, queues. Connect and admin commands touch it,
//! I/O commands do not. The embedder guards it with a lock of its own.

mod admin;
mod config;
mod connect;
mod error_log;
mod event;
mod event_requests;
mod features;
mod fence;
mod identify;
mod keep_alive;
mod logs;
mod manage;
mod queues;
mod registers;
mod report;
mod state;
mod teardown;

pub use admin::{AdminData, AdminReply};
pub use config::{Portal, TargetConfig};
pub use connect::{ConnectError, FirstCommand, Granted, Refusal, first_command};
pub use event::{Event, TeardownReason};
pub use fence::FenceId;
pub use report::ControllerInfo;
pub use state::IoCounts;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use fence::Fences;
use queues::Queue;
use state::{Controller, SubsystemState};

use crate::wire::Nqn;

/// A queue's connection, as numbered by the embedder. A number may be used again after
/// [`Target::disconnected`] or [`Event::TearDown`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueKey(pub u64);

/// A controller's id (CNTLID), unique in the target among live controllers and not soon used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ControllerId(u16);

impl ControllerId {
    /// The id on the wire.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ControllerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Largest controller id; larger ones are reserved.
const MAX_CONTROLLER_ID: u16 = 0xFFEF;

/// Subsystems, the discovery subsystem, and the controllers of all hosts.
///
/// Its methods are of four kinds:
/// * input from hosts: [`accept`](Self::accept), [`connect`](Self::connect), [`admin`](Self::admin),
///   [`disconnected`](Self::disconnected), and [`poll`](Self::poll) for time,
/// * reports of workers: [`record_io`](Self::record_io), [`record_error`](Self::record_error), [`fail`](Self::fail),
///   [`fenced`](Self::fenced),
/// * changes of the configuration: `add_`..., `remove_`..., [`resize_namespace`](Self::resize_namespace),
/// * output: [`next_event`](Self::next_event), to be drained after each call of the other kinds, and
///   [`next_deadline`](Self::next_deadline).
///
/// `now` must not go back.
#[derive(Debug)]
pub struct Target {
    config: TargetConfig,
    subsystems: BTreeMap<Nqn, SubsystemState>,
    controllers: BTreeMap<ControllerId, Controller>,
    queues: HashMap<QueueKey, Queue>,
    fences: Fences,
    /// Queues of `queues` without a Connect.
    waiting: usize,
    /// Where the search for a free controller id starts.
    next_id: u16,
    /// GENCTR of the discovery log.
    generation: u64,
    events: VecDeque<Event>,
}

impl Target {
    /// A target without subsystems.
    #[must_use]
    pub fn new(config: TargetConfig) -> Target {
        Target {
            config,
            subsystems: BTreeMap::new(),
            controllers: BTreeMap::new(),
            queues: HashMap::new(),
            fences: Fences::default(),
            waiting: 0,
            next_id: 1,
            generation: 1,
            events: VecDeque::new(),
        }
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// The next action for the embedder, in the order in which they are to be taken.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Number of live controllers.
    #[must_use]
    pub fn controller_count(&self) -> usize {
        self.controllers.len()
    }

    /// Number of known queues, connected or waiting for a Connect.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Number of I/O queues whose commands may be in the storage, see [`fenced`](Self::fenced).
    #[must_use]
    pub fn fence_count(&self) -> usize {
        self.fences.len()
    }

    /// Number of held Asynchronous Event Requests of all controllers.
    #[must_use]
    pub fn held_event_requests(&self) -> usize {
        self.controllers.values().map(|controller| controller.events.held()).sum()
    }

    /// A free id, other than those granted last.
    fn free_id(&self) -> Option<ControllerId> {
        let ids = (self.next_id..=MAX_CONTROLLER_ID).chain(1..self.next_id);
        ids.map(ControllerId).find(|id| !self.controllers.contains_key(id))
    }
}
