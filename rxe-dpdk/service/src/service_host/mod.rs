//! Calls the services of one worker: connections, completions, events of queue pairs, TCP streams and timers each go to the
//! service that they belong to.
//!
//! A worker owns its [`ServiceHost`] and calls [`read_mail`](ServiceHost::read_mail) and [`poll`](ServiceHost::poll) in each turn
//! of its loop, with its engine. No other thread touches either.
//!
//! | module | subject |
//! |---|---|
//! | `inbound` | requests of peers: connections and SIDR |
//! | `outbound` | connections that services request |
//! | `change` | changes that management makes: named regions, requests to services |
//! | `connections` | established and ended connections |
//! | `current` | the service that is being called, for the watchdog |
//! | `events` | events about connections and queue pairs, for management |
//! | `in_use` | whether a peer still uses a connection that a new request would replace |
//! | `inspect` | answers to management |
//! | `instances` | messages between the instances of a service |
//! | `log` | log lines about connections and queue pairs |
//! | `poll` | services that are polled in each turn |

mod change;
mod connections;
mod current;
mod events;
mod in_use;
mod inbound;
mod inspect;
mod instances;
mod log;
mod outbound;
mod poll;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::cm::ConnId;
use rxe_proto::mem::{Allocator, PdId};
use rxe_proto::transport::{AsyncEvent, CqError, Engine, Qpn, WorkCompletion};
use rxe_proto::wire::{Gid, PortId};

use crate::context::accounting::{Accounting, Objects, ServiceCq};
use crate::context::{Context, ServiceTimers};
use crate::event_log::EventLog;
use crate::events::EventSender;
use crate::ledger::{BudgetId, Ledger, Shares};
use crate::local_port::LocalPort;
use crate::mailbox::WorkerMailbox;
use crate::messages::{EndReason, InstanceMessage, StreamId, ToControl, ToWorker};
use crate::multicast::{GroupMembers, WorkerSet};
use crate::outstanding::Outstanding;
use crate::qp_map::QpMap;
use crate::regions::NamedRegion;
use crate::reserve::Reserve;
use crate::seeds::Seeds;
use crate::service::Service;
use crate::service_latencies::ServiceLatencies;
use connections::Connection;
pub use current::CurrentService;
use instances::INSTANCE_MESSAGES_PER_TURN;
pub use stats::ServiceStats;

/// Most completions polled from a queue at once.
const COMPLETION_BATCH: usize = 32;

/// How long a peer waits after an RNR NAK of ours: code 12 is 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

/// Receiver-not-ready retries without end, the largest value of their three bits.
const RNR_RETRY: u8 = 7;

/// The number of what belongs to no service.
const NO_SERVICE: usize = usize::MAX;

/// Most unused bytes of clients' memory that are kept for later clients.
const KEPT_MEMORY: usize = 64 << 20;

/// The services of one worker.
pub struct ServiceHost {
    worker: usize,
    services: Vec<Box<dyn Service>>,
    /// The names of their factories.
    names: Vec<&'static str>,
    /// The numbers of those that are polled.
    polled: Vec<usize>,
    /// Sum of the operations that they reported in the last turn.
    outstanding: Outstanding,
    /// The completion queue of each service.
    cqs: Vec<ServiceCq>,
    objects: Objects,
    /// Of each service.
    latencies: Vec<ServiceLatencies>,
    connections: HashMap<ConnId, Connection>,
    /// The connections that peers have not confirmed, by service and age.
    unconfirmed: BTreeMap<(usize, u64), ConnId>,
    /// The place of the next connection that is accepted; those that services request have place 0.
    next_place: u64,
    by_qp: QpMap<ConnId>,
    /// The service of each stream.
    streams: HashMap<StreamId, usize>,
    groups: GroupMembers,
    timers: ServiceTimers,
    allocator: Arc<dyn Allocator>,
    /// What clients hold.
    ledger: Ledger,
    memory_budget: BudgetId,
    /// Memory that clients have given back.
    reserve: Reserve,
    regions: Vec<NamedRegion>,
    /// A region with keys that services do not know: it is being added or removed.
    staged_region: Option<NamedRegion>,
    /// Protection domains of removed regions whose queue pairs still exist.
    retired_pds: Vec<PdId>,
    ports: Arc<[LocalPort]>,
    mailbox: WorkerMailbox,
    /// Messages of instances to themselves.
    own_messages: VecDeque<InstanceMessage>,
    /// Whether the last read of the mailbox ended at the limit, so that messages may be left.
    has_more_mail: bool,
    stats: Arc<ServiceStats>,
    current: Arc<CurrentService>,
    events: EventLog,
    event_sender: EventSender,
    in_use_checks: in_use::Checks,
    completions: Vec<WorkCompletion>,
    /// Source of starting PSNs.
    psns: Seeds,
    /// Keys that exist without clients: those after the start of the services, and those of regions added since.
    first_keys: usize,
}

