//! Watches the links of the ports, in a thread of its own.
//!
//! A port on a kernel interface (net_af_packet, net_tap, net_af_xdp) has that interface's state, as rtnetlink reports it;
//! the others are polled through their drivers. When an interface is deleted, the sockets of net_af_packet are dead: the
//! workers park the port's queues, and once an interface of that name exists again, the device is re-created and the
//! queues are resumed. A link that comes up is announced by the port's IP host. Addresses of ours that the kernel gets
//! meanwhile are logged.

mod order;

use std::collections::{HashMap, HashSet};
use std::io::{self, PipeReader, PipeWriter};
use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rxe_inspect::event::EventKind;
use rxe_proto::wire::PortId;

use super::kernel_addresses;
use super::rtnetlink::{self, Address, DATAGRAM, Interface, Message};
use crate::eal::{LinkEvents, PortMonitor, Reattach, Woken, leave_lcore, wait_for_links};
use crate::worker::port_orders::PortOrder;
use rxe_adapter::manage::{Events, PortEntry, PortList};

/// Interval between polls of drivers, and between retries.
const INTERVAL: Duration = Duration::from_secs(1);

/// Port states from the kernel, with the reason if a port is down. Ports that are missing here are polled.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkStates(Arc<Mutex<HashMap<PortId, Result<(), String>>>>);

impl LinkStates {
    /// The state of a port: that of its interface, or the driver's.
    pub(crate) fn of(&self, monitor: &PortMonitor) -> Result<(), String> {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match states.get(&monitor.info().id) {
            Some(state) => state.clone(),
            None if monitor.link().up => Ok(()),
            None => Err(match monitor.info().driver.as_str() {
                "net_vhost" | "net_memif" | "net_virtio_user" => "there is no peer",
                _ => "there is no link",
            }
            .to_owned()),
        }
    }

    fn set(&self, port: PortId, state: Result<(), String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(port, state);
    }
}

/// A port to watch.
pub(crate) struct WatchedPort {
    pub(crate) monitor: PortMonitor,
    /// `Some` if its device can be re-created.
    pub(crate) reattach: Option<Reattach>,
    /// MTU of IP packets on the port, in bytes.
    pub(crate) mtu: u16,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    states: LinkStates,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl LinkWatch {
    /// Watches `ports`, whose addresses `list` has. `workers` own their queues; `events` get the changes of links.
    pub(crate) fn start(
        ports: Vec<WatchedPort>,
        list: Arc<PortList>,
        workers: Vec<Sender<PortOrder>>,
        events: Events,
    ) -> LinkWatch {
        let states = LinkStates::default();
        let watch = |states: LinkStates| -> io::Result<(PipeWriter, JoinHandle<()>)> {
            let (stopped, stop) = io::pipe()?;
            let ports = ports.into_iter().map(|port| Watched::new(port, &states)).collect();
            let watcher = Watcher {
                ports,
                list,
                workers,
                states,
                events,
                interfaces: HashMap::new(),
                complete: false,
                addresses: HashSet::new(),
                stopped,
            };
            let thread = thread::Builder::new().name("rxe-links".to_owned()).spawn(move || watcher.run())?;
            Ok((stop, thread))
        };
        match watch(states.clone()) {
            Ok((stop, thread)) => LinkWatch { states, stop: Some(stop), thread: Some(thread) },
            Err(error) => {
                tracing::warn!("the links of the ports are not watched, as the system gives no thread: {error}");
                LinkWatch { states, stop: None, thread: None }
            }
        }
    }

    /// The states, kept up to date.
    pub(crate) fn states(&self) -> LinkStates {
        self.states.clone()
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was reported already.
            let _ = thread.join();
        }
    }
}

/// The device of an interface that was deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Device {
    /// In use.
    Used,
    /// Its interface is gone and the workers have parked its queues.
    Parked,
    /// Closed.
    Closed,
    /// Re-created; the queues are still parked.
    Attached,
}

/// The addresses of a port that the kernel must not have.
fn exclusive(port: &PortEntry) -> impl Iterator<Item = IpAddr> + '_ {
    port.addressing.addresses.iter().filter(|_| port.exclusive).map(|address| address.ip)
}

