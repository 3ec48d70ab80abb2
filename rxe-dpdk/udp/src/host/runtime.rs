//! Builds an adapter from its configuration, and runs it.

use std::any::Any;
use std::net::IpAddr;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rxe_adapter::addressing::Addressing;
use rxe_adapter::build::{self, StopHandle, WorkerParts, WorkerSource};
use rxe_adapter::counters::{PortCounters, Telemetry};
use rxe_adapter::manage::capture::{self, Interface};
use rxe_adapter::manage::{Capture, FaultList, Inspector, Parts, PortEntry, PortList};
use rxe_adapter::regions::{self, OwnedRegions};
use rxe_adapter::settings::{PortSettings, RuntimeConfig};
use rxe_adapter::worker::IdlePolicy;
use rxe_adapter::worker::dispatch::Dispatcher;
use rxe_adapter::worker::identity::PortIdentity;
use rxe_adapter::worker::lost_regions::LostRegions;
use rxe_adapter::worker::orders::{Wake, order_channel};
use rxe_adapter::worker::watchdog::{Watchdog, WatchedWorker};
use rxe_proto::mem::{Allocator, HeapAllocator};
use rxe_proto::transport::EngineConfig;
use rxe_proto::wire::{Cidr, MacAddr, ROCE_UDP_PORT};
use rxe_service::mailbox::mailboxes;
use rxe_service::seeds::Seeds;
use rxe_service::{LocalPort, ServiceFactory};

use super::clock::Clock;
use super::error::{RunError, RuntimeError};
use super::ip_host::{FIXED_ADDRESS, PORT, UdpHost, guid};
use super::output::Output;
use super::report;
use super::summary::Summary;
use super::worker::Worker;
use crate::stats::UdpStats;
use crate::{UdpConfig, UdpPort};

/// Number of the only worker, in reports and on the command lines of tools.
const LCORE: u32 = 0;

/// A RoCEv2 adapter on a UDP port, ready to run.
pub struct Runtime {
    worker: Worker,
    telemetry: Telemetry,
    inspector: Inspector,
    capture: Capture,
    stop: StopHandle,
    watchdog: Watchdog,
    stats: Arc<UdpStats>,
    _regions: OwnedRegions,
    ready: String,
}

