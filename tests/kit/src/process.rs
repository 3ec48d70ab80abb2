//! Child processes that end with their owner, and whose output is available while they run. The only place where tests and
//! benchmarks start programs that go on beside them.
//!
//! Functions here return errors instead of panicking: the real-kernel tests and the benchmarks report them.

use std::io::Read;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between checks whether a program has ended.
const CHECK: Duration = Duration::from_millis(5);

/// Set by [`interrupt`].
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes all waits of this process fail from now on, so that everything is cleaned up. For handlers of signals.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Whether [`interrupt`] was called.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

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
///
/// # Errors
/// It does not start, or takes longer.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished, String> {
    Program::start(command)?.finish(limit)
}

/// Runs a command that has to succeed.
///
/// # Errors
/// As of [`run`], or it fails.
pub fn must(program: &str, arguments: &[&str]) -> Result<(), String> {
    let done = run(Command::new(program).args(arguments), Duration::from_secs(60))?;
    if done.code == 0 {
        return Ok(());
    }
    Err(format!("`{program} {}` failed ({}): {}", arguments.join(" "), done.code, done.stderr.trim()))
}

/// Bytes that a thread reads from a pipe, and whether it has reached the end.
#[derive(Default)]
struct Output {
    bytes: Mutex<(Vec<u8>, bool)>,
    changed: Condvar,
}

impl Output {
    fn collect(self: &Arc<Self>, mut source: impl Read + Send + 'static) -> JoinHandle<()> {
        let output = Arc::clone(self);
        std::thread::spawn(move || {
            let mut buffer = [0; 16384];
            loop {
                match source.read(&mut buffer) {
                    Ok(length @ 1..) => locked(&output.bytes).0.extend_from_slice(&buffer[..length]),
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                    _ => break,
                }
                output.changed.notify_all();
            }
            locked(&output.bytes).1 = true;
            output.changed.notify_all();
        })
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&locked(&self.bytes).0).into_owned()
    }

    /// Complete lines, and the last one after the end.
    fn lines(&self) -> Vec<String> {
        let state = locked(&self.bytes);
        lines(&state.0, state.1)
    }
}

fn lines(bytes: &[u8], ended: bool) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    // The text behind the last line feed.
    if !ended || lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Where a program reads and writes. By default it has no standard input, and both outputs are collected.
#[derive(Default)]
pub struct Streams {
    /// Whether [`Program::stdin`] can write to it.
    pub stdin: bool,
    /// Where standard output goes instead.
    pub stdout: Option<Stdio>,
    /// Where standard error goes instead.
    pub stderr: Option<Stdio>,
}

/// A running program. Dropping it kills the program and waits for it.
pub struct Program {
    name: String,
    child: Child,
    stdout: Arc<Output>,
    stderr: Arc<Output>,
    readers: Vec<JoinHandle<()>>,
}

