//! Up to 32 received packets.

use std::fmt;
use std::ptr::{self, NonNull};

use dpdk_sys::rte_mbuf;

use super::mbuf::{self, Mbuf};
use super::mempool::Mempool;

/// Maximum number of packets in a burst: enough to spread the cost of a call into the driver, few enough
/// that their headers stay in the first-level cache.
pub const BURST: usize = 32;

/// Up to [`BURST`] received packets, each in one segment, freed together by [`clear`](Self::clear) or on drop.
///
/// A [`RxQueue`](super::RxQueue) and a [`MbufReceiver`](super::MbufReceiver) fill it; an
/// [`MbufSender`](super::MbufSender) empties it.
pub struct RxBurst {
    /// `..len` are owned, or null where one was taken.
    mbufs: [*mut rte_mbuf; BURST],
    len: usize,
}

// SAFETY: the value is the only owner of its mbufs, and pools may be freed to from any thread.
unsafe impl Send for RxBurst {}

impl RxBurst {
    /// An empty burst.
    pub const fn new() -> RxBurst {
        RxBurst { mbufs: [ptr::null_mut(); BURST], len: 0 }
    }

    /// Number of packets, taken ones included: valid indices are below.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no more can be pushed.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == BURST
    }

    /// The frame of packet `i`; empty when it was taken or there is no such packet.
    #[inline]
    pub fn data(&self, i: usize) -> &[u8] {
        // SAFETY: an owned mbuf of one segment; the slice borrows self.
        self.get(i).map_or(&[], |raw| unsafe { mbuf::data(raw) })
    }

    /// The frame of packet `i`, for writing; empty when it was taken or there is no such packet.
    #[inline]
    pub fn data_mut(&mut self, i: usize) -> &mut [u8] {
        let Some(raw) = self.get(i) else { return &mut [] };
        // SAFETY: an owned mbuf of one segment with one reference, borrowed mutably with self.
        unsafe { std::slice::from_raw_parts_mut(mbuf::data_ptr(raw), mbuf::len(raw)) }
    }

    /// The number of the port that packet `i` came in by.
    #[inline]
    pub fn port(&self, i: usize) -> u16 {
        // SAFETY: an owned mbuf.
        self.get(i).map_or(u16::MAX, |raw| unsafe { (*mbuf::view(raw)).port })
    }

    /// Prefetches the first bytes of frame `i`.
    #[inline]
    pub fn prefetch(&self, i: usize) {
        if let Some(raw) = self.get(i) {
            // SAFETY: an owned mbuf.
            unsafe { mbuf::prefetch_data(raw) };
        }
    }

    /// Takes packet `i` out; its index stays and is empty from now on.
    #[inline]
    pub fn take(&mut self, i: usize) -> Option<Mbuf> {
        let slot = self.mbufs.get_mut(..self.len)?.get_mut(i)?;
        let raw = NonNull::new(std::mem::replace(slot, ptr::null_mut()))?;
        // SAFETY: an owned mbuf of one segment, removed from self.
        Some(unsafe { Mbuf::from_raw(raw) })
    }

    /// A copy of packet `i` in a buffer from `pool`, which is of any other's size or larger; `None` when the pool is empty,
    /// its buffers are too small, or there is no such packet.
    pub fn copy(&self, i: usize, pool: &Mempool) -> Option<Mbuf> {
        let original = self.get(i)?;
        let mut copy = pool.alloc()?;
        let frame = self.data(i);
        if !copy.resize(frame.len()) {
            return None;
        }
        copy.data_mut().copy_from_slice(frame);
        // SAFETY: an owned mbuf.
        copy.set_port(unsafe { (*mbuf::view(original)).port });
        Some(copy)
    }

    /// Appends a packet; gives it back when the burst is full.
    #[inline]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        let Some(slot) = self.mbufs.get_mut(self.len) else {
            return Err(mbuf);
        };
        *slot = mbuf.into_raw().as_ptr();
        self.len += 1;
        Ok(())
    }

    /// Frees what is left.
    #[inline]
    pub fn clear(&mut self) {
        let len = std::mem::take(&mut self.len);
        // SAFETY: all owned or null, and forgotten from here on.
        unsafe { mbuf::free_all(&mut self.mbufs[..len]) };
    }

    #[inline]
    fn get(&self, i: usize) -> Option<*mut rte_mbuf> {
        self.mbufs[..self.len].get(i).copied().filter(|raw| !raw.is_null())
    }

    /// Lets `fill` put mbufs into the empty burst; it returns how many.
    ///
    /// # Safety
    ///
    /// `fill(pointer, BURST)` writes that many owned one-segment mbufs from the pointer on, and keeps none.
    #[inline]
    pub(super) unsafe fn fill(&mut self, fill: impl FnOnce(*mut *mut rte_mbuf, usize) -> usize) -> usize {
        self.clear();
        self.len = fill(self.mbufs.as_mut_ptr(), BURST).min(BURST);
        self.len
    }

    /// Lets `drain` take mbufs from the front; it returns how many. The rest stays.
    ///
    /// # Safety
    ///
    /// `drain(pointer, n)` takes over that many mbufs from the pointer on, of the n that are there, none null.
    #[inline]
    pub(super) unsafe fn drain(&mut self, drain: impl FnOnce(*mut *mut rte_mbuf, usize) -> usize) -> usize {
        self.close_gaps();
        let gone = drain(self.mbufs.as_mut_ptr(), self.len).min(self.len);
        self.mbufs.copy_within(gone..self.len, 0);
        self.len -= gone;
        gone
    }

    /// Closes the gaps that taken packets left.
    fn close_gaps(&mut self) {
        let mut kept = 0;
        for i in 0..self.len {
            let raw = self.mbufs[i];
            if !raw.is_null() {
                self.mbufs[kept] = raw;
                kept += 1;
            }
        }
        self.len = kept;
    }
}

impl Default for RxBurst {
    fn default() -> RxBurst {
        RxBurst::new()
    }
}

impl Drop for RxBurst {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for RxBurst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RxBurst({} packets)", self.len)
    }
}
