//! Management of a running adapter, from any thread but the lcores: inspection, captures, fault rules.
//!
//! Nothing here runs on an lcore or calls DPDK. Counters are read where they are; anything else is a question or an order
//! to a worker, which answers between two turns.

pub(crate) mod capture;
pub(crate) mod faults;
mod inspector;
mod key_names;
pub(crate) mod reports;

pub use capture::{Capture, CaptureError};
pub use inspector::{InspectError, Inspector};
pub(crate) use inspector::{Parts, RegionMemory};
pub(crate) use key_names::RegionKeys;
