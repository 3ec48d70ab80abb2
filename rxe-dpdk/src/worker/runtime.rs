//! Putting an adapter together, running it, and what is left when it has stopped.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, PoisonError};

use rxe_proto::Instant;
use rxe_proto::cm::{Cm, CmConfig};
use rxe_proto::mem::Allocator;
use rxe_proto::transport::{CqError, Engine, EngineConfig};
use rxe_proto::wire::{MacAddr, PathMtu, PortId};
use rxe_service::control::{Control, IpHost};
use rxe_service::host::ServiceHost;
use rxe_service::mailbox::mailboxes;
use rxe_service::seeds::Seeds;
use rxe_service::{Listen, LocalPort, ServiceFactory};

use super::capture::{self, Capture, Counted};
use super::faults::FaultPlaces;
use super::handoff::{HandOff, TxRing, TxRingEnd};
use super::idle::Idler;
use super::injector::{FaultList, MAX_FAULTS, Room};
use super::lane::TxLane;
use super::link_watch::{LinkWatch, WatchedPort};
use super::orders::Orders;
use super::port_host::PortHost;
use super::ports::{PortIdentity, PortsTx, RxPort};
use super::region_files::LostRegions;
use super::regions::{self, KeyNames};
use super::run::{Dispatcher, StopFlags, Worker};
use super::settings::RuntimeConfig;
use crate::eal::{
    Clock, Eal, EalError, HugeAllocator, Job, MbufReceiver, MbufRing, MbufSender, Mempool, Port, PortConfig, RxBurst,
    TxStage,
};
use crate::host::{Host, HostConfig, HostConfigError};
use crate::telemetry::{self, Inspector, Monitors, Parts, Snapshot, Telemetry, WorkerCounters};

/// Most workers: the worker's number is in the top four bits of a queue pair number, and 15 would reach the
/// multicast one.
pub const MAX_WORKERS: usize = 15;

/// The IP MTU that is asked of a port when nobody says otherwise: what path MTU 4096 needs.
const DEFAULT_MTU: u16 = 4200;

/// Drivers of ports at whose other end may be a kernel of this machine or its guest. It leaves the checksums of TCP
/// segments unfinished, for a device to finish that is not there.
const UNFINISHED_CHECKSUMS: [&str; 7] =
    ["net_af_packet", "net_af_xdp", "net_pcap", "net_tap", "net_vhost", "net_virtio", "net_virtio_user"];

/// Bytes of a packet besides its payload and in front of the frame's IP header: IPv6, UDP, BTH, RETH, immediate, ICRC.
const PACKET_OVERHEAD: u16 = 40 + 8 + 12 + 16 + 4 + 4;

/// Frames that a hand-off ring holds.
const RING_CAPACITY: usize = 1024;

/// Why an adapter cannot be put together. Each is one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// DPDK refused something.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// No port at all.
    #[error(
        "DPDK found no port: name one before `--`, for example --vdev=net_af_packet0,iface=veth1, or bind a PCI NIC \
         to vfio-pci"
    )]
    NoPort,
    /// Settings for ports that do not exist.
    #[error("there are settings for port {port}, but DPDK found only {found} port(s)")]
    UnknownPort {
        /// The port of the settings.
        port: usize,
        /// How many there are.
        found: usize,
    },
    /// A port without an address.
    #[error("port {port} has no address: give --address{} IP/PREFIX", if *.port == 0 { String::new() } else { format!(" port{port}:") })]
    NoAddress {
        /// The port.
        port: usize,
    },
    /// Addresses, routes or MTU make no sense.
    #[error("port {port}: {error}")]
    Host {
        /// The port.
        port: usize,
        /// What is wrong.
        error: HostConfigError,
    },
    /// More lcores than queue pair numbers can tell apart.
    #[error("{0} lcores are too many: choose at most {MAX_WORKERS} with EAL's -l, as -l 0-{last}", last = MAX_WORKERS - 1)]
    TooManyWorkers(usize),
    /// More rules for faults than an injector can go by.
    #[error("{0} rules for faults are too many: at most {MAX_FAULTS} can be in force")]
    TooManyFaults(usize),
    /// More services than an engine has completion queues.
    #[error("too many services: {0}")]
    TooManyServices(#[from] CqError),
    /// A region cannot be made.
    #[error("region {name}: {problem}")]
    Region {
        /// Its name.
        name: String,
        /// Why not.
        problem: String,
    },
}

/// Stops a running adapter from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<StopFlags>);

impl StopHandle {
    /// Disconnects the peers and ends [`Runtime::run`].
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

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
    ready: String,
}

/// What an adapter did.
#[derive(Clone, Debug)]
pub struct Summary {
    /// All counters.
    pub counters: Snapshot,
    /// Frames that the ports received and sent, by their own count.
    pub ports: Vec<(PortId, u64, u64)>,
    /// Packet buffers that were not given back. Anything but 0 is a bug.
    pub mbufs_leaked: usize,
}

