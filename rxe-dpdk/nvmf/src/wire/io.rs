//! Fields of I/O commands.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::sqe::Sqe;

const FUA: u32 = 1 << 30;
const DEALLOCATE_ZEROES: u32 = 1 << 25;
const DSM_DEALLOCATE: u32 = 1 << 2;

/// Length of a range of Dataset Management in bytes.
pub const DSM_RANGE_LEN: usize = 16;
/// Most ranges of a Dataset Management command.
pub const MAX_DSM_RANGES: u32 = 256;

/// The fields of Read, Write, Compare, Verify and Write Zeroes. Hints are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RwFields {
    /// First block.
    pub slba: u64,
    /// Number of blocks, 1 to 65536.
    pub blocks: u32,
    /// Force unit access: the data must be durable before the completion.
    pub fua: bool,
    /// Write Zeroes may deallocate.
    pub deallocate: bool,
}

impl RwFields {
    /// Reads the fields.
    #[must_use]
    #[inline]
    pub fn parse(sqe: &Sqe) -> RwFields {
        let [low, high, control, ..] = sqe.cdws();
        RwFields {
            slba: u64::from(low) | u64::from(high) << 32,
            blocks: (control & 0xFFFF) + 1,
            fua: control & FUA != 0,
            deallocate: control & DEALLOCATE_ZEROES != 0,
        }
    }

    /// Dwords 10 to 15. `blocks` must be 1 to 65536.
    #[must_use]
    #[inline]
    pub fn to_cdws(self) -> [u32; 6] {
        let mut control = self.blocks.wrapping_sub(1) & 0xFFFF;
        if self.fua {
            control |= FUA;
        }
        if self.deallocate {
            control |= DEALLOCATE_ZEROES;
        }
        [self.slba as u32, (self.slba >> 32) as u32, control, 0, 0, 0]
    }
}

/// The fields of Dataset Management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatasetManagement {
    /// Number of ranges in the data, 1 to 256.
    pub ranges: u32,
    /// Deallocate the ranges; without it the command is a hint.
    pub deallocate: bool,
}

impl DatasetManagement {
    /// Reads the fields.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> DatasetManagement {
        let [ranges, attributes, ..] = sqe.cdws();
        DatasetManagement { ranges: (ranges & 0xFF) + 1, deallocate: attributes & DSM_DEALLOCATE != 0 }
    }

    /// Dwords 10 to 15. `ranges` must be 1 to 256.
    #[must_use]
    pub fn to_cdws(self) -> [u32; 6] {
        let attributes = if self.deallocate { DSM_DEALLOCATE } else { 0 };
        [self.ranges.wrapping_sub(1) & 0xFF, attributes, 0, 0, 0, 0]
    }
}

/// A range of Dataset Management.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    attributes: U32,
    blocks: U32,
    slba: U64,
}

const _: () = assert!(size_of::<DsmRange>() == DSM_RANGE_LEN);

impl DsmRange {
    /// `blocks` blocks from `slba`, without hints.
    #[must_use]
    pub fn new(slba: u64, blocks: u32) -> DsmRange {
        DsmRange { attributes: U32::ZERO, blocks: U32::new(blocks), slba: U64::new(slba) }
    }

    /// First block.
    #[must_use]
    pub fn slba(&self) -> u64 {
        self.slba.get()
    }

    /// Number of blocks; may be 0.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::IoOpcode;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn transfers_are_read_as_written(slba: u64, blocks in 1u32..=65536, fua: bool, deallocate: bool) {
            let fields = RwFields { slba, blocks, fua, deallocate };
            let sqe = Sqe::new(IoOpcode::Write.code(), 1).with_cdws(fields.to_cdws());
            prop_assert_eq!(RwFields::parse(&sqe), fields);
        }

        #[test]
        fn dataset_management_is_read_as_written(ranges in 1u32..=256, deallocate: bool, slba: u64, blocks: u32) {
            let fields = DatasetManagement { ranges, deallocate };
            let sqe = Sqe::new(IoOpcode::DatasetManagement.code(), 1).with_cdws(fields.to_cdws());
            prop_assert_eq!(DatasetManagement::parse(&sqe), fields);
            let range = DsmRange::new(slba, blocks);
            prop_assert_eq!((range.slba(), range.blocks()), (slba, blocks));
        }
    }

    #[test]
    fn a_captured_range_reads_as_it_should() {
        // nvmf-rdma-cmds.pcap, blkdiscard of 64 KiB at 2 MiB.
        let bytes = [0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
        assert_eq!(DsmRange::read_from_bytes(&bytes), Ok(DsmRange::new(4096, 128)));
    }
}
