//! A RoCEv2 adapter on DPDK ports.
//!
//! [`rxe_proto`], re-exported here, is the protocol and does no IO. This crate is what stands around it:
//!
//! * [`eal`]: DPDK made safe, and the only module that calls it.
//! * [`host`]: what every IP host must answer on a port.
//! * [`worker`]: the run-to-completion loop, the control side and the hand-off between lcores; [`worker::Runtime`] is
//!   where a program starts.
//! * [`output`]: standard output and error, which no lcore may wait for.
//! * [`service`]: what runs on top, behind the [`service::Service`] trait.
//! * [`telemetry`]: sums what all of them count.

pub mod eal;
pub mod host;
pub mod output;
pub mod telemetry;
pub mod worker;

pub use rxe_proto;
pub use rxe_service as service;
