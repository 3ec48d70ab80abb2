//! One packet buffer.

use std::fmt;
use std::ptr::{self, NonNull};
use std::slice;

use dpdk_sys::{rte_mbuf, rxe_mbuf};

/// An owned packet buffer, given back to its pool on drop.
///
/// For the few packets that travel alone (to another lcore, to the host stack): bursts are freed together.
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: the value is the buffer's only owner, and pools may be freed to from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes over the reference to `raw`.
    ///
    /// # Safety
    ///
    /// `raw` is a live mbuf of one segment, of which the caller gives up the only reference.
    pub(super) unsafe fn from_raw(raw: NonNull<rte_mbuf>) -> Mbuf {
        Mbuf(raw)
    }

    /// Gives the reference to the caller, who must free the mbuf or pass it on.
    pub(super) fn into_raw(self) -> NonNull<rte_mbuf> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    /// The frame.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: a live, owned mbuf; the slice borrows self.
        unsafe { data(self.0.as_ptr()) }
    }

    /// The frame, to write.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let raw = self.0.as_ptr();
        // SAFETY: a live mbuf with one reference, ours, which is borrowed mutably: nobody else sees the bytes.
        unsafe { slice::from_raw_parts_mut(data_ptr(raw), len(raw)) }
    }

    /// The number of the port that the frame came in by.
    #[inline]
    pub fn port(&self) -> u16 {
        // SAFETY: a live, owned mbuf.
        unsafe { (*view(self.0.as_ptr())).port }
    }

    /// Says that the frame came in by `port`.
    pub(super) fn set_port(&mut self, port: u16) {
        // SAFETY: a live, owned mbuf.
        unsafe { (*view(self.0.as_ptr())).port = port };
    }

    /// Changes the frame's length to `len`, whatever the bytes behind the old end are. `false` (and no change) when
    /// the buffer is too small.
    pub fn resize(&mut self, len: usize) -> bool {
        let raw = self.0.as_ptr();
        // SAFETY: a live, owned mbuf; the new end is checked against the buffer.
        unsafe {
            let fits = len <= room(raw);
            if fits {
                set_len(raw, len as u16);
            }
            fits
        }
    }

    /// A copy of the frame, with the same port number, in a fresh buffer of the same pool; `None` when that is empty.
    pub fn try_copy(&self) -> Option<Mbuf> {
        let from = self.0.as_ptr();
        let mut raw = [ptr::null_mut()];
        // SAFETY: a live, owned mbuf, whose pool lives as long as any of its mbufs; room for the one pointer asked for.
        let failed = unsafe { dpdk_sys::rxe_pktmbuf_alloc_bulk((*view(from)).pool, raw.as_mut_ptr(), 1) } != 0;
        if failed {
            return None;
        }
        // SAFETY: just allocated for us: one segment, one reference.
        let mut copy = unsafe { Mbuf::from_raw(NonNull::new(raw[0])?) };
        if !copy.resize(self.data().len()) {
            return None;
        }
        copy.data_mut().copy_from_slice(self.data());
        // SAFETY: both are live mbufs of ours.
        unsafe { (*view(copy.0.as_ptr())).port = (*view(from)).port };
        Some(copy)
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: gives up the only reference.
        unsafe { dpdk_sys::rxe_pktmbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mbuf({} bytes)", self.data().len())
    }
}

// Fields of live mbufs. Every function wants `raw` to be a live mbuf that the caller owns.

/// The fields under their stable names.
#[inline]
pub(super) fn view(raw: *mut rte_mbuf) -> *mut rxe_mbuf {
    raw.cast()
}

/// # Safety
///
/// `raw` is a live mbuf that the caller owns.
#[inline]
pub(super) unsafe fn data_ptr(raw: *mut rte_mbuf) -> *mut u8 {
    // SAFETY: the caller's contract; the data begins inside of the buffer.
    unsafe { (*view(raw)).buf_addr.cast::<u8>().add(usize::from((*view(raw)).data_off)) }
}

/// # Safety
///
/// `raw` is a live mbuf that the caller owns.
#[inline]
pub(super) unsafe fn len(raw: *mut rte_mbuf) -> usize {
    // SAFETY: the caller's contract.
    usize::from(unsafe { (*view(raw)).data_len })
}

/// The longest frame that fits.
///
/// # Safety
///
/// `raw` is a live mbuf that the caller owns.
#[inline]
pub(super) unsafe fn room(raw: *mut rte_mbuf) -> usize {
    // SAFETY: the caller's contract.
    usize::from(unsafe { (*view(raw)).buf_len.saturating_sub((*view(raw)).data_off) })
}

/// # Safety
///
/// `raw` is a live mbuf that the caller owns, with room for `len` bytes.
#[inline]
pub(super) unsafe fn set_len(raw: *mut rte_mbuf, len: u16) {
    // SAFETY: the caller's contract.
    unsafe {
        (*view(raw)).data_len = len;
        (*view(raw)).pkt_len = u32::from(len);
    }
}

/// The frame of a one-segment mbuf.
///
/// # Safety
///
/// `raw` is a live mbuf whose owner is borrowed for `'a`.
#[inline]
pub(super) unsafe fn data<'a>(raw: *mut rte_mbuf) -> &'a [u8] {
    // SAFETY: the caller's contract: data_len bytes from the data pointer lie in the buffer. Pool memory is
    // initialised from the start: the kernel hands it out zeroed.
    unsafe { slice::from_raw_parts(data_ptr(raw), len(raw)) }
}

/// Prefetches the first bytes of the mbuf's data.
///
/// # Safety
///
/// `raw` is a live mbuf that the caller owns.
#[inline]
pub(super) unsafe fn prefetch_data(raw: *mut rte_mbuf) {
    // SAFETY: the caller's contract; a prefetch has no effect on memory and cannot fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(data_ptr(raw).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = raw;
}

/// Prefetches, for writing, the cache lines of a short frame: another core has read them since they were last written
/// here, and every store would wait for ownership.
#[inline]
pub(super) unsafe fn prefetch_for_write(raw: *mut rte_mbuf) {
    // SAFETY: the caller's contract; a prefetch has no effect on memory and cannot fault. As assembler, because the
    // compiler makes a plain prefetch of a hint to write unless it may use PREFETCHW, which all processors of this
    // architecture since 2014 know and older ones take for a NOP.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        let data = data_ptr(raw);
        std::arch::asm!(
            "prefetchw [{data}]",
            "prefetchw [{data} + 64]",
            "prefetchw [{data} + 128]",
            data = in(reg) data,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = raw;
}

/// Frees `mbufs`, of which some may be null.
///
/// # Safety
///
/// The caller owns those that are not null and gives them up.
pub(super) unsafe fn free_all(mbufs: &mut [*mut rte_mbuf]) {
    if !mbufs.is_empty() {
        // SAFETY: the caller's contract; DPDK skips null.
        unsafe { dpdk_sys::rte_pktmbuf_free_bulk(mbufs.as_mut_ptr(), mbufs.len() as u32) };
        mbufs.fill(ptr::null_mut());
    }
}
