//! The transmit path of one worker to one port.

use std::sync::Arc;

use rxe_adapter::worker::capture::{TxRecorder, TxRecorders};
use rxe_adapter::worker::injector::{ActiveFault, FOREVER, Injector};
use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, Seal};

use super::handoff::TxRing;
use crate::eal::{MIN_FRAME, Mbuf, Mempool, TxStage, TxTap};

/// The path of a worker's frames to a port: a transmit queue of its own, or a ring to the worker that has one; with a
/// fault injector in front of either while a rule needs it.
pub(crate) enum TxPath {
    /// Boxed, as all variants are large.
    Queue(Box<TxStage>),
    Ring(Box<TxRing>),
    Faulty(Box<FaultyPath>),
}

impl TxPath {
    #[inline]
    pub(crate) fn push(&mut self, len: usize) -> Option<&mut [u8]> {
        match self {
            TxPath::Queue(stage) => stage.push(len),
            TxPath::Ring(ring) => ring.push(len),
            TxPath::Faulty(path) => path.push(len),
        }
    }

    /// As `push`, for a frame whose ICRC is still to be computed. The flag says whether this path does that: only a
    /// transmit queue stages enough frames to compute several ICRCs at once.
    #[inline]
    pub(crate) fn push_unsealed(&mut self, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        match self {
            TxPath::Queue(stage) => stage.push_unsealed(len, seal).map(|frame| (frame, true)),
            TxPath::Ring(_) | TxPath::Faulty(_) => self.push(len).map(|frame| (frame, false)),
        }
    }

    /// Sends what is staged. Returns how many frames did not fit and stay staged.
    pub(crate) fn flush(&mut self, now: Instant) -> usize {
        match self {
            TxPath::Queue(stage) => stage.flush(),
            TxPath::Ring(ring) => ring.flush(),
            TxPath::Faulty(path) => path.flush(now),
        }
    }

    /// As [`flush`](Self::flush), and releases frames that an injector delays.
    pub(crate) fn finish(&mut self) -> usize {
        self.flush(FOREVER)
    }

    /// The transmit queue at the end of this path, behind any injector: frames of other workers enter here, each after
    /// its own worker's injector. `None` if the path ends in a ring.
    pub(crate) fn queue(&mut self) -> Option<&mut TxStage> {
        match self {
            TxPath::Queue(stage) => Some(stage),
            TxPath::Ring(_) => None,
            TxPath::Faulty(path) => path.next.queue(),
        }
    }

    /// Puts an injector in front. From now on frames are written into buffers of `pool`.
    pub(crate) fn with_faults(self, pool: Mempool, injector: Injector<Mbuf>) -> TxPath {
        let staged = Vec::with_capacity(injector.room().batch);
        let (released, recorder, now) = (None, None, Instant::ZERO);
        TxPath::Faulty(Box::new(FaultyPath { next: self, pool, staged, released, injector, recorder, now }))
    }

    /// Records what the port is offered, and what the injector drops before that; `None` ends the recording. Frames that
    /// go into a ring are recorded at its other end. Returns the unused injector recorder if there is no injector.
    pub(crate) fn set_recorders(&mut self, recorders: Option<TxRecorders>) -> Option<TxRecorder> {
        let (sent, injected) = recorders.map(|TxRecorders { sent, injected }| (sent, injected)).unzip();
        if let Some(stage) = self.queue() {
            stage.set_tap(sent.map(|recorder| Box::new(recorder) as Box<dyn TxTap>));
        }
        match self {
            TxPath::Faulty(path) => {
                path.recorder = injected;
                None
            }
            _ => injected,
        }
    }

    /// Gives an injector that was placed during a capture its recorder.
    pub(crate) fn attach_recorder(&mut self, recorder: &mut Option<TxRecorder>) {
        if let TxPath::Faulty(path) = self
            && path.recorder.is_none()
        {
            path.recorder = recorder.take();
        }
    }

    /// Whether there is an injector in front.
    pub(crate) fn is_faulty(&self) -> bool {
        matches!(self, TxPath::Faulty(_))
    }

    /// Sets the injector's rules, if there is an injector.
    pub(crate) fn set_faults(&mut self, rules: &[Arc<ActiveFault>]) {
        if let TxPath::Faulty(path) = self {
            path.injector.set_rules(rules);
        }
    }

    /// Removes an injector without rules, once it holds no frame. Its recorder goes back to `recorder`.
    pub(crate) fn without_faults(self, now: Instant, recorder: &mut Option<TxRecorder>) -> TxPath {
        match self {
            TxPath::Faulty(mut path) if path.injector.is_off() => {
                path.flush(now);
                if path.released.is_some() || path.injector.held() > 0 {
                    return TxPath::Faulty(path);
                }
                *recorder = path.recorder.take();
                path.next
            }
            path => path,
        }
    }

    /// Stages a whole frame behind any injector. Returns it if there is no room.
    fn push_mbuf(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        match self {
            TxPath::Queue(stage) => stage.push_mbuf(mbuf),
            TxPath::Ring(ring) => ring.push_mbuf(mbuf),
            TxPath::Faulty(path) => path.next.push_mbuf(mbuf),
        }
    }
}

/// A path with an injector in front.
pub(crate) struct FaultyPath {
    next: TxPath,
    pool: Mempool,
    /// Frames written since the last flush; the last one may still be being written.
    staged: Vec<Mbuf>,
    /// A frame that the injector has released and that did not fit the path behind it.
    released: Option<Mbuf>,
    injector: Injector<Mbuf>,
    /// `Some` while a capture runs.
    recorder: Option<TxRecorder>,
    /// The time of the last flush, for a flush that a full stage forces.
    now: Instant,
}

impl FaultyPath {
    fn push(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.staged.len() == self.injector.room().batch {
            self.flush(self.now);
        }
        if self.injector.held() > self.injector.room().capacity {
            self.injector.stats().stalled.inc();
            return None;
        }
        let mbuf = self.pool.alloc().and_then(|mut mbuf| mbuf.resize(len.max(MIN_FRAME)).then_some(mbuf));
        let Some(mut mbuf) = mbuf else {
            self.injector.stats().stalled.inc();
            return None;
        };
        mbuf.data_mut()[len..].fill(0);
        self.staged.push(mbuf);
        self.staged.last_mut()?.data_mut().get_mut(..len)
    }

    fn flush(&mut self, now: Instant) -> usize {
        self.now = now;
        for mbuf in self.staged.drain(..) {
            if let Some(recorder) = &mut self.recorder {
                recorder.remember(mbuf.data());
            }
            if !self.injector.accept(now, mbuf)
                && let Some(recorder) = &mut self.recorder
            {
                recorder.record_remembered(DropReason::Injected);
            }
        }
        while let Some(mbuf) = self.released.take().or_else(|| self.injector.next(now)) {
            if let Err(mbuf) = self.next.push_mbuf(mbuf) {
                self.released = Some(mbuf);
                break;
            }
        }
        self.next.flush(now) + usize::from(self.released.is_some())
    }
}
