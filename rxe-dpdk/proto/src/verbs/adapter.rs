//! The verbs of the engine's owner: completion queues, notifications and events.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::time::Instant;
use crate::transport::{AsyncEvent, CqError, Engine, WorkCompletion};

use super::{CompletionQueue, Device};

/// The verbs of an [`Engine`] for the program that owns it: all of [`Device`], to which it derefs, and what that lacks,
/// because it would bypass a runtime that lends the engine to several programs: completion queues, their notifications,
/// asynchronous events, and the engine itself.
///
/// Use it where your program moves the packets; see [below](super#who-moves-the-packets). A program that a runtime calls,
/// such as a service of rxe-dpdk, gets a [`Device`] and has its completions and events delivered.
///
/// It borrows the engine and holds the current time, so make a new one in each iteration of the loop; that costs nothing.
pub struct Adapter<'e>(Device<'e>);

impl<'e> Adapter<'e> {
    /// The verbs of `engine` at `now`, which must not be before the `now` of an earlier call.
    #[inline]
    pub fn new(engine: &'e mut Engine, now: Instant) -> Adapter<'e> {
        Adapter(Device { engine, now, hooks: None })
    }

    /// The engine, mutably. Its objects and those of the verbs are the same: see the `From` conversions of the handles,
    /// and [`Device::find_qp`].
    #[inline]
    pub fn engine_mut(&mut self) -> &mut Engine {
        self.0.engine
    }

    /// Creates a completion queue for `depth` completions (`ibv_create_cq`).
    ///
    /// Make it as deep as all work requests that may complete to it: a queue pair that finds it full goes to ERROR.
    ///
    /// # Errors
    /// [`CqError::TooMany`], [`CqError::Depth`].
    #[inline]
    pub fn create_cq(&mut self, depth: usize) -> Result<CompletionQueue, CqError> {
        self.0.engine.create_cq(depth).map(CompletionQueue)
    }

    /// Changes the depth of a completion queue (`ibv_resize_cq`).
    ///
    /// # Errors
    /// [`CqError::Occupied`] when more completions wait than `depth`; [`CqError::Depth`], [`CqError::Unknown`].
    #[inline]
    pub fn resize_cq(&mut self, cq: CompletionQueue, depth: usize) -> Result<(), CqError> {
        self.0.engine.resize_cq(cq.0, depth)
    }

    /// Destroys a completion queue, with the completions in it (`ibv_destroy_cq`).
    ///
    /// # Errors
    /// [`CqError::InUse`] while queue pairs complete to it, [`CqError::Unknown`].
    #[inline]
    pub fn destroy_cq(&mut self, cq: CompletionQueue) -> Result<(), CqError> {
        self.0.engine.destroy_cq(cq.0)
    }

    /// Moves up to `max` completions, the oldest first, to the end of `out` (`ibv_poll_cq`). Returns how many: 0 also
    /// for a queue that does not exist. Allocates only when `out` has no room.
    #[inline]
    pub fn poll_cq(&mut self, cq: CompletionQueue, out: &mut Vec<WorkCompletion>, max: usize) -> usize {
        self.0.engine.poll_cq(cq.0, out, max)
    }

    /// Takes the oldest completion (`ibv_poll_cq` with one entry).
    #[inline]
    pub fn poll_cq_one(&mut self, cq: CompletionQueue) -> Option<WorkCompletion> {
        self.0.engine.poll_cq_one(cq.0)
    }

    /// A completion queue that holds completions. Successive calls return different queues if several do. For owners of
    /// many queues; libibverbs has no such call.
    #[inline]
    pub fn poll_ready(&mut self) -> Option<CompletionQueue> {
        self.0.engine.poll_ready().map(CompletionQueue)
    }

    /// Arms a notification of the next completion in a queue, once (`ibv_req_notify_cq`):
    /// [`get_cq_event`](Self::get_cq_event) then returns the queue. With `solicited_only`, only failures and receives
    /// whose sender set the solicited flag count.
    ///
    /// Completions that are already in the queue do not notify. So arm the notification, poll the queue until it is
    /// empty, then wait.
    ///
    /// # Errors
    /// [`CqError::Unknown`].
    #[inline]
    pub fn req_notify_cq(&mut self, cq: CompletionQueue, solicited_only: bool) -> Result<(), CqError> {
        self.0.engine.request_notify(cq.0, solicited_only)
    }

    /// Takes the oldest completion notification (`ibv_get_cq_event`, which blocks where this returns `None`). It needs no
    /// acknowledgement.
    #[inline]
    pub fn get_cq_event(&mut self) -> Option<CompletionQueue> {
        self.0.engine.poll_cq_event().map(CompletionQueue)
    }

    /// Takes the oldest asynchronous event (`ibv_get_async_event`, which blocks where this returns `None`). It needs no
    /// acknowledgement.
    #[inline]
    pub fn get_async_event(&mut self) -> Option<AsyncEvent> {
        self.0.engine.poll_event()
    }
}

impl<'e> Deref for Adapter<'e> {
    type Target = Device<'e>;

    #[inline]
    fn deref(&self) -> &Device<'e> {
        &self.0
    }
}

impl<'e> DerefMut for Adapter<'e> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Device<'e> {
        &mut self.0
    }
}

impl fmt::Debug for Adapter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter").field("now", &self.0.now).finish_non_exhaustive()
    }
}
