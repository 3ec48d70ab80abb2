//! Rings that carry received frames to the worker that owns their queue pair, and written frames to the worker that
//! owns a transmit queue.

use rxe_proto::wire::PortId;

use crate::eal::{BURST, MIN_FRAME, Mbuf, MbufReceiver, MbufSender, Mempool, RxBurst, TxStage};

/// Frames on their way to one other worker.
#[derive(Debug)]
pub(crate) struct HandOff {
    sender: MbufSender,
    staged: RxBurst,
}

impl HandOff {
    pub(crate) fn new(sender: MbufSender) -> HandOff {
        HandOff { sender, staged: RxBurst::new() }
    }

    /// Takes frame `index` out of `burst`; `false` when the ring has no room for it, which leaves it in the burst.
    pub(crate) fn give(&mut self, burst: &mut RxBurst, index: usize) -> bool {
        self.has_room() && burst.take(index).is_some_and(|mbuf| self.staged.push(mbuf).is_ok())
    }

    /// As [`give`](Self::give) for a frame of its own, which is freed when the ring has no room.
    pub(crate) fn give_mbuf(&mut self, mbuf: Mbuf) -> bool {
        self.has_room() && self.staged.push(mbuf).is_ok()
    }

    fn has_room(&mut self) -> bool {
        if self.staged.is_full() {
            self.sender.send(&mut self.staged);
        }
        !self.staged.is_full()
    }

    /// Sends what is staged. Frames that the ring has no room for are freed, after `lost` has seen them.
    pub(crate) fn flush(&mut self, mut lost: impl FnMut(PortId, &[u8])) {
        if self.staged.is_empty() {
            return;
        }
        self.sender.send(&mut self.staged);
        for index in 0..self.staged.len() {
            lost(PortId(self.staged.port(index)), self.staged.data(index));
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

    /// Room for one frame of `len` bytes, to be written at once. `None` when the ring is full or the pool empty.
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

    /// Stages a whole frame. Gives it back when the ring is full.
    pub(crate) fn push_mbuf(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        if self.staged.is_full() {
            self.flush();
        }
        self.staged.push(mbuf)
    }

    /// Puts what is staged into the ring; returns how many frames found no room and wait.
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

    /// Moves frames into the port's stage until that is full; returns how many moved. A frame that finds no room
    /// stays for the next turn, so order holds and nothing is lost.
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
