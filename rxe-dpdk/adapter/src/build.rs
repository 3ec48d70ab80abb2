//! Builds the parts of an adapter that do not depend on what carries its packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rxe_proto::cm::{Cm, CmConfig};
use rxe_proto::mem::Allocator;
use rxe_proto::transport::{Engine, EngineConfig};
use rxe_proto::wire::PrefixList;
use rxe_service::control::ip_host::IpHost;
use rxe_service::control::{Control, ControlParts};
use rxe_service::events::{EventReceiver, EventSender, Listening, event_ring};
use rxe_service::mailbox::{ControlMailbox, WorkerMailbox};
use rxe_service::seeds::Seeds;
use rxe_service::service_host::{ServiceHost, ServiceHostParts};
use rxe_service::{LocalPort, ServiceFactory};

use crate::counters::{Telemetry, WorkerCounters};
use crate::error::BuildError;
use crate::host_stats::HostStats;
use crate::manage::{EventParts, Events, PortList, RegionList};
use crate::regions;
use crate::settings::RuntimeConfig;
use crate::worker::MAX_FAULTS;
use crate::worker::capture::Recorded;
use crate::worker::clock::SharedClock;
use crate::worker::orders::Wake;

/// Checks what does not depend on the ports.
///
/// # Errors
/// [`BuildError::TooManyFaults`].
pub fn check_limits(config: &RuntimeConfig) -> Result<(), BuildError> {
    match config.faults.len() {
        0..=MAX_FAULTS => Ok(()),
        faults => Err(BuildError::TooManyFaults(faults)),
    }
}

/// The control side, and telemetry with its counters only. `guid` identifies the adapter towards connection managers.
///
/// # Errors
/// A host cannot listen as a service wants.
pub fn control<H: IpHost>(
    hosts: Vec<H>,
    host_stats: Vec<Arc<HostStats>>,
    guid: u64,
    config: &RuntimeConfig,
    factories: &Arc<[Box<dyn ServiceFactory>]>,
    mailbox: ControlMailbox,
    seeds: &mut Seeds,
) -> Result<(Control<H>, Telemetry), H::Error> {
    let cm = Cm::new(CmConfig {
        max_connections: config.max_connections,
        max_connections_per_peer: config.max_connections_per_peer,
        max_pending: config.max_pending,
        max_pending_per_peer: config.max_pending_per_peer,
        ..CmConfig::new(guid, seeds.next_seed())
    });
    let listens = factories
        .iter()
        .enumerate()
        .flat_map(|(service, factory)| factory.listen().into_iter().map(move |listen| (service, listen)))
        .collect();
    let parts = ControlParts {
        cm,
        listens,
        factories: Arc::clone(factories),
        allowed: factories.iter().map(|factory| allowed_peers(config, factory.name())).collect(),
        requests_per_second: config.requests_per_second,
        mailbox,
        traffic_class: config.traffic_class,
    };
    let control = Control::new(hosts, parts)?;
    let telemetry = Telemetry {
        workers: Vec::new(),
        control: Arc::clone(control.stats()),
        cm: Arc::clone(control.cm_stats()),
        hosts: host_stats,
        control_drops: Arc::clone(control.drops()),
        ports: Vec::new(),
    };
    Ok((control, telemetry))
}

/// The allowed peers of an instance, which may be several services that share a port.
fn allowed_peers(config: &RuntimeConfig, names: &str) -> Option<PrefixList> {
    names.split(',').find_map(|name| config.service_peers.get(name).cloned())
}

/// The workers' ends of the rings for events, and the adapter's events.
pub fn events(workers: usize, clock: SharedClock, ports: &Arc<PortList>) -> (Vec<EventSender>, Events) {
    let listening = Listening::default();
    let (senders, receivers): (_, Vec<EventReceiver>) = (0..workers).map(|_| event_ring(&listening)).unzip();
    (senders, Events::new(EventParts { listening, workers: receivers, clock, ports: Arc::clone(ports) }))
}

/// The engine of one worker, its services, and what both count.
pub struct WorkerParts {
    /// Queue pairs.
    pub engine: Engine,
    /// One instance of each service.
    pub services: ServiceHost,
    /// The counters of the worker.
    pub counters: WorkerCounters,
}

