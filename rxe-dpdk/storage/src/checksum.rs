//! CRC-32C of blocks.
//!
//! An entry of a table is the block's CRC-32C, exclusive-or that of a block of zeroes. So the entry of a block that was
//! never written is 0, and a table of zeroes, or a hole in a file of them, is right for storage that reads as zeroes.

use crc32c::crc32c;
use rxe_proto::mem::{AccessError, Memory};

use crate::geometry::BlockSize;

/// Length of an entry in bytes; entries are little-endian.
pub(crate) const ENTRY: usize = 4;

/// Largest block.
const LARGEST: usize = 4096;

/// A private copy of one block. A checksum is computed of the copy, since others may change the original meanwhile.
pub(crate) struct Scratch(Box<[u8; LARGEST]>);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch(Box::new([0; LARGEST]))
    }

    /// Room for `len` bytes, at most 4096.
    pub(crate) fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.0[..len.min(LARGEST)]
    }
}

/// Computes entries for one block size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checksum {
    block: usize,
    zeroes: u32,
}

impl Checksum {
    pub(crate) fn new(block_size: BlockSize) -> Checksum {
        let block = block_size.bytes() as usize;
        Checksum { block, zeroes: crc32c(&[0; LARGEST][..block]) }
    }

    /// The entry of a block.
    pub(crate) fn entry(self, block: &[u8]) -> u32 {
        crc32c(block) ^ self.zeroes
    }

    /// The entry of the block at `offset` of `memory`.
    pub(crate) fn of(self, memory: &Memory, offset: usize, scratch: &mut Scratch) -> Result<u32, AccessError> {
        let block = scratch.bytes(self.block);
        memory.read(offset, block)?;
        Ok(self.entry(block))
    }
}

/// Entry number `index` of a table.
pub(crate) fn load(table: &Memory, index: usize) -> Result<u32, AccessError> {
    let mut entry = [0; ENTRY];
    table.read(index * ENTRY, &mut entry)?;
    Ok(u32::from_le_bytes(entry))
}

/// Replaces entry number `index` of a table.
pub(crate) fn store(table: &Memory, index: usize, entry: u32) -> Result<(), AccessError> {
    table.write(index * ENTRY, &entry.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_zeroes_has_entry_0_and_others_have_not() {
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            let checksum = Checksum::new(block_size);
            let mut block = vec![0; block_size.bytes() as usize];
            assert_eq!(checksum.entry(&block), 0);
            // CRC-32C finds every error of one bit.
            for bit in 0..block.len() * 8 {
                block[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum.entry(&block), 0, "bit {bit}");
                block[bit / 8] = 0;
            }
        }
    }

    #[test]
    fn entries_are_little_endian_and_apart() {
        let table = Memory::heap(12);
        store(&table, 1, 0x0102_0304).unwrap();
        let mut bytes = [0; 12];
        table.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(load(&table, 1), Ok(0x0102_0304));
        assert_eq!(load(&table, 3), Err(AccessError::OutOfBounds));
    }
}
