//! The two four-byte headers at the end of a message: immediate data and the key to invalidate.

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of immediate data in bytes.
pub const IMM_LEN: usize = 4;

/// Length of the IETH in bytes.
pub const IETH_LEN: usize = 4;

/// Immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ImmDt {
    imm: U32,
}

impl ImmDt {
    /// Immediate data from its value in host order.
    #[inline]
    pub fn new(imm: u32) -> ImmDt {
        ImmDt { imm: U32::new(imm) }
    }

    /// The value in host order.
    #[inline]
    pub fn imm(&self) -> u32 {
        self.imm.get()
    }
}

/// Invalidate extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ieth {
    rkey: U32,
}

impl Ieth {
    /// A header that invalidates `rkey` at the receiver.
    #[inline]
    pub fn new(rkey: u32) -> Ieth {
        Ieth { rkey: U32::new(rkey) }
    }

    /// The key to invalidate.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey.get()
    }
}
