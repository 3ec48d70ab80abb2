//! A RoCEv2 adapter on DPDK ports.
//!
//! [`rxe_proto`], re-exported here, is the protocol and does no IO; [`rxe_adapter`] is what an adapter has whatever carries
//! its packets. This crate hosts both, and the services, on DPDK:
//!
//! * [`eal`]: DPDK made safe, and the only module that calls it.
//! * [`host`]: what every IP host must answer on a port.
//! * [`worker`]: the run-to-completion loop, the control side and the hand-off between lcores.
//! * [`service`]: what runs on top, behind the [`service::Service`] trait.
//! * [`counters`]: sums what all of them count.
//! * [`manage`]: inspection, captures and fault rules of a running adapter.
//! * [`runtime`]: builds and runs an adapter; a program starts with [`runtime::Runtime`].
//! * [`output`]: standard output and error, which no lcore may wait for.
//! * [`prelude`]: the names that a service needs, in one `use`.

pub mod eal;
pub mod host;
pub mod prelude;
pub mod runtime;
pub mod worker;

pub use rxe_adapter::{counters, manage, output};
pub use rxe_proto;
pub use rxe_service as service;
