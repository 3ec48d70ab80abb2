//! The sequence of storage operations of a command.

use rxe_nvmf::io::{BlockRange, IoOperation};
use rxe_nvmf::wire::{DataLocation, HostBuffer, StatusCode};
use rxe_proto::verbs::Memory;
use rxe_storage::{NamespaceId, Operation, StorageError};

/// Bytes that Verify reads at once.
const VERIFY_CHUNK: u64 = 1 << 20;
/// Length of the ranges of Dataset Management, which are fetched whole.
const RANGES_LEN: u32 = 4096;

/// The storage operations of a command. Offsets and lengths are in bytes.
pub enum Work {
    /// Blocks to the host.
    Read { offset: u64, len: u32, to: HostBuffer, done: bool },
    /// Blocks from the host.
    Write { offset: u64, len: u32, fua: bool, done: bool },
    /// Blocks against those of the host, which are in the first half of the staging piece.
    Compare { offset: u64, len: u32, done: bool },
    /// Blocks that must be readable.
    Verify { next: u64, end: u64 },
    /// Zeroes; then a flush, if they must be durable.
    WriteZeroes { offset: u64, len: u64, deallocate: bool, step: Zeroing },
    /// Deallocation of ranges, the last one first.
    Deallocate { ranges: Vec<(u64, u64)> },
    /// Flush of these namespaces, the last one first.
    Flush { namespaces: Vec<NamespaceId> },
    /// Data of a Dataset Management, which are to be fetched and turned into [`Work::Deallocate`].
    Ranges { count: u32, deallocate: bool },
}

/// Progress of Write Zeroes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Zeroing {
    /// The blocks are next; then a flush or not.
    Blocks { fua: bool },
    /// The flush is next.
    Flush,
    /// Complete.
    Done,
}

impl Work {
    /// The work of a checked command, and where its data come from. Flush needs the namespaces and is made elsewhere.
    pub fn new(operation: IoOperation, shift: u8) -> (Work, DataLocation) {
        let place = |range: BlockRange| (range.byte_offset(shift), range.byte_len(shift));
        match operation {
            IoOperation::Read { range, to } => {
                let (offset, _) = place(range);
                (Work::Read { offset, len: to.len, to, done: false }, DataLocation::None)
            }
            IoOperation::Write { range, from, fua } => {
                let (offset, len) = place(range);
                (Work::Write { offset, len: len as u32, fua, done: false }, from)
            }
            IoOperation::Compare { range, from } => {
                let (offset, len) = place(range);
                (Work::Compare { offset, len: len as u32, done: false }, from)
            }
            IoOperation::Verify { range } => {
                let (offset, len) = place(range);
                (Work::Verify { next: offset, end: offset + len }, DataLocation::None)
            }
            IoOperation::WriteZeroes { range, deallocate, fua } => {
                let (offset, len) = place(range);
                let step = Zeroing::Blocks { fua };
                (Work::WriteZeroes { offset, len, deallocate, step }, DataLocation::None)
            }
            IoOperation::Dsm { ranges, deallocate, from } => (Work::Ranges { count: ranges, deallocate }, from),
            IoOperation::Flush => (Work::Flush { namespaces: Vec::new() }, DataLocation::None),
        }
    }

    /// Bytes of staging that the work needs, with the data at the start; `in_place` says that the data of a write stay in the
    /// capsule.
    pub fn room(&self, in_place: bool) -> u32 {
        match *self {
            Work::Read { len, .. } => len,
            Work::Write { len, .. } => {
                if in_place {
                    0
                } else {
                    len
                }
            }
            Work::Compare { len, .. } => 2 * len,
            Work::Verify { next, end } => (end - next).min(VERIFY_CHUNK) as u32,
            Work::Ranges { .. } => RANGES_LEN,
            Work::WriteZeroes { .. } | Work::Deallocate { .. } | Work::Flush { .. } => 0,
        }
    }

