//! Builds an adapter, step by step.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use rxe_proto::Instant;
use rxe_proto::cm::{Cm, CmConfig};
use rxe_proto::transport::{Engine, EngineConfig};
use rxe_proto::wire::PrefixList;
use rxe_service::control::ip_host::IpHost;
use rxe_service::control::{Control, ControlParts};
use rxe_service::events::{EventSender, Listening, event_ring};
use rxe_service::mailbox::{ControlMailbox, WorkerInspector, WorkerMailbox, mailboxes};
use rxe_service::seeds::Seeds;
use rxe_service::service_host::{ServiceHost, ServiceHostParts};
use rxe_service::{LocalPort, ServiceFactory};

use super::error::RuntimeError;
use super::link_watch::{LinkWatch, WatchedPort};
use super::port_reports::{self, Monitors};
use super::ports::{self, Queues, injector_room};
use super::regions::{self, OwnedRegions};
use super::settings::{PortSettings, RuntimeConfig};
use super::watchdog::{Watchdog, WatchedWorker};
use super::{MAX_WORKERS, Runtime, hosts, kernel_addresses, telemetry};
use crate::counters::{Telemetry, WorkerCounters};
use crate::eal::{Clock, Eal, HugeAllocator, Port, RxBurst};
use crate::manage::capture::{self, Interface};
use crate::manage::{Capture, EventParts, Events, FaultList, Inspector, Parts, PortEntry, PortList, RegionList};
use crate::worker::MAX_FAULTS;
use crate::worker::capture::Recorded;
use crate::worker::dispatch::Dispatcher;
use crate::worker::faults::FaultPlaces;
use crate::worker::idle::Idler;
use crate::worker::lost_regions::LostRegions;
use crate::worker::orders::{Order, Orders};
use crate::worker::port_host::PortHost;
use crate::worker::ports::{PortIdentity, PortsTx};
use crate::worker::run::{StopFlags, Worker};

impl Runtime {
    /// Starts the ports, allocates memory and queues, and makes one instance of each service per lcore.
    ///
    /// # Errors
    ///
    /// [`RuntimeError`], naming what is missing or wrong.
    pub fn new(
        eal: Eal,
        config: RuntimeConfig,
        factories: Vec<Box<dyn ServiceFactory>>,
    ) -> Result<Runtime, RuntimeError> {
        let lcores = eal.lcores();
        check_limits(lcores.len(), &config)?;
        let mut seeds = Seeds::new(config.seed);

        let (ports, queues) = ports::start(&eal, &config, lcores.len())?;
        kernel_addresses::check(&ports, &config.ports)?;
        let hosts = hosts::make(&ports, &config, &mut seeds)?;
        let ready = hosts::ready_line(&hosts, lcores.len(), &factories);
        let regions = Arc::new(regions::make(&eal, &config.regions, seeds.next_seed())?);
        let local: Arc<[LocalPort]> = hosts.iter().map(PortHost::local_port).collect();
        let port_list = Arc::new(PortList::new(port_entries(&ports, &config, &hosts)));

        let (control_mailbox, worker_mailboxes) = mailboxes(lcores.len());
        let inspectors = control_mailbox.inspectors();
        let (order_senders, orders): (Vec<_>, Vec<_>) = lcores.iter().map(|_| mpsc::channel()).unzip();
        let (control, telemetry) = make_control(hosts, &config, &factories, control_mailbox, &mut seeds)?;
        let faults = Arc::new(FaultList::new(&config.faults));
        let (event_senders, events) = make_events(&eal, lcores.len(), &port_list);
        let mut build = Build {
            eal,
            config,
            factories,
            ports,
            regions,
            local,
            port_list,
            inspectors,
            orders: order_senders,
            faults,
            events,
            telemetry,
            seeds,
            flags: Arc::default(),
            watched: Vec::new(),
        };
        let mut control = Some(control);
        let mut workers = Vec::new();
        let orders = orders.into_iter().map(Orders::new);
        let ends = worker_mailboxes.into_iter().zip(event_senders).zip(orders);
        let ends = ends.map(|((mailbox, events), orders)| Ends { mailbox, events, orders });
        for ((index, &lcore), (ends, queues)) in lcores.iter().enumerate().zip(ends.zip(queues)) {
            // The control side is on worker 0.
            let worker = build.make_worker(index, queues, ends, control.take())?;
            build.watched.push(WatchedWorker {
                lcore,
                stats: Arc::clone(&worker.stats),
                progress: Arc::clone(&worker.progress),
                service: Arc::clone(worker.dispatcher.services.current()),
            });
            workers.push((lcore, worker));
        }

        let links = build.watch_links();
        let monitors = Monitors::new(build.ports.iter().map(Port::monitor).collect::<Vec<_>>().into());
        let inspector = build.make_inspector(lcores, &monitors, &links);
        let capture = build.make_capture(&inspector);
        telemetry::register(&build.eal, &inspector);
        let watchdog = build.start_watchdog();
        let Build { eal, ports, telemetry, flags, regions, .. } = build;
        Ok(Runtime {
            eal,
            ports,
            workers,
            flags,
            telemetry,
            inspector,
            capture,
            monitors,
            links,
            watchdog,
            _regions: OwnedRegions(regions),
            ready,
        })
    }
}

