//! The environment of the tests: namespaces, a folder, and hugepages mounted there.
//!
//! The test program starts itself again inside new network, mount and process namespaces. The kernel removes their
//! interfaces, mounts and processes when the inner program ends, however it ends.

use crate::guest::{Guest, GuestConfig};
use crate::station::{Kernel, Station, StationKey};
use crate::support::image::Image;
use rxe_testkit::child::forward_nothing;
use rxe_testkit::process::locked;
use rxe_testkit::process::{self, must};
use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Set for the inner program: the folder for its files.
const INSIDE: &str = "RXE_REAL_DIR";
/// The Debian suite of the newer kernel.
const NEWER_SUITE: &str = "bookworm-backports";
/// Free 2 MiB pages that two targets and their regions need.
const HUGEPAGES: u64 = 400;
/// Programs that the tests start.
const PROGRAMS: [&str; 7] = ["qemu-system-x86_64", "unshare", "setpriv", "ip", "python3", "kill", "tshark"];

/// The inner program's folder, namespaces and shared guests.
pub struct TestEnv {
    /// Sockets and other files; removed after the run.
    pub dir: PathBuf,
    /// Part of the names that have to be unique on the machine.
    pub token: String,
    /// Guests that no group uses at the moment.
    pub stations: Mutex<HashMap<StationKey, Station>>,
    /// Guests that a failed group uses, for no other group.
    pub distrusted: Mutex<HashSet<StationKey>>,
    boots: AtomicU32,
    notes: Mutex<Vec<String>>,
}

/// The result of [`enter`].
pub enum Entered {
    /// The inner program ran; this is its result.
    Outside(ExitCode),
    /// This is the inner program.
    Inside(TestEnv),
    /// The machine lacks something.
    Lacking(String),
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The program under test.
pub fn target_binary() -> &'static str {
    env!("CARGO_BIN_EXE_rxe-target")
}

/// An example program of rxe-dpdk, which `cargo test --workspace` and `cargo build --examples` make.
pub fn example(name: &str) -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let built = this.parent().and_then(|deps| deps.parent()).map(|profile| profile.join("examples").join(name));
    built
        .filter(|path| path.exists())
        .ok_or_else(|| format!("{name} is not built: cargo build -p rxe-dpdk --examples (--release)"))
}

/// Whether the documents that tests write are written (`make docs`) rather than compared.
pub fn write_docs() -> bool {
    std::env::var_os("RXE_WRITE_DOCS").is_some_and(|v| !v.is_empty())
}

/// Enters new namespaces, or returns why that is not possible. The full product needs a guest with a newer kernel, too.
pub fn enter(full: bool) -> Entered {
    if let Some(dir) = std::env::var_os(INSIDE) {
        return match TestEnv::inside(PathBuf::from(dir)) {
            Ok(env) => Entered::Inside(env),
            Err(e) => Entered::Lacking(e),
        };
    }
    match lacking() {
        Some(why) => Entered::Lacking(why),
        None => outside(full),
    }
}

