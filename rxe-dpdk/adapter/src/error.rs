//! Why an adapter cannot be built.

use rxe_proto::transport::CqError;

use crate::worker::MAX_FAULTS;

/// Why an adapter cannot be built. Each message is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// More fault rules than an injector supports.
    #[error("{0} fault rules are too many: at most {MAX_FAULTS} can be in force")]
    TooManyFaults(usize),
    /// More services than an engine has completion queues.
    #[error("too many services: {0}")]
    TooManyServices(#[from] CqError),
    /// A service cannot be prepared.
    #[error("service {name}: {problem}")]
    Service {
        /// Name of the service.
        name: &'static str,
        /// The problem.
        problem: String,
    },
    /// A region cannot be created.
    #[error("region {name}: {problem}")]
    Region {
        /// Name of the region.
        name: String,
        /// The problem.
        problem: String,
    },
}
