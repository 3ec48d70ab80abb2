//! The disks for management, from any thread.

use std::sync::{Arc, OnceLock, Weak};

use rxe_inspect::latency::NamespaceTimes;

use super::shared::Shared;

/// The disks of the service, if it runs. They belong to it: their memory is gone when the adapter ends.
#[derive(Clone, Default, Debug)]
pub struct Disks(Arc<OnceLock<Weak<Shared>>>);

impl Disks {
    /// The service has been made.
    pub fn set(&self, shared: &Arc<Shared>) {
        // There is one factory.
        let _ = self.0.set(Arc::downgrade(shared));
    }

    /// The disks; `None` if the service does not run.
    pub fn get(&self) -> Option<Arc<Shared>> {
        self.0.get()?.upgrade()
    }

    /// The times of the commands of all namespaces.
    pub fn latencies(&self) -> Vec<NamespaceTimes> {
        self.get().map(|shared| shared.latencies()).unwrap_or_default()
    }
}
