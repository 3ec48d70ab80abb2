//! The services of one worker: who gets which completion, connection, stream and timer.

mod events;
mod inspect;
mod outbound;
mod watch;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use rxe_proto::cm::{AcceptParams, ConnId, ConnectRequest};
use rxe_proto::mem::Allocator;
use rxe_proto::transport::{
    AsyncEvent, CqError, Engine, QpError, QpTransition, QpType, Qpn, RtrAttr, RtsAttr, WorkCompletion,
};
use rxe_proto::wire::cm::{CmTransport, RejReason};
use rxe_proto::wire::{Gid, Path, PortId, Psn, udp_source_port};
use rxe_proto::{Instant, counters};

use crate::context::verbs::{Objects, ServiceCq};
use crate::context::{Context, ServiceTimers};
use crate::event_log::EventLog;
use crate::local_port::LocalPort;
use crate::mailbox::WorkerMailbox;
use crate::messages::{EndReason, StreamId, ToControl, ToWorker};
use crate::multicast::{GroupMembers, WorkerSet};
use crate::qp_map::QpMap;
use crate::regions::NamedRegion;
use crate::seeds::Seeds;
use crate::service::{Accept, Decision, Service};

counters! {
    /// What happened to connections and streams on one worker.
    pub struct ServiceStats {
        /// Connection requests that services accepted.
        connections_accepted,
        /// Connection requests that services refused.
        connections_refused,
        /// Connections that services asked for.
        connections_asked,
        /// Connections that came up.
        connections_established,
        /// Connections that are over, or came to nothing after they were accepted or asked for.
        connections_ended,
        /// Questions of peers for datagram queue pairs that services answered with one.
        datagrams_accepted,
        /// Questions of peers for datagram queue pairs that services refused.
        datagrams_refused,
        /// Queue pairs that went to the error state.
        qp_errors,
        /// TCP streams opened.
        streams_opened,
        /// TCP streams over.
        streams_closed,
        /// Work completions handed to services.
        completions,
        /// Work completions thrown away, as their completion queue belongs to no service.
        completions_unclaimed,
        /// Queue pairs that services had not given back when the adapter stopped.
        queue_pairs_left,
        /// Regions and windows that services still had when the adapter stopped, those kept for later peers included.
        regions_left,
        /// Named regions whose file was cut short by another process.
        regions_lost,
    }
}

/// Completions taken from a queue at once.
const COMPLETION_BATCH: usize = 32;

/// How long a peer that is not ready should wait before it sends again: code 12 is 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;

struct Connection {
    service: usize,
    qpn: Qpn,
    connected: bool,
    /// The peer's address and port, where it said so.
    peer: Option<SocketAddr>,
    /// When it was asked for.
    since: Instant,
}

/// The services of one worker.
pub struct ServiceHost {
    worker: usize,
    services: Vec<Box<dyn Service>>,
    /// Their names as a whole.
    names: Vec<&'static str>,
    cqs: Vec<ServiceCq>,
    objects: Objects,
    connections: HashMap<ConnId, Connection>,
    by_qp: QpMap<ConnId>,
    streams: HashMap<StreamId, usize>,
    groups: GroupMembers,
    timers: ServiceTimers,
    allocator: Arc<dyn Allocator>,
    regions: Vec<NamedRegion>,
    ports: Arc<[LocalPort]>,
    mailbox: WorkerMailbox,
    stats: Arc<ServiceStats>,
    events: EventLog,
    watches: watch::Watches,
    completions: Vec<WorkCompletion>,
    /// Where starting PSNs come from.
    psns: Seeds,
    /// Keys that there were when the services had started.
    first_keys: usize,
}

