//! The file of checksums beside a namespace's file: header, marks and entries of any content.
//!
//! Opening it fails with a reason, or the disk has the size of its data, no more suspect regions than regions, and a scrub
//! finds the same damage a second time. An input is [`FLAGS`](FLAG_SEAL), the number of blocks of the data, the length of the file
//! in KiB, its header, and for each region its mark and its first entries.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rxe_storage::{BlockSize, Disk, DiskOptions, Notice, OpenError, Scrub, ScrubReport};

use crate::input::Input;

/// Flag of the first byte: the checksum of the header is made right.
pub const FLAG_SEAL: u8 = 1;
/// Flag: blocks of 4096 bytes instead of 512.
pub const FLAG_LARGE_BLOCKS: u8 = 2;
/// Flag: the magic, the version and the block size of the header are made right too.
pub const FLAG_HEADER: u8 = 4;

/// Length of the header with its checksum.
pub const HEADER: usize = 28;
/// Entries of each region that an input has.
pub const ENTRIES: usize = 4;
const REGION_BLOCKS: u64 = 16_384;
/// Offset of the first region, and distance of the others.
const FIRST: u64 = 4096;
const REGION: u64 = FIRST + 4 * REGION_BLOCKS;
/// Regions of the longest file.
const REGIONS: u64 = 4;
/// Most blocks that a scrub reads.
const SCRUBBED: u64 = 256;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // A flush takes no time in memory.
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("rxe-fuzz-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Examines a file of checksums.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.u8();
    let block_size = if flags & FLAG_LARGE_BLOCKS != 0 { BlockSize::B4096 } else { BlockSize::B512 };
    let blocks = u64::from(input.u16()).max(1);
    let folder = Folder::new();
    let path = folder.0.join("data");
    let made = File::create(&path).and_then(|file| file.set_len(blocks * block_size.bytes()));
    made.expect("a file");
    write(&folder.0.join("data.crc32c"), flags, block_size, &mut input);
    let options = DiskOptions { block_size, direct: false, checksums: true, read_only: false };
    let Some((first, report)) = open(&path, &options, blocks) else { return };
    let second = open(&path, &options, blocks).expect("it was opened before");
    // A region that was scrubbed from its beginning to its end is suspect no more.
    assert_eq!(second.0, if report.done { 0 } else { first }, "suspect regions");
    let ScrubReport { mismatches, rebuilt, .. } = second.1;
    assert!(rebuilt.is_empty() && mismatches == report.mismatches, "{mismatches:?} {rebuilt:?} after {report:?}");
}

/// Writes the file of checksums.
fn write(path: &Path, flags: u8, block_size: BlockSize, input: &mut Input<'_>) {
    let len = u64::from(input.u16()) * 1024 % (FIRST + REGIONS * REGION + 1);
    let mut header: [u8; HEADER] = input.array();
    if flags & FLAG_HEADER != 0 {
        header[..8].copy_from_slice(b"RXECRC32");
        header[8..12].copy_from_slice(&1_u32.to_le_bytes());
        header[12..16].copy_from_slice(&(block_size.bytes() as u32).to_le_bytes());
    }
    if flags & FLAG_SEAL != 0 {
        let check = crc32c::crc32c(&header[..HEADER - 4]);
        header[HEADER - 4..].copy_from_slice(&check.to_le_bytes());
    }
    let file = File::create(path).expect("a file");
    let put = |bytes: &[u8], at: u64| {
        let room = usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX);
        file.write_all_at(&bytes[..bytes.len().min(room)], at).expect("written");
    };
    put(&header, 0);
    for region in 0..REGIONS {
        put(&input.array::<4>(), FIRST + region * REGION);
        put(&input.array::<{ 4 * ENTRIES }>(), 2 * FIRST + region * REGION);
    }
    file.set_len(len).expect("a length");
}

/// Opens the disk, scrubs its first blocks, and closes it. Returns the number of suspect regions.
fn open(path: &Path, options: &DiskOptions, blocks: u64) -> Option<(usize, ScrubReport)> {
    let (disk, notices) = match Disk::open(path, options) {
        Ok(opened) => opened,
        Err(OpenError::Sidecar { reason, .. }) => {
            assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
            return None;
        }
        Err(OpenError::Io { source, .. }) if source.kind() == ErrorKind::StorageFull => return None,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(disk.measure().expect("a size").blocks, blocks);
    let suspect = notices.iter().map(|notice| match notice {
        Notice::Unclean { regions, .. } => *regions,
        other => panic!("{other}"),
    });
    let suspect: usize = suspect.sum();
    assert!(suspect as u64 <= blocks.div_ceil(REGION_BLOCKS));
    let report = Scrub::disk(disk).step(SCRUBBED).expect("blocks that can be read");
    assert_eq!((report.checked, report.done), (SCRUBBED.min(blocks), blocks <= SCRUBBED));
    let found = report.mismatches.iter().chain(&report.rebuilt);
    assert!(found.clone().all(|&lba| lba < blocks) && found.count() as u64 <= report.checked);
    Some((suspect, report))
}