impl Program {
    /// Starts it with no standard input, and collects its output.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(command: &mut Command) -> Result<Program, String> {
        Program::with_streams(command, Streams::default())
    }

    /// Starts it with these streams.
    ///
    /// # Errors
    /// It does not start.
    pub fn with_streams(command: &mut Command, streams: Streams) -> Result<Program, String> {
        let name = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|w| w.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let mut child = command
            .stdin(if streams.stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(streams.stdout.unwrap_or_else(Stdio::piped))
            .stderr(streams.stderr.unwrap_or_else(Stdio::piped))
            .spawn()
            .map_err(|e| format!("cannot start `{name}`: {e}"))?;
        let (stdout, stderr) = (Arc::new(Output::default()), Arc::new(Output::default()));
        let mut readers = Vec::new();
        readers.extend(child.stdout.take().map(|pipe| stdout.collect(pipe)));
        readers.extend(child.stderr.take().map(|pipe| stderr.collect(pipe)));
        Ok(Program { name, child, stdout, stderr, readers })
    }

    /// The whole command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input, once, if it was started with one.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Sends a signal by its name.
    ///
    /// # Errors
    /// It has ended.
    pub fn signal(&self, name: &str) -> Result<(), String> {
        must("kill", &[&format!("-{name}"), &self.child.id().to_string()])
    }

    /// The exit status, if it ends within `limit`.
    ///
    /// # Errors
    /// The system cannot tell, or a signal interrupted the wait.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(Some(status)),
                Ok(None) if interrupted() => return Err("interrupted by a signal".to_owned()),
                Ok(None) if Instant::now() >= deadline => return Ok(None),
                Ok(None) => std::thread::sleep(CHECK),
                Err(e) => return Err(format!("cannot wait for `{}`: {e}", self.name)),
            }
        }
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.wait(Duration::ZERO), Ok(None))
    }

    /// Waits until `found` finds something in its standard output.
    ///
    /// # Errors
    /// It ended before, or `limit` is over.
    pub fn wait_for<T>(&self, limit: Duration, found: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + limit;
        let mut state = locked(&self.stdout.bytes);
        loop {
            if let Some(found) = found(&String::from_utf8_lossy(&state.0)) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.1 || left.is_zero() || interrupted() {
                let state_now = if state.1 { "ended" } else { "is running" };
                drop(state);
                return Err(format!("`{}`, which {state_now}, has not printed it:\n{}", self.name, self.tail()));
            }
            // Short enough to notice an interrupt.
            let wait = left.min(Duration::from_millis(500));
            state = self.stdout.changed.wait_timeout(state, wait).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    /// Waits for a line of standard output that starts with `start`.
    ///
    /// # Errors
    /// As of [`wait_for`](Program::wait_for).
    pub fn wait_for_line(&self, start: &str, limit: Duration) -> Result<String, String> {
        let found = |text: &str| {
            let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
            complete.split('\n').find(|line| line.starts_with(start)).map(str::to_owned)
        };
        self.wait_for(limit, found).map_err(|e| format!("no line `{start}...`: {e}"))
    }

    /// Waits for its end, and returns exit code and output.
    ///
    /// # Errors
    /// It takes longer than `limit`.
    pub fn finish(&mut self, limit: Duration) -> Result<Finished, String> {
        let Some(status) = self.wait(limit)? else {
            return Err(format!("`{}` did not end within {} s", self.name, limit.as_secs()));
        };
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        let (stdout, stderr) = (self.stdout.text(), self.stderr.text());
        Ok(Finished { code: status.code().unwrap_or(-1), stdout, stderr })
    }

    /// Sends SIGTERM, and waits as [`finish`](Program::finish) does.
    ///
    /// # Errors
    /// As of [`finish`](Program::finish).
    pub fn stop(&mut self, limit: Duration) -> Result<Finished, String> {
        // An error means that it has ended.
        let _ = self.signal("TERM");
        self.finish(limit)
    }

    /// All lines of standard output so far.
    pub fn stdout(&self) -> Vec<String> {
        self.stdout.lines()
    }

    /// All lines of standard error so far.
    pub fn stderr(&self) -> Vec<String> {
        self.stderr.lines()
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
}

impl Drop for Program {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn exit_code_and_both_outputs_are_returned() {
        let done = run(&mut shell("echo out; echo err >&2; exit 3"), LIMIT).unwrap();
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (3, "out\n", "err\n"));
    }

    #[test]
    fn a_line_is_found_when_it_is_complete_and_the_program_is_killed_when_dropped() {
        let mut program = Program::start(&mut shell("printf 'ready '; sleep 0.2; echo now; sleep 1000")).unwrap();
        assert_eq!(program.wait_for_line("ready ", LIMIT).unwrap(), "ready now");
        assert!(program.is_running());
        let id = program.id();
        drop(program);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn a_program_that_ends_without_the_line_is_an_error_with_its_output() {
        let program = Program::start(&mut shell("echo other; echo reason >&2")).unwrap();
        let error = program.wait_for_line("ready ", LIMIT).unwrap_err();
        assert!(error.contains("ended") && error.contains("stdout: other"), "{error}");
    }

    #[test]
    fn a_program_that_takes_too_long_is_an_error() {
        let error = run(&mut shell("sleep 1000"), Duration::from_millis(50)).err().unwrap();
        assert!(error.contains("did not end"), "{error}");
    }

    #[test]
    fn sigterm_ends_a_program_that_reads_its_standard_input() {
        let streams = Streams { stdin: true, ..Streams::default() };
        let mut program = Program::with_streams(&mut Command::new("cat"), streams).unwrap();
        let mut stdin = program.stdin().unwrap();
        std::io::Write::write_all(&mut stdin, b"text without an end").unwrap();
        program.wait_for(LIMIT, |text| text.contains("without an end").then_some(())).unwrap();
        assert_eq!(program.stop(LIMIT).unwrap().code, -1);
    }
}
