//! UDP frames of the length of a WRITE, and their reflection: the performance of the port without the protocol.

use std::net::IpAddr;

use rxe_proto::Instant;
use rxe_proto::wire::MacAddr;

/// Overhead of a WRITE of one packet: BTH, RETH and ICRC.
const WRITE_OVERHEAD: usize = 12 + 16 + 4;
const ETH: usize = 14;
const UDP: usize = 8;
const UDP_PROTOCOL: u8 = 17;
/// The echo service of RFC 862.
const ECHO_PORT: u16 = 7;
const SOURCE_PORT: u16 = 49_152;
/// Identifies the frames of the bench; follows the UDP header.
const MAGIC: u32 = 0x5278_4265;
/// Length of magic number, run and time.
const STAMP: usize = 4 + 4 + 8;

/// Template of the frames to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    header: Vec<u8>,
    len: usize,
}

/// Run and time of a reflected frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The run that the frame belongs to.
    pub run: u32,
    /// Time of transmission.
    pub sent: Instant,
}

impl Template {
    /// Frames as long as that of a WRITE of `size` bytes.
    pub fn new(mac: MacAddr, from: IpAddr, to: IpAddr, size: usize) -> Template {
        let payload = size + WRITE_OVERHEAD;
        let mut header = vec![0xFF; 6];
        header.extend_from_slice(&mac.0);
        // Frames are at most jumbo frames.
        let udp = (UDP + payload) as u16;
        match (from, to) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                header.extend_from_slice(&[0x86, 0xDD, 0x60, 0, 0, 0]);
                header.extend_from_slice(&udp.to_be_bytes());
                header.extend_from_slice(&[UDP_PROTOCOL, 64]);
                header.extend_from_slice(&from.octets());
                header.extend_from_slice(&to.octets());
            }
            (from, to) => {
                let octets = |ip: IpAddr| if let IpAddr::V4(ip) = ip { ip.octets() } else { [0; 4] };
                let mut ip = vec![0x45, 0];
                ip.extend_from_slice(&(20 + udp).to_be_bytes());
                ip.extend_from_slice(&[0, 0, 0x40, 0, 64, UDP_PROTOCOL, 0, 0]);
                ip.extend_from_slice(&octets(from));
                ip.extend_from_slice(&octets(to));
                let sum = checksum(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                header.extend_from_slice(&[8, 0]);
                header.extend_from_slice(&ip);
            }
        }
        header.extend_from_slice(&SOURCE_PORT.to_be_bytes());
        header.extend_from_slice(&ECHO_PORT.to_be_bytes());
        header.extend_from_slice(&udp.to_be_bytes());
        // No checksum, as RoCEv2 has none.
        header.extend_from_slice(&[0, 0]);
        header.extend_from_slice(&MAGIC.to_be_bytes());
        let len = header.len() - 4 + payload;
        Template { header, len }
    }

    /// Length of a frame.
    pub fn frame_len(&self) -> usize {
        self.len
    }

    /// Sets the destination.
    pub fn set_destination(&mut self, mac: MacAddr) {
        self.header[..6].copy_from_slice(&mac.0);
    }

    /// Writes a frame. The bytes after the stamp are left as they are.
    #[inline]
    pub fn write(&self, frame: &mut [u8], stamp: Stamp) {
        let (header, rest) = frame.split_at_mut(self.header.len());
        header.copy_from_slice(&self.header);
        rest[..4].copy_from_slice(&stamp.run.to_ne_bytes());
        rest[4..12].copy_from_slice(&stamp.sent.as_nanos().to_ne_bytes());
    }

    /// Reads the stamp of a reflected frame; `None` for other frames.
    #[inline]
    pub fn read(&self, frame: &[u8]) -> Option<Stamp> {
        let at = self.header.len() - 4;
        let stamp = frame.get(at..at + STAMP)?;
        if stamp[..4] != MAGIC.to_be_bytes() {
            return None;
        }
        let run = u32::from_ne_bytes(stamp[4..8].try_into().ok()?);
        let sent = Instant::from_nanos(u64::from_ne_bytes(stamp[8..].try_into().ok()?));
        Some(Stamp { run, sent })
    }
}

/// The sender of a frame.
pub fn source(frame: &[u8]) -> Option<MacAddr> {
    frame.get(6..12)?.try_into().ok().map(MacAddr)
}

/// Exchanges source and destination of a UDP frame; its new source is `mac`. `false` for other frames.
#[inline]
pub fn reflect(frame: &mut [u8], mac: MacAddr) -> bool {
    let (address, len, ip) = match frame.get(12..ETH + 10) {
        Some([8, 0, 0x45, _, _, _, _, _, _, _, _, UDP_PROTOCOL]) => (12, 4, 20),
        Some([0x86, 0xDD, _, _, _, _, _, _, UDP_PROTOCOL, ..]) => (8, 16, 40),
        _ => return false,
    };
    if frame.len() < ETH + ip + UDP {
        return false;
    }
    frame.copy_within(6..12, 0);
    frame[6..12].copy_from_slice(&mac.0);
    let (from, to) = frame[ETH + address..].split_at_mut(len);
    from.swap_with_slice(&mut to[..len]);
    let (from, to) = frame[ETH + ip..].split_at_mut(2);
    from.swap_with_slice(&mut to[..2]);
    true
}

/// The checksum of an IPv4 header.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    // A sum of twenty bytes carries at most twice.
    let once = (sum & 0xFFFF) + (sum >> 16);
    !(((once & 0xFFFF) + (once >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const THEIRS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn round_trip(from: &str, to: &str, len: usize) {
        let template = Template::new(OURS, from.parse().expect("IP"), to.parse().expect("IP"), 64);
        assert_eq!(template.frame_len(), len);
        let mut frame = vec![0; len];
        let stamp = Stamp { run: 7, sent: Instant::from_nanos(0x1122_3344_5566) };
        template.write(&mut frame, stamp);
        let back = Template::new(THEIRS, to.parse().expect("IP"), from.parse().expect("IP"), 64);
        assert!(reflect(&mut frame, THEIRS));
        assert_eq!((source(&frame), template.read(&frame)), (Some(THEIRS), Some(stamp)));
        assert_eq!(frame[..6], OURS.0);
        // Apart from destination, checksum and UDP ports it equals a frame of the other end.
        let ip = len - 64 - WRITE_OVERHEAD - UDP;
        assert_eq!(frame[6..ip], back.header[6..ip]);
        assert_eq!(frame[ip..ip + 4], [0, 7, 0xC0, 0]);
    }

    #[test]
    fn a_reflected_frame_keeps_its_stamp() {
        round_trip("10.0.0.2", "10.0.0.1", 138);
        round_trip("fd00::2", "fd00::1", 158);
    }

    #[test]
    fn other_frames_are_not_reflected() {
        let mut arp = [0xFF; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(!reflect(&mut arp, THEIRS) && !reflect(&mut [0; 20], THEIRS) && !reflect(&mut [], THEIRS));
        let template = Template::new(OURS, "10.0.0.2".parse().expect("IP"), "10.0.0.1".parse().expect("IP"), 64);
        assert_eq!((template.read(&[0; 138]), template.read(&arp[..40])), (None, None));
    }

    #[test]
    fn the_checksum_verifies() {
        let header = Template::new(OURS, "10.0.0.2".parse().expect("IP"), "10.0.0.1".parse().expect("IP"), 64).header;
        assert_eq!(checksum(&header[14..34]), 0);
    }
}
