//! The controllers as reports for management.

use super::{ControllerId, QueueKey, Target};
use crate::wire::Nqn;

/// A live controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerInfo {
    /// Controller id (CNTLID).
    pub id: ControllerId,
    /// The host.
    pub host: Nqn,
    /// The subsystem; that of discovery has controllers too.
    pub subsystem: Nqn,
    /// The admin queue.
    pub admin: QueueKey,
    /// The I/O queues, by queue id.
    pub io_queues: Vec<QueueKey>,
    /// Whether the host has enabled the controller (CSTS.RDY).
    pub ready: bool,
}

impl Target {
    /// The live controllers in the order of their ids.
    pub fn controllers(&self) -> impl Iterator<Item = ControllerInfo> {
        self.controllers.values().map(|controller| ControllerInfo {
            id: controller.id,
            host: controller.host.clone(),
            subsystem: controller.subsystem.clone(),
            admin: controller.admin.key,
            io_queues: controller.io_queues.values().copied().collect(),
            ready: controller.registers.is_ready(),
        })
    }
}
