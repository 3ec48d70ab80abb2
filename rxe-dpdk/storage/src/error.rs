//! Errors: of one operation, of opening or resizing, and of the ring.

use std::io;
use std::path::PathBuf;

use rxe_proto::mem::{AccessError, AllocError};

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum StorageError {
    /// The offset or the length is not a multiple of the block size.
    #[error("offset or length is not a multiple of the block size")]
    Unaligned,
    /// Blocks outside of the namespace.
    #[error("blocks outside of the namespace")]
    OutOfRange,
    /// The address of the memory does not suit O_DIRECT.
    #[error("the buffer's address is not a multiple of {align}, which O_DIRECT needs")]
    BufferAlignment {
        /// Required alignment in bytes.
        align: usize,
    },
    /// The block differs from its checksum: its contents are damaged.
    #[error("block {lba} differs from its checksum")]
    Media {
        /// Number of the first such block.
        lba: u64,
    },
    /// The file system or the quota has no room (ENOSPC, EDQUOT).
    #[error("no space left on the device")]
    NoSpace,
    /// The file ends before the blocks: another process has truncated it.
    #[error("the file ends at or after byte {offset}, before the requested blocks end")]
    Truncated {
        /// First byte that was not read.
        offset: u64,
    },
    /// The caller's memory is lost, not mapped, or has another length.
    #[error("the buffer cannot be accessed")]
    Memory,
    /// The namespace is being closed.
    #[error("the namespace is being closed")]
    Closed,
    /// The operation was cancelled.
    #[error("the operation was cancelled")]
    Cancelled,
    /// A flush failed, now or before: what was written since the flush before may be lost, so the namespace is read-only.
    #[error("a flush of the file failed: data may be lost, and the namespace is read-only until it is recovered")]
    FlushFailed,
    /// Another error of the operating system.
    #[error("I/O error: {}", io::Error::from_raw_os_error(*errno))]
    Io {
        /// The error number, positive.
        errno: i32,
    },
}

impl StorageError {
    /// Whether data are lost, or cannot be read.
    #[must_use]
    pub const fn is_of_media(self) -> bool {
        match self {
            StorageError::Media { .. }
            | StorageError::Truncated { .. }
            | StorageError::FlushFailed
            | StorageError::Io { .. } => true,
            StorageError::Unaligned
            | StorageError::OutOfRange
            | StorageError::BufferAlignment { .. }
            | StorageError::NoSpace
            | StorageError::Memory
            | StorageError::Closed
            | StorageError::Cancelled => false,
        }
    }

    /// The error for a failed system call.
    pub(crate) fn from_io(error: &io::Error) -> StorageError {
        StorageError::from_errno(error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// The error for an error number.
    pub(crate) fn from_errno(errno: i32) -> StorageError {
        match errno {
            libc::ENOSPC | libc::EDQUOT => StorageError::NoSpace,
            libc::EFAULT => StorageError::Memory,
            errno => StorageError::Io { errno },
        }
    }
}

impl From<AccessError> for StorageError {
    fn from(_: AccessError) -> StorageError {
        StorageError::Memory
    }
}

/// Why storage was not opened or resized.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another process has the file or device.
    #[error("{}: in use by another process; stop that process or choose another file", path.display())]
    InUse {
        /// The file or device.
        path: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: neither a regular file nor a block device", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
    },
    /// No blocks.
    #[error("{path}: the size is 0; create the file with its size, as by `truncate --size=1G FILE`")]
    Empty {
        /// The file, or what the storage is.
        path: String,
    },
    /// The size is not a number of whole blocks.
    #[error("{path}: the size of {size} bytes is not a multiple of the block size {block_size}; change one of them")]
    Size {
        /// The file, or what the storage is.
        path: String,
        /// Size in bytes.
        size: u64,
        /// Block size in bytes.
        block_size: u64,
    },
    /// More than the memory behind the namespace.
    #[error("a size of {size} bytes is beyond the memory of {capacity} bytes")]
    Capacity {
        /// Requested size in bytes.
        size: u64,
        /// Length of the memory in bytes.
        capacity: u64,
    },
    /// Checksums are for memory and regular files.
    #[error("{}: checksums need a regular file, and this is a block device; switch checksums off", path.display())]
    ChecksumsOfDevice {
        /// The device.
        path: PathBuf,
    },
    /// The file with the checksums does not belong to the data or is damaged.
    #[error(
        "{}: {reason}; if the data is good as it is, delete this file, and it is written again from the data",
        path.display()
    )]
    Sidecar {
        /// The file with the checksums.
        path: PathBuf,
        /// The reason, a sentence.
        reason: String,
    },
    /// No memory for tables.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// Why a ring cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// The process may not use io_uring.
    #[error(
        "io_uring is forbidden (EPERM), by a seccomp profile, as Docker's default one, or by the sysctl \
         kernel.io_uring_disabled; allow the system calls io_uring_setup, io_uring_enter and io_uring_register in the \
         container's seccomp profile, set kernel.io_uring_disabled=0, or serve memory instead of files"
    )]
    Forbidden,
    /// The kernel has no io_uring, or a filter says so.
    #[error(
        "io_uring is not available (ENOSYS): the kernel is older than 5.6 or was built without it, or a seccomp profile \
         hides it; use such a kernel, or allow the system calls io_uring_setup, io_uring_enter and io_uring_register in \
         the container's seccomp profile, or serve memory instead of files"
    )]
    Unsupported,
    /// Not enough memory that may be locked.
    #[error("io_uring: no memory for a ring (ENOMEM); raise the limit of locked memory (RLIMIT_MEMLOCK, `ulimit -l`)")]
    NoMemory,
    /// Another error while the ring was created.
    #[error("io_uring: cannot create a ring: {}", io::Error::from_raw_os_error(*errno))]
    Setup {
        /// The error number.
        errno: i32,
    },
    /// The worker has no ring; files and block devices need one.
    #[error("the worker's storage was created without a ring, which files and block devices need")]
    NoRing,
    /// The ring's table of files is full.
    #[error("the ring's table of {max} files is full; serve fewer files, or let more workers share them")]
    TooManyFiles {
        /// Size of the table.
        max: usize,
    },
    /// The kernel refuses a file.
    #[error("io_uring: cannot register a file: {}", io::Error::from_raw_os_error(*errno))]
    Register {
        /// The error number.
        errno: i32,
    },
    /// io_uring_enter failed for good: no operation of this ring will complete.
    #[error("io_uring_enter: {}", io::Error::from_raw_os_error(*errno))]
    Enter {
        /// The error number.
        errno: i32,
    },
}

impl RingError {
    /// The error for a failed `io_uring_setup`, or a failed first `io_uring_register`.
    pub(crate) fn from_setup(error: &io::Error) -> RingError {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => RingError::Forbidden,
            Some(libc::ENOSYS) => RingError::Unsupported,
            Some(libc::ENOMEM) => RingError::NoMemory,
            errno => RingError::Setup { errno: errno.unwrap_or(libc::EIO) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_ring_names_the_cause_and_the_remedy() {
        let text = |errno| RingError::from_setup(&io::Error::from_raw_os_error(errno)).to_string();
        assert!(text(libc::EPERM).contains("seccomp") && text(libc::EPERM).contains("kernel.io_uring_disabled"));
        assert!(text(libc::ENOSYS).contains("kernel is older"));
        assert!(text(libc::ENOMEM).contains("RLIMIT_MEMLOCK"));
        assert!(text(libc::EMFILE).contains("Too many open files"));
    }
}
