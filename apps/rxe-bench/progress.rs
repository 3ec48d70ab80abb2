//! Progress of a run: a line that changes on a terminal, a line each second elsewhere, and the rows of `--run_infinitely`.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rxe_adapter::output;

use crate::outcome::Outcome;
use crate::plan::{Json, Length, Plan};
use crate::table;

/// Interval between updates on a terminal.
const EVERY: Duration = Duration::from_millis(200);
/// Interval between lines elsewhere.
const LINE: Duration = Duration::from_secs(1);
/// Rows that wait for a reader of standard output; further ones are left out.
const WAITING: usize = 16;

#[derive(Default)]
struct State {
    done: AtomicU64,
    over: AtomicBool,
}

/// Prints progress, on a thread of its own: nothing on an lcore waits for a reader.
pub struct Progress<O = Outcome> {
    state: Arc<State>,
    rows: Option<SyncSender<O>>,
    thread: Option<JoinHandle<()>>,
}

/// How the results `O` of intervals are printed.
pub struct Rows<O> {
    /// The lines before the first row, from the first result.
    pub head: Box<dyn Fn(&O) -> String + Send>,
    pub row: Box<dyn Fn(&O) -> String + Send>,
    /// Standard output is for JSON.
    pub to_stderr: bool,
}

/// The name of a test, and of what it completes.
struct Label {
    test: String,
    unit: &'static str,
}

impl Progress {
    /// Starts the thread. Call it before DPDK pins the main thread to its core: later threads would be pinned there too.
    pub fn start(plan: &Plan) -> Progress {
        let rows = matches!(plan.length, Length::Endless(_)).then(|| {
            let (of_head, of_row) = (plan.clone(), plan.clone());
            Rows {
                head: Box::new(move |first| table::head(&of_head, first)),
                row: Box::new(move |outcome| table::row(&of_row, outcome)),
                to_stderr: plan.json == Some(Json::Stdout),
            }
        });
        Progress::with(plan.test.name(), "messages", rows)
    }
}

impl<O: Send + 'static> Progress<O> {
    /// Starts the thread for a test that counts in `unit`, with `rows` if it has intervals.
    pub fn with(test: String, unit: &'static str, rows: Option<Rows<O>>) -> Progress<O> {
        let state = Arc::<State>::default();
        let (shown, name) = (Arc::clone(&state), Label { test, unit });
        let builder = thread::Builder::new().name("progress".to_owned());
        let (rows, thread) = if let Some(format) = rows {
            let (rows, receiver) = sync_channel(WAITING);
            (Some(rows), builder.spawn(move || print_rows(&format, &receiver)))
        } else if io::stderr().is_terminal() {
            (None, builder.spawn(move || show(&shown, &name)))
        } else {
            (None, builder.spawn(move || print_lines(&shown, &name)))
        };
        // Without the thread there is no progress.
        Progress { state, rows, thread: thread.ok() }
    }
}

impl<O> Progress<O> {
    /// Sets the number of completed messages.
    #[inline]
    pub fn set_done(&self, done: u64) {
        self.state.done.store(done, Ordering::Relaxed);
    }

    /// Prints the result of an interval.
    pub fn show(&self, interval: O) {
        if let Some(rows) = &self.rows {
            // Without a reader the row is left out. The final result contains it.
            let _ = rows.try_send(interval);
        }
    }
}

impl<O> Drop for Progress<O> {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
        self.rows = None;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread is of no interest any more.
            let _ = thread.join();
        }
    }
}

/// A line on a terminal.
fn show(state: &State, name: &Label) {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        bar.set_style(style);
    }
    let mut last = (Instant::now(), 0);
    while !state.over.load(Ordering::Relaxed) {
        bar.set_message(line(state, name, &mut last));
        bar.tick();
        thread::park_timeout(EVERY);
    }
    bar.finish_and_clear();
}

/// Lines on standard error, once a message is complete.
fn print_lines(state: &State, name: &Label) {
    let began = Instant::now();
    let mut last = (began, 0);
    let mut next = began + LINE;
    while !state.over.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now < next {
            thread::park_timeout(next - now);
            continue;
        }
        next = now + LINE;
        let text = line(state, name, &mut last);
        if last.1 > 0 {
            output::stderr().enqueue(format!("{} s: {text}\n", began.elapsed().as_secs()).as_bytes());
        }
    }
}

/// Number of completed messages or I/Os, and the rate since `last`, which becomes now.
fn line(state: &State, Label { test, unit }: &Label, last: &mut (Instant, u64)) -> String {
    let (now, done) = (Instant::now(), state.done.load(Ordering::Relaxed));
    // The count starts at 0 again for the next size.
    let rate = done.saturating_sub(last.1) as f64 / now.duration_since(last.0).as_secs_f64().max(1e-9);
    *last = (now, done);
    let rate = if *unit == "messages" { format!("{:.3} Mpps", rate / 1e6) } else { format!("{rate:.0} per second") };
    format!("{test}: {done} {unit}, {rate}")
}

/// Rows on standard output, or on standard error where the JSON goes to standard output.
fn print_rows<O>(format: &Rows<O>, rows: &Receiver<O>) {
    let mut first = true;
    for outcome in rows {
        let mut text = (format.row)(&outcome);
        if std::mem::take(&mut first) {
            text = (format.head)(&outcome) + &text;
        }
        if format.to_stderr {
            output::stderr().enqueue(text.as_bytes());
        } else {
            let mut stdout = io::stdout().lock();
            // If the stream is closed, the final result reports it.
            let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        }
    }
}