impl ServiceHost {
    #[expect(clippy::too_many_arguments, reason = "made in one place, from parts that have nothing in common")]
    /// The services and their names, with what they may reach; `engine` gets a completion queue for each.
    ///
    /// # Errors
    /// The engine has no completion queue left.
    pub fn new(
        worker: usize,
        (names, services): (Vec<&'static str>, Vec<Box<dyn Service>>),
        engine: &mut Engine,
        allocator: Arc<dyn Allocator>,
        regions: Vec<NamedRegion>,
        ports: Arc<[LocalPort]>,
        mailbox: WorkerMailbox,
        stats: Arc<ServiceStats>,
        seed: [u8; 32],
    ) -> Result<ServiceHost, CqError> {
        let cqs = services.iter().map(|_| Ok(ServiceCq::new(engine.create_cq(1)?)));
        let cqs = cqs.collect::<Result<_, CqError>>()?;
        Ok(ServiceHost {
            worker,
            services,
            names,
            cqs,
            objects: Objects::default(),
            connections: HashMap::new(),
            by_qp: QpMap::default(),
            streams: HashMap::new(),
            groups: GroupMembers::default(),
            timers: ServiceTimers::default(),
            allocator,
            regions,
            ports,
            mailbox,
            stats,
            events: EventLog::new("events of connections"),
            watches: watch::Watches::default(),
            completions: Vec::with_capacity(COMPLETION_BATCH),
            psns: Seeds::new(seed),
            first_keys: 0,
        })
    }

    /// Calls every service's `start`.
    pub fn start(&mut self, now: Instant, engine: &mut Engine) {
        for service in 0..self.services.len() {
            self.call(now, engine, service, |s, cx| s.start(cx));
        }
        self.first_keys = engine.keys().len();
    }

    /// Counts what is still there at the end.
    pub fn count_left(&self, engine: &Engine) {
        self.stats.queue_pairs_left.add(engine.qp_count() as u64);
        self.stats.regions_left.add(engine.keys().len().saturating_sub(self.first_keys) as u64);
    }

    /// Takes in what control, and those who look after the adapter, have to say. Returns whether there was something.
    pub fn read_mail(&mut self, now: Instant, engine: &mut Engine) -> bool {
        let mut busy = false;
        while let Ok(message) = self.mailbox.inbox.try_recv() {
            busy = true;
            self.handle_message(now, engine, message);
        }
        self.poll_watches(now, engine);
        busy
    }

    /// Delivers what is due, but for mail: completions, events of queue pairs, timers. Returns whether there was anything.
    pub fn poll(&mut self, now: Instant, engine: &mut Engine) -> bool {
        let mut busy = false;
        // Events first: a service hears that a connection is up before it hears of the first message on it.
        while let Some(event) = engine.poll_event() {
            busy = true;
            self.handle_qp_event(now, engine, event);
        }
        busy |= self.deliver_completions(now, engine);
        // One that is set for now by a timer's call is for the next turn.
        for _ in 0..self.timers.len() {
            let Some((service, token)) = self.timers.pop_due(now) else { break };
            busy = true;
            self.call(now, engine, service, |s, cx| s.timer(cx, token));
        }
        busy
    }

    /// The named regions.
    pub fn regions(&self) -> &[NamedRegion] {
        &self.regions
    }

    /// Counters.
    pub fn stats(&self) -> &ServiceStats {
        &self.stats
    }

    /// The workers whose services have members of a multicast group.
    pub fn group_members(&self, port: PortId, group: Gid) -> WorkerSet {
        self.groups.get(port, group)
    }

    fn call<R>(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        service: usize,
        f: impl FnOnce(&mut dyn Service, &mut Context<'_>) -> R,
    ) -> R {
        let mut context = Context {
            now,
            worker: self.worker,
            service,
            engine,
            cq: &mut self.cqs[service],
            objects: &mut self.objects,
            psns: &mut self.psns,
            ports: &self.ports,
            allocator: &*self.allocator,
            regions: &self.regions,
            outbox: &self.mailbox.outbox,
            timers: &mut self.timers,
        };
        f(&mut *self.services[service], &mut context)
    }

    fn deliver_completions(&mut self, now: Instant, engine: &mut Engine) -> bool {
        let mut busy = false;
        let mut most = None;
        while let Some(cq) = engine.poll_ready() {
            // No more than can have waited before: what is posted to a queue pair in error completes at once, so a service
            // that answers each completion with another request would never come to an end. The rest is for the next turn.
            let left = most.get_or_insert_with(|| self.cqs.iter().map(ServiceCq::depth).sum::<usize>());
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
                self.connect(now, engine, service, &request, path);
            }
            ToWorker::Asked { service, conn, qp } => self.asked(now, service, conn, qp),
            ToWorker::NotAsked { service, conn, qp, reason } => {
                self.not_asked(now, engine, service, (conn, qp), reason);
            }
            ToWorker::Granted { reply, terms } => self.granted(now, engine, &reply, &terms),
            ToWorker::Rejected { conn, rej } => self.rejected(now, engine, conn, &rej),
            ToWorker::DatagramRequest { service, request } => self.datagram_request(now, engine, service, &request),
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
            ToWorker::WatchConnection { conn, request } => self.watch(now, engine, conn, request),
            ToWorker::PeerMoved { conn, mac } => {
                if let Some(connection) = self.connections.get(&conn) {
                    // A queue pair that is in error has no use for it.
                    let _ = engine.set_path(connection.qpn, mac);
                }
            }
            ToWorker::StreamOpened { service, stream, local, peer } => {
                self.stats.streams_opened.inc();
                self.streams.insert(stream, service);
                self.call(now, engine, service, |s, cx| s.stream_opened(cx, stream, local, peer));
                self.tell(ToControl::StreamTaken { stream, len: 0 });
            }
            ToWorker::StreamData { stream, data } => {
                if let Some(&service) = self.streams.get(&stream) {
                    self.call(now, engine, service, |s, cx| s.stream_data(cx, stream, &data));
                }
                self.tell(ToControl::StreamTaken { stream, len: data.len() });
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
            ToWorker::Inspect(question) => self.inspect(now, engine, question),
        }
    }

    fn connect(&mut self, now: Instant, engine: &mut Engine, service: usize, request: &ConnectRequest, path: Path) {
        let conn = request.conn;
        match self.call(now, engine, service, |s, cx| s.connect_request(cx, request)) {
            Decision::Reject { reason, mut private_data } => {
                self.stats.connections_refused.inc();
                private_data.truncate(148);
                self.tell(ToControl::Reject { conn, reason, private_data });
            }
            Decision::Accept(mut accept) => {
                (accept.responder_resources, accept.initiator_depth) =
                    request.negotiate(accept.responder_resources, accept.initiator_depth);
                let starting_psn = self.psns.psn();
                match self.bring_up(engine, request, path, &accept, starting_psn) {
                    Ok(()) => {
                        self.stats.connections_accepted.inc();
                        let connection = Connection {
                            service,
                            qpn: accept.qp,
                            connected: false,
                            peer: Some(request.source.into()),
                            since: now,
                        };
                        self.connections.insert(conn, connection);
                        self.by_qp.insert(accept.qp, conn);
                        let private_data = std::mem::take(&mut accept.private_data);
                        let params = AcceptParams {
                            private_data,
                            ..AcceptParams::for_request(
                                request,
                                accept.qp,
                                starting_psn,
                                accept.responder_resources,
                                accept.initiator_depth,
                            )
                        };
                        self.tell(ToControl::Accept { conn, params });
                    }
                    Err(error) => {
                        if self.events.admits(now) {
                            let peer = request.source.0;
                            tracing::warn!(%peer, %error, "the queue pair does not take the REQ's values");
                        }
                        self.stats.connections_refused.inc();
                        // The service thinks that it has a connection: tell it otherwise.
                        self.call(now, engine, service, |s, cx| {
                            s.disconnected(cx, conn, accept.qp, EndReason::Unacceptable);
                        });
                        self.destroy(now, engine, service, accept.qp);
                        self.tell(ToControl::Reject {
                            conn,
                            reason: match error {
                                QpError::WrongType(_) => RejReason::InvalidTransportType,
                                _ => RejReason::ConsumerDefined,
                            },
                            private_data: error.to_string().into_bytes(),
                        });
                    }
                }
            }
        }
    }

    /// Takes the queue pair to RTS with what REQ and REP agree on. It can receive before the REP leaves, because
    /// data may arrive before, or instead of, the RTU.
    fn bring_up(
        &mut self,
        engine: &mut Engine,
        request: &ConnectRequest,
        mut path: Path,
        accept: &Accept,
        rq_psn: Psn,
    ) -> Result<(), QpError> {
        let qp_type = engine.query_qp(accept.qp).ok_or(QpError::Unknown(accept.qp))?.qp_type;
        let wanted = match request.transport {
            CmTransport::Uc => QpType::Uc,
            _ => QpType::Rc,
        };
        if qp_type != wanted {
            return Err(QpError::WrongType(qp_type));
        }
        path.udp_src_port = udp_source_port(request.flow_label, accept.qp.get(), request.remote_qpn);
        engine.modify_qp(
            accept.qp,
            QpTransition::ToRtr(RtrAttr {
                path,
                path_mtu: request.path_mtu,
                dest_qpn: Qpn::new(request.remote_qpn),
                rq_psn,
                max_dest_rd_atomic: accept.responder_resources,
                min_rnr_timer: MIN_RNR_TIMER,
            }),
        )?;
        engine.modify_qp(
            accept.qp,
            QpTransition::ToRts(RtsAttr {
                sq_psn: request.starting_psn,
                timeout: request.local_ack_timeout,
                retry_cnt: request.retry_count,
                rnr_retry: self.objects.rnr_retry(accept.qp),
                max_rd_atomic: accept.initiator_depth,
            }),
        )
    }

    fn connected(&mut self, now: Instant, engine: &mut Engine, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        if connection.connected {
            return;
        }
        connection.connected = true;
        let (service, qpn) = (connection.service, connection.qpn);
        self.stats.connections_established.inc();
        self.log_connected(now, engine, service, qpn);
        self.call(now, engine, service, |s, cx| s.connected(cx, conn, qpn));
    }

    fn disconnected(&mut self, now: Instant, engine: &mut Engine, conn: ConnId, reason: EndReason) {
        let Some(connection) = self.connections.remove(&conn) else { return };
        let Connection { service, qpn, .. } = connection;
        self.by_qp.remove(&qpn);
        self.log_disconnected(now, engine, &connection, reason);
        self.stats.connections_ended.inc();
        // Outstanding work is flushed first, so that the service sees how each request ended.
        let _ = engine.modify_qp(qpn, QpTransition::ToError);
        self.deliver_completions(now, engine);
        self.call(now, engine, service, |s, cx| s.disconnected(cx, conn, qpn, reason));
        self.destroy(now, engine, service, qpn);
    }

    fn destroy(&mut self, now: Instant, engine: &mut Engine, service: usize, qpn: Qpn) {
        self.objects.forget_qp(qpn, &mut self.cqs[service]);
        // It may be gone already, if the service destroyed it.
        let _ = engine.destroy_qp(now, qpn);
    }

    fn handle_qp_event(&mut self, now: Instant, engine: &mut Engine, event: AsyncEvent) {
        let owner = match event {
            AsyncEvent::CommunicationEstablished { qpn } => {
                if let Some(&conn) = self.by_qp.get(&qpn) {
                    self.tell(ToControl::CommunicationEstablished { conn });
                    self.connected(now, engine, conn);
                    return;
                }
                self.objects.owner_of_qp(qpn)
            }
            AsyncEvent::QpError { qpn, cause } => {
                self.stats.qp_errors.inc();
                self.log_qp_error(now, engine, qpn, cause);
                if let Some(&conn) = self.by_qp.get(&qpn) {
                    self.tell(ToControl::Disconnect { conn });
                    self.disconnected(now, engine, conn, EndReason::QueuePair(cause));
                    return;
                }
                self.objects.owner_of_qp(qpn)
            }
            AsyncEvent::SendQueueDrained { qpn } | AsyncEvent::LastWqeReached { qpn } => self.objects.owner_of_qp(qpn),
            AsyncEvent::SrqLimitReached { srq } => self.objects.owner_of_srq(srq),
        };
        // Of something that was destroyed since, there is nobody left to tell.
        if let Some(service) = owner {
            self.call(now, engine, service, |s, cx| s.async_event(cx, &event));
        }
    }

    /// The connection of a queue pair.
    fn connection_of(&self, qpn: Qpn) -> Option<(ConnId, &Connection)> {
        let conn = *self.by_qp.get(&qpn)?;
        Some((conn, self.connections.get(&conn)?))
    }

    /// The name of the service that made a queue pair.
    fn service_of(&self, qpn: Qpn) -> Option<&'static str> {
        self.objects.owner_of_qp(qpn).map(|service| self.name_of(service, qpn))
    }

    /// The name under which `service` has a queue pair.
    fn name_of(&self, service: usize, qpn: Qpn) -> &'static str {
        self.services[service].name_of(qpn).unwrap_or(self.names[service])
    }

    fn connection_count(&self) -> usize {
        self.connections.len()
    }

    fn service_count(&self) -> usize {
        self.services.len()
    }

    fn tell(&self, message: ToControl) {
        // Control outlives the workers' loops.
        let _ = self.mailbox.outbox.send(message);
    }
}

#[cfg(test)]
mod tests;
