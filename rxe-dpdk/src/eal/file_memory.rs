//! Memory in a file that other local processes may map.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use rxe_proto::mem::Backing;

use super::error::EalError;

/// A shared mapping of a file, normally on hugetlbfs (`/dev/hugepages/name`) or tmpfs (`/dev/shm/name`).
///
/// The file's space is reserved when it is opened, so a full file system is an error here and never a SIGBUS later.
/// (Another process that may write the file can still cut it short under us: keep its permissions tight.)
///
/// A file that did not exist is created with mode 0600, zeroed, and removed on drop. A file that did exist keeps its
/// contents and its name, and grows if it is too short: data outlives the process only in files made by others.
#[derive(Debug)]
pub struct FileMemory {
    base: NonNull<u8>,
    len: usize,
    mapped: usize,
    path: PathBuf,
    created: bool,
}

// SAFETY: the value only says where bytes are; it accesses none. munmap may be called from any thread.
unsafe impl Send for FileMemory {}
// SAFETY: as for Send.
unsafe impl Sync for FileMemory {}

// SAFETY: base and len never change, `len` bytes from base are mapped readable and writable until drop and lie in the
// file (reserved in `open`), and no reference to them is made here.
unsafe impl Backing for FileMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl FileMemory {
    /// Maps the first `len` bytes of the file at `path`, which is created when it does not exist.
    ///
    /// # Errors
    ///
    /// [`EalError::File`] with the step that failed.
    pub fn open(path: impl AsRef<Path>, len: usize) -> Result<FileMemory, EalError> {
        let path = path.as_ref();
        let failed = |action, source| EalError::File { path: path.to_owned(), action, source };
        if len == 0 {
            return Err(failed("map it", io::Error::new(io::ErrorKind::InvalidInput, "a length of 0 was asked for")));
        }
        let (file, created) = open_file(path).map_err(|error| failed("open or create it", error))?;
        // From here on an error must not leave our file behind: the value's drop removes it.
        let mut memory = FileMemory { base: NonNull::dangling(), len, mapped: 0, path: path.to_owned(), created };
        let size = reserve(&file, len).map_err(|error| failed("reserve its space", error))?;
        memory.base = map(&file, size).map_err(|error| failed("map it", error))?;
        memory.mapped = size;
        Ok(memory)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: exactly what `map` mapped; every Memory that points into it holds an Arc of this value.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
        }
        if self.created {
            // Somebody may have removed it before us, which is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The open file, and whether it is new.
fn open_file(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
    match options.clone().create_new(true).mode(0o600).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = options.open(path)?;
            if !file.metadata()?.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            Ok((file, false))
        }
        Err(error) => Err(error),
    }
}

/// Makes the file hold `len` bytes, rounded up to the page size of its file system, and returns that.
fn reserve(file: &File, len: usize) -> io::Result<usize> {
    let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
    // SAFETY: all zeros is a valid statfs, and fstatfs only writes it.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `stat` is large enough.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The block size is the (huge)page size on hugetlbfs and tmpfs; mappings need ordinary pages at least.
    let page = usize::try_from(stat.f_bsize).unwrap_or(0).max(4096);
    let size = len.checked_next_multiple_of(page).ok_or_else(too_large)?;
    let offset = libc::off_t::try_from(size).map_err(|_| too_large())?;
    // SAFETY: the descriptor is open; no memory is involved.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, offset) } == 0 {
        return Ok(size);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "its file system cannot reserve space; use one on /dev/hugepages or /dev/shm",
        ));
    }
    Err(error)
}

fn map(file: &File, size: usize) -> io::Result<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // Populated now, so that the data path takes no page faults.
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice; nothing of ours is replaced.
    let base = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rxe_proto::mem::Memory;

    use super::*;

    fn path(name: &str) -> PathBuf {
        PathBuf::from(format!("/dev/shm/rxe-test-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_new_file_is_shared_zeroed_and_removed() {
        let path = path("new");
        let file = FileMemory::open(&path, 5000).unwrap();
        assert_eq!(file.len(), 5000);
        let memory = Memory::new(Arc::new(file));
        assert!(std::fs::read(&path).unwrap().iter().all(|b| *b == 0));
        memory.write(4990, b"0123456789").unwrap();
        assert!(memory.write(4991, b"0123456789").is_err());
        let seen = std::fs::read(&path).unwrap();
        assert_eq!(seen.len(), 8192);
        assert_eq!(&seen[4990..5000], b"0123456789");
        drop(memory);
        assert!(!path.exists());
    }

    #[test]
    fn an_existing_file_keeps_its_contents_and_name() {
        let path = path("old");
        std::fs::write(&path, b"kept").unwrap();
        let memory = Memory::new(Arc::new(FileMemory::open(&path, 4096).unwrap()));
        let mut bytes = [0; 4];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        drop(memory);
        assert!(path.exists());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn errors_name_the_file_and_leave_nothing_behind() {
        let path = path("huge");
        let error = FileMemory::open(&path, 1 << 50).unwrap_err().to_string();
        assert!(error.contains("reserve") && error.contains("rxe-test"), "{error}");
        assert!(!path.exists());
        assert!(FileMemory::open("/dev/shm", 4096).is_err());
        assert!(FileMemory::open(&path, 0).is_err());
        assert!(FileMemory::open("/nonexistent/dir/file", 4096).is_err());
    }
}
