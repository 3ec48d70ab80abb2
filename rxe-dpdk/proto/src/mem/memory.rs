//! Bytes that peers may change at any time.
//!
//! # Races
//!
//! Remote peers, other processes that map the same file and other lcores read and write registered memory whenever
//! they like; no lock of ours could stop them. So [`Memory`] never lends a `&[u8]` or `&mut [u8]`, whose meaning
//! includes that nobody else writes. It offers
//!
//! * copies through raw pointers. A copy that races with a writer returns some mixture of old and new bytes, as it
//!   does on any RDMA device. What was read is the caller's own afterwards: a compiler fence behind each copy keeps
//!   the optimiser from reading the shared bytes a second time, so checking a copy and then using it is safe.
//! * 64-bit atomics, sequentially consistent, atomic against every other atomic of this machine on the same bytes.
//!
//! Order between two copies is program order on the same lcore. Another lcore or process that learns through a
//! [`Memory::store`] (or any other atomic) that data is there sees the data copied before it.
//!
//! # Bytes that go away
//!
//! The bytes of a file are gone when another process cuts it short. The backing then sees to it that an access ends all
//! the same, and sets its [flag](Backing::lost). Every access looks at the flag when it is done: what it has read, or
//! where it has written to, is worth nothing once the flag is set, so it ends in an error then.

// Raw pointers to shared memory are the point of this file; each block says why its pointer is good.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use rxe_sync::LostFlag;

use crate::prefetch;

/// Where bytes live: the heap, hugepages, a shared file.
///
/// # Safety
///
/// While the value lives, `base()` and `len()` always answer the same; the `len()` bytes from `base()` are mapped,
/// readable, writable and initialised, in one allocation of at most `isize::MAX` bytes; and nobody holds a Rust
/// reference to any of them (other owners use raw pointers or atomics, as this file does).
pub unsafe trait Backing: Send + Sync + 'static {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The flag that is set, for ever, when some of the bytes have gone; always the same one. An access that meets such bytes
    /// ends, with any result, and finds it set. `None` where bytes cannot go.
    fn lost(&self) -> Option<&LostFlag> {
        None
    }
}

/// An access outside of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("access outside of the memory")]
pub struct OutOfBounds;

/// Why bytes were not copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// They do not all lie inside; nothing was copied.
    #[error("access outside of the memory")]
    OutOfBounds,
    /// Some of the memory has gone: what was read or written means nothing.
    #[error("the memory is lost")]
    Lost,
}

impl From<OutOfBounds> for AccessError {
    fn from(OutOfBounds: OutOfBounds) -> AccessError {
        AccessError::OutOfBounds
    }
}

/// Why an atomic access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AtomicError {
    /// The 8 bytes do not lie inside.
    #[error("atomic access outside of the memory")]
    OutOfBounds,
    /// The address is not a multiple of 8.
    #[error("atomic access that is not 8-byte aligned")]
    Misaligned,
    /// Some of the memory has gone: what was read or written means nothing.
    #[error("the memory is lost")]
    Lost,
}

impl From<OutOfBounds> for AtomicError {
    fn from(OutOfBounds: OutOfBounds) -> AtomicError {
        AtomicError::OutOfBounds
    }
}

/// A span of a [`Backing`], which it keeps alive. Cloning is cheap and shares the bytes.
///
/// Peers may write the bytes at any time; see the notes on races at the top of this file: copies may be torn,
/// atomics are not.
#[derive(Clone)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// The backing's flag, at hand so that memory that cannot be lost costs one comparison.
    lost: Option<NonNull<LostFlag>>,
    owner: Arc<Owner>,
}

/// Owner of the bytes, behind one thin pointer: four words are what a key table has room for.
struct Owner {
    /// Held, not looked at.
    _backing: Arc<dyn Backing>,
}

