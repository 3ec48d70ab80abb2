//! The lcore's end of a capture: copies frames, with their outcome, into a ring.

use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use rxe_proto::transport::TransportStats;
use rxe_proto::wire::{DropCounters, DropReason, PortId};
use rxe_proto::{Instant, counters};

use super::filter::Filter;
use super::record::{HEADER_LEN, Header, NoteCounts, Outcome, note_counts};
use crate::worker::clock::SharedClock;
use crate::worker::injector::Direction;

/// Bytes of a ring: some milliseconds at 10 Gbit/s. Pages that are never written take no memory.
const RING: usize = 8 << 20;

counters! {
    /// Capture counters of one lcore.
    pub struct CaptureStats {
        /// Frames recorded.
        captured,
        /// Frames missing in a capture because its file could not be written fast enough. The target handled them as
        /// usual.
        ring_full,
    }
}

/// Copies frames that pass a filter into a ring. Only the ring is shared with the thread that writes the file.
#[derive(Debug)]
struct Recorder {
    ring: Producer<u8>,
    filter: Arc<Filter>,
    snaplen: usize,
    /// Frames dropped since the last one that fit the ring.
    lost: u32,
    stats: Arc<CaptureStats>,
}

impl Recorder {
    /// A recorder and the other end of its ring, which holds `capacity` bytes.
    fn new(capacity: usize, filter: Arc<Filter>, snaplen: usize, stats: Arc<CaptureStats>) -> (Recorder, Consumer<u8>) {
        let (ring, other) = RingBuffer::new(capacity);
        (Recorder { ring, filter, snaplen, lost: 0, stats }, other)
    }

    fn record(&mut self, at: Instant, port: PortId, direction: Direction, outcome: Outcome, len: usize, frame: &[u8]) {
        if !self.filter.admits(direction, frame) || self.ring.is_abandoned() {
            return;
        }
        let kept = &frame[..frame.len().min(self.snaplen)];
        if self.ring.slots() < HEADER_LEN + kept.len() {
            self.lost += 1;
            self.stats.ring_full.inc();
            return;
        }
        let header = Header { at, len: len as u32, kept: kept.len() as u32, port, direction, outcome, lost: self.lost };
        // There is room for both.
        let _ = self.ring.push_entire_slice(&header.to_bytes());
        let _ = self.ring.push_entire_slice(kept);
        self.lost = 0;
        self.stats.captured.inc();
    }
}

/// A copy of a frame from before fault injection.
#[derive(Debug, Default)]
struct Remembered {
    bytes: Vec<u8>,
    len: usize,
}

impl Remembered {
    /// Copies the part of `frame` that a capture and its filter read.
    fn keep(&mut self, frame: &[u8], snaplen: usize) {
        /// The headers that a filter reads end before this offset.
        const HEADERS: usize = 128;
        self.bytes.clear();
        self.bytes.extend_from_slice(&frame[..frame.len().min(snaplen.max(HEADERS))]);
        self.len = frame.len();
    }
}

/// A worker's counters and their last values. A frame's outcome is the set of counters that it changed.
#[derive(Debug)]
struct OutcomeWatch {
    drops: Vec<(Arc<DropCounters>, [u64; DropReason::COUNT])>,
    transport: Arc<TransportStats>,
    noted: NoteCounts,
}

impl OutcomeWatch {
    fn new(drops: Vec<Arc<DropCounters>>, transport: Arc<TransportStats>) -> OutcomeWatch {
        let noted = note_counts(&transport);
        let drops = drops.into_iter().map(|drops| (drops, [0; DropReason::COUNT])).collect();
        let mut watch = OutcomeWatch { drops, transport, noted };
        watch.changes();
        watch
    }

    /// The counters that changed since the last call.
    fn changes(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        for (counters, before) in &mut self.drops {
            for ((reason, count), before) in counters.iter().zip(before) {
                if count != *before {
                    *before = count;
                    outcome.dropped = Some(reason);
                }
            }
        }
        let noted = note_counts(&self.transport);
        for (bit, (now, before)) in noted.iter().zip(&self.noted).enumerate() {
            outcome.notes |= u32::from(now != before) << bit;
        }
        self.noted = noted;
        outcome
    }
}

