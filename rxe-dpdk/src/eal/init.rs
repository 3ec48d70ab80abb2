//! Starting DPDK, once per process, with errors that a user can act on.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::affinity;
use super::args::{EalArgs, Vdev, check_file_prefix};
use super::error::{EalError, Errno};
use super::hints;
use super::huge_files::HugeFiles;
use super::info::PortInfo;
use super::log::{self, Capture};
use super::pool_ptr::PoolPtr;
use super::sockets;

/// Whether EAL was started in this process.
static STARTED: Mutex<bool> = Mutex::new(false);

/// DPDK's environment abstraction layer, running.
///
/// Everything made from it keeps it alive. When the last such object is gone, DPDK is left to the end of the process:
/// it cannot be started again in the same process.
pub struct Eal {
    guard: Arc<EalGuard>,
}

impl Eal {
    /// Starts EAL with `args`, which are EAL's own (no program name, no `--`).
    ///
    /// The calling thread becomes the main lcore and is pinned to its core; threads that it spawns inherit that.
    /// EAL's messages are kept while it starts and go to stderr afterwards, warnings and worse unless `--log-level`
    /// is given. `--single-file-segments` is added when a virtio_user device is named, which needs it.
    ///
    /// # Errors
    ///
    /// [`EalError::AlreadyInitialised`], [`EalError::BadArguments`], [`EalError::NoHugepages`],
    /// [`EalError::PrefixInUse`], [`EalError::Device`], or [`EalError::Init`] with EAL's last words. After arguments that
    /// EAL could not read it can be tried again; what fails later has used up the process's one start.
    pub fn init(args: &[String]) -> Result<Eal, EalError> {
        let mut started = lock(&STARTED);
        if *started {
            return Err(EalError::AlreadyInitialised);
        }
        affinity::remember();
        let eal_args = EalArgs::new(args);
        if eal_args.asks_for_help() {
            let detail = "EAL's help is in `dpdk-testpmd --help`".to_owned();
            return Err(EalError::BadArguments { detail });
        }
        check_file_prefix(args)?;
        if let Some(detail) = hints::impossible(&eal_args) {
            return Err(EalError::BadArguments { detail });
        }
        // Before EAL: drivers remove the socket of a process that is alive.
        eal_args.vdevs().iter().try_for_each(sockets::make_way)?;
        let needs = Hugepages::needed_by(&eal_args);
        needs.check()?;

        let additions = eal_args.additions();
        let argv = ["rxe"].into_iter().chain(args.iter().map(String::as_str));
        let argv: Result<Vec<CString>, _> =
            argv.chain(additions.iter().map(String::as_str)).map(CString::new).collect();
        let argv = argv.map_err(|_| EalError::BadArguments { detail: "an argument contains a NUL byte".to_owned() })?;
        for added in &additions {
            tracing::info!("EAL gets {added} in addition, which its devices need");
        }

        let (ret, errno, text) = start(&argv);
        let files = HugeFiles::new(&eal_args);
        if ret < 0 {
            files.mapped().remove();
            return Err(failure(errno, &text, &needs));
        }
        *started = true;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            tracing::debug!(target: "rxe_dpdk::eal", "{}", line.trim());
        }
        if !eal_args.has("--log-level") {
            // SAFETY: EAL is initialised; sets a number.
            unsafe { dpdk_sys::rte_log_set_global_level(dpdk_sys::RTE_LOG_WARNING) };
        }
        let eal = Eal { guard: Arc::new(EalGuard::new(eal_args.vdevs(), files)) };
        // EAL reorders what is no option to the end and leaves it to the program. It is a mistake here.
        if usize::try_from(ret).is_ok_and(|parsed| parsed + 1 < argv.len()) {
            let detail = format!("something among `{}` is neither an option nor the value of one", args.join(" "));
            return Err(EalError::BadArguments { detail });
        }
        eal.check_devices(&eal_args, &text)?;
        Ok(eal)
    }

    /// EAL continues without a device that does not start; for a device that the user named, this is an error.
    fn check_devices(&self, args: &EalArgs<'_>, text: &str) -> Result<(), EalError> {
        // The message of EAL's PCI bus about a device named by -a.
        if let Some((_, rest)) = text.split_once("Requested device ")
            && let Some((name, _)) = rest.split_once(" cannot be used")
        {
            let detail = log::gist(text) + hints::of_pci_device(args);
            return Err(EalError::Device { name: name.to_owned(), detail });
        }
        let ports = self.ports();
        let missing = |vdev: &&Vdev| vdev.is_port() && !ports.iter().any(|port| port.name == vdev.name);
        match self.guard.vdevs.iter().find(missing) {
            Some(vdev) => {
                let detail = hints::of_device(vdev, text).unwrap_or_else(|| log::gist(text));
                Err(EalError::Device { name: vdev.name.clone(), detail })
            }
            None => Ok(()),
        }
    }

    /// DPDK's version, for example `DPDK 22.11.11`.
    pub fn version() -> String {
        // SAFETY: returns a static C string, with or without EAL.
        unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }.to_string_lossy().into_owned()
    }

    /// Number of ports.
    pub fn port_count(&self) -> usize {
        PortInfo::ids().count()
    }

    /// Whether a [`Port`](super::Port) of this number exists: configured and not gone.
    pub fn is_port_taken(&self, port: rxe_proto::wire::PortId) -> bool {
        self.guard().is_port_taken(port.0)
    }

    /// Every port that EAL found, in the order of their numbers.
    pub fn ports(&self) -> Vec<PortInfo> {
        PortInfo::ids().filter_map(|id| PortInfo::of(id).ok()).collect()
    }

    pub(super) fn guard(&self) -> &Arc<EalGuard> {
        &self.guard
    }
}

