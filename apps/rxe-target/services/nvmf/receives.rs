//! Memory for the command capsules of a queue.

use rxe_proto::mem::AllocError;
use rxe_proto::verbs::{
    Access, Memory, MemoryRegion, PostError, ProtectionDomain, QueuePair, Rc, RecvWr, RegisterError, Sge,
};
use rxe_service::Context;

use crate::services::endpoint::Pool;

/// One piece of memory for each receive.
pub struct Receives {
    region: MemoryRegion,
    /// Bytes of a command capsule.
    len: usize,
    count: u16,
}

/// No receives for a queue.
#[derive(Debug, thiserror::Error)]
pub enum ReceivesError {
    /// No memory.
    #[error("no memory for receives: {0}")]
    Memory(#[from] AllocError),
    /// No key.
    #[error("no memory region for receives: {0}")]
    Region(#[from] RegisterError),
}

impl Receives {
    /// Memory for `count` capsules of `len` bytes.
    pub fn new(
        cx: &mut Context<'_>,
        pool: &mut Pool,
        pd: ProtectionDomain,
        count: u16,
        len: usize,
    ) -> Result<Receives, ReceivesError> {
        let memory = pool.take(usize::from(count) * len, |size| cx.alloc_memory(size))?;
        let region = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE)?;
        Ok(Receives { region, len, count })
    }

    /// Their number.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Posts the receive `slot`.
    pub fn post(&self, cx: &mut Context<'_>, qp: QueuePair<Rc>, slot: u16) -> Result<(), PostError> {
        let addr = self.region.addr() + self.offset(slot) as u64;
        let sge = Sge { addr, length: self.len as u32, lkey: self.region.lkey() };
        cx.device().post_recv(qp, RecvWr { wr_id: u64::from(slot), sges: &[sge] })
    }

    /// Copies the capsule of a completed receive into `scratch`. Returns `None` if there is no such receive.
    pub fn copy<'a>(&self, slot: u16, len: usize, scratch: &'a mut [u8]) -> Option<&'a [u8]> {
        if slot >= self.count || len > self.len {
            return None;
        }
        let capsule = scratch.get_mut(..len)?;
        self.region.memory().read(self.offset(slot), capsule).ok()?;
        Some(capsule)
    }

    /// `len` bytes of the capsule of a completed receive, from `offset` on.
    pub fn piece(&self, slot: u16, offset: usize, len: usize) -> Option<Memory> {
        self.region.memory().slice(self.offset(slot) + offset, len)
    }

    fn offset(&self, slot: u16) -> usize {
        usize::from(slot) * self.len
    }

    /// Gives the memory back. The queue pair does not receive any more.
    pub fn close(self, cx: &mut Context<'_>, pool: &mut Pool) {
        // No windows are bound to it.
        let _ = cx.device().dereg_mr(&self.region);
        pool.give(self.region.memory().clone());
    }
}
