//! Namespaces: size, block size and identifiers.

use uuid::Uuid;

use super::{ConfigError, derived_nguid, derived_uuid};
use crate::wire::Nqn;

/// Largest NSID.
pub const MAX_NSID: u32 = 1024;

/// Block size of a namespace. Linux shows other sizes as a disk of size 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl BlockSize {
    /// log2 of the size in bytes.
    #[must_use]
    pub const fn shift(self) -> u8 {
        match self {
            BlockSize::B512 => 9,
            BlockSize::B4096 => 12,
        }
    }

    /// The block size of this many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u32) -> Option<BlockSize> {
        match bytes {
            512 => Some(BlockSize::B512),
            4096 => Some(BlockSize::B4096),
            _ => None,
        }
    }
}

/// A namespace: a range of blocks, which Linux shows as a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Number in the subsystem, 1 to [`MAX_NSID`].
    pub nsid: u32,
    /// Size in blocks.
    pub blocks: u64,
    /// Block size.
    pub block_size: BlockSize,
    /// Commands that change data are refused.
    pub read_only: bool,
    /// A flush failed, so that commands that change data are refused too.
    pub failed: bool,
    /// Whether deallocated blocks are released, and read as zeroes; else Deallocate has no effect.
    pub releases_blocks: bool,
    /// UUID, unique in the target and the same after a restart.
    pub uuid: Uuid,
    /// NGUID, unique in the target and the same after a restart.
    pub nguid: [u8; 16],
    /// EUI64, unique in the target and the same after a restart; optional.
    pub eui64: Option<[u8; 8]>,
}

/// What a worker needs of a namespace to check an I/O command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceView {
    /// Number in the subsystem.
    pub nsid: u32,
    /// Size in blocks.
    pub blocks: u64,
    /// log2 of the block size in bytes.
    pub block_shift: u8,
    /// Commands that change data are refused.
    pub read_only: bool,
}

impl Namespace {
    /// A writable namespace with identifiers that are derived from the subsystem's name and the NSID.
    #[must_use]
    pub fn new(subsystem: &Nqn, nsid: u32, blocks: u64, block_size: BlockSize) -> Namespace {
        Namespace {
            nsid,
            blocks,
            block_size,
            read_only: false,
            failed: false,
            releases_blocks: true,
            uuid: derived_uuid(subsystem, nsid),
            nguid: derived_nguid(subsystem, nsid),
            eui64: None,
        }
    }

    /// The part of it that workers need.
    #[must_use]
    pub const fn view(&self) -> NamespaceView {
        NamespaceView {
            nsid: self.nsid,
            blocks: self.blocks,
            block_shift: self.block_size.shift(),
            read_only: self.is_write_protected(),
        }
    }

    /// Whether commands that change data are refused.
    #[must_use]
    pub const fn is_write_protected(&self) -> bool {
        self.read_only || self.failed
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(1..=MAX_NSID).contains(&self.nsid) {
            return Err(ConfigError::Nsid(self.nsid));
        }
        self.check_size(self.blocks)
    }

    /// Checks a new size in blocks.
    pub(crate) fn check_size(&self, blocks: u64) -> Result<(), ConfigError> {
        // Byte offsets must fit in the offset of a file.
        if blocks == 0 || blocks > i64::MAX as u64 >> self.block_size.shift() {
            return Err(ConfigError::Size(self.nsid, blocks));
        }
        Ok(())
    }

    pub(super) fn shares_identifier(&self, other: &Namespace) -> bool {
        self.uuid == other.uuid || self.nguid == other.nguid || (self.eui64.is_some() && self.eui64 == other.eui64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(nsid: u32, blocks: u64) -> Namespace {
        Namespace::new(&"nqn.2024-01.test:one".parse().unwrap(), nsid, blocks, BlockSize::B4096)
    }

    #[test]
    fn numbers_and_sizes_have_limits() {
        assert_eq!(namespace(1, 1).validate(), Ok(()));
        assert_eq!(namespace(MAX_NSID, i64::MAX as u64 >> 12).validate(), Ok(()));
        for nsid in [0, MAX_NSID + 1, u32::MAX] {
            assert_eq!(namespace(nsid, 1).validate(), Err(ConfigError::Nsid(nsid)));
        }
        for blocks in [0, 1 << 51, u64::MAX] {
            assert_eq!(namespace(1, blocks).validate(), Err(ConfigError::Size(1, blocks)));
        }
    }

    #[test]
    fn absent_identifiers_are_not_shared() {
        let (one, mut two) = (namespace(1, 1), namespace(2, 1));
        assert!(!one.shares_identifier(&two));
        two.uuid = one.uuid;
        assert!(one.shares_identifier(&two));
        let mut with = namespace(3, 1);
        with.eui64 = Some([1; 8]);
        let mut same = namespace(4, 1);
        same.eui64 = with.eui64;
        assert!(with.shares_identifier(&same) && !one.shares_identifier(&with));
    }

    #[test]
    fn block_sizes_are_powers_of_two() {
        for size in [BlockSize::B512, BlockSize::B4096] {
            assert_eq!(BlockSize::from_bytes(1 << size.shift()), Some(size));
        }
        assert_eq!(BlockSize::from_bytes(1024), None);
    }
}
