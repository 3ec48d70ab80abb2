//! Sending.

use std::fmt;
use std::ptr;
use std::slice;
use std::sync::Arc;

use dpdk_sys::rte_mbuf;
use rxe_proto::wire::{PortId, Seal};

use super::burst::BURST;
use super::mbuf::{self, Mbuf};
use super::mempool::Mempool;
use super::port_inner::PortInner;

/// The shortest Ethernet frame without its checksum. Shorter ones are padded with zeros here: software ports do not.
pub const MIN_FRAME: usize = 60;

/// Frames that a stage holds before `push` refuses: what the port has not taken yet.
pub(super) const STAGE: usize = 2 * BURST;

/// Free buffers that a stage keeps, so that the pool is accessed once per burst.
pub(super) const SPARES: usize = BURST;

/// Prefetch distance of buffers to write, in frames; a core tracks about a dozen outstanding misses.
const AHEAD: usize = 4;

/// A callback for the frames of a transmit queue, just before they are sent.
pub trait TxTap: Send {
    /// The next frame, as it leaves.
    fn see(&mut self, frame: &[u8]);
}

/// A tap, and how many of the frames that wait it has seen.
struct Tapped {
    tap: Box<dyn TxTap>,
    seen: usize,
}

rxe_proto::counters! {
    /// Counters of one transmit queue. Written by the queue's owner alone.
    pub struct TxStats {
        /// Frames that the port took.
        frames,
        /// Bytes of frames staged, padding included.
        bytes,
        /// Times the port took less than it was given.
        port_full,
        /// Frames not staged because the stage was full and the port took nothing.
        stage_full,
        /// Frames not staged because the pool had no buffer.
        pool_empty,
        /// Frames not staged because they are longer than the port's buffers: an error of the caller.
        oversize,
    }
}

/// A transmit queue of a started port with the frames that wait for it. It has one owner at a time.
///
/// [`push`](Self::push) lends room for a frame, to be written in place; frames leave in order, in bursts, at the
/// latest with [`flush`](Self::flush). What the port does not take stays and is offered again with the next `flush`:
/// nothing that `push` accepted is dropped while the stage lives.
pub struct TxStage {
    port: u16,
    queue: u16,
    /// Frames of `head..tail` wait.
    staged: [*mut rte_mbuf; STAGE],
    head: usize,
    tail: usize,
    /// Number of staged frames at which `push` sends by itself: a burst, or a full stage after the port refused.
    send_at: usize,
    /// The port has refused frames since the last `flush` (back-pressure): no further attempt before the next one.
    refused: bool,
    /// Frames among them whose ICRC is still to be written, and how many. All are by the time they are offered to the port.
    unsealed: [Unsealed; STAGE],
    unsealed_count: usize,
    spares: [*mut rte_mbuf; SPARES],
    spare_count: usize,
    pool: Mempool,
    frame_len: usize,
    stats: Arc<TxStats>,
    tap: Option<Tapped>,
    /// `Some` while parked: the device may be gone. Called with the number of frames dropped for that.
    parked: Option<Box<dyn Fn(u64) + Send>>,
    started: Arc<PortInner>,
}

/// A staged frame without its ICRC.
#[derive(Clone, Copy)]
struct Unsealed {
    /// Index among the staged frames.
    index: u16,
    len: u16,
    seal: Seal,
}

// SAFETY: the value is the only owner of its mbufs and the only user of its queue; neither cares for the thread.
unsafe impl Send for TxStage {}

impl TxStage {
    pub(super) fn new(port: Arc<PortInner>, queue: u16) -> TxStage {
        let pool = port.pool().clone();
        // A port that has just been started has its device.
        let parked: Option<Box<dyn Fn(u64) + Send>> = if port.queues().enter() { None } else { Some(Box::new(|_| {})) };
        TxStage {
            port: port.id(),
            queue,
            staged: [ptr::null_mut(); STAGE],
            head: 0,
            tail: 0,
            send_at: BURST,
            refused: false,
            unsealed: [Unsealed { index: 0, len: 0, seal: Seal { ip_at: 0, is_ipv4: false } }; STAGE],
            unsealed_count: 0,
            spares: [ptr::null_mut(); SPARES],
            spare_count: 0,
            frame_len: port.max_frame(),
            pool,
            stats: Arc::default(),
            tap: None,
            parked,
            started: port,
        }
    }

