//! A namespace in memory.
//!
//! # Concurrency
//!
//! A write copies each block at once, from a staging buffer that is complete, so a connection that ends in the middle
//! of a transfer never leaves half of a block. On one worker, operations follow each other, and no read sees a part of
//! a write.
//!
//! Workers do not wait for each other: a read of blocks that another worker is writing at this moment returns old and
//! new bytes mixed, as does an RDMA WRITE from [`memory`](Backend::memory) whose packets leave while any worker writes
//! the blocks. Clients that order their commands (a file system does) never see that. With checksums, a read locks each
//! block against writers while it copies it, so a block is always entirely old or new.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rxe_proto::mem::{AccessError, Allocator, Memory};

use crate::backend::{Backend, Completion, Full, Operation, Submitted};
use crate::checksum::{self, Checksum, ENTRY, Scratch};
use crate::error::{OpenError, StorageError};
use crate::geometry::{BlockSize, Geometry};
use crate::io::Io;
use crate::locks::{BlockLocks, Mode};
use crate::stats::{Counted, StorageStats};

/// What the memory of a [`RamDisk`] contains at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// Zeroes, as a fresh allocation does.
    Zeroes,
    /// Data to be kept; checksums are computed of it, which reads all of it.
    Data,
}

/// Settings of a [`RamDisk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RamOptions {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Size in bytes; `None` for all of the memory. The rest is room to grow.
    pub size: Option<u64>,
    /// Whether each block has a checksum, which takes 4 bytes per block. Reads cannot go straight from the memory then.
    pub checksums: bool,
    /// Contents of the memory at the start.
    pub contents: Contents,
}

/// The part of a memory namespace that all workers share.
pub struct RamDisk {
    memory: Memory,
    block_size: BlockSize,
    blocks: AtomicU64,
    checks: Option<Checks>,
}

/// Checksums, and what keeps them together with the blocks.
struct Checks {
    table: Memory,
    locks: BlockLocks,
    checksum: Checksum,
}

impl RamDisk {
    /// A namespace in `memory`. The table of checksums, if there is one, comes from `allocator`.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the size is no number of blocks, is 0 or beyond the memory, or there is no room for the
    /// table.
    pub fn new(memory: Memory, options: &RamOptions, allocator: &dyn Allocator) -> Result<Arc<RamDisk>, OpenError> {
        let block = options.block_size.bytes();
        let blocks = check_size(options.size.unwrap_or(memory.len() as u64), &memory, options.block_size)?;
        let checks = if options.checksums {
            let table = allocator.allocate((memory.len() as u64 / block) as usize * ENTRY)?;
            Some(Checks { table, locks: BlockLocks::new(), checksum: Checksum::new(options.block_size) })
        } else {
            None
        };
        let disk = RamDisk { memory, block_size: options.block_size, blocks: AtomicU64::new(blocks), checks };
        if options.contents == Contents::Data {
            disk.compute(0..blocks).map_err(|_| OpenError::Capacity { size: blocks * block, capacity: 0 })?;
        }
        Ok(Arc::new(disk))
    }

