//! Memory in a file that other local processes may map.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use rxe_proto::mem::Backing;
use rxe_sync::LostFlag;

use super::fault_guard::FaultGuard;

/// A shared mapping of a file, normally on hugetlbfs (`/dev/hugepages/name`) or tmpfs (`/dev/shm/name`).
///
/// The file's space is reserved when it is opened, so a full file system is an error here and never a fault later. Another
/// process with write access can still truncate it. Then the memory is lost for good: the access that finds the truncation
/// and every later one fail in [`Memory`](rxe_proto::mem::Memory).
///
/// A file that did not exist is created with mode 0600, zeroed, and removed on drop. A file that did exist keeps its
/// contents and its name, and grows if it is too short: data outlives the process only in files made by others.
pub struct FileMemory {
    base: NonNull<u8>,
    len: usize,
    mapped: usize,
    path: PathBuf,
    found: Option<Found>,
    id: (u64, u64),
    guard: Option<FaultGuard>,
}

/// A file cannot be mapped. The message is one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{path}: cannot {action}: {source}", path = .path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The step that failed.
    pub action: &'static str,
    /// The reason.
    pub source: io::Error,
}

/// A file that was there before us.
#[derive(Clone, Copy, Debug)]
struct Found {
    owner: u32,
    mode: u32,
    len: u64,
}

// SAFETY: the value only says where bytes are; it accesses none. munmap may be called from any thread.
unsafe impl Send for FileMemory {}
// SAFETY: as for Send.
unsafe impl Sync for FileMemory {}

// SAFETY: base and len never change, `len` bytes from base are mapped readable and writable until drop: they lie in the
// file (reserved in `open`), or are anonymous once the file was cut short. No reference to them is made here.
unsafe impl Backing for FileMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }

    fn lost(&self) -> Option<&LostFlag> {
        self.guard.as_ref().map(FaultGuard::lost)
    }
}

