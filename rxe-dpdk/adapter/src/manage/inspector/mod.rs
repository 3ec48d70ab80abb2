//! Inspection of a running adapter, from any thread but the lcores.

mod addresses;
mod faults;
mod regions;
mod services;

pub use addresses::AddressCheck;
pub use addresses::AddressError;
pub use regions::RegionError;
pub use services::ServiceError;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rxe_inspect::latency::Latency;
use rxe_inspect::report::{CounterGroup, Device, LcoreResources, Limits, Mr, Page, Port, Qp, Resources};
use rxe_proto::cm::Handshake;
use rxe_proto::mem::Memory;
use rxe_proto::transport::{EngineConfig, Qpn};
use rxe_service::inspect::{Counts, PART, QpEntry, Question};
use rxe_service::mailbox::WorkerInspector;
use rxe_service::{Listen, ServiceFactory};

use super::PortList;
use super::events::Events;
use super::fault_list::FaultList;
use super::regions::RegionList;
use super::reports;
use crate::counters::Telemetry;
use crate::worker::MAX_FAULTS;
use crate::worker::orders::{Order, OrderSender};

/// How long a worker may take to answer; it reads its mailbox every few microseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why an inspection or an order failed. Each message is one sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InspectError {
    /// The workers have left their lcores.
    #[error("the target is stopping")]
    Stopped,
    /// A worker is too busy, or not running yet.
    #[error("lcore {lcore} has not answered within {} s", PATIENCE.as_secs())]
    NoAnswer {
        /// DPDK's lcore id.
        lcore: u32,
    },
    /// There is no such queue pair.
    #[error("there is no queue pair {0}")]
    NoSuchQp(Qpn),
    /// There is no such fault rule.
    #[error("there is no fault {0}: rxe-ctl fault list shows those there are")]
    NoSuchFault(u32),
    /// There are [`MAX_FAULTS`] fault rules.
    #[error("there are {MAX_FAULTS} faults, which is the most: remove some")]
    TooManyFaults,
}

/// Key inspection for management: reports of a running adapter, and orders to it. Counters are read where they are; state
/// that belongs to a worker is requested by message, one page at a time, and answered between two turns of its loop.
#[derive(Clone)]
pub struct Inspector(Arc<Inner>);

struct Inner {
    guid: u64,
    started: Instant,
    telemetry: Telemetry,
    lcores: Vec<u32>,
    workers: Vec<WorkerInspector>,
    orders: Vec<OrderSender>,
    local: Arc<PortList>,
    check_address: AddressCheck,
    ports: PortReports,
    engine: EngineConfig,
    services: Vec<ServiceInfo>,
    regions: Arc<RegionList>,
    faults: Arc<FaultList>,
    events: Events,
}

/// Makes reports of the ports as they are now.
pub type PortReports = Box<dyn Fn() -> Vec<Port> + Send + Sync>;

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inspector({} workers)", self.0.workers.len())
    }
}

#[derive(Debug)]
struct ServiceInfo {
    /// More than one if services share a listener.
    names: Vec<&'static str>,
    listens: Vec<String>,
    /// Whether management has stopped it.
    stopped: AtomicBool,
}

impl ServiceInfo {
    fn of(factory: &dyn ServiceFactory) -> ServiceInfo {
        let listens = factory.listen().into_iter().map(|listen| match listen {
            Listen::Cm { space, port, .. } => format!("{}:{port}", reports::port_space(space)),
            Listen::Tcp { port } => format!("stream:{port}"),
            Listen::GroupListeners => "igmp".to_owned(),
        });
        ServiceInfo {
            names: factory.name().split(',').collect(),
            listens: listens.collect(),
            stopped: AtomicBool::new(false),
        }
    }
}

/// The parts of an [`Inspector`].
pub struct Parts<'a> {
    /// Identifies the adapter.
    pub guid: u64,
    /// All counters.
    pub telemetry: Telemetry,
    /// DPDK's lcore id of each worker, or the worker's number.
    pub lcores: Vec<u32>,
    /// The ways to the workers' service hosts, by worker number.
    pub workers: Vec<WorkerInspector>,
    /// The ways to the workers' loops, by worker number.
    pub orders: Vec<OrderSender>,
    /// The ports with their addresses.
    pub local: Arc<PortList>,
    /// Checks addresses that are added to a port which is [`exclusive`](super::PortEntry::exclusive).
    pub check_address: AddressCheck,
    /// Reports of the ports.
    pub ports: PortReports,
    /// The limits of the workers' engines.
    pub engine: EngineConfig,
    /// The services.
    pub factories: &'a [Box<dyn ServiceFactory>],
    /// The named regions.
    pub regions: Arc<RegionList>,
    /// The rules in force from the start.
    pub faults: Arc<FaultList>,
    /// The events of the adapter.
    pub events: Events,
}

