//! A page that the kernel fills with zeroes in the child of a fork: `_Fork` and `clone` run no handlers.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// The marker, which is 0 in a child that does not know yet that it is one. Null where the kernel has no such pages (before Linux 4.14).
static MARKER: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());
const LENGTH: usize = 4096;

/// Makes the page, unless there is one.
pub fn set() {
    if !MARKER.load(Ordering::Relaxed).is_null() {
        return;
    }
    // SAFETY: a new mapping, which touches no other, and is never unmapped once it is in `MARKER`.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(ptr::null_mut(), LENGTH, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if page == libc::MAP_FAILED {
            return;
        }
        if libc::madvise(page, LENGTH, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, LENGTH);
            return;
        }
        MARKER.store(page.cast(), Ordering::Relaxed);
    }
    set_again();
}

/// This process knows that it is a child.
pub fn set_again() {
    // SAFETY: the pointer is null, or that of a page which stays mapped.
    if let Some(marker) = unsafe { MARKER.load(Ordering::Relaxed).as_ref() } {
        marker.store(1, Ordering::Relaxed);
    }
}

/// Whether this process is a child that does not know it yet.
#[inline]
pub fn is_wiped() -> bool {
    // SAFETY: the pointer is null, or that of a page which stays mapped.
    unsafe { MARKER.load(Ordering::Relaxed).as_ref() }.is_some_and(|marker| marker.load(Ordering::Relaxed) == 0)
}
