//! Memory windows and fast regions: keys whose bytes change with posted work requests.

use std::ops::RangeBounds;

use crate::mem::{
    Access, DeregisterError, FastRegMrError, Memory, MemoryRegion, OutOfBounds, RegisterError, RenewError, UnknownKey,
    WindowBind, WindowKind,
};
use crate::transport::SendOp;

use super::{Connected, Device, Payload, ProtectionDomain, WorkRequest};

/// A memory window (`ibv_mw`): a remote key for a part of a region, with rights of its own, that is opened and closed
/// by work requests.
///
/// From [`Device::alloc_mw`], until [`Device::dealloc_mw`]. Bound by [`WorkRequest::bind_mw`]. A window of type 2 is
/// open to the peer of the queue pair that it was bound on, and is unbound by [`WorkRequest::local_inv`] or by the
/// peer's [`WorkRequest::send_with_inv`] before it is bound again. One of type 1 is open to the peers of all queue
/// pairs in its protection domain, and is bound anew, or to no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemoryWindow {
    rkey: u32,
    kind: WindowKind,
}

impl MemoryWindow {
    /// The remote key, the one to tell a peer. A window has no local key.
    #[inline]
    pub const fn rkey(self) -> u32 {
        self.rkey
    }

    /// Its type.
    #[inline]
    pub const fn kind(self) -> WindowKind {
        self.kind
    }
}

/// A fast region: a key made ahead, which a work request gives bytes and another one takes them away from.
/// libibverbs has none; in the kernel's verbs it is what `ib_alloc_mr` returns.
///
/// From [`Device::alloc_fast_region`], in state FREE, until [`Device::dereg_fast_region`].
/// [`Device::map_fast_region`] names the bytes and [`WorkRequest::fast_register`] makes it VALID;
/// [`WorkRequest::local_inv`] or the peer's [`WorkRequest::send_with_inv`] make it FREE again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FastRegion {
    key: u32,
}

impl FastRegion {
    /// The local key. Equal to [`rkey`](Self::rkey).
    #[inline]
    pub const fn lkey(self) -> u32 {
        self.key
    }

    /// The remote key, the one to tell a peer.
    #[inline]
    pub const fn rkey(self) -> u32 {
        self.key
    }
}