impl Inspector {
    /// A view of the adapter that these are the parts of.
    pub fn new(parts: Parts<'_>) -> Inspector {
        Inspector(Arc::new(Inner {
            guid: parts.guid,
            started: Instant::now(),
            telemetry: parts.telemetry,
            lcores: parts.lcores,
            workers: parts.workers,
            orders: parts.orders,
            local: parts.local,
            check_address: parts.check_address,
            ports: parts.ports,
            engine: parts.engine,
            services: parts.factories.iter().map(|factory| ServiceInfo::of(&**factory)).collect(),
            regions: parts.regions,
            faults: parts.faults,
            events: parts.events,
        }))
    }

    /// The adapter and its ports. The program fills in name, version and process.
    pub fn device(&self) -> Device {
        let inner = &*self.0;
        let (engine, workers) = (&inner.engine, inner.lcores.len() as u64);
        Device {
            node_guid: reports::guid(inner.guid.to_be_bytes()),
            uptime: inner.started.elapsed().as_secs(),
            lcores: inner.lcores.clone(),
            limits: Limits {
                max_qp: u64::from(engine.max_qp) * workers,
                max_qp_wr: engine.max_qp_wr,
                max_sge: engine.max_sge,
                max_cq: u64::from(engine.max_cq) * workers,
                max_cqe: engine.max_cqe,
                max_mr: u64::from(engine.max_mr),
                max_qp_rd_atom: engine.max_rd_atomic,
                max_qp_init_rd_atom: engine.max_rd_atomic,
                max_srq: u64::from(engine.max_srq) * workers,
                max_srq_wr: engine.max_srq_wr,
                max_ah: u64::from(engine.max_ah) * workers,
                max_mcast_grp: engine.max_mcast_grp,
                max_mcast_qp_attach: engine.max_mcast_qp_attach,
                max_inline_data: engine.max_inline_data,
                flush: engine.flush,
                atomic_write: engine.atomic_write,
            },
            ports: self.ports(),
            ..Device::default()
        }
    }

    /// The ports.
    pub fn ports(&self) -> Vec<Port> {
        (self.0.ports)()
    }

    /// All counters, group by group: of each lcore, each port, or the whole target.
    pub fn counters(&self) -> Vec<CounterGroup> {
        let mut groups = self.0.telemetry.groups(&self.0.lcores);
        for port in self.ports() {
            groups.push(CounterGroup {
                group: "port".to_owned(),
                scope: "port".to_owned(),
                id: port.port,
                counters: port.counters,
            });
        }
        groups
    }

