//! RoCEv2 without IO.
//!
//! This crate is the protocol and nothing else: it uses no DPDK, no socket, no clock and no thread. Time enters as
//! [`Instant`], randomness as a seed, packets as byte slices. The layers, each of which may use only the ones
//! before it:
//!
//! * [`wire`]: parsing and writing packets; the reasons to drop a packet.
//! * [`mem`]: protection domains, memory regions and the key table.
//! * [`transport`]: queue pairs, responder, requester, completer, timers.
//! * [`cm`]: the connection manager, over queue pair 1.
//! * [`verbs`]: the interface that services and tools program against.
//!
//! Comments `// compliance.md [ID]: ...` name a rule of docs/compliance.md, which gives its source and its tests.

pub mod cm;
pub mod counters;
pub mod mem;
mod prefetch;
pub mod time;
pub mod transport;
pub mod verbs;
pub mod wire;

pub use time::{Duration, Instant};
