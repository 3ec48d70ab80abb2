//! Completion queue entries: the 16 bytes of a response capsule.

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::status::Status;

/// Length of a completion queue entry in bytes.
pub const CQE_LEN: usize = 16;

/// A completion queue entry. The phase bit is always 0 on fabrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe {
    result: U64,
    sq_head: U16,
    sq_id: U16,
    command_id: U16,
    status: U16,
}

const _: () = assert!(size_of::<Cqe>() == CQE_LEN);

impl Cqe {
    /// Head of the submission queue when SQ flow control is off.
    pub const NO_FLOW_CONTROL: u16 = 0xFFFF;

    /// A completion of command `command_id` with result 0, submission queue head 0 and queue 0.
    #[must_use]
    #[inline]
    pub fn new(command_id: u16, status: Status) -> Cqe {
        Cqe {
            result: U64::ZERO,
            sq_head: U16::ZERO,
            sq_id: U16::ZERO,
            command_id: U16::new(command_id),
            status: U16::new(status.to_word()),
        }
    }

    /// Sets the result: the command-specific first eight bytes.
    #[must_use]
    #[inline]
    pub fn with_result(mut self, result: u64) -> Cqe {
        self.result.set(result);
        self
    }

    /// Sets the submission queue and its head.
    #[must_use]
    #[inline]
    pub fn with_queue(mut self, sq_id: u16, sq_head: u16) -> Cqe {
        self.sq_id.set(sq_id);
        self.sq_head.set(sq_head);
        self
    }

    /// Dwords 0 and 1: the command's result.
    #[must_use]
    #[inline]
    pub fn result(&self) -> u64 {
        self.result.get()
    }

    /// Consumed commands modulo the queue size, or [`NO_FLOW_CONTROL`](Self::NO_FLOW_CONTROL).
    #[must_use]
    #[inline]
    pub fn sq_head(&self) -> u16 {
        self.sq_head.get()
    }

    /// The queue's number.
    #[must_use]
    #[inline]
    pub fn sq_id(&self) -> u16 {
        self.sq_id.get()
    }

    /// The command id of the submission.
    #[must_use]
    #[inline]
    pub fn command_id(&self) -> u16 {
        self.command_id.get()
    }

    /// The status.
    #[must_use]
    #[inline]
    pub fn status(&self) -> Status {
        Status::from_word(self.status.get())
    }
}

/// A response: a completion entry, and how to send it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "every command is answered"]
pub struct Response {
    /// The entry.
    pub cqe: Cqe,
    /// SEND with invalidate of this key; a plain SEND if `None`.
    pub invalidate: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::StatusCode;

    #[test]
    fn fields_are_at_their_offsets() {
        let cqe =
            Cqe::new(0x0102, Status::permanent(StatusCode::InvalidField)).with_result(0x0A0B_0C0D).with_queue(3, 4);
        assert_eq!(cqe.as_bytes(), &[0x0D, 0x0C, 0x0B, 0x0A, 0, 0, 0, 0, 4, 0, 3, 0, 2, 1, 0x04, 0x80]);
        assert_eq!(Cqe::read_from_bytes(cqe.as_bytes()).as_ref(), Ok(&cqe));
    }
}
