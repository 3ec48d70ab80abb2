//! A service's interface to its worker: its device, and what is no verb: memory, connections, timers, TCP streams.

pub(crate) mod accounting;
mod instances;
pub(crate) mod lease;
mod outbound;

use rxe_proto::cm::ConnId;
use rxe_proto::mem::{AllocError, Allocator, Memory};
use rxe_proto::verbs::{AnyQueuePair, CompletionQueue, Device, Engine, QpInitAttr, WorkCompletion};
use rxe_proto::wire::{PortId, Psn};
use rxe_proto::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::mpsc::Sender;

use crate::ledger::{BudgetId, Ledger};
use crate::local_port::LocalPort;
use crate::messages::{InstanceMessage, StreamId, ToControl, ToWorker};
use crate::regions::NamedRegion;
use crate::reserve::Reserve;
use crate::seeds::Seeds;
use accounting::Accounting;

/// Timers of the services of one worker.
#[derive(Debug, Default)]
pub(crate) struct ServiceTimers(BinaryHeap<Reverse<(Instant, usize, u64)>>);

impl ServiceTimers {
    /// Number of timers.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((when, ..))| *when)
    }

    /// The next one that is due at `now`: its service and token.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(usize, u64)> {
        let Reverse((when, service, token)) = *self.0.peek()?;
        if when > now {
            return None;
        }
        self.0.pop();
        Some((service, token))
    }
}

/// A service's interface to its worker; see the [crate documentation](crate).
///
/// Verbs are methods of its [`device`](Context::device). The rest is here.
pub struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) engine: &'a mut Engine,
    /// The called service, and the runtime's records of its objects.
    pub(crate) accounting: Accounting<'a>,
    /// Source of starting PSNs.
    pub(crate) psns: &'a mut Seeds,
    pub(crate) allocator: &'a dyn Allocator,
    pub(crate) ledger: &'a mut Ledger,
    /// The worker's budget of bytes.
    pub(crate) memory_budget: BudgetId,
    pub(crate) reserve: &'a mut Reserve,
    pub(crate) regions: &'a [NamedRegion],
    pub(crate) timers: &'a mut ServiceTimers,
    /// The mailboxes of all workers.
    pub(crate) workers: &'a [Sender<ToWorker>],
    /// Messages of this worker's instances to themselves.
    pub(crate) own_messages: &'a mut VecDeque<InstanceMessage>,
}

impl Context<'_> {
    /// The time of this iteration of the loop.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The number of this worker, from 0.
    pub fn worker(&self) -> usize {
        self.accounting.worker
    }

    /// Our ports, by number.
    pub fn ports(&self) -> &[LocalPort] {
        self.accounting.ports
    }

    /// One of our ports.
    pub fn port(&self, port: PortId) -> Option<&LocalPort> {
        self.accounting.ports.get(usize::from(port.0))
    }

    /// The verbs of this worker's device.
    ///
    /// Objects belong to the service: their completions and events are delivered to it. A queue pair in INIT, from
    /// [`create_qp_in_init`](Device::create_qp_in_init), goes into a [`Decision`](crate::service::Decision) or to
    /// [`connect`](Context::connect), and the runtime connects and destroys it. One whose peer is found by other means is
    /// the service's to connect and to destroy.
    ///
    /// The device refuses ports that do not exist (`port_num`), completion queues other than [`cq`](Context::cq), and
    /// objects for which that cannot be made deep enough.
    #[inline]
    pub fn device(&mut self) -> Device<'_> {
        Device::with_hooks(self.engine, self.now, &mut self.accounting)
    }

    /// The completion queue of this service on this worker. The runtime polls it, and keeps it deep enough for all of the
    /// service's objects.
    #[inline]
    pub fn cq(&self) -> CompletionQueue {
        self.accounting.cq.cq.into()
    }

    /// Attributes of a queue pair that completes to [`cq`](Context::cq); change what differs.
    #[inline]
    pub fn qp_attr(&self) -> QpInitAttr {
        QpInitAttr::new(self.cq())
    }

    /// The name of a queue pair in logs and reports, where it is not that of the service: for services that are several
    /// in one.
    pub fn set_name(&mut self, qp: impl Into<AnyQueuePair>, name: &'static str) {
        self.accounting.set_name(self.engine, qp.into().qpn(), name);
    }

    /// Whether the queue pair of a completion still exists: the service may have destroyed it since.
    #[inline]
    pub fn has_qp_of(&self, wc: &WorkCompletion) -> bool {
        self.accounting.has_qp(wc.qpn)
    }

    /// A packet sequence number to start with that peers cannot guess.
    pub fn random_psn(&mut self) -> Psn {
        self.psns.psn()
    }

    /// `len` zeroed bytes for regions of the service itself, on hugepages where the adapter has them. What a client takes
    /// is [lent](Context::lend).
    pub fn alloc_memory(&mut self, len: usize) -> Result<Memory, AllocError> {
        self.allocator.allocate(len)
    }

    /// The source of [`alloc_memory`](Context::alloc_memory).
    pub fn allocator(&self) -> &dyn Allocator {
        self.allocator
    }

    /// The named regions, in the order of the configuration.
    pub fn regions(&self) -> &[NamedRegion] {
        self.regions
    }

    /// Ends a connection; [`Service::disconnected`](crate::service::Service::disconnected) follows.
    pub fn disconnect(&mut self, conn: ConnId) {
        self.tell(ToControl::Disconnect { conn });
    }

    /// Calls [`Service::timer`](crate::service::Service::timer) with `token` once, when `after` has passed.
    pub fn set_timer(&mut self, after: Duration, token: u64) {
        self.timers.0.push(Reverse((self.now + after, self.accounting.service, token)));
    }

    /// Sends bytes on a stream. Up to 1,460 bytes of one call leave as one TCP segment.
    pub fn stream_send(&mut self, stream: StreamId, data: &[u8]) {
        self.tell(ToControl::StreamSend { stream, data: data.to_vec() });
    }

    /// Closes a stream after what was sent.
    pub fn stream_close(&mut self, stream: StreamId) {
        self.tell(ToControl::StreamClose { stream });
    }

    /// Resets a stream: its peer gets an error, and nothing that was not sent yet. The service's
    /// [`stream_closed`](crate::service::Service::stream_closed) follows.
    pub fn stream_reset(&mut self, stream: StreamId) {
        self.tell(ToControl::StreamReset { stream });
    }

    fn tell(&self, message: ToControl) {
        // The control side outlives the workers' loops; after it no recipient is left.
        let _ = self.accounting.outbox.send(message);
    }
}
