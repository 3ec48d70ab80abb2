//! The transmit side of the worker: the port's queue, behind a fault injector while a rule needs one.

use std::net::IpAddr;
use std::sync::Arc;

use rxe_adapter::worker::capture::{TxRecorder, TxRecorders};
use rxe_adapter::worker::injector::{ActiveFault, Direction, FOREVER, FaultStats, Injector, Packet, Room};
use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, PortId, Seal, TxQueue};

use super::frame::HeldFrame;
use crate::frame::headers_len;
use crate::tx::{Tap, UdpTx};

/// The transmit queue of a port that shows what it sends.
pub trait PortTx: TxQueue {
    /// Number of frames that wait for room.
    fn waiting(&self) -> usize;

    /// Sends everything. Returns how many frames wait for room.
    fn flush(&mut self) -> usize;

    /// Reports the number of packets that the engine has retransmitted since its start.
    fn note_retransmissions(&mut self, total: u64);

    /// Shows every frame that is sent to `tap` from now on; `None` to no one. Returns what saw them before.
    fn set_tap(&mut self, tap: Option<Tap>) -> Option<Tap>;
}

impl PortTx for UdpTx {
    #[inline]
    fn waiting(&self) -> usize {
        UdpTx::waiting(self)
    }

    fn flush(&mut self) -> usize {
        UdpTx::flush(self)
    }

    #[inline]
    fn note_retransmissions(&mut self, total: u64) {
        UdpTx::note_retransmissions(self, total);
    }

    fn set_tap(&mut self, tap: Option<Tap>) -> Option<Tap> {
        UdpTx::set_tap(self, tap)
    }
}

/// Where the engine, the connection manager and the fault injector put frames.
pub struct Output<T> {
    tx: T,
    faulty: Option<Box<Faulty>>,
    /// While a capture runs without an injector: the recorder of one that is placed later.
    spare_recorder: Option<TxRecorder>,
    /// Bytes of the headers of a frame.
    headers: usize,
    stats: Arc<FaultStats>,
    /// Frames staged since the last call of [`take_frames`](Self::take_frames).
    frames: u64,
}

/// A fault injector in front of the port's queue.
struct Faulty {
    staged: Vec<HeldFrame>,
    /// A frame that was due, but the queue was full.
    released: Option<HeldFrame>,
    injector: Injector<HeldFrame>,
    recorder: Option<TxRecorder>,
    /// Time of the last flush, for a flush that a full stage triggers.
    now: Instant,
}

impl<T: PortTx> Output<T> {
    /// The queue `tx` of a port at `address`.
    pub fn new(tx: T, address: IpAddr, stats: Arc<FaultStats>) -> Output<T> {
        let headers = headers_len(address);
        Output { tx, faulty: None, spare_recorder: None, headers, stats, frames: 0 }
    }

    /// Uses the queue `tx` from now on. What the old one has not sent is lost.
    pub fn set_port(&mut self, tx: T) {
        let mut old = std::mem::replace(&mut self.tx, tx);
        self.tx.set_tap(old.set_tap(None));
    }

    /// The queue itself, past the injector.
    pub fn port_mut(&mut self) -> &mut T {
        &mut self.tx
    }

    /// Number of frames that the kernel has not accepted.
    pub fn waiting(&self) -> usize {
        self.tx.waiting()
    }

    /// Number of frames staged since the last call.
    pub fn take_frames(&mut self) -> u64 {
        std::mem::take(&mut self.frames)
    }

    /// Whether frames were staged since the last call of [`take_frames`](Self::take_frames).
    pub fn has_frames(&self) -> bool {
        self.frames > 0
    }

    /// Sends everything staged. Returns whether the kernel has refused frames, which stay staged.
    pub fn flush(&mut self, now: Instant) -> bool {
        let refused = self.faulty.as_mut().is_some_and(|faulty| faulty.flush(now, &mut self.tx));
        self.tx.flush() > 0 || refused
    }

    /// As [`flush`](Self::flush), and releases frames that the injector delays.
    pub fn finish(&mut self) -> bool {
        self.flush(FOREVER)
    }

