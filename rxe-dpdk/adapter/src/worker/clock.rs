//! The clock of the workers, for threads that are no workers and for what happens rarely.

use std::fmt;
use std::sync::Arc;

use rxe_proto::Instant;

/// Reads the workers' clock from any thread.
#[derive(Clone)]
pub struct SharedClock(Arc<dyn Fn() -> Instant + Send + Sync>);

impl SharedClock {
    /// A clock that `read` reads.
    pub fn new(read: impl Fn() -> Instant + Send + Sync + 'static) -> SharedClock {
        SharedClock(Arc::new(read))
    }

    /// The time now.
    pub fn now(&self) -> Instant {
        (self.0)()
    }
}

impl fmt::Debug for SharedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedClock")
    }
}
