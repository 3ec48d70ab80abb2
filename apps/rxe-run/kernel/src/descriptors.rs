//! Which descriptors of the process are ours.
//!
//! `write`, `close` and `fstat` look up each descriptor of the program, so a lookup is one load: no lock, no allocation, no
//! system call. It is safe in signal handlers and in the child of `fork` or `vfork`.
//!
//! A program can close a descriptor in ways that the library does not see (`close_range`, `dup2`, `fclose`), and the number
//! may then belong to another file. The table does not notice; its user compares the file with the one that was opened.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Descriptors from this number on are never ours: the usual value of `fs.nr_open`.
pub const LIMIT: usize = 1 << 20;

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An open `/dev/infiniband/uverbs0`.
    Uverbs = 1,
    /// An open `/dev/infiniband/rdma_cm`.
    RdmaCm = 2,
    /// A completion or asynchronous event channel: only its end matters.
    Channel = 3,
}

/// A file of the backend. Its handle is not used again while the file is open.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct File {
    /// What it is.
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
}

const KIND: u64 = 0b011;
const INHERITED: u64 = 0b100;
const HANDLE: u32 = 32;

impl Entry {
    fn packed(self) -> u64 {
        let inherited = if self.inherited { INHERITED } else { 0 };
        self.file.kind as u64 | inherited | u64::from(self.file.handle) << HANDLE
    }

    fn unpacked(bits: u64) -> Option<Entry> {
        let kind = match bits & KIND {
            1 => Kind::Uverbs,
            2 => Kind::RdmaCm,
            3 => Kind::Channel,
            _ => return None,
        };
        Some(Entry { file: File { kind, handle: (bits >> HANDLE) as u32 }, inherited: bits & INHERITED != 0 })
    }
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

    /// What `fd` is, if it is ours.
    #[must_use]
    pub fn get(&self, fd: RawFd) -> Option<Entry> {
        Entry::unpacked(self.slot(fd)?.load(Ordering::Acquire))
    }

    /// Enters an open descriptor. Returns the entry that the number had: a file whose end was not seen.
    ///
    /// # Errors
    /// The number is beyond [`LIMIT`].
    pub fn insert(&self, fd: RawFd, file: File) -> Result<Option<Entry>, BeyondLimit> {
        let slot = self.slot(fd).ok_or(BeyondLimit)?;
        self.end.fetch_max(fd as usize + 1, Ordering::Relaxed);
        Ok(Entry::unpacked(slot.swap(Entry { file, inherited: false }.packed(), Ordering::AcqRel)))
    }

    /// Removes `entry` of `fd`. Returns whether this call did it, and not another thread.
    pub fn remove(&self, fd: RawFd, entry: Entry) -> bool {
        let exchange =
            |slot: &AtomicU64| slot.compare_exchange(entry.packed(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.slot(fd).is_some_and(exchange)
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

/// The descriptor's number is [`LIMIT`] or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("descriptor numbers end at {LIMIT}")]
pub struct BeyondLimit;

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: File = File { kind: Kind::Uverbs, handle: u32::MAX };
    const IDS: File = File { kind: Kind::RdmaCm, handle: 0 };

    fn own(file: File) -> Entry {
        Entry { file, inherited: false }
    }

    #[test]
    fn any_number_can_be_looked_up() {
        static TABLE: Descriptors = Descriptors::new();
        for fd in [RawFd::MIN, -1, 0, 1023, LIMIT as RawFd - 1, LIMIT as RawFd, RawFd::MAX] {
            assert_eq!(TABLE.get(fd), None);
        }
        for fd in [-1, LIMIT as RawFd, RawFd::MAX] {
            assert_eq!(TABLE.insert(fd, IDS), Err(BeyondLimit));
            assert!(!TABLE.remove(fd, own(IDS)));
        }
        for fd in [0, 70_000, LIMIT as RawFd - 1] {
            assert_eq!(TABLE.insert(fd, CONTEXT), Ok(None));
            assert_eq!(TABLE.get(fd), Some(own(CONTEXT)));
        }
        assert_eq!(TABLE.get(1), None);
    }

    #[test]
    fn a_number_that_is_used_again_returns_the_file_before() {
        static TABLE: Descriptors = Descriptors::new();
        assert_eq!(TABLE.insert(5, CONTEXT), Ok(None));
        assert_eq!(TABLE.insert(5, IDS), Ok(Some(own(CONTEXT))));
        assert!(!TABLE.remove(5, own(CONTEXT)), "the entry is another one now");
        assert!(TABLE.remove(5, own(IDS)));
        assert!(!TABLE.remove(5, own(IDS)));
        assert_eq!(TABLE.get(5), None);
    }

    #[test]
    fn after_a_fork_every_entry_is_inherited() {
        static TABLE: Descriptors = Descriptors::new();
        let channel = File { kind: Kind::Channel, handle: 7 };
        TABLE.insert(3, IDS).unwrap();
        TABLE.insert(2000, channel).unwrap();
        TABLE.inherit();
        assert_eq!(TABLE.get(3), Some(Entry { file: IDS, inherited: true }));
        assert_eq!(TABLE.get(2000), Some(Entry { file: channel, inherited: true }));
        assert_eq!(TABLE.get(4), None);
        TABLE.insert(4, IDS).unwrap();
        assert_eq!(TABLE.get(4), Some(own(IDS)));
    }
}
