//! The invariant CRC: CRC-32 (IEEE 802.3) over everything from the IP header to the pad, with the fields that routers
//! may change replaced by ones.

use crc32fast::Hasher;

/// Length of the ICRC in bytes. It is stored least significant byte first.
pub const ICRC_LEN: usize = 4;

/// The CRC-32 of the eight 0xFF bytes that stand in for the InfiniBand local route header.
const PREFIX_CRC: u32 = 0x2144_DF1C;

/// From the IP header (the longer one) to the last byte that is masked, the BTH's reserved byte.
const MASKED: usize = 40 + 8 + 5;

/// Packets up to this length are copied as a whole: one call over a short buffer costs less than two.
const SHORT: usize = 192;
/// How much of a longer packet is copied.
const HEAD: usize = 64;

/// The ICRC of a packet. `ip_and_up` starts with the IP header and ends in front of the ICRC; it holds at least IP, UDP
/// and base transport header (of anything shorter the result means nothing).
///
/// `headroom` says how many initialised bytes lie in front of `ip_and_up`. Kernels that load whole vectors may use them;
/// the portable one here does not.
#[inline]
pub fn icrc(ip_and_up: &[u8], is_ipv4: bool, headroom: usize) -> u32 {
    let _ = headroom;
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

#[inline]
fn crc(head: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(PREFIX_CRC);
    hasher.update(head);
    if !rest.is_empty() {
        hasher.update(rest);
    }
    hasher.finalize()
}

/// Replaces the variable fields by ones.
#[inline]
fn mask<const N: usize>(packet: &mut [u8; N], is_ipv4: bool) {
    // [PKT-ICRC-COVER]
    const { assert!(N >= MASKED) };
    if is_ipv4 {
        packet[1] = 0xFF; // DSCP, ECN
        packet[8] = 0xFF; // time to live
        packet[10] = 0xFF; // header checksum
        packet[11] = 0xFF;
        packet[26] = 0xFF; // UDP checksum
        packet[27] = 0xFF;
        packet[32] = 0xFF; // FECN, BECN, reserved
    } else {
        packet[0] |= 0x0F; // traffic class, flow label
        packet[1] = 0xFF;
        packet[2] = 0xFF;
        packet[3] = 0xFF;
        packet[7] = 0xFF; // hop limit
        packet[46] = 0xFF; // UDP checksum
        packet[47] = 0xFF;
        packet[52] = 0xFF; // FECN, BECN, reserved
    }
}
