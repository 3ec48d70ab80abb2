//! Atomic extended transport headers: request and response.

use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the AtomicETH in bytes.
pub const ATOMIC_ETH_LEN: usize = 28;

/// Length of the AtomicAckETH in bytes.
pub const ATOMIC_ACK_ETH_LEN: usize = 8;

/// Atomic extended transport header. Note the order on the wire: swap comes before compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicEth {
    va: U64,
    rkey: U32,
    swap_or_add: U64,
    compare: U64,
}

impl AtomicEth {
    /// A header for the 8 bytes at `va` of the region behind `rkey`. A fetch-and-add ignores `compare`.
    #[inline]
    pub fn new(va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> AtomicEth {
        AtomicEth {
            va: U64::new(va),
            rkey: U32::new(rkey),
            swap_or_add: U64::new(swap_or_add),
            compare: U64::new(compare),
        }
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

    /// The value to store (compare-and-swap) or to add (fetch-and-add).
    #[inline]
    pub fn swap_or_add(&self) -> u64 {
        self.swap_or_add.get()
    }

    /// The value to compare with; any content in a fetch-and-add.
    #[inline]
    pub fn compare(&self) -> u64 {
        self.compare.get()
    }
}

/// Atomic ACK extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicAckEth {
    original: U64,
}

impl AtomicAckEth {
    /// A header that returns `original`.
    #[inline]
    pub fn new(original: u64) -> AtomicAckEth {
        AtomicAckEth { original: U64::new(original) }
    }

    /// The value that was there before the operation.
    #[inline]
    pub fn original(&self) -> u64 {
        self.original.get()
    }
}
