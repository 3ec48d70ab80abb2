//! Users of a resource that can be closed while nobody uses it.

use crate::atomic::{AtomicUsize, Ordering};

/// Number of users of a resource, or that it is closed.
#[derive(Debug, Default)]
pub struct UseCount(AtomicUsize);

impl UseCount {
    const CLOSED: usize = usize::MAX;

    /// One more user. False when the resource is closed.
    #[must_use]
    pub fn enter(&self) -> bool {
        let enter = |count| (count != Self::CLOSED).then(|| count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, enter).is_ok()
    }

    /// A user is done: whoever closes the resource sees what it did.
    pub fn leave(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// No one may use the resource from now on. False when it is used, or closed already.
    #[must_use]
    pub fn close(&self) -> bool {
        self.0.compare_exchange(0, Self::CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The resource may be used again: users see what was done while it was closed. Only for the thread that closed it.
    pub fn open(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Whether the resource is closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::CLOSED
    }
}
