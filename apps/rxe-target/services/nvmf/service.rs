//! The service on one worker: connections, completions, messages from the other instances.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use rxe_nvmf::controller::{Event, IoCounts, Portal, QueueKey};
use rxe_nvmf::io::Submission;
use rxe_nvmf::wire::Nqn;
use rxe_nvmf::wire::private_data::{QueueRequest, RejectStatus};
use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{Access, ProtectionDomain, Qpn, QueuePair, Rc, WcOpcode, WcStatus, WorkCompletion};
use rxe_proto::wire::PortId;
use rxe_proto::wire::cm::RejReason;
use rxe_service::{Accept, Context, Decision, EndReason, Outstanding, QpMap, Service};
use rxe_storage::{Completion, Ring, RingConfig, Storage, StorageError};
use slab::Slab;

use super::admin::{CONNECT, PendingConnect};
use super::command::Command;
use super::namespaces::{Namespaces, SubsystemView};
use super::queue::{Outgoing, Queue, Role};
use super::receives::Receives;
use super::shared::Shared;
use super::staging::StagingPool;
use crate::config::nvmf::NvmfConfig;
use crate::services::endpoint::Pool;
use crate::services::metrics::{ServiceMetrics, caller};

/// Interval of reports to the controllers, and of the checks of their timeouts.
const TICK: Duration = Duration::from_millis(250);
/// READs that we have outstanding on a queue pair, at most.
const READS: u8 = 16;
/// Unused memory for receives that is kept for the next queues, in bytes.
const POOLED: usize = 16 << 20;

/// The service on one worker.
pub struct Nvmf {
    pub(super) shared: Arc<Shared>,
    pub(super) metrics: ServiceMetrics,
    pub(super) queues: QpMap<Queue>,
    pub(super) commands: Slab<Command>,
    /// Connects whose data are being fetched.
    pub(super) connects: HashMap<Qpn, PendingConnect>,
    pub(super) staging: StagingPool,
    pub(super) storage: Storage,
    pub(super) waiting_for_room: VecDeque<usize>,
    pub(super) waiting_for_storage: VecDeque<usize>,
    /// Room for a capsule, for copies of small data.
    pub(super) scratch: Box<[u8]>,
    namespaces: Namespaces,
    staging_bytes: usize,
    port: u16,
    completed: Vec<Completion>,
    receives: Pool,
    pd: Option<ProtectionDomain>,
}

/// The key of a queue: its worker and its queue pair.
pub(super) fn key_of(worker: usize, qpn: Qpn) -> QueueKey {
    QueueKey((worker as u64) << 32 | u64::from(qpn.get()))
}

