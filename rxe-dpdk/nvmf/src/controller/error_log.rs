//! The error log of a controller.

use std::collections::VecDeque;

use zerocopy::IntoBytes;

use crate::wire::Status;
use crate::wire::log::ErrorEntry;

/// The latest errors, newest first.
#[derive(Debug)]
pub(super) struct ErrorLog {
    entries: VecDeque<ErrorEntry>,
    capacity: usize,
    /// Errors since the controller was created.
    count: u64,
}

/// A failed command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub(super) queue: u16,
    pub(super) command_id: u16,
    pub(super) status: Status,
    pub(super) nsid: u32,
    pub(super) lba: u64,
}

impl ErrorLog {
    pub(super) fn new(capacity: u16) -> ErrorLog {
        ErrorLog { entries: VecDeque::new(), capacity: usize::from(capacity.clamp(1, 256)), count: 0 }
    }

    pub(super) fn push(&mut self, failure: Failure) {
        self.count += 1;
        self.entries.truncate(self.capacity - 1);
        let Failure { queue, command_id, status, nsid, lba } = failure;
        self.entries.push_front(ErrorEntry::new(self.count, queue, command_id, status).at(nsid, lba));
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The page: entries, newest first, then zeroes.
    pub(super) fn page(&self) -> Vec<u8> {
        let mut page: Vec<u8> = self.entries.iter().flat_map(|entry| entry.as_bytes().iter().copied()).collect();
        page.resize(self.capacity * size_of::<ErrorEntry>(), 0);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::StatusCode;

    #[test]
    fn the_newest_errors_are_kept_and_first() {
        let mut log = ErrorLog::new(3);
        for command_id in 0..5 {
            let status = Status::permanent(StatusCode::InvalidField);
            log.push(Failure { queue: 1, command_id, status, nsid: 1, lba: 0 });
        }
        let page = log.page();
        assert_eq!((log.count(), page.len()), (5, 3 * 64));
        let counts: Vec<u8> = page.chunks(64).map(|entry| entry[0]).collect();
        assert_eq!(counts, [5, 4, 3]);
        assert_eq!(ErrorLog::new(2).page(), [0; 128]);
    }
}
