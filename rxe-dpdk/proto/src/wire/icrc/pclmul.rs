//! By PCLMULQDQ, 16 bytes at a time.

// The instructions are the point of this file.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use zerocopy::{Immutable, IntoBytes};

use super::SHORTEST;
use super::fold::{Factors, REACH, START, TO_END, ahead, barrett, from, power};
use super::masks::{self, FRONT, MASKED, MASKED_IPV4};

/// Bytes of a register.
const WIDTH: usize = 16;
/// Number of registers used concurrently in longer packets.
const ACCUMULATORS: usize = 4;

const NEXT: Factors = ahead(8 * WIDTH);
const FAR: Factors = ahead(8 * WIDTH * ACCUMULATORS);

/// For PSHUFB: from `k` on, 16 selectors that bring the first `k` of 16 bytes to the end, behind zeros.
static TO_THE_RIGHT: [u8; 2 * WIDTH] = {
    let mut table = [0x80; 2 * WIDTH];
    let mut i = 0;
    while i < WIDTH {
        table[WIDTH + i] = i as u8;
        i += 1;
    }
    table
};

/// Whether the processor has what [`icrc`] needs.
pub fn is_here() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.1") && is_x86_feature_detected!("ssse3")
}

/// The ICRC of a packet of at least [`SHORTEST`] bytes, and whole words.
///
/// # Safety
/// It has these bytes.
#[target_feature(enable = "pclmulqdq,sse4.1,ssse3")]
pub unsafe fn icrc(packet: &[u8], is_ipv4: bool) -> u32 {
    // SAFETY: the caller says so. Without it the compiler knows the length only where it sees all callers.
    unsafe { std::hint::assert_unchecked(packet.len() >= SHORTEST) };
    const { assert!(SHORTEST >= WIDTH) };
    let Some(head) = packet.first_chunk::<WIDTH>() else { return 0 };
    // The first register holds 4 to 16 bytes of the packet behind zeros, so that the others end where the packet ends.
    let first = (packet.len() - 1) % WIDTH + 1;
    let blocks = packet[first..].as_chunks::<WIDTH>().0;
    let ones = masks::of(is_ipv4);
    let head = _mm_or_si128(load(head), load(from::<WIDTH>(&ones.0, FRONT)));
    let head = _mm_xor_si128(head, load(from::<WIDTH>(&START.0, FRONT)));
    let head = _mm_shuffle_epi8(head, load(from::<WIDTH>(&TO_THE_RIGHT, first)));

    // The blocks that begin in front of the end of what is masked: IPv6 has all of them, IPv4 two.
    const MASKED_BLOCKS: usize = (MASKED - 1).div_ceil(WIDTH);
    const { assert!(MASKED_BLOCKS == 4 && (MASKED_IPV4 - 1).div_ceil(WIDTH) == 2) };
    let ones = from::<{ MASKED_BLOCKS * WIDTH }>(&ones.0, FRONT + first).as_chunks::<WIDTH>().0;
    let [o0, o1, o2, o3] = ones else { return 0 };
    let masked = |block, ones| _mm_or_si128(load(block), load(ones));

    let mut sum;
    if packet.len() <= REACH {
        const { assert!(SHORTEST > 2 * WIDTH) };
        let [b0, b1, blocks @ ..] = blocks else { return 0 };
        let (of_first, factors) = TO_END.0.split_at(TO_END.0.len() - blocks.len());
        let [.., of_head, f0, f1] = of_first else { return 0 };
        sum = multiply(head, load(of_head));
        sum = _mm_xor_si128(sum, multiply(masked(b0, o0), load(f0)));
        sum = _mm_xor_si128(sum, multiply(masked(b1, o1), load(f1)));
        let (blocks, factors) = if is_ipv4 {
            (blocks, factors)
        } else {
            for ((ones, block), to_end) in [o2, o3].into_iter().zip(blocks).zip(factors) {
                sum = _mm_xor_si128(sum, multiply(masked(block, ones), load(to_end)));
            }
            (blocks.get(2..).unwrap_or_default(), factors.get(2..).unwrap_or_default())
        };
        // Four at a time: in a short packet, the loop itself would be a good part of the work.
        let ((groups, last), (of_groups, of_last)) = (blocks.as_chunks::<4>(), factors.as_chunks::<4>());
        for (group, to_end) in groups.iter().zip(of_groups) {
            for (block, to_end) in group.iter().zip(to_end) {
                sum = _mm_xor_si128(sum, multiply(load(block), load(to_end)));
            }
        }
        for (block, to_end) in last.iter().zip(of_last) {
            sum = _mm_xor_si128(sum, multiply(load(block), load(to_end)));
        }
    } else {
        const { assert!(MASKED_BLOCKS == ACCUMULATORS) };
        let [b0, b1, b2, b3, blocks @ ..] = blocks else { return 0 };
        let b0 = _mm_xor_si128(masked(b0, o0), multiply(head, load(&NEXT)));
        let mut under_way = [b0, masked(b1, o1), masked(b2, o2), masked(b3, o3)];
        let (groups, last) = blocks.as_chunks::<ACCUMULATORS>();
        let far = load(&FAR);
        for group in groups {
            for (register, block) in under_way.iter_mut().zip(group) {
                *register = _mm_xor_si128(multiply(*register, far), load(block));
            }
        }
        let mut factors = TO_END.0[TO_END.0.len() - ACCUMULATORS - last.len()..].iter();
        sum = _mm_setzero_si128();
        for (register, to_end) in under_way.into_iter().zip(&mut factors) {
            sum = _mm_xor_si128(sum, multiply(register, load(to_end)));
        }
        for (block, to_end) in last.iter().zip(factors) {
            sum = _mm_xor_si128(sum, multiply(load(block), load(to_end)));
        }
    }
    finish(sum)
}

