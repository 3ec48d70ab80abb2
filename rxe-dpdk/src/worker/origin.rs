//! Where a burst of received frames comes from: a port's queue, or the ring of another worker.

use rxe_adapter::worker::dispatch::{Dispatcher, Origin};
use rxe_adapter::worker::injector::Injector;
use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, PortId};

use super::handoff::HandOff;
use super::port_host::PortHost;
use crate::eal::{Mbuf, Mempool, RxBurst};

/// The dispatcher of a worker on DPDK ports.
pub(crate) type PortDispatcher = Dispatcher<PortHost>;

/// A port's receive queue.
pub(crate) struct FromPort<'a> {
    pub(crate) port: PortId,
    /// Rings towards the other workers, by worker number.
    pub(crate) rings: &'a mut [Option<HandOff>],
    /// Buffers for copies of multicast frames.
    pub(crate) pool: &'a Mempool,
}

impl FromPort<'_> {
    fn ring(&mut self, worker: usize) -> Option<&mut HandOff> {
        self.rings.get_mut(worker).and_then(Option::as_mut)
    }
}

impl Origin<RxBurst> for FromPort<'_> {
    const IS_PORT: bool = true;

    #[inline]
    fn port(&self, _: &RxBurst, _: usize) -> PortId {
        self.port
    }

    #[inline]
    fn enqueue(&mut self, burst: &mut RxBurst, index: usize, worker: usize) -> Result<(), DropReason> {
        let enqueued = self.ring(worker).is_some_and(|ring| ring.enqueue(burst, index));
        if enqueued { Ok(()) } else { Err(DropReason::HandoffFull) }
    }

    #[inline]
    fn enqueue_copy(&mut self, burst: &RxBurst, index: usize, worker: usize) -> bool {
        let copy = burst.copy(index, self.pool);
        copy.zip(self.ring(worker)).is_some_and(|(copy, ring)| ring.enqueue_mbuf(copy))
    }
}

/// The ring into this worker.
pub(crate) struct FromWorkers;

impl Origin<RxBurst> for FromWorkers {
    const IS_PORT: bool = false;

    #[inline]
    fn port(&self, burst: &RxBurst, index: usize) -> PortId {
        PortId(burst.port(index))
    }

    /// The worker that received the frame read the same QPN, so the frame can belong elsewhere only if this worker has
    /// left the frame's multicast group in between.
    #[inline]
    fn enqueue(&mut self, _: &mut RxBurst, _: usize, _: usize) -> Result<(), DropReason> {
        Err(DropReason::QpnUnknown)
    }

    #[inline]
    fn enqueue_copy(&mut self, _: &RxBurst, _: usize, _: usize) -> bool {
        false
    }
}

/// Sends the frames that dispatch has enqueued for other workers.
pub(crate) fn flush_rings(dispatcher: &mut PortDispatcher, now: Instant, rings: &mut [Option<HandOff>]) {
    for ring in rings.iter_mut().flatten() {
        ring.flush(|port, frame| dispatcher.drop_unrouted(now, port, frame, DropReason::HandoffFull));
    }
}

/// Dispatches the frames that the injector releases by `due`. Returns whether there were any. `burst` is empty.
pub(crate) fn dispatch_due(
    dispatcher: &mut PortDispatcher,
    now: Instant,
    due: Instant,
    origin: &mut FromPort<'_>,
    injector: &mut Injector<Mbuf>,
    burst: &mut RxBurst,
) -> bool {
    let mut any = false;
    loop {
        while !burst.is_full()
            && let Some(mbuf) = injector.next(due)
        {
            // It is not full.
            let _ = burst.push(mbuf);
        }
        if burst.is_empty() {
            return any;
        }
        any = true;
        dispatcher.dispatch(now, origin, burst);
    }
}
