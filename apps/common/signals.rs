//! SIGINT, SIGTERM and SIGHUP: the first one stops the program in order, a later one at once.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cli_error::CliError;

/// The exit code after a later signal, as a shell reports it for a program ended by SIGINT.
const STOPPED_AT_ONCE: i32 = 130;
/// Signals within this time of the first count as the same one: timeout(1) sends its signal to the program and then to the
/// process group, and a shell's Ctrl-C reaches the program directly and through a wrapper that forwards it.
const SAME: Duration = Duration::from_millis(500);

/// The signals received, and the callback that stops the program.
#[derive(Clone, Default)]
pub struct Signals(Arc<State>);

#[derive(Default)]
struct State {
    /// When the first signal arrived.
    first: Mutex<Option<Instant>>,
    stop: OnceLock<Stop>,
}

/// Callback that asks the program to stop.
type Stop = Box<dyn Fn() + Send + Sync>;

impl Signals {
    /// Installs the handlers. Call it before DPDK pins the main thread to its core: the thread that waits for signals would
    /// be pinned there too, next to a poll loop that never sleeps.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn install() -> Result<Signals, CliError> {
        let signals = Signals::default();
        let handler = signals.clone();
        ctrlc::set_handler(move || {
            if handler.0.must_exit(Instant::now()) {
                std::process::exit(STOPPED_AT_ONCE);
            }
        })
        .map_err(|error| CliError::new(format!("signal handlers cannot be installed: {error}")))?;
        Ok(signals)
    }

    /// Sets the callback for the first signal. If one arrived before, the callback runs now.
    pub fn stop(&self, stop: impl Fn() + Send + Sync + 'static) {
        let stop = self.0.stop.get_or_init(|| Box::new(stop));
        if self.0.first().is_some() {
            stop();
        }
    }
}

impl State {
    fn first(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles one signal: the first one stops the program. `true` when the process must exit without waiting.
    fn must_exit(&self, now: Instant) -> bool {
        let before = {
            let mut first = self.first();
            let before = *first;
            first.get_or_insert(now);
            before
        };
        match (before, self.stop.get()) {
            (Some(before), _) => now.saturating_duration_since(before) >= SAME,
            (None, Some(stop)) => {
                stop();
                false
            }
            // The program is still starting: `Signals::stop` will find the signal.
            (None, None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn counted(signals: &Signals) -> Arc<AtomicU32> {
        let count = Arc::<AtomicU32>::default();
        let counter = Arc::clone(&count);
        signals.stop(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        count
    }

    #[test]
    fn the_first_signal_stops_in_order_and_a_later_one_at_once() {
        let signals = Signals::default();
        let stops = counted(&signals);
        let now = Instant::now();
        assert!(!signals.0.must_exit(now));
        // As timeout(1) does it: twice in a moment.
        assert!(!signals.0.must_exit(now + Duration::from_millis(1)));
        assert_eq!(stops.load(Ordering::Relaxed), 1);
        assert!(signals.0.must_exit(now + Duration::from_secs(1)));
        assert_eq!(stops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_signal_during_the_start_stops_the_program_once_it_runs() {
        let signals = Signals::default();
        assert!(!signals.0.must_exit(Instant::now()));
        assert_eq!(counted(&signals).load(Ordering::Relaxed), 1);
    }
}
