//! RDMA extended transport header.

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the RETH in bytes.
pub const RETH_LEN: usize = 16;

/// RDMA extended transport header: the remote end of a WRITE or READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reth {
    va: U64,
    rkey: U32,
    dma_len: U32,
}

impl Reth {
    /// A header for `dma_len` bytes at `va` of the region behind `rkey`.
    #[inline]
    pub fn new(va: u64, rkey: u32, dma_len: u32) -> Reth {
        Reth { va: U64::new(va), rkey: U32::new(rkey), dma_len: U32::new(dma_len) }
    }

    /// Virtual address.
    #[inline]
    pub fn va(&self) -> u64 {
        self.va.get()
    }

    /// Remote key.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey.get()
    }

    /// Length of the whole operation in bytes, without pad.
    #[inline]
    pub fn dma_len(&self) -> u32 {
        self.dma_len.get()
    }
}