    /// Whether an injector holds frames, which a flush releases when they are due.
    pub fn holds_frames(&self) -> bool {
        self.faulty.as_ref().is_some_and(|faulty| faulty.injector.held() > 0 || faulty.released.is_some())
    }

    /// Sets the recorders; `None` ends the recording.
    pub fn set_recorders(&mut self, recorders: Option<TxRecorders>) {
        let (sent, injected) = recorders.map(|TxRecorders { sent, injected }| (sent, injected)).unzip();
        self.tx.set_tap(sent.map(|mut recorder| -> Tap { Box::new(move |frame| recorder.see(frame)) }));
        match &mut self.faulty {
            Some(faulty) => faulty.recorder = injected,
            None => self.spare_recorder = injected,
        }
    }

    /// Places or removes the injector, as the rules need it. Returns false if it could not be removed yet, because the port has
    /// not taken all that it held.
    pub fn set_faults(&mut self, now: Instant, rules: &[Arc<ActiveFault>]) -> bool {
        let (direction, room) = (Direction::Tx, Room::WIDE);
        let wanted = Injector::<HeldFrame>::is_wanted(direction, rules);
        if wanted && self.faulty.is_none() {
            self.faulty = Some(Box::new(Faulty {
                staged: Vec::with_capacity(room.batch),
                released: None,
                // The kernel reads the headers of a frame, and sends its own.
                injector: Injector::new(direction, 0, PortId(0), room, Arc::clone(&self.stats))
                    .with_headers(self.headers),
                recorder: self.spare_recorder.take(),
                now,
            }));
        }
        let Some(faulty) = &mut self.faulty else { return true };
        faulty.injector.set_rules(rules);
        if wanted {
            return true;
        }
        if faulty.flush(now, &mut self.tx) || faulty.injector.held() > 0 {
            return false;
        }
        self.spare_recorder = faulty.recorder.take();
        self.faulty = None;
        true
    }
}

impl Faulty {
    fn push(&mut self, len: usize, tx: &mut impl PortTx) -> Option<&mut [u8]> {
        if self.staged.len() == self.injector.room().batch {
            self.flush(self.now, tx);
        }
        if self.injector.held() > self.injector.room().capacity {
            self.injector.stats().stalled.inc();
            return None;
        }
        self.staged.push(HeldFrame::zeroed(len));
        self.staged.last_mut().map(Packet::bytes_mut)
    }

    /// Moves staged frames into the injector, and those that are due into the queue. Returns whether the queue is full.
    fn flush(&mut self, now: Instant, tx: &mut impl PortTx) -> bool {
        self.now = now;
        for frame in self.staged.drain(..) {
            if let Some(recorder) = &mut self.recorder {
                recorder.remember(frame.bytes());
            }
            if !self.injector.accept(now, frame)
                && let Some(recorder) = &mut self.recorder
            {
                recorder.record_remembered(DropReason::Injected);
            }
        }
        while let Some(frame) = self.released.take().or_else(|| self.injector.next(now)) {
            match tx.push(PortId(0), frame.bytes().len()) {
                Some(room) => room.copy_from_slice(frame.bytes()),
                None => {
                    self.released = Some(frame);
                    break;
                }
            }
        }
        self.released.is_some()
    }
}

impl<T: PortTx> TxQueue for Output<T> {
    #[inline]
    fn push(&mut self, port: PortId, len: usize) -> Option<&mut [u8]> {
        let room = match &mut self.faulty {
            None => self.tx.push(port, len),
            Some(faulty) => faulty.push(len, &mut self.tx),
        }?;
        self.frames += 1;
        Some(room)
    }

    #[inline]
    fn push_unsealed(&mut self, port: PortId, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        let room = match &mut self.faulty {
            None => self.tx.push_unsealed(port, len, seal),
            // Faults change the frame as it is sent, so it gets its ICRC before.
            Some(faulty) => faulty.push(len, &mut self.tx).map(|frame| (frame, false)),
        }?;
        self.frames += 1;
        Some(room)
    }
}
