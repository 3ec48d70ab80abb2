//! Blocks that can be checked: each has its number, the sequence number of its write, and a CRC-32C.

use super::places::Random;

/// Bytes at the start of a block: number, sequence number, CRC-32C; little endian.
const STAMP: usize = 20;
const CRC: std::ops::Range<usize> = 16..20;

/// A block that is not the one that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    /// The CRC-32C is wrong.
    #[error("its CRC-32C is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// In the block.
        found: u32,
        /// Of its bytes.
        expected: u32,
    },
    /// It is another block.
    #[error("it is block {0}")]
    Number(u64),
    /// It is from another write.
    #[error("it is from write {found}, expected write {expected}")]
    Sequence {
        /// In the block.
        found: u64,
        /// The last write of the block.
        expected: u64,
    },
}

/// Fills `block`, at least 512 bytes, with the bytes of block `number` in write `sequence`.
pub fn write(block: &mut [u8], number: u64, sequence: u64) {
    let mut random = Random(number << 32 ^ sequence);
    for chunk in block.chunks_mut(8) {
        let len = chunk.len();
        chunk.copy_from_slice(&random.next().to_le_bytes()[..len]);
    }
    if let Some(stamp) = block.first_chunk_mut::<STAMP>() {
        stamp[..8].copy_from_slice(&number.to_le_bytes());
        stamp[8..16].copy_from_slice(&sequence.to_le_bytes());
        let crc = checksum(block);
        block[CRC].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Checks that `block` is block `number`, of write `sequence` if that is known.
///
/// # Errors
/// The first difference.
pub fn check(block: &[u8], number: u64, sequence: Option<u64>) -> Result<(), Mismatch> {
    let word = |at: usize| block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    let found = block.get(CRC).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    let expected = checksum(block);
    if found != expected {
        return Err(Mismatch::Checksum { found, expected });
    }
    if word(0) != number {
        return Err(Mismatch::Number(word(0)));
    }
    match sequence {
        Some(expected) if word(8) != expected => Err(Mismatch::Sequence { found: word(8), expected }),
        _ => Ok(()),
    }
}

/// CRC-32C of all bytes but the checksum itself.
fn checksum(block: &[u8]) -> u32 {
    let (head, tail) = block.split_at(CRC.start.min(block.len()));
    crc32c::crc32c_append(crc32c::crc32c(head), tail.get(CRC.len()..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, sequence: u64) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        write(&mut bytes, number, sequence);
        bytes
    }

    #[test]
    fn a_written_block_is_found_and_another_one_is_not() {
        let bytes = block(7, 3);
        assert_eq!((check(&bytes, 7, Some(3)), check(&bytes, 7, None)), (Ok(()), Ok(())));
        assert_eq!(check(&bytes, 8, None), Err(Mismatch::Number(7)));
        assert_eq!(check(&bytes, 7, Some(4)), Err(Mismatch::Sequence { found: 3, expected: 4 }));
        assert_ne!(bytes[20..], block(7, 4)[20..]);
        assert_ne!(bytes[20..], block(8, 3)[20..]);
    }

    #[test]
    fn every_changed_byte_is_found() {
        let bytes = block(7, 3);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(matches!(check(&changed, 7, None), Err(Mismatch::Checksum { .. })), "{at}");
        }
        assert!(check(&[0; 512], 0, None).is_err(), "a block of zeroes was never written");
    }
}