    /// Block size and number of blocks.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, blocks: self.blocks.load(Ordering::Acquire) }
    }

    /// Changes the size, within the memory. New blocks are zero. Every worker's instance takes the new size with
    /// [`Backend::resize`]; before the namespace grows again after it has shrunk, all of them must have done so.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the size is no number of blocks, is 0 or beyond the memory.
    pub fn set_size(&self, bytes: u64) -> Result<Geometry, OpenError> {
        let blocks = check_size(bytes, &self.memory, self.block_size)?;
        let before = self.blocks.load(Ordering::Acquire);
        if blocks > before {
            let capacity = self.memory.len() as u64;
            let cleared = self.zero(before, blocks - before);
            cleared.map_err(|_| OpenError::Capacity { size: bytes, capacity })?;
        }
        self.blocks.store(blocks, Ordering::Release);
        Ok(self.geometry())
    }

    /// Compares `count` blocks from `first` with their checksums, and calls `damaged` for each that differs. Returns
    /// the number of blocks compared, which is less at the end, and 0 without checksums.
    ///
    /// # Errors
    ///
    /// [`StorageError`] when the memory is lost.
    pub(crate) fn scrub(&self, first: u64, count: u64, mut damaged: impl FnMut(u64)) -> Result<u64, StorageError> {
        let Some(checks) = &self.checks else { return Ok(0) };
        let end = first.saturating_add(count).min(self.geometry().blocks);
        let mut scratch = Scratch::new();
        for lba in first..end {
            let offset = self.offset(lba);
            let (found, stored) = checks.with(lba, Mode::Shared, || {
                let found = checks.checksum.of(&self.memory, offset, &mut scratch);
                (found, checksum::load(&checks.table, lba as usize))
            });
            if found.map_err(|_| self.lost(offset))? != stored? {
                damaged(lba);
            }
        }
        Ok(end.saturating_sub(first))
    }

    /// Writes the checksums of blocks whose data is to be kept.
    fn compute(&self, blocks: std::ops::Range<u64>) -> Result<(), AccessError> {
        let Some(checks) = &self.checks else { return Ok(()) };
        let mut scratch = Scratch::new();
        for lba in blocks {
            let entry = checks.checksum.of(&self.memory, self.offset(lba), &mut scratch)?;
            checksum::store(&checks.table, lba as usize, entry)?;
        }
        Ok(())
    }

    fn zero(&self, first: u64, count: u64) -> Result<(), StorageError> {
        let block = self.block_size.bytes() as usize;
        let Some(checks) = &self.checks else {
            let (offset, len) = (self.offset(first), count as usize * block);
            return self.memory.fill(offset, len, 0).map_err(|_| self.lost(offset));
        };
        for lba in first..first + count {
            let offset = self.offset(lba);
            let (filled, stored) = checks.with(lba, Mode::Exclusive, || {
                (self.memory.fill(offset, block, 0), checksum::store(&checks.table, lba as usize, 0))
            });
            filled.map_err(|_| self.lost(offset))?;
            stored?;
        }
        Ok(())
    }

    fn read(&self, offset: u64, into: &Memory, scratch: &mut Scratch) -> Result<(), StorageError> {
        let step = self.step();
        for at in (0..into.len()).step_by(step) {
            let piece = scratch.bytes(step.min(into.len() - at));
            let from = offset as usize + at;
            match &self.checks {
                None => self.memory.read(from, piece).map_err(|_| self.lost(from))?,
                Some(checks) => {
                    let lba = from as u64 >> self.block_size.shift();
                    let (read, stored) = checks.with(lba, Mode::Shared, || {
                        (self.memory.read(from, piece), checksum::load(&checks.table, lba as usize))
                    });
                    read.map_err(|_| self.lost(from))?;
                    if checks.checksum.entry(piece) != stored? {
                        return Err(StorageError::Media { lba });
                    }
                }
            }
            into.write(at, piece)?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &Memory, scratch: &mut Scratch) -> Result<(), StorageError> {
        let step = self.step();
        for at in (0..from.len()).step_by(step) {
            let piece = scratch.bytes(step.min(from.len() - at));
            from.read(at, piece)?;
            let to = offset as usize + at;
            match &self.checks {
                None => self.memory.write(to, piece).map_err(|_| self.lost(to))?,
                Some(checks) => {
                    let (lba, entry) = (to as u64 >> self.block_size.shift(), checks.checksum.entry(piece));
                    let (written, stored) = checks.with(lba, Mode::Exclusive, || {
                        (self.memory.write(to, piece), checksum::store(&checks.table, lba as usize, entry))
                    });
                    written.map_err(|_| self.lost(to))?;
                    stored?;
                }
            }
        }
        Ok(())
    }

    /// How many bytes are copied at a time: a block if it has a checksum, else what the scratch space holds.
    fn step(&self) -> usize {
        if self.checks.is_some() { self.block_size.bytes() as usize } else { 4096 }
    }

    fn offset(&self, lba: u64) -> usize {
        (lba << self.block_size.shift()) as usize
    }

    /// The error when the memory of the namespace itself is gone: it is in a file that was truncated.
    fn lost(&self, offset: usize) -> StorageError {
        StorageError::Truncated { offset: offset as u64 }
    }
}

impl Checks {
    /// Runs `copy` with the block locked.
    fn with<T>(&self, lba: u64, mode: Mode, copy: impl FnOnce() -> T) -> T {
        self.locks.lock_one(lba, mode);
        let result = copy();
        self.locks.unlock(lba, 1, mode);
        result
    }
}

