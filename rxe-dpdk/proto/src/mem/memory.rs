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
//!
//! Memory that a program may unmap or protect at any time is [foreign](ForeignMemory). It is never accessed through a
//! pointer, but by its owner's methods, which return an error. Such an error is no verdict on the next access: the
//! program may map the pages again.

// Raw pointers to shared memory are the point of this file; each block says why its pointer is good.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use rxe_sync::LostFlag;

use super::access_error::{AccessError, AtomicError, OutOfBounds};
use super::foreign::{Fault, ForeignMemory, Part, read_u64};
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

/// A span of a [`Backing`] or of [`ForeignMemory`], which it keeps alive. Cloning is cheap and shares the bytes.
///
/// Peers may write the bytes at any time; see the notes on races at the top of this file: copies may be torn,
/// atomics are not.
#[derive(Clone)]
pub struct Memory {
    /// Good for raw access only if it leads into a backing.
    base: *mut u8,
    len: usize,
    /// Whether the bytes can be lost or are foreign. At hand so that all other memory costs one comparison.
    guarded: bool,
    owner: Arc<Owner>,
}

/// Owner of the bytes, behind one thin pointer: four words are what a key table has room for.
enum Owner {
    Backing {
        /// Held, not looked at.
        _backing: Arc<dyn Backing>,
        lost: Option<NonNull<LostFlag>>,
    },
    Foreign(Arc<dyn ForeignMemory>),
}

// SAFETY: the pointer leads to an atomic in the backing, which is Send + Sync and which the same value keeps alive.
unsafe impl Send for Owner {}
// SAFETY: as for Send.
unsafe impl Sync for Owner {}

// SAFETY: the pointers lead into the backing, which is Send + Sync and outlives them; every access through them is a
// raw copy or an atomic, for which concurrent use from several threads is the documented contract. Pointers to foreign
// memory, which is Send + Sync too, are never used for an access.
unsafe impl Send for Memory {}
// SAFETY: as for Send.
unsafe impl Sync for Memory {}

impl Memory {
    /// All bytes of `backing`.
    #[must_use]
    pub fn new(backing: Arc<dyn Backing>) -> Memory {
        let (base, len, lost) = (backing.base(), backing.len(), backing.lost().map(NonNull::from));
        let owner = Arc::new(Owner::Backing { _backing: backing, lost });
        Memory { base: base.as_ptr(), len, guarded: lost.is_some(), owner }
    }

    /// All bytes of `memory`, which is not accessed now.
    #[must_use]
    pub fn foreign(memory: Arc<dyn ForeignMemory>) -> Memory {
        let (base, len) = (std::ptr::without_provenance_mut(memory.addr()), memory.len());
        Memory { base, len, guarded: true, owner: Arc::new(Owner::Foreign(memory)) }
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
    /// it is up to the user's own proof. Foreign bytes may not be mapped.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base
    }

