//! Payloads of short messages are read together.
//!
//! Each access to the program's memory is a system call. When several work requests are taken at once, the payloads of the short
//! ones are read with a single call, and posted as inline data. What cannot be read so stays with its buffers: the engine reads
//! them when it sends the message, and finds the error there, if it is one.

use nix::sys::uio::RemoteIoVec;
use rxe_proto::mem::{Access, KeyTable, PdId};
use rxe_proto::transport::{SendOp, Sge};

use super::wqe::{Payload, Scratch, SendRequest};
use crate::user;

/// The most bytes between two buffers that are read together with them. Fewer than in any page, so that they are in the pages of the
/// two buffers.
const GAP: u64 = 256;

/// A part of a payload: its offset in what is read, and its length.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: usize,
    len: usize,
}

/// Memory of [`gather`].
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// Ranges of the program's memory, for one system call.
    ranges: Vec<RemoteIoVec>,
    /// The bytes of all ranges.
    bytes: Vec<u8>,
    /// The pieces of all payloads.
    pieces: Vec<Piece>,
    /// Index and number of pieces of each request that is read.
    plan: Vec<(usize, usize)>,
}

/// Reads the payloads of messages of up to `longest` bytes in `requests`, which become inline data in the scratch. `pd` is the
/// protection domain of their queue pair.
///
/// Call it only when no earlier request of the queue pair waits for data of the peer: the data may be for the buffers that a later
/// request sends. For the same reason nothing is read for requests behind a READ or an atomic operation.
pub(super) fn gather(
    memory: &mut Gather,
    requests: &mut [SendRequest],
    scratch: &mut Scratch,
    keys: &KeyTable,
    pd: PdId,
    longest: u32,
) {
    memory.plan(requests, scratch, keys, pd, longest);
    if memory.plan.len() < 2 {
        return;
    }
    let read = user::read_ranges(&memory.ranges, &mut memory.bytes);
    let mut pieces = memory.pieces.iter();
    for &(index, count) in &memory.plan {
        let pieces = pieces.by_ref().take(count);
        let Some(request) = requests.get_mut(index) else { continue };
        let first = scratch.inline().len();
        let mut complete = true;
        for &Piece { at, len } in pieces {
            match memory.bytes.get(at..at + len) {
                Some(bytes) if at + len <= read => scratch.add_inline(bytes),
                _ => complete = false,
            }
        }
        if complete {
            request.payload = Payload::Inline { first, len: scratch.inline().len() - first };
        }
    }
}

impl Gather {
    /// Decides what is read.
    fn plan(&mut self, requests: &[SendRequest], scratch: &Scratch, keys: &KeyTable, pd: PdId, longest: u32) {
        self.ranges.clear();
        self.pieces.clear();
        self.plan.clear();
        let mut len = 0;
        for (index, request) in requests.iter().enumerate() {
            if returns_data(request.op) {
                break;
            }
            let Payload::Buffers { .. } = request.payload else { continue };
            let sges = scratch.sges_of(request);
            let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
            if !sends_data(request.op) || total == 0 || total > longest.into() {
                continue;
            }
            let pieces = self.pieces.len();
            // What a request before it has added is of no use to one with a bad key, but does no harm.
            if sges.iter().filter(|sge| sge.length > 0).all(|sge| self.add(sge, keys, pd, &mut len)) {
                self.plan.push((index, self.pieces.len() - pieces));
            } else {
                self.pieces.truncate(pieces);
            }
        }
        self.bytes.resize(len, 0);
    }

    /// Adds a buffer. False when its key does not allow to read it. `len` is the length of all ranges.
    fn add(&mut self, sge: &Sge, keys: &KeyTable, pd: PdId, len: &mut usize) -> bool {
        let Ok(span) = keys.check_local(sge.lkey, pd, sge.addr, sge.length.into(), Access::empty()) else {
            return false;
        };
        // Where the program has it, which is not its address for peers.
        let start = span.memory().as_ptr().addr() + span.offset();
        let end = start + span.len();
        if let Some(last) = self.ranges.last_mut()
            && let Some(offset) = start.checked_sub(last.base)
            && offset as u64 <= last.len as u64 + GAP
        {
            let more = (end - last.base).saturating_sub(last.len);
            self.pieces.push(Piece { at: *len - last.len + offset, len: span.len() });
            last.len += more;
            *len += more;
        } else {
            self.ranges.push(RemoteIoVec { base: start, len: span.len() });
            self.pieces.push(Piece { at: *len, len: span.len() });
            *len += span.len();
        }
        true
    }
}

/// Whether the peer's bytes come back to the buffers.
pub(super) fn returns_data(op: SendOp) -> bool {
    matches!(op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
}

/// Whether the bytes of the buffers go to the peer.
fn sends_data(op: SendOp) -> bool {
    matches!(op, SendOp::Send { .. } | SendOp::SendInvalidate { .. } | SendOp::Write { .. } | SendOp::Datagram { .. })
}
