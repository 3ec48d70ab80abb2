//! By a library, for processors without carry-less multiplication.

use crc32fast::Hasher;

use super::masks::{self, FRONT, MASKED, PREFIX};

/// Packets up to this length are copied as a whole: one call over a short buffer costs less than two.
const SHORT: usize = 192;
/// Number of bytes that are copied of a longer packet.
const HEAD: usize = 64;

// Out of the way of packets for which there is a kernel.
#[cold]
#[inline(never)]
pub fn icrc(ip_and_up: &[u8], is_ipv4: bool) -> u32 {
    let len = ip_and_up.len();
    if len <= SHORT {
        let mut copy = [0; SHORT];
        copy[..len].copy_from_slice(ip_and_up);
        mask(&mut copy, is_ipv4);
        return crc(&copy[..len], &[]);
    }
    match ip_and_up.split_first_chunk::<HEAD>() {
        Some((head, rest)) => {
            let mut head = *head;
            mask(&mut head, is_ipv4);
            crc(&head, rest)
        }
        None => 0, // not reached: the packet is longer than SHORT
    }
}

fn crc(head: &[u8], rest: &[u8]) -> u32 {
    // The library takes what it would give out, the inverted register.
    let mut hasher = Hasher::new_with_initial(!PREFIX);
    hasher.update(head);
    if !rest.is_empty() {
        hasher.update(rest);
    }
    hasher.finalize()
}

/// Replaces the variable fields by ones.
fn mask<const N: usize>(packet: &mut [u8; N], is_ipv4: bool) {
    const { assert!(N >= MASKED) };
    let ones = &masks::of(is_ipv4).0[FRONT..];
    for (byte, ones) in packet.iter_mut().zip(&ones[..HEAD]) {
        *byte |= ones;
    }
}
