//! The interface to one namespace: operations, completions, and the trait that each kind of storage implements.

use std::sync::Arc;

use rxe_proto::mem::Memory;

use crate::error::{OpenError, RingError, StorageError};
use crate::geometry::Geometry;
use crate::io::Io;
use crate::stats::{Counted, StorageStats};

/// One operation. Offsets and lengths are in bytes, and multiples of the block size.
///
/// The backend clones the handle of the memory when it accepts the operation; the bytes must not be reused for anything
/// else before the completion.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Reads `into.len()` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Destination. After an error, its contents are undefined.
        into: &'a Memory,
    },
    /// Writes all of `from`.
    Write {
        /// First byte.
        offset: u64,
        /// Source, complete and not changed before the completion.
        from: &'a Memory,
        /// Whether the data is on stable storage at the completion (forced unit access).
        durable: bool,
    },
    /// Makes every write durable that was completed before this operation was submitted.
    Flush,
    /// Sets blocks to zero.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Whether the storage may release the blocks.
        deallocate: bool,
    },
    /// Releases blocks, which read as zeroes afterwards; without effect where the storage cannot release blocks.
    Deallocate {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl Operation<'_> {
    /// Kind and number of bytes, for counting.
    pub(crate) fn counted(&self) -> (Counted, u64) {
        match *self {
            Operation::Read { into, .. } => (Counted::Read, into.len() as u64),
            Operation::Write { from, .. } => (Counted::Write, from.len() as u64),
            Operation::Flush => (Counted::Flush, 0),
            Operation::WriteZeroes { len, .. } => (Counted::WriteZeroes, len),
            Operation::Deallocate { len, .. } => (Counted::Deallocate, len),
        }
    }

    /// First byte; 0 for a flush.
    pub(crate) fn offset(&self) -> u64 {
        match *self {
            Operation::Read { offset, .. }
            | Operation::Write { offset, .. }
            | Operation::WriteZeroes { offset, .. }
            | Operation::Deallocate { offset, .. } => offset,
            Operation::Flush => 0,
        }
    }
}

/// State of an operation that the backend accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// It is complete; [`Backend::poll`] does not report it again.
    Done(Result<(), StorageError>),
    /// [`Backend::poll`] will report it.
    Pending,
}

/// The backend has no room for another operation: the caller keeps the command and submits it after a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the backend has no room for another operation")]
pub struct Full;

/// The completion of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The caller's token.
    pub token: u64,
    /// Result.
    pub result: Result<(), StorageError>,
}

/// Storage of one namespace as one worker sees it. Each worker has an instance of its own; instances of the same
/// namespace share what the kind of storage needs (an [`Arc<Disk>`](crate::Disk), an [`Arc<RamDisk>`](crate::RamDisk)).
///
/// [`Storage`](crate::Storage) owns the instances and calls these methods; `io` is what all namespaces of the worker
/// share.
pub trait Backend: Send {
    /// Prepares the instance for use with `io`; called once before anything else.
    ///
    /// # Errors
    ///
    /// [`RingError`] when the backend needs a ring and there is none, or it has no room.
    fn attach(&mut self, _io: &mut Io) -> Result<(), RingError> {
        Ok(())
    }

    /// Block size and number of blocks that operations may use.
    fn geometry(&self) -> Geometry;

    /// Starts an operation. Its completion has the same token.
    ///
    /// # Errors
    ///
    /// [`Full`]: nothing was started.
    fn submit(&mut self, io: &mut Io, token: u64, operation: Operation<'_>) -> Result<Submitted, Full>;

    /// Appends the completions that have arrived to `completed`, and continues other operations. No system call.
    fn poll(&mut self, io: &mut Io, completed: &mut Vec<Completion>);

    /// Number of operations that are not complete. A worker must not sleep unless it is 0.
    fn outstanding(&self) -> usize;

    /// Looks at the size of the storage again. Operations outside of the new size fail from now on.
    ///
    /// # Errors
    ///
    /// [`OpenError`] when the new size is not usable; the old one stays in force.
    fn resize(&mut self) -> Result<Geometry, OpenError>;

    /// The bytes of the namespace, if it is memory: RDMA WRITE can send blocks from there without a copy. `None` if
    /// reads must go through [`submit`](Self::submit), because the bytes are elsewhere or have checksums to verify.
    fn memory(&self) -> Option<&Memory> {
        None
    }

    /// Counters of this instance.
    fn stats(&self) -> &Arc<StorageStats>;

    /// Ends an operation that is not complete before its next request to the kernel, with [`StorageError::Cancelled`]; one whose
    /// last request is in progress completes as if it was not cancelled.
    fn cancel(&mut self, _token: u64) {}

    /// Prepares for the end: an operation that waits for another worker's fails with [`StorageError::Closed`] at the
    /// next [`poll`](Self::poll) instead of waiting.
    fn close(&mut self) {}

    /// Undoes [`attach`](Self::attach); called once, last, after the outstanding operations have completed.
    fn detach(&mut self, _io: &mut Io) {}
}
