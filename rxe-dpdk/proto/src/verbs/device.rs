//! The device: an engine, for one iteration of the owner's loop.

use std::fmt;

use crate::mem::DeallocPdError;
use crate::time::Instant;
use crate::transport::{AhError, Engine, EngineConfig};
use crate::wire::Path;

use super::{AddressHandle, DeviceHooks, ProtectionDomain};

/// The verbs of one [`Engine`] (`ibv_context`), at one point in time.
///
/// This is what programs use. They get it from a runtime, which attaches its [accounting](DeviceHooks) below; a program
/// that owns the engine itself makes an [`Adapter`](super::Adapter), which is a device with completion queues and events.
/// It lives for one call or one iteration of a loop; making it costs nothing.
///
/// Every method is one call of the engine. None blocks, sends a packet, takes a lock or reads a clock.
pub struct Device<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) now: Instant,
    pub(super) hooks: Option<&'e mut dyn DeviceHooks>,
}

impl<'e> Device<'e> {
    /// The verbs of `engine` at `now`, with a runtime's accounting below. `now` must not be before the `now` of an earlier
    /// call.
    #[inline]
    pub fn with_hooks(engine: &'e mut Engine, now: Instant, hooks: &'e mut dyn DeviceHooks) -> Device<'e> {
        Device { engine, now, hooks: Some(hooks) }
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

    /// The limits of the device (`ibv_query_device`).
    #[inline]
    pub fn query_device(&self) -> &EngineConfig {
        self.engine.config()
    }

    /// Allocates a protection domain (`ibv_alloc_pd`).
    #[inline]
    pub fn alloc_pd(&mut self) -> ProtectionDomain {
        ProtectionDomain(self.engine.keys_mut().alloc_pd())
    }

    /// Frees a protection domain (`ibv_dealloc_pd`).
    ///
    /// # Errors
    /// [`DeallocPdError::InUse`] while it holds any object, [`DeallocPdError::Unknown`].
    #[inline]
    pub fn dealloc_pd(&mut self, pd: ProtectionDomain) -> Result<(), DeallocPdError> {
        self.engine.keys_mut().dealloc_pd(pd.0)
    }

    /// Creates an address handle: queue pairs in `pd` can send datagrams along `path` (`ibv_create_ah`). For a multicast
    /// group, `path.dst` is the group and `path.dst_mac` its Ethernet address.
    ///
    /// # Errors
    /// [`AhError::TooMany`], [`AhError::UnknownPd`]; [`AhError::UnknownPort`] where a runtime knows the ports.
    pub fn create_ah(&mut self, pd: ProtectionDomain, path: &Path) -> Result<AddressHandle, AhError> {
        if let Some(hooks) = &mut self.hooks {
            hooks.before_create_ah(path)?;
        }
        self.engine.create_ah(pd.0, path).map(AddressHandle)
    }

    /// Destroys an address handle (`ibv_destroy_ah`). Datagrams that were posted with it and are not sent yet fail.
    ///
    /// # Errors
    /// [`AhError::Unknown`].
    #[inline]
    pub fn destroy_ah(&mut self, ah: AddressHandle) -> Result<(), AhError> {
        self.engine.destroy_ah(ah.0)
    }
}

impl fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("now", &self.now).finish_non_exhaustive()
    }
}