/// A watched port.
struct Watched {
    port: WatchedPort,
    /// Index and name of its interface, if it has one.
    interface: Option<(u32, String)>,
    device: Device,
    /// The last logged state.
    logged: Option<Result<(), String>>,
    /// The kernel's addresses that were logged.
    logged_addresses: HashSet<Address>,
}

impl Watched {
    fn new(port: WatchedPort, states: &LinkStates) -> Watched {
        let interface = port.monitor.interface().map(|index| (index, String::new()));
        if interface.is_some() {
            // The driver's state, until the kernel has answered.
            let up = port.monitor.link().up;
            states.set(port.monitor.info().id, if up { Ok(()) } else { Err("its interface is down".to_owned()) });
        }
        Watched { port, interface, device: Device::Used, logged: None, logged_addresses: HashSet::new() }
    }
}

struct Watcher {
    ports: Vec<Watched>,
    list: Arc<PortList>,
    workers: Vec<Sender<PortOrder>>,
    states: LinkStates,
    events: Events,
    /// All interfaces of the network namespace, by index.
    interfaces: HashMap<u32, Interface>,
    /// Whether the kernel has listed them all.
    complete: bool,
    /// Addresses of the ports that the kernel got since the start, too.
    addresses: HashSet<Address>,
    stopped: PipeReader,
}

