//! The adapter at work: run-to-completion workers on lcores, the control side, and the hand-off between lcores.
//!
//! `run` is the poll loop, `dispatch` the steps that a received frame passes. Worker 0 runs on the main lcore and
//! carries the control side ([`rxe_service::control`]). Every worker owns an [`Engine`](rxe_proto::transport::Engine) and
//! one instance of each service. Workers talk by messages and hand frames over by rings (`handoff`). With one lcore the
//! same code runs, with both ends of each mailbox in one loop.
//! Between a port and a worker stand fault injectors (`injector`) and recorders (`capture`), where rules or a capture
//! need them.

pub(crate) mod capture;
pub(crate) mod dispatch;
pub(crate) mod faults;
pub(crate) mod handoff;
pub(crate) mod idle;
pub(crate) mod injector;
pub(crate) mod lost_regions;
pub(crate) mod orders;
pub(crate) mod port_host;
pub(crate) mod ports;
pub(crate) mod progress;
pub(crate) mod run;
pub(crate) mod tx_path;

pub use capture::CaptureStats;
pub use idle::IdlePolicy;
pub use injector::{
    ActiveFault, Direction, FaultAction, FaultMatch, FaultRule, FaultScope, FaultStats, MAX_FAULTS, Probability,
    PsnRange, nak_name,
};
pub use ports::{TurnTimes, WorkerStats};