/// The number of blocks of `bytes` bytes.
fn check_size(bytes: u64, memory: &Memory, block_size: BlockSize) -> Result<u64, OpenError> {
    let (path, block) = (|| "memory".to_owned(), block_size.bytes());
    match bytes {
        0 => Err(OpenError::Empty { path: path() }),
        _ if !bytes.is_multiple_of(block) => Err(OpenError::Size { path: path(), size: bytes, block_size: block }),
        _ if bytes > memory.len() as u64 => Err(OpenError::Capacity { size: bytes, capacity: memory.len() as u64 }),
        _ => Ok(bytes / block),
    }
}

/// Bytes of a long range that are zeroed before the next range is continued.
const SLICE: u64 = 256 << 10;

/// A worker's instance of a namespace in memory. Operations complete while they are submitted, but for ranges that are long to
/// zero: these are zeroed in slices, in turn, so that a worker's turn stays short.
pub struct RamBackend {
    disk: Arc<RamDisk>,
    geometry: Geometry,
    zeroing: VecDeque<Zeroing>,
    stats: Arc<StorageStats>,
}

/// A range that is being zeroed, in bytes.
struct Zeroing {
    token: u64,
    counted: Counted,
    len: u64,
    next: u64,
    end: u64,
    cancelled: bool,
}

impl RamBackend {
    /// An instance of `disk`.
    #[must_use]
    pub fn new(disk: Arc<RamDisk>) -> RamBackend {
        RamBackend { geometry: disk.geometry(), disk, zeroing: VecDeque::new(), stats: Arc::default() }
    }

    /// The range of an operation that is too long to be zeroed at once; it has been checked.
    fn long_range(&self, io: &mut Io, token: u64, operation: &Operation<'_>) -> Option<Zeroing> {
        let (Operation::WriteZeroes { offset, len, .. } | Operation::Deallocate { offset, len }) = *operation else {
            return None;
        };
        if self.zeroing.is_empty() && len <= io.zero_budget {
            io.zero_budget -= len;
            return None;
        }
        self.geometry.check(offset, len).ok()?;
        let (counted, _) = operation.counted();
        Some(Zeroing { token, counted, len, next: offset, end: offset + len, cancelled: false })
    }

    fn zero(&self, from: u64, to: u64) -> Result<(), StorageError> {
        let shift = self.geometry.block_size.shift();
        self.disk.zero(from >> shift, (to - from) >> shift)
    }

    fn run(&self, operation: &Operation<'_>, len: u64, scratch: &mut Scratch) -> Result<(), StorageError> {
        self.geometry.check(operation.offset(), len)?;
        let shift = self.geometry.block_size.shift();
        match *operation {
            Operation::Read { offset, into } => self.disk.read(offset, into, scratch),
            Operation::Write { offset, from, .. } => self.disk.write(offset, from, scratch),
            Operation::Flush => Ok(()),
            Operation::WriteZeroes { offset, len, .. } | Operation::Deallocate { offset, len } => {
                self.disk.zero(offset >> shift, len >> shift)
            }
        }
    }
}

