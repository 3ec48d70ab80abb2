//! The writer thread of a capture: it takes frames out of the workers' rings and writes them in order of time.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rtrb::Consumer;
use rxe_inspect::pcapng::Packet;
use rxe_proto::Instant;
use rxe_proto::counters::Counter;

use super::output::{Output, Written, unix_nanos};
use super::{STOPPED, reason};
use crate::worker::capture::{HEADER_LEN, Header};
use crate::worker::clock::SharedClock;
use crate::worker::injector::Direction;
use crate::worker::orders::{CaptureOrder, Order, OrderSender};

/// How long a frame stays in its ring, so that an older one of a slower lcore is written first.
const ORDERING: Duration = Duration::from_millis(5);

/// How long the thread sleeps if there is nothing to write.
const NAP: Duration = Duration::from_millis(2);

/// Progress of the thread, which is the only writer of these fields.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) frames: Counter,
    pub(super) bytes: Counter,
    pub(super) file: Mutex<PathBuf>,
    /// Why it ended before it was stopped.
    pub(super) broken_off: Mutex<Option<String>>,
}

impl Progress {
    fn show(&self, output: &Output) {
        self.bytes.add(output.bytes() - self.bytes.get());
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if *file != output.path() {
            output.path().clone_into(&mut file);
        }
    }
}

/// How a capture has ended.
pub(super) struct CaptureEnd {
    /// The last file.
    pub(super) file: PathBuf,
    pub(super) frames: u64,
    pub(super) reason: String,
}

/// One ring, and the header at its front once that is read.
struct Source {
    ring: Consumer<u8>,
    front: Option<Header>,
}

impl Source {
    /// The time of the frame at the front, if all of it has arrived.
    fn front(&mut self) -> Option<Instant> {
        if self.front.is_none() {
            let mut bytes = [0; HEADER_LEN];
            self.ring.pop_entire_slice(&mut bytes).ok()?;
            self.front = Some(Header::from_bytes(&bytes));
        }
        self.front.filter(|header| self.ring.slots() >= header.kept as usize).map(|header| header.at)
    }

    /// Moves the frame at the front into `frame`.
    fn take(&mut self, frame: &mut Vec<u8>) -> Option<Header> {
        let header = self.front.take()?;
        frame.resize(header.kept as usize, 0);
        self.ring.pop_entire_slice(frame).ok()?;
        Some(header)
    }

    /// Whether the recorder is gone and the ring empty.
    fn is_over(&mut self) -> bool {
        // In this order, so that frames from before the end of the recorder are seen.
        self.ring.is_abandoned() && self.front().is_none()
    }
}

/// The state of the thread.
pub(super) struct Writer {
    sources: Vec<Source>,
    output: Output,
    /// The workers' clock.
    clock: SharedClock,
    /// Nanoseconds from 1970 to that clock's epoch.
    epoch: u64,
    progress: Arc<Progress>,
    workers: Vec<OrderSender>,
}

