//! Counters with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that its owner (one lcore) adds to and anybody may read.
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

/// Declares a struct of [`Counter`]s whose field names are the names that users see.
///
/// The struct gets `iter()`, which yields `(name, value)` in declaration order.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $vis struct $name { $($(#[$fmeta])* pub $field: $crate::counters::Counter,)* }

        impl $name {
            /// Every counter's name and value, in declaration order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($field), self.$field.get()),)*].into_iter()
            }
        }
    };
}
