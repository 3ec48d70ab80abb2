//! The adapter of one process: engine, connection manager and UDP port, and the thread that drives them.
//!
//! ```text
//!   threads of the program                            the adapter's thread
//!   ──────────────────────                            ────────────────────
//!   write(uverbs0), write(rdma_cm)                    wait: packets, timers, a wake-up
//!          │                                                │
//!          └──> lock ──> State: command, turn <── lock <── burst
//! ```
//!
//! A command is executed by the thread of the program that writes it, and so is the transmission that it causes: a doorbell costs
//! no switch to another thread. The adapter's thread receives packets and handles timers; it sleeps while there is neither. Both
//! hold the lock of the state while they work on it, and never while they wait.

mod addressee;
mod capture_file;
mod groups;
mod manage;
mod port;
mod share;
mod state;
mod thread;
mod tx;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nix::errno::Errno;
use rxe_adapter::manage::CaptureError;
use rxe_adapter::worker::clock::SharedClock;
use rxe_proto::Instant;
use rxe_udp::{OpenError, Waker};

use crate::address::AddressError;
use crate::backend::{Answer, Backend, Device, Objects, Opened};
use crate::descriptors::{Descriptors, File, Kind, PRIVATE, lowest_private};
use crate::inside::without_signals;
use crate::instance::Info;
use crate::local::Local;
use crate::settings::Settings;
use crate::user;
use crate::uverbs::{Mapped, Uverbs};
use capture_file::CaptureFile;
use manage::{Management, PortStats, senders};
use port::Opened as OpenedPort;
use state::State;

/// The adapter of this process. See the [module](self).
pub struct Adapter {
    local: Local,
    shared: Arc<Shared>,
    /// Where the program's descriptors are entered.
    descriptors: &'static Descriptors,
    /// The thread that drives the adapter, until it has ended.
    thread: Mutex<Option<JoinHandle<()>>>,
    management: Management,
    _capture_file: Option<CaptureFile>,
}

/// State shared by the threads.
struct Shared {
    address: IpAddr,
    state: Mutex<State>,
    waker: Waker,
    /// Signal handlers have posted work requests, which are in their queues.
    missed_doorbells: AtomicBool,
    /// The thread has joined and left groups.
    groups_changed: Condvar,
    clock: Clock,
    /// The counters of the UDP port.
    port_stats: PortStats,
}

impl Shared {
    /// The state.
    ///
    /// # Errors
    /// `EIO`: a thread has panicked with it.
    fn lock(&self) -> Result<MutexGuard<'_, State>, Errno> {
        self.state.lock().map_err(|_| Errno::EIO)
    }

    /// Runs `work` on the state, and everything that it has made due. The thread is woken for what only it can do.
    fn run<T>(&self, work: impl FnOnce(&mut State, Instant) -> T) -> Result<T, Errno> {
        let mut state = self.lock()?;
        let now = self.clock.now();
        let result = work(&mut state, now);
        let wake = state.turn(now) && state.wants_thread(now);
        drop(state);
        if wake {
            self.waker.wake();
        }
        Ok(result)
    }

    /// The state, for a turn of the thread.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    fn lock_for_turn(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let mut state = self.lock()?;
        if self.missed_doorbells.swap(false, Ordering::Acquire) {
            state.ring_all();
        }
        Ok(state)
    }

    /// The adapter has ended: commands fail, and nobody waits for it any more.
    fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).end();
        self.groups_changed.notify_all();
    }

    /// Waits until the port is a member of the groups that the program wants: what a peer sends from then on is received.
    fn wait_for_groups(&self) -> Result<(), Errno> {
        let mut state = self.lock()?;
        while !state.groups().are_joined() && !state.has_ended() && !state.is_ending() {
            self.waker.wake();
            state = self.groups_changed.wait(state).map_err(|_| Errno::EIO)?;
        }
        Ok(())
    }
}

/// What is known of the adapter at an address before it is made.
///
/// # Errors
/// No interface has the address.
pub fn local(address: IpAddr) -> Result<Local, AdapterError> {
    Ok(port::local(address).map_err(AddressError::Port)?)
}

/// Time since the adapter was made.
#[derive(Clone, Copy, Debug)]
struct Clock(std::time::Instant);

impl Clock {
    fn now(self) -> Instant {
        Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }

    fn shared(self) -> SharedClock {
        SharedClock::new(move || self.now())
    }
}