    /// The description of a counter, one sentence; `None` if there is no such counter.
    pub fn describe(&self, group: &str, name: &str) -> Option<&'static str> {
        self.0.telemetry.describe(group, name)
    }

    /// Histograms of the durations of turns and operations.
    pub fn latency(&self) -> Latency {
        crate::latency::report(&self.0.telemetry.workers, &self.0.lcores)
    }

    /// Numbers of objects, by lcore.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], [`InspectError::NoAnswer`].
    pub fn resources(&self) -> Result<Vec<LcoreResources>, InspectError> {
        let workers = 0..self.0.workers.len();
        let counts = workers.map(|worker| Ok((worker, self.ask(worker, |reply| Question::Counts { reply })?)));
        let counts = counts.collect::<Result<Vec<(usize, Counts)>, InspectError>>()?;
        let control = self.ask(0, |reply| Question::ControlCounts { reply })?;
        let listens: usize = self.0.services.iter().map(|service| service.listens.len()).sum();
        // Listeners and these tables belong to the control side, on worker 0.
        let of_control = |worker: usize, count: usize| if worker == 0 { count as u64 } else { 0 };
        let resources = counts.into_iter().map(|(worker, counts)| LcoreResources {
            lcore: self.0.lcores[worker],
            resources: Resources {
                pd: counts.pd as u64,
                cq: counts.cq as u64,
                qp: counts.qp as u64,
                cm_id: counts.connections as u64 + of_control(worker, listens),
                mr: counts.keys as u64,
                ctx: counts.services as u64,
                srq: counts.srq as u64,
                ah: counts.ah as u64,
                conn: of_control(worker, control.connections),
                sidr: of_control(worker, control.sidr),
                tcp: of_control(worker, control.streams),
                neigh: of_control(worker, control.neighbours),
                timer: counts.timers as u64,
            },
        });
        Ok(resources.collect())
    }

    /// One page of queue pairs, from `start` (0, or `next` of the last page).
    ///
    /// # Errors
    /// [`InspectError::Stopped`], [`InspectError::NoAnswer`].
    pub fn qps(&self, start: u32) -> Result<Page<Qp>, InspectError> {
        let place = Place::of(start);
        let Some(&lcore) = self.0.lcores.get(place.worker) else { return Ok(Page { items: Vec::new(), next: None }) };
        let part = self.ask(place.worker, |reply| Question::Qps { from: place.slot, reply })?;
        let items = part.items.iter().map(|entry| reports::qp(entry, lcore));
        Ok(Page { items: items.collect(), next: place.next(part.more, self.0.workers.len()) })
    }

    /// One queue pair.
    ///
    /// # Errors
    /// [`InspectError::NoSuchQp`], [`InspectError::Stopped`], [`InspectError::NoAnswer`].
    pub fn qp(&self, qpn: u32) -> Result<Qp, InspectError> {
        let entry = self.qp_entry(qpn)?;
        let lcore = self.0.lcores[usize::from(entry.info.qpn.worker())];
        Ok(reports::qp(&entry, lcore))
    }

    /// One queue pair, as its worker reports it.
    pub fn qp_entry(&self, qpn: u32) -> Result<Box<QpEntry>, InspectError> {
        let qpn = Qpn::new(qpn);
        let worker = usize::from(qpn.worker());
        if worker >= self.0.workers.len() {
            return Err(InspectError::NoSuchQp(qpn));
        }
        self.ask(worker, |reply| Question::Qp { qpn, reply })?.ok_or(InspectError::NoSuchQp(qpn))
    }

    /// One page of memory regions and windows, as for [`qps`](Self::qps). A named region appears once per lcore.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], [`InspectError::NoAnswer`].
    pub fn mrs(&self, start: u32) -> Result<Page<Mr>, InspectError> {
        let place = Place::of(start);
        let Some(&lcore) = self.0.lcores.get(place.worker) else { return Ok(Page { items: Vec::new(), next: None }) };
        let part = self.ask(place.worker, |reply| Question::Keys { from: place.slot, reply })?;
        let names = self.0.regions.lock();
        let items = part.items.iter().map(|info| reports::mr(info, lcore, names.name_of(info.key)));
        Ok(Page { items: items.collect(), next: place.next(part.more, self.0.workers.len()) })
    }

    /// The result of `read` for the memory of the region called `name`; `None` if there is no such region. The memory is not
    /// given back before `read` has returned.
    pub fn with_region<T>(&self, name: &str, read: impl FnOnce(&Memory) -> T) -> Option<T> {
        self.0.regions.lock().memory(name).map(read)
    }

    /// Disconnects a queue pair, as its service would. A queue pair without a connection moves to the error state; its
    /// service gets the event.
    ///
    /// # Errors
    /// [`InspectError::NoSuchQp`], [`InspectError::Stopped`], [`InspectError::NoAnswer`].
    pub fn disconnect(&self, qpn: u32) -> Result<(), InspectError> {
        let qpn = Qpn::new(qpn);
        let worker = usize::from(qpn.worker());
        let known = worker < self.0.workers.len() && self.ask(worker, |reply| Question::Disconnect { qpn, reply })?;
        if known { Ok(()) } else { Err(InspectError::NoSuchQp(qpn)) }
    }

    /// The messages that made the connections of the connection manager.
    pub(super) fn handshakes(&self) -> Result<Vec<Handshake>, InspectError> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            // The control side is on worker 0.
            let part = self.ask(0, |reply| Question::Handshakes { from, reply })?;
            let next = part.items.last().and_then(|last| last.comm_id.checked_add(1));
            all.extend(part.items);
            match next {
                Some(next) if part.more => from = next,
                _ => return Ok(all),
            }
        }
    }

    /// Refuses new clients from now on: connection requests with reason 3, SIDR requests with status 3, TCP streams with a
    /// reset. It cannot be undone.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], [`InspectError::NoAnswer`].
    pub fn drain(&self) -> Result<(), InspectError> {
        // The control side is on worker 0.
        self.exchange(0, |reply| self.order(0, Order::Drain(reply)))
    }

    /// The events of the adapter.
    pub fn events(&self) -> &Events {
        &self.0.events
    }

    /// Sends a question to a worker and waits for the answer.
    fn ask<T>(&self, worker: usize, question: impl FnOnce(SyncSender<T>) -> Question) -> Result<T, InspectError> {
        self.exchange(worker, |reply| self.send(worker, question(reply)))
    }

    /// Sends a worker something by `send`, and waits for its reply.
    pub(super) fn exchange<T>(
        &self,
        worker: usize,
        send: impl FnOnce(SyncSender<T>) -> Result<(), InspectError>,
    ) -> Result<T, InspectError> {
        let (reply, answer) = sync_channel(1);
        send(reply)?;
        self.wait(worker, &answer)
    }

    /// Sends each worker something by `send`, then waits for all replies, by worker number.
    pub(super) fn exchange_all<T>(
        &self,
        send: impl Fn(usize, SyncSender<T>) -> Result<(), InspectError>,
    ) -> Result<Vec<T>, InspectError> {
        let sent = (0..self.workers()).map(|worker| {
            let (reply, answer) = sync_channel(1);
            send(worker, reply)?;
            Ok((worker, answer))
        });
        let sent: Vec<_> = sent.collect::<Result<_, InspectError>>()?;
        sent.into_iter().map(|(worker, answer)| self.wait(worker, &answer)).collect()
    }

    pub(super) fn fault_list(&self) -> &FaultList {
        &self.0.faults
    }

    pub(super) fn region_list(&self) -> &RegionList {
        &self.0.regions
    }

    /// Number of workers.
    pub(super) fn workers(&self) -> usize {
        self.0.workers.len()
    }

    fn send(&self, worker: usize, question: Question) -> Result<(), InspectError> {
        let (inspector, orders) = self.worker(worker)?;
        inspector.ask(question).map_err(|_| InspectError::Stopped)?;
        orders.wake();
        Ok(())
    }

    /// The ways to a worker.
    fn worker(&self, worker: usize) -> Result<(&WorkerInspector, &OrderSender), InspectError> {
        self.0.workers.get(worker).zip(self.0.orders.get(worker)).ok_or(InspectError::Stopped)
    }

    /// Sends an order to a worker.
    pub(super) fn order(&self, worker: usize, order: Order) -> Result<(), InspectError> {
        let (_, orders) = self.worker(worker)?;
        orders.send(order).map_err(|_| InspectError::Stopped)
    }

    fn wait<T>(&self, worker: usize, answer: &Receiver<T>) -> Result<T, InspectError> {
        answer.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => InspectError::NoAnswer { lcore: self.0.lcores[worker] },
            RecvTimeoutError::Disconnected => InspectError::Stopped,
        })
    }
}

