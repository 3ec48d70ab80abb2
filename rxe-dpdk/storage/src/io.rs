//! What all namespaces of a worker share.

use crate::checksum::Scratch;
use crate::ring::Ring;

/// The ring and the scratch space of one worker. [`Backend`](crate::Backend)s get it as an argument.
pub struct Io {
    pub(crate) ring: Option<Ring>,
    pub(crate) scratch: Scratch,
}

impl Io {
    pub(crate) fn new(ring: Option<Ring>) -> Io {
        Io { ring, scratch: Scratch::new() }
    }

    /// Whether there is a ring, which files and block devices need.
    #[must_use]
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }
}
