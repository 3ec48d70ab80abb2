//! Checksums of a file, in memory and in a second file beside it, `NAME.crc32c`.
//!
//! # Layout
//!
//! All numbers are little-endian.
//!
//! ```text
//! 0        header: magic "RXECRC32", version u32 (1), block size u32, number of blocks u64, CRC-32C of these 24 bytes
//! 4096     region 0: mark u32, zeroes up to 4096 bytes, then 16,384 entries of 4 bytes
//! 73728    region 1, and so on
//! ```
//!
//! A region has 16,384 blocks (64 MiB of 4096-byte blocks, 8 MiB of 512-byte blocks). `checksum.rs` describes entries.
//!
//! # Order of writes, and what holds after a crash
//!
//! 1. Before the first write to a region since the file was opened, its mark is set, on stable storage (RWF_DSYNC).
//! 2. Each write stores the data, then the entries, and completes to the caller after both. A flush covers both files.
//! 3. When the file is closed, both files are flushed; then the marks are cleared.
//!
//! So in a region without a mark, every block agrees with its entry at all times, also after SIGKILL or a power
//! failure, and a block that differs is damaged. In a region with a mark:
//!
//! * after SIGKILL, a block may differ only if a write to it was in progress: the entry of each completed write is in
//!   the page cache at least;
//! * after a power failure, so may a block that was written since the last completed flush.
//!
//! The target cannot tell such a block from a damaged one, and its client has no promise about its contents. So a
//! region that has a mark when the file is opened is *suspect*: a block that differs there is read without an error and
//! counted (`unverified_blocks`); writing the block makes its entry right. A scrub compares first: it leaves blocks
//! that agree alone, reports those that differ as rebuilt, and stores their entries; a region that was scrubbed from
//! its beginning to its end is suspect no more.
//!
//! A write that fails in the middle leaves its blocks undefined, and their entries old: a read returns a media error
//! until they are written again, or old data.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crc32c::crc32c;
use rxe_proto::mem::{AccessError, Allocator, HeapAllocator, Memory};

use crate::checksum::{self, Checksum, ENTRY};
use crate::error::OpenError;
use crate::geometry::{BlockSize, Geometry};
use crate::locks::BlockLocks;

/// Blocks of a region.
pub(crate) const REGION_BLOCKS: u64 = 16_384;
/// Length of the header, and of the part of a region before its entries.
const HEAD: u64 = 4096;
/// Length of the entries of a region.
const TABLE: u64 = REGION_BLOCKS * ENTRY as u64;
const MAGIC: &[u8; 8] = b"RXECRC32";
const VERSION: u32 = 1;
/// Length of the header up to its own checksum.
const CHECKED: usize = 24;
/// Mark of a region that may differ from its blocks.
const MARK: u32 = 1;

/// The mark is in the file, on stable storage or not.
const IN_FILE: u8 = 1;
/// This process has put the mark on stable storage.
const MARKED: u8 = 2;
/// The mark was in the file when it was opened, and no scrub has compared the region since.
const SUSPECT: u8 = 4;

/// Entries of 16,384 blocks.
pub(crate) struct Region {
    /// As in the file, so that the kernel can write it from here.
    pub(crate) table: Memory,
    state: AtomicU8,
}

impl Region {
    fn new(state: u8) -> Result<Region, OpenError> {
        Ok(Region { table: HeapAllocator.allocate(TABLE as usize)?, state: AtomicU8::new(state) })
    }

    /// Whether the mark is on stable storage, so that blocks may be written. One that was found in the file may be in the page cache
    /// only, after a flush that failed: then no later flush writes it.
    pub(crate) fn is_marked(&self) -> bool {
        self.has(MARKED)
    }

    /// Notes that the mark is on stable storage.
    pub(crate) fn set_marked(&self) {
        self.state.fetch_or(IN_FILE | MARKED, Ordering::AcqRel);
    }

