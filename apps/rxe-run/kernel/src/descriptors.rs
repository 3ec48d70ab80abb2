//! Which descriptors of the process are ours.
//!
//! `write`, `close` and `fstat` look up each descriptor of the program, so a lookup is one load: no lock, no allocation, no
//! system call. It is safe in signal handlers and in the child of `fork` or `vfork`.
//!
//! A program can close a descriptor in ways that the library does not see (`fclose`, a system call without libc), and the number
//! may then belong to another file. The table does not notice; [`Entry::is_of`] does.
//!
//! Several numbers may have one file, as after `dup`.
//!
//! [`PRIVATE`] has the numbers that the program must not close.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::sys::stat::fstat;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// Descriptors from this number on are never ours: the usual value of `fs.nr_open`.
pub const LIMIT: usize = 1 << 20;

/// Kind of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An open `/dev/infiniband/uverbs0`.
    Uverbs = 1,
    /// An open `/dev/infiniband/rdma_cm`.
    RdmaCm = 2,
    /// A completion or asynchronous event channel: only its end matters.
    Channel = 3,
    /// An RDMA netlink socket. Its handle is our end, a private descriptor.
    Netlink = 4,
}

/// A file of the backend. Its handle is not used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct File {
    /// What the descriptor refers to.
    pub kind: Kind,
    /// The number that the backend gave it.
    pub handle: u32,
}

/// An entry of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The file.
    pub file: File,
    /// The file was opened by the parent of this process before it forked. Its adapter lives in the parent.
    pub inherited: bool,
    /// Depends on the inode.
    identity: u32,
}

const KIND: u64 = 0b0111;
const INHERITED: u64 = 0b1000;
const IDENTITY: u32 = 4;
const IDENTITY_BITS: u32 = 28;
const HANDLE: u32 = IDENTITY + IDENTITY_BITS;

impl Entry {
    fn packed(self) -> u64 {
        let inherited = if self.inherited { INHERITED } else { 0 };
        self.file.kind as u64 | inherited | u64::from(self.identity) << IDENTITY | u64::from(self.file.handle) << HANDLE
    }

    fn unpacked(bits: u64) -> Option<Entry> {
        let kind = match bits & KIND {
            1 => Kind::Uverbs,
            2 => Kind::RdmaCm,
            3 => Kind::Channel,
            4 => Kind::Netlink,
            _ => return None,
        };
        let identity = (bits >> IDENTITY) as u32 & ((1 << IDENTITY_BITS) - 1);
        let file = File { kind, handle: (bits >> HANDLE) as u32 };
        Some(Entry { file, inherited: bits & INHERITED != 0, identity })
    }

    /// Whether it is the entry of the file with this device and inode number. Another file passes for it with a
    /// probability of one in 2^28.
    #[must_use]
    pub fn is_of(self, device: u64, inode: u64) -> bool {
        self.identity == identity(device, inode)
    }
}

fn identity(device: u64, inode: u64) -> u32 {
    let mixed = (inode ^ device.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (64 - IDENTITY_BITS)) as u32
}

/// The table. As a static it occupies address space; pages without entries are never touched.
pub struct Descriptors {
    entries: [AtomicU64; LIMIT],
    /// One more than the highest number that ever had an entry.
    end: AtomicUsize,
}

impl Descriptors {
    /// An empty table.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "the table is for statics: as a value it would not fit on a stack")]
    pub const fn new() -> Descriptors {
        Descriptors { entries: [const { AtomicU64::new(0) }; LIMIT], end: AtomicUsize::new(0) }
    }

    fn slot(&self, fd: RawFd) -> Option<&AtomicU64> {
        self.entries.get(usize::try_from(fd).ok()?)
    }

    /// The file behind `fd`, if it is ours.
    #[must_use]
    pub fn get(&self, fd: RawFd) -> Option<Entry> {
        Entry::unpacked(self.slot(fd)?.load(Ordering::Acquire))
    }

    /// Enters an open descriptor. The preload library does so with devices, and an adapter with event channels that it
    /// gives to the program, to be told their end.
    ///
    /// Returns the entry that the number had: a file whose end was not seen.
    ///
    /// # Errors
    /// `EMFILE`: the number is beyond [`LIMIT`]; or why the descriptor's status is not available.
    pub fn insert(&self, fd: impl AsFd, file: File) -> Result<Option<Entry>, Errno> {
        let status = fstat(&fd)?;
        let number = fd.as_fd().as_raw_fd();
        let slot = self.slot(number).ok_or(Errno::EMFILE)?;
        self.end.fetch_max(number as usize + 1, Ordering::Relaxed);
        let entry = Entry { file, inherited: false, identity: identity(status.st_dev, status.st_ino) };
        Ok(Entry::unpacked(slot.swap(entry.packed(), Ordering::AcqRel)))
    }

