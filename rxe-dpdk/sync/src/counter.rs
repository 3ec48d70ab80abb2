//! Counters with one writer and any number of readers.

use crate::atomic::{AtomicU64, Ordering};

/// A count that its owner (one lcore) adds to and any thread may read.
///
/// Adding is a plain load and store, not a read-modify-write: there is exactly one writer, so no bus lock is paid
/// for on the data path. A second writer would lose counts.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The count now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
