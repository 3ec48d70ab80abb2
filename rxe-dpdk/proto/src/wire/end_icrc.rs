//! ICRCs of packets that differ only at their end: PSN and extension headers, without payload. All before that is the same
//! for all such packets of a connection, so the ICRC is computed from the ICRC of one of them and these few bytes, without
//! reading the frame back.

use super::icrc::{ICRC_LEN, IcrcKernel};
use super::net::{ETH_LEN, IPV6_LEN, UDP_LEN, VLAN_LEN};
use super::{
    AETH_LEN, ATOMIC_ACK_ETH_LEN, BTH_LEN, BthFields, BthOpcode, DEFAULT_PKEY, HeaderTemplate, Opcode, PacketBuilder,
    Psn, RETH_LEN, Syndrome,
};

const LONGEST: usize = ETH_LEN + VLAN_LEN + IPV6_LEN + UDP_LEN + BTH_LEN + RETH_LEN + ICRC_LEN;
const _: () = assert!(AETH_LEN + ATOMIC_ACK_ETH_LEN <= RETH_LEN);

/// The ICRCs of a connection's READ requests, all with AckReq.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequestIcrc(u32);

impl ReadRequestIcrc {
    /// For requests to queue pair `dest_qp` at the end of a path.
    pub fn new(path: &HeaderTemplate, dest_qp: u32) -> ReadRequestIcrc {
        ReadRequestIcrc(of_zeros(path, Opcode::ReadRequest, dest_qp, true, |packet| {
            packet.reth(0, 0, 0);
        }))
    }

    /// The ICRC of the request with these fields; `None` where that takes longer than a new ICRC.
    #[inline(always)]
    pub fn of(self, psn: Psn, va: u64, rkey: u32, dma_len: u32) -> Option<u32> {
        let end = [[0, u64::from(psn.get())], [va, u64::from(rkey) << 32 | u64::from(dma_len)]];
        IcrcKernel::best().change_of_end(end).map(|change| self.0 ^ change)
    }
}

/// The ICRCs of a connection's atomic acknowledges.
#[derive(Clone, Copy, Debug)]
pub struct AtomicAckIcrc(u32);

impl AtomicAckIcrc {
    /// For acknowledges to queue pair `dest_qp` at the end of a path.
    pub fn new(path: &HeaderTemplate, dest_qp: u32) -> AtomicAckIcrc {
        AtomicAckIcrc(of_zeros(path, Opcode::AtomicAcknowledge, dest_qp, false, |packet| {
            packet.aeth(Syndrome::from_byte(0), 0).atomic_ack(0);
        }))
    }

    /// The ICRC of the acknowledge with these fields; `None` where that takes longer than a new ICRC.
    #[inline(always)]
    pub fn of(self, psn: Psn, syndrome: Syndrome, msn: u32, original: u64) -> Option<u32> {
        let aeth = u64::from(syndrome.to_byte()) << 24 | u64::from(msn & 0xFF_FFFF);
        let end = [[u64::from(psn.get()) << 32 | aeth, original]];
        IcrcKernel::best().change_of_end(end).map(|change| self.0 ^ change)
    }
}

/// The ICRC of a packet whose PSN and extension headers, which `extend` writes, are zero.
fn of_zeros(
    path: &HeaderTemplate,
    op: Opcode,
    dest_qp: u32,
    ack_req: bool,
    extend: impl FnOnce(&mut PacketBuilder<'_>),
) -> u32 {
    let opcode = BthOpcode::rc(op);
    let fields = BthFields { opcode, dest_qp, psn: Psn::new(0), solicited: false, ack_req, pkey: DEFAULT_PKEY };
    let mut frame = [0; LONGEST];
    let len = path.frame_len(opcode, 0);
    let mut packet = path.build(&mut frame[..len], fields, 0);
    extend(&mut packet);
    packet.finish();
    frame[..len].last_chunk().map_or(0, |stored| u32::from_le_bytes(*stored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Gid, Path};

    #[test]
    fn they_are_the_ones_of_the_whole_packets() {
        let gid = |last| [Gid::from(std::net::Ipv4Addr::new(10, 0, 0, last)), Gid([last; 16])];
        for (src, dst) in gid(1).into_iter().zip(gid(2)) {
            let path = HeaderTemplate::new(&Path { src, dst, ..Path::default() });
            for (psn, va, rkey, len) in
                [(0, 0, 0, 0), (0x12_3456, u64::MAX, 0x8765_4321, 1), (0xFF_FFFF, 1, 2, u32::MAX)]
            {
                let psn = Psn::new(psn);
                let whole_packets = |extend: &dyn Fn(&mut PacketBuilder<'_>), op, ack_req| {
                    let opcode = BthOpcode::rc(op);
                    let fields =
                        BthFields { opcode, dest_qp: 0x11, psn, solicited: false, ack_req, pkey: DEFAULT_PKEY };
                    let mut frame = [0; LONGEST];
                    let frame = &mut frame[..path.frame_len(opcode, 0)];
                    let mut packet = path.build(frame, fields, 0);
                    extend(&mut packet);
                    packet.finish();
                    frame.last_chunk().map(|stored| u32::from_le_bytes(*stored))
                };
                let whole = whole_packets(
                    &|packet| {
                        packet.reth(va, rkey, len);
                    },
                    Opcode::ReadRequest,
                    true,
                );
                let found = ReadRequestIcrc::new(&path, 0x11).of(psn, va, rkey, len);
                assert!(found.is_none() || found == whole, "{found:x?} {whole:x?}");
                let whole = whole_packets(
                    &|packet| {
                        packet.aeth(Syndrome::ACK, rkey).atomic_ack(va);
                    },
                    Opcode::AtomicAcknowledge,
                    false,
                );
                let found = AtomicAckIcrc::new(&path, 0x11).of(psn, Syndrome::ACK, rkey, va);
                assert!(found.is_none() || found == whole, "{found:x?} {whole:x?}");
            }
        }
    }
}
