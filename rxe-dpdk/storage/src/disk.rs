//! Files and block devices: opening them, and what all workers share of one.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags, fcntl_setfl};
use rxe_proto::mem::{Allocator, HeapAllocator, Memory};

use crate::aligned::AlignedBuffer;
use crate::error::OpenError;
use crate::geometry::{BlockSize, Geometry};
use crate::sidecar::{Found, Sidecar, failed};

/// Length of the zeroes that are written where the file system cannot make them.
const ZEROES: usize = 256 << 10;
/// Largest alignment that O_DIRECT is tried with.
const PAGE: usize = 4096;

/// Settings of a [`Disk`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskOptions {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Whether to bypass the page cache (O_DIRECT). Where the file system refuses, the file is used through the page
    /// cache, and a [`Notice`] says so.
    pub direct: bool,
    /// Whether each block has a checksum, in `NAME.crc32c`; regular files only. Takes 4 bytes of memory per block, and
    /// one more request to the kernel per write.
    pub checksums: bool,
    /// Whether the file is opened for reading only. Changes fail; checksums must be there already.
    pub read_only: bool,
}

/// What an operator should know about a file that was opened; one line each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// O_DIRECT is refused.
    Buffered {
        /// The file.
        path: PathBuf,
        /// Block size in bytes.
        block_size: u64,
    },
    /// The checksums are new, and the data is not.
    ChecksumsCreated {
        /// The file.
        path: PathBuf,
        /// Number of regions without trusted checksums.
        regions: usize,
    },
    /// The target ended without closing the file.
    Unclean {
        /// The file.
        path: PathBuf,
        /// Number of regions without trusted checksums.
        regions: usize,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Buffered { path, block_size } => write!(
                f,
                "{}: the file system refuses O_DIRECT with blocks of {block_size} bytes; using the page cache",
                path.display()
            ),
            Notice::ChecksumsCreated { path, regions } => write!(
                f,
                "{}: has data but had no checksums; damage in {regions} regions of 16384 blocks is not reported before a \
                 scrub is complete",
                path.display()
            ),
            Notice::Unclean { path, regions } => write!(
                f,
                "{}: was not closed; damage in {regions} regions of 16384 blocks is not reported before a scrub is complete",
                path.display()
            ),
        }
    }
}

/// A file or block device, open for this process alone: the part that all workers share. Closed when the last instance
/// is dropped, which flushes it if it has checksums, and so may take a while.
pub struct Disk {
    pub(crate) file: Arc<File>,
    pub(crate) sidecar: Option<Sidecar>,
    /// What addresses of buffers must be a multiple of; 1 without O_DIRECT.
    pub(crate) align: usize,
    /// Page-aligned zeroes.
    pub(crate) zeroes: Memory,
    /// Whether the file system makes holes, as far as is known.
    pub(crate) punch: AtomicBool,
    /// Whether the file system zeroes ranges, as far as is known.
    pub(crate) zero_range: AtomicBool,
    /// Whether a flush failed since the file was opened or recovered.
    failed: AtomicBool,
    /// Number of flushes that failed.
    failures: AtomicU64,
    /// Number of recoveries.
    recoveries: AtomicU64,
    path: PathBuf,
    block_size: BlockSize,
    regular: bool,
    read_only: bool,
}