    /// The queue's port.
    pub fn port(&self) -> PortId {
        PortId(self.port)
    }

    /// The queue's number on its port.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// The queue's counters.
    pub fn stats(&self) -> &Arc<TxStats> {
        &self.stats
    }

    /// Calls `tap` once for every frame that the port is offered from now on; `None` ends that.
    pub fn set_tap(&mut self, tap: Option<Box<dyn TxTap>>) {
        self.tap = tap.map(|tap| Tapped { tap, seen: 0 });
    }

    /// Drops every frame from now on, so that the device can be re-created ([`Reattach`](super::Reattach)). Calls `dropped`
    /// with their number.
    pub fn park(&mut self, dropped: impl Fn(u64) + Send + 'static) {
        if self.parked.is_none() {
            self.started.queues().leave();
        }
        self.parked = Some(Box::new(dropped));
        self.flush();
    }

    /// Ends [`park`](Self::park). False when the device is gone.
    pub fn resume(&mut self) -> bool {
        if self.parked.is_some() && self.started.queues().enter() {
            self.parked = None;
        }
        self.parked.is_none()
    }

    /// Drops what is staged.
    #[cold]
    fn drop_staged(&mut self) {
        if let Some(dropped) = &self.parked {
            dropped(self.waiting() as u64);
        }
        // SAFETY: all owned, and forgotten from here on.
        unsafe { Mempool::free(&mut self.staged[self.head..self.tail]) };
        (self.head, self.tail, self.send_at) = (0, 0, BURST);
    }

