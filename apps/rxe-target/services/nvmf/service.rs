//! The service on one worker: connections, completions, messages from the other instances.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use rxe_nvmf::controller::{Event, IoCounts, Portal};
use rxe_nvmf::io::Submission;
use rxe_nvmf::wire::private_data::{QueueRequest, RejectStatus};
use rxe_nvmf::wire::{Nqn, Status};
use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{Access, Qpn, QueuePair, Rc, WcOpcode, WcStatus, WorkCompletion};
use rxe_proto::wire::PortId;
use rxe_proto::wire::cm::RejReason;
use rxe_service::{Accept, Context, Decision, EndReason, Outstanding, Service};

use super::admission::Admission;
use super::command::{CONNECT, remote};
use super::hosts::HostName;
use super::instance::{Nvmf, count_read, key_of, worker_of};
use super::queue::{Acknowledged, Outgoing, Queue, Role};
use super::quiet::{Quiesce, Quiet};
use super::receives::Receives;
use crate::services::metrics::caller;

/// The request of management for the state of the admission, a list of [`NvmfShare`](rxe_inspect::nvmf::NvmfShare).
pub const ADMISSION: &str = "admission";
/// Interval of reports to the controllers, and of the checks of their timeouts.
const TICK: Duration = Duration::from_millis(250);
/// READs that we have outstanding on a queue pair, at most.
const READS: u8 = 16;

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