    /// Whether a block that differs may be the work of a crash.
    pub(crate) fn is_suspect(&self) -> bool {
        self.has(SUSPECT)
    }

    /// Notes that every block agrees with its entry. The mark stays until the file is closed.
    pub(crate) fn set_trusted(&self) {
        self.state.fetch_and(!SUSPECT, Ordering::AcqRel);
    }

    fn has(&self, state: u8) -> bool {
        self.state.load(Ordering::Acquire) & state != 0
    }
}

/// What was found when a file of checksums was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// It did not exist, and the data file has data: all regions are suspect.
    Created { regions: usize },
    /// As many regions are suspect.
    Suspect { regions: usize },
    /// It is good, or it is new and so is the data file.
    Clean,
}

/// Checksums of a file.
pub(crate) struct Sidecar {
    pub(crate) file: Arc<File>,
    pub(crate) checksum: Checksum,
    pub(crate) locks: BlockLocks,
    /// The bytes of a mark, for the kernel.
    pub(crate) mark: Memory,
    path: PathBuf,
    block_size: BlockSize,
    size: Mutex<Size>,
    /// Nothing of it is written.
    read_only: bool,
    /// Set when an entry could not be written: the marks must survive the close.
    keep_marks: AtomicBool,
}

struct Size {
    blocks: u64,
    regions: Vec<Arc<Region>>,
}

/// Where the mark of a region is in the file.
pub(crate) fn mark_offset(region: u64) -> u64 {
    HEAD + region * (HEAD + TABLE)
}

/// Where the entry of a block is in the file.
pub(crate) fn entry_offset(lba: u64) -> u64 {
    mark_offset(lba / REGION_BLOCKS) + HEAD + lba % REGION_BLOCKS * ENTRY as u64
}

/// The number of the entry of a block in its region.
pub(crate) fn entry_index(lba: u64) -> usize {
    (lba % REGION_BLOCKS) as usize
}

impl Sidecar {
    /// Opens the checksums of `data`, or creates them; `is_hole` says whether the data file reads as zeroes.
    pub(crate) fn open(
        data: &Path,
        geometry: Geometry,
        is_hole: bool,
        read_only: bool,
    ) -> Result<(Sidecar, Found), OpenError> {
        let mut path = data.as_os_str().to_owned();
        path.push(".crc32c");
        let path = PathBuf::from(path);
        let fail = |action| failed(&path, action);
        let opened = OpenOptions::new().read(true).write(!read_only).open(&path);
        let (file, created) = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound && read_only => {
                let reason = "it does not exist, and is not made for a namespace that is read-only".to_owned();
                return Err(OpenError::Sidecar { path, reason });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (create(&path, geometry, is_hole)?, true),
            result => (result.map_err(fail("open"))?, false),
        };
        let blocks = read_header(&file, geometry.block_size).map_err(|reason| reason.at(&path))?;
        let mark = Memory::heap(ENTRY);
        checksum::store(&mark, 0, MARK).map_err(lost(&path))?;
        let mut regions = Vec::new();
        let mut table = vec![0; TABLE as usize];
        for number in 0..blocks.div_ceil(REGION_BLOCKS) {
            let mut found = [0; ENTRY];
            file.read_exact_at(&mut found, mark_offset(number)).map_err(fail("read"))?;
            file.read_exact_at(&mut table, mark_offset(number) + HEAD).map_err(fail("read"))?;
            let region = Region::new(if found == [0; ENTRY] { 0 } else { IN_FILE | SUSPECT })?;
            region.table.write(0, &table).map_err(lost(&path))?;
            regions.push(Arc::new(region));
        }
        let sidecar = Sidecar {
            file: Arc::new(file),
            checksum: Checksum::new(geometry.block_size),
            locks: BlockLocks::new(),
            mark,
            path,
            block_size: geometry.block_size,
            size: Mutex::new(Size { blocks, regions }),
            read_only,
            keep_marks: AtomicBool::new(false),
        };
        sidecar.resize(geometry.blocks)?;
        let suspect = sidecar.regions().iter().filter(|region| region.is_suspect()).count();
        let found = match (suspect, created) {
            (0, _) => Found::Clean,
            (regions, true) => Found::Created { regions },
            (regions, false) => Found::Suspect { regions },
        };
        Ok((sidecar, found))
    }