    /// Number of staged frames.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.tail - self.head
    }

    /// Number of frames that can still be pushed even if the port takes none.
    #[inline]
    pub fn room(&self) -> usize {
        STAGE - self.waiting()
    }

    /// Room for one frame of `len` bytes, initialised but of any content: write all of it. The frame is staged with
    /// this call. `None` when the stage is full and the port takes nothing, or the pool is empty: come again after the next
    /// [`flush`](Self::flush).
    #[inline]
    pub fn push(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > self.frame_len {
            self.stats.oversize.inc();
            return None;
        }
        if !self.make_room() {
            return None;
        }
        if self.spare_count == 0 && !self.refill() {
            self.stats.pool_empty.inc();
            return None;
        }
        self.spare_count -= 1;
        let raw = self.spares[self.spare_count];
        if let Some(next) = self.spare_count.checked_sub(AHEAD) {
            // SAFETY: a buffer of ours that nobody uses yet.
            unsafe { mbuf::prefetch_for_write(self.spares[next]) };
        }
        let padded = len.max(MIN_FRAME);
        // SAFETY: an owned, fresh mbuf whose buffer holds `frame_len` bytes, which is at least `padded` (a pool of a
        // port is never for shorter frames); nobody else sees the bytes while self is borrowed.
        let frame = unsafe {
            mbuf::set_len(raw, padded as u16);
            slice::from_raw_parts_mut(mbuf::data_ptr(raw), padded)
        };
        self.staged[self.tail] = raw;
        self.tail += 1;
        self.stats.bytes.add(padded as u64);
        let (frame, padding) = frame.split_at_mut(len);
        if !padding.is_empty() {
            padding.fill(0);
        }
        Some(frame)
    }

    /// As [`push`](Self::push), for a frame whose ICRC the stage writes before it leaves.
    #[inline]
    pub fn push_unsealed(&mut self, len: usize, seal: Seal) -> Option<&mut [u8]> {
        self.push(len)?;
        let index = self.tail - 1;
        self.unsealed[self.unsealed_count] = Unsealed { index: index as u16, len: len as u16, seal };
        self.unsealed_count += 1;
        let raw = self.staged[index];
        // SAFETY: the mbuf just staged, which holds `len` bytes; nobody else sees them while self is borrowed.
        Some(unsafe { slice::from_raw_parts_mut(mbuf::data_ptr(raw), len) })
    }

    /// Writes the missing ICRCs of staged frames.
    #[inline]
    fn seal(&mut self) {
        for &Unsealed { index, len, seal } in &self.unsealed[..self.unsealed_count] {
            let raw = self.staged[usize::from(index)];
            // SAFETY: a staged mbuf is ours; it was pushed with this length. Whoever wrote the frame has given it back:
            // the borrow ended before self could be used again.
            seal.apply(unsafe { slice::from_raw_parts_mut(mbuf::data_ptr(raw), usize::from(len)) });
        }
        self.unsealed_count = 0;
    }

    /// Stages a whole buffer without copying. Returns it if there is no room.
    pub fn push_mbuf(&mut self, mut mbuf: Mbuf) -> Result<(), Mbuf> {
        let len = mbuf.data().len();
        if len < MIN_FRAME {
            if !mbuf.resize(MIN_FRAME) {
                return Err(mbuf);
            }
            mbuf.data_mut()[len..].fill(0);
        }
        if !self.make_room() {
            return Err(mbuf);
        }
        self.stats.bytes.add(len.max(MIN_FRAME) as u64);
        self.staged[self.tail] = mbuf.into_raw().as_ptr();
        self.tail += 1;
        Ok(())
    }

    /// Sends everything staged. Returns how many frames the port refused, which stay staged.
    #[inline]
    pub fn flush(&mut self) -> usize {
        self.seal();
        if self.tap.is_some() { self.flush_seen() } else { self.offer() }
    }

    /// As [`flush`](Self::flush), with a tap.
    #[cold]
    fn flush_seen(&mut self) -> usize {
        if let Some(Tapped { tap, seen }) = &mut self.tap {
            for &raw in &self.staged[*seen..self.tail] {
                // SAFETY: staged mbufs are ours, of one segment each, and written to the end.
                tap.see(unsafe { mbuf::data(raw) });
            }
        }
        let waiting = self.offer();
        if let Some(tapped) = &mut self.tap {
            tapped.seen = waiting;
        }
        waiting
    }

    /// Offers sealed frames to the port; returns how many of them still wait.
    #[inline]
    fn offer(&mut self) -> usize {
        /// Frames offered at once. Drivers look at all that they are offered before they see how many there is room for, so
        /// that a port which takes few would cost a walk over the whole stage each time.
        const OFFER: usize = 2 * BURST;
        self.refused = false;
        if self.parked.is_some() {
            self.drop_staged();
        }
        while self.head < self.tail && !self.refused {
            let offered = self.waiting().min(OFFER);
            // SAFETY: the port is started and stays so while we hold it and are not parked, and this is the only TxStage
            // of that queue. Where we are parked nothing is staged here.
            // The mbufs are ours; the driver takes over as many of the first as it reports.
            let sent = usize::from(unsafe {
                dpdk_sys::rxe_eth_tx_burst(
                    self.port,
                    self.queue,
                    self.staged.as_mut_ptr().add(self.head),
                    offered as u16,
                )
            });
            self.head += sent.min(offered);
            self.stats.frames.add(sent as u64);
            self.refused = sent < offered;
        }
        if self.refused {
            self.stats.port_full.inc();
        }
        if self.head > 0 {
            self.staged.copy_within(self.head..self.tail, 0);
            self.tail -= self.head;
            self.head = 0;
        }
        self.send_at = if self.tail == 0 { BURST } else { STAGE };
        self.tail
    }

    /// Sends when it is time to, and says whether one more frame fits.
    #[inline]
    fn make_room(&mut self) -> bool {
        if self.tail >= self.send_at && (self.refused || self.flush() == STAGE) {
            self.stats.stage_full.inc();
            return false;
        }
        true
    }

    /// Fetches buffers: a burst of them, or what there is.
    #[cold]
    fn refill(&mut self) -> bool {
        for count in [SPARES, SPARES / 4, 1] {
            if self.pool.alloc_bulk(&mut self.spares[..count]) {
                self.spare_count = count;
                for &raw in &self.spares[count.saturating_sub(AHEAD)..count] {
                    // SAFETY: just allocated for us.
                    unsafe { mbuf::prefetch_for_write(raw) };
                }
                return true;
            }
        }
        false
    }
}

impl Drop for TxStage {
    fn drop(&mut self) {
        // SAFETY: all owned, and never used again.
        unsafe {
            Mempool::free(&mut self.staged[self.head..self.tail]);
            Mempool::free(&mut self.spares[..self.spare_count]);
        }
        if self.parked.is_none() {
            self.started.queues().leave();
        }
    }
}

impl fmt::Debug for TxStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TxStage({}/{}, {} waiting)", self.port, self.queue, self.waiting())
    }
}
