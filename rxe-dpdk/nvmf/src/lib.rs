//! NVMe over Fabrics on RDMA, without IO: no clock, thread, socket, file or random source. Time is an argument.
//!
//! * [`wire`] converts bytes to types and back: command and completion entries, SGL descriptors, private data of the
//!   connection manager's messages, fabrics commands, Identify data, log pages,
//! * [`subsystem`] is the configuration as plain data: subsystems, namespaces, identifiers, limits,
//! * [`io`] is a worker's part of an I/O queue: it checks commands and accounts for them, without a lock,
//! * [`controller`] is the state that all queues share: connected controllers, Connect and admin commands, events,
//! * [`host`] is the other end: the connect sequence and the commands of a load generator or a test.
//!
//! The embedder moves the bytes: it receives capsules, does the RDMA READs and WRITEs that a reply names, and sends the
//! completion entries.

pub mod controller;
pub mod host;
pub mod io;
pub mod subsystem;
pub mod wire;
