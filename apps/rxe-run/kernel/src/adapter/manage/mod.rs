//! Management of a running program: what `rxe-ctl` asks and orders, by a socket in the program's folder.
//!
//! The questions and orders go to the thread of the adapter, which answers between two turns. The clients of the socket have threads
//! of their own, which never lock the state.

mod answers;
mod connection;

use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rxe_adapter::addressing::Addressing;
use rxe_adapter::build;
use rxe_adapter::counters::{PortCounters, Telemetry};
use rxe_adapter::manage::capture::{self, Interface};
use rxe_adapter::manage::{Capture, CaptureError, FaultList, Inspector, Parts, PortEntry, PortList};
use rxe_adapter::worker::clock::SharedClock;
use rxe_adapter::worker::orders::{OrderSender, Wake, order_channel};
use rxe_inspect::capture::CaptureSettings;
use rxe_inspect::server::{Clients, Deadlines, converse};
use rxe_proto::transport::EngineConfig;
use rxe_proto::wire::{Cidr, MacAddr};
use rxe_service::mailbox::{WorkerInspector, questions};
use rxe_service::{LocalPort, Restrictions};
use rxe_udp::{UdpStats, Waker};

use super::state::{Mail, PORT, State};
use crate::inside::{set_inside, spawn_without_signals};
use crate::instance::{Info, socket_in};
use crate::local::Local;
use answers::Managed;
use connection::{Connection, listen};

/// The number of the only engine in reports.
const LCORE: u32 = 0;

/// The counters of the UDP port, which may become another one.
pub type PortStats = Arc<Mutex<Arc<UdpStats>>>;

/// Senders of messages to the thread of the adapter.
pub struct Senders {
    orders: OrderSender,
    questions: WorkerInspector,
}

/// Senders to the thread that `waker` wakes, and the receiving end.
pub fn senders(waker: &Waker) -> (Senders, Mail) {
    let waker = waker.clone();
    let wake: Wake = Arc::new(move || waker.wake());
    let (orders, inbox) = order_channel(Some(wake));
    let (asker, questions) = questions();
    (Senders { orders, questions: asker }, Mail { orders: inbox, questions })
}

/// The management of one adapter.
pub struct Management {
    inspector: Inspector,
    capture: Capture,
}

impl Management {
    /// For the adapter whose state this is.
    pub fn new(senders: Senders, state: &State, local: &Local, clock: SharedClock, stats: &PortStats) -> Management {
        let port = local_port(local);
        let bits = if local.address.is_ipv4() { 32 } else { 128 };
        let addressing = Addressing { addresses: vec![Cidr::new(local.address, bits)], ..Addressing::default() };
        let entry = PortEntry { local: port.clone(), addressing, conflicts: Arc::default(), exclusive: true };
        let ports = Arc::new(PortList::new(vec![entry]));
        let telemetry = Telemetry {
            workers: vec![state.counters().clone()],
            control: Arc::default(),
            cm: Arc::clone(state.cm_stats()),
            hosts: Vec::new(),
            control_drops: Arc::default(),
            ports: vec![port_counters(stats)],
        };
        let (_, events) = build::events(1, clock.clone(), &ports);
        let (interface, read) = (local.interface.clone(), Arc::clone(stats));
        let inspector = Inspector::new(Parts {
            guid: local.node_guid,
            telemetry: telemetry.clone(),
            lcores: vec![LCORE],
            workers: vec![senders.questions],
            orders: vec![senders.orders.clone()],
            local: ports,
            check_address: Box::new(|_, _| Err("the address of a program stays as it is".to_owned())),
            ports: Box::new(move || vec![rxe_udp::host::port(&port, &interface, &current(&read))]),
            engine: EngineConfig { ..state.engine_config().clone() },
            factories: &[],
            regions: Arc::default(),
            faults: Arc::new(FaultList::new(&[])),
            events,
        });
        let capture = Capture::new(capture::Parts {
            inspector: inspector.clone(),
            workers: vec![senders.orders],
            recorded: build::recorded(&telemetry, &clock),
            interfaces: vec![Interface {
                name: local.interface.clone(),
                description: "UDP port 4791".to_owned(),
                mac: [0; 6],
            }],
            clock,
        });
        Management { inspector, capture }
    }

    /// Captures into a file from the first frame on.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn capture(&self, file: PathBuf) -> Result<(), CaptureError> {
        self.capture.start_early(CaptureSettings::new(file))
    }

    /// Completes the file of a capture. The adapter records no longer.
    pub fn finish_capture(&self) {
        self.capture.finish();
    }

    /// Listens in the folder of the process.
    ///
    /// # Errors
    /// The socket cannot be made, or there are no more threads.
    pub fn serve(&self, folder: &Path, info: Info) -> io::Result<()> {
        let listener: UnixListener = listen(&socket_in(folder))?;
        let managed = Arc::new(Managed { inspector: self.inspector.clone(), capture: self.capture.clone(), info });
        let clients = Clients::new(Deadlines::DEFAULT, Arc::default());
        spawn_without_signals("rxe-ctl", move || {
            clients.serve_all(
                "rxe-ctl",
                || Connection::accept(&listener),
                move |client| {
                    set_inside(true);
                    converse(client, |request| answers::answer(&managed, request), answers::refuse_events);
                },
            );
        })?;
        Ok(())
    }
}

/// The present counters of the port.
fn current(stats: &PortStats) -> Arc<UdpStats> {
    Arc::clone(&stats.lock().unwrap_or_else(PoisonError::into_inner))
}

fn port_counters(stats: &PortStats) -> PortCounters {
    let stats = Arc::clone(stats);
    let read = Arc::new(move || current(&stats).iter().collect());
    PortCounters { group: "udp", descriptions: UdpStats::DESCRIPTIONS, read }
}

fn local_port(local: &Local) -> LocalPort {
    LocalPort {
        id: PORT,
        mac: MacAddr::default(),
        vlan: None,
        addresses: vec![local.address],
        restrictions: Restrictions::default(),
        mtu: local.path_mtu.bytes() as u16,
        path_mtu: local.path_mtu,
    }
}
