//! The ports of an adapter with their addresses, for threads of management.
//!
//! The list is what the workers know: a change of addresses is ordered from them first, then put here.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rxe_proto::wire::{Cidr, PortId};
use rxe_service::LocalPort;

use crate::addressing::{Addressing, ConflictReports};

/// One port.
#[derive(Clone, Debug)]
pub struct PortEntry {
    /// As services see it.
    pub local: LocalPort,
    /// As configured; `local` has the link-local address too.
    pub addressing: Addressing,
    /// Conflicts of its addresses.
    pub conflicts: ConflictReports,
    /// Whether the kernel must not have its addresses.
    pub exclusive: bool,
}

impl PortEntry {
    /// All addresses with their prefixes: those of the configuration, then the link-local one.
    pub fn cidrs(&self) -> impl Iterator<Item = Cidr> + '_ {
        let configured = &self.addressing.addresses;
        let others = self.local.addresses.iter().filter(|ip| !configured.iter().any(|address| address.ip == **ip));
        configured.iter().copied().chain(others.map(|ip| Cidr::new(*ip, 64)))
    }
}

/// The ports, by number.
#[derive(Debug)]
pub struct PortList {
    ports: Mutex<Vec<PortEntry>>,
    /// Held during a change, so that there is one at a time.
    changing: Mutex<()>,
}

impl PortList {
    /// The ports as they are at the start.
    pub fn new(ports: Vec<PortEntry>) -> PortList {
        PortList { ports: Mutex::new(ports), changing: Mutex::new(()) }
    }

    /// A copy of the list, so that no caller keeps it locked.
    pub fn all(&self) -> Vec<PortEntry> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PortEntry>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps others from changing addresses.
    pub fn begin_change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One port.
    pub fn get(&self, port: PortId) -> Option<PortEntry> {
        self.lock().get(usize::from(port.0)).cloned()
    }

    /// Replaces one port.
    pub fn put(&self, port: PortId, entry: PortEntry) {
        if let Some(old) = self.lock().get_mut(usize::from(port.0)) {
            *old = entry;
        }
    }
}
