//! One operation on a file or device, as a sequence of requests to the ring.

use rxe_proto::mem::Memory;

use crate::stats::Counted;

/// What an operation does to the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write {
        durable: bool,
    },
    Flush,
    Zero(Method),
    /// A hole, if the file system makes holes; else nothing.
    Release,
}

impl Kind {
    /// Whether the operation changes blocks.
    pub(crate) fn changes(self) -> bool {
        matches!(self, Kind::Write { .. } | Kind::Zero(_) | Kind::Release)
    }
}

/// A way to set blocks to zero; the next one is tried when the file system refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    /// A hole: the blocks are released (FALLOC_FL_PUNCH_HOLE).
    Punch,
    /// The blocks stay allocated (FALLOC_FL_ZERO_RANGE).
    ZeroRange,
    /// Writes of zeroes.
    Write,
}

impl Method {
    /// What is tried when the file system refuses this one.
    pub(crate) fn fallback(self) -> Method {
        match self {
            Method::Punch => Method::ZeroRange,
            Method::ZeroRange | Method::Write => Method::Write,
        }
    }
}

/// What an operation needs next, or waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The locks of the next blocks, with checksums.
    Lock,
    /// The mark of the region on stable storage, with checksums.
    Mark,
    /// The data.
    Data,
    /// The entries in the file of checksums.
    Table,
    /// A flush of the data.
    Sync,
    /// A flush of the file of checksums.
    SyncTable,
}

/// An accepted operation. It proceeds in chunks: with checksums, a chunk lies in one region and has no more blocks than
/// there are locks; without, it is the whole operation.
pub(crate) struct Op {
    pub(crate) token: u64,
    pub(crate) counted: Counted,
    pub(crate) kind: Kind,
    pub(crate) step: Step,
    /// The caller's memory, while the ring does not have it.
    pub(crate) memory: Option<Memory>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes of complete chunks.
    pub(crate) done: u64,
    /// Bytes of the current chunk.
    pub(crate) chunk: u64,
    /// Bytes of the current step that are complete.
    pub(crate) part: u64,
    /// Whether the blocks of the current chunk are locked.
    pub(crate) locked: bool,
    /// Whether an attempt to lock keeps readers away.
    pub(crate) wants_lock: bool,
    /// Requests that were interrupted one after the other.
    pub(crate) retries: u32,
    /// Nothing more of it is to be submitted.
    pub(crate) cancelled: bool,
    /// Number of flushes of the disk that had failed when the operation was accepted.
    pub(crate) failures: u64,
}

impl Op {
    /// Whether the operation can end before its next request: nothing of the chunk was written, or there are no checksums
    /// that would not agree with a part of it.
    pub(crate) fn can_end(&self, has_checksums: bool) -> bool {
        matches!(self.step, Step::Lock | Step::Mark | Step::Data) && (self.part == 0 || !has_checksums)
    }

    /// First byte of the current chunk.
    pub(crate) fn start(&self) -> u64 {
        self.offset + self.done
    }
}

/// Operations by index; a freed index is used again. Never grows.
pub(crate) struct Ops {
    entries: Vec<Option<Op>>,
    free: Vec<u32>,
}

impl Ops {
    pub(crate) fn new(depth: u32) -> Ops {
        Ops { entries: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    /// Number of operations.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Index of the new operation; `None` when there is no room.
    pub(crate) fn insert(&mut self, op: impl FnOnce() -> Op) -> Option<u32> {
        let index = self.free.pop()?;
        self.entries[index as usize] = Some(op());
        Some(index)
    }

    /// The operation of a token.
    pub(crate) fn find_mut(&mut self, token: u64) -> Option<&mut Op> {
        self.entries.iter_mut().flatten().find(|op| op.token == token)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Op> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Op> {
        let op = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(op)
    }
}
