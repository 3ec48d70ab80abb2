//! Memory regions.

use std::ops::{Bound, Range, RangeBounds};

use crate::mem::{
    Access, DeregisterError, Memory, MemoryRegion, OutOfBounds, RegisterError, Reregister, ReregisterError,
};
use crate::transport::{RemoteAddr, Sge};

use super::{Device, ProtectionDomain};

impl Device<'_> {
    /// Registers `memory` in `pd` under a new key (`ibv_reg_mr`). As in libibverbs its addresses, in work requests
    /// and at peers, are those of the bytes in this process, so that regions never overlap.
    ///
    /// # Errors
    /// [`RegisterError`], naming the reason.
    #[inline]
    pub fn reg_mr(
        &mut self,
        pd: ProtectionDomain,
        memory: Memory,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let iova = memory.as_ptr() as u64;
        self.reg_mr_iova(pd, memory, iova, access)
    }

    /// Registers `memory` in `pd` under a new key, its first byte at address `iova` (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// [`RegisterError`], naming the reason.
    #[inline]
    pub fn reg_mr_iova(
        &mut self,
        pd: ProtectionDomain,
        memory: Memory,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.engine.keys_mut().register(pd.0, memory, iova, access)
    }

    /// Changes a region, which keeps its key (`ibv_rereg_mr`): `translation` names other bytes and the address of the
    /// first one, `pd` another protection domain, `access` other rights; what is `None` stays. Returns the handle of
    /// the changed region; work requests made with the old one may fail.
    ///
    /// # Errors
    /// [`ReregisterError`], naming the reason; nothing changes then.
    #[inline]
    pub fn rereg_mr(
        &mut self,
        mr: &MemoryRegion,
        translation: Option<(Memory, u64)>,
        pd: Option<ProtectionDomain>,
        access: Option<Access>,
    ) -> Result<MemoryRegion, ReregisterError> {
        self.engine.keys_mut().reregister(mr.lkey(), Reregister { translation, pd: pd.map(|pd| pd.0), access })
    }

    /// Invalidates the key of a region (`ibv_dereg_mr`): packets and work requests with it are refused from then on. The
    /// bytes live as long as `mr` or a clone of its memory exists.
    ///
    /// # Errors
    /// [`DeregisterError::WindowsBound`] while memory windows are bound to it, [`DeregisterError::Unknown`] when it was
    /// deregistered before.
    #[inline]
    pub fn dereg_mr(&mut self, mr: &MemoryRegion) -> Result<(), DeregisterError> {
        self.engine.keys_mut().deregister(mr.lkey()).map(|_| ())
    }
}

/// Methods of the verbs API.
impl MemoryRegion {
    /// The bytes in `range` (offsets from the start of the region) as a buffer of a work request (`ibv_sge`).
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not lie inside, or are 4 GiB or more.
    #[inline]
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge, OutOfBounds> {
        let range = self.offsets(range)?;
        let length = u32::try_from(range.len()).map_err(|_| OutOfBounds)?;
        // Only the end of a region that ends at 2^64 wraps.
        Ok(Sge { addr: self.addr().wrapping_add(range.start as u64), length, lkey: self.lkey() })
    }

    /// The bounds of a range inside the region.
    #[inline]
    pub(super) fn offsets(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>, OutOfBounds> {
        let start = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at.checked_add(1).ok_or(OutOfBounds)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at.checked_add(1).ok_or(OutOfBounds)?,
            Bound::Excluded(&at) => at,
            Bound::Unbounded => self.memory().len(),
        };
        if start <= end && end <= self.memory().len() { Ok(start..end) } else { Err(OutOfBounds) }
    }

    /// The byte at `offset` from the start of the region, as peers name it in RDMA and atomic operations. The end of
    /// the region is allowed, for operations on no bytes.
    ///
    /// # Errors
    /// [`OutOfBounds`] beyond the end.
    #[inline]
    pub fn remote(&self, offset: usize) -> Result<RemoteAddr, OutOfBounds> {
        if offset > self.memory().len() {
            return Err(OutOfBounds);
        }
        Ok(RemoteAddr { addr: self.addr().wrapping_add(offset as u64), rkey: self.rkey() })
    }
}
