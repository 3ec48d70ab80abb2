//! Taking keys back without forgetting them: invalidation and new keys.
//!
//! IBTA: "Invalidate operations". In libibverbs: `IBV_WR_LOCAL_INV`, `IBV_WR_SEND_WITH_INV`, `ibv_inc_rkey`; in the
//! kernel's verbs: `ib_update_fast_reg_key`.

use super::slot::Role;
use super::{InvalidateError, KeyTable, PdId, RenewError, WindowKind};

impl KeyTable {
    /// Invalidates a key as a posted request of a queue pair of `pd` asks: a fast-registration MR becomes FREE, a type
    /// 2 memory window unbound, whatever queue pair it is bound on. Neither allocates nor frees memory.
    ///
    /// # Errors
    ///
    /// [`InvalidateError`]: the first reason in its order; nothing changes then.
    pub fn invalidate_local(&mut self, key: u32, pd: PdId) -> Result<(), InvalidateError> {
        self.invalidate(key, pd, None)
    }

    /// Invalidates a key as the peer of queue pair `qpn` of `pd` asks with a SEND: as
    /// [`invalidate_local`](Self::invalidate_local), but a type 2 memory window must be bound on `qpn`.
    ///
    /// # Errors
    ///
    /// [`InvalidateError`]: the first reason in its order; nothing changes then.
    pub fn invalidate_remote(&mut self, key: u32, pd: PdId, qpn: u32) -> Result<(), InvalidateError> {
        self.invalidate(key, pd, Some(qpn))
    }

    /// `by` is the queue pair whose peer asks.
    fn invalidate(&mut self, key: u32, pd: PdId, by: Option<u32>) -> Result<(), InvalidateError> {
        let slot = self.slots.get_mut(key).ok_or(InvalidateError::Unknown)?;
        if !slot.is_of(pd) {
            return Err(InvalidateError::WrongPd);
        }
        match slot.role() {
            // compliance.md [MEM-INVALIDATE]: Plain regions and type 1 windows cannot be invalidated.
            Role::Region { .. } | Role::BoundType1 { .. } | Role::Unbound(WindowKind::Type1) => {
                Err(InvalidateError::NotInvalidatable)
            }
            Role::FreeFastRegMr { .. } | Role::Unbound(WindowKind::Type2) => Err(InvalidateError::NotValid),
            // compliance.md [MEM-WINDOW-HOLDS]: A region is neither deregistered nor invalidated while windows are
            // bound to it.
            Role::ValidFastRegMr { windows: 1.., .. } => Err(InvalidateError::WindowsBound),
            Role::ValidFastRegMr { max_len, .. } => {
                slot.close(Role::FreeFastRegMr { max_len });
                Ok(())
            }
            Role::BoundType2 { qpn, .. } if by.is_some_and(|by| by != qpn) => Err(InvalidateError::WrongQp),
            Role::BoundType2 { .. } => {
                self.unbind(key);
                Ok(())
            }
        }
    }

    /// Gives a fast-registration MR in state FREE, an unbound type 2 memory window, or a type 1 memory window another
    /// key, and returns it; everything else about it stays. The old key is unknown from then on and does not come back
    /// (see
    /// [Keys](Self#keys)). Call this before reusing an object whose key a peer knows, so that what the
    /// peer still has in flight cannot hit the new bytes. Allocates nothing.
    ///
    /// # Errors
    ///
    /// [`RenewError`]: the first reason in its order; nothing changes then.
    pub fn renew_key(&mut self, key: u32) -> Result<u32, RenewError> {
        match self.slots.get(key).ok_or(RenewError::Unknown)?.role() {
            Role::Region { .. } => return Err(RenewError::NotRenewable),
            Role::ValidFastRegMr { .. } | Role::BoundType2 { .. } => return Err(RenewError::Valid),
            Role::FreeFastRegMr { .. } | Role::BoundType1 { .. } | Role::Unbound(_) => {}
        }
        // compliance.md [MEM-KEY-RENEW]: A FREE fast-registration MR, an unbound type 2 window or a type 1 window can
        // get another key.
        let slot = self.slots.remove(key).ok_or(RenewError::Unknown)?;
        self.source.retire(key);
        let fresh = self.source.draw(&self.slots);
        self.slots.insert(slot.with_key(fresh));
        Ok(fresh)
    }
}