/// The queue pair of a queue.
pub(super) fn qpn_of(key: QueueKey) -> Qpn {
    Qpn::new(key.0 as u32)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn worker_of(key: QueueKey) -> usize {
    (key.0 >> 32) as usize
}

impl Nvmf {
    /// An instance without connections.
    pub fn new(shared: Arc<Shared>, config: &NvmfConfig, metrics: ServiceMetrics) -> Nvmf {
        let scratch = shared.limits().capsule_len(1).max(8192);
        Nvmf {
            shared,
            metrics,
            queues: QpMap::default(),
            commands: Slab::new(),
            connects: HashMap::new(),
            staging: StagingPool::default(),
            storage: Storage::new(None),
            waiting_for_room: VecDeque::new(),
            waiting_for_storage: VecDeque::new(),
            scratch: vec![0; scratch].into(),
            namespaces: Namespaces::default(),
            staging_bytes: config.staging,
            port: config.port,
            completed: Vec::new(),
            receives: Pool::new(POOLED),
            pd: None,
        }
    }

    /// Makes what the queues of this worker share.
    fn prepare(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let pd = cx.device().alloc_pd();
        self.pd = Some(pd);
        self.staging = StagingPool::new(cx, pd, self.staging_bytes).map_err(|error| format!("no staging: {error}"))?;
        if self.shared.needs_ring() {
            let mut ring = Ring::new(RingConfig::default()).map_err(|error| error.to_string())?;
            self.staging.pin(&mut ring);
            self.storage = Storage::new(Some(ring));
        }
        Ok(())
    }

    /// The namespaces of a subsystem.
    pub(super) fn view(&mut self, cx: &mut Context<'_>, subsystem: &Nqn) -> Arc<SubsystemView> {
        let Nvmf { namespaces, shared, storage, pd, .. } = self;
        match *pd {
            Some(pd) => namespaces.view(cx, shared, storage, pd, subsystem),
            // Not reached: without it no connection is accepted.
            None => Arc::default(),
        }
    }

    /// Sends on a queue; an error costs the host the connection.
    pub(super) fn push(&mut self, cx: &mut Context<'_>, qpn: Qpn, outgoing: Outgoing) {
        let Some(queue) = self.queues.get_mut(&qpn) else { return };
        if let Err(error) = queue.push(cx, outgoing)
            && !queue.ending
        {
            queue.ending = true;
            self.metrics.fail(cx.now(), queue.client, error);
            cx.disconnect(queue.conn);
        }
    }

    /// A host breaks the rules, or cannot be served: its controller ends.
    pub(super) fn fault(&mut self, cx: &mut Context<'_>, qpn: Qpn, what: std::fmt::Arguments<'_>) {
        let Some(queue) = self.queues.get_mut(&qpn).filter(|queue| !queue.ending) else { return };
        queue.ending = true;
        self.metrics.nonsense(cx.now(), queue.client, what);
        cx.disconnect(queue.conn);
        if let Role::Admin { controller, .. } | Role::Io { controller, .. } = queue.role {
            self.shared.target().fail(controller);
            self.take_events(cx);
        }
    }

    /// Logs an error of the storage.
    pub(super) fn note_storage_error(&self, cx: &mut Context<'_>, nsid: u32, error: StorageError) {
        if self.metrics.admits(cx.now()) {
            tracing::error!("nvmf: namespace {nsid}: {error}");
        }
    }

    fn counts(&mut self, qpn: Qpn) -> Option<&mut IoCounts> {
        match &mut self.queues.get_mut(&qpn)?.role {
            Role::Io { counts, .. } => Some(counts),
            _ => None,
        }
    }

    pub(super) fn count_read(&mut self, qpn: Qpn, bytes: u32) {
        if let Some(counts) = self.counts(qpn) {
            counts.reads += 1;
            counts.bytes_read += u64::from(bytes);
        }
    }

    pub(super) fn count_write(&mut self, qpn: Qpn, bytes: u32) {
        if let Some(counts) = self.counts(qpn) {
            counts.writes += 1;
            counts.bytes_written += u64::from(bytes);
        }
    }

    /// Carries out what the controllers want done.
    pub(super) fn take_events(&mut self, cx: &mut Context<'_>) {
        loop {
            let Some(event) = self.shared.target().next_event() else { return };
            self.distribute(cx, event);
        }
    }

    /// Handles the part of an event that is about queues of this worker, and sends the rest to their workers.
    fn distribute(&mut self, cx: &mut Context<'_>, event: Event) {
        let own = cx.worker();
        let keys = match &event {
            Event::Respond { queue, .. } => vec![*queue],
            Event::TearDown { queues, .. } | Event::Ready { queues, .. } | Event::NamespacesChanged { queues, .. } => {
                queues.clone()
            }
        };
        let mut workers: Vec<usize> = keys.into_iter().map(worker_of).collect();
        workers.sort_unstable();
        workers.dedup();
        for worker in workers {
            if worker == own {
                self.apply(cx, &event);
            } else {
                cx.send_to_instance(worker, Box::new(event.clone()));
            }
        }
    }

    /// Handles what an event says about queues of this worker.
    fn apply(&mut self, cx: &mut Context<'_>, event: &Event) {
        let own = cx.worker();
        let own = |queues: &[QueueKey]| -> Vec<Qpn> {
            queues.iter().filter(|key| worker_of(**key) == own).map(|key| qpn_of(*key)).collect()
        };
        match event {
            Event::Respond { queue, response } => self.respond_held(cx, *queue, *response),
            Event::TearDown { reason, queues, .. } => {
                for qpn in own(queues) {
                    let Some(queue) = self.queues.get_mut(&qpn).filter(|queue| !queue.ending) else { continue };
                    queue.ending = true;
                    self.metrics.give_up_as(cx.now(), queue.client, reason);
                    cx.disconnect(queue.conn);
                }
            }
            Event::Ready { queues, ready, .. } => {
                for qpn in own(queues) {
                    if let Some(Role::Io { queue, .. }) = self.queues.get_mut(&qpn).map(|queue| &mut queue.role) {
                        queue.set_ready(*ready);
                    }
                }
            }
            Event::NamespacesChanged { subsystem, queues } => {
                let changed = self.view(cx, subsystem);
                for qpn in own(queues) {
                    if let Some(Role::Io { view, .. }) = self.queues.get_mut(&qpn).map(|queue| &mut queue.role) {
                        *view = Arc::clone(&changed);
                    }
                }
            }
        }
    }

    /// A capsule has arrived.
    fn received(&mut self, cx: &mut Context<'_>, qpn: Qpn, slot: u16, len: usize) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let Some(queue) = self.queues.get_mut(&qpn) else { return self.scratch = scratch };
        let capsule = queue.receives().copy(slot, len, &mut scratch);
        match (capsule, &mut queue.role) {
            (None, _) => {}
            (Some(capsule), Role::New) => {
                let capsule = capsule.to_vec();
                self.scratch = scratch;
                return self.first(cx, qpn, slot, &capsule);
            }
            (Some(capsule), Role::Admin { controller, .. }) => {
                let (controller, capsule) = (*controller, capsule.to_vec());
                self.scratch = scratch;
                return self.admin(cx, qpn, slot, controller, &capsule);
            }
            (Some(capsule), Role::Io { queue: entries, view, .. }) => {
                let view = Arc::clone(view);
                let submission = entries.submit(capsule, &view.views);
                self.scratch = scratch;
                return match submission {
                    Ok(Submission::Execute(request)) => self.begin(cx, qpn, slot, &view, request),
                    Ok(Submission::Refuse(response)) => {
                        self.push(cx, qpn, Outgoing::Respond { slot, data: None, response, piece: None });
                    }
                    Err(fault) => self.fault(cx, qpn, format_args!("{fault}")),
                };
            }
        }
        self.scratch = scratch;
    }

    /// Continues commands that wait for room.
    fn resume(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.waiting_for_storage.len() {
            let Some(index) = self.waiting_for_storage.pop_front() else { break };
            self.execute(cx, index);
        }
        while let Some(index) = self.waiting_for_room.pop_front() {
            let before = self.waiting_for_room.len();
            self.stage_data(cx, index);
            if self.waiting_for_room.len() > before {
                // There is still no room: it keeps its place.
                self.waiting_for_room.rotate_right(1);
                return;
            }
        }
    }

    /// Lists the target's addresses in the discovery log.
    fn announce(&self, cx: &Context<'_>) {
        let addresses = cx.ports().iter().flat_map(|port| &port.addresses);
        // Others than hosts of the same link can use those alone.
        let usable = addresses.filter(|address| !is_link_local(**address));
        let portals = usable.map(|&address| Portal { address, port: self.port }).collect();
        self.shared.target().set_portals(portals);
    }

    fn refuse(&self, cx: &mut Context<'_>, request: &ConnectRequest, status: RejectStatus) -> Decision {
        self.metrics.refuse(cx.now(), caller(request), "a connection", status);
        Decision::Reject { reason: RejReason::ConsumerDefined, private_data: status.to_bytes().to_vec() }
    }

    /// A queue pair with receives for a host.
    fn open(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Result<QueuePair<Rc>, RejectStatus> {
        let wanted = QueueRequest::parse(&request.private_data)?;
        let accept = self.shared.limits().accept(&wanted)?;
        if request.responder_resources == 0 {
            return Err(RejectStatus::InvalidInboundReads);
        }
        let (Some(pd), true) = (self.pd, self.staging.is_usable()) else { return Err(RejectStatus::NoResources) };
        let len = self.shared.limits().capsule_len(wanted.qid);
        let receives = Receives::new(cx, &mut self.receives, pd, accept.controller_receives, len)
            .map_err(|_| RejectStatus::NoResources)?;
        let attr = cx.qp_attr().with_caps(Queue::caps(accept.controller_receives));
        let qp: QueuePair<Rc> = match cx.device().create_qp_in_init(pd, attr, Access::empty()) {
            Ok(qp) => qp,
            Err(_) => {
                receives.close(cx, &mut self.receives);
                return Err(RejectStatus::NoResources);
            }
        };
        let queue = Queue::new(request.conn, caller(request), qp, receives);
        let key = key_of(cx.worker(), qp.qpn());
        let posted = queue.post_receives(cx).map_err(|_| RejectStatus::NoResources);
        match posted.and_then(|()| self.shared.target().accept(cx.now(), key, &wanted)) {
            Ok(_) => {
                self.queues.insert(qp.qpn(), queue);
                Ok(qp)
            }
            Err(status) => {
                let _ = cx.device().destroy_qp(qp);
                queue.close().0.close(cx, &mut self.receives);
                Err(status)
            }
        }
    }
}

impl Service for Nvmf {
    fn start(&mut self, cx: &mut Context<'_>) {
        if let Err(error) = self.prepare(cx) {
            tracing::error!("nvmf: worker {} refuses connections: {error}", cx.worker());
            self.staging = StagingPool::default();
        }
        self.announce(cx);
        cx.set_timer(TICK, 0);
    }

    fn port_changed(&mut self, cx: &mut Context<'_>, _port: PortId) {
        self.announce(cx);
        self.take_events(cx);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        match self.open(cx, request) {
            Ok(qp) => {
                self.metrics.connections.inc();
                let receives = self.queues.get(&qp.qpn()).map_or(0, |queue| queue.receives().count());
                let answer = rxe_nvmf::wire::private_data::QueueAccept { controller_receives: receives };
                Decision::Accept(Accept {
                    initiator_depth: request.responder_resources.min(READS),
                    private_data: answer.to_bytes().to_vec(),
                    ..Accept::new(qp)
                })
            }
            Err(status) => self.refuse(cx, request, status),
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qpn: Qpn, reason: EndReason) {
        let Some(queue) = self.queues.remove(&qpn) else { return };
        self.metrics.gone(cx.now(), queue.client, reason);
        let commands: Vec<usize> = queue.commands().collect();
        for index in commands {
            self.abandon(index);
        }
        if let Some(pending) = self.connects.remove(&qpn) {
            self.staging.free(pending.piece);
        }
        let (receives, pieces) = queue.close();
        for piece in pieces {
            self.staging.free(piece);
        }
        receives.close(cx, &mut self.receives);
        self.shared.target().disconnected(key_of(cx.worker(), qpn));
        self.take_events(cx);
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let Some(queue) = self.queues.get_mut(&wc.qpn) else { return };
        if queue.ending {
            return;
        }
        if wc.status != WcStatus::Success {
            // The connection ends too; the other queues of the controller must not go on without this one's commands.
            if wc.status != WcStatus::WrFlushErr {
                self.fault(cx, wc.qpn, format_args!("a transfer failed: {}", wc.status));
            }
            return;
        }
        if wc.opcode == WcOpcode::Recv {
            return self.received(cx, wc.qpn, wc.wr_id as u16, wc.byte_len as usize);
        }
        match queue.sent(cx, wc.wr_id) {
            Ok((fetched, piece)) => {
                if let Some(piece) = piece {
                    self.staging.free(piece);
                }
                match fetched {
                    Some(number) if number & CONNECT != 0 => self.connect_fetched(cx, wc.qpn),
                    Some(index) => self.fetched(cx, index),
                    None => {}
                }
            }
            Err(error) => {
                queue.ending = true;
                self.metrics.fail(cx.now(), queue.client, error);
                cx.disconnect(queue.conn);
            }
        }
    }

    fn wants_poll(&self) -> bool {
        true
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Outstanding {
        let mut completed = std::mem::take(&mut self.completed);
        if let Err(error) = self.storage.turn(&mut completed)
            && self.metrics.admits(cx.now())
        {
            tracing::error!("nvmf: {error}");
        }
        for Completion { token, result } in completed.drain(..) {
            self.stored(cx, token as usize, result);
        }
        self.completed = completed;
        self.resume(cx);
        Outstanding(self.storage.outstanding())
    }

    fn instance_message(&mut self, cx: &mut Context<'_>, _from: usize, message: Box<dyn Any + Send>) {
        if let Ok(event) = message.downcast::<Event>() {
            self.apply(cx, &event);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        let mut target = self.shared.target();
        for queue in self.queues.values_mut() {
            if let Role::Io { controller, counts, .. } = &mut queue.role
                && *counts != IoCounts::default()
            {
                target.record_io(cx.now(), *controller, std::mem::take(counts));
            }
        }
        if cx.worker() == 0 {
            target.poll(cx.now());
        }
        drop(target);
        self.take_events(cx);
        cx.set_timer(TICK, 0);
    }
}
