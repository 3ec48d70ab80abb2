//! What a service may do besides [verbs]: memory, connections, timers, TCP streams.

mod outbound;
pub mod verbs;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::mpsc::Sender;

use rxe_proto::cm::ConnId;
use rxe_proto::mem::{Access, AllocError, Allocator, Memory, MemoryRegion, PdId, RegisterError};
use rxe_proto::transport::Engine;
use rxe_proto::wire::PortId;
use rxe_proto::{Duration, Instant};

use crate::local_port::LocalPort;
use crate::messages::{StreamId, ToControl};
use crate::regions::NamedRegion;
use crate::seeds::Seeds;
use verbs::{Objects, ServiceCq};

/// Timers of the services of one worker.
#[derive(Debug, Default)]
pub(crate) struct ServiceTimers(BinaryHeap<Reverse<(Instant, usize, u64)>>);

impl ServiceTimers {
    /// How many are set.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
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

/// A service's hands: see the [module documentation of `service`](crate::service).
pub struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) worker: usize,
    pub(crate) service: usize,
    pub(crate) engine: &'a mut Engine,
    pub(crate) cq: &'a mut ServiceCq,
    pub(crate) objects: &'a mut Objects,
    /// Where starting PSNs come from.
    pub(crate) psns: &'a mut Seeds,
    pub(crate) ports: &'a [LocalPort],
    pub(crate) allocator: &'a dyn Allocator,
    pub(crate) regions: &'a [NamedRegion],
    pub(crate) outbox: &'a Sender<ToControl>,
    pub(crate) timers: &'a mut ServiceTimers,
}

impl Context<'_> {
    /// The time of this turn of the loop.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The number of this worker, from 0.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Our ports, by number.
    pub fn ports(&self) -> &[LocalPort] {
        self.ports
    }

    /// One of our ports.
    pub fn port(&self, port: PortId) -> Option<&LocalPort> {
        self.ports.get(usize::from(port.0))
    }

    /// A new protection domain.
    pub fn alloc_pd(&mut self) -> PdId {
        self.engine.keys_mut().alloc_pd()
    }

    /// Gives a protection domain back; one that still has regions stays (and `false` is returned).
    pub fn dealloc_pd(&mut self, pd: PdId) -> bool {
        self.engine.keys_mut().dealloc_pd(pd).is_ok()
    }

    /// `len` zeroed bytes on hugepages.
    pub fn alloc_memory(&mut self, len: usize) -> Result<Memory, AllocError> {
        self.allocator.allocate(len)
    }

    /// Makes `memory` reachable under a new key. Its address (the first byte's IO virtual address) is the address of
    /// the memory itself, so that regions never overlap.
    pub fn register(&mut self, pd: PdId, memory: Memory, access: Access) -> Result<MemoryRegion, RegisterError> {
        let iova = memory.as_ptr() as u64;
        self.engine.keys_mut().register(pd, memory, iova, access)
    }

    /// Takes a region's key back. Packets that still name it are refused from now on.
    pub fn deregister(&mut self, region: &MemoryRegion) {
        // A key that is gone already is what the caller wants.
        let _ = self.engine.keys_mut().deregister(region.rkey());
    }

    /// The regions named on the command line, in its order.
    pub fn regions(&self) -> &[NamedRegion] {
        self.regions
    }

    /// Ends a connection; [`Service::disconnected`](crate::service::Service::disconnected) follows.
    pub fn disconnect(&mut self, conn: ConnId) {
        self.tell(ToControl::Disconnect { conn });
    }

    /// Calls [`Service::timer`](crate::service::Service::timer) with `token` once, when `after` has passed.
    pub fn set_timer(&mut self, after: Duration, token: u64) {
        self.timers.0.push(Reverse((self.now + after, self.service, token)));
    }

    /// Sends bytes on a stream. At most 1,460 bytes given at once leave as one TCP segment.
    pub fn stream_send(&mut self, stream: StreamId, data: &[u8]) {
        self.tell(ToControl::StreamSend { stream, data: data.to_vec() });
    }

    /// Closes a stream after what was sent.
    pub fn stream_close(&mut self, stream: StreamId) {
        self.tell(ToControl::StreamClose { stream });
    }

    fn tell(&self, message: ToControl) {
        // The control side outlives the workers' loops; after it nobody is left to care.
        let _ = self.outbox.send(message);
    }
}