fn check_limits(lcores: usize, config: &RuntimeConfig) -> Result<(), RuntimeError> {
    if lcores > MAX_WORKERS {
        return Err(RuntimeError::TooManyWorkers(lcores));
    }
    if config.faults.len() > MAX_FAULTS {
        return Err(RuntimeError::TooManyFaults(config.faults.len()));
    }
    Ok(())
}

/// The control side, and telemetry with its counters only.
fn make_control(
    hosts: Vec<PortHost>,
    config: &RuntimeConfig,
    factories: &[Box<dyn ServiceFactory>],
    mailbox: ControlMailbox,
    seeds: &mut Seeds,
) -> Result<(Control<PortHost>, Telemetry), RuntimeError> {
    let guid = u64::from_be_bytes(hosts[0].local_port().mac.eui64(true));
    let host_stats = hosts.iter().map(|port| port.host.stats().clone()).collect();
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
    };
    Ok((control, telemetry))
}

/// The ports as management knows them.
fn port_entries(ports: &[Port], config: &RuntimeConfig, hosts: &[PortHost]) -> Vec<PortEntry> {
    let entry = |((port, settings), host): ((&Port, &PortSettings), &PortHost)| PortEntry {
        local: host.local_port(),
        addressing: host.host.addressing(),
        conflicts: host.host.conflicts().clone(),
        exclusive: kernel_addresses::is_exclusive(port, settings),
    };
    ports.iter().zip(&config.ports).zip(hosts).map(entry).collect()
}

/// The allowed peers of an instance, which may be several services that share a port.
fn allowed_peers(config: &RuntimeConfig, names: &str) -> Option<PrefixList> {
    names.split(',').find_map(|name| config.service_peers.get(name).cloned())
}

/// The workers' ends of the rings for events, and the adapter's events.
fn make_events(eal: &Eal, workers: usize, ports: &Arc<PortList>) -> (Vec<EventSender>, Events) {
    let listening = Listening::default();
    let (senders, receivers) = (0..workers).map(|_| event_ring(&listening)).unzip();
    let clock = Clock::new(eal);
    let clock = Box::new(move || clock.now());
    (senders, Events::new(EventParts { listening, workers: receivers, clock, ports: Arc::clone(ports) }))
}

/// One worker's ends of its channels.
struct Ends {
    mailbox: WorkerMailbox,
    events: EventSender,
    orders: Orders,
}

/// The parts that are ready before the workers are.
struct Build {
    eal: Eal,
    config: RuntimeConfig,
    factories: Vec<Box<dyn ServiceFactory>>,
    ports: Vec<Port>,
    regions: Arc<RegionList>,
    /// As at the start.
    local: Arc<[LocalPort]>,
    port_list: Arc<PortList>,
    /// By worker number.
    inspectors: Vec<WorkerInspector>,
    orders: Vec<Sender<Order>>,
    faults: Arc<FaultList>,
    events: Events,
    telemetry: Telemetry,
    seeds: Seeds,
    flags: Arc<StopFlags>,
    watched: Vec<WatchedWorker>,
}