impl Disk {
    /// Opens a file or block device, and locks it: a regular file by `flock`, a device by O_EXCL. For the control
    /// thread.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when it is missing, in use, or has an unsuitable size, or the checksums are unusable.
    pub fn open(path: &Path, options: &DiskOptions) -> Result<(Arc<Disk>, Vec<Notice>), OpenError> {
        let mut notices = Vec::new();
        let kind = std::fs::metadata(path).map_err(failed(path, "open"))?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(OpenError::Kind { path: path.to_owned() });
        }
        if options.checksums && kind.is_block_device() {
            return Err(OpenError::ChecksumsOfDevice { path: path.to_owned() });
        }
        let exclusive = if kind.is_block_device() { libc::O_EXCL } else { 0 };
        let open =
            |flags| OpenOptions::new().read(true).write(!options.read_only).custom_flags(exclusive | flags).open(path);
        let direct = if options.direct { libc::O_DIRECT } else { 0 };
        let opened = match open(direct) {
            // The file system has no O_DIRECT at all.
            Err(error) if options.direct && error.raw_os_error() == Some(libc::EINVAL) => Ok((open(0), false)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(OpenError::InUse { path: path.to_owned() }),
            result => Ok((result, options.direct)),
        };
        let (file, mut direct) = match opened? {
            (Err(error), _) => return Err(failed(path, "open")(error)),
            (Ok(file), direct) => (file, direct),
        };
        // The path may lead elsewhere by now.
        let regular = file.metadata().map_err(failed(path, "examine"))?.is_file();
        if regular {
            lock(&file, path)?;
        }
        let geometry = measure(&file, path, options.block_size)?;
        let mut align = 1;
        if direct {
            match probe(&file, geometry) {
                Ok(found) => align = found,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    direct = false;
                    fcntl_setfl(&file, OFlags::empty())
                        .map_err(|error| failed(path, "change flags of")(error.into()))?;
                }
                Err(error) => return Err(failed(path, "read")(error)),
            }
        }
        if options.direct && !direct {
            notices.push(Notice::Buffered { path: path.to_owned(), block_size: options.block_size.bytes() });
        }
        let sidecar = if options.checksums && regular {
            // Without data blocks the file is one hole; blocks that are still to be allocated are counted after a
            // flush.
            file.sync_data().map_err(failed(path, "flush"))?;
            let is_hole = file.metadata().map_err(failed(path, "examine"))?.blocks() == 0;
            let (sidecar, found) = Sidecar::open(path, geometry, is_hole, options.read_only)?;
            match found {
                Found::Clean => {}
                Found::Created { regions } => {
                    notices.push(Notice::ChecksumsCreated { path: path.to_owned(), regions });
                }
                Found::Suspect { regions } => notices.push(Notice::Unclean { path: path.to_owned(), regions }),
            }
            Some(sidecar)
        } else {
            None
        };
        let punch = if regular { makes_holes(&file, geometry) } else { discards(&file) };
        let whole = HeapAllocator.allocate(ZEROES + PAGE)?;
        let zeroes = whole.slice(whole.as_ptr().addr().wrapping_neg() % PAGE, ZEROES).unwrap_or(whole);
        let disk = Disk {
            file: Arc::new(file),
            sidecar,
            align,
            zeroes,
            punch: AtomicBool::new(punch),
            zero_range: AtomicBool::new(true),
            failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            path: path.to_owned(),
            block_size: options.block_size,
            regular,
            read_only: options.read_only,
        };
        Ok((Arc::new(disk), notices))
    }

    /// The path that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the page cache is bypassed.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.align > 1
    }

    /// Looks at the size of the file or device.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when it has no whole number of blocks, or none, or cannot be examined.
    pub fn measure(&self) -> Result<Geometry, OpenError> {
        measure(&self.file, &self.path, self.block_size)
    }

    /// Takes the size of the file or device: the table of checksums follows it, so that what was beyond a smaller one is forgotten.
    ///
    /// # Errors
    ///
    /// As [`measure`](Self::measure), and when the file of checksums cannot be written.
    pub fn resize(&self) -> Result<Geometry, OpenError> {
        let geometry = self.measure()?;
        if let Some(sidecar) = &self.sidecar {
            sidecar.resize(geometry.blocks)?;
        }
        Ok(geometry)
    }

    /// Size of a block.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Whether deallocated blocks are released, and read as zeroes.
    #[must_use]
    pub fn releases_blocks(&self) -> bool {
        self.punch.load(Ordering::Relaxed)
    }

    /// Whether a flush failed: what was written since the flush before may be lost, as the kernel does not write it again. All
    /// changes and flushes fail with [`FlushFailed`](crate::StorageError::FlushFailed) until [`recover`](Self::recover).
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// A flush failed.
    pub(crate) fn fail(&self) {
        self.keep_marks();
        self.failures.fetch_add(1, Ordering::AcqRel);
        self.failed.store(true, Ordering::Release);
    }

    /// Number of flushes that failed. What an operation wrote before the last one may be lost.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// Number of recoveries. An instance that has seen fewer opens its file for flushes again.
    pub(crate) fn recoveries(&self) -> u64 {
        self.recoveries.load(Ordering::Acquire)
    }

    /// Allows changes and flushes again after a failed flush, if a flush succeeds now. What was lost stays lost. For the control
    /// thread.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the flush fails again.
    pub fn recover(&self) -> Result<(), OpenError> {
        let fail = |action| failed(&self.path, action);
        self.reopen().and_then(|file| file.sync_data()).map_err(fail("flush"))?;
        if let Some(sidecar) = &self.sidecar {
            reopened(&sidecar.file, self.read_only)
                .and_then(|file| file.sync_data())
                .map_err(fail("flush the checksums of"))?;
        }
        self.recoveries.fetch_add(1, Ordering::AcqRel);
        self.failed.store(false, Ordering::Release);
        Ok(())
    }

    /// The file, opened again. The kernel reports a failure to write to each open file once, so whoever flushes needs his own.
    pub(crate) fn reopen(&self) -> io::Result<File> {
        reopened(&self.file, self.read_only)
    }

    /// Whether the file is opened for reading only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Notes that an operation ended in a state that is not known.
    pub(crate) fn keep_marks(&self) {
        if let Some(sidecar) = &self.sidecar {
            sidecar.keep_marks();
        }
    }

    /// Notes that the file system refuses a kind of fallocate.
    pub(crate) fn refused(&self, what: &AtomicBool) {
        what.store(false, Ordering::Relaxed);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(sidecar) = &self.sidecar {
            // The marks stay after an error, and the next start treats their regions as after a crash.
            let _ = sidecar.close(&self.file);
        }
        if self.regular {
            // A ring may hold the file a little longer; the lock should not.
            let _ = self.file.unlock();
        }
    }
}

