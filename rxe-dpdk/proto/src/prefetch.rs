//! Prefetching.

// Allowed: a prefetch has no architectural effect, whatever the address.
#![allow(unsafe_code)]

use std::ptr;

/// Cache line size in bytes.
const LINE: usize = 64;

/// Prefetches the cache line at `place`.
#[inline(always)]
fn line(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint without architectural effect, which does not fault; SSE is part of x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// Prefetches the cache lines of `len` bytes at `start`.
#[inline(always)]
pub(crate) fn lines(start: *const u8, len: usize) {
    for offset in (0..len).step_by(LINE) {
        line(start.wrapping_add(offset));
    }
}

/// Prefetches all cache lines of `value`.
#[inline(always)]
pub(crate) fn whole<T>(value: &T) {
    lines(ptr::from_ref(value).cast(), size_of::<T>());
}