impl Writer {
    pub(super) fn new(
        rings: Vec<Consumer<u8>>,
        output: Output,
        clock: SharedClock,
        workers: Vec<OrderSender>,
    ) -> Writer {
        let sources = rings.into_iter().map(|ring| Source { ring, front: None }).collect();
        let epoch = unix_nanos().saturating_sub(clock.now().as_nanos());
        let progress = Arc::<Progress>::default();
        progress.show(&output);
        Writer { sources, output, clock, epoch, progress, workers }
    }

    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Writes until every recorder is gone, or the file is full or cannot be written.
    pub(super) fn run(mut self) -> CaptureEnd {
        let ended = match self.write_all() {
            Ok(Written::Yes) => None,
            Ok(Written::Full) => Some("the file has the size that it was to have".to_owned()),
            Err(error) => Some(format!("the file cannot be written ({})", reason(&error))),
        };
        self.progress.show(&self.output);
        let (file, frames) = (self.output.path().to_owned(), self.progress.frames.get());
        let name = file.display();
        let Some(reason) = ended else {
            tracing::info!("the capture {name} has ended: {frames} frames");
            return CaptureEnd { file, frames, reason: STOPPED.to_owned() };
        };
        tracing::warn!("the capture {name} has ended: {reason}; {frames} frames");
        *self.progress.broken_off.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.clone());
        for worker in &self.workers {
            // A worker that has ended records nothing.
            let _ = worker.send(Order::Capture(Box::new(CaptureOrder::stop())));
        }
        CaptureEnd { file, frames, reason }
    }

    fn write_all(&mut self) -> io::Result<Written> {
        loop {
            if self.sources.iter_mut().all(Source::is_over) {
                self.output.finish()?;
                return Ok(Written::Yes);
            }
            match self.write_until(self.before_now())? {
                Some(true) => self.progress.show(&self.output),
                Some(false) => {
                    // Readers of the file see all but the newest frames.
                    self.output.flush()?;
                    thread::sleep(NAP);
                }
                None => {
                    self.output.finish()?;
                    return Ok(Written::Full);
                }
            }
        }
    }

    /// Frames from before this time have reached their rings.
    fn before_now(&self) -> Instant {
        let held = u64::try_from(ORDERING.as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(self.clock.now().as_nanos().saturating_sub(held))
    }

    /// Writes the frames up to a time, in order. Returns whether there were any; `None` if the file is full.
    fn write_until(&mut self, until: Instant) -> io::Result<Option<bool>> {
        let (mut any, mut frame, mut comment) = (false, Vec::new(), String::new());
        loop {
            let fronts =
                self.sources.iter_mut().enumerate().filter_map(|(place, source)| Some((source.front()?, place)));
            let Some((at, place)) = fronts.min() else { return Ok(Some(any)) };
            if at > until {
                return Ok(Some(any));
            }
            let Some(header) = self.sources[place].take(&mut frame) else { return Ok(Some(any)) };
            header.comment(&mut comment);
            let packet = Packet {
                interface: header.port.0.into(),
                time: self.epoch + header.at.as_nanos(),
                sent: matches!(header.direction, Direction::Tx),
                bytes: &frame,
                len: header.len,
                comment: &comment,
            };
            if self.output.write(&packet, header.lost)? == Written::Full {
                return Ok(None);
            }
            self.progress.frames.inc();
            any = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use rtrb::{Producer, RingBuffer};
    use rxe_inspect::capture::CaptureSettings;
    use rxe_inspect::pcapng::Interface;
    use rxe_proto::wire::PortId;

    use super::*;
    use crate::worker::capture::Outcome;
    use crate::worker::orders::order_channel;

    fn put(ring: &mut Producer<u8>, at: u64, lost: u32, frame: &[u8]) {
        let len = frame.len() as u32;
        let header = Header {
            at: Instant::from_nanos(at),
            len,
            kept: len,
            port: PortId(0),
            direction: Direction::Rx,
            outcome: Outcome::default(),
            lost,
        };
        ring.push_entire_slice(&header.to_bytes()).unwrap();
        ring.push_entire_slice(frame).unwrap();
    }

    /// The offsets of the parts in the file; panics if one is missing.
    fn places<const N: usize>(file: &[u8], parts: [&[u8]; N]) -> [usize; N] {
        parts.map(|part| file.windows(part.len()).position(|window| window == part).unwrap())
    }

    #[test]
    fn frames_of_several_lcores_are_merged_by_time() {
        let path = std::env::temp_dir().join(format!("rxe-capture-{}-order", std::process::id()));
        let port = Interface { name: "eth0".into(), description: "port 1".into(), mac: Default::default() };
        let output = Output::create(CaptureSettings::new(path.clone()), vec![port], Vec::new()).unwrap();
        let (mut first, one) = RingBuffer::new(1024);
        let (mut second, two) = RingBuffer::new(1024);
        put(&mut first, 10, 0, b"second");
        put(&mut first, 30, 2, b"fourth");
        put(&mut second, 5, 0, b"the first");
        put(&mut second, 20, 0, b"third!");
        drop((first, second));
        let (worker, mut orders) = order_channel(None);
        let clock = SharedClock::new(|| Instant::from_nanos(u64::MAX));
        let writer = Writer::new(vec![one, two], output, clock, vec![worker]);
        let progress = Arc::clone(writer.progress());
        writer.run();
        let file = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((progress.frames.get(), progress.bytes.get()), (4, file.len() as u64));
        assert!(progress.broken_off.lock().unwrap().is_none() && !orders.read(), "workers get no order");
        let parts: [&[u8]; 5] = [b"the first", b"second", b"third!", b"fourth", b"not captured: 2 before this one"];
        assert!(places(&file, parts).is_sorted());
        // At the end: four received, and two that are missing.
        assert!(
            file.windows(24).any(|end| end == [4, 0, 8, 0, 6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0])
        );
    }

    #[test]
    fn a_full_file_ends_the_capture_and_the_recorders() {
        let path = std::env::temp_dir().join(format!("rxe-capture-{}-writer-full.pcapng", std::process::id()));
        let settings = CaptureSettings { size: Some(1), ..CaptureSettings::new(path.clone()) };
        let port = Interface { name: "eth0".into(), description: "port 1".into(), mac: Default::default() };
        let output = Output::create(settings, vec![port], Vec::new()).unwrap();
        let (mut ring, other) = RingBuffer::new(4 << 20);
        for at in 0..20 {
            put(&mut ring, at, 0, &[7; 100_000]);
        }
        let (worker, mut orders) = order_channel(None);
        let clock = SharedClock::new(|| Instant::from_nanos(1 << 40));
        let writer = Writer::new(vec![other], output, clock, vec![worker]);
        let progress = Arc::clone(writer.progress());
        writer.run();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(progress.frames.get(), 10);
        assert!(progress.broken_off.lock().unwrap().as_ref().is_some_and(|why| why.contains("the size")));
        assert!(orders.read() && orders.capture.is_some_and(|order| order.recorders.is_none()));
        assert!(ring.is_abandoned(), "recorders see that the reader is gone");
    }
}
