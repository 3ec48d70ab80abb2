//! How long operations take: from their first packet to their last reply.

use rxe_sync::Histogram;

use crate::time::Instant;

/// An operation, as [`Latencies`] tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// SEND, also with immediate data or invalidation.
    Send,
    /// RDMA WRITE, also with immediate data.
    Write,
    /// RDMA READ.
    Read,
    /// COMPARE_SWAP, FETCH_ADD and ATOMIC WRITE.
    Atomic,
    /// FLUSH.
    Flush,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 5] =
        [Operation::Send, Operation::Write, Operation::Read, Operation::Atomic, Operation::Flush];

    /// The name that users see.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Send => "send",
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::Atomic => "atomic",
            Operation::Flush => "flush",
        }
    }
}

/// Times of the operations of some queue pairs of one engine, in nanoseconds. One writer, the engine's owner; any thread may read.
///
/// All that happens in one turn of the caller's loop has one `now`, so only operations that span turns take time:
///
/// * responder: an operation of the peer, from its first packet to its ACK or last response. On UC to its last packet, as nothing
///   is answered. One that begins and is answered in the same turn is not counted. Messages that one ACK answers count from the
///   first packet of the oldest of them.
/// * requester: an operation of ours on RC, from when it is posted to the response that completes it. Each is counted, unless it
///   fails. Posting has no `now`: it takes that of the last call that has one.
///
/// It has cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Latencies {
    /// By operation, as in [`Operation::ALL`].
    responder: [Histogram; Operation::ALL.len()],
    requester: [Histogram; Operation::ALL.len()],
}

impl Latencies {
    /// The peers' operations of one kind.
    #[inline]
    pub fn responder(&self, operation: Operation) -> &Histogram {
        &self.responder[operation as usize]
    }

    /// Our own operations of one kind.
    #[inline]
    pub fn requester(&self, operation: Operation) -> &Histogram {
        &self.requester[operation as usize]
    }
}

/// Counts `times` operations that took from `start` to `end`, unless both are in the same turn.
#[inline]
pub(super) fn record(histogram: &Histogram, start: Instant, end: Instant, times: u32) {
    if start != end {
        record_later(histogram, start, end, times);
    }
}

#[cold]
#[inline(never)]
fn record_later(histogram: &Histogram, start: Instant, end: Instant, times: u32) {
    histogram.record_many(end.as_nanos().wrapping_sub(start.as_nanos()), u64::from(times));
}
