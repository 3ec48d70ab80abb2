//! The end of a target that its clients do not notice: no new ones, then wait for the last.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rxe_adapter::build::StopHandle;
use rxe_adapter::manage::Inspector;

/// Interval between two looks at the number of queue pairs.
const LOOK: Duration = Duration::from_millis(100);

/// Drains the target at most once; a later request changes the deadline.
#[derive(Clone, Debug)]
pub struct Drain {
    stop: StopHandle,
    /// The deadline, once a drain was requested.
    deadline: Arc<Mutex<Option<Instant>>>,
}

impl Drain {
    /// Nothing is drained yet. `stop` ends the target.
    pub fn new(stop: StopHandle) -> Drain {
        Drain { stop, deadline: Arc::default() }
    }

    /// Whether a drain was requested.
    pub fn is_on(&self) -> bool {
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Refuses new clients from now on, and stops the target when no queue pair is left or `patience` has passed.
    ///
    /// # Errors
    /// The target is stopping, or does not answer.
    pub fn start(&self, inspector: &Inspector, patience: Duration) -> Result<(), String> {
        inspector.drain().map_err(|error| error.to_string())?;
        let deadline = Instant::now() + patience;
        let before = self.deadline.lock().unwrap_or_else(PoisonError::into_inner).replace(deadline);
        let seconds = patience.as_secs();
        if before.is_some() {
            tracing::info!("rxe-ctl drains the target: it ends after {seconds} s at the latest");
            return Ok(());
        }
        tracing::info!("rxe-ctl drains the target: no new clients; it ends with the last one, or after {seconds} s");
        let (drain, inspector) = (self.clone(), inspector.clone());
        super::spawn("rxe-drain", move || drain.wait(&inspector)).map_err(|error| error.to_string())
    }

    fn wait(&self, inspector: &Inspector) {
        loop {
            thread::sleep(LOOK);
            let deadline = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
            let left = match inspector.resources() {
                Ok(lcores) => lcores.iter().map(|lcore| lcore.resources.qp).sum(),
                // A busy lcore answers the next time.
                Err(_) => 1,
            };
            if left == 0 {
                tracing::info!("drained: the last client is gone");
            } else if deadline.is_some_and(|at| at <= Instant::now()) {
                tracing::warn!("not drained in time: {left} queue pairs are left and are disconnected");
            } else {
                continue;
            }
            self.stop.stop();
            return;
        }
    }
}
