//! The current chunk of an operation: its blocks, their locks and their checksums.

use std::sync::Arc;

use crate::checksum::{self, Scratch};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::geometry::Geometry;
use crate::locks::{LOCKS, Mode};
use crate::op::{Kind, Op};
use crate::sidecar::{REGION_BLOCKS, Region, Sidecar, entry_index};
use crate::stats::StorageStats;

/// Compares the blocks that were read with their entries.
pub(crate) fn verify(
    op: &Op,
    geometry: Geometry,
    sidecar: &Sidecar,
    region: &Region,
    scratch: &mut Scratch,
    stats: &StorageStats,
) -> Result<(), StorageError> {
    let memory = op.memory.as_ref().ok_or(StorageError::Memory)?;
    let (first, count) = blocks(geometry, op);
    for number in 0..count {
        let at = op.done + (number << geometry.block_size.shift());
        let found = sidecar.checksum.of(memory, at as usize, scratch)?;
        let lba = first + number;
        if found == checksum::load(&region.table, entry_index(lba))? {
            continue;
        }
        if !region.is_suspect() {
            return Err(StorageError::Media { lba });
        }
        stats.unverified_blocks.inc();
    }
    Ok(())
}

/// Stores the entries of the blocks that were written, in memory.
pub(crate) fn update(
    op: &Op,
    geometry: Geometry,
    sidecar: &Sidecar,
    region: &Region,
    scratch: &mut Scratch,
) -> Result<(), StorageError> {
    let (first, count) = blocks(geometry, op);
    for number in 0..count {
        let entry = match &op.memory {
            Some(memory) => {
                let at = op.done + (number << geometry.block_size.shift());
                sidecar.checksum.of(memory, at as usize, scratch)?
            }
            None => 0,
        };
        checksum::store(&region.table, entry_index(first + number), entry)?;
    }
    Ok(())
}

/// Unlocks the blocks of the current chunk, or gives up locking them.
pub(crate) fn unlock(disk: &Disk, geometry: Geometry, op: &mut Op) {
    let Some(sidecar) = &disk.sidecar else { return };
    let (first, count) = blocks(geometry, op);
    if std::mem::take(&mut op.locked) {
        sidecar.locks.unlock(first, count, mode(op.kind));
    }
    if std::mem::take(&mut op.wants_lock) {
        sidecar.locks.forget(first, count);
    }
}

/// How an operation uses its blocks.
pub(crate) fn mode(kind: Kind) -> Mode {
    if kind.changes() { Mode::Exclusive } else { Mode::Shared }
}

/// First block and number of blocks of the current chunk.
pub(crate) fn blocks(geometry: Geometry, op: &Op) -> (u64, u64) {
    let shift = geometry.block_size.shift();
    (op.start() >> shift, op.chunk >> shift)
}

/// Largest chunk at `start`, in bytes, with checksums.
pub(crate) fn chunk_limit(geometry: Geometry, start: u64) -> u64 {
    let shift = geometry.block_size.shift();
    let first = start >> shift;
    (REGION_BLOCKS - first % REGION_BLOCKS).min(LOCKS) << shift
}

/// The region of the current chunk; `None` without checksums.
pub(crate) fn region_of<'a>(regions: &'a [Arc<Region>], geometry: Geometry, op: &Op) -> Option<&'a Region> {
    regions.get((blocks(geometry, op).0 / REGION_BLOCKS) as usize).map(|region| &**region)
}
