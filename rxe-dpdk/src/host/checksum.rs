//! The Internet checksum: ones' complement sums of 16-bit words.

use super::ip::Pair;

/// A sum in progress. All pieces but the last must have an even length.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// The sum over the addresses, protocol and length that transport checksums cover.
    pub(super) fn pseudo_header(pair: Pair, protocol: u8, len: usize) -> Sum {
        let sum = match pair {
            Pair::V4 { src, dst } => Sum::default().add(&src.octets()).add(&dst.octets()),
            Pair::V6 { src, dst } => Sum::default().add(&src.octets()).add(&dst.octets()),
        };
        Sum(sum.0 + u64::from(protocol) + len as u64)
    }

    /// The sum with `bytes` added.
    pub(super) fn add(self, bytes: &[u8]) -> Sum {
        let words = bytes.chunks_exact(2);
        let last = words.remainder().first().map_or(0, |&b| u64::from(b) << 8);
        Sum(self.0 + words.map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u64>() + last)
    }

    /// The checksum field's value for what was summed; zero when the sum included a right checksum.
    pub(super) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xFFFF {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        // At most 0xFFFF here.
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_header_sums_to_zero() {
        // RFC 1071's way of checking, over a header of 20 bytes with checksum 0xb861.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xB8, 0x61, 0xC0, 0xA8, 0x00, 0x01, 0xC0, 0xA8,
            0x00, 0xC7,
        ];
        assert_eq!(Sum::default().add(&header).finish(), 0);
        let (head, tail) = header.split_at(10);
        assert_eq!(Sum::default().add(head).add(&tail[2..]).finish(), 0xB861);
    }

    #[test]
    fn odd_lengths_are_padded_with_zero() {
        assert_eq!(Sum::default().add(&[0x12]).finish(), !0x1200);
        assert_eq!(Sum::default().add(&[0xFF; 65]).finish(), Sum::default().add(&[0xFF; 64]).add(&[0xFF, 0]).finish());
    }
}