impl fmt::Debug for Eal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Eal")
    }
}

/// Held by every object of DPDK, so that EAL lives.
pub(super) struct EalGuard {
    vdevs: Vec<Vdev>,
    files: HugeFiles,
    /// Configured ports.
    ports: Mutex<BTreeSet<u16>>,
    /// Pools without an owner whose buffers were not all free when the last owner went.
    orphans: Mutex<Vec<PoolPtr>>,
    names: AtomicU32,
}

impl EalGuard {
    fn new(vdevs: Vec<Vdev>, files: HugeFiles) -> EalGuard {
        EalGuard { vdevs, files, ports: Mutex::default(), orphans: Mutex::default(), names: AtomicU32::new(0) }
    }

    /// The `--vdev` argument that made the device of this name.
    pub(super) fn vdev(&self, name: &str) -> Option<&Vdev> {
        self.vdevs.iter().find(|vdev| vdev.name == name)
    }

    /// A name that is unique in this process: DPDK needs one for nearly every object.
    pub(super) fn unique_name(&self, kind: &str) -> String {
        format!("rxe_{kind}_{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the port is configured already.
    pub(super) fn is_port_taken(&self, port: u16) -> bool {
        lock(&self.ports).contains(&port)
    }

    /// Marks the port as configured. Returns false if it is already.
    pub(super) fn claim_port(&self, port: u16) -> bool {
        lock(&self.ports).insert(port)
    }

    pub(super) fn release_port(&self, port: u16) {
        lock(&self.ports).remove(&port);
    }

    /// Keeps a pool that could not be freed.
    pub(super) fn adopt_pool(&self, pool: PoolPtr) {
        lock(&self.orphans).push(pool);
    }
}

impl Drop for EalGuard {
    fn drop(&mut self) {
        // Before EAL unmaps them: mapped pages tell our files from those of other processes.
        let files = self.files.mapped();
        // No rte_eal_cleanup: it unmaps DPDK's memory while its interrupt thread, which cannot be ended, still looks at
        // handles there (net_memif's), which now and then ended the process by SIGSEGV. Every port is stopped and closed by
        // now; the rest is memory and descriptors, which go with the process.
        let orphans = self.orphans.get_mut().unwrap_or_else(PoisonError::into_inner);
        if orphans.iter().any(|pool| pool.in_use() > 0) {
            tracing::debug!("packet buffers are still out");
        }
        files.remove();
    }
}

/// Number of alarms of [`drain_interrupts`] that have run.
static ALARMS: Mutex<u32> = Mutex::new(0);
static ALARM: Condvar = Condvar::new();

/// Runs on DPDK's interrupt thread.
extern "C" fn count_alarm(_: *mut c_void) {
    *lock(&ALARMS) += 1;
    ALARM.notify_all();
}

/// Waits until DPDK's interrupt thread has handled all earlier events. The driver of a closed port may still free memory
/// there; and if the link's other end is a port of this process (a pair of net_memif), that port's driver handles the
/// close there. It must be done before that port is closed too, or net_memif frees its memory twice.
///
/// The thread takes events in rounds. An alarm may run before others of its round, but once it has run, the next one is
/// of a later round.
pub(super) fn drain_interrupts() {
    for _ in 0..2 {
        let ran = lock(&ALARMS);
        let before = *ran;
        // SAFETY: EAL is initialised; the function lives as long as the process and takes no argument.
        if unsafe { dpdk_sys::rte_eal_alarm_set(1, Some(count_alarm), std::ptr::null_mut()) } != 0 {
            return;
        }
        // A thread that hangs is no reason to hang too.
        let waited = ALARM.wait_timeout_while(ran, Duration::from_secs(1), |ran| *ran == before);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// The lock, also when another thread panicked while it held it: the data behind ours is never half-changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls rte_eal_init; returns its result, the error number and what was said.
fn start(argv: &[CString]) -> (i32, Errno, String) {
    // EAL keeps pointers into its arguments and reorders them: give it a copy that lives as long as the process.
    let pointers = argv.iter().map(|arg| arg.clone().into_raw());
    let pointers: &'static mut [*mut c_char] = Vec::leak(pointers.chain([std::ptr::null_mut()]).collect());
    let argc = i32::try_from(argv.len()).unwrap_or(i32::MAX);
    let capture = Capture::start();
    // SAFETY: argc C strings and a null, writable and never freed; STARTED makes this the only call at a time.
    let ret = unsafe { dpdk_sys::rte_eal_init(argc, pointers.as_mut_ptr()) };
    let errno = Errno::last();
    (ret, errno, capture.map(Capture::finish).unwrap_or_default())
}

/// Names the reason for which EAL did not start.
fn failure(errno: Errno, text: &str, needs: &Hugepages) -> EalError {
    let detail = log::gist(text);
    if text.contains("another primary process") {
        return EalError::PrefixInUse;
    }
    if let Some(detail) = hints::of_unknown_device(text) {
        return EalError::BadArguments { detail };
    }
    match errno.0 {
        libc::EALREADY => EalError::AlreadyInitialised,
        libc::EINVAL => EalError::BadArguments { detail },
        _ => match needs.exhausted() {
            Some(used_up) => EalError::NoHugepages { detail: format!("{used_up} ({detail})") },
            None => EalError::Init { errno, detail },
        },
    }
}

/// EAL's needs of the system's hugepages.
struct Hugepages {
    /// Pages at all.
    pages: bool,
    /// A mounted hugetlbfs.
    mount: bool,
}

impl Hugepages {
    fn needed_by(args: &EalArgs<'_>) -> Hugepages {
        let pages = !args.has("--no-huge");
        // With --in-memory pages are anonymous; with --huge-dir EAL judges the directory itself.
        Hugepages { pages, mount: pages && !args.has("--in-memory") && !args.has("--huge-dir") }
    }

    /// Finds out early what EAL would say in many words.
    fn check(&self) -> Result<(), EalError> {
        let missing = |detail: String| Err(EalError::NoHugepages { detail });
        if !self.pages {
            return Ok(());
        }
        if Self::total("nr_hugepages") + Self::total("nr_overcommit_hugepages") == 0 {
            return missing("the system has none reserved".to_owned());
        }
        // That none is free is no reason to stop: files of a dead process may hold them, which EAL clears away.
        if self.mount {
            let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
            let mut mounts = mounts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let Some(mount) = mounts.find(|fields| fields.get(2) == Some(&"hugetlbfs")) else {
                return missing("no hugetlbfs is mounted".to_owned());
            };
            let dir = mount.get(1).copied().unwrap_or_default();
            if !writable(Path::new(dir)) {
                return missing(format!(
                    "this user may not write to {dir} (run as root, or give the directory to the user)"
                ));
            }
        }
        Ok(())
    }

    /// Words for "all are taken", if that is so.
    fn exhausted(&self) -> Option<String> {
        let free = Self::total("free_hugepages");
        let total = Self::total("nr_hugepages");
        (self.pages && free == 0).then(|| format!("all {total} are in use"))
    }

    /// The sum of a counter over all page sizes.
    fn total(counter: &str) -> u64 {
        let sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
        let counts = sizes.filter_map(|size| fs::read_to_string(size.path().join(counter)).ok());
        counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum()
    }
}

fn writable(dir: &Path) -> bool {
    let Ok(dir) = CString::new(dir.as_os_str().as_encoded_bytes()) else {
        return false;
    };
    // SAFETY: a C string; nothing is changed.
    unsafe { libc::access(dir.as_ptr(), libc::W_OK) == 0 }
}