impl Build {
    fn make_worker(
        &mut self,
        index: usize,
        mut queues: Queues,
        ends: Ends,
        control: Option<Control<PortHost>>,
    ) -> Result<Worker, RuntimeError> {
        let config = EngineConfig { worker: index as u8, seed: self.seeds.next_seed(), ..self.config.engine.clone() };
        let mut engine = Engine::new(config);
        let regions = regions::adopt(&mut engine, self.regions.lock().list())?;
        let parts = ServiceHostParts {
            worker: index,
            services: self.factories.iter().map(|factory| (factory.name(), factory.create(index))).collect(),
            allocator: Arc::new(HugeAllocator::new(&self.eal)),
            regions,
            ports: Arc::clone(&self.local),
            mailbox: ends.mailbox,
            events: ends.events,
            seed: self.seeds.next_seed(),
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
        let rules = self.faults.lock().rules().clone();
        let pools = self.ports.iter().map(|port| port.pool().clone()).collect();
        let (rx_faults, tx_faults) = (counters.rx_faults.clone(), counters.tx_faults.clone());
        let faults = FaultPlaces::new(index, injector_room(&self.config), pools, rx_faults, tx_faults);
        faults.place_rx(&rules, &mut queues.rx);
        let mut tx = PortsTx { paths: queues.tx, spare_recorders: Vec::new(), frames: 0 };
        faults.place_tx(Instant::ZERO, &rules, &mut tx);
        let worker = Worker {
            rx: queues.rx,
            burst: RxBurst::new(),
            outbound: queues.outbound,
            inbound: queues.inbound,
            tx_rings: queues.tx_rings,
            dispatcher: Dispatcher {
                index,
                workers: self.inspectors.len(),
                identities: self.local.iter().map(PortIdentity::from).collect(),
                engine,
                refusals: faults.refusals(&rules, None),
                services,
                control,
                tx,
                recorder: None,
                drops: counters.drops[0].clone(),
                stats: counters.worker.clone(),
            },
            orders: ends.orders,
            lost_regions: (index == 0).then(LostRegions::default),
            faults,
            clock: Clock::new(&self.eal),
            idler: Idler::new(self.config.idle),
            housekeeping_at: Instant::ZERO,
            flags: Arc::clone(&self.flags),
            stats: counters.worker.clone(),
            turn_times: counters.turn_times.clone(),
            progress: Arc::default(),
        };
        self.telemetry.workers.push(counters);
        Ok(worker)
    }

    fn watch_links(&self) -> LinkWatch {
        let watched = self.ports.iter().map(|port| WatchedPort {
            monitor: port.monitor(),
            reattach: port.reattach(),
            mtu: port.mtu(),
        });
        LinkWatch::start(watched.collect(), Arc::clone(&self.port_list), self.orders.clone(), self.events.clone())
    }

    fn start_watchdog(&mut self) -> Watchdog {
        let services = self.factories.iter().map(|factory| factory.name()).collect();
        Watchdog::start(std::mem::take(&mut self.watched), services)
    }

    fn make_inspector(&self, lcores: Vec<u32>, monitors: &Monitors, links: &LinkWatch) -> Inspector {
        let (list, monitors, links) = (Arc::clone(&self.port_list), Arc::clone(monitors), links.states());
        let monitors_of_check = Arc::clone(&monitors);
        Inspector::new(Parts {
            telemetry: self.telemetry.clone(),
            lcores,
            workers: self.inspectors.clone(),
            orders: self.orders.clone(),
            local: Arc::clone(&self.port_list),
            check_address: Box::new(move |port, own| {
                let interface = port_reports::interface(&monitors_of_check, port);
                kernel_addresses::check_running(port.0.into(), interface, own).map_err(|error| error.to_string())
            }),
            ports: Box::new(move || port_reports::ports(&list, &monitors, &links)),
            engine: self.config.engine.clone(),
            factories: &self.factories,
            regions: Arc::clone(&self.regions),
            faults: Arc::clone(&self.faults),
            events: self.events.clone(),
        })
    }

    fn make_capture(&self, inspector: &Inspector) -> Capture {
        let clock = Clock::new(&self.eal);
        let recorded = self.telemetry.workers.iter().enumerate().map(|(index, worker)| {
            // The control side is on worker 0.
            let control = (index == 0).then_some(&self.telemetry.control_drops);
            Recorded {
                drops: worker.drops.iter().chain(control).cloned().collect(),
                transport: Arc::clone(&worker.transport),
                stats: Arc::clone(&worker.capture),
                clock,
            }
        });
        let interfaces = self.ports.iter().map(Port::info).zip(&*self.local).map(|(info, local)| Interface {
            name: info.name.clone(),
            description: format!("port {}", local.id.0),
            mac: local.mac.0,
        });
        Capture::new(capture::Parts {
            inspector: inspector.clone(),
            workers: self.orders.clone(),
            recorded: recorded.collect(),
            interfaces: interfaces.collect(),
            clock: Arc::new(move || clock.now()),
        })
    }
}
