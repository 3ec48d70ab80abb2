//! A pool of staging buffers.
//!
//! # Fragmentation
//!
//! The pool is a buddy system: a piece is a power of two of 4 KiB pages, and a freed piece joins its free other half at
//! once. Small pieces are taken from the smallest block that has room, at the lowest address, so large blocks at high
//! addresses stay whole. A piece lives as long as one command. The caller queues commands that find no room and serves
//! the queue in order, before new commands: while a large piece waits, the others come back, and then it fits. So the
//! largest piece is never out of reach for longer than the commands in progress take.
//!
//! A piece of n bytes takes up to twice that; commands of powers of two (4 KiB to 1 MiB, as clients send) take no more.

use rxe_proto::mem::{AllocError, Allocator, Memory};

use crate::bitset::BitSet;

/// Unit of allocation in bytes, and alignment of every piece: enough for O_DIRECT on any device.
pub const PAGE: usize = 4096;

/// Settings of a [`Staging`] pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagingConfig {
    /// Size of the pool in bytes; rounded up to whole pieces of the largest size.
    pub bytes: usize,
    /// Largest piece in bytes; rounded up to a power of two of at least 4 KiB.
    pub max_piece: usize,
}

impl Default for StagingConfig {
    /// 64 MiB, in pieces of at most 1 MiB.
    fn default() -> StagingConfig {
        StagingConfig { bytes: 64 << 20, max_piece: 1 << 20 }
    }
}

/// State of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StagingStats {
    /// Size of the pool in bytes.
    pub capacity: u64,
    /// Bytes in use, including what rounding adds.
    pub in_use: u64,
    /// Largest number of bytes in use so far.
    pub peak: u64,
    /// Requests for which there was no room.
    pub refused: u64,
}

/// A piece of a pool: page-aligned memory for one command. Return it with [`Staging::free`] after the command's last
/// access. A piece that is dropped instead stays in use for the life of the pool.
#[derive(Debug)]
#[must_use = "a piece that is not freed stays in use"]
pub struct Piece {
    memory: Memory,
    page: u32,
    order: u8,
}

impl Piece {
    /// The bytes, as many as were asked for. Their contents are left over from earlier commands.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

/// A pool of staging buffers of one worker.
pub struct Staging {
    memory: Memory,
    /// Free blocks of 2^order pages, by order; bit n of an order is the block at page n << order.
    free: Vec<BitSet>,
    stats: StagingStats,
}

impl Staging {
    /// A pool in memory from `allocator`.
    ///
    /// # Errors
    ///
    /// [`AllocError`] when there is no memory.
    pub fn new(allocator: &dyn Allocator, config: StagingConfig) -> Result<Staging, AllocError> {
        let fail = AllocError { len: config.bytes };
        let largest = config.max_piece.max(PAGE).checked_next_power_of_two().ok_or(fail)?;
        let bytes = config.bytes.max(1).checked_next_multiple_of(largest).ok_or(fail)?;
        // The allocator aligns to 64 bytes only.
        let whole = allocator.allocate(bytes.checked_add(PAGE).ok_or(fail)?)?;
        let skip = whole.as_ptr().addr().wrapping_neg() % PAGE;
        let memory = whole.slice(skip, bytes).ok_or(fail)?;
        let (pages, orders) = (bytes / PAGE, (largest / PAGE).ilog2() as usize + 1);
        if u32::try_from(pages).is_err() {
            return Err(fail);
        }
        let mut free: Vec<BitSet> = (0..orders).map(|order| BitSet::new(pages >> order)).collect();
        for block in 0..pages >> (orders - 1) {
            free[orders - 1].insert(block);
        }
        Ok(Staging { memory, free, stats: StagingStats { capacity: bytes as u64, ..StagingStats::default() } })
    }

    /// All memory of the pool: for registering it once, with [`Ring::pin`](crate::Ring::pin) and as a memory region.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Largest piece in bytes.
    #[must_use]
    pub fn max_piece(&self) -> usize {
        PAGE << (self.free.len() - 1)
    }

    /// State of the pool.
    #[must_use]
    pub fn stats(&self) -> StagingStats {
        self.stats
    }

    /// A piece of `len` bytes. `None` when there is no room now, which a later [`free`](Self::free) changes, or when
    /// `len` is beyond [`max_piece`](Self::max_piece).
    pub fn allocate(&mut self, len: usize) -> Option<Piece> {
        let piece = self.try_allocate(len);
        match piece {
            Some(_) => self.stats.peak = self.stats.peak.max(self.stats.in_use),
            None => self.stats.refused += 1,
        }
        piece
    }

    fn try_allocate(&mut self, len: usize) -> Option<Piece> {
        if len > self.max_piece() {
            return None;
        }
        let order = len.div_ceil(PAGE).max(1).next_power_of_two().ilog2() as usize;
        let (from, block) = (order..self.free.len()).find_map(|from| Some((from, self.free[from].first()?)))?;
        self.free[from].remove(block);
        // Halves the block until it has the right size; the upper halves become free.
        for half in (order..from).rev() {
            self.free[half].insert((block << (from - half)) + 1);
        }
        let page = block << from;
        let memory = self.memory.slice(page * PAGE, len)?;
        self.stats.in_use += (PAGE << order) as u64;
        Some(Piece { memory, page: page as u32, order: order as u8 })
    }

    /// Takes a piece back.
    pub fn free(&mut self, piece: Piece) {
        let mut order = usize::from(piece.order);
        let mut block = piece.page as usize >> order;
        self.stats.in_use -= (PAGE << order) as u64;
        while order + 1 < self.free.len() && self.free[order].contains(block ^ 1) {
            self.free[order].remove(block ^ 1);
            block >>= 1;
            order += 1;
        }
        self.free[order].insert(block);
    }
}

#[cfg(test)]
#[path = "staging_tests.rs"]
mod tests;