/// Why there is no adapter.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// It has no address.
    #[error(transparent)]
    Address(#[from] AddressError<OpenError>),
    /// The operating system gives no random bytes.
    #[error("the operating system gives no random bytes: {0}")]
    NoRandomness(#[from] getrandom::Error),
    /// There are no more descriptors.
    #[error("no event descriptor: {0}")]
    Descriptors(#[source] io::Error),
    /// There are no more threads.
    #[error("no thread can be started: {0}")]
    Threads(#[source] io::Error),
    /// There is no capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

impl AdapterError {
    /// The error of the program's `open`: that the address is in use, or that there is no device.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            AdapterError::Address(AddressError::InUse { .. } | AddressError::Full { .. }) => Errno::EADDRINUSE,
            _ => Errno::ENODEV,
        }
    }
}

impl Adapter {
    /// Takes an address, which may be one that another process of this user has if the settings name it, and starts an adapter without
    /// objects. What it gives to the program is entered in `descriptors`.
    ///
    /// # Errors
    /// The address cannot be taken.
    pub fn new(settings: &Settings, descriptors: &'static Descriptors) -> Result<Adapter, AdapterError> {
        let waker = Waker::new(lowest_private()).map_err(AdapterError::Descriptors)?;
        PRIVATE.add(waker.as_fd().as_raw_fd());
        let OpenedPort { half, tx, receive_buffer, worker, local, routes, stats } =
            port::open(settings.address, &waker)?;
        let (senders, mail) = senders(&waker);
        let mut state = State::new(local.clone(), routes, tx, receive_buffer, worker, descriptors, mail)?;
        let (clock, port_stats) = (Clock(std::time::Instant::now()), PortStats::new(Mutex::new(stats)));
        let management = Management::new(senders, &state, &local, clock.shared(), &port_stats);
        let capture_file = match &settings.capture {
            Some(path) => Some(CaptureFile::new(path)?),
            None => None,
        };
        if let Some(file) = &capture_file {
            without_signals(|| management.capture(file.path().to_owned())).map_err(AdapterError::Threads)??;
            // From the first packet on.
            state.serve_management(clock.now());
        }
        let shared = Shared {
            address: local.address,
            state: Mutex::new(state),
            waker,
            missed_doorbells: AtomicBool::new(false),
            groups_changed: Condvar::new(),
            clock,
            port_stats,
        };
        let shared = Arc::new(shared);
        // At once, as processes that share the address may come at any time.
        let thread = thread::start(half, Arc::clone(&shared)).map_err(AdapterError::Threads)?;
        let thread = Mutex::new(Some(thread));
        Ok(Adapter { local, shared, descriptors, thread, management, _capture_file: capture_file })
    }

    fn uverbs(&self, handle: u32, command: &[u8]) -> Result<Answer, Errno> {
        let mapped = Mapped::of_command(command);
        let (new_channel, wait) = self.shared.run(|state, now| {
            let channel = state.uverbs_command(now, handle, command, mapped)?;
            Ok::<_, Errno>((channel, !state.groups().are_joined()))
        })??;
        if let Some((handle, fd)) = new_channel {
            self.enter_channel(handle, fd);
        }
        if wait {
            self.shared.wait_for_groups()?;
        }
        Ok(Answer::Done)
    }

    fn rdma_cm(&self, handle: u32, command: &[u8], byte_read: bool) -> Result<Answer, Errno> {
        let (answer, wait) = self.shared.run(|state, now| {
            let answer = state.rdma_cm_command(now, handle, command, byte_read)?;
            Ok::<_, Errno>((answer, !state.groups().are_joined()))
        })??;
        if wait {
            self.shared.wait_for_groups()?;
        }
        Ok(answer)
    }

    /// Gives an event channel to the program, and notes its descriptor, to be told its end.
    fn enter_channel(&self, handle: u32, fd: OwnedFd) {
        match self.descriptors.insert(&fd, File { kind: Kind::Channel, handle }) {
            Ok(Some(before)) if !before.inherited => self.close(before.file),
            Ok(_) => {}
            // Its end is not seen then: it takes up memory until its context is closed.
            Err(error) => tracing::debug!("{fd:?} of an event channel is not watched: {error}"),
        }
        let _of_the_program = fd.into_raw_fd();
    }
}

impl Backend for Adapter {
    fn local(&self) -> &Local {
        &self.local
    }

    fn objects(&self) -> Objects {
        self.shared.lock().map(|state| state.objects()).unwrap_or_default()
    }

    fn set_folder(&self, folder: &Path, info: Info) {
        if let Err(error) = self.management.serve(folder, info) {
            tracing::warn!("rxe-ctl cannot reach this program: {error}");
        }
    }

    fn open(&self, device: Device) -> Result<Opened, Errno> {
        let (handle, fd) = self.shared.run(|state, _| state.open(device))??;
        Ok(Opened { fd, handle })
    }

    fn write(&self, file: File, command: &[u8], byte_read: bool) -> Result<Answer, Errno> {
        match file.kind {
            Kind::Uverbs => self.uverbs(file.handle, command),
            Kind::RdmaCm => self.rdma_cm(file.handle, command, byte_read),
            Kind::Channel | Kind::Netlink => Err(Errno::EINVAL),
        }
    }

    fn ioctl(&self, file: File, at: u64) -> Result<(), Errno> {
        self.shared.lock()?.uverbs_ioctl(file.handle, at)
    }

    fn interrupting(&self, file: File, command: &[u8]) -> bool {
        let is_doorbell = file.kind == Kind::Uverbs && Uverbs::is_doorbell(command);
        if is_doorbell {
            self.shared.missed_doorbells.store(true, Ordering::Release);
            self.shared.waker.wake();
        }
        is_doorbell
    }

    fn close(&self, file: File) {
        // An adapter that has panicked has nothing left to close.
        let _ = self.shared.run(|state, now| state.close(now, file));
    }

    fn forked(&self) {
        user::forked();
    }

    fn shutdown(&self) {
        // An adapter that has panicked has nothing to send, and its threads may not end. The thread does the rest: in the one that
        // exits, variables of threads, which the log has some of, are gone by now.
        if self.shared.lock().map(|mut state| state.begin_end()).is_err() {
            return;
        }
        self.shared.waker.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread has caught its panics.
        let _ = thread.map(JoinHandle::join);
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).end_capture();
        self.management.finish_capture();
    }
}
