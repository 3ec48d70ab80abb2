//! The constants of CRC by carry-less multiplication.
//!
//! A packet is a polynomial over GF(2), and its CRC is the remainder, by the CRC's polynomial P, of the packet times
//! x^32. Bits are reflected: the lowest bit of the first byte is the highest power. Each 64 bits of the packet may be
//! replaced by their product with (x^n mod P) as many bits further on as n says; a product of 64 by 32 bits fits well
//! into 128, so a packet shrinks to one register. Zeros in front of a packet change nothing, so packets are padded on
//! the left to whole registers, and there is no tail.
//!
//! A carry-less product of reflected numbers comes out one bit too low, so every factor is kept one bit too high.
//!
//! At most 96 bits T are left at the end, of which T mod P is wanted (Barrett): with Q the upper 64 bits of T,
//! the quotient of Q x^32 by P is the upper half of Q times floor(x^95 / P), exactly, as polynomials do not carry. The
//! quotient times P, added to T, leaves the remainder in the lowest 32 bits.

use super::POLYNOMIAL;
use super::masks::{FRONT, PREFIX};

/// P, 33 bits.
const P: u128 = 1 << 32 | POLYNOMIAL as u128;

/// x^`n` mod P, reflected, one bit up.
pub const fn power(n: usize) -> u64 {
    let mut remainder = 1u32.reverse_bits();
    let mut i = 0;
    while i < n {
        remainder = remainder >> 1 ^ if remainder & 1 == 1 { POLYNOMIAL.reverse_bits() } else { 0 };
        i += 1;
    }
    (remainder as u64) << 1
}

/// Two factors, for the first and the second 64 bits of a register of 128.
pub type Factors = [u64; 2];

/// Brings 128 bits, as 128 bits, to where they stand `bits` later.
pub const fn ahead(bits: usize) -> Factors {
    [power(bits + 32), power(bits - 32)]
}

/// Maximum number of bytes of a packet's end that are reduced at once.
pub const REACH: usize = 512;

/// A table that begins a cache line.
#[repr(align(64))]
pub struct Table<const N: usize>(pub [Factors; N]);

/// For the last [`REACH`] bytes of a packet, in their order: the factors by which each 16 bytes come to their part of
/// T.
pub static TO_END: Table<{ REACH / 16 }> = {
    let mut table = [[0; 2]; REACH / 16];
    let mut i = 0;
    while i < table.len() {
        let behind = 8 * (REACH - 16 * (i + 1));
        table[i] = [power(behind + 96), power(behind + 32)];
        i += 1;
    }
    Table(table)
};

/// floor(x^95 / P), reflected; P, reflected.
pub const fn barrett() -> Factors {
    let mut rest = 1u128 << 95;
    let mut quotient = 0u64;
    let mut i = 64;
    while i > 0 {
        i -= 1;
        if rest >> (i + 32) & 1 == 1 {
            quotient |= 1 << i;
            rest ^= P << i;
        }
    }
    [quotient.reverse_bits(), (P as u64).reverse_bits() >> 31]
}

/// The register as the packet begins ([`PREFIX`]), to be XORed to the packet's first four bytes at [`FRONT`]: as good
/// as starting with it, and the zeros in front of the packet stay zeros.
#[repr(align(64))]
pub struct Start(pub [u8; FRONT + 64]);

/// The start of every packet.
pub static START: Start = {
    let mut table = [0; FRONT + 64];
    let prefix = PREFIX.to_le_bytes();
    let mut i = 0;
    while i < prefix.len() {
        table[FRONT + i] = prefix[i];
        i += 1;
    }
    Start(table)
};

/// `N` bytes of a table, from `at` on.
#[inline]
pub fn from<const N: usize>(table: &[u8], at: usize) -> &[u8; N] {
    match table.get(at..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => bytes,
        None => const { &[0; N] }, // not reached: the tables are long enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Constants as Intel's paper on fast CRC computation and everybody since has them.
    #[test]
    fn constants_are_the_published_ones() {
        assert_eq!(ahead(512), [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(ahead(128), [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!(barrett()[1], 0x1_db71_0641);
        // The published quotient is floor(x^64 / P), the upper 33 bits of ours.
        assert_eq!(barrett()[0] & 0x1_FFFF_FFFF, 0x1_f701_1641);
        assert_eq!(TO_END.0[REACH / 16 - 1], [0x0_ccaa_009e, power(32)]);
        assert_eq!(PREFIX, !0x2144_DF1C);
    }
}
