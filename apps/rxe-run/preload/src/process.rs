//! What this process has of ours, from its first look at one of our paths to its end; forgotten in the child of a fork.
//!
//! | | has |
//! |---|---|
//! | a program that looks at no path of ours | nothing |
//! | one that looks (`ls`, hwloc in mpirun) | files in a folder of its own; with `RXE_ADDRESS` neither an address nor a thread |
//! | one that opens a device | the adapter, with an address that other processes of the user may share |
//! | one that has become another user | files in another folder, and the same adapter |
//! | the child of a fork | nothing; descriptors of its parent's devices fail with `EIO` |

use std::error::Error;
use std::hint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::time::{Duration, Instant};
use std::{ptr, thread};

use nix::errno::Errno;
use nix::unistd::{Pid, Uid, geteuid, getpid, gettid};
use rxe_uverbs::backend::{Backend, Objects};
use rxe_uverbs::descriptors::{Descriptors, PRIVATE};
use rxe_uverbs::inside::{is_inside, note_cpus};
use rxe_uverbs::instance::{Info, Instance};
use rxe_uverbs::local::Local;
use rxe_uverbs::settings::{Settings, SettingsError};
use rxe_uverbs::sysfs;

use crate::adapter;
use crate::fork_marker;
use crate::guard::guarded;
use crate::log::{self, say_once};
use crate::poll;
use crate::waits::Waits;

/// The descriptors of this process that are ours.
pub static DESCRIPTORS: Descriptors = Descriptors::new();

/// What this process has of ours: files that show the device and, once it opens one, the adapter. It is never dropped: other threads may
/// use it until the process ends.
pub struct Process {
    pid: Pid,
    settings: Settings,
    /// The port that the files show.
    local: Local,
    /// Points to a folder that is never freed.
    folder: AtomicPtr<Folder>,
    backend: OnceLock<Box<dyn Backend>>,
    /// Threads that wait for events.
    pub waits: Waits,
}

/// The folder of our files. A user cannot look into the folder of another one.
struct Folder {
    user: Uid,
    path: Vec<u8>,
    instance: Instance,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Held while any of it is made, and during a fork.
static BUSY: Busy = Busy(AtomicBool::new(false));
/// It cannot be made: because of a defect, or of a setting, which would be the same again.
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
    /// What this process has, if it has anything.
    pub fn current() -> Option<&'static Process> {
        if fork_marker::is_wiped() {
            forget_parent();
        }
        Process::made()
    }

    fn made() -> Option<&'static Process> {
        // SAFETY: the pointer is null or comes from `Box::leak`, so what it refers to is never freed.
        unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
    }

    /// This process with files that its user can read. They are made if there are none. Without an address in the settings that takes one,
    /// as the files show it.
    ///
    /// # Errors
    /// `ENODEV`: they cannot be made.
    pub fn get() -> Result<&'static Process, Errno> {
        match Process::current().filter(|process| process.folder_now().user == geteuid()) {
            Some(process) => Ok(process),
            None => alone(Process::make),
        }
    }

    /// This process with an adapter, which is made if there is none.
    ///
    /// # Errors
    /// `EADDRINUSE`: the address is another process's; `ENODEV`: it cannot be made for another reason.
    pub fn get_own() -> Result<&'static Process, Errno> {
        match Process::current().filter(|process| process.backend.get().is_some()) {
            Some(process) => Ok(process),
            None => {
                let process = Process::get()?;
                alone(|| process.make_backend())?;
                Ok(process)
            }
        }
    }

    /// The adapter of this process.
    ///
    /// # Errors
    /// `EIO`: it has none.
    pub fn backend(&self) -> Result<&dyn Backend, Errno> {
        self.backend.get().map(|backend| &**backend).ok_or(Errno::EIO)
    }

    fn make() -> Result<&'static Process, Errno> {
        if FAILED.load(Ordering::Relaxed) {
            return Err(Errno::ENODEV);
        }
        // Also after a panic.
        FAILED.store(true, Ordering::Relaxed);
        let process = match Process::current() {
            Some(process) => process.follow_user().map(|()| process),
            None => Process::try_make(),
        };
        let process = process.map_err(|error| {
            // Anything else may pass.
            FAILED.store(error.is::<SettingsError>(), Ordering::Relaxed);
            say_once(&format!("no RDMA device: {error}"));
            Errno::ENODEV
        })?;
        CURRENT.store(ptr::from_ref(process).cast_mut(), Ordering::Release);
        FAILED.store(false, Ordering::Relaxed);
        Ok(process)
    }

    fn try_make() -> Result<&'static Process, Box<dyn Error>> {
        let settings = Settings::from_env()?;
        log::start(settings.log);
        fork_marker::set();
        let (local, backend) = match settings.address {
            Some(address) => (adapter::local(address)?, OnceLock::new()),
            None => {
                let backend = adapter::new(&settings, &DESCRIPTORS)?;
                (backend.local().clone(), OnceLock::from(backend))
            }
        };
        let pid = getpid();
        let folder = Folder::new(&settings, &local, pid)?;
        let process = Process { pid, settings, local, folder: AtomicPtr::default(), backend, waits: Waits::default() };
        process.set_folder(folder);
        Ok(Box::leak(Box::new(process)))
    }

    /// Makes files for the user that the process has become.
    fn follow_user(&self) -> Result<(), Box<dyn Error>> {
        if self.folder_now().user != geteuid() {
            self.set_folder(Folder::new(&self.settings, &self.local, self.pid)?);
        }
        Ok(())
    }

    fn make_backend(&self) -> Result<(), Errno> {
        if self.backend.get().is_some() {
            return Ok(());
        }
        let backend = adapter::new(&self.settings, &DESCRIPTORS).map_err(|error| {
            say_once(&format!("no RDMA device: {error}"));
            error.errno()
        })?;
        backend.set_folder(self.folder_now().instance.path(), info(&self.settings, &self.local, self.pid));
        // It was empty, and this thread holds the lock.
        let _ = self.backend.set(backend);
        Ok(())
    }

    fn set_folder(&self, folder: Folder) {
        if let Some(backend) = self.backend.get() {
            backend.set_folder(folder.instance.path(), info(&self.settings, &self.local, self.pid));
        }
        self.folder.store(ptr::from_mut(Box::leak(Box::new(folder))), Ordering::Release);
    }

    fn folder_now(&self) -> &'static Folder {
        // SAFETY: `try_make` sets it before anyone else has this value, to what `Box::leak` returns, which is never freed.
        unsafe { &*self.folder.load(Ordering::Acquire) }
    }

    /// The folder of our files, below which they have the paths that the program uses.
    pub fn folder(&self) -> &'static [u8] {
        &self.folder_now().path
    }

    /// What RDMA netlink shows: the device, its port, the objects of the program.
    pub fn view(&self) -> (&str, &Local, Objects) {
        let objects = self.backend.get().map(|backend| backend.objects()).unwrap_or_default();
        (&self.settings.device, &self.local, objects)
    }

    /// Whether this is the process that made the adapter, and not a child that shares its memory (vfork).
    pub fn is_this(&self) -> bool {
        self.pid == getpid()
    }
}