impl Watcher {
    fn run(mut self) {
        leave_lcore();
        let wanted = self.ports.iter().any(|watched| watched.interface.is_some());
        let events = wanted.then(LinkEvents::open).and_then(|events| {
            events.inspect_err(|error| tracing::warn!("the kernel does not report on interfaces: {error}")).ok()
        });
        if events.is_none() {
            // All ports are polled through their drivers.
            self.ports.iter_mut().for_each(|watched| watched.interface = None);
            self.states.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        if let Some(events) = &events {
            self.request_list(events);
        }
        loop {
            if self.complete || events.is_none() {
                self.check_all();
            }
            match wait_for_links(events.as_ref(), &self.stopped, INTERVAL) {
                Woken::Stopped => return,
                Woken::TimedOut => {}
                Woken::Messages => events.iter().for_each(|events| self.take_messages(events)),
            }
        }
    }

    fn request_list(&mut self, events: &LinkEvents) {
        self.complete = false;
        self.interfaces.clear();
        if let Err(error) = events.send(&rtnetlink::list_request()) {
            tracing::warn!("the kernel does not list its interfaces: {error}");
        }
    }

    fn take_messages(&mut self, events: &LinkEvents) {
        let mut buffer = vec![0; DATAGRAM];
        loop {
            let len = match events.receive(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return self.request_list(events),
                Err(_) => return,
            };
            for message in rtnetlink::parse(&buffer[..len]) {
                match message {
                    Message::New(interface) => {
                        self.interfaces.insert(interface.index, interface);
                    }
                    Message::Deleted(index) => {
                        self.interfaces.remove(&index);
                        self.addresses.retain(|address| address.index != index);
                    }
                    Message::NewAddress(address) => {
                        if self.list.all().iter().any(|port| exclusive(port).any(|ip| ip == address.cidr.ip)) {
                            self.addresses.insert(address);
                        }
                    }
                    Message::DeletedAddress(address) => {
                        self.addresses.remove(&address);
                    }
                    Message::TentativeAddress(_) => {}
                    Message::Done => self.complete = true,
                    Message::Refused(errno) => {
                        let error = io::Error::from_raw_os_error(errno);
                        tracing::warn!("the kernel does not list its interfaces: {error}");
                    }
                }
            }
        }
    }

    fn check_all(&mut self) {
        let Watcher { ports, list, workers, states, events, interfaces, addresses, stopped, .. } = self;
        for watched in ports {
            if let Some(state) = watched.check(interfaces, workers, states, stopped) {
                let port = u32::from(watched.port.monitor.info().id.0);
                events.publish(|| EventKind::Link { port, up: state.is_ok(), reason: state.err() });
            }
            let own = list.get(watched.port.monitor.info().id).map(|port| exclusive(&port).collect::<Vec<_>>());
            watched.check_addresses(&own.unwrap_or_default(), addresses);
        }
    }
}

impl Watched {
    /// Updates the port's state, and re-creates its device if possible. Returns the state if it has changed.
    fn check(
        &mut self,
        interfaces: &HashMap<u32, Interface>,
        workers: &[Sender<PortOrder>],
        states: &LinkStates,
        stopped: &PipeReader,
    ) -> Option<Result<(), String>> {
        let id = self.port.monitor.info().id;
        if self.interface.is_some() {
            let state = self.interface_state(interfaces, workers, stopped);
            states.set(id, state);
        }
        let state = states.of(&self.port.monitor);
        if self.logged.as_ref() == Some(&state) {
            return None;
        }
        let device = &self.port.monitor.info().name;
        match (&state, &self.logged) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                tracing::info!("port {} ({device}) is ACTIVE", id.0);
                // The control side is on worker 0. Without it, the target is stopping.
                let _ = workers[0].send(PortOrder::LinkUp(id));
            }
            // Most likely no peer is connected yet.
            (Err(why), None) => tracing::info!("port {} ({device}) is DOWN: {why}", id.0),
            (Err(why), Some(_)) => tracing::warn!("port {} ({device}) is DOWN: {why}", id.0),
        }
        let before = self.logged.replace(state.clone());
        before.map(|_| state)
    }

    /// Logs each of the kernel's addresses that is among the port's `own`, once.
    fn check_addresses(&mut self, own: &[IpAddr], kernel: &HashSet<Address>) {
        self.logged_addresses.retain(|address| kernel.contains(address));
        for address in kernel_addresses::shared(own, kernel) {
            if self.logged_addresses.insert(*address) {
                kernel_addresses::warn(address);
            }
        }
    }

    fn interface_state(
        &mut self,
        interfaces: &HashMap<u32, Interface>,
        workers: &[Sender<PortOrder>],
        stopped: &PipeReader,
    ) -> Result<(), String> {
        let Some((index, name)) = &mut self.interface else { return Ok(()) };
        if let Some(interface) = interfaces.get(index)
            && self.device == Device::Used
        {
            name.clone_from(&interface.name);
            return interface.problem().map_or(Ok(()), |problem| Err(format!("interface {name} {problem}")));
        }
        let name = name.clone();
        let Some(reattach) = &self.port.reattach else {
            return Err(format!("interface {name} is gone: restart the target to use another one"));
        };
        let order = |park| order::send(workers, self.port.monitor.info().id, park, stopped);
        if self.device == Device::Used && order(true) {
            self.device = Device::Parked;
        }
        let Some(successor) = interfaces.values().find(|interface| interface.name == name) else {
            return Err(format!("interface {name} is gone"));
        };
        // An earlier successor may have been deleted again.
        if successor.mtu < u32::from(self.port.mtu) {
            let (has, needs) = (successor.mtu, self.port.mtu);
            return Err(format!(
                "interface {name} is back with MTU {has}, too small for the port's {needs}: ip link set dev {name} mtu {needs}"
            ));
        }
        if self.device == Device::Parked && reattach.detach() {
            self.device = Device::Closed;
        }
        if self.device == Device::Closed {
            if let Err(error) = reattach.attach() {
                return Err(format!("interface {name} is back and cannot be used yet: {error}"));
            }
            self.device = Device::Attached;
        }
        if self.device == Device::Attached && order(false) {
            self.device = Device::Used;
            tracing::info!("interface {name} is back: its port goes on");
        }
        if self.device != Device::Used {
            return Err(format!("interface {name} is back, and its port not yet"));
        }
        let bound = self.port.monitor.interface().unwrap_or(successor.index);
        self.interface = Some((bound, name.clone()));
        match interfaces.get(&bound).map(Interface::problem) {
            Some(None) => Ok(()),
            Some(Some(problem)) => Err(format!("interface {name} {problem}")),
            None => Err(format!("interface {name} is gone")),
        }
    }
}
