//! NVMe over Fabrics: disks for hosts that run `nvme connect -t rdma`.
//!
//! The protocol is crate `rxe-nvmf`, the storage crate `rxe-storage`; this service moves the bytes between them and the hosts.
//! A host has an admin queue and several I/O queues per controller, each a queue pair on any worker.
//!
//! * [`shared`] is common to the workers: the controllers behind a lock, which Connect and admin commands take, and the disks.
//! * [`instance`] is the state of a worker, and what the other modules do with it; [`service`] the events of that worker:
//!   connections, completions, messages from other instances.
//! * [`queue`] is a queue pair: receives, responses, and the order in which they go out.
//! * [`admin`] executes what arrives on a queue without Connect and on admin queues, [`admin_work`] what of it needs memory;
//!   [`quiet`] lets a host's earlier commands end before it connects again.
//! * [`admission`] decides which commands may proceed and which wait for memory; [`turns`] is its policy, [`staging`] the memory,
//!   [`hosts`] tells the hosts apart.
//! * [`execute`] executes I/O commands: staging, fetch, storage, response. [`command`] is a command in progress, [`work`] its
//!   sequence of operations.
//! * [`namespaces`] is a worker's view of the disks, which [`disks`] gives to management; [`identity`] what hosts know them by. [`latencies`] counts times.

mod admin;
mod admin_work;
mod admission;
mod command;
mod disks;
mod execute;
mod factory;
mod hosts;
mod identity;
mod instance;
mod latencies;
mod namespaces;
mod queue;
mod quiet;
mod receives;
mod service;
mod shared;
mod staging;
#[cfg(test)]
mod tests;
mod turns;
mod work;

pub use disks::Disks;
pub use factory::{NAME, factory};
pub use service::ADMISSION;
pub use shared::Shared;
