//! Pools of packet buffers.

use std::ffi::CString;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use dpdk_sys::{rte_mbuf, rte_mempool};

use super::error::{EalError, Errno};
use super::init::{Eal, EalGuard};
use super::mbuf::{self, Mbuf};
use super::pool_ptr::PoolPtr;

/// Bytes in front of every frame.
pub(super) const HEADROOM: usize = dpdk_sys::RXE_MBUF_HEADROOM as usize;

/// A pool of packet buffers of one size. Clones are the same pool; any thread may use it.
#[derive(Clone)]
pub struct Mempool(Arc<Inner>);

struct Inner {
    pool: PoolPtr,
    frame: usize,
    count: usize,
    eal: Arc<EalGuard>,
}

impl Mempool {
    /// A pool of `count` buffers for frames of up to `frame` bytes each (DPDK's usual 128 bytes of headroom come on
    /// top), with up to `cache` free buffers kept by every lcore, on NUMA node `socket` (-1: any).
    ///
    /// `name` is at most 25 bytes and unique in the process.
    ///
    /// # Errors
    ///
    /// [`EalError::NoMemory`] when it does not fit or DPDK refuses the name or a size.
    pub fn create(
        eal: &Eal,
        name: &str,
        count: usize,
        frame: usize,
        cache: usize,
        socket: i32,
    ) -> Result<Mempool, EalError> {
        Self::with_guard(eal.guard(), name, count, frame, cache, socket)
    }

    pub(super) fn with_guard(
        guard: &Arc<EalGuard>,
        name: &str,
        count: usize,
        frame: usize,
        cache: usize,
        socket: i32,
    ) -> Result<Mempool, EalError> {
        let failed = |errno| EalError::NoMemory { what: format!("{count} buffers of {frame} bytes"), errno };
        let invalid = || failed(Errno(libc::EINVAL));
        let name = CString::new(name).map_err(|_| invalid())?;
        let data_room = frame.checked_add(HEADROOM).and_then(|room| u16::try_from(room).ok()).ok_or_else(invalid)?;
        let size = u32::try_from(count).map_err(|_| invalid())?;
        let cache = u32::try_from(cache).map_err(|_| invalid())?;
        // SAFETY: EAL is initialised; the name is a C string that is copied; DPDK checks the numbers.
        let pool = unsafe { dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), size, cache, 0, data_room, socket) };
        let pool = NonNull::new(pool).ok_or_else(|| failed(Errno::last()))?;
        Ok(Mempool(Arc::new(Inner { pool: PoolPtr(pool), frame, count, eal: Arc::clone(guard) })))
    }

    /// The longest frame that a buffer holds.
    pub fn frame_len(&self) -> usize {
        self.0.frame
    }

    /// Number of buffers of the pool.
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// Number of buffers in use: with the driver, in a burst, ring or stage, or in an [`Mbuf`]. Those in an lcore's
    /// cache are not. Slow: walks all caches; exact while no other thread uses the pool.
    pub fn in_use(&self) -> usize {
        self.0.pool.in_use()
    }

    /// Number of free buffers, those in lcores' caches included. As slow and exact as [`in_use`](Self::in_use).
    pub fn available(&self) -> usize {
        // SAFETY: a live pool.
        unsafe { dpdk_sys::rte_mempool_avail_count(self.as_ptr()) as usize }
    }

    /// A buffer with an empty frame; `None` when the pool is empty.
    pub fn alloc(&self) -> Option<Mbuf> {
        let mut raw = [ptr::null_mut()];
        if !self.alloc_bulk(&mut raw) {
            return None;
        }
        // SAFETY: just allocated for us: one segment, one reference.
        NonNull::new(raw[0]).map(|raw| unsafe { Mbuf::from_raw(raw) })
    }

    pub(super) fn as_ptr(&self) -> *mut rte_mempool {
        self.0.pool.0.as_ptr()
    }

    /// Fills `mbufs` with fresh buffers that belong to the caller: all or none.
    #[inline]
    pub(super) fn alloc_bulk(&self, mbufs: &mut [*mut rte_mbuf]) -> bool {
        // SAFETY: a live pool, and room for as many pointers as we ask for.
        unsafe { dpdk_sys::rxe_pktmbuf_alloc_bulk(self.as_ptr(), mbufs.as_mut_ptr(), mbufs.len() as u32) == 0 }
    }

    /// Gives buffers back, of which some may be null.
    ///
    /// # Safety
    ///
    /// The caller owns them and gives them up.
    pub(super) unsafe fn free(mbufs: &mut [*mut rte_mbuf]) {
        // SAFETY: the caller's contract.
        unsafe { mbuf::free_all(mbufs) };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.pool.in_use() == 0 {
            // SAFETY: no buffer is out, and nobody can take one any more: this was the last handle.
            unsafe { dpdk_sys::rte_mempool_free(self.pool.0.as_ptr()) };
        } else {
            // An Mbuf somewhere outlives its pool. It must find a pool to go back to.
            self.eal.adopt_pool(self.pool);
        }
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mempool({self})")
    }
}

impl fmt::Display for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buffers of {} bytes", self.0.count, self.0.frame)
    }
}
