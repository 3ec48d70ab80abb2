//! Captures: frames of both directions into a pcapng file, with what came of each, while the target runs.
//!
//! A [`Capture`] starts and stops them, from any thread. Each lcore gets recorders by message, which copy frames into
//! rings that nobody else puts into; one thread, which is no lcore, takes them out, puts them in order and writes the file.
//! A ring that is full costs the capture a frame, and the target nothing. Where there is no capture the recorders are
//! `None`s that are looked at once per burst.
//!
//! What is received is recorded after the worker has dealt with it, so that its comment can say what came of it: what was
//! counted meanwhile. What is sent is recorded when it is offered to the port, sealed and after any faults made on purpose.

mod filter;
mod output;
mod pcapng;
mod record;
mod recorder;
mod writer;

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rtrb::Consumer;
use rxe_inspect::capture::{CaptureSettings, CaptureStatus};
use rxe_proto::transport::{QpType, TransportStats};
use rxe_proto::wire::{DropCounters, PortId};

use super::LocalPort;
use super::orders::Order;
use crate::eal::{Clock, PortInfo};
use crate::telemetry::{InspectError, Inspector};
use filter::{Filter, WantedQp};
use output::Output;
use pcapng::Interface;
pub use recorder::CaptureStats;
use recorder::Recorder;
pub(crate) use recorder::{RxRecorder, TxRecorder};
use writer::{Progress, Writer};

/// Bytes of a ring: some milliseconds at 10 Gbit/s. Memory that was never written is not taken.
const RING: usize = 8 << 20;

/// How long the lcores may take to begin, and the rest of a capture to be written.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same at the end of the adapter, which is to take 3 s at most.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Why there is no capture. Each is one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CaptureError {
    /// The settings make no sense.
    #[error("{0}")]
    Settings(String),
    /// One is enough.
    #[error("the capture {0} is running: stop it first")]
    Running(String),
    /// There is nothing to stop.
    #[error("no capture is running")]
    NotRunning,
    /// There is nothing to tell.
    #[error("there has been no capture")]
    None,
    /// The file cannot be made.
    #[error("the capture file {file} cannot be made ({problem}): choose another place")]
    File {
        /// The file.
        file: String,
        /// Why not.
        problem: String,
    },
    /// What is sent to its peer cannot be told from other packets yet.
    #[error("queue pair {0:#x} has no peer yet: start the capture when it is connected")]
    NoPeer(u32),
    /// A queue pair cannot be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// There is no thread for it.
    #[error("the system gives no thread to write the capture ({0}): allow more threads")]
    Thread(String),
    /// The disk is slow.
    #[error("the capture has ended, but its last frames are still being written: ask for its status")]
    StillWriting,
}

/// What a worker is to do about captures. The last one counts.
#[derive(Debug)]
pub(crate) struct CaptureOrder {
    /// What it records with from now on; `None` ends that.
    pub(crate) recorders: Option<Recorders>,
    /// Told when it does so.
    pub(crate) done: Option<SyncSender<()>>,
}

/// The recorders of one worker.
#[derive(Debug)]
pub(crate) struct Recorders {
    pub(crate) rx: Box<RxRecorder>,
    /// By port.
    pub(crate) tx: Vec<LaneRecorders>,
}

/// The recorders of a worker's way to a port.
#[derive(Debug)]
pub(crate) struct LaneRecorders {
    /// What the port is offered, if the worker has the transmit queue.
    pub(crate) sent: TxRecorder,
    /// What faults on purpose drop before that.
    pub(crate) injected: TxRecorder,
}

impl CaptureOrder {
    fn stop() -> CaptureOrder {
        CaptureOrder { recorders: None, done: None }
    }
}

/// What one worker counts, as far as captures look at it.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    /// Dropped packets by reason: all counters that the worker writes.
    pub(crate) drops: Vec<Arc<DropCounters>>,
    pub(crate) transport: Arc<TransportStats>,
    pub(crate) stats: Arc<CaptureStats>,
}

/// What a [`Capture`] is made of.
pub(crate) struct Parts {
    pub(crate) inspector: Inspector,
    pub(crate) workers: Vec<Sender<Order>>,
    pub(crate) counted: Vec<Counted>,
    pub(crate) clock: Clock,
}

