//! Staging memory of a worker, registered for RDMA.

use rxe_proto::verbs::{Access, MemoryRegion, ProtectionDomain, Sge};
use rxe_service::Context;
use rxe_storage::{PAGE, Piece, Ring, Staging, StagingConfig};

/// Two transfers of a Compare.
const MAX_PIECE: usize = 2 << 20;

/// A pool of buffers for the data of commands.
pub struct StagingPool {
    staging: Staging,
    region: MemoryRegion,
}

impl StagingPool {
    /// A pool of `bytes`.
    ///
    /// # Errors
    /// Why there is no memory, in a sentence.
    pub fn new(cx: &mut Context<'_>, pd: ProtectionDomain, bytes: usize) -> Result<StagingPool, String> {
        let config = StagingConfig { bytes, max_piece: MAX_PIECE };
        let staging = Staging::new(cx.allocator(), config).map_err(|error| error.to_string())?;
        let memory = staging.memory().clone();
        let region = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        Ok(StagingPool { staging, region })
    }

    /// Its size in bytes.
    pub fn capacity(&self) -> usize {
        self.staging.stats().capacity as usize
    }

    /// Lets a ring keep the pages of the pool mapped.
    pub fn pin(&self, ring: &mut Ring) {
        ring.pin(self.staging.memory());
    }

    /// A piece of `len` bytes, if there is one now.
    pub fn allocate(&mut self, len: usize) -> Option<Piece> {
        self.staging.allocate(len)
    }

    /// Takes a piece back.
    pub fn free(&mut self, piece: Piece) {
        self.staging.free(piece);
    }

    /// The first `len` bytes of a piece for a work request.
    pub fn sge(&self, piece: &Piece, len: u32) -> Sge {
        let offset = piece.memory().as_ptr() as usize - self.staging.memory().as_ptr() as usize;
        Sge { addr: self.region.addr() + offset as u64, length: len, lkey: self.region.lkey() }
    }
}

/// Bytes that a piece takes of the pool.
pub fn taken(len: usize) -> usize {
    if len == 0 { 0 } else { len.max(PAGE).next_power_of_two() }
}
