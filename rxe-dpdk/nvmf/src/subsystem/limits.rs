//! Limits on what hosts can use.

use rxe_proto::Duration;

use crate::wire::SQE_LEN;
use crate::wire::private_data::{QueueAccept, QueueRequest, RejectStatus};

/// Limits on queues, controllers, transfers and times. Every field bounds memory or time that a host can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Entries of an admin queue, at least 2. Linux uses 32.
    pub admin_queue_size: u16,
    /// Entries of an I/O queue, at least 2.
    pub queue_size: u16,
    /// I/O queues of a controller.
    pub queues_per_controller: u16,
    /// Controllers of one host name.
    pub controllers_per_host: usize,
    /// Controllers in all, at most 65,519.
    pub controllers: usize,
    /// Queues whose connection is accepted but that have not sent a Connect.
    pub waiting_queues: usize,
    /// Most data of a command, as log2 of the number of 4 KiB pages (MDTS), at most 11: a descriptor's length has 24 bits.
    pub max_transfer_shift: u8,
    /// Most data in a command capsule of an I/O queue in bytes, a multiple of 16; 0 turns in-capsule data off.
    pub capsule_data: u32,
    /// Held Asynchronous Event Requests of a controller, 1 to 256.
    pub event_requests: u16,
    /// Entries of a controller's error log, 1 to 256.
    pub error_entries: u16,
    /// Time from the acceptance of a connection to its Connect.
    pub connect_timeout: Duration,
}

impl Default for Limits {
    /// Queues of 128 entries, transfers of 1 MiB, 4 KiB in the capsule.
    ///
    /// More than 4 KiB in the capsule lets Linux 5.4 to 5.12 corrupt writes.
    fn default() -> Limits {
        Limits {
            admin_queue_size: 32,
            queue_size: 128,
            queues_per_controller: 16,
            controllers_per_host: 64,
            controllers: 1024,
            waiting_queues: 1024,
            max_transfer_shift: 8,
            capsule_data: 4096,
            event_requests: 4,
            error_entries: 64,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

impl Limits {
    /// Most data of a command in bytes.
    #[must_use]
    pub const fn max_transfer(&self) -> u32 {
        4096 << if self.max_transfer_shift < 11 { self.max_transfer_shift } else { 11 }
    }

    /// Length of the receives of a queue in bytes: a command capsule.
    #[must_use]
    pub const fn capsule_len(&self, qid: u16) -> usize {
        if qid == 0 { SQE_LEN } else { SQE_LEN + self.capsule_data as usize }
    }

    /// Checks the private data of a REQ. The number of receives to post is in the answer.
    ///
    /// # Errors
    /// The status of the REJ.
    pub fn accept(&self, request: &QueueRequest) -> Result<QueueAccept, RejectStatus> {
        let largest = if request.qid == 0 { self.admin_queue_size } else { self.queue_size };
        if request.qid > self.queues_per_controller {
            Err(RejectStatus::InvalidQueueId)
        } else if request.host_sqsize == 0 || request.host_sqsize >= largest {
            Err(RejectStatus::InvalidHostSqSize)
        } else if request.host_receives == 0 {
            Err(RejectStatus::InvalidHostRqSize)
        } else {
            Ok(QueueAccept { controller_receives: request.host_sqsize + 1 })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(qid: u16, host_receives: u16, host_sqsize: u16) -> Result<u16, RejectStatus> {
        let request = QueueRequest { qid, host_receives, host_sqsize };
        Limits::default().accept(&request).map(|accept| accept.controller_receives)
    }

    #[test]
    fn queues_within_the_limits_are_accepted_with_a_receive_per_entry() {
        assert_eq!(accept(0, 32, 31), Ok(32));
        assert_eq!(accept(1, 128, 127), Ok(128));
        assert_eq!(accept(16, 16, 15), Ok(16));
    }

    #[test]
    fn each_value_beyond_the_limits_has_its_status() {
        assert_eq!(accept(17, 128, 127), Err(RejectStatus::InvalidQueueId));
        assert_eq!(accept(0, 33, 32), Err(RejectStatus::InvalidHostSqSize));
        assert_eq!(accept(1, 129, 128), Err(RejectStatus::InvalidHostSqSize));
        assert_eq!(accept(1, 1, 0), Err(RejectStatus::InvalidHostSqSize));
        assert_eq!(accept(1, u16::MAX, u16::MAX), Err(RejectStatus::InvalidHostSqSize));
        assert_eq!(accept(1, 0, 127), Err(RejectStatus::InvalidHostRqSize));
    }

    #[test]
    fn lengths_follow_from_the_limits() {
        let limits = Limits::default();
        assert_eq!((limits.max_transfer(), limits.capsule_len(0), limits.capsule_len(1)), (1 << 20, 64, 4160));
        let large = Limits { max_transfer_shift: u8::MAX, ..limits };
        assert_eq!(large.max_transfer(), 1 << 23);
    }
}
