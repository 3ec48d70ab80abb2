//! The raw pointer to a pool.

use std::ptr::NonNull;

use dpdk_sys::rte_mempool;

/// A pool that has not been freed.
#[derive(Clone, Copy)]
pub(super) struct PoolPtr(pub(super) NonNull<rte_mempool>);

// SAFETY: DPDK's default pools are safe to use from any thread.
unsafe impl Send for PoolPtr {}
// SAFETY: as for Send.
unsafe impl Sync for PoolPtr {}

impl PoolPtr {
    pub(super) fn in_use(self) -> usize {
        // SAFETY: a live pool.
        unsafe { dpdk_sys::rte_mempool_in_use_count(self.0.as_ptr()) as usize }
    }
}