impl Device<'_> {
    /// Makes a memory window in `pd`, bound to nothing (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// [`RegisterError::UnknownPd`], [`RegisterError::TooMany`].
    #[inline]
    pub fn alloc_mw(&mut self, pd: ProtectionDomain, kind: WindowKind) -> Result<MemoryWindow, RegisterError> {
        self.engine.keys_mut().alloc_window(pd.0, kind).map(|rkey| MemoryWindow { rkey, kind })
    }

    /// Removes a memory window, bound or not (`ibv_dealloc_mw`).
    ///
    /// # Errors
    /// [`UnknownKey`] when it is gone already, or `mw` is from before [`renew_mw`](Self::renew_mw).
    #[inline]
    pub fn dealloc_mw(&mut self, mw: MemoryWindow) -> Result<(), UnknownKey> {
        self.engine.keys_mut().dealloc_window(mw.rkey)
    }

    /// Gives a memory window another key, drawn at random, in place of the one that peers know (what `ibv_inc_rkey` is
    /// for). A window of type 2 must be unbound. Use the returned handle from now on.
    ///
    /// # Errors
    /// [`RenewError::Valid`] when it is bound, [`RenewError::Unknown`].
    #[inline]
    pub fn renew_mw(&mut self, mw: MemoryWindow) -> Result<MemoryWindow, RenewError> {
        self.engine.keys_mut().renew_key(mw.rkey).map(|rkey| MemoryWindow { rkey, ..mw })
    }

    /// Makes a fast region of up to `max_len` bytes in `pd`, FREE (`ib_alloc_mr`).
    ///
    /// # Errors
    /// [`RegisterError::UnknownPd`], [`RegisterError::TooMany`], [`RegisterError::TooLong`].
    #[inline]
    pub fn alloc_fast_region(&mut self, pd: ProtectionDomain, max_len: usize) -> Result<FastRegion, RegisterError> {
        self.engine.keys_mut().alloc_fast_reg_mr(pd.0, max_len).map(|key| FastRegion { key })
    }

    /// Names the bytes that the next [`WorkRequest::fast_register`] makes reachable (`ib_map_mr_sg`). Until it is
    /// executed nothing must be mapped again.
    ///
    /// # Errors
    /// [`FastRegMrError::NotFree`], [`FastRegMrError::TooLong`], [`FastRegMrError::Unknown`].
    #[inline]
    pub fn map_fast_region(&mut self, region: FastRegion, memory: Memory) -> Result<(), FastRegMrError> {
        self.engine.keys_mut().map_fast_reg_mr(region.key, memory)
    }

    /// The fast region as a region, to name parts of it; `None` unless it is VALID. This handle and the work requests
    /// made with it mean nothing any more when the fast region is FREE again.
    #[inline]
    pub fn query_fast_region(&self, region: FastRegion) -> Option<MemoryRegion> {
        self.engine.keys().region(region.key)
    }

    /// Gives a FREE fast region another key, drawn at random, in place of the one that peers know (what
    /// `ib_update_fast_reg_key` is for). Use the returned handle from now on.
    ///
    /// # Errors
    /// [`RenewError::Valid`], [`RenewError::Unknown`].
    #[inline]
    pub fn renew_fast_region(&mut self, region: FastRegion) -> Result<FastRegion, RenewError> {
        self.engine.keys_mut().renew_key(region.key).map(|key| FastRegion { key })
    }

    /// Removes a fast region, FREE or VALID (`ib_dereg_mr`).
    ///
    /// # Errors
    /// [`DeregisterError::WindowsBound`] while memory windows are bound to it, [`DeregisterError::Unknown`].
    #[inline]
    pub fn dereg_fast_region(&mut self, region: FastRegion) -> Result<(), DeregisterError> {
        self.engine.keys_mut().deregister(region.key).map(|_| ())
    }
}

/// What the verbs add.
impl MemoryRegion {
    /// The bytes in `range` (offsets from the start of the region), with the rights that a memory window bound to them
    /// grants (`ibv_mw_bind_info`). The region must allow [`Access::MW_BIND`]. An empty range unbinds a window of type
    /// 1.
    ///
    /// # Errors
    /// [`OutOfBounds`] when they do not lie inside.
    #[inline]
    pub fn window(&self, range: impl RangeBounds<usize>, access: Access) -> Result<WindowBind, OutOfBounds> {
        let range = self.offsets(range)?;
        Ok(WindowBind {
            region_key: self.lkey(),
            addr: self.addr().wrapping_add(range.start as u64),
            len: range.len() as u64,
            access,
        })
    }
}

impl<T: Connected> WorkRequest<'_, T> {
    /// Binds a memory window (`IBV_WR_BIND_MW`, and `ibv_bind_mw`, which is for windows of type 1): from the work
    /// requests behind it on, peers may use its key. Done on this side; nothing is sent.
    #[inline]
    pub fn bind_mw(mw: MemoryWindow, bind: WindowBind) -> Self {
        WorkRequest::of(SendOp::BindWindow { key: mw.rkey, bind }, Payload::EMPTY)
    }

    /// Makes a fast region VALID, with the bytes mapped before, the first one at address `addr` (`IB_WR_REG_MR`). Done
    /// on this side; nothing is sent.
    #[inline]
    pub fn fast_register(region: FastRegion, addr: u64, access: Access) -> Self {
        WorkRequest::of(SendOp::FastRegister { key: region.key, addr, access }, Payload::EMPTY)
    }

    /// Unbinds the memory window of type 2, or makes FREE the fast region, that has `key` (`IBV_WR_LOCAL_INV`), after
    /// all work posted before has completed. Done on this side; nothing is sent.
    #[inline]
    pub fn local_inv(key: u32) -> Self {
        WorkRequest::of(SendOp::LocalInvalidate { key }, Payload::EMPTY)
    }
}
