//! The part of a TCP header that decides to which stream a segment belongs.

use rxe_proto::wire::DropReason;

use crate::host::HostStats;
use crate::host::ip::{self, IpPacket};

/// The fields of a segment's header that the host reads itself; smoltcp reads the rest.
pub(super) struct Segment {
    pub(super) local_port: u16,
    pub(super) peer_port: u16,
    /// SYN without ACK: a connection request.
    pub(super) is_first: bool,
}

impl Segment {
    /// Checks what smoltcp would drop without a reason.
    pub(super) fn parse(ip: &IpPacket<'_>, verify_checksum: bool, stats: &HostStats) -> Result<Segment, DropReason> {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;

        let malformed = || {
            stats.tcp_malformed.inc();
            DropReason::HostUnsupported
        };
        let (header, _) = ip.payload.split_first_chunk::<20>().ok_or_else(malformed)?;
        let header_len = usize::from(header[12] >> 4) * 4;
        let peer_port = u16::from_be_bytes([header[0], header[1]]);
        let local_port = u16::from_be_bytes([header[2], header[3]]);
        if header_len < header.len() || header_len > ip.payload.len() || peer_port == 0 || local_port == 0 {
            return Err(malformed());
        }
        if !ip.transport_checksum_ok(ip::TCP) {
            if verify_checksum {
                return Err(DropReason::HostChecksum);
            }
            stats.tcp_checksum_unfinished.inc();
        }
        Ok(Segment { local_port, peer_port, is_first: header[13] & (SYN | ACK) == SYN })
    }
}
