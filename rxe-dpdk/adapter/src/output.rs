//! Standard output and standard error, each written by a thread of its own.
//!
//! A reader that stalls blocks the thread that writes to it, and an lcore must never block. So all that a running
//! adapter prints goes into a bounded queue. If the queue is full, the line is dropped and counted; a log line reports the
//! number once the reader continues.
//!
//! Call [`start`] before DPDK pins the main thread to its core: the writers inherit its affinity.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Queue length, in lines.
const CAPACITY: usize = 4096;
/// How long [`finish`] waits without progress.
const STALLED: Duration = Duration::from_millis(500);
/// Longest time that [`finish`] waits in total.
const SLOW: Duration = Duration::from_secs(2);

/// Names of the counters and their descriptions.
pub const DESCRIPTIONS: &[(&str, &str)] = &[
    ("stderr_lines_dropped", "Lines of standard error dropped, because it was not read or could not be written."),
    ("stdout_lines_dropped", "Lines of standard output dropped, because it was not read or could not be written."),
];

static STDERR: OnceLock<Output> = OnceLock::new();
static STDOUT: OnceLock<Output> = OnceLock::new();

/// Starts both writers.
pub fn start() {
    stderr();
    stdout();
}

/// Standard error. EAL's log goes through it once it is started.
pub fn stderr() -> &'static Output {
    STDERR.get_or_init(|| Output::new("standard error", io::stderr().as_fd().try_clone_to_owned().map(File::from)))
}

/// Standard output.
pub fn stdout() -> &'static Output {
    STDOUT.get_or_init(|| Output::new("standard output", io::stdout().as_fd().try_clone_to_owned().map(File::from)))
}

/// Standard error, if its writer is started.
pub fn started_stderr() -> Option<&'static Output> {
    STDERR.get()
}

/// Waits until every queued line is written: at most 2 s, and half a second without progress.
pub fn finish() {
    for output in [&STDERR, &STDOUT] {
        output.get().inspect(|output| output.finish());
    }
}

/// The counters, by the names in [`DESCRIPTIONS`].
pub fn counters() -> Vec<(&'static str, u64)> {
    let dropped = [&STDERR, &STDOUT].map(|output| output.get().map_or(0, Output::dropped));
    DESCRIPTIONS.iter().zip(dropped).map(|((name, _), count)| (*name, count)).collect()
}

/// Installs a panic hook that prints through the writer of standard error.
pub fn print_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("without a name");
        let mut text = format!("thread {name} {panic}\n");
        let backtrace = std::backtrace::Backtrace::capture();
        if backtrace.status() == std::backtrace::BacktraceStatus::Captured {
            text += &format!("{backtrace}\n");
        }
        stderr().enqueue(text.as_bytes());
    }));
}

/// A descriptor and its writer thread.
#[derive(Debug)]
pub struct Output {
    shared: Arc<Shared>,
    /// `None` without a thread: the caller then writes to `direct`.
    lines: Option<SyncSender<Vec<u8>>>,
    direct: Mutex<Option<File>>,
}

#[derive(Debug)]
struct Shared {
    name: &'static str,
    /// Lines queued, and lines that the writer is done with.
    queued: AtomicU64,
    done: AtomicU64,
    /// Lines dropped because the queue was full.
    unread: AtomicU64,
    /// Lines that could not be written.
    failed: AtomicU64,
    /// Notified after each line, for `finish`.
    lock: Mutex<()>,
    progress: Condvar,
}

impl Output {
    fn new(name: &'static str, file: io::Result<File>) -> Output {
        let shared = Arc::new(Shared {
            name,
            queued: AtomicU64::new(0),
            done: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            lock: Mutex::new(()),
            progress: Condvar::new(),
        });
        let (sender, lines) = sync_channel(CAPACITY);
        let (writer, direct) = (Arc::clone(&shared), file.as_ref().ok().and_then(|file| file.try_clone().ok()));
        let started = file.and_then(|file| {
            thread::Builder::new().name(format!("rxe-{}", &name[9..])).spawn(move || writer.write_all(&lines, file))
        });
        match started {
            Ok(_) => Output { shared, lines: Some(sender), direct: Mutex::new(None) },
            Err(_) => Output { shared, lines: None, direct: Mutex::new(direct) },
        }
    }