impl Runtime {
    /// Opens the port at the only address of `config`, whose prefix does not matter, allocates memory, and makes one instance of
    /// each service.
    ///
    /// # Errors
    /// [`RuntimeError`], naming what is missing or wrong.
    pub fn new(config: RuntimeConfig, factories: Vec<Box<dyn ServiceFactory>>) -> Result<Runtime, RuntimeError> {
        build::check_limits(&config)?;
        let factories: Arc<[Box<dyn ServiceFactory>]> = factories.into();
        let (settings, address) = only_address(&config)?;
        let udp = UdpPort::open(UdpConfig::new(address))?;
        let network = Cidr::new(address, udp.interface().prefix);
        let config = RuntimeConfig {
            engine: EngineConfig { udp_src_port: Some(ROCE_UDP_PORT), ..config.engine.clone() },
            ..config
        };
        let mut seeds = Seeds::new(config.seed);
        let clock = Clock::new();
        let shared_clock = clock.shared();
        let local = local_port(&udp, &settings);
        let (interface, scope) = (udp.interface().name.clone(), udp.interface().index);
        let (stats, waker) = (Arc::clone(udp.stats()), udp.waker());
        let (sockets, tx) = udp.into_halves();
        let wake: Wake = Arc::new(move || waker.wake());

        let host = UdpHost::new(local.clone(), network, scope)
            .map_err(|source| RuntimeError::Streams { address: network.ip, source })?;
        let ready = build::ready_line(std::slice::from_ref(&local), 1, &factories);
        let heap = |bytes| HeapAllocator.allocate(bytes).map_err(|error| error.to_string());
        let regions = Arc::new(regions::make(Box::new(heap), &config.regions, seeds.next_seed())?);
        let addressing = Addressing { addresses: vec![network], ..Addressing::default() };
        let entry = PortEntry { local: local.clone(), addressing, conflicts: Arc::default(), exclusive: true };
        let port_list = Arc::new(PortList::new(vec![entry]));

        let (control_mailbox, worker_mailboxes) = mailboxes(1);
        let inspectors = control_mailbox.inspectors();
        let (order_sender, orders) = order_channel(Some(Arc::clone(&wake)));
        let host_stats = vec![Arc::clone(host.stats())];
        let guid = guid(network.ip);
        let (control, mut telemetry) =
            build::control(vec![host], host_stats, guid, &config, &factories, control_mailbox, &mut seeds)?;
        telemetry.ports = vec![port_counters(&stats)];
        let faults = Arc::new(FaultList::new(&config.faults));
        let (event_senders, events) = build::events(1, shared_clock.clone(), &port_list);

        let local_ports: Arc<[LocalPort]> = Arc::new([local.clone()]);
        let allocator: Arc<dyn Allocator> = Arc::new(HeapAllocator);
        let source = WorkerSource {
            config: &config,
            factories: &factories,
            regions: &regions,
            ports: &local_ports,
            allocator: &allocator,
        };
        source.prepare()?;
        let mut ends = worker_mailboxes.into_iter().zip(event_senders);
        let Some((mailbox, event_sender)) = ends.next() else { return Err(RuntimeError::OneAddress) };
        let WorkerParts { engine, services, counters } = source.make(0, mailbox, event_sender, &mut seeds)?;
        let stop = Arc::<AtomicBool>::default();
        let mut worker = Worker {
            sockets,
            dispatcher: Dispatcher {
                index: 0,
                workers: 1,
                identities: vec![PortIdentity::from(&local)],
                engine,
                refusals: None,
                services,
                control: Some(control),
                tx: Output::new(tx, address, Arc::clone(&counters.tx_faults)),
                recorder: None,
                drops: Arc::clone(&counters.drops[0]),
                stats: Arc::clone(&counters.worker),
            },
            orders,
            lost_regions: LostRegions::default(),
            rx_faults: None,
            rx_fault_stats: Arc::clone(&counters.rx_faults),
            clock,
            spins: config.idle == IdlePolicy::Spin,
            stop: Arc::clone(&stop),
            stats: Arc::clone(&counters.worker),
            turn_times: Arc::clone(&counters.turn_times),
            progress: Arc::default(),
        };
        worker.begin_faults(faults.lock().rules());
        let watched = WatchedWorker {
            lcore: LCORE,
            stats: Arc::clone(&worker.stats),
            progress: Arc::clone(&worker.progress),
            service: Arc::clone(worker.dispatcher.services.current()),
        };
        telemetry.workers.push(counters);

        let (list, port_stats, netdev) = (Arc::clone(&port_list), Arc::clone(&stats), interface.clone());
        let inspector = Inspector::new(Parts {
            guid,
            telemetry: telemetry.clone(),
            lcores: vec![LCORE],
            workers: inspectors,
            orders: vec![order_sender.clone()],
            local: port_list,
            check_address: Box::new(|_, _| Err(FIXED_ADDRESS.to_owned())),
            ports: Box::new(move || report::ports(&list, &netdev, &port_stats)),
            engine: config.engine.clone(),
            factories: &factories,
            regions: Arc::clone(&regions),
            faults,
            events,
        });
        let capture = Capture::new(capture::Parts {
            inspector: inspector.clone(),
            workers: vec![order_sender],
            recorded: build::recorded(&telemetry, &shared_clock),
            interfaces: vec![Interface { name: interface, description: format!("port {}", PORT.0), mac: [0; 6] }],
            clock: shared_clock,
        });
        let services = factories.iter().map(|factory| factory.name()).collect();
        Ok(Runtime {
            worker,
            telemetry,
            inspector,
            capture,
            stop: StopHandle::new(stop, Some(wake)),
            watchdog: Watchdog::start(vec![watched], services, || {}),
            stats,
            _regions: OwnedRegions(regions),
            ready,
        })
    }

    /// The line that says that the adapter can serve: `ready`, then `key=value` pairs.
    pub fn ready_line(&self) -> &str {
        &self.ready
    }

    /// A handle that stops [`Runtime::run`].
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
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

    /// Runs the worker on the calling thread, until stopped.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn run(self) -> Result<Summary, RunError> {
        let Runtime { worker, telemetry, capture, watchdog, stats, _regions, .. } = self;
        let ran = panic::catch_unwind(AssertUnwindSafe(|| worker.run()));
        // The recorders ended with the worker.
        capture.finish();
        drop(watchdog);
        ran.map_err(|cause| RunError::WorkerPanicked(message(&*cause)))?;
        let port = (stats.rcvd_packets.get(), stats.sent_packets.get());
        Ok(Summary { counters: telemetry.snapshot(), port })
    }
}

/// The text of a panic.
fn message(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| cause.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

/// The settings of the only port, and its only address.
fn only_address(config: &RuntimeConfig) -> Result<(PortSettings, IpAddr), RuntimeError> {
    match &config.ports[..] {
        [port] => match port.addresses[..] {
            [address] => Ok((port.clone(), address.ip)),
            _ => Err(RuntimeError::OneAddress),
        },
        _ => Err(RuntimeError::OneAddress),
    }
}

fn local_port(udp: &UdpPort, settings: &PortSettings) -> LocalPort {
    let address: IpAddr = udp.address();
    LocalPort {
        id: PORT,
        mac: MacAddr::default(),
        vlan: None,
        addresses: vec![address],
        restrictions: settings.restrictions.clone(),
        // The loopback interface has 65,536.
        mtu: u16::try_from(udp.interface().mtu).unwrap_or(u16::MAX),
        path_mtu: udp.path_mtu(),
    }
}

/// Counters of the port, for all listings.
fn port_counters(stats: &Arc<UdpStats>) -> PortCounters {
    let stats = Arc::clone(stats);
    PortCounters { group: "udp", descriptions: UdpStats::DESCRIPTIONS, read: Arc::new(move || stats.iter().collect()) }
}