/// Settings that all workers of an adapter share.
pub struct WorkerSource<'a> {
    /// The configuration.
    pub config: &'a RuntimeConfig,
    /// Makes the services.
    pub factories: &'a [Box<dyn ServiceFactory>],
    /// The named regions.
    pub regions: &'a RegionList,
    /// The ports, by number.
    pub ports: &'a Arc<[LocalPort]>,
    /// Source of services' memory.
    pub allocator: &'a Arc<dyn Allocator>,
}

impl WorkerSource<'_> {
    /// Lets the services prepare what their instances share; before the first worker is made.
    ///
    /// # Errors
    /// [`BuildError::Service`].
    pub fn prepare(&self) -> Result<(), BuildError> {
        for factory in self.factories {
            let prepared = factory.prepare(&**self.allocator);
            prepared.map_err(|problem| BuildError::Service { name: factory.name(), problem })?;
        }
        Ok(())
    }

    /// The parts of worker number `index`.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn make(
        &self,
        index: usize,
        mailbox: WorkerMailbox,
        events: EventSender,
        seeds: &mut Seeds,
    ) -> Result<WorkerParts, BuildError> {
        let config = EngineConfig { worker: index as u8, seed: seeds.next_seed(), ..self.config.engine.clone() };
        let mut engine = Engine::new(config);
        let regions = regions::adopt(&mut engine, self.regions.lock().list())?;
        let parts = ServiceHostParts {
            worker: index,
            services: self.factories.iter().map(|factory| (factory.name(), factory.create(index))).collect(),
            allocator: Arc::clone(self.allocator),
            regions,
            ports: Arc::clone(self.ports),
            mailbox,
            events,
            seed: seeds.next_seed(),
        };
        let services = ServiceHost::new(parts, &mut engine)?;
        let counters = WorkerCounters {
            worker: Arc::default(),
            rx_faults: Arc::default(),
            tx_faults: Arc::default(),
            transport: engine.stats().clone(),
            services: Arc::clone(services.stats()),
            turn_times: Arc::default(),
            latencies: services.latencies().to_vec(),
            other_latencies: Arc::clone(engine.latencies()),
            capture: Arc::default(),
            drops: [Arc::default(), engine.drops().clone()],
        };
        Ok(WorkerParts { engine, services, counters })
    }
}

/// Counters that the recorders of captures read, by worker number.
pub fn recorded(telemetry: &Telemetry, clock: &SharedClock) -> Vec<Recorded> {
    let recorded = telemetry.workers.iter().enumerate().map(|(index, worker)| {
        // The control side is on worker 0.
        let control = (index == 0).then_some(&telemetry.control_drops);
        Recorded {
            drops: worker.drops.iter().chain(control).cloned().collect(),
            transport: Arc::clone(&worker.transport),
            stats: Arc::clone(&worker.capture),
            clock: clock.clone(),
        }
    });
    recorded.collect()
}

/// The line that says that the adapter can serve: `ready`, then `key=value` pairs.
pub fn ready_line(ports: &[LocalPort], workers: usize, factories: &[Box<dyn ServiceFactory>]) -> String {
    let mut line = String::from("ready");
    for (number, port) in ports.iter().enumerate() {
        let addresses: Vec<String> = port.addresses.iter().map(|ip| ip.to_string()).collect();
        let prefix = if ports.len() == 1 { String::new() } else { format!("port{number}.") };
        line += &format!(
            " {prefix}mac={} {prefix}addresses={} {prefix}mtu={} {prefix}path_mtu={}",
            port.mac,
            addresses.join(","),
            port.mtu,
            port.path_mtu.bytes(),
        );
    }
    let services: Vec<&str> = factories.iter().map(|factory| factory.name()).collect();
    line + &format!(" lcores={workers} services={}", services.join(","))
}

/// Stops a running adapter from another thread.
#[derive(Clone)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    wake: Option<Wake>,
}

impl StopHandle {
    /// Sets `stop`, which the workers read in each turn of their loop, and ends their sleep by `wake`.
    pub fn new(stop: Arc<AtomicBool>, wake: Option<Wake>) -> StopHandle {
        StopHandle { stop, wake }
    }

    /// Disconnects the peers and ends the adapter's `run`.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(wake) = &self.wake {
            wake();
        }
    }
}

impl std::fmt::Debug for StopHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StopHandle")
    }
}
