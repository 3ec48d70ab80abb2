//! The configuration that the target runs with, as management has changed it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::Config;

/// The configuration, for several clients of management: who changes the target keeps it locked, so changes come one after
/// the other.
#[derive(Clone)]
pub struct Running(Arc<Mutex<Config>>);

impl Running {
    /// The configuration of the start.
    pub fn new(config: Config) -> Running {
        Running(Arc::new(Mutex::new(config)))
    }

    pub fn lock(&self) -> MutexGuard<'_, Config> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
