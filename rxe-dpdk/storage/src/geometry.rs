//! Sizes of blocks and namespaces.

use crate::error::StorageError;

/// Size of a logical block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl BlockSize {
    /// Size in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// Binary logarithm of the size in bytes: the `LBADS` field of an NVMe LBA format.
    #[inline]
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            BlockSize::B512 => 9,
            BlockSize::B4096 => 12,
        }
    }

    /// The block size of `bytes` bytes; `None` unless it is 512 or 4096.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Option<BlockSize> {
        match bytes {
            512 => Some(BlockSize::B512),
            4096 => Some(BlockSize::B4096),
            _ => None,
        }
    }
}

/// Block size and number of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Number of blocks.
    pub blocks: u64,
}

impl Geometry {
    /// Size in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.blocks << self.block_size.shift()
    }

    /// Checks that `len` bytes at `offset` are whole blocks of the namespace.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unaligned`] or [`StorageError::OutOfRange`].
    #[inline]
    pub fn check(self, offset: u64, len: u64) -> Result<(), StorageError> {
        if (offset | len) & (self.block_size.bytes() - 1) != 0 {
            return Err(StorageError::Unaligned);
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(StorageError::OutOfRange),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_inside_are_accepted_and_nothing_else() {
        let geometry = Geometry { block_size: BlockSize::B512, blocks: 8 };
        assert_eq!(geometry.check(0, 4096), Ok(()));
        assert_eq!(geometry.check(4096, 0), Ok(()));
        assert_eq!(geometry.check(3584, 1024), Err(StorageError::OutOfRange));
        assert_eq!(geometry.check(u64::MAX - 511, 1024), Err(StorageError::OutOfRange));
        assert_eq!(geometry.check(1, 512), Err(StorageError::Unaligned));
        assert_eq!(geometry.check(512, 511), Err(StorageError::Unaligned));
    }

    #[test]
    fn block_sizes_are_512_and_4096() {
        assert_eq!(BlockSize::from_bytes(512).map(BlockSize::bytes), Some(512));
        assert_eq!(BlockSize::from_bytes(4096).map(BlockSize::bytes), Some(4096));
        assert_eq!(BlockSize::from_bytes(1024), None);
    }
}
