//! A checked piece of a region.

use super::{AccessError, AtomicError, Memory, OutOfBounds, Part};

/// Bytes that a key, a protection domain, rights and bounds were checked for. Offsets are relative to its start.
///
/// The same race semantics as for [`Memory`] hold: others may change the bytes at any time.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    memory: &'a Memory,
    offset: usize,
    len: usize,
}

impl<'a> Span<'a> {
    /// `len` bytes at `offset` of `memory`; the caller has checked that they lie inside (a span that does not is
    /// harmless: every access is checked again by `Memory`).
    #[inline]
    pub(super) fn new(memory: &'a Memory, offset: usize, len: usize) -> Span<'a> {
        Span { memory, offset, len }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory it is a piece of.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &'a Memory {
        self.memory
    }

    /// Where it starts in [`memory`](Self::memory).
    #[inline]
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The piece of `len` bytes at `offset`, if it lies inside.
    #[inline]
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Option<Span<'a>> {
        self.at(offset, len).ok().map(|start| Span { memory: self.memory, offset: start, len })
    }

    /// Copies `dst.len()` bytes from `offset` into `dst`.
    ///
    /// # Errors
    ///
    /// See [`Memory::read`].
    #[inline(always)]
    pub fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        self.memory.read(self.at(offset, dst.len())?, dst)
    }

    /// Copies `src`, a part of a message, to its beginning.
    ///
    /// # Errors
    ///
    /// See [`Memory::write_part`].
    #[inline(always)]
    pub fn write_part(&self, src: &[u8], part: impl FnOnce() -> Part) -> Result<(), AccessError> {
        self.memory.write_part(self.at(0, src.len())?, src, part)
    }

    /// Copies `src` to `offset`.
    ///
    /// # Errors
    ///
    /// See [`Memory::write`].
    #[inline(always)]
    pub fn write(&self, offset: usize, src: &[u8]) -> Result<(), AccessError> {
        self.memory.write(self.at(offset, src.len())?, src)
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Errors
    ///
    /// See [`Memory::fill`].
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) -> Result<(), AccessError> {
        self.memory.fill(self.at(offset, len)?, len, byte)
    }

    /// See [`Memory::load`].
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or when the memory is lost or cannot be accessed.
    #[inline]
    pub fn load(&self, offset: usize) -> Result<u64, AtomicError> {
        self.memory.load(self.at(offset, 8)?)
    }

    /// See [`Memory::store`].
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or when the memory is lost or cannot be accessed.
    #[inline]
    pub fn store(&self, offset: usize, value: u64) -> Result<(), AtomicError> {
        self.memory.store(self.at(offset, 8)?, value)
    }

    /// See [`Memory::fetch_add`].
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or when the memory is lost or cannot be accessed.
    #[inline]
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, AtomicError> {
        self.memory.fetch_add(self.at(offset, 8)?, add)
    }

    /// See [`Memory::compare_swap`].
    ///
    /// # Errors
    ///
    /// [`AtomicError`] when out of bounds or not 8-aligned, or when the memory is lost or cannot be accessed.
    #[inline]
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, AtomicError> {
        self.memory.compare_swap(self.at(offset, 8)?, compare, swap)
    }

    /// The offset in `memory` of `len` bytes at `offset`.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> Result<usize, OutOfBounds> {
        // `offset <= self.len` keeps the sum within the memory, so it cannot overflow.
        if offset <= self.len && len <= self.len - offset { Ok(self.offset + offset) } else { Err(OutOfBounds) }
    }
}
