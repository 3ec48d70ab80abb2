//! Memory windows and fast-registration regions: keys whose bytes change with posted work requests.

use std::ops::RangeBounds;

use crate::mem::{
    Access, DeregisterError, FastRegMrError, Memory, MemoryRegion, OutOfBounds, RegisterError, RenewError, UnknownKey,
    WindowBind, WindowKind,
};
use crate::transport::SendOp;

use super::{Connected, Device, Payload, ProtectionDomain, WorkRequest};

/// A memory window (`ibv_mw`): a remote key for a part of a region, with rights of its own, that work requests open and
/// close.
///
/// From [`Device::alloc_mw`], until [`Device::dealloc_mw`]. Bound by [`WorkRequest::bind_mw`]. A window of type 2 is
/// open to the peer of the queue pair that it was bound on, and is unbound by [`WorkRequest::local_inv`] or by the
/// peer's [`WorkRequest::send_with_inv`] before it is bound again. One of type 1 is open to the peers of all queue
/// pairs in its protection domain, and can be bound again at any time, also to no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemoryWindow {
    rkey: u32,
    kind: WindowKind,
}

impl MemoryWindow {
    /// The remote key, for the peer. A window has no local key.
    #[inline]
    pub const fn rkey(self) -> u32 {
        self.rkey
    }

    /// The window under the key that differs in its lowest byte: what it is after
    /// [`WorkRequest::bind_mw_as`] with that byte. `ibv_inc_rkey` adds 1 to the byte.
    #[inline]
    #[must_use]
    pub const fn with_key_byte(self, byte: u8) -> MemoryWindow {
        MemoryWindow { rkey: self.rkey & !0xFF | byte as u32, ..self }
    }

    /// Type 1 or type 2.
    #[inline]
    pub const fn kind(self) -> WindowKind {
        self.kind
    }
}

/// A fast-registration memory region: a key allocated in advance, which one work request gives bytes and another one takes
/// them away from. libibverbs has none; in the kernel's verbs it is what `ib_alloc_mr` returns.
///
/// From [`Device::alloc_fast_reg_mr`], in state FREE, until [`Device::dereg_fast_reg_mr`].
/// [`Device::map_fast_reg_mr`] names the bytes and [`WorkRequest::fast_reg_mr`] makes it VALID;
/// [`WorkRequest::local_inv`] or the peer's [`WorkRequest::send_with_inv`] make it FREE again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FastRegMr {
    key: u32,
}

impl FastRegMr {
    /// The local key. Equal to [`rkey`](Self::rkey).
    #[inline]
    pub const fn lkey(self) -> u32 {
        self.key
    }

    /// The remote key, for the peer.
    #[inline]
    pub const fn rkey(self) -> u32 {
        self.key
    }
}

