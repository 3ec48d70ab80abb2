//! Queue pairs and what moves them.
//!
//! An [`Engine`] owns the queue pairs of one lcore. Each queue pair (`qp`) has a `responder`, which serves the peer's
//! requests, and a `requester` with its `completer`, which carry out our own. They share nothing but the `link` to the
//! peer; what all queue pairs of the engine share is in `context`.

mod attr;
mod common;
mod completer;
mod config;
mod context;
mod cq;
mod engine;
mod event;
mod link;
mod qp;
mod recv_queue;
mod requester;
mod responder;
mod seq;
mod sge;
mod state;
mod stats;
mod table;
mod timer;
pub mod work;

pub use attr::{PostError, QpCaps, QpError, QpInfo, QpInit};
pub use config::EngineConfig;
pub use cq::CqError;
pub use engine::Engine;
pub use event::{QpErrorCause, QpEvent};
pub use state::{QpState, QpTransition, RtrAttr, RtsAttr};
pub use stats::TransportStats;
pub use work::{CqId, Qpn, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion};