fn lacking() -> Option<String> {
    let run = |program: &str, arguments: &[&str]| {
        process::run(Command::new(program).args(arguments), Duration::from_secs(20))
    };
    if !run("id", &["-u"]).is_ok_and(|id| id.stdout.trim() == "0") {
        return Some("they need root".to_owned());
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let missing: Vec<&str> =
        PROGRAMS.into_iter().filter(|p| !path.split(':').any(|d| Path::new(d).join(p).is_file())).collect();
    if !missing.is_empty() {
        return Some(format!("the machine has no {}: run `make setup`", missing.join(", ")));
    }
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    if free < HUGEPAGES {
        return Some(format!("{free} free hugepages of 2 MiB, {HUGEPAGES} are needed: run `make setup`"));
    }
    match run("unshare", &["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]) {
        Ok(done) if done.code == 0 => None,
        Ok(done) => Some(format!("namespaces cannot be made here: {}", done.stderr.trim())),
        Err(e) => Some(format!("namespaces cannot be made here: {e}")),
    }
}

/// Removes folders of runs that were killed.
fn remove_stale(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("rxe-real-").filter(|pid| pid.parse::<u32>().is_ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs this program again in new namespaces and removes its folder afterwards.
fn outside(full: bool) -> Entered {
    let dir = std::env::temp_dir().join(format!("rxe-real-{}", std::process::id()));
    if let Err(why) = Image::build(None) {
        return Entered::Lacking(why);
    }
    if full {
        // If this fails, its builder says why, and `boot_kernel` finds no image.
        let _ = Image::build(Some(NEWER_SUITE));
    }
    remove_stale(&std::env::temp_dir());
    if let Err(e) = std::fs::create_dir_all(&dir) {
        return Entered::Lacking(format!("cannot make the folder {}: {e}", dir.display()));
    }
    let this = std::env::current_exe().unwrap_or_else(|_| std::env::args_os().next().unwrap_or_default().into());
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(this)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, &dir)
        .stdin(Stdio::null())
        .spawn();
    let status = child.and_then(|child| {
        let pid = child.id().to_string();
        let folder = dir.clone();
        // A signal ends the namespaces' first process, and with it everything in them.
        let _ = ctrlc::set_handler(move || {
            let _ = must("kill", &["-KILL", &pid]);
            std::thread::sleep(Duration::from_millis(500));
            let _ = std::fs::remove_dir_all(&folder);
            std::process::exit(130);
        });
        let mut child = child;
        child.wait()
    });
    let _ = std::fs::remove_dir_all(&dir);
    match status {
        Ok(status) => {
            if let Some(signal) = status.signal() {
                eprintln!("the tests were ended by signal {signal}");
            }
            Entered::Outside(status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
        }
        Err(e) => Entered::Lacking(format!("setpriv and unshare did not run: {e}")),
    }
}

impl TestEnv {
    fn at(dir: PathBuf) -> TestEnv {
        let token = dir.to_string_lossy().rsplit('-').next().unwrap_or("0").to_owned();
        TestEnv {
            dir,
            token,
            stations: Mutex::default(),
            distrusted: Mutex::default(),
            boots: AtomicU32::new(0),
            notes: Mutex::default(),
        }
    }

    /// For groups that use nothing of it.
    pub fn nowhere() -> TestEnv {
        TestEnv::at(std::env::temp_dir().join(format!("rxe-real-{}", std::process::id())))
    }

    /// Prepares the inner program's environment.
    fn inside(dir: PathBuf) -> Result<TestEnv, String> {
        let huge = dir.join("huge");
        std::fs::create_dir_all(&huge)
            .and_then(|()| std::fs::create_dir_all("/run/dpdk"))
            .map_err(|e| e.to_string())?;
        must("ip", &["link", "set", "lo", "up"])?;
        forward_nothing();
        must("mount", &["-t", "hugetlbfs", "-o", "pagesize=2M", "none", &huge.to_string_lossy()])?;
        must("mount", &["-t", "tmpfs", "none", "/run/dpdk"])?;
        must("mount", &["-t", "tmpfs", "none", "/dev/shm"])?;
        Ok(TestEnv::at(dir))
    }

    /// The image of guests with this kernel.
    pub fn image(&self, kernel: Kernel) -> Result<Image, String> {
        let suite = (kernel == Kernel::Newer).then_some(NEWER_SUITE);
        Image::built(suite).ok_or_else(|| match suite {
            None => "tests/guest/build has made no image".to_owned(),
            Some(suite) => format!("tests/guest/build has made no image with the kernel of {suite}"),
        })
    }

    /// Boots a guest and waits until it takes commands.
    pub fn boot(&self, config: GuestConfig) -> Result<Guest, String> {
        self.boot_kernel(Kernel::Stable, config)
    }

    /// The same with this kernel.
    pub fn boot_kernel(&self, kernel: Kernel, config: GuestConfig) -> Result<Guest, String> {
        self.boots.fetch_add(1, Ordering::Relaxed);
        let guest = Guest::power_on(&self.image(kernel)?, &self.dir, config, None)?;
        guest.ready()?;
        Ok(guest)
    }

    /// Number of guests that have booted.
    pub fn boots(&self) -> u32 {
        self.boots.load(Ordering::Relaxed)
    }

    /// Adds lines to the end of the run's output.
    pub fn note(&self, text: String) {
        locked(&self.notes).push(text);
    }

    /// All notes.
    pub fn notes(&self) -> Vec<String> {
        locked(&self.notes).clone()
    }

    /// A path in the run's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes a configuration file for a target, and returns the arguments that name it.
    pub fn config_file(&self, name: &str, text: &str) -> Result<[String; 2], String> {
        let file = self.path(name);
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(["--config".to_owned(), file.to_string_lossy().into_owned()])
    }

    /// EAL options for one process of DPDK on lcore 0, apart from all others on the machine.
    pub fn eal_options(&self, prefix: &str) -> Vec<String> {
        self.eal_options_on("0", prefix, &self.path("huge"))
    }

    /// The same with these lcores, and with hugepages in this folder.
    pub fn eal_options_on(&self, lcores: &str, prefix: &str, huge: &Path) -> Vec<String> {
        ["-l", lcores, "--no-pci", "--file-prefix", &self.prefix(prefix), "--huge-dir"]
            .iter()
            .map(|s| s.to_string())
            .chain([huge.to_string_lossy().into_owned()])
            .collect()
    }

    /// The `--file-prefix` of a process of DPDK.
    pub fn prefix(&self, prefix: &str) -> String {
        format!("rxe{}{prefix}", self.token)
    }
}
