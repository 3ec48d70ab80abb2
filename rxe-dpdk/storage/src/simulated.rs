//! A kernel for tests: it executes the requests of rings in any order, late, in part or not at all, fails flushes as Linux does,
//! and shows what is left of a file after a power failure.
//!
//! Requests read and write the real file, which stands for the page cache. Beside it, the kernel has the bytes of the file that are
//! on stable storage, and the writes since, in pieces of at most 4096 bytes. A flush moves those that were complete when it was
//! submitted to stable storage. A flush that fails drops them: the page cache keeps them, and no later flush writes them. Each open
//! file learns of that once, at its next flush.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rxe_proto::mem::Memory;

use crate::request::Request;

/// Unit in which writes reach stable storage.
const PIECE: u64 = 4096;

/// The faults of a kernel. The chances are those of one request in a million.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Reads, writes and holes that fail with EIO.
    pub io_error: u32,
    /// Writes that fail with ENOSPC.
    pub no_space: u32,
    /// Reads and writes that end in the middle.
    pub short: u32,
    /// Flushes that fail, and lose what they should have written.
    pub flush_error: u32,
    /// Number of flushes that do not count for `failing_flushes`, before those that do.
    pub spared_flushes: u32,
    /// Number of flushes that fail so from now on, whatever the chance is.
    pub failing_flushes: u32,
    /// Requests that are not executed in a turn.
    pub slow: u32,
    /// Whether holes are refused.
    pub no_holes: bool,
    /// Whether ranges cannot be zeroed but by writing.
    pub no_zero_range: bool,
}

/// A kernel, which several rings share.
#[derive(Clone)]
pub struct SimulatedKernel(Arc<Mutex<State>>);

struct State {
    faults: Faults,
    random: u64,
    /// By device and inode.
    files: BTreeMap<(u64, u64), Stored>,
}

/// A file on stable storage, and what is not there yet.
struct Stored {
    durable: Vec<u8>,
    pending: Vec<Pending>,
    /// Number of the next write.
    next: u64,
    /// Number of failed flushes, and how many of them each descriptor has been told.
    errors: u64,
    told: BTreeMap<i32, u64>,
}

struct Pending {
    number: u64,
    offset: u64,
    bytes: Vec<u8>,
}

/// The requests of a ring.
pub(crate) struct Executor {
    kernel: SimulatedKernel,
    queued: Vec<Queued>,
    completed: Vec<(u32, i32)>,
}

struct Queued {
    index: u32,
    file: Arc<File>,
    action: Action,
}

enum Action {
    Read {
        memory: Memory,
        at: usize,
        len: usize,
        offset: u64,
    },
    Write {
        memory: Memory,
        at: usize,
        len: usize,
        offset: u64,
        durable: bool,
    },
    /// Makes the writes durable that are before this number.
    Sync {
        before: u64,
    },
    Fallocate {
        mode: i32,
        offset: u64,
        len: u64,
    },
}