/// The queues of one worker.
#[derive(Default)]
struct Queues {
    rx: Vec<RxPort>,
    lanes: Vec<TxLane>,
    tx_rings: Vec<TxRingEnd>,
    outbound: Vec<Option<HandOff>>,
    inbound: Option<MbufReceiver>,
}

impl Runtime {
    /// Starts the ports, makes memory and queues, and one instance of each service per lcore.
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
        if config.faults.len() > MAX_FAULTS {
            return Err(RuntimeError::TooManyFaults(config.faults.len()));
        }
        let mut seeds = Seeds::new(config.seed);
        let (ports, mut queues) = start_ports(&eal, &config, lcores.len())?;
        let hosts = make_hosts(&ports, &config, &factories, &mut seeds)?;
        hosts.iter().try_for_each(PortHost::set_filter)?;
        let ready = ready_line(&hosts, lcores.len(), &factories);
        let regions = regions::make(&eal, &config.regions, seeds.next_seed())?;
        let allocator: Arc<dyn Allocator> = Arc::new(HugeAllocator::new(&eal));

        let (control_mailbox, worker_mailboxes) = mailboxes(lcores.len());
        let inspectors = control_mailbox.inspectors();
        let (senders, inboxes): (Vec<_>, Vec<_>) = lcores.iter().map(|_| mpsc::channel()).unzip();
        let local: Arc<[LocalPort]> = hosts.iter().map(PortHost::local_port).collect();
        let host_stats = hosts.iter().map(|port| port.host.stats().clone()).collect();
        let identities: Vec<PortIdentity> = local.iter().map(PortIdentity::from).collect();
        let guid = u64::from_be_bytes(local[0].mac.eui64(true));
        let cm = Cm::new(CmConfig {
            max_connections: config.max_connections,
            max_pending: config.max_pending,
            max_pending_per_peer: config.max_pending_per_peer,
            ..CmConfig::new(guid, seeds.next_seed())
        });
        let listens = factories
            .iter()
            .enumerate()
            .flat_map(|(service, factory)| factory.listen().into_iter().map(move |listen| (service, listen)))
            .collect();
        let control_drops = Arc::default();
        let control_stats = Arc::default();
        let control = Control::new(
            hosts,
            cm,
            listens,
            control_mailbox,
            config.marking,
            Arc::clone(&control_drops),
            Arc::clone(&control_stats),
        );
        let mut telemetry = Telemetry {
            workers: Vec::new(),
            control: control_stats,
            cm: control.cm_stats().clone(),
            hosts: host_stats,
            control_drops,
        };