impl Backend for RamBackend {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, io: &mut Io, token: u64, operation: Operation<'_>) -> Result<Submitted, Full> {
        if let Some(range) = self.long_range(io, token, &operation) {
            self.zeroing.push_back(range);
            return Ok(Submitted::Pending);
        }
        let (kind, len) = operation.counted();
        let result = self.run(&operation, len, &mut io.scratch);
        self.stats.count(kind, len, result);
        Ok(Submitted::Done(result))
    }

    fn poll(&mut self, io: &mut Io, completed: &mut Vec<Completion>) {
        while io.zero_budget > 0
            && let Some(mut range) = self.zeroing.pop_front()
        {
            let to = range.end.min(range.next + SLICE.min(io.zero_budget));
            // Whole blocks: the budget may end within one.
            let to = range.end.min(to.next_multiple_of(self.geometry.block_size.bytes()));
            let zeroed = if range.cancelled {
                Err(StorageError::Cancelled)
            } else {
                io.zero_budget = io.zero_budget.saturating_sub(to - range.next);
                self.zero(range.next, to)
            };
            range.next = to;
            if zeroed.is_ok() && range.next < range.end {
                self.zeroing.push_back(range);
                continue;
            }
            self.stats.count(range.counted, range.len, zeroed);
            completed.push(Completion { token: range.token, result: zeroed });
        }
    }

    fn outstanding(&self) -> usize {
        self.zeroing.len()
    }

    fn cancel(&mut self, token: u64) {
        for range in self.zeroing.iter_mut().filter(|range| range.token == token) {
            range.cancelled = true;
        }
    }

    fn resize(&mut self) -> Result<Geometry, OpenError> {
        self.geometry = self.disk.geometry();
        Ok(self.geometry)
    }

    fn memory(&self) -> Option<&Memory> {
        self.disk.checks.is_none().then_some(&self.disk.memory)
    }

    fn stats(&self) -> &Arc<StorageStats> {
        &self.stats
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::mem::HeapAllocator;

    use super::*;

    fn disk(len: usize, size: Option<u64>, checksums: bool, contents: Contents) -> Result<Arc<RamDisk>, OpenError> {
        let memory = Memory::heap(len);
        memory.fill(0, len, if contents == Contents::Data { 7 } else { 0 }).unwrap();
        RamDisk::new(memory, &RamOptions { block_size: BlockSize::B512, size, checksums, contents }, &HeapAllocator)
    }

    #[test]
    fn long_ranges_are_zeroed_in_slices_of_a_turn_and_in_turn() {
        let disk = disk(8 << 20, None, false, Contents::Data).unwrap();
        let (mut backend, mut io) = (RamBackend::new(Arc::clone(&disk)), Io::new(None));
        let zeroed = || {
            (0..16)
                .filter(|part| {
                    let mut byte = [1];
                    disk.memory.read((part << 19) + 7, &mut byte).unwrap();
                    byte == [0]
                })
                .count()
        };
        let half = |token: u64, offset: u64| (token, Operation::Deallocate { offset, len: 4 << 20 });
        for (token, operation) in [half(5, 0), half(6, 4 << 20), half(7, 0)] {
            assert_eq!(backend.submit(&mut io, token, operation), Ok(Submitted::Pending));
        }
        assert_eq!((zeroed(), backend.outstanding()), (0, 3));
        // Others do not wait.
        let into = Memory::heap(4096);
        assert_eq!(backend.submit(&mut io, 8, Operation::Read { offset: 0, into: &into }), Ok(Submitted::Done(Ok(()))));
        backend.cancel(7);
        let mut completed = Vec::new();
        let mut turns = 0;
        while backend.outstanding() > 0 {
            let before = zeroed();
            io.zero_budget = crate::io::ZERO_BUDGET;
            backend.poll(&mut io, &mut completed);
            assert!(zeroed() - before <= 3, "more than a turn's part");
            turns += 1;
        }
        let results: Vec<_> = completed.iter().map(|of| (of.token, of.result)).collect();
        assert_eq!(results, [(7, Err(StorageError::Cancelled)), (5, Ok(())), (6, Ok(()))]);
        assert_eq!((turns, zeroed(), backend.stats().deallocates.get()), (8, 16, 2));
        assert_eq!(backend.submit(&mut io, 9, half(9, 5 << 20).1), Ok(Submitted::Done(Err(StorageError::OutOfRange))));
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        assert!(matches!(disk(1000, None, false, Contents::Zeroes), Err(OpenError::Size { size: 1000, .. })));
        assert!(matches!(disk(1024, Some(0), false, Contents::Zeroes), Err(OpenError::Empty { .. })));
        assert!(matches!(disk(1024, Some(2048), false, Contents::Zeroes), Err(OpenError::Capacity { .. })));
    }

    #[test]
    fn data_that_was_there_verifies_and_damage_does_not() {
        let disk = disk(4096, None, true, Contents::Data).unwrap();
        let damaged = |disk: &RamDisk| {
            let mut list = Vec::new();
            assert_eq!(disk.scrub(0, 100, |lba| list.push(lba)), Ok(8));
            list
        };
        assert_eq!(damaged(&disk), []);
        disk.memory.write(512 * 3 + 17, &[8]).unwrap();
        assert_eq!(damaged(&disk), [3]);
        let mut scratch = Scratch::new();
        let into = Memory::heap(4096);
        assert_eq!(disk.read(0, &into, &mut scratch), Err(StorageError::Media { lba: 3 }));
        disk.write(512 * 3, &Memory::heap(512), &mut scratch).unwrap();
        assert_eq!(damaged(&disk), []);
        assert_eq!(disk.read(0, &into, &mut scratch), Ok(()));
    }

    #[test]
    fn memory_with_checksums_is_not_lent_for_direct_reads() {
        let with = RamBackend::new(disk(4096, None, true, Contents::Zeroes).unwrap());
        let without = RamBackend::new(disk(4096, None, false, Contents::Zeroes).unwrap());
        assert!(with.memory().is_none() && without.memory().is_some());
    }
}
