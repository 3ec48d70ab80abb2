//! By VPCLMULQDQ of AVX-512, 64 bytes at a time.

// The instructions are the point of this file.
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::slice::Iter;

use zerocopy::{Immutable, IntoBytes};

use super::SHORTEST;
use super::fold::{Factors, REACH, START, TO_END, ahead, from};
use super::masks::{self, FRONT, MASKED};
use super::pclmul;

/// Bytes of a register.
const WIDTH: usize = 64;
/// Number of registers used concurrently in longer packets.
const ACCUMULATORS: usize = 4;

const FAR: [Factors; WIDTH / 16] = [ahead(8 * WIDTH * ACCUMULATORS); WIDTH / 16];

/// Whether the processor has what [`icrc`] needs.
pub fn is_here() -> bool {
    pclmul::is_here()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("vpclmulqdq")
}

/// The ICRC of a packet of at least [`SHORTEST`] bytes, and whole words.
///
/// # Safety
/// It has these bytes.
#[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,pclmulqdq,sse4.1,ssse3")]
pub unsafe fn icrc(packet: &[u8], is_ipv4: bool) -> u32 {
    // SAFETY: the caller says so. Without it the compiler knows the length only where it sees all callers.
    unsafe { std::hint::assert_unchecked(packet.len() >= SHORTEST) };
    const { assert!(SHORTEST > 0 && MASKED <= WIDTH) };
    if packet.is_empty() {
        return 0;
    }
    // The first register holds 4 to 64 bytes of the packet behind zeros, so that the others end where the packet ends.
    let first = (packet.len() - 1) % WIDTH + 1;
    let blocks = packet[first..].as_chunks::<WIDTH>().0;
    let ones = from::<{ 2 * WIDTH }>(&masks::of(is_ipv4).0, FRONT - WIDTH + first).as_chunks::<WIDTH>().0;
    let to_end = TO_END.0.as_chunks::<{ WIDTH / 16 }>().0;
    let [ones_head, ones_next] = ones else { return 0 };

    // (packet | ones) ^ start
    let start = load(from::<WIDTH>(&START.0, FRONT - WIDTH + first));
    let head = _mm512_ternarylogic_epi64::<0b0101_0110>(load_head(packet, first), load(ones_head), start);

    let masked = |next| _mm512_or_si512(load(next), load(ones_next));
    let [.., to_end_of_2, to_end_of_1] = to_end else { return 0 };
    let sum = match blocks {
        // ACKs and small requests, without loops.
        [] => multiply(head, load(to_end_of_1)),
        [next] => multiply_add(masked(next), load(to_end_of_1), multiply(head, load(to_end_of_2))),
        [next, blocks @ ..] if packet.len() <= REACH => {
            let mut factors = to_end[to_end.len() - 2 - blocks.len()..].iter();
            let mut sum = _mm512_setzero_si512();
            for (register, to_end) in [head, masked(next)].into_iter().zip(&mut factors) {
                sum = multiply_add(register, load(to_end), sum);
            }
            sum_up(blocks, factors, sum)
        }
        [b1, b2, b3, blocks @ ..] => {
            let mut under_way = [head, masked(b1), load(b2), load(b3)];
            let (groups, last) = blocks.as_chunks::<ACCUMULATORS>();
            let far = load(&FAR);
            for group in groups {
                for (register, block) in under_way.iter_mut().zip(group) {
                    *register = multiply_add(*register, far, load(block));
                }
            }
            let mut factors = to_end[to_end.len() - ACCUMULATORS - last.len()..].iter();
            let mut sum = _mm512_setzero_si512();
            for (register, to_end) in under_way.into_iter().zip(&mut factors) {
                sum = multiply_add(register, load(to_end), sum);
            }
            sum_up(last, factors, sum)
        }
        _ => return 0, // not reached: longer than REACH are more blocks
    };
    let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
    pclmul::finish(_mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half)))
}

/// The last blocks, each times its factors, and `sum`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn sum_up(blocks: &[[u8; WIDTH]], factors: Iter<'_, [Factors; WIDTH / 16]>, mut sum: __m512i) -> __m512i {
    for (block, to_end) in blocks.iter().zip(factors) {
        sum = multiply_add(load(block), load(to_end), sum);
    }
    sum
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load<T: IntoBytes + Immutable>(bytes: &T) -> __m512i {
    const { assert!(size_of::<T>() == WIDTH) };
    // SAFETY: a reference to 64 bytes without padding; the load wants no alignment.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(bytes).cast()) }
}

/// The first `first` bytes of a packet, up to 64, at the end of a register, behind zeros.
#[inline]
#[target_feature(enable = "avx512bw")]
fn load_head(packet: &[u8], first: usize) -> __m512i {
    let first = first.min(packet.len()).min(WIDTH);
    let in_front = WIDTH - first;
    let wanted = u64::MAX.unbounded_shl(in_front as u32);
    // SAFETY: bytes whose bit is not set are not accessed, and the others are the packet's first.
    unsafe { _mm512_maskz_loadu_epi8(wanted, packet.as_ptr().wrapping_sub(in_front).cast()) }
}

/// Both halves of each 128 bits times their factors.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn multiply(register: __m512i, factors: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128::<0x00>(register, factors);
    let second = _mm512_clmulepi64_epi128::<0x11>(register, factors);
    _mm512_xor_si512(first, second)
}

/// As [`multiply`], and XORed to `sum`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn multiply_add(register: __m512i, factors: __m512i, sum: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128::<0x00>(register, factors);
    let second = _mm512_clmulepi64_epi128::<0x11>(register, factors);
    _mm512_ternarylogic_epi64::<0b1001_0110>(first, second, sum)
}
