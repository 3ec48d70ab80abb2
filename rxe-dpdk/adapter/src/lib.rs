//! The parts of a RoCEv2 adapter that do not depend on what carries its packets.
//!
//! A host of the adapter (rxe-dpdk on DPDK ports, rxe-udp on UDP sockets) owns the ports and the loop of each worker. This
//! crate has the rest between [`rxe_service`] and such a host:
//!
//! * [`worker`]: dispatch of received frames, fault injectors, recorders, orders between two turns, the watchdog.
//! * [`manage`]: inspection, captures, fault rules, named regions, addresses and events of a running adapter.
//! * [`counters`]: sums what all layers count.
//! * [`settings`]: the configuration of an adapter; [`texts`]: values as users write them; [`build`]: the parts that are made from it.
//! * [`regions`]: the memory of named regions, and their keys in each worker.
//! * [`memory`]: memory in files that other processes may truncate.
//! * [`addressing`], [`multicast`], [`host_stats`]: what IP hosts have in common.
//! * [`output`]: standard output and error, which no worker may wait for.

pub mod addressing;
pub mod build;
pub mod counters;
mod error;
pub mod host_stats;
pub mod latency;
pub mod manage;
pub mod memory;
pub mod multicast;
pub mod output;
pub mod regions;
pub mod settings;
pub mod texts;
pub mod worker;

pub use error::BuildError;
