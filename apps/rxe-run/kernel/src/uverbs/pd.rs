//! Protection domains.

use nix::errno::Errno;
use rxe_proto::mem::PdId;
use rxe_proto::transport::Engine;

use super::Uverbs;
use super::abi::{AllocPd, AllocPdResp, DeallocPd};
use super::command::Command;
use super::table::ContextId;

/// A protection domain.
#[derive(Debug)]
pub(super) struct Pd {
    id: PdId,
}

impl Uverbs {
    /// The engine's protection domain of a handle.
    ///
    /// # Errors
    /// `EINVAL` when the context has none.
    pub(super) fn pd(&self, context: ContextId, handle: u32) -> Result<PdId, Errno> {
        self.pds.get(context, handle).map(|pd| pd.id).ok_or(Errno::EINVAL)
    }

    /// ALLOC_PD
    pub(super) fn alloc_pd(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        command.call.request::<AllocPd>()?;
        self.pds.check_room()?;
        let id = command.engine.keys_mut().alloc_pd();
        let pd_handle = self.pds.insert(command.context, Pd { id })?;
        command.call.respond(&AllocPdResp { pd_handle }).inspect_err(|_| self.remove_pd(command.engine, pd_handle))
    }

    /// DEALLOC_PD
    pub(super) fn dealloc_pd(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<DeallocPd>()?;
        let pd = self.pds.get(command.context, request.pd_handle).ok_or(Errno::ENOENT)?;
        command.engine.keys_mut().dealloc_pd(pd.id).map_err(|_| Errno::EBUSY)?;
        self.pds.remove(request.pd_handle);
        Ok(())
    }

    /// Destroys a protection domain that nothing uses.
    pub(super) fn remove_pd(&mut self, engine: &mut Engine, handle: u32) {
        if let Some(pd) = self.pds.remove(handle) {
            // Nothing is left to be done if it were in use.
            let _ = engine.keys_mut().dealloc_pd(pd.id);
        }
    }
}
