//! Management of a running adapter, from any thread but the lcores: inspection, captures, fault rules, named regions, addresses,
//! events.
//!
//! Nothing here runs on an lcore or calls DPDK. Counters are read where they are; anything else is a question or an order
//! to a worker, which answers between two turns.

pub mod capture;
mod events;
mod fault_list;
mod inspector;
mod key_names;
mod port_list;
mod regions;
mod reports;

pub use capture::{Capture, CaptureError};
pub use events::EventParts;
pub use events::{EventStats, Events, Subscription, TooManySubscribers};
pub use fault_list::FaultList;
pub use inspector::Parts;
pub use inspector::{AddressError, InspectError, Inspector, RegionError, ServiceError};
pub use port_list::{PortEntry, PortList};
pub use regions::RegionSettings;
pub use regions::{RegionList, RegionSource, SharedRegions};
