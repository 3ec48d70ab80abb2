//! The parts of a worker that do not depend on what carries its packets: dispatch, fault injectors, recorders, orders of
//! management, and the watchdog.
//!
//! A host of the adapter owns the loop: it fetches bursts, has them [dispatched](dispatch), transmits, and applies the
//! [`orders`] between two turns.

mod apply;
pub mod burst;
pub mod capture;
pub mod clock;
pub mod dispatch;
pub mod host;
pub mod identity;
mod idle;
pub mod injector;
pub mod lost_regions;
pub mod orders;
pub mod progress;
mod stats;
pub mod watchdog;

pub use capture::CaptureStats;
pub use idle::{IdlePolicy, Idler};
pub use injector::{
    ActiveFault, Direction, FaultAction, FaultMatch, FaultRule, FaultScope, FaultStats, MAX_FAULTS, Probability,
    PsnRange, nak_name,
};
pub use stats::{TurnTimes, WorkerStats};
