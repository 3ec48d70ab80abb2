//! Rings that carry received frames to the worker that owns their queue pair, and written frames to the worker that
//! owns a transmit queue.

use rxe_proto::wire::PortId;

use crate::eal::{BURST, MIN_FRAME, Mbuf, MbufReceiver, MbufSender, Mempool, RxBurst, TxStage};

/// Received frames for one other worker.
#[derive(Debug)]
pub(crate) struct HandOff {
    sender: MbufSender,
    staged: RxBurst,
}

impl HandOff {
    pub(crate) fn new(sender: MbufSender) -> HandOff {
        HandOff { sender, staged: RxBurst::new() }
    }

    /// Moves frame `index` out of `burst` into the ring. Returns false if the ring is full; the frame then stays in the burst.
    pub(crate) fn enqueue(&mut self, burst: &mut RxBurst, index: usize) -> bool {
        self.has_room() && burst.take(index).is_some_and(|mbuf| self.staged.push(mbuf).is_ok())
    }

    /// As [`enqueue`](Self::enqueue), for a single buffer, which is freed if the ring is full.
    pub(crate) fn enqueue_mbuf(&mut self, mbuf: Mbuf) -> bool {
        self.has_room() && self.staged.push(mbuf).is_ok()
    }

    fn has_room(&mut self) -> bool {
        if self.staged.is_full() {
            self.sender.send(&mut self.staged);
        }
        !self.staged.is_full()
    }

    /// Sends what is staged. Frames that the ring has no room for are freed, after a call of `dropped` for each.
    pub(crate) fn flush(&mut self, mut dropped: impl FnMut(PortId, &[u8])) {
        if self.staged.is_empty() {
            return;
        }
        self.sender.send(&mut self.staged);
        for index in 0..self.staged.len() {
            dropped(PortId(self.staged.port(index)), self.staged.data(index));
        }
        self.staged.clear();
    }
}

/// Frames written by a worker without a transmit queue of its own.
#[derive(Debug)]
pub(crate) struct TxRing {
    pool: Mempool,
    sender: MbufSender,
    staged: RxBurst,
}

impl TxRing {
    pub(crate) fn new(pool: Mempool, sender: MbufSender) -> TxRing {
        TxRing { pool, sender, staged: RxBurst::new() }
    }

    /// Stages a frame of `len` bytes for the caller to write. `None` if the ring is full or the pool empty.
    pub(crate) fn push(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.staged.is_full() && self.flush() == BURST {
            return None;
        }
        let mut mbuf: Mbuf = self.pool.alloc()?;
        if !mbuf.resize(len.max(MIN_FRAME)) {
            return None;
        }
        mbuf.data_mut()[len..].fill(0);
        let index = self.staged.len();
        self.staged.push(mbuf).ok()?;
        self.staged.data_mut(index).get_mut(..len)
    }

    /// Stages a whole frame. Returns it if the ring is full.
    pub(crate) fn push_mbuf(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        if self.staged.is_full() {
            self.flush();
        }
        self.staged.push(mbuf)
    }

    /// Moves what is staged into the ring. Returns how many frames did not fit and stay staged.
    pub(crate) fn flush(&mut self) -> usize {
        self.sender.send(&mut self.staged);
        self.staged.len()
    }
}

/// The other end of all [`TxRing`]s of one port, at the worker that has the transmit queue.
#[derive(Debug)]
pub(crate) struct TxRingEnd {
    pub(crate) port: PortId,
    pub(crate) receiver: MbufReceiver,
    burst: RxBurst,
    next: usize,
}

impl TxRingEnd {
    pub(crate) fn new(port: PortId, receiver: MbufReceiver) -> TxRingEnd {
        TxRingEnd { port, receiver, burst: RxBurst::new(), next: 0 }
    }

    /// Moves frames into the port's stage until that is full. Returns how many were moved. The others stay in the ring for the
    /// next turn, so that none is reordered or dropped.
    pub(crate) fn drain(&mut self, stage: &mut TxStage) -> usize {
        let mut moved = 0;
        while stage.room() > 0 {
            if self.next >= self.burst.len() {
                self.next = 0;
                if self.receiver.receive(&mut self.burst) == 0 {
                    break;
                }
            }
            if let Some(mbuf) = self.burst.take(self.next)
                && stage.push_mbuf(mbuf).is_ok()
            {
                moved += 1;
            }
            self.next += 1;
        }
        moved
    }
}
