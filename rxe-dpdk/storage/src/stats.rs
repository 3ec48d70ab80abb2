//! Counters of one namespace on one worker.

use crate::error::StorageError;

rxe_proto::counters! {
    /// Counters of one namespace on one worker. The worker is the only writer; any thread may read.
    pub struct StorageStats {
        /// Reads completed without error.
        reads,
        /// Bytes of these reads.
        read_bytes,
        /// Reads that failed.
        read_errors,
        /// Writes completed without error.
        writes,
        /// Bytes of these writes.
        write_bytes,
        /// Writes that failed.
        write_errors,
        /// Flushes completed without error.
        flushes,
        /// Flushes that failed.
        flush_errors,
        /// Write Zeroes operations completed without error.
        write_zeroes,
        /// Bytes of these operations.
        write_zeroes_bytes,
        /// Write Zeroes operations that failed.
        write_zeroes_errors,
        /// Deallocations completed without error.
        deallocates,
        /// Bytes of these deallocations.
        deallocate_bytes,
        /// Deallocations that failed.
        deallocate_errors,
        /// Operations refused because the backend had no room.
        full,
        /// Reads that failed because a block differs from its checksum; they count as read errors too.
        media_errors,
        /// Blocks read without a verdict: they differ from their checksum, in a region that was being written when the
        /// target ended without closing the file, and that no scrub has covered since.
        unverified_blocks,
        /// Operations that waited because the ring was full or another operation used the same blocks.
        waits,
    }
}

/// The kind of an operation, for counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    Read,
    Write,
    Flush,
    WriteZeroes,
    Deallocate,
}

impl StorageStats {
    /// Counts the completion of an operation on `bytes` bytes.
    pub(crate) fn count(&self, kind: Counted, bytes: u64, result: Result<(), StorageError>) {
        if matches!(result, Err(StorageError::Media { .. })) {
            self.media_errors.inc();
        }
        let (done, total, errors) = match kind {
            Counted::Read => (&self.reads, Some(&self.read_bytes), &self.read_errors),
            Counted::Write => (&self.writes, Some(&self.write_bytes), &self.write_errors),
            Counted::Flush => (&self.flushes, None, &self.flush_errors),
            Counted::WriteZeroes => (&self.write_zeroes, Some(&self.write_zeroes_bytes), &self.write_zeroes_errors),
            Counted::Deallocate => (&self.deallocates, Some(&self.deallocate_bytes), &self.deallocate_errors),
        };
        match result {
            Ok(()) => {
                done.inc();
                if let Some(total) = total {
                    total.add(bytes);
                }
            }
            Err(_) => errors.inc(),
        }
    }
}
