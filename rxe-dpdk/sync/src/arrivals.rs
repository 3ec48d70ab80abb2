//! A point that threads reach one after the other, and that some wait for all to reach.

use crate::atomic::{AtomicUsize, Ordering};

/// Number of threads that have arrived.
#[derive(Debug, Default)]
pub struct Arrivals(AtomicUsize);

impl Arrivals {
    /// This thread has arrived. Each calls it once.
    pub fn arrive(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Whether `all` have arrived: then their work up to that point is visible.
    pub fn are(&self, all: usize) -> bool {
        self.0.load(Ordering::Acquire) >= all
    }
}
