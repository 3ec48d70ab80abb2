//! Pages of this process that can be unmapped and protected.

#![allow(unsafe_code)]

use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::libc::c_void;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

pub struct Pages {
    start: NonNull<c_void>,
    len: usize,
}

impl Pages {
    pub fn new(len: usize) -> Pages {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let size = NonZeroUsize::new(len).unwrap();
        // SAFETY: a new mapping, which touches no other.
        let start = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE) }.unwrap();
        Pages { start, len }
    }

    pub fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Nobody may access a page any more, of 4096 bytes, at `offset`.
    pub fn close_page(&self, offset: usize) {
        assert!(offset.is_multiple_of(4096) && offset + 4096 <= self.len);
        // SAFETY: as below.
        unsafe { mprotect(self.start.byte_add(offset), 4096, ProtFlags::PROT_NONE) }.unwrap();
    }

    /// Nobody may access them any more. Not unmapped, as another thread of the tests could map the same addresses.
    pub fn close(&self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it.
        unsafe { mprotect(self.start, self.len, ProtFlags::PROT_NONE) }.unwrap();
    }

    /// They are again as they were made.
    pub fn reopen(&self) {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: as above.
        unsafe { mprotect(self.start, self.len, protection) }.unwrap();
    }

    pub fn make_read_only(&self) {
        // SAFETY: as above.
        unsafe { mprotect(self.start, self.len, ProtFlags::PROT_READ) }.unwrap();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { munmap(self.start, self.len) }.unwrap();
    }
}