    /// The `len` bytes at `offset`, if they lie inside.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Memory> {
        self.check(offset, len).ok()?;
        let (guarded, owner) = (self.guarded, Arc::clone(&self.owner));
        Some(Memory { base: self.base.wrapping_add(offset), len, guarded, owner })
    }

    /// Whether some of the bytes have gone, for ever.
    #[inline(always)]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guarded && self.owner.is_lost()
    }

    /// Copies `dst.len()` bytes from `offset` into `dst`.
    ///
    /// # Errors
    ///
    /// [`AccessError`] when they do not lie inside, are lost, or cannot be read.
    #[inline(always)]
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, dst.len())?;
        if self.guarded {
            return self.read_guarded(offset, dst);
        }
        // SAFETY: in bounds, and memory that is not guarded is a backing's.
        unsafe { self.copy_from(offset, dst) };
        Ok(())
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    ///
    /// [`AccessError`] when it does not fit, or the memory is lost or cannot be written.
    #[inline(always)]
    pub fn write(&self, offset: usize, src: &[u8]) -> Result<(), AccessError> {
        self.check(offset, src.len())?;
        if self.guarded {
            return self.write_guarded(offset, src);
        }
        // SAFETY: in bounds, and memory that is not guarded is a backing's.
        unsafe { self.copy_to(offset, src) };
        Ok(())
    }

    /// As [`write()`](Self::write), of a part of a message: foreign memory may report its error with a later part.
    ///
    /// # Errors
    ///
    /// As for [`write()`](Self::write).
    #[inline(always)]
    pub fn write_part(&self, offset: usize, src: &[u8], part: impl FnOnce() -> Part) -> Result<(), AccessError> {
        self.check(offset, src.len())?;
        if self.guarded {
            return self.write_part_guarded(offset, src, part());
        }
        // SAFETY: in bounds, and memory that is not guarded is a backing's.
        unsafe { self.copy_to(offset, src) };
        Ok(())
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Errors
    ///
    /// [`AccessError`] when they do not lie inside, are lost, or cannot be written.
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), AccessError> {
        self.check(offset, len)?;
        if let Some((memory, start)) = self.as_foreign() {
            return Ok(ordered(|| memory.fill(start.wrapping_add(offset), len, byte))?);
        }
        // SAFETY: in bounds of a backing, whose bytes are live and writable.
        unsafe { self.base.add(offset).write_bytes(byte, len) };
        compiler_fence(Ordering::SeqCst);
        self.done()
    }

    /// Reads one byte of each page of `page` bytes that the memory has a part of: whether all of it could be read just
    /// now. To know that at registration is of use for foreign memory; what can be written is known to the operating
    /// system only.
    ///
    /// # Errors
    ///
    /// [`AccessError`] of the first page that could not be read.
    pub fn probe(&self, page: usize) -> Result<(), AccessError> {
        let page = page.max(1);
        let mut offset = 0_usize;
        while offset < self.len {
            self.read(offset, &mut [0])?;
            let into_page = self.base.addr().wrapping_add(offset) % page;
            offset = offset.saturating_add(page - into_page);
        }
        Ok(())
    }

    /// The 8 bytes at `offset` as a number of this host, atomically.
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or when the memory is lost or cannot be read.
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u64, AtomicError> {
        self.atomic(offset, |cell| cell.load(Ordering::SeqCst), read_u64)
    }

    /// Replaces the 8 bytes at `offset` by a number of this host, atomically.
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or the memory cannot be written, and nothing changes then;
    /// or when the memory is lost.
    #[inline]
    pub fn store(&self, offset: usize, value: u64) -> Result<(), AtomicError> {
        self.atomic(
            offset,
            |cell| cell.store(value, Ordering::SeqCst),
            |memory, at| memory.write(at, &value.to_ne_bytes()),
        )
    }

    /// Adds `add` modulo 2^64 to the number at `offset`, atomically, and returns what was there. For foreign memory,
    /// [`ForeignMemory`] says what atomic means.
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or the memory cannot be written, and nothing changes then;
    /// or when the memory is lost.
    #[inline]
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, AtomicError> {
        self.atomic(offset, |cell| cell.fetch_add(add, Ordering::SeqCst), |memory, at| memory.fetch_add(at, add))
    }

    /// Replaces the number at `offset` by `swap` if it equals `compare`, atomically, and returns what was there. For
    /// foreign memory, [`ForeignMemory`] says what atomic means.
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or the memory cannot be written, and nothing changes then;
    /// or when the memory is lost.
    #[inline]
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, AtomicError> {
        let swap_cell = |cell: &AtomicU64| {
            let result = cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
            result.unwrap_or_else(|found| found)
        };
        self.atomic(offset, swap_cell, |memory, at| memory.compare_swap(at, compare, swap))
    }

    /// Prefetches the cache lines of `len` bytes at `offset`. No effect out of bounds, and for foreign memory.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize) {
        if self.check(offset, len).is_ok() && self.as_foreign().is_none() {
            prefetch::lines(self.base.wrapping_add(offset), len);
        }
    }

    /// Whether `len` bytes at `offset` lie inside.
    #[inline(always)]
    fn check(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        if offset <= self.len && len <= self.len - offset { Ok(()) } else { Err(OutOfBounds) }
    }

    /// Foreign memory, and the offset in it at which this span begins.
    #[inline(always)]
    fn as_foreign(&self) -> Option<(&dyn ForeignMemory, usize)> {
        if !self.guarded {
            return None;
        }
        match &*self.owner {
            Owner::Foreign(memory) => Some((&**memory, self.base.addr().wrapping_sub(memory.addr()))),
            Owner::Backing { .. } => None,
        }
    }

    /// Copies `dst.len()` bytes from `offset` into `dst`.
    ///
    /// # Safety
    ///
    /// They lie inside, and the memory is a backing's.
    #[inline(always)]
    unsafe fn copy_from(&self, offset: usize, dst: &mut [u8]) {
        // SAFETY: the source lies inside live memory (contract of this function); `dst` is a unique reference, to which
        // no backing's bytes may belong (contract of Backing), so the two do not overlap.
        unsafe { self.base.add(offset).copy_to_nonoverlapping(dst.as_mut_ptr(), dst.len()) };
        compiler_fence(Ordering::SeqCst);
    }

    /// Copies `src` to `offset`.
    ///
    /// # Safety
    ///
    /// It lies inside, and the memory is a backing's.
    #[inline(always)]
    unsafe fn copy_to(&self, offset: usize, src: &[u8]) {
        // SAFETY: the destination lies inside live, writable memory (contract of this function); `src` is a reference,
        // to which no backing's bytes may belong (contract of Backing), so the two do not overlap.
        unsafe { self.base.add(offset).copy_from_nonoverlapping(src.as_ptr(), src.len()) };
        compiler_fence(Ordering::SeqCst);
    }

    /// [`write_part`](Self::write_part) within the bounds of memory that can be lost or is foreign.
    #[cold]
    #[inline(never)]
    fn write_part_guarded(&self, offset: usize, src: &[u8], part: Part) -> Result<(), AccessError> {
        let Some((memory, start)) = self.as_foreign() else { return self.write_guarded(offset, src) };
        Ok(ordered(|| memory.write_part(start.wrapping_add(offset), src, part))?)
    }

    /// [`read`](Self::read) within the bounds of memory that can be lost or is foreign.
    #[cold]
    #[inline(never)]
    fn read_guarded(&self, offset: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        if let Some((memory, start)) = self.as_foreign() {
            return Ok(ordered(|| memory.read(start.wrapping_add(offset), dst))?);
        }
        // SAFETY: the caller checked the bounds, and the memory is not foreign.
        unsafe { self.copy_from(offset, dst) };
        self.done()
    }

    /// [`write`](Self::write) within the bounds of memory that can be lost or is foreign.
    #[cold]
    #[inline(never)]
    fn write_guarded(&self, offset: usize, src: &[u8]) -> Result<(), AccessError> {
        if let Some((memory, start)) = self.as_foreign() {
            return Ok(ordered(|| memory.write(start.wrapping_add(offset), src))?);
        }
        // SAFETY: the caller checked the bounds, and the memory is not foreign.
        unsafe { self.copy_to(offset, src) };
        self.done()
    }

    /// How a copy ends that has been made.
    #[inline(always)]
    fn done(&self) -> Result<(), AccessError> {
        if self.is_lost() { Err(AccessError::Lost) } else { Ok(()) }
    }

    /// Accesses the 8 bytes at `offset`: by `access` if they are a backing's, by `foreign` if they are foreign.
    #[inline(always)]
    fn atomic<T>(
        &self,
        offset: usize,
        access: impl FnOnce(&AtomicU64) -> T,
        foreign: impl FnOnce(&dyn ForeignMemory, usize) -> Result<T, Fault>,
    ) -> Result<T, AtomicError> {
        self.check(offset, 8)?;
        if !self.base.wrapping_add(offset).cast::<u64>().is_aligned() {
            return Err(AtomicError::Misaligned);
        }
        if self.guarded {
            return self.atomic_guarded(offset, access, foreign);
        }
        // SAFETY: in bounds and aligned, and memory that is not guarded is a backing's.
        Ok(unsafe { self.with_cell(offset, access) })
    }

    /// [`atomic`](Self::atomic) within the bounds of memory that can be lost or is foreign.
    #[cold]
    #[inline(never)]
    fn atomic_guarded<T>(
        &self,
        offset: usize,
        access: impl FnOnce(&AtomicU64) -> T,
        foreign: impl FnOnce(&dyn ForeignMemory, usize) -> Result<T, Fault>,
    ) -> Result<T, AtomicError> {
        if let Some((memory, start)) = self.as_foreign() {
            return Ok(ordered(|| foreign(memory, start.wrapping_add(offset)))?);
        }
        // SAFETY: the caller checked bounds and alignment, and the memory is not foreign.
        let value = unsafe { self.with_cell(offset, access) };
        if self.is_lost() { Err(AtomicError::Lost) } else { Ok(value) }
    }

    /// Passes the 8 bytes at `offset` to `access`.
    ///
    /// # Safety
    ///
    /// They lie inside and are aligned, and the memory is a backing's.
    #[inline(always)]
    unsafe fn with_cell<T>(&self, offset: usize, access: impl FnOnce(&AtomicU64) -> T) -> T {
        // SAFETY: in bounds of memory that `self.owner` keeps alive meanwhile, and aligned (contract of this function),
        // and read and written as an atomic only. A peer's plain copy that races with it is the documented race of this
        // file: the copy may be torn, the atomic is not.
        let value = access(unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) });
        compiler_fence(Ordering::SeqCst);
        value
    }
}

impl Owner {
    /// Whether the flag of memory that can be lost is set.
    #[cold]
    #[inline(never)]
    fn is_lost(&self) -> bool {
        match self {
            // SAFETY: the flag is part of what the backing keeps alive, and an atomic.
            Owner::Backing { lost: Some(flag), .. } => unsafe { flag.as_ref() }.is_set(),
            Owner::Backing { lost: None, .. } | Owner::Foreign(_) => false,
        }
    }
}

/// Orders an access to foreign memory, whose code is not ours, among the other accesses of this thread, as the notes on
/// races promise.
fn ordered<T>(access: impl FnOnce() -> T) -> T {
    fence(Ordering::SeqCst);
    let result = access();
    fence(Ordering::SeqCst);
    result
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes at {:p})", self.len, self.base)
    }
}
