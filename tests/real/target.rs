//! rxe-target as a process under test.

use crate::env::{TestEnv, target_binary};
use crate::station::{TARGET_V4, TARGET_V6};
use crate::support::image;
use rxe_testkit::process::locked;
use rxe_testkit::process::{self, Program};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// From SIGTERM to the end of the process.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// An initramfs with rxe-target, its libraries, DPDK's drivers and conf/, to put on top of a guest's.
pub fn archive(env: &TestEnv) -> Result<PathBuf, String> {
    static MADE: Mutex<()> = Mutex::new(());
    let _one_at_a_time = locked(&MADE);
    let file = env.path("target.initrd");
    if !file.exists() {
        image::pack_target(target_binary(), &file)?;
    }
    Ok(file)
}

/// A file prefix that no other process of the run has.
pub fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A running target; dropping it kills it.
pub struct Target {
    program: Program,
    /// Its `--file-prefix`, which rxe-ctl finds it by.
    pub prefix: String,
    /// The line that said it can serve.
    pub ready: String,
}

impl Target {
    /// Starts it with both addresses, on these lcores and with this folder's hugepages, and waits until it can serve.
    pub fn start_in(
        env: &TestEnv,
        lcores: &str,
        huge: &Path,
        vdev: &str,
        arguments: &[String],
    ) -> Result<Target, String> {
        let addresses = ["--address", &format!("{TARGET_V4}/24"), "--address", &format!("{TARGET_V6}/64")];
        let arguments = [&addresses.map(str::to_owned), arguments].concat();
        Target::start_with(env.eal_options_on(lcores, &unique(), huge), vdev, &arguments)
    }

    /// Starts it with both addresses on lcore 0.
    pub fn start(env: &TestEnv, vdev: &str, arguments: &[String]) -> Result<Target, String> {
        Target::start_in(env, "0", &env.path("huge"), vdev, arguments)
    }

    /// Starts it with the addresses that the arguments name.
    pub fn start_with(eal: Vec<String>, vdev: &str, arguments: &[String]) -> Result<Target, String> {
        let prefix = eal.iter().skip_while(|word| *word != "--file-prefix").nth(1).cloned().unwrap_or_default();
        let mut command = Command::new(target_binary());
        // Two groups with an lcore each share the CPUs with two guests.
        command.args(eal).arg(format!("--vdev={vdev}")).args(["--", "--idle", "sleep"]).args(arguments);
        let program = Program::start(&mut command)?;
        let ready = program.wait_for_line("ready ", Duration::from_secs(30))?;
        Ok(Target { program, prefix, ready })
    }

    /// The command line.
    pub fn name(&self) -> &str {
        self.program.name()
    }

    /// All that it has logged.
    pub fn log(&self) -> Vec<String> {
        self.program.stderr()
    }

    /// Waits until it prints a line that starts with `start`.
    pub fn wait_for_line(&self, start: &str, limit: Duration) -> Result<String, String> {
        self.program.wait_for_line(start, limit)
    }

    /// Standard output of rxe-ctl for this target.
    pub fn ctl(&self, words: &str) -> Result<String, String> {
        let mut ctl = Command::new(env!("CARGO_BIN_EXE_rxe-ctl"));
        ctl.args(["--file-prefix", &self.prefix]).args(words.split(' '));
        let done = process::run(&mut ctl, Duration::from_secs(30))?;
        if done.code == 0 { Ok(done.stdout) } else { Err(format!("rxe-ctl {words}: {}", done.stderr)) }
    }

    /// The last lines it printed, for a failure's text.
    pub fn tail(&self) -> String {
        self.program.tail()
    }

    /// Ends it as a user does: exit code 0 within 3 s, a summary, and `ready` printed exactly once.
    pub fn stop(mut self) -> Result<String, String> {
        let lines = |d: &Program| d.stdout().len() + d.stderr().len();
        let before = lines(&self.program);
        let began = Instant::now();
        self.program.signal("TERM")?;
        // Longer than allowed, so that the error distinguishes a late end from none.
        let Some(status) = self.program.wait(Duration::from_secs(15))? else {
            return Err(format!("the target still runs 15 s after SIGTERM\n{}", self.tail()));
        };
        let took = began.elapsed();
        std::thread::sleep(Duration::from_millis(50)); // the readers' last lines
        if status.code() != Some(0) {
            return Err(format!("after SIGTERM the target ended with {status}\n{}", self.tail()));
        }
        if took > STOP_LIMIT {
            return Err(format!("the target took {:.1} s to end after SIGTERM", took.as_secs_f32()));
        }
        let ready = self.program.stdout().iter().filter(|l| l.starts_with("ready ")).count();
        if ready != 1 {
            return Err(format!("{ready} lines start with `ready `\n{}", self.tail()));
        }
        if lines(&self.program) == before {
            return Err(format!("no summary after SIGTERM\n{}", self.tail()));
        }
        if let Some(line) = self.program.stderr().iter().find(|l| l.contains("panicked")) {
            return Err(format!("the target panicked: {line}"));
        }
        Ok(self.program.stdout().join("\n"))
    }

    /// True until the process has ended.
    pub fn alive(&mut self) -> bool {
        matches!(self.program.wait(Duration::ZERO), Ok(None))
    }
}
