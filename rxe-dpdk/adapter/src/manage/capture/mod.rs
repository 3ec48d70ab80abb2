//! Captures of a running adapter: frames of both directions, with their outcome, in a pcapng file.
//!
//! [`Capture`] starts and stops them, from any thread. By order, each worker gets recorders, which copy frames into rings
//! with one producer each; one thread, which is no lcore, empties the rings, merges the frames by time and writes the
//! file. If a ring is full, the capture loses a frame, and the target nothing. A worker without recorders checks an
//! `Option` once per burst.

mod output;
mod writer;

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rxe_inspect::capture::{CaptureSettings, CaptureStatus};
use rxe_inspect::event::EventKind;
pub use rxe_inspect::pcapng::Interface;
use rxe_proto::cm::Handshake;
use rxe_proto::transport::QpType;

use super::inspector::{InspectError, Inspector};
use crate::worker::capture::{Filter, Recorded, Recorders, WantedQp};
use crate::worker::clock::SharedClock;
use crate::worker::orders::{CaptureOrder, Order, OrderSender};
use output::Output;
use writer::{CaptureEnd, Progress, Writer};

/// How long the workers may take to start, and the writer to write the last frames.
const PATIENCE: Duration = Duration::from_secs(5);

/// The same at shutdown, which takes at most 3 s.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Why a capture has ended, unless something broke it off.
const STOPPED: &str = "it was stopped";

/// Why a capture cannot start, stop or report. Each message is one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CaptureError {
    /// The settings are invalid.
    #[error("{0}")]
    Settings(String),
    /// Only one capture runs at a time.
    #[error("the capture {0} is running: stop it first")]
    Running(String),
    /// No capture to stop.
    #[error("no capture is running")]
    NotRunning,
    /// No capture to report on.
    #[error("there has been no capture")]
    None,
    /// The file cannot be created.
    #[error("the capture file {file} cannot be made ({problem}): choose another place")]
    File {
        /// The file.
        file: String,
        /// The cause.
        problem: String,
    },
    /// The packets sent to the peer of a queue pair cannot be recognised before it is connected.
    #[error("queue pair {0:#x} has no peer yet: start the capture when it is connected")]
    NoPeer(u32),
    /// The inspection of a queue pair failed.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The writer thread cannot be started.
    #[error("the system gives no thread to write the capture ({0}): allow more threads")]
    Thread(String),
    /// The file is not complete yet.
    #[error("the capture has ended, but its last frames are still being written: ask for its status")]
    StillWriting,
}

/// The parts of a [`Capture`].
pub struct Parts {
    /// For the peers of queue pairs that a capture selects, and for events.
    pub inspector: Inspector,
    /// By worker number.
    pub workers: Vec<OrderSender>,
    /// By worker number.
    pub recorded: Vec<Recorded>,
    /// The ports, by number.
    pub interfaces: Vec<Interface>,
    /// The lcores' clock.
    pub clock: SharedClock,
}

/// The captures of a running adapter, one at a time. A cheap handle: clones share the capture.
#[derive(Clone)]
pub struct Capture(Arc<Inner>);

struct Inner {
    parts: Parts,
    session: Mutex<Option<Session>>,
}

/// The capture that runs, or ran last.
struct Session {
    settings: CaptureSettings,
    since: Instant,
    /// Frames lost by earlier captures.
    lost_before: u64,
    progress: Arc<Progress>,
    /// The writer; `None` once it has ended.
    thread: Option<JoinHandle<()>>,
    /// Duration and lost frames, once it has ended.
    end: Option<(Duration, u64)>,
}

impl Capture {
    /// No capture runs yet.
    pub fn new(parts: Parts) -> Capture {
        Capture(Arc::new(Inner { parts, session: Mutex::default() }))
    }

