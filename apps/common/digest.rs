//! CRC-32C of memory that peers may write at any time.

use rxe_proto::mem::{AccessError, Memory};

/// Bytes copied at a time; small enough for the first-level cache.
const PIECE: usize = 16 << 10;

/// The CRC-32C (Castagnoli) of `len` bytes of `memory` from `offset` on.
///
/// The bytes are copied first, as a reference to memory that a peer may write is not allowed. A write during the computation
/// may be seen in part.
///
/// # Errors
/// The bytes do not lie inside of `memory`, or are lost.
pub fn crc32c(memory: &Memory, offset: usize, len: usize) -> Result<u32, AccessError> {
    let mut piece = [0; PIECE];
    let mut digest = 0;
    let mut done = 0;
    // Also for no bytes at all, to check `offset`.
    loop {
        let piece = &mut piece[..PIECE.min(len - done)];
        memory.read(offset.saturating_add(done), piece)?;
        digest = crc32c::crc32c_append(digest, piece);
        done += piece.len();
        if done == len {
            return Ok(digest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-32C bit by bit: reflected polynomial 0x82F63B78, all ones before and inverted after.
    fn by_bits(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
        !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    #[test]
    fn pieces_give_the_digest_of_the_whole() {
        assert_eq!(by_bits(b"123456789"), 0xE306_9283, "the check value of CRC-32C");
        let bytes: Vec<u8> = (0..3 * PIECE + 5).map(|at| ((at * 7) >> 3) as u8).collect();
        let memory = Memory::heap(bytes.len());
        memory.write(0, &bytes).expect("it fits");
        for (offset, len) in [(0, bytes.len()), (1, PIECE), (3, PIECE + 1), (bytes.len(), 0), (100, 9)] {
            assert_eq!(crc32c(&memory, offset, len), Ok(by_bits(&bytes[offset..offset + len])), "{offset} {len}");
        }
        assert!(crc32c(&memory, 1, bytes.len()).is_err() && crc32c(&memory, usize::MAX, 1).is_err());
        assert!(crc32c(&memory, bytes.len() + 1, 0).is_err());
    }
}