/// Records the frames that a worker receives.
#[derive(Debug)]
pub struct RxRecorder {
    recorder: Recorder,
    watch: OutcomeWatch,
    remembered: Remembered,
}

impl RxRecorder {
    /// `drops` and `transport` are the counters that the worker changes while it handles a frame.
    fn new(recorder: Recorder, drops: Vec<Arc<DropCounters>>, transport: Arc<TransportStats>) -> RxRecorder {
        RxRecorder { recorder, watch: OutcomeWatch::new(drops, transport), remembered: Remembered::default() }
    }

    /// Called before the first frame of a burst: earlier changes of counters are no part of its outcome.
    pub fn begin(&mut self) {
        self.watch.changes();
    }

    /// Called after the worker has handled a frame.
    pub fn record(&mut self, at: Instant, port: PortId, frame: &[u8]) {
        let outcome = self.watch.changes();
        self.recorder.record(at, port, Direction::Rx, outcome, frame.len(), frame);
    }

    /// Called for a frame that was dropped instead of being handled.
    pub fn record_dropped(&mut self, at: Instant, port: PortId, frame: &[u8], reason: DropReason) {
        // The drop is counted already: it must not appear in the next frame's outcome.
        self.watch.changes();
        self.recorder.record(at, port, Direction::Rx, Outcome::dropped(reason), frame.len(), frame);
    }

    /// Copies a frame before fault injection.
    pub fn remember(&mut self, frame: &[u8]) {
        self.remembered.keep(frame, self.recorder.snaplen);
    }

    /// Records the last copied frame as dropped.
    pub fn record_remembered(&mut self, at: Instant, port: PortId, reason: DropReason) {
        let Remembered { bytes, len } = &self.remembered;
        self.recorder.record(at, port, Direction::Rx, Outcome::dropped(reason), *len, bytes);
    }
}

/// Counters that the recorders of one worker read.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Dropped packets by reason: all counters that the worker writes.
    pub drops: Vec<Arc<DropCounters>>,
    /// Counters of the worker's queue pairs.
    pub transport: Arc<TransportStats>,
    /// Counters of its recorders.
    pub stats: Arc<CaptureStats>,
    /// The workers' clock.
    pub clock: SharedClock,
}

/// The recorders of one worker.
#[derive(Debug)]
pub struct Recorders {
    /// For received frames.
    pub rx: Box<RxRecorder>,
    /// By port number.
    pub tx: Vec<TxRecorders>,
}

impl Recorded {
    /// Recorders for a worker with `ports` ports. The other ends of their rings are appended to `rings`.
    pub fn recorders(
        &self,
        ports: u16,
        filter: &Arc<Filter>,
        snaplen: usize,
        rings: &mut Vec<Consumer<u8>>,
    ) -> Recorders {
        let mut recorder = || {
            let (recorder, ring) = Recorder::new(RING, Arc::clone(filter), snaplen, Arc::clone(&self.stats));
            rings.push(ring);
            recorder
        };
        let rx = Box::new(RxRecorder::new(recorder(), self.drops.clone(), Arc::clone(&self.transport)));
        let tx = (0..ports).map(PortId).map(|port| TxRecorders {
            sent: TxRecorder::new(recorder(), port, self.clock.clone()),
            injected: TxRecorder::new(recorder(), port, self.clock.clone()),
        });
        let tx = tx.collect();
        Recorders { rx, tx }
    }
}

/// The recorders of one transmit path.
#[derive(Debug)]
pub struct TxRecorders {
    /// Records what the port is offered, if the path ends in a transmit queue.
    pub sent: TxRecorder,
    /// Records what an injector drops before that.
    pub injected: TxRecorder,
}

/// Records the frames of one transmit path.
#[derive(Debug)]
pub struct TxRecorder {
    recorder: Recorder,
    port: PortId,
    clock: SharedClock,
    remembered: Remembered,
}

impl TxRecorder {
    fn new(recorder: Recorder, port: PortId, clock: SharedClock) -> TxRecorder {
        TxRecorder { recorder, port, clock, remembered: Remembered::default() }
    }

    /// As [`RxRecorder::remember`].
    pub fn remember(&mut self, frame: &[u8]) {
        self.remembered.keep(frame, self.recorder.snaplen);
    }

