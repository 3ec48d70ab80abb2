//! The adapter of this process: made when the program first looks at one of our paths, ended with the process, forgotten in
//! the child of a fork.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::{ptr, thread};

use nix::errno::Errno;
use nix::unistd::{Pid, getpid};
use rxe_uverbs::backend::Backend;
use rxe_uverbs::descriptors::Descriptors;
use rxe_uverbs::instance::{Info, Instance};
use rxe_uverbs::settings::Settings;
use rxe_uverbs::sysfs;

use crate::adapter;
use crate::guard::guarded;
use crate::log::{self, say};
use crate::waits::Waits;

/// The descriptors of this process that are ours.
pub static DESCRIPTORS: Descriptors = Descriptors::new();

/// The adapter and what belongs to it. It is never dropped: other threads may use it until the process ends.
pub struct Process {
    pid: Pid,
    folder: Vec<u8>,
    instance: Instance,
    /// The adapter.
    pub backend: Box<dyn Backend>,
    /// Threads that wait for events.
    pub waits: Waits,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Held while the adapter is made, and during a fork.
static BUSY: Busy = Busy(AtomicBool::new(false));
/// The adapter cannot be made. The reason was printed, and it would be the same again.
static FAILED: AtomicBool = AtomicBool::new(false);

/// A lock that the child of a fork can release.
struct Busy(AtomicBool);

impl Busy {
    fn lock(&self) {
        while self.0.swap(true, Ordering::Acquire) {
            hint::spin_loop();
            thread::yield_now();
        }
    }

    fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Process {
    /// The adapter, if it was made.
    pub fn current() -> Option<&'static Process> {
        // SAFETY: the pointer is null or comes from `Box::leak`, so what it refers to is never freed.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    /// The adapter, which is made if there is none.
    ///
    /// # Errors
    /// `ENODEV`: it cannot be made.
    pub fn get() -> Result<&'static Process, Errno> {
        if let Some(process) = Process::current() {
            return Ok(process);
        }
        BUSY.lock();
        let result = match Process::current() {
            Some(process) => Ok(process),
            None => guarded(Process::make),
        };
        BUSY.unlock();
        result
    }

    fn make() -> Result<&'static Process, Errno> {
        if FAILED.load(Ordering::Relaxed) {
            return Err(Errno::ENODEV);
        }
        // Also after a panic.
        FAILED.store(true, Ordering::Relaxed);
        let process = Process::try_make().map_err(|error| {
            say(format_args!("no RDMA device: {error}"));
            Errno::ENODEV
        })?;
        CURRENT.store(ptr::from_ref(process).cast_mut(), Ordering::Release);
        FAILED.store(false, Ordering::Relaxed);
        Ok(process)
    }

    fn try_make() -> Result<&'static Process, Box<dyn std::error::Error>> {
        let settings = Settings::from_env()?;
        log::start(settings.log);
        watch_forks()?;
        let backend = adapter::new(&settings, &DESCRIPTORS)?;
        let local = backend.local();
        let pid = getpid();
        let info = Info {
            address: local.address,
            device: settings.device.clone(),
            pid: pid.as_raw().cast_unsigned(),
            program: command_line(),
        };
        let instance = Instance::new(&info)
            .map_err(|error| format!("its folder in $XDG_RUNTIME_DIR or /tmp cannot be made: {error}"))?;
        sysfs::write_tree(instance.path(), &settings.device, local)
            .map_err(|error| format!("its files in {} cannot be written: {error}", instance.path().display()))?;
        tracing::info!("{} has address {} on {}", settings.device, local.address, local.interface);
        let folder = instance.path().canonicalize()?.into_os_string().into_encoded_bytes();
        Ok(Box::leak(Box::new(Process { pid, folder, instance, backend, waits: Waits::default() })))
    }

    /// The folder of our files, below which they have the paths that the program uses.
    pub fn folder(&self) -> &[u8] {
        &self.folder
    }

    /// Whether this is the process that made the adapter, and not a child that shares its memory (vfork) or did not run the
    /// handlers of a fork (clone).
    pub fn is_this(&self) -> bool {
        self.pid == getpid()
    }
}

/// The words of the command line.
fn command_line() -> String {
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    words.join(" ").trim_end().to_owned()
}

/// Registers the handlers of forks, once.
fn watch_forks() -> Result<(), Errno> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the handlers are functions without arguments, and this library is never unloaded.
    let error = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    if error == 0 { Ok(()) } else { Err(Errno::from_raw(error)) }
}

/// The child shall not get half an adapter.
extern "C" fn before_fork() {
    BUSY.lock();
}

extern "C" fn in_parent() {
    BUSY.unlock();
}

/// The threads of the adapter are in the parent. Here its descriptors are closed, and the next use makes another adapter.
extern "C" fn in_child() {
    if let Some(parent) = Process::current() {
        CURRENT.store(ptr::null_mut(), Ordering::Relaxed);
        parent.backend.forked();
        // SAFETY: this descriptor is only used by `parent`, which this process forgets.
        unsafe { libc::close(parent.instance.lock()) };
    }
    DESCRIPTORS.inherit();
    FAILED.store(false, Ordering::Relaxed);
    BUSY.unlock();
}

/// Runs at the end of the process, after the handlers that the program has registered.
extern "C" fn at_exit() {
    let Some(process) = Process::current().filter(|process| process.is_this()) else { return };
    let ended = guarded(|| {
        process.backend.shutdown();
        process.instance.remove().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    });
    if let Err(error) = ended {
        tracing::debug!("the folder of this process is left to the next one: {error}");
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
