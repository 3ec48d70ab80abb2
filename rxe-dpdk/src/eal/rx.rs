//! Receiving.

use std::fmt;
use std::sync::Arc;

use dpdk_sys::rte_mbuf;
use rxe_proto::wire::PortId;

use super::burst::RxBurst;
use super::mbuf;
use super::mempool::Mempool;
use super::port_inner::PortInner;

rxe_proto::counters! {
    /// Counters of one receive queue. Written by the queue's owner alone.
    pub struct RxStats {
        /// Frames handed to the adapter.
        frames,
        /// Their bytes.
        bytes,
        /// Frames that the driver spread over several buffers and that were copied together.
        linearised,
        /// Frames dropped because they came in several buffers and do not fit into one.
        scattered,
    }
}

/// A receive queue of a started port. It has one owner at a time.
pub struct RxQueue {
    port: u16,
    queue: u16,
    stats: Arc<RxStats>,
    /// Not in use: the device may be gone.
    parked: bool,
    started: Arc<PortInner>,
}

impl RxQueue {
    pub(super) fn new(port: Arc<PortInner>, queue: u16) -> RxQueue {
        // A port that has just been started has its device.
        let parked = !port.queues().enter();
        RxQueue { port: port.id(), queue, stats: Arc::default(), parked, started: port }
    }

    /// The queue's port.
    pub fn port(&self) -> PortId {
        PortId(self.port)
    }

    /// The queue's number on its port.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// The pool that its frames come from.
    pub fn pool(&self) -> &Mempool {
        self.started.pool()
    }

    /// The queue's counters.
    pub fn stats(&self) -> &Arc<RxStats> {
        &self.stats
    }

    /// Receives nothing from now on, so that the device can be made again ([`Reattach`](super::Reattach)).
    pub fn park(&mut self) {
        if !std::mem::replace(&mut self.parked, true) {
            self.started.queues().leave();
        }
    }

    /// Ends [`park`](Self::park). False when the device is gone.
    pub fn resume(&mut self) -> bool {
        self.parked = self.parked && !self.started.queues().enter();
        !self.parked
    }

    /// Replaces what is in `out` by what has arrived, up to [`BURST`](super::BURST) frames; returns how many. Each
    /// lies in one buffer, whose first bytes are on their way into the cache.
    #[inline]
    pub fn burst(&mut self, out: &mut RxBurst) -> usize {
        let (port, queue, stats) = (self.port, self.queue, &self.stats);
        if self.parked {
            out.clear();
            return 0;
        }
        // SAFETY: the port is started and stays so while we hold it and are not parked, and this is the only RxQueue of that number. The
        // driver hands over live mbufs with one reference; those with several segments are sorted out below.
        unsafe {
            out.fill(|mbufs, room| {
                let count = usize::from(dpdk_sys::rxe_eth_rx_burst(port, queue, mbufs, room as u16));
                let mut kept = 0;
                let mut bytes = 0;
                for i in 0..count {
                    let raw = *mbufs.add(i);
                    mbuf::prefetch_data(raw);
                    if (*mbuf::view(raw)).nb_segs != 1 && !linearise(raw, stats) {
                        continue;
                    }
                    // Not every driver sets the port, which a worker needs that gets the frame by hand-off.
                    (*mbuf::view(raw)).port = port;
                    bytes += mbuf::len(raw);
                    *mbufs.add(kept) = raw;
                    kept += 1;
                }
                if kept > 0 {
                    stats.frames.add(kept as u64);
                    stats.bytes.add(bytes as u64);
                }
                kept
            })
        }
    }
}

/// Copies a frame of several segments into the first one, or drops it when that is too small. Buffers are sized so
/// that no frame of the port's MTU needs this, except where a driver has a buffer size of its own (net_memif).
///
/// # Safety
///
/// `raw` is a live mbuf that the caller owns; it is gone when this returns `false`.
#[cold]
unsafe fn linearise(raw: *mut rte_mbuf, stats: &RxStats) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        if dpdk_sys::rxe_pktmbuf_linearize(raw) == 0 {
            stats.linearised.inc();
            return true;
        }
        dpdk_sys::rxe_pktmbuf_free(raw);
    }
    stats.scattered.inc();
    false
}

impl Drop for RxQueue {
    fn drop(&mut self) {
        self.park();
    }
}

impl fmt::Debug for RxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RxQueue({}/{})", self.port, self.queue)
    }
}
