//! The state of a subsystem and of a controller.

use std::collections::{BTreeMap, BTreeSet};

use super::error_log::ErrorLog;
use super::event_requests::EventRequests;
use super::keep_alive::KeepAlive;
use super::registers::{QueueSet, Registers};
use super::{ControllerId, QueueKey};
use crate::subsystem::Subsystem;
use crate::wire::{Cqe, Nqn, Response, Status};

/// What the workers did for hosts since their last report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IoCounts {
    /// Bytes sent to the host by Read.
    pub bytes_read: u64,
    /// Bytes received from the host by Write.
    pub bytes_written: u64,
    /// Completed Read commands.
    pub reads: u64,
    /// Completed Write commands.
    pub writes: u64,
    /// Errors by which data are lost or cannot be read.
    pub media_errors: u64,
}

impl IoCounts {
    pub(super) const fn add(&mut self, other: IoCounts) {
        self.bytes_read = self.bytes_read.saturating_add(other.bytes_read);
        self.bytes_written = self.bytes_written.saturating_add(other.bytes_written);
        self.reads = self.reads.saturating_add(other.reads);
        self.writes = self.writes.saturating_add(other.writes);
        self.media_errors = self.media_errors.saturating_add(other.media_errors);
    }
}

/// A subsystem and its counters, which outlive its controllers.
#[derive(Debug)]
pub(super) struct SubsystemState {
    pub(super) config: Subsystem,
    pub(super) counts: IoCounts,
}

/// The admin queue of a controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdminQueue {
    pub(super) key: QueueKey,
    size: u16,
    head: u16,
    flow_control: bool,
}

impl AdminQueue {
    pub(super) const fn new(key: QueueKey, size: u16, flow_control: bool) -> AdminQueue {
        AdminQueue { key, size: if size == 0 { 1 } else { size }, head: 0, flow_control }
    }

    /// Gives back the entry of a command, and returns the new head for its completion.
    pub(super) const fn advance(&mut self) -> u16 {
        self.head = (self.head + 1) % self.size;
        if self.flow_control { self.head } else { Cqe::NO_FLOW_CONTROL }
    }

    /// The response to a command, which gives back its entry.
    pub(super) fn respond(
        &mut self,
        command_id: u16,
        status: Status,
        result: u64,
        invalidate: Option<u32>,
    ) -> Response {
        let head = self.advance();
        Response { cqe: Cqe::new(command_id, status).with_result(result).with_queue(0, head), invalidate }
    }
}

/// A controller: the association of one host with one subsystem.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) id: ControllerId,
    pub(super) subsystem: Nqn,
    pub(super) host: Nqn,
    pub(super) host_id: [u8; 16],
    pub(super) admin: AdminQueue,
    pub(super) io_queues: BTreeMap<u16, QueueKey>,
    pub(super) registers: Registers,
    pub(super) keep_alive: KeepAlive,
    pub(super) events: EventRequests,
    /// Namespaces that changed since the host read the log; bounded by the largest NSID.
    pub(super) changed_namespaces: BTreeSet<u32>,
    pub(super) errors: ErrorLog,
}

impl Controller {
    pub(super) fn is_discovery(&self) -> bool {
        self.subsystem.is_discovery()
    }

    pub(super) fn queue_set(&self) -> QueueSet {
        if self.is_discovery() { QueueSet::AdminOnly } else { QueueSet::AdminAndIo }
    }

    /// All queues, the admin queue first.
    pub(super) fn queues(&self) -> impl Iterator<Item = QueueKey> {
        std::iter::once(self.admin.key).chain(self.io_queues.values().copied())
    }
}
