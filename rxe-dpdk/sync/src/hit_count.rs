//! Hits of a rule, of which there may be a limited number.

use crate::atomic::{AtomicU64, Ordering};

/// How often a rule was applied. Any thread may count.
///
/// A thread that has counted a match in a [`Counter`](crate::Counter) of its own before, and reads the hits before all such
/// counters, never sees more hits than matches.
#[derive(Debug, Default)]
pub struct HitCount(AtomicU64);

impl HitCount {
    /// Counts a hit, unless there are `most`. Returns whether it counted.
    #[must_use]
    pub fn claim(&self, most: Option<u64>) -> bool {
        let more = |hits: u64| most.is_none_or(|most| hits < most).then_some(hits + 1);
        // Release: a reader of the hit sees its match.
        self.0.fetch_update(Ordering::Release, Ordering::Relaxed, more).is_ok()
    }

    /// Whether there are `most` hits.
    pub fn is_used_up(&self, most: Option<u64>) -> bool {
        most.is_some_and(|most| self.0.load(Ordering::Relaxed) >= most)
    }

    /// The hits.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