impl SimulatedKernel {
    /// A kernel whose choices follow from `seed`.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> SimulatedKernel {
        SimulatedKernel(Arc::new(Mutex::new(State { faults, random: seed, files: BTreeMap::new() })))
    }

    /// Replaces the faults.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The faults.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.state().faults
    }

    /// Writes what a power failure leaves of the file `path` to `to`: what is on stable storage, and any part of the rest.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn power_failure(&self, path: &Path, to: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        let mut state = self.state();
        let key = key(&file)?;
        let mut bytes = match state.files.get(&key) {
            Some(stored) => stored.durable.clone(),
            None => std::fs::read(path)?,
        };
        let pending = state.files.remove(&key).map(|stored| stored.pending).unwrap_or_default();
        for write in pending {
            if state.chance(500_000) {
                put(&mut bytes, write.offset, &write.bytes);
            }
        }
        bytes.resize(file.metadata()?.len() as usize, 0);
        std::fs::write(to, bytes)
    }

    pub(crate) fn executor(&self) -> Executor {
        Executor { kernel: self.clone(), queued: Vec::new(), completed: Vec::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

fn put(bytes: &mut Vec<u8>, offset: u64, part: &[u8]) {
    let end = offset as usize + part.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset as usize..end].copy_from_slice(part);
}

fn errno(error: &io::Error) -> i32 {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

impl State {
    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn chance(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.random() % 1_000_000 < u64::from(ppm)
    }

    /// The file as it is stored; what it has when it is first used is durable.
    fn stored(&mut self, file: &File) -> io::Result<&mut Stored> {
        match self.files.entry(key(file)?) {
            Entry::Occupied(stored) => Ok(stored.into_mut()),
            Entry::Vacant(place) => {
                let mut durable = vec![0; file.metadata()?.len() as usize];
                file.read_exact_at(&mut durable, 0)?;
                let (pending, told) = (Vec::new(), BTreeMap::new());
                Ok(place.insert(Stored { durable, pending, next: 0, errors: 0, told }))
            }
        }
    }

    /// Writes bytes to the page cache.
    fn write(&mut self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let stored = self.stored(file)?;
        let mut at = 0;
        while at < bytes.len() as u64 {
            let len = (PIECE - (offset + at) % PIECE).min(bytes.len() as u64 - at);
            let piece = bytes[at as usize..(at + len) as usize].to_vec();
            stored.pending.push(Pending { number: stored.next, offset: offset + at, bytes: piece });
            stored.next += 1;
            at += len;
        }
        file.write_all_at(bytes, offset)
    }

    /// Moves the writes before a number to stable storage.
    fn sync(&mut self, file: &File, before: u64) -> io::Result<()> {
        let Faults { flush_error, spared_flushes, failing_flushes, .. } = self.faults;
        let is_counted = spared_flushes == 0 && failing_flushes > 0;
        let fails = is_counted || self.chance(flush_error);
        self.faults.spared_flushes = spared_flushes.saturating_sub(1);
        self.faults.failing_flushes -= u32::from(is_counted);
        let stored = self.stored(file)?;
        let (covered, rest) = std::mem::take(&mut stored.pending).into_iter().partition(|write| write.number < before);
        stored.pending = rest;
        let covered: Vec<Pending> = covered;
        if fails {
            stored.errors += 1;
        } else {
            covered.iter().for_each(|write| put(&mut stored.durable, write.offset, &write.bytes));
        }
        let errors = stored.errors;
        let told = stored.told.entry(file.as_raw_fd()).or_insert(0);
        if std::mem::replace(told, errors) == errors { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
    }

    fn execute(&mut self, file: &File, action: Action) -> io::Result<i32> {
        let Faults { io_error, no_space, short, no_holes, no_zero_range, .. } = self.faults;
        let fail = |errno| Err(io::Error::from_raw_os_error(errno));
        match action {
            _ if !matches!(action, Action::Sync { .. }) && self.chance(io_error) => fail(libc::EIO),
            Action::Write { .. } if self.chance(no_space) => fail(libc::ENOSPC),
            Action::Read { memory, at, len, offset } => {
                let len = self.part(len, short);
                let mut bytes = vec![0; len];
                let found = file.read_at(&mut bytes, offset)?;
                memory.write(at, &bytes[..found]).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
                Ok(found as i32)
            }
            Action::Write { memory, at, len, offset, durable } => {
                let len = self.part(len, short);
                let mut bytes = vec![0; len];
                memory.read(at, &mut bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
                self.write(file, offset, &bytes)?;
                if durable {
                    let before = self.stored(file)?.next;
                    self.sync(file, before)?;
                }
                Ok(len as i32)
            }
            Action::Sync { before } => self.sync(file, before).map(|()| 0),
            Action::Fallocate { mode, offset, len } => {
                let punches = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
                if if punches { no_holes } else { no_zero_range } {
                    return fail(libc::EOPNOTSUPP);
                }
                self.write(file, offset, &vec![0; len as usize]).map(|()| 0)
            }
        }
    }

    /// A length, or a part of it.
    fn part(&mut self, len: usize, short: u32) -> usize {
        if len > 512 && self.chance(short) {
            let units = len as u64 / 512;
            return (self.random() % units).max(1) as usize * 512;
        }
        len
    }
}

impl Executor {
    /// A file was opened: it is not told the failures before.
    pub(crate) fn opened(&self, file: &File) {
        let mut state = self.kernel.state();
        if let Ok(stored) = state.stored(file) {
            stored.told.insert(file.as_raw_fd(), stored.errors);
        }
    }

    /// Queues a request. Returns the memory that it uses.
    pub(crate) fn push(&mut self, index: u32, file: &Arc<File>, request: Request) -> Option<Memory> {
        let (action, memory) = match request {
            Request::Read { memory, at, len, offset } => {
                (Action::Read { memory: memory.clone(), at, len: len as usize, offset }, Some(memory))
            }
            Request::Write { memory, at, len, offset, durable } => {
                (Action::Write { memory: memory.clone(), at, len: len as usize, offset, durable }, Some(memory))
            }
            Request::Sync => {
                let before = self.kernel.state().stored(file).map_or(0, |stored| stored.next);
                (Action::Sync { before }, None)
            }
            Request::Fallocate { mode, offset, len } => (Action::Fallocate { mode, offset, len }, None),
        };
        self.queued.push(Queued { index, file: Arc::clone(file), action });
        memory
    }

    /// Executes some of the requests in any order: at least `min`, if there are as many.
    pub(crate) fn enter(&mut self, min: usize) {
        let mut state = self.kernel.state();
        let mut remaining = self.queued.len();
        while remaining > 0 {
            let slow = state.faults.slow;
            let skip = state.chance(slow) && self.completed.len() >= min;
            let which = (state.random() % remaining as u64) as usize;
            remaining -= 1;
            if skip {
                // It is not looked at again in this turn.
                self.queued.swap(which, remaining);
                continue;
            }
            let Queued { index, file, action } = self.queued.swap_remove(which);
            // Of those that were skipped, one has its place now.
            if which < remaining && self.queued.len() > remaining {
                self.queued.swap(which, remaining);
            }
            let result = state.execute(&file, action).unwrap_or_else(|error| errno(&error));
            self.completed.push((index, result));
        }
    }

    /// The next completion.
    pub(crate) fn pop(&mut self) -> Option<(u32, i32)> {
        if self.completed.is_empty() { None } else { Some(self.completed.remove(0)) }
    }
}