/// The parts of a [`ServiceHost`].
pub struct ServiceHostParts {
    /// The worker's number.
    pub worker: usize,
    /// The services with the names of their factories. A service's position is its number.
    pub services: Vec<(&'static str, Box<dyn Service>)>,
    /// Source of memory for [`Context::alloc_memory`].
    pub allocator: Arc<dyn Allocator>,
    /// The named regions, registered with the worker's engine.
    pub regions: Vec<NamedRegion>,
    /// The adapter's ports, by number.
    pub ports: Arc<[LocalPort]>,
    /// The worker's mailbox.
    pub mailbox: WorkerMailbox,
    /// Receiver of the host's events.
    pub events: EventSender,
    /// Secret seed of starting PSNs.
    pub seed: [u8; 32],
}

impl ServiceHost {
    /// Creates a completion queue for each service in `engine`.
    ///
    /// # Errors
    /// The engine has no completion queue left.
    pub fn new(parts: ServiceHostParts, engine: &mut Engine) -> Result<ServiceHost, CqError> {
        let cqs = parts.services.iter().map(|_| Ok(ServiceCq::new(engine.create_cq(1)?)));
        let cqs = cqs.collect::<Result<_, CqError>>()?;
        let (names, services): (Vec<_>, Vec<_>) = parts.services.into_iter().unzip();
        let mut ledger = Ledger::new(&parts.ports);
        let memory_budget = ledger.open("memory", NO_SERVICE, parts.allocator.capacity(), Shares::HALF, None);
        let latencies = names.iter().map(|names| ServiceLatencies::new(names)).collect();
        Ok(ServiceHost {
            worker: parts.worker,
            services,
            names,
            polled: Vec::new(),
            outstanding: Outstanding::NONE,
            cqs,
            objects: Objects::default(),
            latencies,
            connections: HashMap::new(),
            unconfirmed: BTreeMap::new(),
            next_place: 1,
            by_qp: QpMap::default(),
            streams: HashMap::new(),
            groups: GroupMembers::default(),
            timers: ServiceTimers::default(),
            allocator: parts.allocator,
            ledger,
            memory_budget,
            reserve: Reserve::new(KEPT_MEMORY),
            regions: parts.regions,
            staged_region: None,
            retired_pds: Vec::new(),
            ports: parts.ports,
            mailbox: parts.mailbox,
            own_messages: VecDeque::new(),
            has_more_mail: false,
            stats: Arc::default(),
            current: Arc::default(),
            events: EventLog::new("events of connections"),
            event_sender: parts.events,
            in_use_checks: in_use::Checks::default(),
            completions: Vec::with_capacity(COMPLETION_BATCH),
            psns: Seeds::new(parts.seed),
            first_keys: 0,
        })
    }

    /// Calls every service's `start`.
    pub fn start(&mut self, now: Instant, engine: &mut Engine) {
        for service in 0..self.services.len() {
            self.call(now, engine, service, |s, cx| s.start(cx));
        }
        self.first_keys = engine.keys().len();
        self.polled = (0..self.services.len()).filter(|&service| self.services[service].wants_poll()).collect();
    }

