//! The adapter at work: run-to-completion workers on lcores, the control side, and the hand-off between them.
//!
//! [`Runtime`] puts it together. Worker 0 runs on the main lcore and carries the control side (`control`): connection
//! manager, host stack, listen table. Every worker owns an [`Engine`](rxe_proto::transport::Engine) and one instance
//! of each service. They talk by messages (`messages`) and hand frames over by rings (`handoff`). With one lcore
//! in all, the same code runs with both ends in one loop. Between a port and a worker, faults can be made on purpose
//! (`injector`), and frames captured (`capture`).

pub(crate) mod capture;
pub(crate) mod faults;
mod handoff;
mod idle;
pub(crate) mod injector;
mod lane;
mod last;
pub(crate) mod link_watch;
pub(crate) mod orders;
mod port_host;
mod ports;
mod region_files;
pub(crate) mod regions;
mod run;
mod runtime;
mod settings;

pub use capture::{Capture, CaptureError, CaptureStats};
pub use idle::IdlePolicy;
pub use injector::{
    ActiveFault, Direction, FaultAction, FaultMatch, FaultRule, FaultScope, FaultStats, MAX_FAULTS, Probability,
    PsnRange, nak_name,
};
pub use ports::WorkerStats;
pub use runtime::{MAX_WORKERS, Runtime, RuntimeError, StopHandle, Summary};
pub use rxe_service::{ControlStats, LocalPort, Marking, NamedRegion, QpCaps, RegionNames, ServiceStats, Which};
pub use settings::{PortSettings, RegionSettings, RuntimeConfig};