    /// Calls `submit` with the next operation. `data` is the staging piece, or the data in the capsule. Returns `None` when there is
    /// no operation left.
    pub fn submit<R>(
        &mut self,
        namespace: NamespaceId,
        data: Option<&Memory>,
        submit: impl FnOnce(NamespaceId, Operation<'_>) -> R,
    ) -> Option<Result<R, StorageError>> {
        let slice =
            |offset: usize, len: usize| data.and_then(|memory| memory.slice(offset, len)).ok_or(StorageError::Memory);
        match *self {
            Work::Read { done: true, .. }
            | Work::Write { done: true, .. }
            | Work::Compare { done: true, .. }
            | Work::WriteZeroes { step: Zeroing::Done, .. }
            | Work::Ranges { .. } => None,
            Work::Verify { next, end } if next >= end => None,
            Work::Read { offset, len, .. } => {
                Some(slice(0, len as usize).map(|into| submit(namespace, Operation::Read { offset, into: &into })))
            }
            Work::Write { offset, len, fua, .. } => Some(
                slice(0, len as usize)
                    .map(|from| submit(namespace, Operation::Write { offset, from: &from, durable: fua })),
            ),
            Work::Compare { offset, len, .. } => Some(
                slice(len as usize, len as usize)
                    .map(|into| submit(namespace, Operation::Read { offset, into: &into })),
            ),
            Work::Verify { next, end } => Some(
                slice(0, (end - next).min(VERIFY_CHUNK) as usize)
                    .map(|into| submit(namespace, Operation::Read { offset: next, into: &into })),
            ),
            Work::WriteZeroes { offset, len, deallocate, step: Zeroing::Blocks { .. } } => {
                Some(Ok(submit(namespace, Operation::WriteZeroes { offset, len, deallocate })))
            }
            Work::WriteZeroes { step: Zeroing::Flush, .. } => Some(Ok(submit(namespace, Operation::Flush))),
            Work::Deallocate { ref ranges } => {
                let &(offset, len) = ranges.last()?;
                Some(Ok(submit(namespace, Operation::Deallocate { offset, len })))
            }
            Work::Flush { ref namespaces } => {
                let &namespace = namespaces.last()?;
                Some(Ok(submit(namespace, Operation::Flush)))
            }
        }
    }

    /// The namespace of the operation that was submitted last, of a command of `namespace`.
    pub fn namespace(&self, namespace: NamespaceId) -> NamespaceId {
        match self {
            Work::Flush { namespaces } => namespaces.last().copied().unwrap_or(namespace),
            _ => namespace,
        }
    }

    /// Whether a part of the work takes a good part of a turn, and another one follows.
    pub fn has_long_parts(&self) -> bool {
        matches!(self, Work::Verify { next, end } if next < end)
    }

    /// The first byte that the work is about.
    pub fn offset(&self) -> u64 {
        match self {
            Work::Read { offset, .. }
            | Work::Write { offset, .. }
            | Work::Compare { offset, .. }
            | Work::WriteZeroes { offset, .. } => *offset,
            Work::Verify { next, .. } => *next,
            Work::Deallocate { ranges } => ranges.last().map_or(0, |(offset, _)| *offset),
            Work::Flush { .. } | Work::Ranges { .. } => 0,
        }
    }

    /// The operation that was submitted last has succeeded.
    pub fn advance(&mut self) {
        match self {
            Work::Read { done, .. } | Work::Write { done, .. } | Work::Compare { done, .. } => *done = true,
            Work::Verify { next, end } => *next = (*next + VERIFY_CHUNK).min(*end),
            Work::WriteZeroes { step, .. } => {
                *step = if *step == (Zeroing::Blocks { fua: true }) { Zeroing::Flush } else { Zeroing::Done };
            }
            Work::Deallocate { ranges } => drop(ranges.pop()),
            Work::Flush { namespaces } => drop(namespaces.pop()),
            Work::Ranges { .. } => {}
        }
    }

    /// The status code of a failed operation, and whether the host may retry.
    pub fn code_of(&self, error: StorageError) -> (StatusCode, bool) {
        let writes = matches!(self, Work::Write { .. } | Work::WriteZeroes { .. });
        match error {
            StorageError::Media { .. } => (StatusCode::UnrecoveredReadError, false),
            StorageError::Truncated { .. } => (StatusCode::UnrecoveredReadError, false),
            StorageError::NoSpace => (StatusCode::CapacityExceeded, false),
            StorageError::OutOfRange => (StatusCode::LbaOutOfRange, false),
            StorageError::Closed => (StatusCode::InvalidNamespace, false),
            StorageError::Io { .. } if writes => (StatusCode::WriteFault, true),
            StorageError::Io { .. } => (StatusCode::UnrecoveredReadError, true),
            StorageError::Cancelled => (StatusCode::AbortRequested, true),
            StorageError::Unaligned
            | StorageError::BufferAlignment { .. }
            | StorageError::Memory
            | StorageError::FlushFailed => (StatusCode::Internal, false),
        }
    }
}
