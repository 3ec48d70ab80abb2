//! The part of a TCP header that decides to which stream a segment belongs, and whether a reset is believed.

use rxe_proto::wire::DropReason;

use crate::host::HostStats;
use crate::host::ip::{self, IpPacket};

const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The longest packet that is made an acknowledgement: a reset has no payload.
pub(super) const RESET_MAX: usize = 128;

/// The fields of a segment's header that the host reads itself; smoltcp reads the rest.
pub(super) struct Segment {
    pub(super) local_port: u16,
    pub(super) peer_port: u16,
    /// SYN without ACK: a connection request.
    pub(super) is_first: bool,
    /// Sequence number of a reset.
    pub(super) reset: Option<u32>,
}

impl Segment {
    /// Checks what smoltcp would drop without a reason.
    pub(super) fn parse(ip: &IpPacket<'_>, verify_checksum: bool, stats: &HostStats) -> Result<Segment, DropReason> {
        const SYN: u8 = 0x02;

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
        let reset = (header[13] & RST != 0).then(|| word(header, 4));
        Ok(Segment { local_port, peer_port, is_first: header[13] & (SYN | ACK) == SYN, reset })
    }
}

/// The packet of a reset as an acknowledgement of `ack`. `None` if it is longer than a reset.
pub(super) fn as_ack<'r>(ip: &IpPacket<'_>, ack: u32, room: &'r mut [u8; RESET_MAX]) -> Option<&'r [u8]> {
    let packet = room.get_mut(..ip.packet.len())?;
    packet.copy_from_slice(ip.packet);
    let header = &mut packet[ip.packet.len() - ip.payload.len()..];
    header[8..12].copy_from_slice(&ack.to_be_bytes());
    header[13] = ACK;
    Some(packet)
}

/// Sequence numbers of a segment that was sent.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub(super) sequence: u32,
    /// The next sequence number that is expected of the peer.
    pub(super) expected: u32,
}

impl Sent {
    /// Those of smoltcp's packet. `None` if it acknowledges nothing.
    pub(super) fn of(packet: &[u8]) -> Option<Sent> {
        let ip_len = if packet.first()? >> 4 == 4 { 20 } else { 40 };
        let header = packet.get(ip_len..)?.first_chunk::<20>()?;
        (header[13] & ACK != 0).then(|| Sent { sequence: word(header, 4), expected: word(header, 8) })
    }
}

fn word(header: &[u8; 20], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}
