//! Hosts an adapter with services on one UDP port: without DPDK, hugepages or privileges.
//!
//! [`Runtime`] has one worker, on the thread that calls [`Runtime::run`]: one engine, one instance of each service, and the
//! control side. What DPDK ports have and this one has too is in [`rxe_adapter`]; of its own it has
//!
//! | module | subject |
//! |---|---|
//! | `ip_host` | what control needs: routes of the kernel, multicast groups, transmission from queue pair 1 |
//! | `tcp` | streams of services as sockets of the kernel |
//! | `worker` | the loop: one recvmmsg and one sendmmsg per burst; sleeps on the descriptors when idle |
//! | `output` | the transmit side, with fault injection |
//! | `report` | reports of the port |

mod clock;
mod error;
mod frame;
mod ip_host;
mod output;
mod report;
mod runtime;
mod summary;
mod tcp;
mod worker;

pub use error::{RunError, RuntimeError};
pub use frame::HeldFrame;
pub use ip_host::ListenError;
pub use output::{Output, PortTx};
pub use report::port;
pub use runtime::Runtime;
pub use summary::Summary;
