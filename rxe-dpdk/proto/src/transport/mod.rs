//! Queue pairs: transport of requests and responses.
//!
//! An [`Engine`] owns the queue pairs of one lcore. Each queue pair (`qp`) has a `responder`, which serves the peer's
//! requests, and a `requester` with its `completer`, which execute our own. They share only the `link` to the peer.
//! `context` has the state that all queue pairs of the engine share.

mod ah;
mod attr;
mod attr_change;
mod common;
mod completer;
mod config;
mod congestion;
mod congestion_control;
mod context;
mod cq;
mod delay_window;
mod engine;
mod event;
mod latency;
mod link;
mod long_limit;
mod multicast;
mod numbers;
mod qp;
mod qp_type;
mod recv_queue;
mod refusal;
mod requester;
mod responder;
mod send_policy;
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
pub use attr::{PostError, QpCaps, QpError, QpInfo, QpInit, SendProgress};
pub use attr_change::QpAttrChange;
pub use config::{EngineConfig, KeepAlive};
pub use congestion_control::{CongestionControl, Dcqcn, DelayControl};
pub use cq::CqError;
pub use engine::{Engine, RecvSource};
pub use event::{AsyncEvent, QpErrorCause, QpEventType};
pub use latency::{Latencies, Operation};
pub use multicast::MulticastError;
pub use qp_type::QpType;
pub use refusal::RequestRefusal;
pub use srq::{SrqAttr, SrqError, SrqInfo, SrqInit};
pub use state::{QpState, QpTransition, RtrAttr, RtsAttr};
pub use stats::TransportStats;
pub use wait::Wait;
pub use work::{
    AhId, CqId, Qpn, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge, SrqId, WcOpcode, WcStatus, WorkCompletion,
};
