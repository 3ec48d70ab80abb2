//! Why an adapter cannot be built or has ended.

use std::io;
use std::net::IpAddr;

use rxe_adapter::BuildError;
use rxe_proto::wire::ROCE_UDP_PORT;

use super::ip_host::ListenError;
use crate::OpenError;

/// Why an adapter cannot be built. Each message is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// There is not exactly one port with one address.
    #[error("a UDP port has one address: give one")]
    OneAddress,
    /// Another socket has the UDP port.
    #[error(
        "UDP port {ROCE_UDP_PORT} of {0} is in use: another program serves at this address, or the kernel's rdma_rxe is loaded \
         (rmmod rdma_rxe); or choose another address"
    )]
    InUse(IpAddr),
    /// The port cannot be opened.
    #[error(transparent)]
    Open(OpenError),
    /// The port of a service cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// An error that does not depend on the port.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The system has no descriptors left.
    #[error("the TCP streams of {address} cannot be watched: {source}")]
    Streams {
        /// The address of the port.
        address: IpAddr,
        /// The error.
        source: io::Error,
    },
}

impl From<OpenError> for RuntimeError {
    fn from(error: OpenError) -> RuntimeError {
        match error {
            OpenError::InUse(address) => RuntimeError::InUse(address),
            error => RuntimeError::Open(error),
        }
    }
}

/// Why an adapter ended before it was stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A defect of the adapter or of a service.
    #[error("the worker panicked: {0}")]
    WorkerPanicked(String),
}
