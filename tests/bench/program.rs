//! Programs that are run: with their output in files, for a bounded time, and never left behind.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often something is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long a program may take to end when it is told to.
const END: Duration = Duration::from_secs(10);

/// Raised by a signal.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// From now on signals end what is waited for, so that everything is taken back.
///
/// # Errors
/// In words, why not.
pub fn stop_on_signals() -> Result<(), String> {
    ctrlc::set_handler(|| STOPPED.store(true, Ordering::Relaxed)).map_err(|error| error.to_string())
}

/// Whether a signal has come.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    name: String,
    out: PathBuf,
    err: PathBuf,
}

impl Program {
    /// Starts `command`, whose output goes to files of this `name` in `dir`.
    ///
    /// # Errors
    /// In words, why not.
    pub fn start(mut command: Command, dir: &Path, name: &str) -> Result<Program, String> {
        let (out, err) = (dir.join(format!("{name}.out")), dir.join(format!("{name}.err")));
        let file = |path: &Path| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
        command.stdout(file(&out)?).stderr(file(&err)?);
        let child =
            command.spawn().map_err(|error| format!("{} does not start: {error}", command.get_program().display()))?;
        Ok(Program { child, name: name.to_owned(), out, err })
    }

    /// Where it reads.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// What it has written to standard output.
    pub fn output(&self) -> String {
        std::fs::read(&self.out).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until something is true of its output.
    ///
    /// # Errors
    /// It ended before, or `limit` is over.
    pub fn wait_for<T>(&mut self, limit: Duration, what: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let began = Instant::now();
        loop {
            let ended = self.child.try_wait().map_err(|error| error.to_string())?;
            if let Some(found) = what(&self.output()) {
                return Ok(found);
            }
            if let Some(status) = ended {
                return Err(format!("{} ended with {status}: {}", self.name, self.last_words()));
            }
            if stopped() {
                return Err("stopped by a signal".to_owned());
            }
            if began.elapsed() >= limit {
                return Err(format!("{} is not where it should be after {limit:?}: {}", self.name, self.last_words()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end, and returns what it has written.
    ///
    /// # Errors
    /// It failed, or took longer than `limit` and was killed.
    pub fn finish(mut self, limit: Duration) -> Result<String, String> {
        let began = Instant::now();
        loop {
            match self.child.try_wait().map_err(|error| error.to_string())? {
                Some(status) if status.success() => return Ok(self.output()),
                Some(status) => return Err(format!("{} ended with {status}: {}", self.name, self.last_words())),
                None if stopped() => return Err("stopped by a signal".to_owned()),
                None if began.elapsed() >= limit => return Err(format!("{} takes longer than {limit:?}", self.name)),
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// Tells it to end, and returns what it has written.
    ///
    /// # Errors
    /// As of [`finish`](Program::finish).
    pub fn stop(self) -> Result<String, String> {
        let id = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &id]).stderr(Stdio::null()).status().map_err(|error| error.to_string())?;
        self.finish(END)
    }

    /// The end of what it has said.
    fn last_words(&self) -> String {
        let text =
            std::fs::read(&self.err).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join("; ")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Errors say that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
