//! Identify Namespace (CNS 00).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

/// The data of Identify Namespace. All zero means that there is no such namespace. Fields that are always 0 here are
/// reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// NSZE: size in blocks.
    pub size: U64,
    /// NCAP: capacity in blocks; 0 means that the namespace does not exist.
    pub capacity: U64,
    /// NUSE: utilisation in blocks.
    pub utilization: U64,
    /// NSFEAT: bit 1 atomic write sizes, bit 4 preferred sizes and alignments.
    pub features: u8,
    /// NLBAF: number of LBA formats, minus 1.
    pub formats: u8,
    /// FLBAS: the format in use.
    pub format: u8,
    reserved27: [u8; 3],
    /// NMIC: bit 0, several controllers may attach the namespace.
    pub sharing: u8,
    reserved31: [u8; 2],
    /// DLFEAT: bits 2:0 are 1 when deallocated blocks read as zeroes, bit 3 says that Write Zeroes can deallocate.
    pub deallocate_features: u8,
    reserved34: [u8; 30],
    /// NPWG: preferred write granularity in blocks, minus 1.
    pub write_granularity: U16,
    /// NPWA: preferred write alignment in blocks, minus 1.
    pub write_alignment: U16,
    /// NPDG: preferred deallocate granularity in blocks, minus 1.
    pub deallocate_granularity: U16,
    /// NPDA: preferred deallocate alignment in blocks, minus 1.
    pub deallocate_alignment: U16,
    /// NOWS: optimal write size in blocks, minus 1.
    pub optimal_write: U16,
    reserved74: [u8; 25],
    /// NSATTR: bit 0, the namespace is read-only.
    pub attributes: u8,
    reserved100: [u8; 4],
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI64.
    pub eui64: [u8; 8],
    /// LBA format 0: bits 23:16 are log2 of the block size.
    pub lba_format: U32,
    reserved132: [u8; 3964],
}

const _: () = assert!(size_of::<IdentifyNamespace>() == IDENTIFY_LEN);

impl IdentifyNamespace {
    /// All zero: no such namespace.
    #[must_use]
    pub fn zeroed() -> IdentifyNamespace {
        IdentifyNamespace::new_zeroed()
    }

    /// log2 of the block size.
    #[must_use]
    pub fn block_shift(&self) -> u8 {
        (self.lba_format.get() >> 16) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn fields_are_at_their_offsets() {
        let offsets = [
            (offset_of!(IdentifyNamespace, utilization), 16),
            (offset_of!(IdentifyNamespace, features), 24),
            (offset_of!(IdentifyNamespace, sharing), 30),
            (offset_of!(IdentifyNamespace, deallocate_features), 33),
            (offset_of!(IdentifyNamespace, write_granularity), 64),
            (offset_of!(IdentifyNamespace, optimal_write), 72),
            (offset_of!(IdentifyNamespace, attributes), 99),
            (offset_of!(IdentifyNamespace, nguid), 104),
            (offset_of!(IdentifyNamespace, eui64), 120),
            (offset_of!(IdentifyNamespace, lba_format), 128),
        ];
        for (actual, expected) in offsets {
            assert_eq!(actual, expected);
        }
    }
}
