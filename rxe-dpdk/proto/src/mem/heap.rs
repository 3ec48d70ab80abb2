//! Memory from the process' heap.

// Each block says why its pointer is good.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Backing, Memory};

impl Memory {
    /// `len` zeroed bytes of the heap, 64-byte aligned. Ends the process when there is no memory, as `Vec` does;
    /// [`HeapAllocator`] returns an error instead.
    ///
    /// # Panics
    ///
    /// When `len` is beyond `isize::MAX`.
    #[must_use]
    pub fn heap(len: usize) -> Memory {
        match HeapMemory::new(len) {
            Ok(heap) => Memory::new(Arc::new(heap)),
            Err(_) => match HeapMemory::layout(len) {
                Some(layout) => std::alloc::handle_alloc_error(layout),
                None => panic!("capacity overflow"),
            },
        }
    }
}

/// No memory of the asked size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot allocate {len} bytes")]
pub struct AllocError {
    /// Size that was requested, in bytes.
    pub len: usize,
}

/// Hands out zeroed memory, aligned to 64 bytes at least.
pub trait Allocator: Send + Sync {
    /// `len` zeroed bytes.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when there is no room.
    fn allocate(&self, len: usize) -> Result<Memory, AllocError>;

    /// About how many bytes there are for all calls; `usize::MAX` where that is not known.
    fn capacity(&self) -> usize {
        usize::MAX
    }
}

/// Memory from the process' heap: for tests, tools and small control structures.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapAllocator;

impl Allocator for HeapAllocator {
    fn allocate(&self, len: usize) -> Result<Memory, AllocError> {
        Ok(Memory::new(Arc::new(HeapMemory::new(len)?)))
    }
}

/// A zeroed heap allocation.
struct HeapMemory {
    base: NonNull<u8>,
    len: usize,
}

impl HeapMemory {
    /// A cache line, so that atomics are aligned and regions do not share lines.
    const ALIGN: usize = 64;

    /// `None` when `len` is too large for any allocation.
    fn layout(len: usize) -> Option<Layout> {
        // Never of size zero, which the allocator interface forbids.
        Layout::from_size_align(len.max(1), Self::ALIGN).ok()
    }

    fn new(len: usize) -> Result<HeapMemory, AllocError> {
        let layout = Self::layout(len).ok_or(AllocError { len })?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(AllocError { len })?;
        Ok(HeapMemory { base, len })
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len) {
            // SAFETY: `base` came from alloc_zeroed with this layout, and nobody uses it any more: every Memory
            // holds an Arc of its backing.
            unsafe { dealloc(self.base.as_ptr(), layout) };
        }
    }
}

// SAFETY: a raw allocation, not tied to a thread; all access goes through Memory.
unsafe impl Send for HeapMemory {}
// SAFETY: as for Send.
unsafe impl Sync for HeapMemory {}

// SAFETY: base and length never change, the bytes are an initialised allocation that lives as long as the value
// (its size fits in isize by Layout's rule), and no reference to them is ever made.
unsafe impl Backing for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}
