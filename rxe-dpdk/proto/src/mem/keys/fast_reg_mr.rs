//! Fast-registration MRs: keys allocated in advance, to which a work request gives bytes.
//!
//! IBTA: "Fast Register Physical MR". In the kernel's verbs: `ib_alloc_mr`, `ib_map_mr_sg`, `IB_WR_REG_MR`.

use super::slot::{Role, Slot};
use super::{Access, FastRegMrError, KeyTable, Memory, PdId, RegisterError, first_address};

impl KeyTable {
    /// Makes a fast-registration MR in state FREE, for up to `max_len` bytes. Returns its key, local and remote.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], naming the reason; nothing changes then.
    pub fn alloc_fast_reg_mr(&mut self, pd: PdId, max_len: usize) -> Result<u32, RegisterError> {
        let Some(max_len) = u32::try_from(max_len).ok().filter(|&len| len as usize <= Self::MAX_FAST_REG_MR) else {
            return Err(RegisterError::TooLong);
        };
        self.own_keys_only()?;
        self.add(Slot::closed(pd, Role::FreeFastRegMr { max_len }))
    }

    /// Stages the bytes that the next [`fast_register`](Self::fast_register) registers, in place of those staged or
    /// registered last. The fast-registration MR keeps them alive until other bytes are staged or it is deregistered,
    /// not only while it is VALID: invalidating must not free memory.
    ///
    /// # Errors
    ///
    /// [`FastRegMrError::Unknown`], [`NotFree`](FastRegMrError::NotFree), [`TooLong`](FastRegMrError::TooLong);
    /// nothing changes then.
    pub fn map_fast_reg_mr(&mut self, key: u32, memory: Memory) -> Result<(), FastRegMrError> {
        let slot = self.slots.get_mut(key).ok_or(FastRegMrError::Unknown)?;
        let max_len = match slot.role() {
            Role::FreeFastRegMr { max_len } => max_len,
            Role::ValidFastRegMr { .. } => return Err(FastRegMrError::NotFree),
            _ => return Err(FastRegMrError::Unknown),
        };
        if memory.len() > max_len as usize {
            return Err(FastRegMrError::TooLong);
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
    /// [`FastRegMrError`]: the first reason in its order; nothing changes then.
    pub fn fast_register(&mut self, key: u32, pd: PdId, iova: u64, access: Access) -> Result<(), FastRegMrError> {
        let slot = self.slots.get_mut(key).ok_or(FastRegMrError::Unknown)?;
        let max_len = match slot.role() {
            Role::FreeFastRegMr { .. } | Role::ValidFastRegMr { .. } if !slot.is_of(pd) => {
                return Err(FastRegMrError::WrongPd);
            }
            Role::FreeFastRegMr { max_len } => max_len,
            Role::ValidFastRegMr { .. } => return Err(FastRegMrError::NotFree),
            _ => return Err(FastRegMrError::Unknown),
        };
        let memory = slot.memory.as_ref().ok_or(FastRegMrError::NotMapped)?;
        if !access.is_legal() {
            return Err(FastRegMrError::IllegalAccess);
        }
        slot.iova = first_address(memory, iova, access).ok_or(FastRegMrError::AddressOverflow)?;
        // compliance.md [MEM-FAST-REGION]: A fast-registration MR is FREE or VALID.
        slot.open(Role::ValidFastRegMr { max_len, windows: 0 }, access);
        Ok(())
    }
}
