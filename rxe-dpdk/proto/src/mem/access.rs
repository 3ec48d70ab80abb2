//! Access rights of a memory region.

bitflags::bitflags! {
    /// Rights of a region; numbers as in libibverbs' `ibv_access_flags`. Reading by the owner is always allowed.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// The owner's queue pairs may write into it (receives, READ responses, atomic results).
        const LOCAL_WRITE = 1;
        /// Peers may RDMA WRITE. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may use atomics. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses count from zero, whatever start address the registration names.
        const ZERO_BASED = 1 << 5;
        /// Peers may FLUSH with global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// The owner does not rely on write order. Accepted and without effect: copies are in order anyway.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Among the rights that a bind request names, those that a memory window can have. Linux accepts others in such a
    /// request, local write access above all, and grants none of them, as a window has no local key.
    #[inline]
    #[must_use]
    pub const fn of_window(self) -> Access {
        let remote = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
        self.intersection(remote.union(Access::ZERO_BASED))
    }

    /// Whether the combination is legal: remote write and atomic access need local write access.
    #[inline]
    #[must_use]
    pub const fn is_legal(self) -> bool {
        // compliance.md [MEM-LEGAL-ACCESS]: Remote write and atomic access need local write access.
        !self.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC)) || self.contains(Access::LOCAL_WRITE)
    }
}