    /// As [`RxRecorder::record_remembered`].
    pub fn record_remembered(&mut self, reason: DropReason) {
        let Remembered { bytes, len } = &self.remembered;
        self.recorder.record(self.clock.now(), self.port, Direction::Tx, Outcome::dropped(reason), *len, bytes);
    }
}

impl TxRecorder {
    /// Records a frame that is offered to the port.
    pub fn see(&mut self, frame: &[u8]) {
        self.recorder.record(self.clock.now(), self.port, Direction::Tx, Outcome::default(), frame.len(), frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(ring: &mut Consumer<u8>) -> (Header, Vec<u8>) {
        let mut bytes = [0; HEADER_LEN];
        ring.pop_entire_slice(&mut bytes).unwrap();
        let header = Header::from_bytes(&bytes);
        let mut frame = vec![0; header.kept as usize];
        ring.pop_entire_slice(&mut frame).unwrap();
        (header, frame)
    }

    fn recorder(capacity: usize, snaplen: usize) -> (Recorder, Consumer<u8>, Arc<CaptureStats>) {
        let stats = Arc::<CaptureStats>::default();
        let (recorder, ring) = Recorder::new(capacity, Arc::default(), snaplen, Arc::clone(&stats));
        (recorder, ring, stats)
    }

    #[test]
    fn a_full_ring_drops_and_counts_frames() {
        let (mut recorder, mut ring, stats) = recorder(2 * (HEADER_LEN + 64), 64);
        let mut record = |number: u8| {
            recorder.record(Instant::ZERO, PortId(0), Direction::Tx, Outcome::default(), 1500, &[number; 1500]);
        };
        (0..5).for_each(&mut record);
        assert_eq!((stats.captured.get(), stats.ring_full.get()), (2, 3));
        let (first, frame) = header(&mut ring);
        assert_eq!((first.len, first.kept, first.lost, frame), (1500, 64, 0, vec![0; 64]));
        record(5);
        header(&mut ring);
        let (after, frame) = header(&mut ring);
        assert_eq!((after.lost, frame[0]), (3, 5), "the next record counts the frames missing before it");
        drop(ring);
        record(6);
        assert_eq!((stats.captured.get(), stats.ring_full.get()), (3, 3), "after the reader has gone");
    }

    #[test]
    fn an_outcome_is_the_counters_that_the_frame_changed() {
        let (drops, transport) = (Arc::<DropCounters>::default(), Arc::<TransportStats>::default());
        let (recorder, mut ring, _) = recorder(4096, 64);
        drops.count(DropReason::NoReceive);
        let mut rx = RxRecorder::new(recorder, vec![Arc::default(), Arc::clone(&drops)], Arc::clone(&transport));
        let mut outcome = |rx: &mut RxRecorder| {
            rx.record(Instant::ZERO, PortId(0), &[1; 60]);
            header(&mut ring).0.outcome
        };
        assert_eq!(outcome(&mut rx), Outcome::default(), "earlier changes are excluded");
        drops.count(DropReason::NoReceive);
        transport.duplicate_request.inc();
        assert_eq!(outcome(&mut rx), Outcome { dropped: Some(DropReason::NoReceive), notes: 1 });
        assert_eq!(outcome(&mut rx), Outcome::default(), "only once");
        drops.count(DropReason::NoTransmitRoom);
        rx.begin();
        assert_eq!(outcome(&mut rx), Outcome::default(), "between two bursts");
        drops.count(DropReason::HandoffFull);
        rx.record_dropped(Instant::ZERO, PortId(0), &[1; 60], DropReason::HandoffFull);
        rx.remember(&[2; 2000]);
        rx.record_remembered(Instant::ZERO, PortId(0), DropReason::Injected);
        assert_eq!(outcome(&mut rx).dropped, Some(DropReason::HandoffFull));
        let (injected, _) = header(&mut ring);
        assert_eq!((injected.outcome.dropped, injected.len, injected.kept), (Some(DropReason::Injected), 2000, 64));
        assert_eq!(header(&mut ring).0.outcome, Outcome::default(), "it is no part of the next outcome");
    }
}
