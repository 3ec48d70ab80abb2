//! Comparing all blocks of a namespace with their checksums, a part at a time.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::aligned::AlignedBuffer;
use crate::checksum;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::geometry::Geometry;
use crate::locks::Mode;
use crate::ram::RamDisk;
use crate::sidecar::{REGION_BLOCKS, Region, Sidecar, entry_index};

/// Blocks that are locked and read at a time.
const BATCH: u64 = 64;
/// How long to wait for blocks that are in use.
const PAUSE: Duration = Duration::from_micros(50);

/// Result of a step of a [`Scrub`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Number of blocks compared.
    pub checked: u64,
    /// Numbers of the blocks that differ from their checksum: they are damaged, and stay so until they are written.
    pub mismatches: Vec<u64>,
    /// Numbers of the blocks whose checksum was replaced: they differed, in a region that was being written when the
    /// target ended without closing the file, or that had no checksums.
    pub rebuilt: Vec<u64>,
    /// Whether the last block was reached; the next step begins with the first one again.
    pub done: bool,
}

/// Compares the blocks of a namespace with their checksums. It runs on any thread beside the workers: they wait for it,
/// and it for them, only where they use the same blocks at the same time. It reads with system calls that block, so a
/// worker should not run it on a file.
pub struct Scrub {
    target: Target,
    next: u64,
    /// Whether the region of `next` was read from its beginning without an error.
    whole_region: bool,
}

enum Target {
    Ram(Arc<RamDisk>),
    Disk(Arc<Disk>),
}

impl Scrub {
    /// A scrub of a namespace in memory, from its first block.
    #[must_use]
    pub fn ram(disk: Arc<RamDisk>) -> Scrub {
        Scrub { target: Target::Ram(disk), next: 0, whole_region: false }
    }

    /// A scrub of a file, from its first block.
    #[must_use]
    pub fn disk(disk: Arc<Disk>) -> Scrub {
        Scrub { target: Target::Disk(disk), next: 0, whole_region: false }
    }

    /// Number of the next block.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Compares up to `blocks` blocks. Without checksums there is nothing to compare, and the report says done.
    ///
    /// # Errors
    ///
    /// [`StorageError`] when blocks cannot be read. The scrub has passed the blocks that it was reading, at most 64, so
    /// that the next step goes on behind them.
    pub fn step(&mut self, blocks: u64) -> Result<ScrubReport, StorageError> {
        let mut report = ScrubReport::default();
        let total = match &self.target {
            Target::Ram(disk) => disk.geometry().blocks,
            Target::Disk(disk) => disk.sidecar.as_ref().map_or(0, Sidecar::blocks),
        };
        let end = self.next.saturating_add(blocks).min(total);
        while self.next < end {
            let first = self.next;
            let count = BATCH.min(end - first).min(REGION_BLOCKS - first % REGION_BLOCKS);
            self.next += count;
            match &self.target {
                Target::Ram(disk) => disk.scrub(first, count, |lba| report.mismatches.push(lba)).map(drop)?,
                Target::Disk(disk) => {
                    self.whole_region |= first.is_multiple_of(REGION_BLOCKS);
                    let result = compare(disk, first, count, &mut report);
                    self.whole_region &= result.is_ok();
                    result?;
                    let last = self.next == total || self.next.is_multiple_of(REGION_BLOCKS);
                    if let (true, true, Some(sidecar)) = (last, self.whole_region, &disk.sidecar) {
                        if let Some(region) = sidecar.region(first) {
                            region.set_trusted();
                        }
                        self.whole_region = false;
                    }
                }
            }
            report.checked += count;
        }
        if self.next >= total {
            report.done = true;
            self.next = 0;
        }
        Ok(report)
    }
}

/// Compares `count` blocks of one region.
fn compare(disk: &Disk, first: u64, count: u64, report: &mut ScrubReport) -> Result<(), StorageError> {
    let Some(sidecar) = &disk.sidecar else { return Ok(()) };
    // The namespace became smaller.
    let Some(region) = sidecar.region(first) else { return Ok(()) };
    let block = disk.block_size().bytes() as usize;
    let mut buffer = AlignedBuffer::new(block * count as usize);
    let mut differ = Vec::new();
    locked(sidecar, first, count, Mode::Shared, || {
        read(disk, first, buffer.bytes())?;
        for (lba, bytes) in (first..).zip(buffer.bytes().chunks(block)) {
            if sidecar.checksum.entry(bytes) != checksum::load(&region.table, entry_index(lba))? {
                differ.push(lba);
            }
        }
        Ok(())
    })?;
    for lba in differ {
        if region.is_suspect() && !sidecar.is_read_only() {
            rebuild(disk, sidecar, &region, lba, report)?;
        } else {
            report.mismatches.push(lba);
        }
    }
    Ok(())
}

/// Stores the checksum of a block of a suspect region, unless it agrees by now.
fn rebuild(
    disk: &Disk,
    sidecar: &Sidecar,
    region: &Region,
    lba: u64,
    report: &mut ScrubReport,
) -> Result<(), StorageError> {
    let mut buffer = AlignedBuffer::new(disk.block_size().bytes() as usize);
    locked(sidecar, lba, 1, Mode::Exclusive, || {
        read(disk, lba, buffer.bytes())?;
        let entry = sidecar.checksum.entry(buffer.bytes());
        if entry != checksum::load(&region.table, entry_index(lba))? {
            sidecar.store(region, lba, entry).map_err(|error| {
                sidecar.keep_marks();
                StorageError::from_io(&error)
            })?;
            report.rebuilt.push(lba);
        }
        Ok(())
    })
}

/// Runs `work` with blocks locked.
fn locked(
    sidecar: &Sidecar,
    first: u64,
    count: u64,
    mode: Mode,
    work: impl FnOnce() -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    while !sidecar.locks.try_lock(first, count, mode) {
        thread::sleep(PAUSE);
    }
    let result = work();
    sidecar.locks.unlock(first, count, mode);
    result
}

fn read(disk: &Disk, lba: u64, bytes: &mut [u8]) -> Result<(), StorageError> {
    let geometry = Geometry { block_size: disk.block_size(), blocks: lba };
    let offset = geometry.bytes();
    disk.file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => StorageError::Truncated { offset },
        _ => StorageError::from_io(&error),
    })
}