    /// Counts what services have not destroyed or finished, when the adapter stops.
    pub fn count_left(&self, engine: &Engine) {
        self.stats.queue_pairs_left.add(engine.qp_count() as u64);
        self.stats.regions_left.add(engine.keys().len().saturating_sub(self.first_keys) as u64);
        self.stats.operations_left.add(self.outstanding.0 as u64);
    }

    /// Handles messages of the control side, of management and of instances on other workers. Returns whether there were any.
    pub fn read_mail(&mut self, now: Instant, engine: &mut Engine) -> bool {
        let mut busy = !self.own_messages.is_empty();
        if busy {
            self.deliver_own_messages(now, engine);
        }
        let mut of_instances = 0;
        while of_instances < INSTANCE_MESSAGES_PER_TURN
            && let Ok(message) = self.mailbox.inbox.try_recv()
        {
            busy = true;
            of_instances += usize::from(matches!(message, ToWorker::InstanceMessage(_)));
            self.handle_message(now, engine, message);
        }
        self.has_more_mail = of_instances == INSTANCE_MESSAGES_PER_TURN;
        self.poll_in_use_checks(now, engine);
        busy
    }

    /// Delivers events of queue pairs, completions and expired timers, and polls the services that want it. Returns whether
    /// there was anything to do; operations that are still [outstanding](Self::outstanding) are not.
    pub fn poll(&mut self, now: Instant, engine: &mut Engine) -> bool {
        let mut busy = false;
        // Events first: a service learns that a connection is established before it sees the first message on it.
        while let Some(event) = engine.poll_event() {
            busy = true;
            self.handle_qp_event(now, engine, event);
        }
        busy |= self.deliver_completions(now, engine);
        // A timer that a timer callback sets for now fires in the next turn.
        for _ in 0..self.timers.len() {
            let Some((service, token)) = self.timers.pop_due(now) else { break };
            busy = true;
            self.call(now, engine, service, |s, cx| s.timer(cx, token));
        }
        busy |= self.reserve.poll();
        // After everything else, so that a service submits the operations of this turn at once.
        if !self.polled.is_empty() {
            busy |= self.poll_services(now, engine);
        }
        // The next turn delivers these.
        busy | !self.own_messages.is_empty()
    }

    /// Operations of services that were outstanding at the end of the last [`poll`](Self::poll): while there are any, the worker
    /// must not sleep.
    #[inline]
    pub fn outstanding(&self) -> Outstanding {
        self.outstanding
    }

    /// Whether no operation is outstanding, and every message that was in the mailbox when it was last read is handled.
    pub fn is_finished(&self) -> bool {
        self.outstanding.is_none() && self.own_messages.is_empty() && !self.has_more_mail
    }

    /// When the next timer of a service expires: the worker may sleep until then, unless its engine has something to do, mail
    /// arrives, or operations are [outstanding](Self::outstanding).
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// A port's addresses were changed: it is `port` from now on. Calls the services.
    #[cold]
    pub fn port_changed(&mut self, now: Instant, engine: &mut Engine, port: &LocalPort) {
        let ports = self.ports.iter().map(|old| if old.id == port.id { port } else { old });
        self.ports = ports.cloned().collect();
        self.ledger.port_changed(port);
        for service in 0..self.services.len() {
            self.call(now, engine, service, |s, cx| s.port_changed(cx, port.id));
        }
    }

    /// The named regions.
    pub fn regions(&self) -> &[NamedRegion] {
        &self.regions
    }

    /// Counters.
    pub fn stats(&self) -> &Arc<ServiceStats> {
        &self.stats
    }

    /// Times of operations, by service.
    pub fn latencies(&self) -> &[ServiceLatencies] {
        &self.latencies
    }

    /// The service that is being called, for other threads.
    pub fn current(&self) -> &Arc<CurrentService> {
        &self.current
    }

