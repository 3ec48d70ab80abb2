//! A registered region: its key, addresses and bytes.

use std::fmt;

use super::{Access, Memory};

/// A protection domain of one [`KeyTable`](super::KeyTable). Means nothing in another table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PdId(pub(super) u32);

impl PdId {
    /// The number, for display.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pd{}", self.0)
    }
}

/// A registered region: a handle that keeps the bytes alive, not the registration. Dropping it changes nothing; the
/// key works until [`KeyTable::deregister`](super::KeyTable::deregister).
#[derive(Clone, Debug)]
pub struct MemoryRegion {
    pub(super) key: u32,
    pub(super) pd: PdId,
    pub(super) access: Access,
    pub(super) iova: u64,
    pub(super) memory: Memory,
}

impl MemoryRegion {
    /// The local key. Equal to [`rkey`](Self::rkey).
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// The remote key, the one to tell a peer.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// Address of the first byte as work requests and peers give it (the IO virtual address, not a pointer).
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.iova
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The rights it was registered with.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its protection domain, in the table that returned this handle.
    #[must_use]
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// The bytes.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}
