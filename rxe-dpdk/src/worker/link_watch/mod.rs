//! Notices when a port's link goes and comes, in a thread of its own.
//!
//! A port that stands for a kernel interface (net_af_packet, net_tap, net_af_xdp) has the interface's state, which
//! rtnetlink reports; the state of the others is asked of the driver. A deleted interface takes the sockets of
//! net_af_packet along: its workers park the queues of the port, and when an interface of that name is there again, the
//! device is made again and the queues are resumed.

mod message;
mod order;

use std::collections::HashMap;
use std::io::{self, PipeReader, PipeWriter};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rxe_proto::wire::PortId;

use super::orders::Order;
use crate::eal::{LinkEvents, PortMonitor, Reattach, Woken, leave_lcore, wait_for_links};
use message::{Interface, Message};
pub(crate) use order::PortOrder;

/// How often drivers are asked, and what did not succeed is tried again.
const INTERVAL: Duration = Duration::from_secs(1);
/// What one datagram of the kernel's holds at most: it fills what it is given, up to this.
const DATAGRAM: usize = 32 << 10;

/// Why each port is down, as the kernel says: by the port's place. `None` where the driver has to be asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkStates(Arc<Mutex<HashMap<PortId, Result<(), String>>>>);

impl LinkStates {
    /// The state of a port: that of its interface, or what the driver says.
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
    /// Where its device can be made again.
    pub(crate) reattach: Option<Reattach>,
    /// Its IP MTU.
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
    /// Watches `ports`, whose queues `workers` have.
    pub(crate) fn start(ports: Vec<WatchedPort>, workers: Vec<Sender<Order>>) -> LinkWatch {
        let states = LinkStates::default();
        let watch = |states: LinkStates| -> io::Result<(PipeWriter, JoinHandle<()>)> {
            let (stopped, stop) = io::pipe()?;
            let ports = ports.into_iter().map(|port| Watched::new(port, &states)).collect();
            let watcher = Watcher { ports, workers, states, interfaces: HashMap::new(), complete: false, stopped };
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

    /// The states, which it keeps up to date.
    pub(crate) fn states(&self) -> LinkStates {
        self.states.clone()
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to say any more.
            let _ = thread.join();
        }
    }
}

/// How far the device of a deleted interface is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Device {
    /// In use.
    Used,
    /// Its interface is gone and the workers have parked its queues.
    Parked,
    /// Closed.
    Closed,
    /// Made again; the queues are still parked.
    Made,
}

/// A port, and what is known of it.
struct Watched {
    port: WatchedPort,
    /// Index and name of its interface, where it has one.
    interface: Option<(u32, String)>,
    device: Device,
    /// What was logged last.
    logged: Option<Result<(), String>>,
}

impl Watched {
    fn new(port: WatchedPort, states: &LinkStates) -> Watched {
        let interface = port.monitor.interface().map(|index| (index, String::new()));
        if interface.is_some() {
            // Until the kernel has answered, what the driver says.
            let up = port.monitor.link().up;
            states.set(port.monitor.info().id, if up { Ok(()) } else { Err("its interface is down".to_owned()) });
        }
        Watched { port, interface, device: Device::Used, logged: None }
    }
}

struct Watcher {
    ports: Vec<Watched>,
    workers: Vec<Sender<Order>>,
    states: LinkStates,
    /// All interfaces of the network namespace, by index.
    interfaces: HashMap<u32, Interface>,
    /// Whether they are all known.
    complete: bool,
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
            // Drivers say what they can.
            self.ports.iter_mut().for_each(|watched| watched.interface = None);
            self.states.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        if let Some(events) = &events {
            self.ask_for_all(events);
        }
        loop {
            if self.complete || events.is_none() {
                self.look_at_all();
            }
            match wait_for_links(events.as_ref(), &self.stopped, INTERVAL) {
                Woken::Stopped => return,
                Woken::TimedOut => {}
                Woken::Messages => events.iter().for_each(|events| self.take_messages(events)),
            }
        }
    }

    fn ask_for_all(&mut self, events: &LinkEvents) {
        self.complete = false;
        self.interfaces.clear();
        if let Err(error) = events.send(&message::list_request()) {
            tracing::warn!("the kernel does not list its interfaces: {error}");
        }
    }

    fn take_messages(&mut self, events: &LinkEvents) {
        let mut buffer = vec![0; DATAGRAM];
        loop {
            let len = match events.receive(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => return self.ask_for_all(events),
                Err(_) => return,
            };
            for message in message::parse(&buffer[..len]) {
                match message {
                    Message::New(interface) => {
                        self.interfaces.insert(interface.index, interface);
                    }
                    Message::Deleted(index) => {
                        self.interfaces.remove(&index);
                    }
                    Message::Done => self.complete = true,
                    Message::Refused(errno) => {
                        let error = io::Error::from_raw_os_error(errno);
                        tracing::warn!("the kernel does not list its interfaces: {error}");
                    }
                }
            }
        }
    }

    fn look_at_all(&mut self) {
        let Watcher { ports, workers, states, interfaces, stopped, .. } = self;
        for watched in ports {
            watched.look(interfaces, workers, states, stopped);
        }
    }
}

impl Watched {
    /// Finds out the port's state, and does what it takes to get it back.
    fn look(
        &mut self,
        interfaces: &HashMap<u32, Interface>,
        workers: &[Sender<Order>],
        states: &LinkStates,
        stopped: &PipeReader,
    ) {
        let id = self.port.monitor.info().id;
        if self.interface.is_some() {
            let state = self.interface_state(interfaces, workers, stopped);
            states.set(id, state);
        }
        let state = states.of(&self.port.monitor);
        if self.logged.as_ref() != Some(&state) {
            let device = &self.port.monitor.info().name;
            match (&state, &self.logged) {
                (Ok(()), None) => {}
                (Ok(()), Some(_)) => tracing::info!("port {} ({device}) is ACTIVE", id.0),
                // Nobody is connected yet, most likely.
                (Err(why), None) => tracing::info!("port {} ({device}) is DOWN: {why}", id.0),
                (Err(why), Some(_)) => tracing::warn!("port {} ({device}) is DOWN: {why}", id.0),
            }
            self.logged = Some(state);
        }
    }

    fn interface_state(
        &mut self,
        interfaces: &HashMap<u32, Interface>,
        workers: &[Sender<Order>],
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
        // A successor may have been found before, and gone again.
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
            self.device = Device::Made;
        }
        if self.device == Device::Made && order(false) {
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
