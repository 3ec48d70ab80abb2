//! Fast regions: keys made ahead, given bytes by a work request.
//!
//! IBTA: "Fast Register Physical MR". In the kernel's verbs: `ib_alloc_mr`, `ib_map_mr_sg`, `IB_WR_REG_MR`.

use super::slot::{Role, Slot};
use super::{Access, FastRegionError, KeyTable, Memory, PdId, RegisterError, first_address};

impl KeyTable {
    /// Makes a fast region in state FREE, for up to `max_len` bytes. Returns its key, local and remote.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], naming the reason; nothing changes then.
    pub fn alloc_fast_region(&mut self, pd: PdId, max_len: usize) -> Result<u32, RegisterError> {
        let Some(max_len) = u32::try_from(max_len).ok().filter(|&len| len as usize <= Self::MAX_FAST_REGION) else {
            return Err(RegisterError::TooLong);
        };
        self.own_keys_only()?;
        self.add(Slot::closed(pd, Role::FreeFastRegion { max_len }))
    }

    /// Stages the bytes that the next [`fast_register`](Self::fast_register) registers, in place of those staged or
    /// registered last. The fast region keeps them alive until other bytes are staged or it is deregistered, not only
    /// while it is VALID: invalidating must not free memory.
    ///
    /// # Errors
    ///
    /// [`FastRegionError::Unknown`], [`NotFree`](FastRegionError::NotFree), [`TooLong`](FastRegionError::TooLong);
    /// nothing changes then.
    pub fn map_fast_region(&mut self, key: u32, memory: Memory) -> Result<(), FastRegionError> {
        let slot = self.slots.get_mut(key).ok_or(FastRegionError::Unknown)?;
        let max_len = match slot.role() {
            Role::FreeFastRegion { max_len } => max_len,
            Role::ValidFastRegion { .. } => return Err(FastRegionError::NotFree),
            _ => return Err(FastRegionError::Unknown),
        };
        if memory.len() > max_len as usize {
            return Err(FastRegionError::TooLong);
        }
        slot.memory = Some(memory);
        Ok(())
    }

    /// Registers the staged bytes: FREE becomes VALID. The first byte gets the address `iova` (with
    /// [`Access::ZERO_BASED`]: 0). This is what a posted fast registration executes, for a queue pair of `pd`; it
    /// allocates nothing.
    ///
    /// # Errors
    ///
    /// [`FastRegionError`]: the first reason in its order; nothing changes then.
    pub fn fast_register(&mut self, key: u32, pd: PdId, iova: u64, access: Access) -> Result<(), FastRegionError> {
        let slot = self.slots.get_mut(key).ok_or(FastRegionError::Unknown)?;
        let max_len = match slot.role() {
            Role::FreeFastRegion { .. } | Role::ValidFastRegion { .. } if !slot.is_of(pd) => {
                return Err(FastRegionError::WrongPd);
            }
            Role::FreeFastRegion { max_len } => max_len,
            Role::ValidFastRegion { .. } => return Err(FastRegionError::NotFree),
            _ => return Err(FastRegionError::Unknown),
        };
        let memory = slot.memory.as_ref().ok_or(FastRegionError::NotMapped)?;
        if !access.is_legal() {
            return Err(FastRegionError::IllegalAccess);
        }
        slot.iova = first_address(memory, iova, access).ok_or(FastRegionError::AddressOverflow)?;
        // [MEM-FAST-REGION]
        slot.open(Role::ValidFastRegion { max_len, windows: 0 }, access);
        Ok(())
    }
}
