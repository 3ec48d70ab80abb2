//! Child processes that end with their owner, and whose output is at hand while they run.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A lock that a panicking test thread cannot poison for the clean-up.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Exit code and output of a finished command.
pub struct Finished {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a command to its end; one that takes longer than `limit` is killed, which is an error.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished, String> {
    let mut daemon = Daemon::start(command)?;
    match daemon.wait(limit)? {
        Some(status) => {
            let (stdout, stderr) = daemon.all_output();
            Ok(Finished { code: status.code().unwrap_or(-1), stdout, stderr })
        }
        None => Err(format!("`{}` did not end within {} s", daemon.name, limit.as_secs())),
    }
}

/// Runs a command that has to succeed.
pub fn must(program: &str, arguments: &[&str]) -> Result<(), String> {
    let done = run(Command::new(program).args(arguments), Duration::from_secs(60))?;
    if done.code == 0 {
        return Ok(());
    }
    Err(format!("`{program} {}` failed ({}): {}", arguments.join(" "), done.code, done.stderr.trim()))
}

#[derive(Default)]
struct Lines {
    text: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Lines {
    fn collect(self: &Arc<Self>, source: impl Read + Send + 'static) -> std::thread::JoinHandle<()> {
        let lines = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(source).split(b'\n') {
                let Ok(line) = line else { break };
                locked(&lines.text).0.push(String::from_utf8_lossy(&line).into_owned());
                lines.changed.notify_all();
            }
            locked(&lines.text).1 = true;
            lines.changed.notify_all();
        })
    }
}

/// A running program. Dropping it kills the program and waits for it.
pub struct Daemon {
    name: String,
    child: Child,
    stdout: Arc<Lines>,
    stderr: Arc<Lines>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Daemon {
    /// Starts it, with no standard input.
    pub fn start(command: &mut Command) -> Result<Daemon, String> {
        let name = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|w| w.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start `{name}`: {e}"))?;
        let (stdout, stderr) = (Arc::new(Lines::default()), Arc::new(Lines::default()));
        let mut readers = Vec::new();
        if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
            readers = vec![stdout.collect(out), stderr.collect(err)];
        }
        Ok(Daemon { name, child, stdout, stderr, readers })
    }

    /// The whole command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a signal, by pid.
    pub fn signal(&mut self, name: &str) -> Result<(), String> {
        must("kill", &[&format!("-{name}"), &self.child.id().to_string()])
    }

    /// The exit status, if it ends within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(Some(status)),
                Ok(None) if Instant::now() >= deadline => return Ok(None),
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(e) => return Err(format!("cannot wait for `{}`: {e}", self.name)),
            }
        }
    }

    /// Waits for a line of standard output that starts with `start`; an error if the program ends before, or `limit`.
    pub fn wait_for_line(&self, start: &str, limit: Duration) -> Result<String, String> {
        let deadline = Instant::now() + limit;
        let mut text = locked(&self.stdout.text);
        loop {
            if let Some(line) = text.0.iter().find(|l| l.starts_with(start)) {
                return Ok(line.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if text.1 || left.is_zero() {
                let end = if text.1 { "ended" } else { "is running" };
                drop(text);
                return Err(format!("no line `{start}...` from `{}`, which {end}:\n{}", self.name, self.tail()));
            }
            text = self.stdout.changed.wait_timeout(text, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// All lines of standard output so far.
    pub fn stdout(&self) -> Vec<String> {
        locked(&self.stdout.text).0.clone()
    }

    /// All lines of standard error so far.
    pub fn stderr(&self) -> Vec<String> {
        locked(&self.stderr.text).0.clone()
    }

    /// The last lines of both outputs, for a failure's text.
    pub fn tail(&self) -> String {
        let mut text = String::new();
        for (name, lines) in [("stdout", self.stdout()), ("stderr", self.stderr())] {
            for line in lines.iter().skip(lines.len().saturating_sub(40)) {
                text += &format!("{name}: {line}\n");
            }
        }
        text
    }

    /// Standard output and error of a program that has ended.
    fn all_output(mut self) -> (String, String) {
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        let join = |lines: Vec<String>| lines.iter().map(|l| format!("{l}\n")).collect::<String>();
        (join(self.stdout()), join(self.stderr()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
