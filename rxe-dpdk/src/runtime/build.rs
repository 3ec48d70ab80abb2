//! Builds an adapter, step by step.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use rxe_adapter::build::{self, WorkerParts, WorkerSource};
use rxe_adapter::counters::Telemetry;
use rxe_adapter::manage::capture::{self, Interface};
use rxe_adapter::manage::{Capture, Events, FaultList, Inspector, Parts, PortEntry, PortList, RegionList};
use rxe_adapter::regions::{self, OwnedRegions};
use rxe_adapter::settings::{PortSettings, RuntimeConfig};
use rxe_adapter::worker::Idler;
use rxe_adapter::worker::clock::SharedClock;
use rxe_adapter::worker::dispatch::Dispatcher;
use rxe_adapter::worker::identity::PortIdentity;
use rxe_adapter::worker::lost_regions::LostRegions;
use rxe_adapter::worker::orders::{OrderSender, Orders, order_channel};
use rxe_adapter::worker::watchdog::{Watchdog, WatchedWorker};
use rxe_proto::Instant;
use rxe_proto::mem::{Allocator, Memory};
use rxe_service::control::Control;
use rxe_service::control::ip_host::IpHost;
use rxe_service::events::EventSender;
use rxe_service::mailbox::{WorkerInspector, WorkerMailbox, mailboxes};
use rxe_service::seeds::Seeds;
use rxe_service::{LocalPort, ServiceFactory};

use super::error::RuntimeError;
use super::link_watch::{LinkWatch, WatchedPort};
use super::port_reports::{self, Monitors};
use super::ports::{self, Queues, injector_room};
use super::{MAX_WORKERS, Runtime, hosts, kernel_addresses, telemetry};
use crate::eal::{Clock, Eal, HugeAllocator, Port, RxBurst, leave_lcore};
use crate::worker::faults::FaultPlaces;
use crate::worker::port_host::PortHost;
use crate::worker::port_orders::{PortOrder, PortOrders};
use crate::worker::ports::PortsTx;
use crate::worker::run::stop::Finish;
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
        if lcores.len() > MAX_WORKERS {
            return Err(RuntimeError::TooManyWorkers(lcores.len()));
        }
        build::check_limits(&config)?;
        let factories: Arc<[Box<dyn ServiceFactory>]> = factories.into();
        let mut seeds = Seeds::new(config.seed);

        let (ports, queues) = ports::start(&eal, &config, lcores.len())?;
        kernel_addresses::check(&ports, &config.ports)?;
        let hosts = hosts::make(&ports, &config, &mut seeds)?;
        let local: Arc<[LocalPort]> = hosts.iter().map(PortHost::local_port).collect();
        let ready = build::ready_line(&local, lcores.len(), &factories);
        let regions = Arc::new(make_regions(&eal, &config, seeds.next_seed())?);
        let port_list = Arc::new(PortList::new(port_entries(&ports, &config, &hosts)));

        let (control_mailbox, worker_mailboxes) = mailboxes(lcores.len());
        let inspectors = control_mailbox.inspectors();
        let (order_senders, orders): (Vec<_>, Vec<_>) = lcores.iter().map(|_| order_channel(None)).unzip();
        let (port_order_senders, port_orders): (Vec<_>, Vec<_>) = lcores.iter().map(|_| mpsc::channel()).unzip();
        let host_stats = hosts.iter().map(|port| port.host.stats().clone()).collect();
        let (control, telemetry) =
            build::control(hosts, host_stats, guid(&local), &config, &factories, control_mailbox, &mut seeds)?;
        let faults = Arc::new(FaultList::new(&config.faults));
        let clock = Clock::new(&eal);
        let clock = SharedClock::new(move || clock.now());
        let (event_senders, events) = build::events(lcores.len(), clock.clone(), &port_list);
        let mut build = Build {
            allocator: Arc::new(HugeAllocator::new(&eal)),
            eal,
            config,
            factories,
            ports,
            regions,
            local,
            port_list,
            inspectors,
            orders: order_senders,
            port_orders: port_order_senders,
            faults,
            events,
            clock,
            telemetry,
            seeds,
            flags: Arc::default(),
            watched: Vec::new(),
        };
        let mut control = Some(control);
        let mut workers = Vec::new();
        let port_orders = port_orders.into_iter().map(PortOrders::new);
        let ends = worker_mailboxes.into_iter().zip(event_senders).zip(orders).zip(port_orders);
        let ends = ends.map(|(((mailbox, events), orders), port_orders)| Ends { mailbox, events, orders, port_orders });
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

