//! The adapter of this process: made when the program first looks at one of our paths, ended with the process, forgotten in
//! the child of a fork.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::{ptr, thread};

use nix::errno::Errno;
use nix::unistd::{Pid, getpid, gettid};
use rxe_uverbs::backend::Backend;
use rxe_uverbs::descriptors::Descriptors;
use rxe_uverbs::inside::is_inside;
use rxe_uverbs::instance::{Info, Instance};
use rxe_uverbs::settings::{Settings, SettingsError};
use rxe_uverbs::sysfs;

use crate::adapter;
use crate::guard::guarded;
use crate::log::{self, say_once};
use crate::waits::Waits;

/// The descriptors of this process that are ours.
pub static DESCRIPTORS: Descriptors = Descriptors::new();

/// The adapter and what belongs to it. It is never dropped: other threads may use it until the process ends.
pub struct Process {
    pid: Pid,
    folder: Vec<u8>,
    adapter: Access,
    /// Threads that wait for events.
    pub waits: Waits,
}

/// This process' adapter, and its state.
enum Access {
    /// All of it.
    Own(Box<dyn Backend>, Instance),
    /// Its files only: another process has it, such as the parent of this one, which looks at them. The text says which.
    Files(String),
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Held while the adapter is made, and during a fork.
static BUSY: Busy = Busy(AtomicBool::new(false));
/// The adapter cannot be made: because of a defect, or of a setting, which would be the same again.
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
            // Files of another process's adapter will do.
            None => guarded(|| Process::make(false)),
        };
        BUSY.unlock();
        result
    }

    /// The adapter, which is made if this process has none of its own.
    ///
    /// # Errors
    /// `ENODEV`: it cannot be made; `EADDRINUSE`: another process has it.
    pub fn get_own() -> Result<&'static Process, Errno> {
        let own = || Process::current().filter(|process| matches!(process.adapter, Access::Own(..)));
        if let Some(process) = own() {
            return Ok(process);
        }
        BUSY.lock();
        let made = match own() {
            Some(process) => Ok(process),
            // If there is another process's adapter, that process may share it, or have ended.
            None => guarded(|| Process::make(true)),
        };
        BUSY.unlock();
        let process = made?;
        match &process.adapter {
            Access::Own(..) => Ok(process),
            Access::Files(why) => {
                say_once(&format!("no RDMA device: {why}"));
                Err(Errno::EADDRINUSE)
            }
        }
    }

    /// The adapter of this process.
    ///
    /// # Errors
    /// `EIO`: it has none of its own.
    pub fn backend(&self) -> Result<&dyn Backend, Errno> {
        match &self.adapter {
            Access::Own(backend, _) => Ok(&**backend),
            Access::Files(_) => Err(Errno::EIO),
        }
    }

    fn make(share: bool) -> Result<&'static Process, Errno> {
        if FAILED.load(Ordering::Relaxed) {
            return Err(Errno::ENODEV);
        }
        // Also after a panic.
        FAILED.store(true, Ordering::Relaxed);
        let process = Process::try_make(share).map_err(|error| {
            // Anything else may pass.
            FAILED.store(error.is::<SettingsError>(), Ordering::Relaxed);
            say_once(&format!("no RDMA device: {error}"));
            Errno::ENODEV
        })?;
        CURRENT.store(ptr::from_ref(process).cast_mut(), Ordering::Release);
        FAILED.store(false, Ordering::Relaxed);
        Ok(process)
    }

    fn try_make(share: bool) -> Result<&'static Process, Box<dyn std::error::Error>> {
        let settings = Settings::from_env()?;
        log::start(settings.log);
        let pid = getpid();
        let backend = match adapter::new(&settings, &DESCRIPTORS, share) {
            Ok(backend) => backend,
            Err(error) => {
                let Some(folder) = error.folder_of_owner() else { return Err(error.into()) };
                let folder = folder.canonicalize()?.into_os_string().into_encoded_bytes();
                let adapter = Access::Files(error.to_string());
                return Ok(Box::leak(Box::new(Process { pid, folder, adapter, waits: Waits::default() })));
            }
        };
        let local = backend.local();
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
        backend.set_folder(instance.path(), info);
        tracing::info!("{} has address {} on {}", settings.device, local.address, local.interface);
        let folder = instance.path().canonicalize()?.into_os_string().into_encoded_bytes();
        let adapter = Access::Own(backend, instance);
        Ok(Box::leak(Box::new(Process { pid, folder, adapter, waits: Waits::default() })))
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

/// Registers the handlers of forks. Not later, as a fork may happen while the adapter is made.
extern "C" fn at_load() {
    // SAFETY: the handlers are functions without arguments, and this library is never unloaded. There is memory for them at this time.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

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
        if let Access::Own(backend, instance) = &parent.adapter {
            backend.forked();
            // SAFETY: this descriptor is only used by `parent`, which this process forgets.
            unsafe { libc::close(instance.lock()) };
        }
    }
    DESCRIPTORS.inherit();
    FAILED.store(false, Ordering::Relaxed);
    BUSY.unlock();
}

/// The thread that ends the process; 0 while there is none.
static EXITING: AtomicI32 = AtomicI32::new(0);

/// Notes whether this thread is about to end the process.
pub fn set_exiting(exiting: bool) {
    EXITING.store(if exiting { gettid().as_raw() } else { 0 }, Ordering::Release);
}

/// Whether another thread is about to end the process, so that this one shall not see the end of the adapter.
pub fn exits_in_another_thread() -> bool {
    let exiting = EXITING.load(Ordering::Acquire);
    exiting != 0 && exiting != gettid().as_raw()
}

/// Runs at the end of the process, after the handlers that the program has registered.
extern "C" fn at_exit() {
    // A signal handler that ends the process has interrupted the library, whose locks are held: peers notice by their retries.
    if is_inside() {
        return;
    }
    let Some(process) = Process::current().filter(|process| process.is_this()) else { return };
    let Access::Own(backend, instance) = &process.adapter else { return };
    set_exiting(true);
    // The next process removes a folder that is left.
    let _ = guarded(|| {
        backend.shutdown();
        instance.remove().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    });
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