    /// Queues `text`: one line, or several that stay together. Never blocks.
    pub fn enqueue(&self, text: &[u8]) {
        let Some(lines) = &self.lines else {
            let mut direct = self.direct.lock().unwrap_or_else(PoisonError::into_inner);
            if direct.as_mut().is_none_or(|file| file.write_all(text).is_err()) {
                self.shared.failed.fetch_add(1, Ordering::Relaxed);
            }
            return;
        };
        // Before the send, so that `done` never exceeds `queued`.
        self.shared.queued.fetch_add(1, Ordering::Relaxed);
        if lines.try_send(text.to_vec()).is_err() {
            self.shared.queued.fetch_sub(1, Ordering::Relaxed);
            self.shared.unread.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines dropped so far.
    pub fn dropped(&self) -> u64 {
        self.shared.unread.load(Ordering::Relaxed) + self.shared.failed.load(Ordering::Relaxed)
    }

    fn finish(&self) {
        let shared = &*self.shared;
        let began = Instant::now();
        let (mut done, mut moved) = (shared.done.load(Ordering::Acquire), began);
        let mut guard = shared.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.lines.is_some() && done < shared.queued.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= moved + STALLED || now >= began + SLOW {
                return;
            }
            let waited = shared.progress.wait_timeout(guard, Duration::from_millis(20));
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
            let now_done = shared.done.load(Ordering::Acquire);
            if now_done != done {
                (done, moved) = (now_done, Instant::now());
            }
        }
    }
}

impl Shared {
    /// The writer's thread.
    fn write_all(&self, lines: &Receiver<Vec<u8>>, mut file: File) {
        let (mut reported, mut failed, mut since) = (0, false, 0);
        loop {
            let line = match lines.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    self.report(&mut reported);
                    since = 0;
                    let Ok(line) = lines.recv() else { return };
                    line
                }
            };
            if let Err(error) = write_line(&mut file, &line) {
                self.failed.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!("{} does not take what is written to it: {error}", self.name);
                }
            }
            self.done.fetch_add(1, Ordering::Release);
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.progress.notify_all();
            since += 1;
            // The report must not wait for an empty queue, which may never come.
            if since > CAPACITY {
                self.report(&mut reported);
                since = 0;
            }
        }
    }

    /// Logs how many lines were dropped since the last report.
    fn report(&self, reported: &mut u64) {
        let dropped = self.unread.load(Ordering::Relaxed);
        if dropped > *reported {
            tracing::warn!("{} lines were dropped because {} was not read", dropped - *reported, self.name);
            *reported = dropped;
        }
    }
}

/// Writes a whole line. Retries if another process has made the descriptor non-blocking.
fn write_line(file: &mut File, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match file.write(line) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => line = &line[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Queues one line per [`write`](Write::write), as loggers expect.
impl Write for &Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.enqueue(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    fn pipe() -> (io::PipeReader, Output) {
        let (reader, writer) = io::pipe().expect("a pipe");
        (reader, Output::new("standard output", Ok(File::from(OwnedFd::from(writer)))))
    }

    #[test]
    fn lines_arrive_in_order() {
        let (mut reader, output) = pipe();
        (0..100).for_each(|n| output.enqueue(format!("{n}\n").as_bytes()));
        output.finish();
        drop(output);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("text");
        assert_eq!(text, (0..100).map(|n| format!("{n}\n")).collect::<String>());
    }

    #[test]
    fn a_stalled_reader_blocks_no_writer_and_dropped_lines_are_counted() {
        let (mut reader, output) = pipe();
        let line = [b'x'; 1024];
        let sent = 3 * CAPACITY as u64;
        (0..sent).for_each(|_| output.enqueue(&line));
        let began = Instant::now();
        output.finish();
        assert!(began.elapsed() >= STALLED, "it takes nothing");
        let dropped = output.dropped();
        assert!(dropped >= sent - CAPACITY as u64 - 100, "{dropped} of {sent}");
        // It goes on: all that was queued arrives.
        let reading = thread::spawn(move || {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map(|_| bytes.len() as u64)
        });
        drop(output);
        assert_eq!(reading.join().expect("a reader").expect("bytes"), (sent - dropped) * 1024);
    }

    #[test]
    fn a_closed_descriptor_is_counted() {
        let (reader, output) = pipe();
        drop(reader);
        output.enqueue(b"gone\n");
        output.finish();
        assert_eq!(output.dropped(), 1);
    }
}