impl FileMemory {
    /// Maps the first `len` bytes of the file at `path`, which is created when it does not exist.
    ///
    /// # Errors
    ///
    /// [`FileError`] with the step that failed.
    pub fn open(path: impl AsRef<Path>, len: usize) -> Result<FileMemory, FileError> {
        let path = path.as_ref();
        let failed = |action, source| FileError { path: path.to_owned(), action, source };
        if len == 0 {
            return Err(failed("map it", io::Error::new(io::ErrorKind::InvalidInput, "the length is 0")));
        }
        let (file, found, id) = open_file(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => failed(
                "open it",
                io::Error::new(error.kind(), "it is a symbolic link, and links are not followed: name the file itself"),
            ),
            _ => failed("open or create it", error),
        })?;
        // From here on an error must not leave our file behind: the value's drop removes it.
        let path = path.to_owned();
        let mut memory = FileMemory { base: NonNull::dangling(), len, mapped: 0, path, found, id, guard: None };
        let size = reserve(&file, len).map_err(|error| failed("reserve its space", error))?;
        memory.base = map(&file, size).map_err(|error| failed("map it", error))?;
        memory.mapped = size;
        // SAFETY: the mapping just made, which lives until drop, where the guard goes first; nobody has a reference to it
        // (contract of Backing).
        let guard = unsafe { FaultGuard::new(memory.base.as_ptr().expose_provenance(), size) };
        memory.guard = Some(guard.map_err(|error| failed("guard its mapping", error))?);
        Ok(memory)
    }

    /// Device and inode: equal for all names of one file, different for different files.
    pub fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Former length of an existing file that was shorter than requested.
    pub fn grown_from(&self) -> Option<u64> {
        self.found.map(|found| found.len).filter(|&len| len < self.len as u64)
    }

    /// The other users with write access to an existing file, in words ("its group"); `None` if there are none but root.
    pub fn written_by_others(&self) -> Option<String> {
        let Found { owner, mode, .. } = self.found?;
        // SAFETY: no arguments, no errors.
        let own = unsafe { libc::geteuid() };
        let owner = (owner != own && owner != 0).then(|| format!("its owner (uid {owner})"));
        let group = (mode & 0o020 != 0).then(|| "its group".to_owned());
        let others = (mode & 0o002 != 0).then(|| "everybody".to_owned());
        let all: Vec<String> = [owner, group, others].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FileMemory {
    fn drop(&mut self) {
        self.guard = None;
        if self.mapped > 0 {
            // SAFETY: exactly what `map` mapped; every Memory that points into it holds an Arc of this value.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
        }
        if self.found.is_none() {
            // Another process may have removed it already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl fmt::Debug for FileMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileMemory").field("path", &self.path).field("base", &self.base).finish_non_exhaustive()
    }
}

/// The open file, what it was if it is not new, and its device and inode.
fn open_file(path: &Path) -> io::Result<(File, Option<Found>, (u64, u64))> {
    let id = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
    match options.clone().create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            let id = id(&file.metadata()?);
            Ok((file, None, id))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = options.open(path)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            let found = Found { owner: metadata.uid(), mode: metadata.mode(), len: metadata.len() };
            Ok((file, Some(found), id(&metadata)))
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

    use rxe_proto::mem::{AccessError, AtomicError, Memory};

    use super::*;
    use crate::memory::files_lost;

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

    #[test]
    fn other_writers_of_a_file_are_named() {
        use std::os::unix::fs::PermissionsExt;

        let path = path("mode");
        let written_by = |mode| {
            std::fs::write(&path, b"four").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let file = FileMemory::open(&path, 4096).unwrap();
            assert_eq!(file.grown_from(), Some(4));
            file.written_by_others()
        };
        assert_eq!(written_by(0o644), None);
        assert_eq!(written_by(0o660).as_deref(), Some("its group"));
        assert_eq!(written_by(0o666).as_deref(), Some("its group, everybody"));
        // Only root can give a file away.
        if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            let file = FileMemory::open(&path, 4096).unwrap();
            assert_eq!(file.written_by_others().as_deref(), Some("its owner (uid 12345), its group, everybody"));
            assert_eq!(file.grown_from(), None);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_has_one_identity_under_all_its_names() {
        let (path, other) = (path("name"), path("other-name"));
        let first = FileMemory::open(&path, 4096).unwrap();
        std::fs::hard_link(&path, &other).unwrap();
        let second = FileMemory::open(&other, 4096).unwrap();
        assert_eq!(first.id(), second.id());
        std::fs::remove_file(&other).unwrap();
    }

    /// Memory in a file of `pages` pages, which is then cut down to one.
    fn cut_short(name: &str, pages: usize) -> Memory {
        let path = path(name);
        let memory = Memory::new(Arc::new(FileMemory::open(&path, pages * 4096).unwrap()));
        memory.write(0, b"kept").unwrap();
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert!(!memory.is_lost(), "no access has faulted yet");
        memory
    }

    #[test]
    fn accesses_fail_from_the_first_one_behind_a_truncation_on() {
        type Try = fn(&Memory) -> bool;
        let tries: [(&str, Try); 7] = [
            ("read", |memory| memory.read(3 * 4096 - 2, &mut [0; 4]) == Err(AccessError::Lost)),
            ("write", |memory| memory.write(4094, b"four") == Err(AccessError::Lost)),
            ("fill", |memory| memory.fill(0, 4 * 4096, 7) == Err(AccessError::Lost)),
            ("load", |memory| memory.load(8192) == Err(AtomicError::Lost)),
            ("store", |memory| memory.store(8192, 1) == Err(AtomicError::Lost)),
            ("add", |memory| memory.fetch_add(8192, 1) == Err(AtomicError::Lost)),
            ("swap", |memory| memory.compare_swap(8192, 0, 1) == Err(AtomicError::Lost)),
        ];
        for (name, is_lost) in tries {
            let memory = cut_short(name, 4);
            let before = files_lost();
            let piece = memory.slice(0, 8).unwrap();
            assert_eq!(piece.read(0, &mut [0; 4]), Ok(()), "what is left of the file is there");
            assert!(is_lost(&memory), "{name}");
            assert!(memory.is_lost() && files_lost() > before, "{name}");
            for (name, is_lost) in tries {
                assert!(is_lost(&memory), "{name} again");
            }
            assert_eq!(piece.read(0, &mut [0; 4]), Err(AccessError::Lost));
        }
    }

    #[test]
    fn threads_that_fault_at_once_all_continue() {
        for round in 0..20 {
            let memory = cut_short(&format!("threads-{round}"), 64);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let memory = &memory;
                    scope.spawn(move || assert!(memory.fill((1 + thread) * 4096, 60 * 4096, 1).is_err()));
                }
            });
        }
    }

    #[test]
    fn a_truncated_hugepage_file_is_handled_too() {
        let path = PathBuf::from(format!("/dev/hugepages/rxe-test-{}-cut", std::process::id()));
        // Without huge pages there is nothing to test.
        let Ok(file) = FileMemory::open(&path, 4 << 20) else { return };
        let memory = Memory::new(Arc::new(file));
        memory.write(3 << 20, b"here").unwrap();
        File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
        assert_eq!(memory.write(3 << 20, b"gone"), Err(AccessError::Lost));
        drop(memory);
        assert!(!path.exists());
    }
}
