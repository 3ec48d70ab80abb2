//! The runtime: builds an adapter from its configuration, runs it, and sums up what it did.
//!
//! [`Runtime::new`] (in `build`) puts the parts together; imports run from here to the workers, never back.

mod build;
mod error;
mod hosts;
mod kernel_addresses;
mod link_watch;
mod port_reports;
mod ports;
mod rtnetlink;
mod telemetry;

use std::fmt;
use std::sync::{Arc, PoisonError};

pub use rxe_adapter::build::StopHandle;
use rxe_adapter::counters::{Snapshot, Telemetry};
pub use rxe_adapter::manage::RegionSettings;
use rxe_adapter::manage::{Capture, Inspector};
use rxe_adapter::regions::OwnedRegions;
pub use rxe_adapter::settings::{PortSettings, RuntimeConfig};
use rxe_adapter::worker::watchdog::Watchdog;
use rxe_proto::wire::PortId;

use crate::eal::{Eal, EalError, Job, Mempool, Port};
use crate::worker::run::{StopFlags, Worker};
pub use error::RuntimeError;
use link_watch::LinkWatch;
use port_reports::Monitors;

/// Most workers: the worker's number is in the top four bits of a queue pair number, and 15 would collide with the
/// multicast QPN.
pub const MAX_WORKERS: usize = 15;

/// A RoCEv2 adapter, ready to run on all DPDK ports but those that the program has configured for itself (which must
/// then be the last ones).
pub struct Runtime {
    eal: Eal,
    ports: Vec<Port>,
    workers: Vec<(u32, Worker)>,
    flags: Arc<StopFlags>,
    telemetry: Telemetry,
    inspector: Inspector,
    capture: Capture,
    monitors: Monitors,
    links: LinkWatch,
    watchdog: Watchdog,
    _regions: OwnedRegions,
    ready: String,
}

/// The totals of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// All counters.
    pub counters: Snapshot,
    /// Frames that the ports received and sent, by their own count.
    pub ports: Vec<(PortId, u64, u64)>,
    /// Packet buffers that were not freed. Anything but 0 is a bug.
    pub mbufs_leaked: usize,
}

impl Runtime {
    /// The line that says that the adapter can serve: `ready`, then `key=value` pairs.
    pub fn ready_line(&self) -> &str {
        &self.ready
    }

    /// A handle that stops [`Runtime::run`].
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle::new(Arc::clone(&self.flags.stop), None)
    }

    /// The counters, readable from any thread while the adapter runs.
    pub fn telemetry(&self) -> Telemetry {
        self.telemetry.clone()
    }

    /// A view of the adapter for other threads, while it runs.
    pub fn inspector(&self) -> Inspector {
        self.inspector.clone()
    }

    /// Captures of the adapter.
    pub fn capture(&self) -> Capture {
        self.capture.clone()
    }

    /// Runs every worker on its lcore, worker 0 on the calling thread, until stopped.
    ///
    /// # Errors
    ///
    /// [`EalError::WorkerPanicked`] and what else keeps lcores from running.
    pub fn run(self) -> Result<Summary, EalError> {
        let Runtime { eal, ports, workers, telemetry, capture, monitors, links, watchdog, .. } = self;
        let jobs: Vec<Job<'_>> =
            workers.into_iter().map(|(lcore, worker)| -> Job<'_> { (lcore, Box::new(move || worker.run())) }).collect();
        let ran = eal.run_workers(jobs);
        // The recorders ended with the workers.
        capture.finish();
        drop((links, watchdog));
        ran?;
        let counted = ports
            .iter()
            .map(|port| {
                let stats = port.stats().unwrap_or_default();
                (port.id(), stats.rx_frames, stats.tx_frames)
            })
            .collect();
        // The lock waits for a report of the ports that is being made.
        monitors.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // The drivers hold buffers in their rings until the ports are closed.
        let pools: Vec<Mempool> = ports.iter().map(|port| port.pool().clone()).collect();
        drop(ports);
        let mbufs_leaked = pools.iter().map(Mempool::in_use).sum();
        Ok(Summary { counters: telemetry.snapshot(), ports: counted, mbufs_leaked })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (port, rx, tx) in &self.ports {
            writeln!(f, "port{}: rx_frames={rx} tx_frames={tx}", port.0)?;
        }
        write!(f, "{}", self.counters)?;
        writeln!(f, "mbufs_leaked={}", self.mbufs_leaked)
    }
}
