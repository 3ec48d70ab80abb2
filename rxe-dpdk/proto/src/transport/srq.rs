//! Shared receive queues.

use crate::mem::PdId;

use super::recv_queue::RecvQueue;
use super::{PostError, RecvWr, SrqId};

/// Attributes for creating a shared receive queue (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct SrqInit {
    /// Protection domain of the buffers.
    pub pd: PdId,
    /// Outstanding receives.
    pub max_wr: u32,
    /// Buffers of one receive.
    pub max_sge: u32,
    /// Limit as in [`SrqAttr::srq_limit`]; 0 is none.
    pub limit: u32,
}

/// Changes of a shared receive queue (`ibv_srq_attr` with its mask); what is `None` stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SrqAttr {
    /// Outstanding receives (`IBV_SRQ_MAX_WR`): at least those that are posted, and the limit.
    pub max_wr: Option<u32>,
    /// Arms [`SrqLimitReached`](super::AsyncEvent::SrqLimitReached) (`IBV_SRQ_LIMIT`): raised once, when fewer receives
    /// than this are left, or at once if that is so already; 0 disarms it.
    pub srq_limit: Option<u32>,
}

impl SrqAttr {
    /// Arms the limit event, or disarms it with 0.
    pub const fn limit(srq_limit: u32) -> SrqAttr {
        SrqAttr { max_wr: None, srq_limit: Some(srq_limit) }
    }

    /// Changes the size.
    pub const fn size(max_wr: u32) -> SrqAttr {
        SrqAttr { max_wr: Some(max_wr), srq_limit: None }
    }
}

/// Attributes and fill of a shared receive queue, as queried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInfo {
    /// Protection domain of the buffers.
    pub pd: PdId,
    /// Outstanding receives that it holds.
    pub max_wr: u32,
    /// Buffers of one receive.
    pub max_sge: u32,
    /// The limit, while it is armed; 0 otherwise.
    pub srq_limit: u32,
    /// Receives posted and not taken yet.
    pub queued: u32,
}

/// Why a shared receive queue could not be made, changed or removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SrqError {
    /// The engine holds no more shared receive queues.
    #[error("no more shared receive queues: the limit is {0}")]
    TooMany(u32),
    /// A size or the limit is out of range.
    #[error("{name} is {value}, it must be 1 to {limit}")]
    Limit {
        /// Name of the attribute, in verbs terms.
        name: &'static str,
        /// The requested value.
        value: u32,
        /// The most there can be.
        limit: u32,
    },
    /// There is no such protection domain here.
    #[error("no such protection domain")]
    UnknownPd,
    /// There is no such shared receive queue here.
    #[error("no such shared receive queue")]
    Unknown,
    /// More receives are posted than the new size holds.
    #[error("{0} receives are posted, more than the new size holds")]
    Occupied(u32),
    /// Queue pairs still take receives from it.
    #[error("{0} queue pairs still use it")]
    InUse(u32),
}

#[derive(Debug)]
struct Srq {
    id: SrqId,
    pd: PdId,
    queue: RecvQueue,
    max_sge: u32,
    max_wr: u32,
    /// The limit event is due when fewer receives than this are left; 0 is never.
    limit: u32,
    users: u32,
}

/// Outcome of taking a receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// The queue is empty.
    None,
    /// There was one.
    One,
    /// There was one, and fewer than the limit are left now.
    OneBelowLimit,
}

/// The shared receive queues of one engine. The low 16 bits of a [`SrqId`] are an index, the rest
/// distinguishes successive queues with that index.
#[derive(Debug)]
pub(super) struct SrqTable {
    slots: Vec<Option<Srq>>,
    created: u32,
    max: u32,
}

impl SrqTable {
    pub(super) fn new(max: u32) -> SrqTable {
        SrqTable { slots: Vec::new(), created: 0, max }
    }

    pub(super) fn create(&mut self, init: &SrqInit) -> Result<SrqId, SrqError> {
        let index = match self.slots.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.slots.len() >= self.max as usize => return Err(SrqError::TooMany(self.max)),
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        let id = SrqId(self.created << 16 | index as u32);
        self.created = self.created.wrapping_add(1);
        let SrqInit { pd, max_wr, max_sge, limit } = *init;
        self.slots[index] =
            Some(Srq { id, pd, queue: RecvQueue::new(max_wr, max_sge), max_sge, max_wr, limit, users: 0 });
        Ok(id)
    }