        let faults = FaultList::new(&config.faults);
        let rules = faults.lock().rules().clone();
        let flags = Arc::<StopFlags>::default();
        let clock = Clock::new(&eal);
        let mut control = Some(control);
        let mut workers = Vec::new();
        for ((index, &lcore), (mailbox, orders)) in
            lcores.iter().enumerate().zip(worker_mailboxes.into_iter().zip(inboxes))
        {
            let mut engine =
                Engine::new(EngineConfig { worker: index as u8, seed: seeds.next_seed(), ..config.engine.clone() });
            let regions = regions::adopt(&mut engine, &regions)?;
            let counters = WorkerCounters {
                worker: Arc::default(),
                rx_faults: Arc::default(),
                tx_faults: Arc::default(),
                transport: engine.stats().clone(),
                services: Arc::default(),
                capture: Arc::default(),
                drops: [Arc::default(), engine.drops().clone()],
            };
            let services = ServiceHost::new(
                index,
                factories.iter().map(|factory| (factory.name(), factory.create(index))).unzip(),
                &mut engine,
                Arc::clone(&allocator),
                regions,
                Arc::clone(&local),
                mailbox,
                counters.services.clone(),
                seeds.next_seed(),
            )?;
            let mut own = std::mem::take(&mut queues[index]);
            let pools = ports.iter().map(|port| port.pool().clone()).collect();
            let (rx_faults, tx_faults) = (counters.rx_faults.clone(), counters.tx_faults.clone());
            let places = FaultPlaces::new(index, room(&config), pools, rx_faults, tx_faults);
            places.place_rx(&rules, &mut own.rx);
            let mut tx = PortsTx { lanes: own.lanes, recorders: Vec::new(), frames: 0 };
            places.place_tx(Instant::ZERO, &rules, &mut tx);
            let worker = Worker {
                rx: own.rx,
                burst: RxBurst::new(),
                outbound: own.outbound,
                inbound: own.inbound,
                tx_rings: own.tx_rings,
                dispatcher: Dispatcher {
                    index,
                    workers: lcores.len(),
                    identities: identities.clone(),
                    engine,
                    refusals: places.refusals(&rules, None),
                    services,
                    control: control.take(),
                    orders: Orders::new(orders),
                    lost_regions: (index == 0).then(LostRegions::default),
                    tx,
                    capture: None,
                    drops: counters.drops[0].clone(),
                    stats: counters.worker.clone(),
                },
                faults: places,
                clock,
                idler: Idler::new(config.idle),
                chores_at: Instant::ZERO,
                flags: Arc::clone(&flags),
                stats: counters.worker.clone(),
            };
            telemetry.workers.push(counters);
            workers.push((lcore, worker));
        }
        let monitors = Monitors::new(ports.iter().map(Port::monitor).collect::<Vec<_>>().into());
        let watched = ports.iter().map(|port| WatchedPort {
            monitor: port.monitor(),
            reattach: port.reattach(),
            mtu: port.mtu(),
        });
        let links = LinkWatch::start(watched.collect(), senders.clone());
        let inspector = Inspector::new(Parts {
            telemetry: telemetry.clone(),
            lcores,
            workers: inspectors,
            orders: senders.clone(),
            local: Arc::clone(&local),
            monitors: Arc::clone(&monitors),
            links: links.states(),
            engine: config.engine,
            factories: &factories,
            regions: KeyNames::new(&regions),
            faults,
        });
        telemetry::register(&eal, &inspector);
        let counted = telemetry.workers.iter().enumerate().map(|(index, worker)| {
            // The control side is on worker 0.
            let control = (index == 0).then_some(&telemetry.control_drops);
            Counted {
                drops: worker.drops.iter().chain(control).cloned().collect(),
                transport: Arc::clone(&worker.transport),
                stats: Arc::clone(&worker.capture),
            }
        });
        let capture = Capture::new(
            capture::Parts { inspector: inspector.clone(), workers: senders, counted: counted.collect(), clock },
            ports.iter().map(Port::info).zip(&*local),
        );
        Ok(Runtime { eal, ports, workers, flags, telemetry, inspector, capture, monitors, links, ready })
    }

    /// The line that says that we can serve: `ready`, then `key=value` pairs.
    pub fn ready_line(&self) -> &str {
        &self.ready
    }

    /// A handle that stops [`Runtime::run`].
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.flags))
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
        let Runtime { eal, ports, workers, telemetry, capture, monitors, links, .. } = self;
        let jobs: Vec<Job<'_>> =
            workers.into_iter().map(|(lcore, worker)| -> Job<'_> { (lcore, Box::new(move || worker.run())) }).collect();
        let ran = eal.run_workers(jobs);
        // With the workers their recorders have gone.
        capture.finish();
        drop(links);
        ran?;
        let counted = ports
            .iter()
            .map(|port| {
                let stats = port.stats().unwrap_or_default();
                (port.id(), stats.rx_frames, stats.tx_frames)
            })
            .collect();
        // Whoever looks at a port just now is done with it before it is closed.
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

/// Configures and starts every port that the program has not taken for itself, and shares its queues out among `workers` workers.
fn start_ports(eal: &Eal, config: &RuntimeConfig, workers: usize) -> Result<(Vec<Port>, Vec<Queues>), RuntimeError> {
    let settings = &config.ports;
    let in_rings = if workers > 1 { 3 * RING_CAPACITY * workers } else { 0 };
    let in_injectors = 2 * room(config).max_held() * workers;
    let mut shares: Vec<Queues> = (0..workers).map(|_| Queues::default()).collect();
    let mut ports = Vec::new();
    for info in eal.ports() {
        let number = ports.len();
        if eal.is_port_taken(info.id) {
            continue;
        }
        let own = settings.get(number).filter(|own| !own.addresses.is_empty());
        let own = own.ok_or(RuntimeError::NoAddress { port: number })?;
        let queue_count = u16::try_from(workers).unwrap_or(u16::MAX);
        let mut port = Port::configure(
            eal,
            info.id,
            &PortConfig {
                rx_queues: queue_count,
                tx_queues: queue_count,
                mtu: own.mtu.unwrap_or(DEFAULT_MTU),
                extra_mbufs: in_rings + in_injectors,
                ..PortConfig::default()
            },
        )?;
        let queues = port.start()?;
        for (index, queue) in queues.rx.into_iter().enumerate() {
            shares[index % workers].rx.push(RxPort { port: port.id(), queue, faults: None });
        }
        share_tx(eal, &port, queues.tx, &mut shares)?;
        ports.push(port);
    }
    if ports.is_empty() {
        return Err(RuntimeError::NoPort);
    }
    if settings.len() > ports.len() {
        return Err(RuntimeError::UnknownPort { port: settings.len() - 1, found: ports.len() });
    }
    connect_workers(eal, &mut shares)?;
    Ok((ports, shares))
}

/// What injectors may keep.
fn room(config: &RuntimeConfig) -> Room {
    if config.faults.is_empty() { Room::NARROW } else { Room::WIDE }
}

/// Gives each worker a way to send by `port`: a queue of its own, or a ring to worker 0, which has one.
fn share_tx(eal: &Eal, port: &Port, stages: Vec<TxStage>, shares: &mut [Queues]) -> Result<(), EalError> {
    let without = shares.len().saturating_sub(stages.len());
    let mut stages = stages.into_iter();
    let mut senders = Vec::<MbufSender>::new();
    if without > 0 {
        let ring = MbufRing::new(eal, RING_CAPACITY, without)?;
        shares[0].tx_rings.push(TxRingEnd::new(port.id(), ring.receiver));
        senders = ring.senders;
    }
    for share in shares {
        if let Some(stage) = stages.next() {
            share.lanes.push(TxLane::Queue(Box::new(stage)));
        } else if let Some(sender) = senders.pop() {
            share.lanes.push(TxLane::Ring(Box::new(TxRing::new(port.pool().clone(), sender))));
        }
    }
    Ok(())
}

/// One ring into each worker, with a sender for each of the others.
fn connect_workers(eal: &Eal, shares: &mut [Queues]) -> Result<(), EalError> {
    let workers = shares.len();
    if workers == 1 {
        return Ok(());
    }
    for share in shares.iter_mut() {
        share.outbound = (0..workers).map(|_| None).collect();
    }
    for to in 0..workers {
        let ring = MbufRing::new(eal, RING_CAPACITY, workers - 1)?;
        shares[to].inbound = Some(ring.receiver);
        for (from, sender) in (0..workers).filter(|from| *from != to).zip(ring.senders) {
            shares[from].outbound[to] = Some(HandOff::new(sender));
        }
    }
    Ok(())
}

fn make_hosts(
    ports: &[Port],
    config: &RuntimeConfig,
    factories: &[Box<dyn ServiceFactory>],
    seeds: &mut Seeds,
) -> Result<Vec<PortHost>, RuntimeError> {
    let mut hosts = Vec::new();
    for (number, (port, own)) in ports.iter().zip(&config.ports).enumerate() {
        let mac = station_address(port.mac(), seeds);
        let mut host = Host::new(&HostConfig {
            port: port.id(),
            mac,
            mtu: port.mtu(),
            vlan: own.vlan.map(|id| id | u16::from(config.marking.pcp) << 13),
            addresses: own.addresses.clone(),
            gateways: own.gateways.clone(),
            routes: own.routes.clone(),
            verify_tcp_checksums: !UNFINISHED_CHECKSUMS.contains(&port.info().driver.as_str()),
            seed: seeds.next_seed(),
            ..HostConfig::default()
        })
        .map_err(|error| RuntimeError::Host { port: number, error })?;
        for listen in factories.iter().flat_map(|factory| factory.listen()) {
            match listen {
                Listen::Tcp { port } => host.listen(port),
                Listen::GroupListeners => host.watch_listeners(),
                Listen::Cm { .. } => {}
            }
        }
        let seed = seeds.next_seed();
        let ip_id = u16::from_le_bytes([seed[0], seed[1]]) | 1;
        hosts.push(PortHost::new(host, port.multicast_filter(), path_mtu(port.mtu()), ip_id));
    }
    Ok(hosts)
}

/// The port's own address, or one that we make up for devices that have none (net_ring).
fn station_address(own: MacAddr, seeds: &mut Seeds) -> MacAddr {
    if own != MacAddr::default() {
        return own;
    }
    let [a, b, c, d, e, ..] = seeds.next_seed();
    // 02: locally administered, one station.
    MacAddr([0x02, a, b, c, d, e])
}

/// The largest path MTU whose every packet fits an IP MTU.
fn path_mtu(ip_mtu: u16) -> PathMtu {
    PathMtu::at_most(usize::from(ip_mtu.saturating_sub(PACKET_OVERHEAD))).unwrap_or(PathMtu::Mtu256)
}

fn ready_line(hosts: &[PortHost], workers: usize, factories: &[Box<dyn ServiceFactory>]) -> String {
    let mut line = String::from("ready");
    for (number, port) in hosts.iter().enumerate() {
        let port = port.local_port();
        let addresses: Vec<String> = port.addresses.iter().map(|ip| ip.to_string()).collect();
        let prefix = if hosts.len() == 1 { String::new() } else { format!("port{number}.") };
        line += &format!(
            " {prefix}mac={} {prefix}addresses={} {prefix}mtu={} {prefix}path_mtu={}",
            port.mac,
            addresses.join(","),
            port.mtu,
            port.path_mtu.bytes(),
        );
    }
    let services: Vec<&str> = factories.iter().flat_map(|factory| factory.names()).collect();
    line + &format!(" lcores={workers} services={}", services.join(","))
}
