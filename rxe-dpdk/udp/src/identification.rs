//! IPv4 identifications that the socket does not show, computed from the ICRC.
//!
//! The ICRC covers the identification and the flags of the IPv4 header. Our own ends, and others that follow RFC 6864, send
//! identification 0 with the flag "don't fragment". Linux's rxe and network cards number their packets. A UDP socket shows
//! none of this. But a CRC is linear: the ICRC as computed with identification 0 and the ICRC as received differ by the
//! difference in those four bytes, moved on by the bytes behind them. To move on by one bit is to multiply by x modulo the
//! CRC's polynomial, which can be undone. So there is one value of the four bytes, of all 2^32, that makes the ICRC right. It is
//! plausible when the fragment offset is 0 and no flag but "don't fragment" is set. Of a damaged packet it is so with
//! probability 2^-15, the strength that is left of the check.

use std::net::Ipv4Addr;

/// CRC-32 of IEEE 802.3, reflected: the lowest bit is the highest power.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// Longest part of a packet, from the identification on, that the table reaches: more than any RoCE packet has.
const REACH: usize = 4352;

/// Offset of the identification in an IPv4 header.
const AT: usize = 4;

/// For each number of 32-bit words from the identification to the end of what the ICRC covers: the factor that moves a
/// difference back over them.
static BACK: [u32; REACH / 4] = {
    let mut table = [0; REACH / 4];
    let mut factor = 1 << 31;
    let mut words = 0;
    while words < table.len() {
        table[words] = factor;
        let mut bits = 0;
        while bits < 32 {
            factor = if factor >> 31 == 1 { (factor ^ POLYNOMIAL) << 1 | 1 } else { factor << 1 };
            bits += 1;
        }
        words += 1;
    }
    table
};

/// The fields of an IPv4 header that a UDP socket does not show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hidden {
    /// The identification.
    pub(crate) id: u16,
    /// The flag "don't fragment".
    pub(crate) dont_fragment: bool,
}

/// The fields with which the ICRC is right, given the XOR of the received one and of the one computed with identification 0
/// and the flag "don't fragment". `covered` is the number of bytes from the IP header to the ICRC. `None` when no fields of an
/// unfragmented packet make it right.
pub(crate) fn recover(difference: u32, covered: usize) -> Option<Hidden> {
    let len = covered.checked_sub(AT)?;
    if !len.is_multiple_of(4) {
        return None;
    }
    let [id_high, id_low, flags, offset] = multiply(difference, *BACK.get(len / 4)?).to_le_bytes();
    let dont_fragment = match flags {
        0 => true,
        0x40 => false,
        _ => return None,
    };
    (offset == 0).then_some(Hidden { id: u16::from_be_bytes([id_high, id_low]), dont_fragment })
}