    /// Starts a capture. Every worker records when this returns.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn start(&self, settings: CaptureSettings) -> Result<(), CaptureError> {
        let (done, begun) = sync_channel(self.0.parts.workers.len());
        self.launch(settings, Some(done))?;
        self.await_all(&begun);
        Ok(())
    }

    /// Starts a capture before the adapter runs: it records from the first frame on. The writer thread inherits the CPU
    /// affinity of the caller.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn start_early(&self, settings: CaptureSettings) -> Result<(), CaptureError> {
        self.launch(settings, None)
    }

    /// Stops the capture. Its file is complete when this returns.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn stop(&self) -> Result<CaptureStatus, CaptureError> {
        let mut guard = self.lock();
        let session = guard.as_mut().filter(|session| session.is_running()).ok_or(CaptureError::NotRunning)?;
        for worker in &self.0.parts.workers {
            // A worker that has ended records nothing.
            let _ = worker.send(Order::Capture(Box::new(CaptureOrder::stop())));
        }
        let ended = session.await_end(PATIENCE);
        self.0.note_end(session);
        if ended { Ok(self.0.status(session)) } else { Err(CaptureError::StillWriting) }
    }

    /// The status of the capture that runs, or ran last.
    ///
    /// # Errors
    /// [`CaptureError::None`].
    pub fn status(&self) -> Result<CaptureStatus, CaptureError> {
        let mut guard = self.lock();
        let session = guard.as_mut().ok_or(CaptureError::None)?;
        self.0.note_end(session);
        Ok(self.0.status(session))
    }

    /// Waits until everything is written. Called when no worker is left.
    pub fn finish(&self) {
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

    fn launch(&self, settings: CaptureSettings, done: Option<SyncSender<()>>) -> Result<(), CaptureError> {
        let inner = &*self.0;
        let mut guard = self.lock();
        if let Some(session) = guard.as_ref().filter(|session| session.is_running()) {
            return Err(CaptureError::Running(session.settings.file.display().to_string()));
        }
        settings.check().map_err(CaptureError::Settings)?;
        let filter = Arc::new(inner.filter(&settings)?);
        // Workers that do not run yet have no connections.
        let known = if done.is_some() { inner.handshakes(&settings) } else { Vec::new() };
        let output = Output::create(settings.clone(), inner.parts.interfaces.clone(), known).map_err(|error| {
            CaptureError::File { file: settings.file.display().to_string(), problem: reason(&error) }
        })?;
        let mut rings = Vec::new();
        let (ports, snaplen) = (inner.parts.interfaces.len() as u16, settings.snaplen as usize);
        let workers = inner.parts.recorded.iter();
        let recorders: Vec<Recorders> =
            workers.map(|recorded| recorded.recorders(ports, &filter, snaplen, &mut rings)).collect();
        let writer = Writer::new(rings, output, inner.parts.clock.clone(), inner.parts.workers.clone());
        let progress = Arc::clone(writer.progress());
        let file = progress.file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (started, events) = (file.clone(), inner.parts.inspector.events().clone());
        let run = move || {
            events.publish(|| EventKind::CaptureStarted { file: started });
            let CaptureEnd { file, frames, reason } = writer.run();
            events.publish(|| EventKind::CaptureStopped { file, frames, reason });
        };
        let thread = thread::Builder::new().name("rxe-capture".to_owned()).spawn(run);
        let thread = thread.map_err(|error| CaptureError::Thread(reason(&error)))?;
        tracing::info!("capturing to {}", file.display());
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
            // A worker that has ended has nothing to record.
            let _ = worker.send(Order::Capture(Box::new(order)));
        }
        Ok(())
    }

    /// Waits until every worker has applied the order.
    fn await_all(&self, begun: &Receiver<()>) {
        let deadline = Instant::now() + PATIENCE;
        for _ in &self.0.parts.workers {
            // Without an answer the worker has ended, or applies the order later.
            if begun.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                return;
            }
        }
    }
}

impl Inner {
    /// The filter for `settings`, with the present peers of the queue pairs.
    fn filter(&self, settings: &CaptureSettings) -> Result<Filter, CaptureError> {
        let wanted = |&qpn: &u32| -> Result<WantedQp, CaptureError> {
            // QP1 sends datagrams.
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

    /// The messages that made the connections whose packets `settings` select: without them, a reader of the file does not know
    /// what these packets are.
    fn handshakes(&self, settings: &CaptureSettings) -> Vec<Handshake> {
        let mut known = self.parts.inspector.handshakes().unwrap_or_else(|error| {
            // A capture may be to find out why.
            tracing::warn!("the capture begins without the messages that made the connections: {error}");
            Vec::new()
        });
        known.retain(|Handshake { local_qpn, path, .. }| {
            (settings.qpns.is_empty() || settings.qpns.contains(&local_qpn.get()))
                && (settings.peers.is_empty()
                    || settings.peers.iter().any(|peer| peer.to_canonical() == path.peer.ip().to_canonical()))
        });
        known
    }

    /// Frames lost by all captures since the start of the adapter.
    fn lost(&self) -> u64 {
        self.parts.recorded.iter().map(|recorded| recorded.stats.ring_full.get()).sum()
    }

    /// Notes duration and losses if the writer has ended.
    fn note_end(&self, session: &mut Session) {
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
            ended: end.is_some().then(|| why().unwrap_or_else(|| STOPPED.to_owned())),
        }
    }
}

impl Session {
    fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits for the writer; returns false on timeout.
    fn await_end(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.is_running() {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        if let Some(thread) = self.thread.take() {
            // Its panic was reported already.
            let _ = thread.join();
        }
        true
    }
}

/// A system error without its number.
fn reason(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}