/// The file of `file`, opened again.
pub(crate) fn reopened(file: &File, read_only: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(!read_only).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Whether the file system of a regular file makes holes. A hole behind the end changes nothing.
fn makes_holes(file: &File, geometry: Geometry) -> bool {
    let end = geometry.bytes().next_multiple_of(PAGE as u64);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, end, PAGE as u64).is_ok()
}

/// Whether the kernel can zero blocks of a device by releasing them.
fn discards(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    // A partition has the queue of its disk.
    let queue = ["queue", "../queue"].into_iter().find_map(|queue| {
        std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{queue}/write_zeroes_max_bytes")).ok()
    });
    queue.is_some_and(|bytes| bytes.trim() != "0")
}

/// Locks a regular file for this process.
fn lock(file: &File, path: &Path) -> Result<(), OpenError> {
    file.try_lock().map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => OpenError::InUse { path: path.to_owned() },
        std::fs::TryLockError::Error(error) => failed(path, "lock")(error),
    })
}

/// Block size and number of blocks of a file or device.
fn measure(mut file: &File, path: &Path, block_size: BlockSize) -> Result<Geometry, OpenError> {
    // Works for block devices too. Nothing uses the position.
    let size = file.seek(SeekFrom::End(0)).map_err(failed(path, "examine"))?;
    let name = || path.display().to_string();
    match size {
        0 => Err(OpenError::Empty { path: name() }),
        _ if size % block_size.bytes() != 0 => {
            Err(OpenError::Size { path: name(), size, block_size: block_size.bytes() })
        }
        _ => Ok(Geometry { block_size, blocks: size >> block_size.shift() }),
    }
}

/// The alignment of buffers that O_DIRECT needs for blocks of this size; EINVAL if it does not work with them.
fn probe(file: &File, geometry: Geometry) -> io::Result<usize> {
    let block = geometry.block_size.bytes();
    // A block that does not begin at a multiple of 4096, if there is one.
    let offset = if geometry.blocks > 1 { block } else { 0 };
    let mut buffer = AlignedBuffer::new(2 * PAGE);
    for align in [512, PAGE] {
        match file.read_at(&mut buffer.bytes()[align % PAGE..][..block as usize], offset) {
            Ok(_) => return Ok(align),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}
