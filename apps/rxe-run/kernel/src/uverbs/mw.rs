//! Memory windows.

use nix::errno::Errno;
use rxe_proto::mem::WindowKind;
use rxe_proto::transport::Engine;

use super::Uverbs;
use super::abi::{AllocMw, AllocMwResp, DeallocMw};
use super::command::Command;

/// A memory window.
#[derive(Debug)]
pub(super) struct Mw {
    /// The key that it was allocated with. A bind may have changed the lowest byte.
    rkey: u32,
}

impl Uverbs {
    /// ALLOC_MW
    pub(super) fn alloc_mw(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<AllocMw>()?;
        let pd = self.pd(command.context, request.pd_handle)?;
        let kind = match request.mw_type {
            1 => WindowKind::Type1,
            2 => WindowKind::Type2,
            _ => return Err(Errno::EINVAL),
        };
        self.mws.check_room()?;
        let rkey = command.engine.keys_mut().alloc_window(pd, kind).map_err(|_| Errno::ENOMEM)?;
        let mw_handle = self.mws.insert(command.context, Mw { rkey })?;
        command
            .call
            .respond(&AllocMwResp { mw_handle, rkey })
            .inspect_err(|_| self.remove_mw(command.engine, mw_handle))
    }

    /// DEALLOC_MW
    pub(super) fn dealloc_mw(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<DeallocMw>()?;
        self.mws.get(command.context, request.mw_handle).ok_or(Errno::ENOENT)?;
        self.remove_mw(command.engine, request.mw_handle);
        Ok(())
    }

    /// Destroys a memory window, bound or not.
    pub(super) fn remove_mw(&mut self, engine: &mut Engine, handle: u32) {
        if let Some(mw) = self.mws.remove(handle) {
            let keys = engine.keys_mut();
            // Keys differ in their upper 24 bits, so no other window can be met.
            let freed = (0..=0xFF).any(|byte| keys.dealloc_window(mw.rkey & !0xFF | byte).is_ok());
            debug_assert!(freed, "the engine has as many windows as the table");
        }
    }
}
