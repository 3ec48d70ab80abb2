//! The Internet checksum (RFC 1071): ones' complement sums of 16-bit words.

/// A sum in progress. All pieces but the last must have an even length.
#[derive(Clone, Copy, Default, Debug)]
pub struct Checksum(u64);

impl Checksum {
    /// The sum over what a transport checksum covers besides the segment: addresses, protocol and length.
    #[inline]
    pub fn pseudo_header(src: &[u8], dst: &[u8], protocol: u8, len: usize) -> Checksum {
        let Checksum(addresses) = Checksum::default().with(src).with(dst);
        Checksum(addresses + u64::from(protocol) + len as u64)
    }

    /// The sum with `bytes` added. An odd last byte counts as the high half of a word.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Checksum {
        // Words of 32 bits add up to the same ones' complement sum, and 2^32 of them fit before the accumulator wraps.
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum = self.0;
        for word in words {
            sum += u64::from(u32::from_be_bytes(*word));
        }
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        Checksum(sum + u64::from(u32::from_be_bytes(last)))
    }

    /// The sum folded to 16 bits, for a header whose remaining words are added per packet.
    #[inline]
    pub(super) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xFFFF {
            sum = (sum >> 16) + (sum & 0xFFFF);
        }
        sum as u16
    }

    /// The checksum field's value: the sum folded to 16 bits and complemented. Zero when the sum included a right
    /// checksum.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.folded()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_with_its_checksum_sums_to_zero() {
        // A header of 20 bytes with checksum 0xb861.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xB8, 0x61, 0xC0, 0xA8, 0x00, 0x01, 0xC0, 0xA8,
            0x00, 0xC7,
        ];
        assert_eq!(Checksum::default().with(&header).finish(), 0);
        let (head, tail) = header.split_at(10);
        assert_eq!(Checksum::default().with(head).with(&tail[2..]).finish(), 0xB861);
    }

    #[test]
    fn odd_last_byte_is_padded_with_zero() {
        let sum = |bytes: &[u8]| Checksum::default().with(bytes).finish();
        assert_eq!(sum(&[0x12]), !0x1200);
        assert_eq!(sum(&[0xFF; 65]), Checksum::default().with(&[0xFF; 64]).with(&[0xFF, 0]).finish());
    }

    #[test]
    fn pieces_of_even_length_sum_like_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        for at in (0..bytes.len()).step_by(2) {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(Checksum::default().with(head).with(tail).finish(), Checksum::default().with(&bytes).finish());
        }
    }
}