    /// The regions now. A worker keeps the list until it resizes.
    pub(crate) fn regions(&self) -> Vec<Arc<Region>> {
        self.size().regions.clone()
    }

    /// The region of a block.
    pub(crate) fn region(&self, lba: u64) -> Option<Arc<Region>> {
        self.size().regions.get((lba / REGION_BLOCKS) as usize).map(Arc::clone)
    }

    /// Number of blocks that have checksums.
    pub(crate) fn blocks(&self) -> u64 {
        self.size().blocks
    }

    /// Whether nothing of it is written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Makes the marks survive the close, because an entry in the file may be wrong.
    pub(crate) fn keep_marks(&self) {
        self.keep_marks.store(true, Ordering::Release);
    }

    /// Follows the data file to a new size. Entries of blocks that are gone become 0, as the blocks are zero if they
    /// come again. Calling it again after a failure is safe, also after a crash.
    pub(crate) fn resize(&self, blocks: u64) -> Result<(), OpenError> {
        let mut size = self.size();
        let fail = |action| failed(&self.path, action);
        let regions = blocks.div_ceil(REGION_BLOCKS);
        if self.read_only && blocks != size.blocks {
            let reason =
                format!("it is of {} blocks, and the namespace, which is read-only, has {blocks}", size.blocks);
            return Err(OpenError::Sidecar { path: self.path.clone(), reason });
        }
        if blocks < size.blocks {
            let last = (regions * REGION_BLOCKS).min(size.blocks);
            let zeroes = vec![0; (last - blocks) as usize * ENTRY];
            if let (Some(region), false) = (size.regions.get((blocks / REGION_BLOCKS) as usize), zeroes.is_empty()) {
                region.table.write(entry_index(blocks) * ENTRY, &zeroes).map_err(lost(&self.path))?;
                self.file.write_all_at(&zeroes, entry_offset(blocks)).map_err(fail("write"))?;
            }
            size.regions.truncate(regions as usize);
        }
        let header = header(Geometry { block_size: self.block_size, blocks });
        // At each step the file is long enough for the blocks that the header names.
        if blocks > size.blocks {
            // A crash may have left entries behind the end.
            self.file.set_len(mark_offset(size.blocks.div_ceil(REGION_BLOCKS))).map_err(fail("resize"))?;
            self.file.set_len(mark_offset(regions)).map_err(fail("resize"))?;
            self.file.sync_data().map_err(fail("flush"))?;
        }
        if blocks != size.blocks {
            self.file.write_all_at(&header, 0).map_err(fail("write"))?;
            self.file.sync_data().map_err(fail("flush"))?;
        }
        if blocks < size.blocks {
            self.file.set_len(mark_offset(regions)).map_err(fail("resize"))?;
        }
        while (size.regions.len() as u64) < regions {
            size.regions.push(Arc::new(Region::new(0)?));
        }
        size.blocks = blocks;
        Ok(())
    }

    /// Stores an entry in memory and in the file; the caller holds the block's lock.
    pub(crate) fn store(&self, region: &Region, lba: u64, entry: u32) -> io::Result<()> {
        checksum::store(&region.table, entry_index(lba), entry).map_err(|error| io::Error::other(error.to_string()))?;
        self.file.write_all_at(&entry.to_le_bytes(), entry_offset(lba))
    }

