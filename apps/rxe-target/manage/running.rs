//! The configuration that the target runs with, as management has changed it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::{Config, Source};

/// The configuration, for several clients of management: who changes the target keeps it locked, so changes come one after
/// the other.
#[derive(Clone)]
pub struct Running {
    config: Arc<Mutex<Config>>,
    source: Option<Arc<Source>>,
}

impl Running {
    /// The configuration of the start, and the file that it is from.
    pub fn new(config: Config, source: Option<Source>) -> Running {
        Running { config: Arc::new(Mutex::new(config)), source: source.map(Arc::new) }
    }

    pub fn lock(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the configuration is from; `None` if the command line has all of it.
    pub fn source(&self) -> Option<&Source> {
        self.source.as_deref()
    }
}
