//! The adapter at work: run-to-completion workers on lcores, the control side, and the hand-off between lcores.
//!
//! `run` is the poll loop, [`dispatch`](rxe_adapter::worker::dispatch) the steps that a received frame passes. Worker 0 runs on the main lcore and
//! carries the control side ([`rxe_service::control`]). Every worker owns an [`Engine`](rxe_proto::transport::Engine) and
//! one instance of each service. Workers talk by messages and hand frames over by rings (`handoff`). With one lcore the
//! same code runs, with both ends of each mailbox in one loop.
//! Between a port and a worker stand [fault injectors](rxe_adapter::worker::injector) and
//! [recorders](rxe_adapter::worker::capture), where rules or a capture need them.

pub(crate) mod faults;
pub(crate) mod handoff;
pub(crate) mod origin;
mod packet;
pub(crate) mod port_host;
pub(crate) mod port_orders;
pub(crate) mod ports;
pub(crate) mod run;
pub(crate) mod tx_path;

pub use rxe_adapter::worker::{
    ActiveFault, CaptureStats, Direction, FaultAction, FaultMatch, FaultRule, FaultScope, FaultStats, IdlePolicy,
    MAX_FAULTS, Probability, PsnRange, TurnTimes, WorkerStats, nak_name,
};
