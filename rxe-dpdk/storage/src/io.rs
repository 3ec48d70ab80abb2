//! What all namespaces of a worker share.

use crate::checksum::Scratch;
use crate::ring::Ring;

/// The ring and the scratch space of one worker. [`Backend`](crate::Backend)s get it as an argument.
pub struct Io {
    pub(crate) ring: Option<Ring>,
    pub(crate) scratch: Scratch,
    /// Bytes of memory that may still be zeroed in this turn.
    pub(crate) zero_budget: u64,
}

/// Bytes of memory that are zeroed in a turn: some 0.1 ms.
pub(crate) const ZERO_BUDGET: u64 = 1 << 20;

impl Io {
    pub(crate) fn new(ring: Option<Ring>) -> Io {
        Io { ring, scratch: Scratch::new(), zero_budget: ZERO_BUDGET }
    }

    /// Whether there is a ring, which files and block devices need.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }
}
