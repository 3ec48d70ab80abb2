//! The latest of a sequence of values, with its number.

use crate::atomic::{AtomicU64, Ordering};

/// A value that one thread replaces, and the number of replacements.
#[derive(Debug, Default)]
pub struct Latest {
    number: AtomicU64,
    value: AtomicU64,
}

impl Latest {
    /// Sets the next value; returns its number, from 1. For one thread only.
    pub fn set(&self, value: u64) -> u64 {
        self.value.store(value, Ordering::Relaxed);
        let number = self.number.load(Ordering::Relaxed) + 1;
        self.number.store(number, Ordering::Release);
        number
    }

    /// Number of values so far.
    pub fn count(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// A number of values, and the value of that number or a later one; `None` before the first.
    pub fn get(&self) -> Option<(u64, u64)> {
        let number = self.number.load(Ordering::Acquire);
        (number > 0).then(|| (number, self.value.load(Ordering::Relaxed)))
    }
}
