//! Staging memory of a worker, registered for RDMA.

use rxe_proto::verbs::{Access, MemoryRegion, ProtectionDomain, Sge};
use rxe_service::Context;
use rxe_storage::{Piece, Ring, Staging, StagingConfig};

/// Two transfers of a Compare.
const MAX_PIECE: usize = 2 << 20;

/// A pool of buffers for the data of commands. Without memory it has none.
#[derive(Default)]
pub struct StagingPool(Option<(Staging, MemoryRegion)>);

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
        Ok(StagingPool(Some((staging, region))))
    }

    /// Whether it has memory.
    pub fn is_usable(&self) -> bool {
        self.0.is_some()
    }

    /// Lets a ring keep the pages of the pool mapped.
    pub fn pin(&self, ring: &mut Ring) {
        if let Some((staging, _)) = &self.0 {
            ring.pin(staging.memory());
        }
    }

    /// A piece; `None` when there is no room now.
    pub fn allocate(&mut self, len: usize) -> Option<Piece> {
        self.0.as_mut()?.0.allocate(len)
    }

    /// Takes a piece back.
    pub fn free(&mut self, piece: Piece) {
        if let Some((staging, _)) = &mut self.0 {
            staging.free(piece);
        }
    }

    /// The first `len` bytes of a piece for a work request.
    pub fn sge(&self, piece: &Piece, len: u32) -> Sge {
        let Some((staging, region)) = &self.0 else { return Sge::default() };
        let offset = piece.memory().as_ptr() as usize - staging.memory().as_ptr() as usize;
        Sge { addr: region.addr() + offset as u64, length: len, lkey: region.lkey() }
    }
}