/// Identifies the adapter: an EUI-64 of the first port's MAC address.
fn guid(ports: &[LocalPort]) -> u64 {
    ports.first().map_or(0, |port| u64::from_be_bytes(port.mac.eui64(true)))
}

/// The named regions, on hugepages or in files.
fn make_regions(eal: &Eal, config: &RuntimeConfig, seed: [u8; 32]) -> Result<RegionList, RuntimeError> {
    let allocator = HugeAllocator::new(eal);
    let allocate = move |bytes| match allocator.memory(bytes) {
        Ok(huge) => Ok(Memory::new(Arc::new(huge))),
        Err(error) => Err(error.to_string()),
    };
    Ok(regions::make(Box::new(allocate), &config.regions, seed)?)
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

/// One worker's ends of its channels.
struct Ends {
    mailbox: WorkerMailbox,
    events: EventSender,
    orders: Orders,
    port_orders: PortOrders,
}

/// The parts that are ready before the workers are.
struct Build {
    eal: Eal,
    config: RuntimeConfig,
    factories: Arc<[Box<dyn ServiceFactory>]>,
    allocator: Arc<dyn Allocator>,
    ports: Vec<Port>,
    regions: Arc<RegionList>,
    /// As at the start.
    local: Arc<[LocalPort]>,
    port_list: Arc<PortList>,
    /// By worker number.
    inspectors: Vec<WorkerInspector>,
    orders: Vec<OrderSender>,
    port_orders: Vec<Sender<PortOrder>>,
    faults: Arc<FaultList>,
    events: Events,
    clock: SharedClock,
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
        let source = WorkerSource {
            config: &self.config,
            factories: &self.factories,
            regions: &self.regions,
            ports: &self.local,
            allocator: &self.allocator,
        };
        if index == 0 {
            source.prepare()?;
        }
        let WorkerParts { engine, services, counters } =
            source.make(index, ends.mailbox, ends.events, &mut self.seeds)?;
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
            port_orders: ends.port_orders,
            lost_regions: (index == 0).then(LostRegions::default),
            faults,
            clock: Clock::new(&self.eal),
            idler: Idler::new(self.config.idle),
            housekeeping_at: Instant::ZERO,
            flags: Arc::clone(&self.flags),
            finish: Finish::default(),
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
        let (ports, workers) = (Arc::clone(&self.port_list), self.port_orders.clone());
        LinkWatch::start(watched.collect(), ports, workers, self.events.clone())
    }

    fn start_watchdog(&mut self) -> Watchdog {
        let services = self.factories.iter().map(|factory| factory.name()).collect();
        Watchdog::start(std::mem::take(&mut self.watched), services, leave_lcore)
    }

    fn make_inspector(&self, lcores: Vec<u32>, monitors: &Monitors, links: &LinkWatch) -> Inspector {
        let (list, monitors, links) = (Arc::clone(&self.port_list), Arc::clone(monitors), links.states());
        let monitors_of_check = Arc::clone(&monitors);
        Inspector::new(Parts {
            guid: guid(&self.local),
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
        let interfaces = self.ports.iter().map(Port::info).zip(&*self.local).map(|(info, local)| Interface {
            name: info.name.clone(),
            description: format!("port {}", local.id.0),
            mac: local.mac.0,
        });
        Capture::new(capture::Parts {
            inspector: inspector.clone(),
            workers: self.orders.clone(),
            recorded: build::recorded(&self.telemetry, &self.clock),
            interfaces: interfaces.collect(),
            clock: self.clock.clone(),
        })
    }
}