    /// Clears the marks, when both files are on stable storage and no write is in progress. Marks that stay because of
    /// an error only make their regions suspect at the next start.
    pub(crate) fn close(&self, data: &File) -> io::Result<()> {
        if self.read_only || self.keep_marks.load(Ordering::Acquire) {
            return Ok(());
        }
        data.sync_data()?;
        self.file.sync_data()?;
        for (number, region) in (0_u64..).zip(&self.size().regions) {
            if region.has(IN_FILE) && !region.is_suspect() {
                self.file.write_all_at(&[0; ENTRY], mark_offset(number))?;
            }
        }
        self.file.sync_data()
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a header is refused.
enum HeaderError {
    Io(io::Error),
    Reason(String),
}

impl HeaderError {
    fn at(self, path: &Path) -> OpenError {
        match self {
            HeaderError::Io(error) => failed(path, "read")(error),
            HeaderError::Reason(reason) => OpenError::Sidecar { path: path.to_owned(), reason },
        }
    }
}

/// Creates the file under another name first, so that it is complete when it appears under its own.
fn create(path: &Path, geometry: Geometry, is_hole: bool) -> Result<File, OpenError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let fail = |action| failed(path, action);
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&temporary);
    let file = options.map_err(fail("create"))?;
    let regions = geometry.blocks.div_ceil(REGION_BLOCKS);
    file.set_len(mark_offset(regions)).map_err(fail("resize"))?;
    file.write_all_at(&header(geometry), 0).map_err(fail("write"))?;
    if !is_hole {
        for region in 0..regions {
            file.write_all_at(&MARK.to_le_bytes(), mark_offset(region)).map_err(fail("write"))?;
        }
    }
    file.sync_all().map_err(fail("flush"))?;
    std::fs::rename(&temporary, path).map_err(fail("rename"))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(fail("flush the folder of"))?;
    Ok(file)
}

fn header(geometry: Geometry) -> [u8; CHECKED + 4] {
    let mut bytes = [0; CHECKED + 4];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(geometry.block_size.bytes() as u32).to_le_bytes());
    bytes[16..CHECKED].copy_from_slice(&geometry.blocks.to_le_bytes());
    let check = crc32c(&bytes[..CHECKED]);
    bytes[CHECKED..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// The number of blocks in a header.
fn read_header(file: &File, block_size: BlockSize) -> Result<u64, HeaderError> {
    let refuse = |reason: String| Err(HeaderError::Reason(reason));
    let mut bytes = [0; CHECKED + 4];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return refuse("it has no complete header".into());
        }
        result => result.map_err(HeaderError::Io)?,
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let blocks = u64::from(word(16)) | u64::from(word(20)) << 32;
    if &bytes[..8] != MAGIC {
        return refuse("it is no file of checksums".into());
    }
    if word(8) != VERSION {
        return refuse(format!("its version is {}, and this program knows version {VERSION} only", word(8)));
    }
    if word(CHECKED) != crc32c(&bytes[..CHECKED]) {
        return refuse("its header is damaged".into());
    }
    if u64::from(word(12)) != block_size.bytes() {
        return refuse(format!("its blocks have {} bytes, and the namespace's have {}", word(12), block_size.bytes()));
    }
    let needed = blocks.div_ceil(REGION_BLOCKS).checked_mul(HEAD + TABLE).and_then(|len| len.checked_add(HEAD));
    let len = file.metadata().map_err(HeaderError::Io)?.len();
    match needed {
        Some(needed) if needed <= len => Ok(blocks),
        _ => refuse(format!("its length of {len} bytes is too short for the {blocks} blocks that its header names")),
    }
}

/// Adds the file and what was tried to an error.
pub(crate) fn failed(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> OpenError + use<> {
    let path = path.to_owned();
    move |source| OpenError::Io { path, action, source }
}

/// The tables are on the heap, so that this does not occur.
fn lost(path: &Path) -> impl FnOnce(AccessError) -> OpenError + use<> {
    let failed = failed(path, "keep in memory");
    move |error| failed(io::Error::other(error.to_string()))
}

#[cfg(test)]
#[path = "sidecar_tests.rs"]
mod tests;
