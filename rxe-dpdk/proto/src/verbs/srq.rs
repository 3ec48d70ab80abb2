//! Shared receive queues.

use crate::transport::{SrqAttr, SrqError, SrqInfo, SrqInit};

use super::{Device, ProtectionDomain, SharedReceiveQueue};

/// Attributes of a new shared receive queue (`ibv_srq_init_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInitAttr {
    /// Outstanding receives.
    pub max_wr: u32,
    /// Buffers of one receive.
    pub max_sge: u32,
    /// Limit as in [`SrqAttr::srq_limit`]; 0 is none.
    pub srq_limit: u32,
}

impl Default for SrqInitAttr {
    /// 16 receives of one buffer each, no limit.
    fn default() -> SrqInitAttr {
        SrqInitAttr { max_wr: 16, max_sge: 1, srq_limit: 0 }
    }
}

impl SrqInitAttr {
    pub(super) fn init(self, pd: ProtectionDomain) -> SrqInit {
        SrqInit { pd: pd.0, max_wr: self.max_wr, max_sge: self.max_sge, limit: self.srq_limit }
    }
}

impl Device<'_> {
    /// Creates a shared receive queue in `pd` (`ibv_create_srq`).
    ///
    /// # Errors
    /// [`SrqError::TooMany`], [`SrqError::Limit`], [`SrqError::UnknownPd`].
    pub fn create_srq(&mut self, pd: ProtectionDomain, attr: SrqInitAttr) -> Result<SharedReceiveQueue, SrqError> {
        let init = attr.init(pd);
        if let Some(hooks) = &mut self.hooks {
            hooks.before_create_srq(self.engine, &init)?;
        }
        let srq = self.engine.create_srq(&init)?;
        if let Some(hooks) = &mut self.hooks {
            hooks.srq_created(srq, &init);
        }
        Ok(SharedReceiveQueue(srq))
    }

    /// Changes the size of a shared receive queue, or arms
    /// [`AsyncEvent::SrqLimitReached`](super::AsyncEvent::SrqLimitReached), or both (`ibv_modify_srq`).
    ///
    /// # Errors
    /// [`SrqError::Occupied`] when more receives are posted than the new size holds, [`SrqError::Limit`] when the queue
    /// never holds as many as the limit, [`SrqError::Unknown`]. The queue is unchanged then.
    pub fn modify_srq(&mut self, srq: SharedReceiveQueue, attr: SrqAttr) -> Result<(), SrqError> {
        if let Some(hooks) = &mut self.hooks {
            hooks.before_modify_srq(self.engine, srq.0, &attr)?;
        }
        self.engine.modify_srq(srq.0, attr)?;
        if let Some(hooks) = &mut self.hooks {
            hooks.srq_modified(srq.0, &attr);
        }
        Ok(())
    }

    /// Attributes of a shared receive queue, and how many receives wait in it (`ibv_query_srq`).
    ///
    /// # Errors
    /// [`SrqError::Unknown`].
    #[inline]
    pub fn query_srq(&self, srq: SharedReceiveQueue) -> Result<SrqInfo, SrqError> {
        self.engine.query_srq(srq.0).ok_or(SrqError::Unknown)
    }

    /// Destroys a shared receive queue, with the receives in it (`ibv_destroy_srq`).
    ///
    /// # Errors
    /// [`SrqError::InUse`] while queue pairs use it, [`SrqError::Unknown`].
    pub fn destroy_srq(&mut self, srq: SharedReceiveQueue) -> Result<(), SrqError> {
        self.engine.destroy_srq(srq.0)?;
        if let Some(hooks) = &mut self.hooks {
            hooks.srq_destroyed(srq.0);
        }
        Ok(())
    }
}