impl Nvmf {
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
            (Some(capsule), Role::Io { queue: entries, view, counts, .. }) => {
                let submission = entries.submit(capsule, &view.views);
                self.scratch = scratch;
                let request = match submission {
                    Ok(Submission::Execute(request)) => request,
                    Ok(Submission::Refuse(response)) => {
                        return self.push(cx, qpn, Outgoing::Respond { slot, data: None, response, piece: None });
                    }
                    Err(fault) => return self.fault(cx, qpn, format_args!("{fault}")),
                };
                let Some(read) = view.direct_read(&request) else {
                    let view = Arc::clone(view);
                    return self.begin(cx, qpn, slot, &view, request);
                };
                self.namespaces.begin_direct(&read);
                count_read(counts, read.from.length);
                let response = entries.complete(request.tag, Status::SUCCESS);
                let data = Some((read.from, remote(read.to)));
                let respond = Outgoing::Respond { slot, data, response, piece: None };
                return queue.push(cx, respond).unwrap_or_else(|error| self.post_failed(cx, qpn, error));
            }
        }
        self.scratch = scratch;
    }

    /// Continues commands that have waited for admission.
    fn resume(&mut self, cx: &mut Context<'_>) {
        while let Some((index, grant)) = self.admission.next_io() {
            self.stage_data(cx, index, grant);
        }
        while let Some((work, piece)) = self.admission.next_admin() {
            self.execute_admin(cx, &work, piece);
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
        let host = caller(request).ip();
        if !self.shared.take_waiting(host) {
            self.metrics.share_refused.inc();
            return Err(RejectStatus::NoResources);
        }
        let opened = self.open_queue(cx, request, &wanted, accept.controller_receives);
        if opened.is_err() {
            self.shared.waiting().give_back(host, 1);
        }
        opened
    }

    fn open_queue(
        &mut self,
        cx: &mut Context<'_>,
        request: &ConnectRequest,
        wanted: &QueueRequest,
        receives: u16,
    ) -> Result<QueuePair<Rc>, RejectStatus> {
        let (Some(pd), true) = (self.pd, self.admission.is_usable()) else { return Err(RejectStatus::NoResources) };
        let len = self.shared.limits().capsule_len(wanted.qid);
        let attr = cx.qp_attr().with_caps(Queue::caps(receives));
        let receives =
            Receives::new(cx, &mut self.receives, pd, receives, len).map_err(|_| RejectStatus::NoResources)?;
        let qp: QueuePair<Rc> = match cx.device().create_qp_in_init(pd, attr, Access::empty()) {
            Ok(qp) => qp,
            Err(_) => {
                receives.close(cx, &mut self.receives);
                return Err(RejectStatus::NoResources);
            }
        };
        let client = caller(request);
        let host = self.admission.join(HostName::Address(client.ip()));
        let queue = Queue::new(request.conn, client, host, qp, receives);
        let key = key_of(cx.worker(), qp.qpn());
        let posted = queue.post_receives(cx).map_err(|_| RejectStatus::NoResources);
        match posted.and_then(|()| self.shared.target().accept(cx.now(), key, wanted)) {
            Ok(_) => {
                self.queues.insert(qp.qpn(), queue);
                Ok(qp)
            }
            Err(status) => {
                let _ = cx.device().destroy_qp(qp);
                self.admission.quit(host);
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
            self.admission = Admission::default();
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

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qpn: Qpn) {
        // A host may have no keep alive timeout, and be silent for as long as it likes, but must exist.
        let mut device = cx.device();
        let settings = device.query_device().keep_alive.unwrap_or_default();
        // A queue pair in error ends anyway.
        let _ = device.find_qp(qpn).and_then(|qp| device.set_keep_alive(qp, Some(settings)));
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qpn: Qpn, reason: EndReason) {
        if self.queues.get(&qpn).is_some_and(|queue| !queue.ending) {
            self.stop_commands(qpn);
        }
        let Some(queue) = self.queues.remove(&qpn) else { return };
        self.metrics.gone(cx.now(), queue.client, reason);
        match &queue.role {
            Role::New => self.shared.waiting().give_back(queue.client.ip(), 1),
            Role::Admin { .. } => {}
            Role::Io { view, counts, .. } => self.shared.target().record_io(&view.subsystem, *counts),
        }
        self.connects.remove(&qpn);
        self.deferred.retain(|deferred| deferred.queue != qpn);
        let host = queue.host;
        let (receives, pieces) = queue.close();
        for piece in pieces {
            self.admission.free(piece);
        }
        self.admission.withdraw_admin(host, |work| work.queue() == qpn);
        self.admission.quit(host);
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
            Ok(Acknowledged::Fetched(number, piece)) if number & CONNECT != 0 => {
                self.connect_fetched(cx, wc.qpn, piece);
            }
            Ok(Acknowledged::Fetched(index, piece)) => self.fetched(cx, index, piece),
            Ok(Acknowledged::Responses(Some(piece))) => self.admission.free(piece),
            Ok(Acknowledged::Responses(None)) => {}
            Err(error) => self.post_failed(cx, wc.qpn, error),
        }
    }

    /// The request is the NQN of a subsystem that management has changed in [`Shared`](super::shared::Shared), or [`ADMISSION`].
    fn manage(&mut self, cx: &mut Context<'_>, request: &str) -> Result<String, String> {
        if request == ADMISSION {
            return serde_json::to_string(&self.admission.report(cx.worker())).map_err(|error| error.to_string());
        }
        let subsystem: Nqn = request.parse().map_err(|error| format!("{request}: {error}"))?;
        self.take_events(cx);
        self.follow_changes(cx);
        let worker = cx.worker();
        let Some(view) = self.view(cx, &subsystem) else {
            return Err(format!("worker {worker} has no memory for hosts; the log of the target's start says why"));
        };
        match (&view.problem, &self.no_ring) {
            (None, _) => Ok(String::new()),
            (Some(_), Some(why)) => Err(why.clone()),
            (Some(problem), None) => Err(problem.clone()),
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
        // Those of the removal of a namespace are among them.
        for completion in completed.drain(..) {
            self.stored(cx, &completion);
        }
        completed.append(&mut self.completed);
        self.completed = completed;
        if let Some(index) = self.continued.pop_front() {
            self.execute(cx, index);
        }
        self.resume(cx);
        if !self.awaited.is_empty() {
            self.reply_quiet(cx);
        }
        if !self.deferred.is_empty() && self.fenced != self.shared.fence_changes() {
            self.retry_connects(cx);
        }
        Outstanding(self.storage.outstanding() + self.completed.len() + self.continued.len())
    }

    fn instance_message(&mut self, cx: &mut Context<'_>, _from: usize, message: Box<dyn Any + Send>) {
        let message = match message.downcast::<Event>() {
            Ok(event) => return self.apply(cx, &event),
            Err(message) => message,
        };
        match message.downcast::<Quiesce>() {
            Ok(request) => {
                if !self.await_commands(cx, &request) {
                    cx.send_to_instance(worker_of(request.connect), Box::new(Quiet(request.connect)));
                }
            }
            Err(message) => {
                if let Ok(quiet) = message.downcast::<Quiet>() {
                    self.is_quiet(cx, quiet.0);
                }
            }
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        let mut target = self.shared.target();
        for queue in self.queues.values_mut() {
            if let Role::Io { view, counts, .. } = &mut queue.role
                && *counts != IoCounts::default()
            {
                target.record_io(&view.subsystem, std::mem::take(counts));
            }
        }
        if cx.worker() == 0 {
            target.poll(cx.now());
        }
        drop(target);
        self.take_events(cx);
        self.close_removed(cx);
        self.retry_connects(cx);
        cx.set_timer(TICK, 0);
    }
}
