//! Queues in memory that both sides map.
//!
//! A queue is a piece of the context's memfd: a header with two indices (`rxe_queue_buf`) and a power of two of entries. The
//! program maps it, too, and may write any of it at any time, so nothing here trusts what is read, keeps a reference into
//! it, or takes its geometry from it: size and mask are this side's own, indices are masked, entries are copied out before
//! they are looked at.

// Raw pointers to shared memory are the point of this file; each block says why its pointer is good.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl};
use nix::libc::{c_void, off_t};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::ftruncate;
use rustix::process::{Resource, getrlimit};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::abi::{MmapInfo, QueueBuf};
use crate::descriptors::duplicate;

/// Every queue begins at a multiple of this, which is one of the page size of any machine.
const ALIGN: u64 = 1 << 16;

/// Length of a context's file, which has room for 2^46 queues. Only those that exist take up memory.
const LENGTH: u64 = 1 << 62;

/// The memory of one context's queues: a memfd.
///
/// A program must not change it by a `write` that is no command, as on a duplicate of the descriptor that nobody has seen: the file
/// appends what is written, and may not grow.
#[derive(Debug)]
pub(super) struct QueueMemory {
    fd: OwnedFd,
    /// Offset of the next queue. Offsets are not used again.
    next: u64,
    /// Length of the file.
    length: u64,
}

impl QueueMemory {
    /// A memfd, and the program's descriptor of it.
    ///
    /// # Errors
    /// Those of memfd_create.
    pub(super) fn new() -> Result<(QueueMemory, OwnedFd), Errno> {
        let fd = memfd_create("uverbs0", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        // Whoever passes the limit of `ulimit -f` gets a signal that ends the process, also with an append to a file of that length.
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let length = LENGTH.min(limit.saturating_sub(ALIGN));
        ftruncate(&fd, length as off_t)?;
        // A program that cuts the file short would make this side's accesses fault.
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL))?;
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
        Ok((QueueMemory { fd: duplicate(&fd)?, next: 0, length }, fd))
    }

    /// Makes a queue for at least `entries` entries of at least `entry_len` bytes.
    ///
    /// # Errors
    /// `ENOMEM` when there is no memory, `EINVAL` when the queue would be larger than its description can say.
    pub(super) fn create(&mut self, entries: u32, entry_len: usize) -> Result<Ring, Errno> {
        // One entry always stays empty, so that a full queue differs from an empty one.
        let slots = entries.checked_add(1).and_then(u32::checked_next_power_of_two).ok_or(Errno::EINVAL)?;
        let entry_len = entry_len.next_power_of_two();
        let size = (slots as usize)
            .checked_mul(entry_len)
            .and_then(|len| len.checked_add(size_of::<QueueBuf>()))
            .and_then(|len| len.checked_next_multiple_of(4096))
            .filter(|&len| len <= u32::MAX as usize)
            .and_then(NonZeroUsize::new)
            .ok_or(Errno::EINVAL)?;
        let offset = self.next;
        if self.length.checked_sub(offset).is_none_or(|room| room < size.get() as u64) {
            return Err(Errno::ENOMEM);
        }
        let no_memory = |_| Errno::ENOMEM;
        // Allocated now, as a later access could only fault.
        fallocate(&self.fd, FallocateFlags::empty(), offset as off_t, size.get() as off_t).map_err(no_memory)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, which touches no other; the file cannot shrink below it (seal).
        let mapped = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, self.fd.as_fd(), offset as off_t) };
        let Ok(base) = mapped else {
            self.release(offset, size.get());
            return Err(Errno::ENOMEM);
        };
        self.next = (offset + size.get() as u64).next_multiple_of(ALIGN);
        let ring = Ring { base: base.cast(), size: size.get(), offset, log2_entry: entry_len.ilog2(), mask: slots - 1 };
        let mut header = QueueBuf::new_zeroed();
        header.log2_elem_size = ring.log2_entry;
        header.index_mask = ring.mask;
        ring.copy_in(0, header.as_bytes());
        Ok(ring)
    }

    /// Gives the memory of a queue back. The program's mapping of it reads as zeroes then.
    pub(super) fn free(&mut self, ring: Ring) {
        self.release(ring.offset, ring.size);
    }

    fn release(&self, offset: u64, size: usize) {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        // Without it the memory is given back when the context is closed.
        let _ = fallocate(&self.fd, flags, offset as off_t, size as off_t);
    }
}

/// One queue, mapped.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    /// Length of the mapping.
    size: usize,
    /// Offset of the queue in the memfd, in bytes.
    offset: u64,
    log2_entry: u32,
    mask: u32,
}

