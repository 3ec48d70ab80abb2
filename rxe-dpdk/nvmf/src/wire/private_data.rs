//! Private data of the connection manager's REQ, REP and REJ.

use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the private data of REQ and REP in bytes.
pub const PRIVATE_DATA_LEN: usize = 32;
/// Length of the private data of REJ in bytes.
pub const REJECT_DATA_LEN: usize = 4;
/// The only record format.
const RECORD_FORMAT: u16 = 0;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RequestLayout {
    record_format: U16,
    qid: U16,
    hrqsize: U16,
    hsqsize: U16,
    reserved: [u8; 24],
}

const _: () = assert!(size_of::<RequestLayout>() == PRIVATE_DATA_LEN);

/// Private data of a REQ, behind the 36 bytes of IP addressing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueRequest {
    /// Queue: 0 is the admin queue.
    pub qid: u16,
    /// HRQSIZE: receives of the host.
    pub host_receives: u16,
    /// HSQSIZE: entries of the host's submission queue, minus 1.
    pub host_sqsize: u16,
}

impl QueueRequest {
    /// Reads the private data; further bytes are ignored.
    ///
    /// # Errors
    /// [`RejectStatus::InvalidLength`] and [`RejectStatus::InvalidRecordFormat`].
    pub fn parse(bytes: &[u8]) -> Result<QueueRequest, RejectStatus> {
        let (layout, _) = RequestLayout::ref_from_prefix(bytes).map_err(|_| RejectStatus::InvalidLength)?;
        if layout.record_format.get() != RECORD_FORMAT {
            return Err(RejectStatus::InvalidRecordFormat);
        }
        Ok(QueueRequest {
            qid: layout.qid.get(),
            host_receives: layout.hrqsize.get(),
            host_sqsize: layout.hsqsize.get(),
        })
    }

    /// Writes the private data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PRIVATE_DATA_LEN] {
        zerocopy::transmute!(RequestLayout {
            record_format: U16::new(RECORD_FORMAT),
            qid: U16::new(self.qid),
            hrqsize: U16::new(self.host_receives),
            hsqsize: U16::new(self.host_sqsize),
            reserved: [0; 24],
        })
    }
}

/// Private data of a REP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueAccept {
    /// CRQSIZE: receives of the controller.
    pub controller_receives: u16,
}

impl QueueAccept {
    /// Reads the private data; `None` when it is too short or has another format.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<QueueAccept> {
        match *bytes.first_chunk::<4>()? {
            [0, 0, low, high] => Some(QueueAccept { controller_receives: u16::from_le_bytes([low, high]) }),
            _ => None,
        }
    }

    /// Writes the private data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PRIVATE_DATA_LEN] {
        let mut bytes = [0; PRIVATE_DATA_LEN];
        bytes[2..4].copy_from_slice(&self.controller_receives.to_le_bytes());
        bytes
    }
}

/// The reason in the private data of a REJ. The connection manager's own reason is 28, consumer defined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[repr(u16)]
pub enum RejectStatus {
    /// The private data is too short.
    #[error("invalid length of the private data")]
    InvalidLength = 1,
    /// RECFMT is not 0.
    #[error("invalid record format")]
    InvalidRecordFormat = 2,
    /// The queue's number is too large.
    #[error("invalid queue id")]
    InvalidQueueId = 3,
    /// The host's submission queue is too small or too large.
    #[error("invalid submission queue size of the host")]
    InvalidHostSqSize = 4,
    /// The host posts no receives.
    #[error("invalid receive queue size of the host")]
    InvalidHostRqSize = 5,
    /// There are no resources for the queue.
    #[error("no resources")]
    NoResources = 6,
    /// The number of inbound READs is not acceptable.
    #[error("invalid inbound READ depth")]
    InvalidInboundReads = 7,
    /// The number of outbound READs is not acceptable.
    #[error("invalid outbound READ depth")]
    InvalidOutboundReads = 8,
}

impl RejectStatus {
    /// Every status, in ascending order of the code.
    pub const ALL: [RejectStatus; 8] = [
        RejectStatus::InvalidLength,
        RejectStatus::InvalidRecordFormat,
        RejectStatus::InvalidQueueId,
        RejectStatus::InvalidHostSqSize,
        RejectStatus::InvalidHostRqSize,
        RejectStatus::NoResources,
        RejectStatus::InvalidInboundReads,
        RejectStatus::InvalidOutboundReads,
    ];

    /// Reads the private data; `None` when it is too short, or format or status are unknown.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<RejectStatus> {
        let [0, 0, low, high] = *bytes.first_chunk::<4>()? else { return None };
        let code = u16::from_le_bytes([low, high]);
        RejectStatus::ALL.into_iter().find(|&status| status as u16 == code)
    }

    /// Writes the private data.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REJECT_DATA_LEN] {
        let [low, high] = (self as u16).to_le_bytes();
        [0, 0, low, high]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_requests_are_written_again() {
        // nvmf-rdma.pcap: admin queue, then I/O queue 1.
        for (start, qid, receives, sqsize) in
            [([0, 0, 0, 0, 0x20, 0, 0x1F, 0], 0, 32, 31), ([0, 0, 1, 0, 0x80, 0, 0x7F, 0], 1, 128, 127)]
        {
            let mut bytes = [0; PRIVATE_DATA_LEN];
            bytes[..8].copy_from_slice(&start);
            let request = QueueRequest::parse(&bytes).unwrap();
            assert_eq!(request, QueueRequest { qid, host_receives: receives, host_sqsize: sqsize });
            assert_eq!(request.to_bytes(), bytes);
        }
    }

    #[test]
    fn short_and_unknown_requests_name_the_reason() {
        assert_eq!(QueueRequest::parse(&[0; 31]), Err(RejectStatus::InvalidLength));
        let mut bytes = [0; 56];
        bytes[0] = 1;
        assert_eq!(QueueRequest::parse(&bytes), Err(RejectStatus::InvalidRecordFormat));
    }

    #[test]
    fn accepts_and_rejects_are_read_as_written() {
        let accept = QueueAccept { controller_receives: 128 };
        assert_eq!(QueueAccept::parse(&accept.to_bytes()), Some(accept));
        assert_eq!(QueueAccept::parse(&[1, 0, 128, 0]), None);
        for status in RejectStatus::ALL {
            assert_eq!(RejectStatus::parse(&status.to_bytes()), Some(status));
        }
        assert_eq!(RejectStatus::parse(&[0, 0, 9, 0]), None);
        assert_eq!(RejectStatus::parse(&[0, 0, 1]), None);
    }
}