/// See [`change_of_ack`](super::IcrcKernel::change_of_ack).
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub fn change_of_ack(last: u64) -> u32 {
    const TO_END: Factors = [power(32), 0];
    let changed = [last.swap_bytes(), 0];
    // Without the bits inverted that start and end of a CRC are, which do not change.
    !finish(_mm_clmulepi64_si128::<0x00>(load(&changed), load(&TO_END)))
}

/// See [`change_of_end`](super::IcrcKernel::change_of_end).
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub fn change_of_end<const N: usize>(end: [[u64; 2]; N]) -> u32 {
    let to_end = TO_END.0.last_chunk::<N>().into_iter().flatten();
    let sum = end.iter().zip(to_end).fold(_mm_setzero_si128(), |sum, (end, to_end)| {
        let changed = end.map(u64::swap_bytes);
        _mm_xor_si128(sum, multiply(load(&changed), load(to_end)))
    });
    !finish(sum)
}

#[inline]
#[target_feature(enable = "sse2")]
fn load<T: IntoBytes + Immutable>(bytes: &T) -> __m128i {
    const { assert!(size_of::<T>() == WIDTH) };
    // SAFETY: a reference to 16 bytes without padding; the load wants no alignment.
    unsafe { _mm_loadu_si128(std::ptr::from_ref(bytes).cast()) }
}

/// Both halves times their factors.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn multiply(register: __m128i, factors: __m128i) -> __m128i {
    let first = _mm_clmulepi64_si128::<0x00>(register, factors);
    let second = _mm_clmulepi64_si128::<0x11>(register, factors);
    _mm_xor_si128(first, second)
}

/// The ICRC of T in the lower 96 bits; see [`fold`](super::fold).
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
pub fn finish(t: __m128i) -> u32 {
    const BARRETT: Factors = barrett();
    let barrett = load(&BARRETT);
    let quotient = _mm_clmulepi64_si128::<0x00>(t, barrett);
    let product = _mm_clmulepi64_si128::<0x10>(quotient, barrett);
    !_mm_extract_epi32::<2>(_mm_xor_si128(product, t)).cast_unsigned()
}
