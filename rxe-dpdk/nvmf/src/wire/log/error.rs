//! Entries of the error log (page 01).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::Status;

/// Length of an entry in bytes.
pub const ERROR_ENTRY_LEN: usize = 64;

/// An entry of the error log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    count: U64,
    queue: U16,
    command_id: U16,
    status: U16,
    location: U16,
    lba: U64,
    nsid: U32,
    reserved: [u8; 36],
}

const _: () = assert!(size_of::<ErrorEntry>() == ERROR_ENTRY_LEN);

/// Location of an error that no single byte of the command caused.
const NO_LOCATION: u16 = 0xFFFF;

impl ErrorEntry {
    /// Error number `count` of a controller: command `command_id` of queue `queue` failed with `status`.
    #[must_use]
    pub fn new(count: u64, queue: u16, command_id: u16, status: Status) -> ErrorEntry {
        let mut entry = ErrorEntry::new_zeroed();
        entry.count.set(count);
        entry.queue.set(queue);
        entry.command_id.set(command_id);
        entry.status.set(status.to_word());
        entry.location.set(NO_LOCATION);
        entry
    }

    /// Adds the namespace and the block of the error.
    #[must_use]
    pub fn at(mut self, nsid: u32, lba: u64) -> ErrorEntry {
        self.nsid.set(nsid);
        self.lba.set(lba);
        self
    }

    /// The error's number, from 1.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// The command id.
    #[must_use]
    pub fn command_id(&self) -> u16 {
        self.command_id.get()
    }

    /// The status of the command's completion.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::from_word(self.status.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::StatusCode;

    #[test]
    fn fields_are_at_their_offsets() {
        let status = Status::permanent(StatusCode::LbaOutOfRange);
        let entry = ErrorEntry::new(1, 2, 3, status).at(5, 6);
        let bytes = entry.as_bytes();
        assert_eq!((bytes[0], bytes[8], bytes[10], bytes[16], bytes[24]), (1, 2, 3, 6, 5));
        assert_eq!((bytes[12..14].to_vec(), bytes[14..16].to_vec()), (vec![0x00, 0x81], vec![0xFF, 0xFF]));
        assert_eq!((entry.count(), entry.command_id(), entry.status()), (1, 3, status));
    }
}