/// The product of two polynomials modulo the CRC's.
fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    for power in (0..32).rev() {
        product ^= b & (a >> power & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// Number of entries of a [`PeerTable`], a power of two.
const PEERS: usize = 1024;

/// Consecutive packets with identification 0 after which a peer is known to send no other.
const KNOWN_AFTER: u8 = 8;

/// Of the packets of a known peer one in eight is examined. An RC queue pair retransmits 7 times by default, so that a peer
/// whose packets begin to have identifications, because another program got its address, is noticed in time.
const EXAMINE_EVERY: u8 = 8;

/// Which peers send identification 0 only, so that their packets need not be examined each.
///
/// A wrong entry does no harm: the engine checks every ICRC. Two peers with the same place replace each other, and are examined
/// more often.
pub(crate) struct PeerTable(Box<[Peer]>);

#[derive(Clone, Copy)]
struct Peer {
    address: Ipv4Addr,
    /// Consecutive packets with identification 0, up to [`KNOWN_AFTER`].
    zeros: u8,
    /// Packets since the last one that was examined.
    skipped: u8,
}

impl PeerTable {
    pub(crate) fn new() -> PeerTable {
        PeerTable(vec![Peer { address: Ipv4Addr::UNSPECIFIED, zeros: 0, skipped: 0 }; PEERS].into_boxed_slice())
    }

    #[inline]
    fn peer(&mut self, address: Ipv4Addr) -> &mut Peer {
        // 2^32 divided by the golden ratio spreads neighbouring addresses.
        let place = address.to_bits().wrapping_mul(0x9E37_79B9) >> (u32::BITS - PEERS.ilog2());
        let peer = &mut self.0[place as usize & (PEERS - 1)];
        if peer.address != address {
            *peer = Peer { address, zeros: 0, skipped: 0 };
        }
        peer
    }

    /// Whether to examine the next packet of a peer.
    #[inline]
    pub(crate) fn is_due(&mut self, address: Ipv4Addr) -> bool {
        let peer = self.peer(address);
        if peer.zeros < KNOWN_AFTER {
            return true;
        }
        peer.skipped = (peer.skipped + 1) % EXAMINE_EVERY;
        peer.skipped == 0
    }

    /// Notes whether the ICRC of an examined packet is right with identification 0 and the flag "don't fragment".
    pub(crate) fn note(&mut self, address: Ipv4Addr, zero: bool) {
        let peer = self.peer(address);
        peer.zeros = if zero { (peer.zeros + 1).min(KNOWN_AFTER) } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::icrc;

    use super::*;

    /// An IPv4 packet up to the ICRC, of `len` bytes, with this identification and these flags.
    fn packet(len: usize, id: u16, flags: u8) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..len).map(|i| (i * i + 7 * i) as u8).collect();
        packet[0] = 0x45;
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        packet[6..8].copy_from_slice(&[flags, 0]);
        packet
    }

    #[test]
    fn every_identification_is_recovered_at_every_length() {
        for len in (40..=28 + 4160 - 4).step_by(4) {
            let assumed = icrc(&packet(len, 0, 0x40), true);
            // As the CRC is linear, a few identifications with all bits among them are as good as all, but for one length.
            let step = if len == 60 { 1 } else { 4099 };
            for id in (0..=u16::MAX).step_by(step) {
                let difference = assumed ^ icrc(&packet(len, id, 0x40), true);
                assert_eq!(recover(difference, len), Some(Hidden { id, dont_fragment: true }), "{len} {id:#x}");
            }
        }
    }

    #[test]
    fn a_missing_flag_is_recovered_with_the_identification() {
        let difference = icrc(&packet(60, 0, 0x40), true) ^ icrc(&packet(60, 0x1234, 0), true);
        assert_eq!(recover(difference, 60), Some(Hidden { id: 0x1234, dont_fragment: false }));
    }

    #[test]
    fn fragments_and_odd_lengths_are_refused() {
        let difference = icrc(&packet(60, 0, 0x40), true) ^ icrc(&packet(60, 0x1234, 0x20), true);
        assert_eq!(recover(difference, 60), None);
        assert_eq!(recover(1, 61), None);
        assert_eq!(recover(1, 0), None);
        assert_eq!(recover(1, 4 + REACH), None);
    }

    /// The first of the flipped bits is refused, and few others are not.
    #[test]
    fn a_damaged_packet_is_refused_with_few_exceptions() {
        let (assumed, sent) = (packet(1100, 0, 0x40), packet(1100, 0x1234, 0x40));
        let stored = icrc(&sent, true);
        let mut accepted = 0;
        for bit in 8 * 40..8 * 1100 {
            let mut damaged = assumed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            accepted += u32::from(recover(icrc(&damaged, true) ^ stored, 1100).is_some());
        }
        assert!(accepted <= 3, "{accepted} of 8480, where 2^-15 of them are expected");
    }

    #[test]
    fn a_known_peer_is_examined_now_and_then_until_it_sends_an_identification() {
        let mut peers = PeerTable::new();
        let (one, two) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        for _ in 0..KNOWN_AFTER {
            assert!(peers.is_due(one) && peers.is_due(two));
            peers.note(one, true);
            peers.note(two, false);
        }
        let examined = |peers: &mut PeerTable, address| (0..64).filter(|_| peers.is_due(address)).count();
        assert_eq!((examined(&mut peers, one), examined(&mut peers, two)), (8, 64));
        peers.note(one, false);
        assert_eq!(examined(&mut peers, one), 64);
    }
}