    /// Shared receive queues in use.
    pub(super) fn count(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Returns the protection domain of the removed queue.
    pub(super) fn destroy(&mut self, id: SrqId) -> Result<PdId, SrqError> {
        let srq = self.get_mut(id).ok_or(SrqError::Unknown)?;
        if srq.users != 0 {
            return Err(SrqError::InUse(srq.users));
        }
        let pd = srq.pd;
        self.slots[usize::from(id.0 as u16)] = None;
        Ok(pd)
    }

    /// Changes size and limit, or neither. Returns whether the limit event is due at once.
    pub(super) fn modify(&mut self, id: SrqId, attr: SrqAttr, largest: u32) -> Result<bool, SrqError> {
        let srq = self.get_mut(id).ok_or(SrqError::Unknown)?;
        let (max_wr, limit) = (attr.max_wr.unwrap_or(srq.max_wr), attr.srq_limit.unwrap_or(srq.limit));
        if max_wr == 0 || max_wr > largest {
            return Err(SrqError::Limit { name: "max_wr", value: max_wr, limit: largest });
        }
        if limit > max_wr {
            return Err(SrqError::Limit { name: "srq_limit", value: limit, limit: max_wr });
        }
        // compliance.md [SRQ-RESIZE]: A shared receive queue can be resized while it is in use, but never below the
        // receives in it and its limit.
        if max_wr < srq.queue.len() {
            return Err(SrqError::Occupied(srq.queue.len()));
        }
        if max_wr != srq.max_wr {
            srq.queue.resize(max_wr);
            srq.max_wr = max_wr;
        }
        let Some(limit) = attr.srq_limit else { return Ok(false) };
        srq.limit = limit;
        Ok(srq.is_below_limit())
    }

    /// Counts a queue pair that uses it. Returns its protection domain and the buffers of one receive.
    pub(super) fn attach(&mut self, id: SrqId) -> Option<(PdId, u32)> {
        let srq = self.get_mut(id)?;
        srq.users += 1;
        Some((srq.pd, srq.max_sge))
    }

    pub(super) fn detach(&mut self, id: SrqId) {
        if let Some(srq) = self.get_mut(id) {
            srq.users -= 1;
        }
    }

    pub(super) fn post(&mut self, id: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.get_mut(id).ok_or(PostError::UnknownSrq)?.queue.push(wr)
    }

    /// Attributes and fill.
    pub(super) fn info(&self, id: SrqId) -> Option<SrqInfo> {
        let srq = self.get(id)?;
        let Srq { pd, max_wr, max_sge, limit, .. } = *srq;
        Some(SrqInfo { pd, max_wr, max_sge, srq_limit: limit, queued: srq.queue.len() })
    }

    /// Receives that can be posted now.
    #[inline]
    pub(super) fn room(&self, id: SrqId) -> Option<u32> {
        self.get(id).map(|srq| srq.queue.room())
    }

    /// Moves the oldest receive into `rq`, which is empty.
    #[inline]
    pub(super) fn take(&mut self, id: SrqId, rq: &mut RecvQueue) -> Taken {
        let Some(srq) = self.get_mut(id) else { return Taken::None };
        // compliance.md [SRQ-TAKE]: A queue pair takes a receive with the first packet of a message that needs one, and
        // keeps it until the message ends.
        if !rq.take_from(&mut srq.queue) {
            // compliance.md [SRQ-EMPTY]: An empty shared receive queue is a receiver that is not ready.
            return Taken::None;
        }
        if srq.is_below_limit() { Taken::OneBelowLimit } else { Taken::One }
    }

    #[inline]
    fn get(&self, id: SrqId) -> Option<&Srq> {
        self.slots.get(usize::from(id.0 as u16))?.as_ref().filter(|srq| srq.id == id)
    }

    #[inline]
    fn get_mut(&mut self, id: SrqId) -> Option<&mut Srq> {
        self.slots.get_mut(usize::from(id.0 as u16))?.as_mut().filter(|srq| srq.id == id)
    }
}

impl Srq {
    /// Whether the limit event is due. If so, it is disarmed: one event each time it is armed.
    #[inline]
    fn is_below_limit(&mut self) -> bool {
        // compliance.md [SRQ-LIMIT]: The limit event is raised once each time that it is armed, when fewer receives
        // than the limit are left.
        let below = self.queue.len() < self.limit;
        if below {
            self.limit = 0;
        }
        below
    }
}