// SAFETY: the mapping belongs to this value and is not tied to a thread; it is accessed by copies and atomics only.
unsafe impl Send for Ring {}

impl Ring {
    /// Offset and length for the program's mmap.
    pub(super) fn info(&self) -> MmapInfo {
        MmapInfo { offset: self.offset, size: self.size as u32, pad: 0 }
    }

    /// Entries that it holds at most.
    #[inline]
    pub(super) fn capacity(&self) -> u32 {
        self.mask
    }

    /// Entries from index `from` up to index `to`.
    #[inline]
    pub(super) fn distance(&self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & self.mask
    }

    /// The index `count` entries after `index`.
    #[inline]
    pub(super) fn after(&self, index: u32, count: u32) -> u32 {
        index.wrapping_add(count) & self.mask
    }

    /// The index `count` entries before `index`.
    #[inline]
    pub(super) fn before(&self, index: u32, count: u32) -> u32 {
        index.wrapping_sub(count) & self.mask
    }

    /// Where the producer adds the next entry. Entries before it can be read.
    #[inline]
    pub(super) fn producer(&self) -> u32 {
        self.index_at(offset_of!(QueueBuf, producer_index)).load(Ordering::Acquire) & self.mask
    }

    /// The entry that the consumer takes next.
    #[inline]
    pub(super) fn consumer(&self) -> u32 {
        self.index_at(offset_of!(QueueBuf, consumer_index)).load(Ordering::Acquire) & self.mask
    }

    /// Publishes the entries before `index`.
    #[inline]
    pub(super) fn set_producer(&self, index: u32) {
        self.index_at(offset_of!(QueueBuf, producer_index)).store(index & self.mask, Ordering::Release);
    }

    /// Gives the entries before `index` back to the producer.
    #[inline]
    pub(super) fn set_consumer(&self, index: u32) {
        self.index_at(offset_of!(QueueBuf, consumer_index)).store(index & self.mask, Ordering::Release);
    }

    /// Copies bytes `at` to `at + dst.len()` of entry `index`. False when the entry is shorter.
    #[inline]
    #[must_use]
    pub(super) fn read(&self, index: u32, at: usize, dst: &mut [u8]) -> bool {
        let Some(offset) = self.entry(index, at, dst.len()) else { return false };
        // SAFETY: `entry` proved that the bytes lie inside the mapping, which lives as long as `self`; `dst` is a unique
        // reference, so they do not overlap. The program may write them meanwhile: the copy is some mixture then.
        unsafe { self.base.as_ptr().add(offset).copy_to_nonoverlapping(dst.as_mut_ptr(), dst.len()) };
        // The copy is checked and used; a second read could differ from the first.
        compiler_fence(Ordering::SeqCst);
        true
    }

    /// A value at byte `at` of entry `index`; zero when the entry is shorter.
    #[inline]
    pub(super) fn load<T: FromBytes + IntoBytes + Immutable>(&self, index: u32, at: usize) -> T {
        let mut value = T::new_zeroed();
        let _ = self.read(index, at, value.as_mut_bytes());
        value
    }

    /// Writes `value` to the start of entry `index`, as far as there is room.
    #[inline]
    pub(super) fn store<T: IntoBytes + Immutable>(&self, index: u32, value: &T) {
        if let Some(offset) = self.entry(index, 0, size_of::<T>()) {
            self.copy_in(offset, value.as_bytes());
        }
    }

    /// Copies entry `from` of `other`, as much of it as an entry here holds, to entry `to`.
    pub(super) fn copy_entry(&self, to: u32, other: &Ring, from: u32) {
        let mut bytes = vec![0; (1 << self.log2_entry.min(other.log2_entry)) as usize];
        if other.read(from, 0, &mut bytes)
            && let Some(offset) = self.entry(to, 0, bytes.len())
        {
            self.copy_in(offset, &bytes);
        }
    }

    /// Offset in the mapping of `len` bytes at byte `at` of entry `index`.
    #[inline]
    fn entry(&self, index: u32, at: usize, len: usize) -> Option<usize> {
        let entry_len = 1usize << self.log2_entry;
        let inside = at <= entry_len && len <= entry_len - at;
        // The mapping has room for `mask + 1` entries behind the header.
        inside.then(|| size_of::<QueueBuf>() + (((index & self.mask) as usize) << self.log2_entry) + at)
    }