impl Device<'_> {
    /// Allocates a memory window in `pd`, bound to nothing (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// [`RegisterError::UnknownPd`], [`RegisterError::TooMany`].
    #[inline]
    pub fn alloc_mw(&mut self, pd: ProtectionDomain, kind: WindowKind) -> Result<MemoryWindow, RegisterError> {
        self.engine.keys_mut().alloc_window(pd.0, kind).map(|rkey| MemoryWindow { rkey, kind })
    }

    /// Frees a memory window, bound or not (`ibv_dealloc_mw`).
    ///
    /// # Errors
    /// [`UnknownKey`] when it does not exist, or `mw` is from before [`renew_mw`](Self::renew_mw).
    #[inline]
    pub fn dealloc_mw(&mut self, mw: MemoryWindow) -> Result<(), UnknownKey> {
        self.engine.keys_mut().dealloc_window(mw.rkey)
    }

    /// Replaces the key of a memory window by one drawn at random, so that peers cannot use the old one (what
    /// `ibv_inc_rkey` is for). A window of type 2 must be unbound. Use the returned handle from then on.
    ///
    /// # Errors
    /// [`RenewError::Valid`] when it is bound, [`RenewError::Unknown`].
    #[inline]
    pub fn renew_mw(&mut self, mw: MemoryWindow) -> Result<MemoryWindow, RenewError> {
        self.engine.keys_mut().renew_key(mw.rkey).map(|rkey| MemoryWindow { rkey, ..mw })
    }

    /// Allocates a fast-registration region of up to `max_len` bytes in `pd`, in state FREE (`ib_alloc_mr`).
    ///
    /// # Errors
    /// [`RegisterError::UnknownPd`], [`RegisterError::TooMany`], [`RegisterError::TooLong`].
    #[inline]
    pub fn alloc_fast_reg_mr(&mut self, pd: ProtectionDomain, max_len: usize) -> Result<FastRegMr, RegisterError> {
        self.engine.keys_mut().alloc_fast_reg_mr(pd.0, max_len).map(|key| FastRegMr { key })
    }

    /// Names the bytes that the next [`WorkRequest::fast_reg_mr`] makes reachable (`ib_map_mr_sg`). Do not map others
    /// before it is executed.
    ///
    /// # Errors
    /// [`FastRegMrError::NotFree`], [`FastRegMrError::TooLong`], [`FastRegMrError::Unknown`].
    #[inline]
    pub fn map_fast_reg_mr(&mut self, mr: FastRegMr, memory: Memory) -> Result<(), FastRegMrError> {
        self.engine.keys_mut().map_fast_reg_mr(mr.key, memory)
    }

    /// The same as a [`MemoryRegion`], to name parts of it; `None` unless it is VALID. That handle and the work requests
    /// made with it become invalid when the region is FREE again.
    #[inline]
    pub fn query_fast_reg_mr(&self, mr: FastRegMr) -> Option<MemoryRegion> {
        self.engine.keys().region(mr.key)
    }

    /// Replaces the key of a FREE region by one drawn at random, so that peers cannot use the old one (what
    /// `ib_update_fast_reg_key` is for). Use the returned handle from then on.
    ///
    /// # Errors
    /// [`RenewError::Valid`], [`RenewError::Unknown`].
    #[inline]
    pub fn renew_fast_reg_mr(&mut self, mr: FastRegMr) -> Result<FastRegMr, RenewError> {
        self.engine.keys_mut().renew_key(mr.key).map(|key| FastRegMr { key })
    }

    /// Deregisters a fast-registration region, FREE or VALID (`ib_dereg_mr`).
    ///
    /// # Errors
    /// [`DeregisterError::WindowsBound`] while memory windows are bound to it, [`DeregisterError::Unknown`].
    #[inline]
    pub fn dereg_fast_reg_mr(&mut self, mr: FastRegMr) -> Result<(), DeregisterError> {
        self.engine.keys_mut().deregister(mr.key).map(|_| ())
    }
}

/// Methods of the verbs API.
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
    /// Binds a memory window (`IBV_WR_BIND_MW`, and `ibv_bind_mw`, which is for windows of type 1): peers may use
    /// its key from the next work request on. It is executed locally; nothing is sent.
    #[inline]
    pub fn bind_mw(mw: MemoryWindow, bind: WindowBind) -> Self {
        WorkRequest::of(SendOp::BindWindow { key: mw.rkey, key_byte: None, bind }, Payload::EMPTY)
    }

    /// As [`bind_mw`](Self::bind_mw), and sets the lowest byte of the window's key, so that peers that know the old key
    /// are shut out: what `ibv_bind_mw` of libibverbs does. The window is [`MemoryWindow::with_key_byte`] then. For an
    /// engine with [`KeyLayout::ConsumerByte`](crate::mem::KeyLayout::ConsumerByte); with another one it fails.
    #[inline]
    pub fn bind_mw_as(mw: MemoryWindow, byte: u8, bind: WindowBind) -> Self {
        WorkRequest::of(SendOp::BindWindow { key: mw.rkey, key_byte: Some(byte), bind }, Payload::EMPTY)
    }

    /// Makes a fast-registration region VALID, with the bytes mapped before, the first one at address `addr`
    /// (`IB_WR_REG_MR`). It is executed locally; nothing is sent.
    #[inline]
    pub fn fast_reg_mr(mr: FastRegMr, addr: u64, access: Access) -> Self {
        WorkRequest::of(SendOp::FastRegister { key: mr.key, addr, access }, Payload::EMPTY)
    }

    /// Unbinds the memory window of type 2, or makes FREE the fast-registration region, that has `key`
    /// (`IBV_WR_LOCAL_INV`), after all work posted before has completed. It is executed locally; nothing is sent.
    #[inline]
    pub fn local_inv(key: u32) -> Self {
        WorkRequest::of(SendOp::LocalInvalidate { key }, Payload::EMPTY)
    }
}