    /// Removes `entry` of `fd`. Returns whether this call did it, and not another thread.
    pub fn remove(&self, fd: RawFd, entry: Entry) -> bool {
        let exchange =
            |slot: &AtomicU64| slot.compare_exchange(entry.packed(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.slot(fd).is_some_and(exchange)
    }

    /// Whether some number is one of `file`, opened by this process.
    #[must_use]
    pub fn has(&self, file: File) -> bool {
        let is = |slot: &AtomicU64| {
            Entry::unpacked(slot.load(Ordering::Acquire)).is_some_and(|entry| entry.file == file && !entry.inherited)
        };
        self.entries[..self.end.load(Ordering::Relaxed)].iter().any(is)
    }

    /// Calls `visit` with the numbers from `first` to `last` that have an entry.
    pub fn in_range(&self, first: u32, last: u32, visit: impl Fn(RawFd, Entry)) {
        let end = self.end.load(Ordering::Relaxed).min((last as usize).saturating_add(1));
        for fd in first as usize..end {
            if let Some(entry) = self.get(fd as RawFd) {
                visit(fd as RawFd, entry);
            }
        }
    }

    /// Marks all entries as inherited: for the child of a fork, which has one thread.
    pub fn inherit(&self) {
        for slot in &self.entries[..self.end.load(Ordering::Relaxed)] {
            if let Some(entry) = Entry::unpacked(slot.load(Ordering::Relaxed)) {
                slot.store(Entry { inherited: true, ..entry }.packed(), Ordering::Relaxed);
            }
        }
    }
}

/// The descriptors of the process that the program does not know of. A lookup is one load, as one in [`Descriptors`].
pub static PRIVATE: Private = Private { words: [const { AtomicU64::new(0) }; LIMIT / 64], end: AtomicUsize::new(0) };

/// Numbers of descriptors that the program does not know of: a bit for each.
pub struct Private {
    words: [AtomicU64; LIMIT / 64],
    /// One more than the highest number that was ever added.
    end: AtomicUsize,
}

impl Private {
    fn bit(&self, fd: RawFd) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.words.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// Adds the number of an open descriptor.
    pub fn add(&self, fd: RawFd) {
        if let Some((word, bit)) = self.bit(fd) {
            self.end.fetch_max(fd as usize + 1, Ordering::Relaxed);
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Removes a number: this library closes its descriptor.
    pub fn remove(&self, fd: RawFd) {
        if let Some((word, bit)) = self.bit(fd).filter(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn has(&self, fd: RawFd) -> bool {
        self.bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// The lowest number from `first` on.
    #[must_use]
    pub fn next(&self, first: u32) -> Option<u32> {
        (first..self.end.load(Ordering::Relaxed) as u32).find(|&fd| self.has(fd.cast_signed()))
    }

    /// Removes and closes all, in the child of a fork: they keep names, locks and connections of its parent.
    pub fn close_all(&self) {
        while let Some(fd) = self.next(0) {
            self.remove(fd.cast_signed());
            // An error would say that the descriptor is closed.
            let _ = nix::unistd::close(fd.cast_signed());
        }
    }
}

/// The lowest number for descriptors that the program does not know of. A program may replace low numbers without asking whether
/// they are in use, as shells do with `exec 3<file`.
#[must_use]
pub fn lowest_private() -> RawFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // The kernel's table of descriptors grows with the highest number.
    (limit / 2).min(1000) as RawFd
}

/// Moves a descriptor to the numbers from [`lowest_private`] on.
#[must_use]
pub fn out_of_the_way(fd: OwnedFd) -> OwnedFd {
    // Where no higher number is free, a low one has to do.
    let fd = fcntl_dupfd_cloexec(&fd, lowest_private()).unwrap_or(fd);
    PRIVATE.add(fd.as_raw_fd());
    fd
}

/// A duplicate of a descriptor that the program does not know of.
///
/// # Errors
/// `EMFILE`: there are no more descriptors.
pub fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let high = fcntl_dupfd_cloexec(&fd, lowest_private());
    let copy = high.or_else(|_| fcntl_dupfd_cloexec(&fd, 0)).map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    PRIVATE.add(copy.as_raw_fd());
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    const CONTEXT: File = File { kind: Kind::Uverbs, handle: u32::MAX };
    const IDS: File = File { kind: Kind::RdmaCm, handle: 0 };

    fn file(entry: Option<Entry>) -> Option<File> {
        entry.map(|entry| entry.file)
    }

    #[test]
    fn any_number_can_be_looked_up() {
        static TABLE: Descriptors = Descriptors::new();
        for fd in [RawFd::MIN, -1, 0, 1023, LIMIT as RawFd - 1, LIMIT as RawFd, RawFd::MAX] {
            assert_eq!(TABLE.get(fd), None);
        }
        let folder = fs::File::open("/").unwrap();
        assert_eq!(TABLE.insert(&folder, CONTEXT), Ok(None));
        let entry = TABLE.get(folder.as_raw_fd()).unwrap();
        assert_eq!((entry.file, entry.inherited), (CONTEXT, false));
        assert_eq!(TABLE.get(folder.as_raw_fd() + 1), None);
        for fd in [-1, LIMIT as RawFd, RawFd::MAX] {
            assert!(!TABLE.remove(fd, entry));
        }
    }

    #[test]
    fn a_number_that_is_used_again_returns_the_file_before() {
        static TABLE: Descriptors = Descriptors::new();
        let (folder, other) = (fs::File::open("/").unwrap(), fs::File::open("/proc").unwrap());
        let number = folder.as_raw_fd();
        assert_eq!(TABLE.insert(&folder, CONTEXT), Ok(None));
        let before = TABLE.get(number).unwrap();
        assert_eq!(file(TABLE.insert(&folder, IDS).unwrap()), Some(CONTEXT));
        let entry = TABLE.get(number).unwrap();
        let is_of = |file: &fs::File| fstat(file).is_ok_and(|status| entry.is_of(status.st_dev, status.st_ino));
        assert!(is_of(&folder) && !is_of(&other));
        assert!(!TABLE.remove(number, before), "the entry is another one now");
        assert!(TABLE.remove(number, entry));
        assert!(!TABLE.remove(number, entry));
        assert_eq!(TABLE.get(number), None);
    }

    #[test]
    fn after_a_fork_every_entry_is_inherited() {
        static TABLE: Descriptors = Descriptors::new();
        let folder = fs::File::open("/").unwrap();
        let channel = File { kind: Kind::Channel, handle: 7 };
        TABLE.insert(&folder, channel).unwrap();
        let before = TABLE.get(folder.as_raw_fd()).unwrap();
        TABLE.inherit();
        let entry = TABLE.get(folder.as_raw_fd()).unwrap();
        assert_eq!(entry, Entry { inherited: true, ..before });
        assert_eq!(TABLE.insert(&folder, IDS), Ok(Some(entry)));
        assert!(!TABLE.get(folder.as_raw_fd()).unwrap().inherited);
    }

    #[test]
    fn private_numbers_are_found_in_their_order() {
        static NUMBERS: Private =
            Private { words: [const { AtomicU64::new(0) }; LIMIT / 64], end: AtomicUsize::new(0) };
        assert_eq!(NUMBERS.next(0), None);
        for fd in [130, 3, 64, LIMIT as RawFd, -1] {
            NUMBERS.add(fd);
        }
        assert_eq!(
            (NUMBERS.next(0), NUMBERS.next(4), NUMBERS.next(64), NUMBERS.next(65)),
            (Some(3), Some(64), Some(64), Some(130))
        );
        assert!(NUMBERS.has(64) && !NUMBERS.has(63) && !NUMBERS.has(-1) && !NUMBERS.has(LIMIT as RawFd));
        NUMBERS.remove(64);
        NUMBERS.remove(65);
        assert_eq!((NUMBERS.next(4), NUMBERS.next(131)), (Some(130), None));
    }

    #[test]
    fn the_child_of_a_fork_can_close_all_private_descriptors() {
        static NUMBERS: Private =
            Private { words: [const { AtomicU64::new(0) }; LIMIT / 64], end: AtomicUsize::new(0) };
        let (mut ours, private) = UnixStream::pair().unwrap();
        NUMBERS.add(private.into_raw_fd());
        NUMBERS.close_all();
        assert_eq!((NUMBERS.next(0), ours.read(&mut [0]).unwrap()), (None, 0));
    }

    #[test]
    fn private_descriptors_have_high_numbers() {
        let folder = fs::File::open("/").unwrap();
        let inode = fstat(&folder).unwrap().st_ino;
        let moved = out_of_the_way(folder.into());
        assert!(moved.as_raw_fd() >= 100, "{moved:?}");
        assert_eq!(fstat(&moved).unwrap().st_ino, inode);
    }
}
