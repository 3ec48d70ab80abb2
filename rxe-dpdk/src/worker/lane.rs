//! The way of one worker's frames to a port.

use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, Seal};

use super::capture::{LaneRecorders, TxRecorder};
use super::handoff::TxRing;
use super::injector::{ActiveFault, FOREVER, Injector};
use crate::eal::{MIN_FRAME, Mbuf, Mempool, TxStage, TxTap};

/// The way to a port for one worker: a transmit queue of its own, or a ring to the worker that has one; with an injector
/// in front of either where faults are wanted.
pub(crate) enum TxLane {
    /// Boxed, as all are large.
    Queue(Box<TxStage>),
    Ring(Box<TxRing>),
    Faulty(Box<FaultyLane>),
}

impl TxLane {
    #[inline]
    pub(crate) fn push(&mut self, len: usize) -> Option<&mut [u8]> {
        match self {
            TxLane::Queue(stage) => stage.push(len),
            TxLane::Ring(ring) => ring.push(len),
            TxLane::Faulty(lane) => lane.push(len),
        }
    }

    /// As `push`, for a frame that is to be sealed. Whether the lane does that: only a transmit queue holds frames long
    /// enough for it to pay.
    #[inline]
    pub(crate) fn push_unsealed(&mut self, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        match self {
            TxLane::Queue(stage) => stage.push_unsealed(len, seal).map(|frame| (frame, true)),
            TxLane::Ring(_) | TxLane::Faulty(_) => self.push(len).map(|frame| (frame, false)),
        }
    }

    /// Hands over what is staged; returns how many frames still wait for room.
    pub(crate) fn flush(&mut self, now: Instant) -> usize {
        match self {
            TxLane::Queue(stage) => stage.flush(),
            TxLane::Ring(ring) => ring.flush(),
            TxLane::Faulty(lane) => lane.flush(now),
        }
    }

    /// Hands over everything, what an injector holds for later too; returns how many frames still wait for room.
    pub(crate) fn finish(&mut self) -> usize {
        self.flush(FOREVER)
    }

    /// The transmit queue at the end of this lane, behind any injector: frames of other workers come by it, and each
    /// has passed its worker's injector. `None` when the lane ends in a ring.
    pub(crate) fn queue(&mut self) -> Option<&mut TxStage> {
        match self {
            TxLane::Queue(stage) => Some(stage),
            TxLane::Ring(_) => None,
            TxLane::Faulty(lane) => lane.way.queue(),
        }
    }

    /// The same way with an injector in front; frames are written into buffers of `pool`.
    pub(crate) fn with_faults(self, pool: Mempool, injector: Injector<Mbuf>) -> TxLane {
        let fresh = Vec::with_capacity(injector.room().batch);
        let (ready, capture, now) = (None, None, Instant::ZERO);
        TxLane::Faulty(Box::new(FaultyLane { way: self, pool, fresh, ready, injector, capture, now }))
    }

    /// Captures what the port is offered, and what an injector drops before that; `None` ends it. What goes into a ring is
    /// captured at its other end. Returns what an injector would capture by, where there is none.
    pub(crate) fn set_capture(&mut self, recorders: Option<LaneRecorders>) -> Option<TxRecorder> {
        let (sent, injected) = recorders.map(|LaneRecorders { sent, injected }| (sent, injected)).unzip();
        if let Some(stage) = self.queue() {
            stage.set_tap(sent.map(|recorder| Box::new(recorder) as Box<dyn TxTap>));
        }
        match self {
            TxLane::Faulty(lane) => {
                lane.capture = injected;
                None
            }
            _ => injected,
        }
    }

    /// Lets an injector that came during a capture have its recorder.
    pub(crate) fn lend_recorder(&mut self, recorder: &mut Option<TxRecorder>) {
        if let TxLane::Faulty(lane) = self
            && lane.capture.is_none()
        {
            lane.capture = recorder.take();
        }
    }

    /// Whether there is an injector in front.
    pub(crate) fn is_faulty(&self) -> bool {
        matches!(self, TxLane::Faulty(_))
    }

    /// The injector goes by these rules from now on, if there is one.
    pub(crate) fn set_faults(&mut self, rules: &[Arc<ActiveFault>]) {
        if let TxLane::Faulty(lane) = self {
            lane.injector.set_rules(rules);
        }
    }

    /// The same way without an injector that goes by no rule, once all that it held has left. Its recorder goes back to
    /// `recorder`.
    pub(crate) fn without_faults(self, now: Instant, recorder: &mut Option<TxRecorder>) -> TxLane {
        match self {
            TxLane::Faulty(mut lane) if lane.injector.is_off() => {
                lane.flush(now);
                if lane.ready.is_some() || lane.injector.len() > 0 {
                    return TxLane::Faulty(lane);
                }
                *recorder = lane.capture.take();
                lane.way
            }
            lane => lane,
        }
    }

    /// Stages a whole frame behind any injector. Gives it back when there is no room.
    fn push_mbuf(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        match self {
            TxLane::Queue(stage) => stage.push_mbuf(mbuf),
            TxLane::Ring(ring) => ring.push_mbuf(mbuf),
            TxLane::Faulty(lane) => lane.way.push_mbuf(mbuf),
        }
    }
}

/// A lane on which faults happen.
pub(crate) struct FaultyLane {
    way: TxLane,
    pool: Mempool,
    /// Frames that the worker has written, or is writing, since the last flush.
    fresh: Vec<Mbuf>,
    /// A frame that the injector has let go and for which there was no room behind it.
    ready: Option<Mbuf>,
    injector: Injector<Mbuf>,
    /// Where there is a capture.
    capture: Option<TxRecorder>,
    /// When the last flush was. A lane that fills up before the next one goes by it.
    now: Instant,
}

impl FaultyLane {
    fn push(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.fresh.len() == self.injector.room().batch {
            self.flush(self.now);
        }
        if self.injector.len() > self.injector.room().capacity {
            self.injector.stats().stalled.inc();
            return None;
        }
        let mbuf = self.pool.alloc().and_then(|mut mbuf| mbuf.resize(len.max(MIN_FRAME)).then_some(mbuf));
        let Some(mut mbuf) = mbuf else {
            self.injector.stats().stalled.inc();
            return None;
        };
        mbuf.data_mut()[len..].fill(0);
        self.fresh.push(mbuf);
        self.fresh.last_mut()?.data_mut().get_mut(..len)
    }

    fn flush(&mut self, now: Instant) -> usize {
        self.now = now;
        for mbuf in self.fresh.drain(..) {
            if let Some(recorder) = &mut self.capture {
                recorder.remember(mbuf.data());
            }
            if !self.injector.accept(now, mbuf)
                && let Some(recorder) = &mut self.capture
            {
                recorder.record_remembered(DropReason::Injected);
            }
        }
        while let Some(mbuf) = self.ready.take().or_else(|| self.injector.next(now)) {
            if let Err(mbuf) = self.way.push_mbuf(mbuf) {
                self.ready = Some(mbuf);
                break;
            }
        }
        self.way.flush(now) + usize::from(self.ready.is_some())
    }
}
