//! Progress of a run on a terminal.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::plan::Plan;

/// Interval between updates.
const EVERY: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    done: AtomicU64,
    over: AtomicBool,
}

/// Progress line on standard error, if that is a terminal.
pub struct Progress {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the thread that draws the line. Call it before DPDK pins the main thread to its core: later threads would be
    /// pinned there too.
    pub fn start(plan: &Plan) -> Progress {
        let state = Arc::<State>::default();
        if !io::stderr().is_terminal() {
            return Progress { state, thread: None };
        }
        let (shown, name) = (Arc::clone(&state), plan.test.name());
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(move || show(&shown, &name));
        // Without the thread there is no progress line.
        Progress { state, thread: thread.ok() }
    }

    /// Sets the number of completed messages.
    #[inline]
    pub fn set_done(&self, done: u64) {
        self.state.done.store(done, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread is of no interest any more.
            let _ = thread.join();
        }
    }
}

fn show(state: &State, name: &str) {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        bar.set_style(style);
    }
    let mut last = (Instant::now(), 0);
    while !state.over.load(Ordering::Relaxed) {
        let (now, done) = (Instant::now(), state.done.load(Ordering::Relaxed));
        // The count starts at 0 again for the next size.
        let rate = done.saturating_sub(last.1) as f64 / now.duration_since(last.0).as_secs_f64().max(1e-9);
        last = (now, done);
        bar.set_message(format!("{name}: {done} messages, {:.3} M/s", rate / 1e6));
        bar.tick();
        thread::park_timeout(EVERY);
    }
    bar.finish_and_clear();
}
