//! Monitoring a port from a thread that does not own it.

use std::sync::Arc;

use super::info::{Link, PortInfo, PortStats};
use super::port::Port;
use super::port_inner::PortInner;

/// A view of a [`Port`]: what it is, its link and its counters. The port runs while this lives.
#[derive(Clone)]
pub struct PortMonitor {
    port: Arc<PortInner>,
    info: PortInfo,
}

impl Port {
    /// A view of the port, for other threads.
    pub fn monitor(&self) -> PortMonitor {
        PortMonitor { port: Arc::clone(self.inner()), info: self.info().clone() }
    }
}

impl PortMonitor {
    /// Device, driver and address.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// The index of the kernel interface below the device, if there is one.
    pub fn interface(&self) -> Option<u32> {
        self.port.interface()
    }

    /// The link's state now, without waiting for it.
    pub fn link(&self) -> Link {
        self.port.link()
    }

    /// Buffers of the port in use, and all of them; approximate while the port is used.
    pub fn mbufs(&self) -> (usize, usize) {
        (self.port.pool.in_use(), self.port.pool.count())
    }

    /// The device's counters; `None` when it keeps none.
    pub fn stats(&self) -> Option<PortStats> {
        self.port.stats().ok()
    }
}

impl std::fmt::Debug for PortMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PortMonitor({} {})", self.info.id.0, self.info.name)
    }
}
