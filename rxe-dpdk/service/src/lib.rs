//! Services on a RoCEv2 adapter: what they implement, their interface to it, and connections, without IO.
//!
//! [`service`] has the traits that an embedder implements, [`context`] what a service may do in a call. [`service_host`] calls the
//! services of one worker, [`control`] owns the connection manager and routes what peers want to services. Neither knows
//! what carries its packets: [`control::ip_host::IpHost`] is what they need of it.

pub mod context;
pub mod control;
pub mod event_log;
pub mod inspect;
pub mod local_port;
pub mod mailbox;
pub mod messages;
pub mod multicast;
pub mod qp_map;
pub mod regions;
pub mod seeds;
pub mod service;
pub mod service_host;

pub use context::Context;
pub use context::verbs::{QpKind, QpSpec};
pub use control::{ControlStats, TrafficClassConfig};
pub use event_log::EventLog;
pub use local_port::LocalPort;
pub use messages::{Connect, DatagramPeer, EndReason, GroupListener, PeerPath, ResolveError, StreamId};
pub use qp_map::QpMap;
pub use regions::{NamedRegion, RegionNames, Which};
pub use rxe_proto::transport::QpCaps;
pub use service::{Accept, DatagramDecision, Decision, Listen, Service, ServiceFactory};
pub use service_host::ServiceStats;
