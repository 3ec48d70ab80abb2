//! Rings that carry packets from one lcore to another.

use std::ffi::CString;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use dpdk_sys::{rte_mbuf, rte_ring};

use super::burst::{BURST, RxBurst};
use super::error::{EalError, Errno};
use super::init::{Eal, EalGuard};
use super::mempool::Mempool;

/// Both ends of a new ring: one sender per producing lcore, and the one receiver.
#[derive(Debug)]
pub struct MbufRing {
    /// As many as requested.
    pub senders: Vec<MbufSender>,
    /// The end that packets come out of, in the order in which each sender put them in.
    pub receiver: MbufReceiver,
}

/// The end that packets go into. One thread at a time uses a sender.
#[derive(Debug)]
pub struct MbufSender {
    ring: Arc<Ring>,
    alone: bool,
}

/// The end that packets come out of. One thread at a time uses it.
#[derive(Debug)]
pub struct MbufReceiver {
    ring: Arc<Ring>,
}

struct Ring {
    ring: NonNull<rte_ring>,
    _eal: Arc<EalGuard>,
}

// SAFETY: the ends enforce how many threads use which side: a lone sender takes `&mut self` and is the only one, more
// than one use the multi-producer call, and there is one receiver, which takes `&mut self`.
unsafe impl Send for Ring {}
// SAFETY: as for Send.
unsafe impl Sync for Ring {}

impl MbufRing {
    /// A ring that holds `capacity` packets, with `senders` sending ends.
    ///
    /// # Errors
    ///
    /// [`EalError::NoMemory`] when DPDK has no room, or the capacity is 0 or beyond 2^31.
    pub fn new(eal: &Eal, capacity: usize, senders: usize) -> Result<MbufRing, EalError> {
        let failed = |errno| EalError::NoMemory { what: format!("a ring of {capacity} packets"), errno };
        let size = u32::try_from(capacity).ok().filter(|size| *size > 0).ok_or_else(|| failed(Errno(libc::EINVAL)))?;
        let name = CString::new(eal.guard().unique_name("ring")).map_err(|_| failed(Errno(libc::EINVAL)))?;
        let alone = senders == 1;
        let one_in = if alone { dpdk_sys::RXE_RING_F_SP_ENQ } else { 0 };
        let flags = one_in | dpdk_sys::RXE_RING_F_SC_DEQ | dpdk_sys::RXE_RING_F_EXACT_SZ;
        // SAFETY: EAL is initialised; the name is a C string that is copied.
        let ring = unsafe { dpdk_sys::rte_ring_create(name.as_ptr(), size, dpdk_sys::RXE_SOCKET_ID_ANY, flags) };
        let ring = NonNull::new(ring).ok_or_else(|| failed(Errno::last()))?;
        let ring = Arc::new(Ring { ring, _eal: Arc::clone(eal.guard()) });
        let senders = (0..senders).map(|_| MbufSender { ring: Arc::clone(&ring), alone }).collect();
        Ok(MbufRing { senders, receiver: MbufReceiver { ring } })
    }
}

impl MbufSender {
    /// Moves packets from the front of `burst` into the ring, as many as fit, and returns how many. The rest stays in
    /// the burst; gaps that taken packets left are closed.
    #[inline]
    pub fn send(&mut self, burst: &mut RxBurst) -> usize {
        let ring = self.ring.ring.as_ptr();
        // SAFETY: the ring takes over as many of the mbufs as it reports. It lives through our Arc, and `alone` says
        // which of the two calls its producers agreed on.
        unsafe {
            burst.drain(|mbufs, count| {
                let enqueue =
                    if self.alone { dpdk_sys::rxe_ring_sp_enqueue_burst } else { dpdk_sys::rxe_ring_mp_enqueue_burst };
                enqueue(ring, mbufs.cast(), count as u32) as usize
            })
        }
    }
}

impl MbufReceiver {
    /// Replaces what is in `burst` by up to [`BURST`] packets of the ring; returns how many.
    #[inline]
    pub fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let ring = self.ring.ring.as_ptr();
        // SAFETY: the ring hands over what the senders put in: owned one-segment mbufs. This is its only consumer.
        unsafe {
            burst.fill(|mbufs, count| dpdk_sys::rxe_ring_sc_dequeue_burst(ring, mbufs.cast(), count as u32) as usize)
        }
    }

    /// Number of packets in the ring.
    pub fn len(&self) -> usize {
        // SAFETY: a live ring; reads its indices.
        unsafe { dpdk_sys::rxe_ring_count(self.ring.ring.as_ptr()) as usize }
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut mbufs: [*mut rte_mbuf; BURST] = [ptr::null_mut(); BURST];
        loop {
            // SAFETY: all ends are gone, so this is the only user; what comes out is ours to free.
            unsafe {
                let count =
                    dpdk_sys::rxe_ring_sc_dequeue_burst(self.ring.as_ptr(), mbufs.as_mut_ptr().cast(), BURST as u32);
                if count == 0 {
                    break;
                }
                Mempool::free(&mut mbufs[..(count as usize).min(BURST)]);
            }
        }
        // SAFETY: from rte_ring_create, freed once.
        unsafe { dpdk_sys::rte_ring_free(self.ring.as_ptr()) };
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ring")
    }
}
