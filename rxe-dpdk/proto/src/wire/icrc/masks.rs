//! The bits of a packet that count as ones, and the state of the CRC's register when the packet begins.

use super::POLYNOMIAL;

/// From the IP header (the longer one) to the last byte that is masked, the BTH's reserved byte.
pub const MASKED: usize = 40 + 8 + 5;
/// The same part's length with an IPv4 header.
pub const MASKED_IPV4: usize = 20 + 8 + 5;

/// Where the packet begins in [`Masks`]: a load that reaches in front of it finds zeros.
pub const FRONT: usize = 64;

/// Bits that count as ones, for each byte of a packet from its IP header on: byte `i` at `FRONT + i`.
#[repr(align(64))]
pub struct Masks(pub [u8; FRONT + 128]);

/// The masks of a packet.
#[inline]
pub fn of(is_ipv4: bool) -> &'static Masks {
    static BOTH: [Masks; 2] = [masks(false), masks(true)];
    &BOTH[usize::from(is_ipv4)]
}

const fn masks(is_ipv4: bool) -> Masks {
    let mut table = [0; FRONT + 128];
    let (_, ones) = table.split_at_mut(FRONT);
    // compliance.md [PKT-ICRC-COVER]: The ICRC covers IP header to pad, with the fields that routers may change as
    // ones.
    if is_ipv4 {
        ones[1] = 0xFF; // DSCP, ECN
        ones[8] = 0xFF; // time to live
        ones[10] = 0xFF; // header checksum
        ones[11] = 0xFF;
        ones[26] = 0xFF; // UDP checksum
        ones[27] = 0xFF;
        ones[32] = 0xFF; // FECN, BECN, reserved
    } else {
        ones[0] = 0x0F; // traffic class, flow label
        ones[1] = 0xFF;
        ones[2] = 0xFF;
        ones[3] = 0xFF;
        ones[7] = 0xFF; // hop limit
        ones[46] = 0xFF; // UDP checksum
        ones[47] = 0xFF;
        ones[52] = 0xFF; // FECN, BECN, reserved
    }
    Masks(table)
}

/// The CRC's register, which starts with all ones, after the eight 0xFF bytes that stand in for the InfiniBand local
/// route header.
pub const PREFIX: u32 = {
    let mut register = u32::MAX;
    let mut bits = 8 * 8;
    while bits > 0 {
        // A one comes in and meets the lowest bit.
        let out = register & 1 ^ 1;
        register = register >> 1 ^ if out == 1 { POLYNOMIAL.reverse_bits() } else { 0 };
        bits -= 1;
    }
    register
};
