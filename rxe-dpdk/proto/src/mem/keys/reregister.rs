//! Regions that get other bytes, another protection domain or other rights.
//!
//! IBTA: "Reregister Memory Region". In libibverbs: `ibv_rereg_mr`.

use super::slot::{Role, Slot};
use super::{Access, KeyDomain, KeyTable, Memory, MemoryRegion, PdId, ReregisterError, first_address};

/// What a re-registration changes: the flags of `ibv_rereg_mr`. What is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct Reregister {
    /// Other bytes, and the address of the first one (with [`Access::ZERO_BASED`]: 0).
    pub translation: Option<(Memory, u64)>,
    /// Another protection domain.
    pub pd: Option<PdId>,
    /// Other rights.
    pub access: Option<Access>,
}

impl KeyTable {
    /// Changes a plain region, which keeps its key, local and remote. Work requests that were posted and messages in
    /// progress meet the region as it is when they access it.
    ///
    /// # Errors
    ///
    /// [`ReregisterError`]: the first reason in its order; nothing changes then.
    pub fn reregister(&mut self, key: u32, change: Reregister) -> Result<MemoryRegion, ReregisterError> {
        let slot = self.slots.get(key).ok_or(ReregisterError::Unknown)?;
        let Role::Region { windows } = slot.role() else { return Err(ReregisterError::Unknown) };
        let Reregister { translation, pd, access } = change;
        if translation.is_none() && pd.is_none() && access.is_none() {
            return Err(ReregisterError::NoChange);
        }
        // compliance.md [MEM-REREGISTER]: A region that is re-registered keeps its key and has its new bytes, domain
        // and rights at once; not while windows are bound to it, nor if other tables share it.
        if self.domain() == KeyDomain::Shared || !self.source.draws(key) {
            return Err(ReregisterError::Shared);
        }
        if windows > 0 {
            return Err(ReregisterError::WindowsBound);
        }
        let old = PdId(slot.pd);
        let pd = pd.unwrap_or(old);
        if !self.pds.contains_key(&pd) {
            return Err(ReregisterError::UnknownPd);
        }
        let access = access.unwrap_or(slot.access());
        if !access.is_legal() {
            return Err(ReregisterError::IllegalAccess);
        }
        let (memory, iova) = match translation {
            Some(translation) => translation,
            None => (slot.memory.clone().ok_or(ReregisterError::Unknown)?, slot.iova),
        };
        let iova = first_address(&memory, iova, access).ok_or(ReregisterError::AddressOverflow)?;

        let region = MemoryRegion { key, pd, access, iova, memory };
        if let Some(slot) = self.slots.get_mut(key) {
            *slot = Slot::of(&region);
        }
        self.uncount_key(old);
        self.count_key(pd);
        Ok(region)
    }
}
