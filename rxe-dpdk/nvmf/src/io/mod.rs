//! A worker's part of an I/O queue: checks each command, accounts for it, writes its completion. No lock and no
//! allocation per command.

mod queue;
mod request;
mod tag;

pub use crate::subsystem::NamespaceView;
pub use queue::{IoQueue, IoQueueConfig, QueueFault, Submission};
pub use request::{BlockRange, IoOperation, IoRequest, dsm_ranges};
pub use tag::CommandTag;

#[cfg(test)]
mod tests;
