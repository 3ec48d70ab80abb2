//! Asking the processor for memory that is needed soon.

// The one place that may: a hint has no effect that a program could see, whatever the address.
#![allow(unsafe_code)]

use std::ptr;

/// What a processor loads at once.
const LINE: usize = 64;

/// Asks for the cache line at `place`, which is not read.
#[inline(always)]
pub(crate) fn line(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint without architectural effect, which does not fault; SSE is part of x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// Asks for all lines of `value`.
#[inline(always)]
pub(crate) fn whole<T>(value: &T) {
    let start = ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        line(start.wrapping_add(offset));
    }
}