    /// The workers whose services have members of a multicast group.
    pub fn group_members(&self, port: PortId, group: Gid) -> WorkerSet {
        self.groups.get(port, group)
    }

    /// Calls a service with its context.
    fn call<R>(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        service: usize,
        f: impl FnOnce(&mut dyn Service, &mut Context<'_>) -> R,
    ) -> R {
        let mut context = Context {
            now,
            engine,
            accounting: Accounting {
                worker: self.worker,
                service,
                cq: &mut self.cqs[service],
                objects: &mut self.objects,
                latencies: &self.latencies[service],
                ports: &self.ports,
                outbox: &self.mailbox.outbox,
            },
            psns: &mut self.psns,
            allocator: &*self.allocator,
            ledger: &mut self.ledger,
            memory_budget: self.memory_budget,
            reserve: &mut self.reserve,
            regions: &self.regions,
            timers: &mut self.timers,
            workers: &self.mailbox.workers,
            own_messages: &mut self.own_messages,
        };
        self.current.enter(service);
        let result = f(&mut *self.services[service], &mut context);
        self.current.leave();
        result
    }

    fn deliver_completions(&mut self, now: Instant, engine: &mut Engine) -> bool {
        let mut busy = false;
        let mut limit = None;
        while let Some(cq) = engine.poll_ready() {
            // At most as many as can have been queued before the call: requests posted to a queue pair in error complete at
            // once, so a service that answers each completion with another request would keep the worker here forever. The
            // rest waits for the next turn.
            let left = limit.get_or_insert_with(|| self.cqs.iter().map(ServiceCq::depth).sum::<usize>());
            if *left == 0 {
                return true;
            }
            let mut batch = std::mem::take(&mut self.completions);
            batch.clear();
            engine.poll_cq(cq, &mut batch, COMPLETION_BATCH.min(*left));
            *left -= batch.len();
            busy |= !batch.is_empty();
            match self.cqs.iter().position(|c| c.cq == cq) {
                Some(service) => {
                    self.stats.completions.add(batch.len() as u64);
                    if !batch.is_empty() {
                        self.call(now, engine, service, |s, cx| s.completions(cx, &batch));
                    }
                }
                None => self.stats.completions_unclaimed.add(batch.len() as u64),
            }
            self.completions = batch;
        }
        self.cqs.iter_mut().for_each(ServiceCq::drained);
        busy
    }

    fn handle_message(&mut self, now: Instant, engine: &mut Engine, message: ToWorker) {
        match message {
            ToWorker::ConnectRequest { service, request, path } => {
                self.connect_request(now, engine, service, &request, path);
            }
            ToWorker::ReqSent { service, conn, qp } => self.req_sent(now, service, conn, qp),
            ToWorker::ReqNotSent { service, conn, qp, reason } => {
                self.req_not_sent(now, engine, service, (conn, qp), reason);
            }
            ToWorker::RepReceived { reply, rts } => self.rep_received(now, engine, &reply, &rts),
            ToWorker::RejReceived { conn, rej } => self.rej_received(now, engine, conn, &rej),
            ToWorker::SidrRequest { service, request } => self.sidr_request(now, engine, service, &request),
            ToWorker::DatagramResolved { service, token, result } => {
                let result = result.as_deref().map_err(|error| *error);
                self.call(now, engine, service, |s, cx| s.datagram_resolved(cx, token, result));
            }
            ToWorker::PathResolved { service, token, path } => {
                self.call(now, engine, service, |s, cx| s.path_resolved(cx, token, path.as_deref()));
            }
            ToWorker::Connected { conn } => {
                if let Some(connection) = self.connections.get(&conn) {
                    engine.established(connection.qpn);
                }
                self.connected(now, engine, conn);
            }
            ToWorker::Disconnected { conn, reason } => self.disconnected(now, engine, conn, reason),
            ToWorker::CheckInUse { conn, request } => self.check_in_use(now, engine, conn, request),
            ToWorker::PeerMacChanged { conn, mac } => {
                if let Some(connection) = self.connections.get(&conn) {
                    // A queue pair that is in error has no use for it.
                    let _ = engine.set_path(connection.qpn, mac);
                }
            }
            ToWorker::StreamOpened { service, stream, local, peer } => {
                self.stats.streams_opened.inc();
                self.streams.insert(stream, service);
                self.call(now, engine, service, |s, cx| s.stream_opened(cx, stream, local, peer));
                self.send(ToControl::StreamTaken { stream, len: 0 });
            }
            ToWorker::StreamData { stream, data } => {
                if let Some(&service) = self.streams.get(&stream) {
                    self.call(now, engine, service, |s, cx| s.stream_data(cx, stream, &data));
                }
                self.send(ToControl::StreamTaken { stream, len: data.len() });
            }
            ToWorker::StreamClosed { stream, reset } => {
                if let Some(service) = self.streams.remove(&stream) {
                    self.stats.streams_closed.inc();
                    self.call(now, engine, service, |s, cx| s.stream_closed(cx, stream, reset));
                }
            }
            ToWorker::GroupListener { service, listener } => {
                self.call(now, engine, service, |s, cx| s.group_listener(cx, &listener));
            }
            ToWorker::GroupMembers { port, group, workers } => self.groups.set(port, group, workers),
            ToWorker::InstanceMessage(message) => self.deliver_instance_message(now, engine, message),
            ToWorker::Inspect(question) => question.answer(now, engine, self),
            ToWorker::Change(change) => self.change(now, engine, *change),
        }
    }

    fn handle_qp_event(&mut self, now: Instant, engine: &mut Engine, event: AsyncEvent) {
        let owner = match event {
            AsyncEvent::CommunicationEstablished { qpn } => {
                if let Some(&conn) = self.by_qp.get(&qpn) {
                    self.send(ToControl::CommunicationEstablished { conn });
                    self.connected(now, engine, conn);
                    return;
                }
                self.objects.owner_of_qp(qpn)
            }
            AsyncEvent::QpError { qpn, cause } => {
                self.stats.qp_errors.inc();
                self.log_qp_error(now, engine, qpn, cause);
                self.report_qp_error(now, engine, qpn, cause);
                if let Some(&conn) = self.by_qp.get(&qpn) {
                    self.send(ToControl::Disconnect { conn });
                    self.disconnected(now, engine, conn, EndReason::QueuePair(cause));
                    return;
                }
                self.objects.owner_of_qp(qpn)
            }
            AsyncEvent::SendQueueDrained { qpn } | AsyncEvent::LastWqeReached { qpn } => self.objects.owner_of_qp(qpn),
            AsyncEvent::SrqLimitReached { srq } => self.objects.owner_of_srq(srq),
            AsyncEvent::CqError { cq } => self.cqs.iter().position(|service| service.cq == cq),
        };
        // An object that was destroyed since has no owner.
        if let Some(service) = owner {
            self.call(now, engine, service, |s, cx| s.async_event(cx, &event));
        }
    }

    /// The connection of a queue pair.
    fn connection_of(&self, qpn: Qpn) -> Option<(ConnId, &Connection)> {
        let conn = *self.by_qp.get(&qpn)?;
        Some((conn, self.connections.get(&conn)?))
    }

    /// The name of the service that created a queue pair.
    fn service_of(&self, qpn: Qpn) -> Option<&'static str> {
        self.objects.owner_of_qp(qpn).map(|service| self.name_of(service, qpn))
    }

    /// The name of `service` for one of its queue pairs.
    fn name_of(&self, service: usize, qpn: Qpn) -> &'static str {
        self.objects.name_of(qpn).unwrap_or(self.names[service])
    }

    fn send(&self, message: ToControl) {
        // The control side outlives the workers' loops.
        let _ = self.mailbox.outbox.send(message);
    }
}
