//! NVMe over Fabrics: disks for hosts that run `nvme connect -t rdma`.
//!
//! The protocol is crate `rxe-nvmf`, the storage crate `rxe-storage`; this service moves the bytes between them and the hosts.
//! A host has an admin queue and several I/O queues per controller, each a queue pair on any worker.
//!
//! * [`shared`] is common to the workers: the controllers behind a lock, which Connect and admin commands take, and the disks.
//! * [`service`] is an instance: connections, completions, messages from other instances.
//! * [`queue`] is a queue pair: receives, responses, and the order in which they go out.
//! * [`admin`] executes what arrives on a queue without Connect and on admin queues.
//! * [`command`] is an I/O command in progress: staging, fetch, storage, response. [`work`] is its sequence of operations.
//! * [`namespaces`] is a worker's view of the disks.

mod admin;
mod command;
mod factory;
mod namespaces;
mod queue;
mod receives;
mod service;
mod shared;
mod staging;
mod work;

pub use factory::{NAME, factory};
