//! Requests to the ring and their results.

use rxe_proto::mem::Memory;

/// Settings of a [`Ring`](crate::Ring).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingConfig {
    /// Number of requests in flight, of all namespaces of the worker; rounded up to a power of two, 1 to 16,384.
    pub depth: u32,
}

impl Default for RingConfig {
    fn default() -> RingConfig {
        RingConfig { depth: 256 }
    }
}

/// Counters of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingStats {
    /// Calls of io_uring_enter.
    pub enters: u64,
    /// Completions.
    pub completions: u64,
}

/// A request. Lengths are limited to 32 bits by io_uring.
#[derive(Debug)]
pub(crate) enum Request {
    /// Reads `len` bytes of the file at `offset` into `memory` at `at`.
    Read { memory: Memory, at: usize, len: u32, offset: u64 },
    /// Writes `len` bytes of `memory` at `at` to the file at `offset`, on stable storage if `durable` (RWF_DSYNC).
    Write { memory: Memory, at: usize, len: u32, offset: u64, durable: bool },
    /// fdatasync.
    Sync,
    /// fallocate.
    Fallocate { mode: i32, offset: u64, len: u64 },
}

/// A completed request.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Tag of the push.
    pub(crate) tag: u32,
    /// As of the system call: bytes, or a negative error number.
    pub(crate) result: i32,
    /// The request's memory.
    pub(crate) memory: Option<Memory>,
}