// SAFETY: the pointers lead into the backing, which is Send + Sync and outlives them; every access through them is a
// raw copy or an atomic, for which concurrent use from several threads is the documented contract.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    /// All bytes of `backing`.
    #[must_use]
    pub fn new(backing: Arc<dyn Backing>) -> Memory {
        let (base, len, lost) = (backing.base(), backing.len(), backing.lost().map(NonNull::from));
        Memory { base, len, lost, owner: Arc::new(Owner { _backing: backing }) }
    }

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

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are in this process: for handing them to a device or a system call. Reading or writing through
    /// it is up to the user's own proof.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The `len` bytes at `offset`, if they lie inside.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Memory> {
        let start = self.at(offset, len).ok()?;
        Some(Memory { base: NonNull::new(start)?, len, lost: self.lost, owner: Arc::clone(&self.owner) })
    }

    /// Whether some of the bytes have gone, for ever.
    #[inline(always)]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self.lost {
            None => false,
            // SAFETY: the flag is part of what `owner` keeps alive, and an atomic.
            Some(flag) => is_set(unsafe { flag.as_ref() }),
        }
    }

    /// Copies `dst.len()` bytes from `offset` into `dst`.
    ///
    /// # Errors
    ///
    /// [`AccessError`] when they do not lie inside, or are lost.
    #[inline(always)]
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        let src = self.at(offset, dst.len())?;
        // SAFETY: `at` proved that the source lies inside live memory; `dst` is a unique reference, to which no
        // backing's bytes may belong (contract of Backing), so the two do not overlap.
        unsafe { src.copy_to_nonoverlapping(dst.as_mut_ptr(), dst.len()) };
        compiler_fence(Ordering::SeqCst);
        self.done()
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    ///
    /// [`AccessError`] when it does not fit, or the memory is lost.
    #[inline(always)]
    pub fn write(&self, offset: usize, src: &[u8]) -> Result<(), AccessError> {
        let dst = self.at(offset, src.len())?;
        // SAFETY: `at` proved that the destination lies inside live, writable memory; `src` is a reference, to which
        // no backing's bytes may belong (contract of Backing), so the two do not overlap.
        unsafe { dst.copy_from_nonoverlapping(src.as_ptr(), src.len()) };
        compiler_fence(Ordering::SeqCst);
        self.done()
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Errors
    ///
    /// [`AccessError`] when they do not lie inside, or are lost.
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), AccessError> {
        let dst = self.at(offset, len)?;
        // SAFETY: `at` proved that the bytes lie inside live, writable memory.
        unsafe { dst.write_bytes(byte, len) };
        compiler_fence(Ordering::SeqCst);
        self.done()
    }

    /// The 8 bytes at `offset` as a number of this host, atomically.
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or when the memory is lost.
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u64, AtomicError> {
        let value = self.atomic(offset)?.load(Ordering::SeqCst);
        self.kept(value)
    }

    /// Replaces the 8 bytes at `offset` by a number of this host, atomically.
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, and nothing changes then; or when the memory is lost.
    #[inline]
    pub fn store(&self, offset: usize, value: u64) -> Result<(), AtomicError> {
        self.atomic(offset)?.store(value, Ordering::SeqCst);
        self.kept(())
    }

    /// Adds `add` modulo 2^64 to the number at `offset`, atomically, and returns what was there.
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, and nothing changes then; or when the memory is lost.
    #[inline]
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, AtomicError> {
        let found = self.atomic(offset)?.fetch_add(add, Ordering::SeqCst);
        self.kept(found)
    }

    /// Replaces the number at `offset` by `swap` if it equals `compare`, atomically, and returns what was there.
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, and nothing changes then; or when the memory is lost.
    #[inline]
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, AtomicError> {
        let result = self.atomic(offset)?.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        self.kept(result.unwrap_or_else(|found| found))
    }

    /// Prefetches the cache line at `offset`. No effect out of bounds.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        if let Ok(place) = self.at(offset, 1) {
            prefetch::line(place);
        }
    }

    /// How a copy ends that has been made.
    #[inline(always)]
    fn done(&self) -> Result<(), AccessError> {
        if self.is_lost() { Err(AccessError::Lost) } else { Ok(()) }
    }

    /// How an atomic ends that has been made.
    #[inline(always)]
    fn kept<T>(&self, value: T) -> Result<T, AtomicError> {
        compiler_fence(Ordering::SeqCst);
        if self.is_lost() { Err(AtomicError::Lost) } else { Ok(value) }
    }

    /// The address of `len` bytes at `offset`.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        if offset <= self.len && len <= self.len - offset {
            // SAFETY: `offset <= self.len`, so the result is inside the allocation or one past its end.
            Ok(unsafe { self.base.as_ptr().add(offset) })
        } else {
            Err(OutOfBounds)
        }
    }

    /// The 8 bytes at `offset` as an atomic.
    #[inline]
    fn atomic(&self, offset: usize) -> Result<&AtomicU64, AtomicError> {
        let pointer = self.at(offset, 8)?.cast::<u64>();
        if !pointer.is_aligned() {
            return Err(AtomicError::Misaligned);
        }
        // SAFETY: in bounds of memory that `self.owner` keeps alive for the returned lifetime, aligned, and read
        // and written as an atomic only. A peer's plain copy that races with it is the documented race of this
        // file: the copy may be torn, the atomic is not.
        Ok(unsafe { AtomicU64::from_ptr(pointer) })
    }
}

/// Looks at the flag of memory that can be lost.
#[cold]
#[inline(never)]
fn is_set(flag: &LostFlag) -> bool {
    flag.is_set()
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes at {:p})", self.len, self.base)
    }
}

/// No memory of the asked size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot allocate {len} bytes")]
pub struct AllocError {
    /// How much was asked for.
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
