//! Queue pairs and what moves them.
//!
//! An [`Engine`] owns the queue pairs of one lcore. Each queue pair (`qp`) has a `responder`, which serves the peer's
//! requests, and a `requester` with its `completer`, which carry out our own. They share nothing but the `link` to the
//! peer; what all queue pairs of the engine share is in `context`.

mod ah;
mod attr;
mod common;
mod completer;
mod config;
mod congestion;
mod context;
mod cq;
mod engine;
mod event;
mod link;
mod multicast;
mod numbers;
mod qp;
mod recv_queue;
mod requester;
mod responder;
mod seq;
mod sge;
mod srq;
mod state;
mod stats;
mod table;
mod timer;
mod tx_scheduler;
mod wait;
pub mod work;

pub use ah::AhError;
pub use attr::{PostError, QpCaps, QpError, QpInfo, QpInit, QpType, SendProgress};
pub use config::EngineConfig;
pub use cq::CqError;
pub use engine::{Engine, RequestRefusal};
pub use event::{AsyncEvent, QpErrorCause};
pub use multicast::MulticastError;
pub use requester::KeepAlive;
pub use srq::{SrqError, SrqInit};
pub use state::{QpState, QpTransition, RtrAttr, RtsAttr};
pub use stats::TransportStats;
pub use wait::Wait;
pub use work::{
    AhId, CqId, Qpn, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, SrqId, WcOpcode, WcStatus, WorkCompletion,
};
