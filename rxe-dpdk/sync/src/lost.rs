//! Memory that is replaced under its users: the mark that tells them, and the number of marks.

use crate::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

/// Whether a mapping was replaced. Set by a signal handler before it replaces the mapping.
#[derive(Debug)]
pub struct LostFlag(AtomicBool);

impl LostFlag {
    #[cfg(not(loom))]
    /// Not lost.
    pub const fn new() -> LostFlag {
        LostFlag(AtomicBool::new(false))
    }

    #[cfg(loom)]
    /// Not lost.
    pub fn new() -> LostFlag {
        LostFlag(AtomicBool::new(false))
    }

    /// Marks the mapping. Returns whether it was not marked before. Call it before the bytes are replaced.
    pub fn set(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Whether the mapping is marked. After an access that met replaced bytes, it is: the fence keeps the access, which need
    /// not be atomic, before the load.
    pub fn is_set(&self) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::SeqCst)
    }
}

impl Default for LostFlag {
    fn default() -> LostFlag {
        LostFlag::new()
    }
}

/// Number of lost mappings.
#[derive(Debug)]
pub struct LostCount(AtomicUsize);

impl LostCount {
    #[cfg(not(loom))]
    /// None.
    pub const fn new() -> LostCount {
        LostCount(AtomicUsize::new(0))
    }

    #[cfg(loom)]
    /// None.
    pub fn new() -> LostCount {
        LostCount(AtomicUsize::new(0))
    }

    /// Counts a mapping that has just been marked.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// The number of lost mappings. A caller that reads `n` sees at least `n` flags as set afterwards.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Default for LostCount {
    fn default() -> LostCount {
        LostCount::new()
    }
}
