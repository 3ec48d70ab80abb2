//! Services on a RoCEv2 adapter, without IO.
//!
//! A *service* is a program's part that accepts connections and exchanges data over them: an echo, a storage target. An
//! embedder implements two traits:
//!
//! * [`ServiceFactory`] names the service, says what it listens to, and creates one instance per worker.
//! * [`Service`] is one instance. The worker calls it for connection requests, completions, timers and so on, always on the
//!   worker's own thread, so that it needs no locks. A call must not block and should be short: packets wait meanwhile.
//!
//! Every call gets a [`Context`]. Its [`device`](Context::device) has the verbs; its other methods are for connections,
//! memory, timers, TCP streams and messages to other instances. [`prelude`] has what the author of a service imports.
//!
//! # The order of the calls
//!
//! [`Service::start`] is the first call, on the worker's thread, before the first packet. Then the worker turns its loop. A turn
//! receives and executes packets, then calls the services in this order:
//!
//! ```text
//! messages     of control and management: connect_request, connect_reply, disconnected, stream_data, manage, ...
//!              of other instances: instance_message
//! events       async_event; connected, if the first packet has replaced the RTU
//! completions  completions, completion
//! timers       timer
//! poll         of the services that want it
//! ```
//!
//! Then it transmits, so that work requests that are posted in any of these calls leave in the same turn. Messages are read once
//! in a few microseconds, so not in every turn.
//!
//! A worker without work pauses or sleeps before its next turn, as it was configured. A service whose operations complete without
//! a packet (I/O on a disk) returns true from [`Service::wants_poll`] and is polled in each turn; while it reports [`Outstanding`]
//! operations, its worker does not sleep.
//!
//! # Instances
//!
//! A service has one instance per worker, which only this worker calls. The factory may choose the worker of a connection
//! ([`ServiceFactory::worker_for`]). Instances of one service send each other messages by [`Context::send_to_instance`].
//!
//! # The end of an adapter
//!
//! New clients are refused, and the connections of all peers are ended. Then the workers go on to turn until no service reports
//! outstanding operations. Both together take 1.5 s at most. Operations that are still outstanding are counted
//! (`operations_left`), and the instances are dropped with the messages that they have not received. An instance that waits for an answer of another instance
//! reports an outstanding operation, so that the answer is waited for.
//!
//! # The life of a connection
//!
//! A peer requests a connection:
//!
//! ```text
//! REQ ──> Service::connect_request ──> Decision::Accept{qp}   (receives are posted, the QP is in Init)
//!          service host: QP to RTR and RTS, REP
//! RTU or first packet ──> Service::connected
//! completions ──> Service::completion
//! DREQ, QP in error, shutdown ──> Service::disconnected, then the service host destroys the QP
//! ```
//!
//! A service requests a connection:
//!
//! ```text
//! Context::connect ──> path, REQ                             (receives are posted, the QP is in Init)
//! REP ──> service host: QP to RTR and RTS ──> Service::connect_reply ──> RTU
//!          ──> Service::connected, then as above
//! REJ, no answer, no path ──> Service::disconnected, then the service host destroys the QP
//! ```
//!
//! A service that finds its peers by other means than the connection manager (a TCP stream, multicast) creates, connects and
//! destroys its queue pairs itself.
//!
//! # How an adapter is built of this
//!
//! ```text
//!    peers ── frames ──> IpHost ──> Control ── mailbox ──> ServiceHost ──> Service      one Control per adapter,
//!                                      │                       │                        one ServiceHost and Engine
//!                                      Cm                    Engine <── frames ── peers  per worker
//! ```
//!
//! * [`service_host::ServiceHost`] calls the services of one worker.
//! * [`control::Control`] owns the connection manager and routes what peers want to services and back.
//! * [`mailbox`] connects them. They share nothing else, so each may run on a thread of its own.
//! * [`control::ip_host::IpHost`] is what control needs of a port. A crate that implements it and moves packets hosts services:
//!   rxe-dpdk does on DPDK ports.
//! * [`inspect`] has the questions that management asks a running worker, [`change`] the changes that it makes, [`events`] what
//!   workers report on their own.

pub mod change;
pub mod context;
pub mod control;
mod event_log;
pub mod events;
pub mod inspect;
pub mod ledger;
mod local_port;
pub mod mailbox;
mod messages;
pub mod multicast;
mod outstanding;
pub mod prelude;
mod qp_map;
mod regions;
mod reserve;
pub mod seeds;
pub mod service;
pub mod service_host;
mod service_latencies;
#[cfg(test)]
mod test_env;

pub use change::ControlChange;
pub use context::Context;
pub use context::lease::{Lease, LendError};
pub use control::{ControlStats, TrafficClassConfig};
pub use event_log::EventLog;
pub use ledger::{BudgetId, Charge, Ledger, Refusal, Shares, Standing};
pub use local_port::{LocalPort, Restrictions};
pub use messages::{Connect, DatagramPeer, EndReason, GroupListener, PeerPath, ResolveError, StreamId};
pub use outstanding::Outstanding;
pub use qp_map::QpMap;
pub use regions::{NamedRegion, RegionNames, Which};
pub use rxe_proto::transport::QpCaps;
pub use service::{Accept, DatagramDecision, Decision, Listen, Service, ServiceFactory, service_factory};
pub use service_host::ServiceStats;
pub use service_latencies::ServiceLatencies;