/// The start of a page: worker and slot in one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    worker: usize,
    slot: usize,
}

impl Place {
    /// Bits of the slot number: a key table may have 2^25 slots.
    const SLOT_BITS: u32 = 26;

    fn of(start: u32) -> Place {
        Place { worker: (start >> Self::SLOT_BITS) as usize, slot: (start & ((1 << Self::SLOT_BITS) - 1)) as usize }
    }

    /// The start of the next page, of the same worker or the next one; `None` after the last.
    fn next(self, more: bool, workers: usize) -> Option<u32> {
        let next =
            if more { Place { slot: self.slot + PART, ..self } } else { Place { worker: self.worker + 1, slot: 0 } };
        // At most 15 workers.
        (next.worker < workers).then_some((next.worker as u32) << Self::SLOT_BITS | next.slot as u32)
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::mem::KeyTable;

    use super::*;

    #[test]
    fn pages_cover_all_workers_in_order() {
        let first = Place::of(0);
        assert_eq!(first, Place { worker: 0, slot: 0 });
        let second = Place::of(first.next(true, 2).unwrap());
        assert_eq!(second, Place { worker: 0, slot: PART });
        let third = Place::of(second.next(false, 2).unwrap());
        assert_eq!(third, Place { worker: 1, slot: 0 });
        assert_eq!(third.next(false, 2), None);
        let last = Place { worker: 14, slot: 2 * KeyTable::MAX_KEYS - PART };
        assert_eq!(Place::of(last.next(true, 15).unwrap()), Place { worker: 14, slot: 2 * KeyTable::MAX_KEYS });
    }
}