impl Folder {
    fn new(settings: &Settings, local: &Local, pid: Pid) -> Result<Folder, Box<dyn Error>> {
        let user = geteuid();
        let instance = Instance::new(&info(settings, local, pid))
            .map_err(|error| format!("its folder in $XDG_RUNTIME_DIR or /tmp cannot be made: {error}"))?;
        sysfs::write_tree(instance.path(), &settings.device, local)
            .map_err(|error| format!("its files in {} cannot be written: {error}", instance.path().display()))?;
        tracing::info!("{} has address {} on {}", settings.device, local.address, local.interface);
        let path = instance.path().canonicalize()?.into_os_string().into_encoded_bytes();
        Ok(Folder { user, path, instance })
    }
}

fn info(settings: &Settings, local: &Local, pid: Pid) -> Info {
    Info {
        address: local.address,
        device: settings.device.clone(),
        pid: pid.as_raw().cast_unsigned(),
        program: command_line(),
    }
}

/// Calls `make` while no other thread does.
///
/// # Errors
/// Those of `make`; `EDEADLK` for a signal handler that has interrupted this library.
fn alone<T>(make: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if is_inside() {
        return Err(Errno::EDEADLK);
    }
    guarded(|| {
        BUSY.lock();
        let made = catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(Errno::EIO));
        BUSY.unlock();
        made
    })
}

/// The words of the command line.
fn command_line() -> String {
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    words.join(" ").trim_end().to_owned()
}

/// Registers the handlers of forks, and notes the CPUs. Not later, as a fork may happen while the adapter is made.
extern "C" fn at_load() {
    note_cpus();
    poll::start();
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
    forget_parent();
    BUSY.unlock();
}

/// This process is a child that still has what belongs to its parent. Its only thread calls this, maybe in a signal handler.
fn forget_parent() {
    fork_marker::set_again();
    if let Some(parent) = Process::made() {
        CURRENT.store(ptr::null_mut(), Ordering::Relaxed);
        if let Some(backend) = parent.backend.get() {
            backend.forked();
        }
    }
    DESCRIPTORS.inherit();
    PRIVATE.close_all();
    FAILED.store(false, Ordering::Relaxed);
    // Another thread of the parent may have had it, where no handlers have run.
    BUSY.unlock();
}

/// The thread that ends the process; 0 while there is none.
static EXITING: AtomicI32 = AtomicI32::new(0);
/// Until then threads stay in calls that fail because the process ends.
static STAY_UNTIL: OnceLock<Instant> = OnceLock::new();
/// How long they stay, from the beginning of the end: another library may wait for its threads before it is unloaded.
const STAY: Duration = Duration::from_secs(2);

/// Notes whether this thread is about to end the process.
pub fn set_exiting(exiting: bool) {
    STAY_UNTIL.get_or_init(|| Instant::now() + STAY);
    EXITING.store(if exiting { gettid().as_raw() } else { 0 }, Ordering::Release);
}

/// Whether another thread is about to end the process, so that this one shall not see the end of the adapter: for some time only.
pub fn exits_in_another_thread() -> bool {
    let exiting = EXITING.load(Ordering::Acquire);
    exiting != 0 && exiting != gettid().as_raw() && STAY_UNTIL.get().is_some_and(|until| Instant::now() < *until)
}

/// Runs at the end of the process, after the handlers that the program has registered.
extern "C" fn at_exit() {
    // A signal handler that ends the process has interrupted the library, whose locks are held: peers notice by their retries.
    if is_inside() {
        return;
    }
    let Some(process) = Process::current().filter(|process| process.is_this()) else { return };
    set_exiting(true);
    // The next process removes a folder that is left.
    let _ = guarded(|| {
        if let Some(backend) = process.backend.get() {
            backend.shutdown();
        }
        process.folder_now().instance.remove().map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
    });
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
