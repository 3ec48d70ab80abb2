//! FLUSH extended transport header.

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the FETH in bytes.
pub const FETH_LEN: usize = 4;

/// FLUSH extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Feth {
    word: U32,
}

impl Feth {
    /// Placement type bit: global visibility.
    pub const GLOBAL_VISIBILITY: u8 = 1;
    /// Placement type bit: persistence.
    pub const PERSISTENT: u8 = 2;
    /// Selectivity level: the address range of the RETH.
    pub const LEVEL_RANGE: u8 = 0;
    /// Selectivity level: the whole memory region.
    pub const LEVEL_REGION: u8 = 1;

    /// A header; `level` is cut to two bits and `placement` to four.
    #[inline]
    pub fn new(level: u8, placement: u8) -> Feth {
        Feth { word: U32::new(u32::from(level & 3) << 4 | u32::from(placement & 0x0F)) }
    }

    /// Selectivity level, 0 to 3.
    #[inline]
    pub fn level(&self) -> u8 {
        (self.word.get() >> 4 & 3) as u8
    }

    /// Placement type bits, 0 to 15.
    #[inline]
    pub fn placement(&self) -> u8 {
        (self.word.get() & 0x0F) as u8
    }
}
