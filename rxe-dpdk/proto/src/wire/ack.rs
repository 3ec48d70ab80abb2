//! Acknowledge packets: nearly every request gets one, so they are written as copies of a prepared template.

use super::icrc::{ICRC_LEN, IcrcKernel};
use super::net::{ETH_LEN, IPV4_LEN, IPV6_LEN, UDP_LEN, VLAN_LEN};
use super::{AETH_LEN, BTH_LEN, BthFields, BthOpcode, DEFAULT_PKEY, HeaderTemplate, Opcode, PortId, Psn, Syndrome};

/// Bytes after the UDP header: BTH, AETH, ICRC.
const BODY_LEN: usize = BTH_LEN + AETH_LEN + ICRC_LEN;
const LONGEST: usize = ETH_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN + BODY_LEN;
/// Without VLAN tag.
const IPV4_ACK: usize = ETH_LEN + IPV4_LEN + UDP_LEN + BODY_LEN;

/// The acknowledge packets of one connection. They differ only in PSN and AETH, so the ICRC is computed from the
/// template's ICRC and these few bytes, without reading the frame back.
#[derive(Clone, Debug)]
pub struct AckTemplate {
    /// An ACK whose PSN and AETH are zero.
    frame: [u8; LONGEST],
    len: u8,
    ip_at: u8,
    is_ipv4: bool,
    port: PortId,
    /// ICRC of the prepared packet.
    icrc: u32,
}

impl AckTemplate {
    /// The template for acknowledgements to queue pair `dest_qp` at the end of a path.
    pub fn new(path: &HeaderTemplate, dest_qp: u32) -> AckTemplate {
        let fields = BthFields {
            opcode: BthOpcode::rc(Opcode::Acknowledge),
            dest_qp,
            psn: Psn::new(0),
            solicited: false,
            ack_req: false,
            pkey: DEFAULT_PKEY,
        };
        let mut frame = [0; LONGEST];
        let len = path.frame_len(fields.opcode, 0);
        let mut packet = path.build(&mut frame[..len], fields, 0);
        packet.aeth(Syndrome::from_byte(0), 0);
        packet.finish();
        AckTemplate {
            frame,
            len: len as u8,
            ip_at: path.ip_at() as u8,
            is_ipv4: path.is_ipv4(),
            port: path.port(),
            icrc: frame[..len].last_chunk().map_or(0, |stored| u32::from_le_bytes(*stored)),
        }
    }

    /// The port to transmit on.
    #[inline]
    pub fn port(&self) -> PortId {
        self.port
    }

    /// Length of a frame.
    #[inline]
    pub fn frame_len(&self) -> usize {
        usize::from(self.len)
    }

    /// Writes an acknowledge packet into `frame`, which has exactly [`frame_len`](Self::frame_len) bytes. `msn` is
    /// taken modulo 2^24.
    ///
    /// # Panics
    /// When `frame` has another length.
    #[inline(always)]
    pub fn write(&self, frame: &mut [u8], psn: Psn, syndrome: Syndrome, msn: u32) {
        let last = u64::from(psn.get()) << 32 | u64::from(syndrome.to_byte()) << 24 | u64::from(msn & 0xFF_FFFF);
        // The common length as a constant, so that the copies are inlined.
        match (self.frame.first_chunk::<IPV4_ACK>(), <&mut [u8; IPV4_ACK]>::try_from(&mut *frame)) {
            (Some(prepared), Ok(frame)) if self.is_ipv4 && usize::from(self.len) == IPV4_ACK => {
                *frame = *prepared;
                self.complete(frame, ETH_LEN, last, IcrcKernel::best());
            }
            _ => self.write_unusual(frame, last),
        }
    }

    #[inline(never)]
    fn write_unusual(&self, frame: &mut [u8], last: u64) {
        frame.copy_from_slice(&self.frame[..usize::from(self.len)]);
        self.complete(frame, usize::from(self.ip_at), last, IcrcKernel::best());
    }

    /// Fills in `last`, the last eight bytes before the ICRC, and updates the ICRC.
    #[inline(always)]
    fn complete(&self, frame: &mut [u8], ip_at: usize, last: u64, kernel: IcrcKernel) {
        let end = frame.len() - ICRC_LEN;
        frame[end - 8..end].copy_from_slice(&last.to_be_bytes());
        let icrc = match kernel.change_of_ack(last) {
            Some(change) => self.icrc ^ change,
            None => kernel.icrc(&frame[ip_at..end], self.is_ipv4),
        };
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Gid, Path};

    #[test]
    fn every_kernel_writes_the_same() {
        let gid = |last| [Gid::from(std::net::Ipv4Addr::new(10, 0, 0, last)), Gid([last; 16])];
        for (src, dst) in gid(1).into_iter().zip(gid(2)) {
            let acks = AckTemplate::new(&HeaderTemplate::new(&Path { src, dst, ..Path::default() }), 0x11);
            for last in [0, 1 << 63, 0x0012_3456_1F65_4321, u64::MAX] {
                let frames = IcrcKernel::all().map(|kernel| {
                    let mut frame = acks.frame;
                    acks.complete(&mut frame[..acks.frame_len()], ETH_LEN, last, kernel);
                    frame
                });
                let frames: Vec<_> = frames.collect();
                assert!(frames.windows(2).all(|pair| pair[0] == pair[1]), "{src:?} {last:#x}");
            }
        }
    }
}
