//! Datagram extended transport header.

use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bytes::U24;

/// Length of the DETH in bytes.
pub const DETH_LEN: usize = 8;

/// Datagram extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Deth {
    qkey: U32,
    reserved: u8,
    src_qp: U24,
}

impl Deth {
    /// A header from queue pair `src_qp` (low 24 bits).
    #[inline]
    pub fn new(qkey: u32, src_qp: u32) -> Deth {
        Deth { qkey: U32::new(qkey), reserved: 0, src_qp: U24::new(src_qp) }
    }

    /// Queue key.
    #[inline]
    pub fn qkey(&self) -> u32 {
        self.qkey.get()
    }

    /// The sender's queue pair number.
    #[inline]
    pub const fn src_qp(&self) -> u32 {
        self.src_qp.get()
    }
}