    /// Copies `src` to byte `offset` of the mapping, which has room for it.
    #[inline]
    fn copy_in(&self, offset: usize, src: &[u8]) {
        assert!(offset + src.len() <= self.size, "a copy beyond the queue");
        // SAFETY: checked above; the mapping lives as long as `self`, and no reference to it exists that `src` could be.
        unsafe { self.base.as_ptr().add(offset).copy_from_nonoverlapping(src.as_ptr(), src.len()) };
    }

    /// One of the header's indices.
    #[inline]
    fn index_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is that of an aligned 32-bit member of the header, the mapping begins at a page and lives as
        // long as `self`, and both sides access the index as an atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing points into it any more.
        let _ = unsafe { munmap(self.base.cast::<c_void>(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_holds_what_was_asked_for_and_both_sides_see_it() {
        let (mut memory, program) = QueueMemory::new().unwrap();
        for (entries, capacity) in [(1, 1), (2, 3), (3, 3), (4, 7), (100, 127)] {
            let ring = memory.create(entries, 48).unwrap();
            assert_eq!(ring.capacity(), capacity);
            let info = ring.info();
            let read_u32 = |at: u64| {
                let mut bytes = [0; 4];
                nix::sys::uio::pread(&program, &mut bytes, (info.offset + at) as off_t).unwrap();
                u32::from_ne_bytes(bytes)
            };
            assert_eq!((read_u32(0), read_u32(4)), (6, capacity), "the geometry is in the header");
            ring.store(capacity, &0x1234_5678u32);
            ring.set_producer(capacity + 1);
            assert_eq!(read_u32(384 + u64::from(capacity) * 64), 0x1234_5678);
            assert_eq!(ring.producer(), 0, "indices wrap");
            assert_eq!(ring.distance(capacity, 0), 1);
            memory.free(ring);
        }
        assert_eq!(memory.create(u32::MAX, 64).unwrap_err(), Errno::EINVAL);
        assert_eq!(memory.create(1 << 30, 64).unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn what_a_program_writes_to_the_file_changes_no_queue() {
        let (mut memory, program) = QueueMemory::new().unwrap();
        let ring = memory.create(3, 64).unwrap();
        assert_eq!(nix::unistd::write(&program, &[0x1C; 128]), Err(Errno::EPERM));
        assert_eq!(nix::sys::uio::pwrite(&program, &[0x1C; 128], ring.info().offset as off_t), Err(Errno::EPERM));
        let mut header = [0; 8];
        nix::sys::uio::pread(&program, &mut header, ring.info().offset as off_t).unwrap();
        assert_eq!(header, [6, 0, 0, 0, 3, 0, 0, 0]);
    }

    /// `ulimit -f`: SIGXFSZ would end the process.
    #[test]
    fn a_limit_of_the_length_of_files_is_an_error_and_no_signal() {
        rxe_testkit::child::alone(|| {
            let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: None };
            rustix::process::setrlimit(Resource::Fsize, limit).unwrap();
            let (mut memory, _program) = QueueMemory::new().unwrap();
            let rings: Vec<Ring> = std::iter::from_fn(|| memory.create(100, 64).ok()).take(100).collect();
            assert!((2..100).contains(&rings.len()), "{} queues in 1 MiB", rings.len());
            assert_eq!(memory.create(100, 64).unwrap_err(), Errno::ENOMEM);
        });
    }

    #[test]
    fn nothing_beyond_an_entry_is_read_or_written() {
        let (mut memory, _program) = QueueMemory::new().unwrap();
        let ring = memory.create(3, 64).unwrap();
        ring.store(u32::MAX, &[0xFFu8; 64]);
        ring.store(0, &[0xEEu8; 65]);
        let mut bytes = [1; 64];
        assert!(ring.read(3, 0, &mut bytes));
        assert_eq!(bytes, [0xFF; 64], "an index is masked");
        assert!(ring.read(0, 0, &mut bytes));
        assert_eq!(bytes, [0; 64], "too long for an entry");
        assert!(!ring.read(0, 1, &mut bytes));
        assert!(!ring.read(0, 65, &mut []));
        assert_eq!(ring.load::<u32>(3, 61), 0);
        assert_eq!(ring.load::<u32>(3, 60), u32::MAX);
    }

    #[test]
    fn the_program_cannot_cut_the_memory_short() {
        let (mut memory, program) = QueueMemory::new().unwrap();
        let ring = memory.create(3, 64).unwrap();
        assert_eq!(nix::unistd::ftruncate(&program, 0), Err(Errno::EPERM));
        assert_eq!(ring.capacity(), 3);
    }
}
