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
pub struct Progress {
    state: Arc<State>,
    rows: Option<SyncSender<Outcome>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the thread. Call it before DPDK pins the main thread to its core: later threads would be pinned there too.
    pub fn start(plan: &Plan) -> Progress {
        let state = Arc::<State>::default();
        let (shown, name) = (Arc::clone(&state), plan.test.name());
        let builder = thread::Builder::new().name("progress".to_owned());
        let (rows, thread) = if matches!(plan.length, Length::Endless(_)) {
            let (rows, receiver) = sync_channel(WAITING);
            let plan = plan.clone();
            (Some(rows), builder.spawn(move || print_rows(&plan, &receiver)))
        } else if io::stderr().is_terminal() {
            (None, builder.spawn(move || show(&shown, &name)))
        } else {
            (None, builder.spawn(move || print_lines(&shown, &name)))
        };
        // Without the thread there is no progress.
        Progress { state, rows, thread: thread.ok() }
    }

    /// Sets the number of completed messages.
    #[inline]
    pub fn set_done(&self, done: u64) {
        self.state.done.store(done, Ordering::Relaxed);
    }

    /// Prints the result of an interval.
    pub fn show(&self, interval: Outcome) {
        if let Some(rows) = &self.rows {
            // Without a reader the row is left out. The final result contains it.
            let _ = rows.try_send(interval);
        }
    }
}

impl Drop for Progress {
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
fn show(state: &State, name: &str) {
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
fn print_lines(state: &State, name: &str) {
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

/// Number of completed messages, and the rate since `last`, which becomes now.
fn line(state: &State, name: &str, last: &mut (Instant, u64)) -> String {
    let (now, done) = (Instant::now(), state.done.load(Ordering::Relaxed));
    // The count starts at 0 again for the next size.
    let rate = done.saturating_sub(last.1) as f64 / now.duration_since(last.0).as_secs_f64().max(1e-9);
    *last = (now, done);
    format!("{name}: {done} messages, {:.3} Mpps", rate / 1e6)
}

/// Rows on standard output, or on standard error where the JSON goes to standard output.
fn print_rows(plan: &Plan, rows: &Receiver<Outcome>) {
    let mut first = true;
    for outcome in rows {
        let mut text = table::row(plan, &outcome);
        if std::mem::take(&mut first) {
            text = table::head(plan, &outcome) + &text;
        }
        if plan.json == Some(Json::Stdout) {
            output::stderr().enqueue(text.as_bytes());
        } else {
            let mut stdout = io::stdout().lock();
            // If the stream is closed, the final result reports it.
            let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        }
    }
}
