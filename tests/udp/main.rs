//! The real programs on UDP sockets of the loopback interface, without DPDK, hugepages, root or capabilities: as user nobody
//! where the tests run as root.

mod bench;
mod ends;
mod manage;
mod mistakes;
mod nvme;
mod nvmf_manage;
mod streams;

use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rxe_testkit::process::{self, Finished, Program};
use serde_json::Value;

/// Longer than any run takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The user without rights.
const NOBODY: u32 = 65_534;

/// A loopback address of this process' own: no two running processes have one.
fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(number < 126, "more addresses than a process has");
    Ipv4Addr::from_bits(0x7F80_0000 | (std::process::id() % 0x8000) << 8 | (number + 1) << 1).into()
}

/// A folder for the programs, the management sockets and files, in which nobody may write. It stays until the next run of the
/// tests, as other tests of this process may still use it.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("rxe-udp");
        let folder = if is_root() { std::env::temp_dir().join("rxe-udp-tests") } else { folder };
        let own = folder.join(std::process::id().to_string());
        for old in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let pid = old.file_name().to_string_lossy().into_owned();
            if !Path::new("/proc").join(pid).exists() {
                // Another process may remove it as well.
                let _ = fs::remove_dir_all(old.path());
            }
        }
        fs::create_dir_all(&own).unwrap();
        fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
        let run = own.join("run");
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, Permissions::from_mode(0o700)).unwrap();
        if is_root() {
            std::os::unix::fs::chown(&run, Some(NOBODY), Some(NOBODY)).unwrap();
            for program in PROGRAMS {
                fs::copy(program, own.join(Path::new(program).file_name().unwrap())).unwrap();
            }
        }
        own
    })
}

const PROGRAMS: [&str; 3] =
    [env!("CARGO_BIN_EXE_rxe-target"), env!("CARGO_BIN_EXE_rxe-bench"), env!("CARGO_BIN_EXE_rxe-ctl")];

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// A command that runs one of our programs without any right.
fn program(name: &str, words: &str) -> Command {
    let folder = folder();
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
            .args(["--inh-caps=-all", "--bounding-set=-all", "--"])
            .arg(folder.join(name));
        command
    } else {
        Command::new(PROGRAMS.into_iter().find(|path| path.ends_with(name)).unwrap())
    };
    command.args(words.split_whitespace()).env("XDG_RUNTIME_DIR", folder.join("run")).current_dir(folder);
    command
}

/// Runs one of our programs to its end.
fn run(name: &str, words: &str) -> Finished {
    process::run(&mut program(name, words), LIMIT).unwrap_or_else(|error| panic!("{error}"))
}

fn told(done: &Finished) -> String {
    format!("exit code {}\n{}{}", done.code, done.stdout, done.stderr)
}

/// A running target.
struct Target {
    program: Program,
    ip: IpAddr,
    ready: String,
}

impl Target {
    fn start(options: &str) -> Target {
        let ip = address();
        let program = Program::start(&mut program("rxe-target", &format!("--udp {ip} {options}")));
        let program = program.unwrap_or_else(|error| panic!("{error}"));
        let ready = program.wait_for_line("ready ", LIMIT).unwrap_or_else(|error| panic!("{error}"));
        Target { program, ip, ready }
    }

    /// Standard output of rxe-ctl for `words`.
    fn ctl(&self, words: &str) -> String {
        let said = run("rxe-ctl", &format!("--file-prefix udp-{} {words}", self.ip));
        assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{words}: {}", said.stdout);
        said.stdout
    }

    /// Standard error of rxe-ctl for `words`, which are refused.
    fn refusal(&self, words: &str) -> String {
        let said = run("rxe-ctl", &format!("--file-prefix udp-{} {words}", self.ip));
        assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{words}: {}", told(&said));
        said.stderr
    }

    /// Standard output of rxe-ctl for `words` as JSON.
    fn json(&self, words: &str) -> Value {
        let text = self.ctl(&format!("--json {words}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words}: {error}: {text}"))
    }

    /// Runs rxe-bench with this target as its peer, and returns the JSON that it prints.
    fn measure(&self, words: &str) -> Value {
        let own = address();
        let done = run("rxe-bench", &format!("{words} --udp {own} --peer {} --out_json -", self.ip));
        assert_eq!(done.code, 0, "{words}: {}\ntarget: {}", told(&done), self.program.tail());
        serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{words}: {error}: {}", told(&done)))
    }

    /// Ends it by SIGTERM and returns its counters.
    fn stop(mut self) -> String {
        let done = self.program.stop(LIMIT).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(done.code, 0, "{}", told(&done));
        done.stdout
    }
}

#[track_caller]
fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}
