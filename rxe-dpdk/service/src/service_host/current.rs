//! The service whose method runs now, for a thread that watches the worker.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Written by one worker, by relaxed stores. It has cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CurrentService(AtomicUsize);

impl CurrentService {
    /// The number of the service; `None` between calls.
    pub fn get(&self) -> Option<usize> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }

    #[inline]
    pub(super) fn enter(&self, service: usize) {
        self.0.store(service + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn leave(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
