//! Matches of a rule and its hits, of which there may be a limited number.

use crate::atomic::{AtomicU64, Ordering};

/// How often a rule matched, and was applied. Any thread may count; a reader never sees more hits than matches.
#[derive(Debug, Default)]
pub struct HitCount {
    matched: AtomicU64,
    hits: AtomicU64,
}

impl HitCount {
    /// Counts a match. [`claim`](Self::claim) may follow.
    pub fn matched(&self) {
        self.matched.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a hit of a match counted before, unless there are `most`. Returns whether it counted.
    #[must_use]
    pub fn claim(&self, most: Option<u64>) -> bool {
        let more = |hits: u64| most.is_none_or(|most| hits < most).then_some(hits + 1);
        // Release: a reader of the hit sees its match.
        self.hits.fetch_update(Ordering::Release, Ordering::Relaxed, more).is_ok()
    }

    /// Whether there are `most` hits.
    pub fn is_used_up(&self, most: Option<u64>) -> bool {
        most.is_some_and(|most| self.hits.load(Ordering::Relaxed) >= most)
    }

    /// Matches and hits.
    pub fn get(&self) -> (u64, u64) {
        // In this order: the matches of all these hits are counted.
        let hits = self.hits.load(Ordering::Acquire);
        (self.matched.load(Ordering::Relaxed), hits)
    }
}
