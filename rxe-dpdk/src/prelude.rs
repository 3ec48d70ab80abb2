//! The imports of a program with services on DPDK ports: `use rxe_dpdk::prelude::*;`.
//!
//! The verbs and the service traits of [`rxe_service::prelude`], and the parts that an adapter is built from.

pub use rxe_service::prelude::*;

pub use crate::eal::Eal;
pub use crate::runtime::{PortSettings, RegionSettings, Runtime, RuntimeConfig, StopHandle};
pub use rxe_proto::wire::Cidr;
