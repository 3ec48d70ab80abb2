//! SIGINT, SIGTERM and SIGHUP: the first one stops the program in order, the second one at once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::mistake::Mistake;

/// The exit code after the second signal: that of a shell for a program that SIGINT ended.
const STOPPED_AT_ONCE: i32 = 130;

/// The signals that have come, and what they stop.
#[derive(Clone, Default)]
pub struct Signals(Arc<State>);

#[derive(Default)]
struct State {
    count: AtomicU32,
    stop: OnceLock<Stop>,
}

/// How the program is told to stop.
type Stop = Box<dyn Fn() + Send + Sync>;

impl Signals {
    /// Takes the signals over. To be called before DPDK pins the main thread to its core: the thread that waits for
    /// signals would be pinned there too, next to one that never sleeps.
    pub fn install() -> Result<Signals, Mistake> {
        let signals = Signals::default();
        let handler = signals.clone();
        ctrlc::set_handler(move || handler.handle())
            .map_err(|error| Mistake::new(format!("the system does not let us handle signals: {error}")))?;
        Ok(signals)
    }

    /// What the first signal does from now on. One that came before does it now.
    pub fn stop(&self, stop: impl Fn() + Send + Sync + 'static) {
        let stop = self.0.stop.get_or_init(|| Box::new(stop));
        if self.0.count.load(Ordering::SeqCst) > 0 {
            stop();
        }
    }

    fn handle(&self) {
        // The order matters: whoever sets `stop` after this sees that a signal has come.
        let before = self.0.count.fetch_add(1, Ordering::SeqCst);
        match self.0.stop.get() {
            _ if before > 0 => std::process::exit(STOPPED_AT_ONCE),
            Some(stop) => stop(),
            // Still starting: `stop` will see the count.
            None => {}
        }
    }
}
