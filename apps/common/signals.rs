//! SIGINT, SIGTERM and SIGHUP: the first one stops the program in order, a later one at once.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::mistake::Mistake;

/// The exit code after a later signal: that of a shell for a program that SIGINT ended.
const STOPPED_AT_ONCE: i32 = 130;
/// Signals so soon after the first are that one again: timeout(1) sends its own to the program and then to the group that
/// both are in, and a shell's Ctrl-C reaches a wrapper that passes it on.
const SAME: Duration = Duration::from_millis(500);

/// The signals that have come, and what they stop.
#[derive(Clone, Default)]
pub struct Signals(Arc<State>);

#[derive(Default)]
struct State {
    /// When the first one came.
    first: Mutex<Option<Instant>>,
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
        ctrlc::set_handler(move || {
            if handler.0.impatient(Instant::now()) {
                std::process::exit(STOPPED_AT_ONCE);
            }
        })
        .map_err(|error| Mistake::new(format!("the system does not let us handle signals: {error}")))?;
        Ok(signals)
    }

    /// What the first signal does from now on. One that came before does it now.
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

    /// Takes one signal, which the first one of all stops the program with. `true` when it must end without waiting.
    fn impatient(&self, now: Instant) -> bool {
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
            // Still starting: `stop` will see that one came.
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
        assert!(!signals.0.impatient(now));
        // As timeout(1) does it: twice in a moment.
        assert!(!signals.0.impatient(now + Duration::from_millis(1)));
        assert_eq!(stops.load(Ordering::Relaxed), 1);
        assert!(signals.0.impatient(now + Duration::from_secs(1)));
        assert_eq!(stops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_signal_during_the_start_stops_the_program_once_it_runs() {
        let signals = Signals::default();
        assert!(!signals.0.impatient(Instant::now()));
        assert_eq!(counted(&signals).load(Ordering::Relaxed), 1);
    }
}
