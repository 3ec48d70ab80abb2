//! The device: an engine, for the time of one turn.

use std::fmt;

use crate::mem::DeallocPdError;
use crate::time::Instant;
use crate::transport::{AhError, AsyncEvent, Engine, EngineConfig, SrqError};
use crate::wire::Path;

use super::{AddressHandle, ProtectionDomain, SharedReceiveQueue, SrqInitAttr};

/// The verbs of one [`Engine`] (`ibv_context`), at one point in time.
///
/// It borrows the engine and adds what time it is, so it is made anew for each turn of the owner's loop; making it
/// costs nothing. Between turns the owner moves packets: [`Engine::receive`], [`Engine::transmit`] and
/// [`Engine::handle_timeout`] are no verbs.
///
/// Every method is one call of the engine. None blocks, sends a packet, takes a lock or looks at a clock.
pub struct Device<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) now: Instant,
}

impl<'e> Device<'e> {
    /// The verbs of `engine` at `now`, which must not be before the `now` of an earlier call.
    #[inline]
    pub fn new(engine: &'e mut Engine, now: Instant) -> Device<'e> {
        Device { engine, now }
    }

    /// The time it was made for.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The engine, for what is no verb: counters, key table, all queue pairs.
    #[inline]
    pub fn engine(&self) -> &Engine {
        self.engine
    }

    /// The engine, to be changed. Objects that it makes and those that the verbs make are the same: see the `From`
    /// conversions of the handles, and [`find_qp`](Device::find_qp).
    #[inline]
    pub fn engine_mut(&mut self) -> &mut Engine {
        self.engine
    }

    /// What the device can hold at most (`ibv_query_device`).
    #[inline]
    pub fn query_device(&self) -> &EngineConfig {
        self.engine.config()
    }

    /// Makes a protection domain (`ibv_alloc_pd`).
    #[inline]
    pub fn alloc_pd(&mut self) -> ProtectionDomain {
        ProtectionDomain(self.engine.keys_mut().alloc_pd())
    }

    /// Frees a protection domain (`ibv_dealloc_pd`).
    ///
    /// # Errors
    /// [`DeallocPdError::InUse`] while anything is in it, [`DeallocPdError::Unknown`].
    #[inline]
    pub fn dealloc_pd(&mut self, pd: ProtectionDomain) -> Result<(), DeallocPdError> {
        self.engine.keys_mut().dealloc_pd(pd.0)
    }

    /// Makes a shared receive queue in `pd` (`ibv_create_srq`).
    ///
    /// # Errors
    /// [`SrqError::TooMany`], [`SrqError::Limit`], [`SrqError::UnknownPd`].
    #[inline]
    pub fn create_srq(&mut self, pd: ProtectionDomain, attr: SrqInitAttr) -> Result<SharedReceiveQueue, SrqError> {
        self.engine.create_srq(&attr.init(pd)).map(SharedReceiveQueue)
    }

    /// Asks for [`AsyncEvent::SrqLimitReached`], once, when fewer than `limit` receives are left: at once if that is so
    /// already. 0 asks for nothing (`ibv_modify_srq` with `IBV_SRQ_LIMIT`).
    ///
    /// # Errors
    /// [`SrqError::Limit`] when the queue never holds so many, [`SrqError::Unknown`].
    #[inline]
    pub fn modify_srq(&mut self, srq: SharedReceiveQueue, limit: u32) -> Result<(), SrqError> {
        self.engine.modify_srq(srq.0, limit)
    }

    /// How many receives wait in a shared receive queue.
    ///
    /// # Errors
    /// [`SrqError::Unknown`].
    #[inline]
    pub fn query_srq(&self, srq: SharedReceiveQueue) -> Result<u32, SrqError> {
        self.engine.srq_len(srq.0).ok_or(SrqError::Unknown)
    }

    /// Removes a shared receive queue, with the receives in it (`ibv_destroy_srq`).
    ///
    /// # Errors
    /// [`SrqError::InUse`] while queue pairs use it, [`SrqError::Unknown`].
    #[inline]
    pub fn destroy_srq(&mut self, srq: SharedReceiveQueue) -> Result<(), SrqError> {
        self.engine.destroy_srq(srq.0)
    }

    /// Makes an address handle: queue pairs in `pd` can send datagrams along `path` (`ibv_create_ah`). For a multicast
    /// group, `path.dst` is the group and `path.dst_mac` its Ethernet address.
    ///
    /// # Errors
    /// [`AhError::TooMany`], [`AhError::UnknownPd`].
    #[inline]
    pub fn create_ah(&mut self, pd: ProtectionDomain, path: &Path) -> Result<AddressHandle, AhError> {
        self.engine.create_ah(pd.0, path).map(AddressHandle)
    }

    /// Removes an address handle (`ibv_destroy_ah`). Datagrams that were posted with it and are not sent yet fail.
    ///
    /// # Errors
    /// [`AhError::Unknown`].
    #[inline]
    pub fn destroy_ah(&mut self, ah: AddressHandle) -> Result<(), AhError> {
        self.engine.destroy_ah(ah.0)
    }

    /// Takes the oldest event of the device (`ibv_get_async_event`, which waits for one where this returns `None`).
    /// There is nothing to acknowledge.
    #[inline]
    pub fn get_async_event(&mut self) -> Option<AsyncEvent> {
        self.engine.poll_event()
    }
}

impl fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("now", &self.now).finish_non_exhaustive()
    }
}