/// The captures of a running adapter, one at a time. Copies are of the same.
#[derive(Clone)]
pub struct Capture(Arc<Inner>);

struct Inner {
    parts: Parts,
    interfaces: Vec<Interface>,
    session: Mutex<Option<Session>>,
}

/// A capture that was started.
struct Session {
    settings: CaptureSettings,
    since: Instant,
    /// Frames lost by those before it.
    lost_before: u64,
    progress: Arc<Progress>,
    /// Until it has ended.
    thread: Option<JoinHandle<()>>,
    /// How long it took, and what was lost.
    end: Option<(Duration, u64)>,
}

impl Capture {
    pub(crate) fn new<'a>(parts: Parts, ports: impl Iterator<Item = (&'a PortInfo, &'a LocalPort)>) -> Capture {
        let interfaces = ports.map(|(info, local)| Interface {
            name: info.name.clone(),
            description: format!("port {}", u32::from(local.id.0) + 1),
            mac: local.mac,
        });
        Capture(Arc::new(Inner { interfaces: interfaces.collect(), parts, session: Mutex::default() }))
    }

    /// Starts a capture. It goes on when this returns.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn start(&self, settings: CaptureSettings) -> Result<(), CaptureError> {
        let (done, begun) = sync_channel(self.0.parts.workers.len());
        self.begin(settings, Some(done))?;
        self.await_all(&begun);
        Ok(())
    }

    /// Starts a capture of an adapter that does not run yet: it goes on from the first frame. The thread that writes it
    /// may run where the calling one may.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn start_early(&self, settings: CaptureSettings) -> Result<(), CaptureError> {
        self.begin(settings, None)
    }

    /// Ends the capture. Its file is complete when this returns.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn stop(&self) -> Result<CaptureStatus, CaptureError> {
        let mut guard = self.lock();
        let session = guard.as_mut().filter(|session| session.is_running()).ok_or(CaptureError::NotRunning)?;
        for worker in &self.0.parts.workers {
            // A worker that is gone records nothing.
            let _ = worker.send(Order::Capture(Box::new(CaptureOrder::stop())));
        }
        let ended = session.await_end(PATIENCE);
        self.0.settle(session);
        if ended { Ok(self.0.status(session)) } else { Err(CaptureError::StillWriting) }
    }

    /// The capture that is running, or was the last one.
    ///
    /// # Errors
    /// [`CaptureError::None`].
    pub fn status(&self) -> Result<CaptureStatus, CaptureError> {
        let mut guard = self.lock();
        let session = guard.as_mut().ok_or(CaptureError::None)?;
        self.0.settle(session);
        Ok(self.0.status(session))
    }

    /// Waits until everything is written. To be called when no worker is left.
    pub(crate) fn finish(&self) {
        if let Some(session) = self.lock().as_mut()
            && !session.await_end(LAST_PATIENCE)
        {
            let file = session.settings.file.display();
            tracing::warn!("the end of the capture {file} is missing: it could not be written fast enough");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Session>> {
        self.0.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, settings: CaptureSettings, done: Option<SyncSender<()>>) -> Result<(), CaptureError> {
        let inner = &*self.0;
        let mut guard = self.lock();
        if let Some(session) = guard.as_ref().filter(|session| session.is_running()) {
            return Err(CaptureError::Running(session.settings.file.display().to_string()));
        }
        settings.check().map_err(CaptureError::Settings)?;
        let filter = Arc::new(inner.filter(&settings)?);
        let output = Output::create(settings.clone(), inner.interfaces.clone()).map_err(|error| {
            CaptureError::File { file: settings.file.display().to_string(), problem: reason(&error) }
        })?;
        let mut rings = Vec::new();
        let recorders: Vec<Recorders> = inner
            .parts
            .counted
            .iter()
            .map(|counted| inner.recorders(counted, &filter, &settings, &mut rings))
            .collect();
        let clock = inner.parts.clock;
        let writer = Writer::new(rings, output, Box::new(move || clock.now()), inner.parts.workers.clone());
        let progress = Arc::clone(writer.progress());
        let thread = thread::Builder::new().name("rxe-capture".to_owned()).spawn(move || writer.run());
        let thread = thread.map_err(|error| CaptureError::Thread(reason(&error)))?;
        tracing::info!("capturing to {}", progress.file.lock().unwrap_or_else(PoisonError::into_inner).display());
        *guard = Some(Session {
            settings,
            since: Instant::now(),
            lost_before: inner.lost(),
            progress,
            thread: Some(thread),
            end: None,
        });
        for (worker, recorders) in inner.parts.workers.iter().zip(recorders) {
            let order = CaptureOrder { recorders: Some(recorders), done: done.clone() };
            // A worker that is gone has nothing to record.
            let _ = worker.send(Order::Capture(Box::new(order)));
        }
        Ok(())
    }

    /// Waits until every worker records.
    fn await_all(&self, begun: &Receiver<()>) {
        let deadline = Instant::now() + PATIENCE;
        for _ in &self.0.parts.workers {
            // Without an answer the worker has left, or is busy beyond measure and records when it comes to it.
            if begun.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
        }
    }
}

impl Inner {
    /// What `settings` are for, with the peers of the queue pairs as they are now.
    fn filter(&self, settings: &CaptureSettings) -> Result<Filter, CaptureError> {
        let wanted = |&qpn: &u32| -> Result<WantedQp, CaptureError> {
            // What the connection manager sends are datagrams.
            if qpn == 1 {
                return Ok(WantedQp { qpn, peer: None });
            }
            let entry = self.parts.inspector.qp_entry(qpn)?;
            let peer = match (&entry.info.path, entry.info.dest_qpn) {
                _ if entry.info.qp_type == QpType::Ud => None,
                (Some(path), Some(peer)) => Some((path.dst.ip(), peer.get())),
                _ => return Err(CaptureError::NoPeer(qpn)),
            };
            Ok(WantedQp { qpn, peer })
        };
        let qps = settings.qpns.iter().map(wanted).collect::<Result<_, _>>()?;
        Ok(Filter { qps, peers: settings.peers.iter().map(IpAddr::to_canonical).collect() })
    }

    fn recorders(
        &self,
        counted: &Counted,
        filter: &Arc<Filter>,
        settings: &CaptureSettings,
        rings: &mut Vec<Consumer<u8>>,
    ) -> Recorders {
        let mut recorder = || {
            let snaplen = settings.snaplen as usize;
            let (recorder, ring) = Recorder::new(RING, Arc::clone(filter), snaplen, Arc::clone(&counted.stats));
            rings.push(ring);
            recorder
        };
        let rx = Box::new(RxRecorder::new(recorder(), counted.drops.clone(), Arc::clone(&counted.transport)));
        let clock = self.parts.clock;
        let ports = (0..self.interfaces.len()).filter_map(|port| u16::try_from(port).ok()).map(PortId);
        let tx = ports.map(|port| LaneRecorders {
            sent: TxRecorder::new(recorder(), port, clock),
            injected: TxRecorder::new(recorder(), port, clock),
        });
        let tx = tx.collect();
        Recorders { rx, tx }
    }

    /// Frames that captures have missed since the start of the adapter.
    fn lost(&self) -> u64 {
        self.parts.counted.iter().map(|counted| counted.stats.ring_full.get()).sum()
    }

    /// Notes the end of a capture, if it has come.
    fn settle(&self, session: &mut Session) {
        if session.end.is_none() && !session.is_running() {
            session.end = Some((session.since.elapsed(), self.lost() - session.lost_before));
        }
    }

    fn status(&self, session: &Session) -> CaptureStatus {
        let Session { settings, since, lost_before, progress, end, .. } = session;
        let (time, lost) = end.unwrap_or_else(|| (since.elapsed(), self.lost() - lost_before));
        let why = || progress.broken_off.lock().unwrap_or_else(PoisonError::into_inner).clone();
        CaptureStatus {
            running: end.is_none(),
            settings: settings.clone(),
            file: progress.file.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            seconds: time.as_secs(),
            frames: progress.frames.get(),
            bytes: progress.bytes.get(),
            lost,
            ended: end.is_some().then(|| why().unwrap_or_else(|| "it was stopped".to_owned())),
        }
    }
}

impl Session {
    fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits for the end; `false` when that takes too long.
    fn await_end(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_running() {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(thread) = self.thread.take() {
            // A panic of it has been reported where it was.
            let _ = thread.join();
        }
        true
    }
}

/// A system's error without its number, which says nothing to a user.
fn reason(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}
