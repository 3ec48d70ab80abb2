//! Commands of queues without Connect and of admin queues.

use rxe_nvmf::controller::{
    AdminData, AdminReply, ConnectError, ControllerId, FirstCommand, QueueKey, Refusal, first_command,
};
use rxe_nvmf::io::IoQueue;
use rxe_nvmf::wire::{CONNECT_DATA_LEN, ConnectData, Cqe, Response, SglDescriptor, Sqe, Status, StatusCode};
use rxe_proto::verbs::Qpn;
use rxe_proto::{Duration, Instant};
use rxe_service::Context;
use zerocopy::FromBytes;

use super::admin_work::AdminWork;
use super::admission::Piece;
use super::command::{CONNECT, DeferredConnect, PendingConnect, remote};
use super::hosts::HostName;
use super::instance::{Nvmf, key_of, qpn_of};
use super::queue::{Outgoing, Role};

/// How long a Connect waits for commands of the host's earlier connection that are in the storage.
const DRAIN: Duration = Duration::from_secs(5);

impl Nvmf {
    /// A command on a queue without Connect. `capsule` is the entry and the data behind it.
    pub(super) fn first(&mut self, cx: &mut Context<'_>, qpn: Qpn, slot: u16, capsule: &[u8]) {
        let Some((sqe, data)) = Sqe::split(capsule) else {
            return self.fault(cx, qpn, format_args!("command capsule of {} bytes", capsule.len()));
        };
        let first = first_command(sqe, data);
        let is_deferred = self.deferred.iter().any(|deferred| deferred.queue == qpn);
        if (is_deferred || self.connects.contains_key(&qpn)) && !matches!(first, FirstCommand::Refuse(_)) {
            return self.fault(cx, qpn, format_args!("a second Connect before the first one is answered"));
        }
        match first {
            FirstCommand::Connect(data) => self.connect(cx, qpn, slot, sqe, data, cx.now() + DRAIN, None),
            FirstCommand::Refuse(response) => self.respond(cx, qpn, slot, response),
            FirstCommand::Fetch(buffer) => {
                self.connects.insert(qpn, PendingConnect { slot, sqe: *sqe });
                self.enter_admin(cx, qpn, AdminWork::Connect { queue: qpn, from: buffer }, CONNECT_DATA_LEN);
            }
        }
    }

    fn enter_admin(&mut self, cx: &mut Context<'_>, qpn: Qpn, work: AdminWork, len: usize) {
        let Some(host) = self.queues.get(&qpn).map(|queue| queue.host) else { return };
        match self.admission.enter_admin(host, work, len) {
            Some((work, piece)) => self.execute_admin(cx, &work, piece),
            None => self.metrics.share_waits.inc(),
        }
    }

    /// Executes a command that has its memory.
    pub(super) fn execute_admin(&mut self, cx: &mut Context<'_>, work: &AdminWork, piece: Piece) {
        match *work {
            AdminWork::Connect { queue, from } => {
                let to = self.admission.sge(&piece, CONNECT_DATA_LEN as u32);
                let command = CONNECT | queue.get() as usize;
                self.push(cx, queue, Outgoing::Fetch { command, piece, to, from: remote(from) });
            }
            AdminWork::Command { queue, slot, controller, sqe } => {
                self.execute_command(cx, queue, slot, controller, &sqe, Some(piece));
            }
        }
    }

    /// The data of a Connect have arrived.
    pub(super) fn connect_fetched(&mut self, cx: &mut Context<'_>, qpn: Qpn, piece: Piece) {
        let mut bytes = [0; CONNECT_DATA_LEN];
        let read = piece.memory().read(0, &mut bytes);
        self.admission.free(piece);
        let Some(PendingConnect { slot, sqe }) = self.connects.remove(&qpn) else { return };
        match ConnectData::ref_from_bytes(&bytes) {
            Ok(data) if read.is_ok() => self.connect(cx, qpn, slot, &sqe, data, cx.now() + DRAIN, None),
            _ => self.fault(cx, qpn, format_args!("the data of a Connect cannot be read")),
        }
    }

    /// Tries again the Connects that wait for the storage.
    pub(super) fn retry_connects(&mut self, cx: &mut Context<'_>) {
        self.fenced = self.shared.fence_changes();
        for deferred in std::mem::take(&mut self.deferred) {
            let DeferredConnect { queue, slot, sqe, ref data, until, awaited } = deferred;
            match awaited {
                Some(1..) if cx.now() < until => self.deferred.push(deferred),
                Some(1..) => self.refuse_busy(cx, queue, slot, &sqe),
                _ => self.connect(cx, queue, slot, &sqe, data, until, awaited),
            }
        }
    }

    /// The commands of other connections of the host take too long: it tries again.
    fn refuse_busy(&mut self, cx: &mut Context<'_>, qpn: Qpn, slot: u16, sqe: &Sqe) {
        let Some(client) = self.queues.get(&qpn).map(|queue| queue.client) else { return };
        self.metrics.refuse(cx.now(), client, "Connect", "commands of another connection of the host are in progress");
        let invalidate = sqe.sgl().ok().and_then(|descriptor| descriptor.invalidate_key());
        let cqe = Cqe::new(sqe.command_id(), Status::retryable(StatusCode::ConnectControllerBusy));
        self.respond(cx, qpn, slot, Response { cqe, invalidate });
    }

    /// Executes a Connect. While commands of an earlier connection of the host are in progress, it waits `until` then.
    #[allow(clippy::too_many_arguments, reason = "the parts of a Connect")]
    fn connect(
        &mut self,
        cx: &mut Context<'_>,
        qpn: Qpn,
        slot: u16,
        sqe: &Sqe,
        data: &ConnectData,
        until: Instant,
        awaited: Option<usize>,
    ) {
        let key = key_of(cx.worker(), qpn);
        let Some(client) = self.queues.get(&qpn).map(|queue| queue.client) else { return };
        if awaited.is_none() {
            let queues = self.shared.target().other_queues(key, client.ip(), data);
            let awaited = self.quiesce(cx, qpn, queues);
            if awaited > 0 {
                let (data, awaited) = (Box::new(*data), Some(awaited));
                return self.deferred.push(DeferredConnect { queue: qpn, slot, sqe: *sqe, data, until, awaited });
            }
        }
        let connected = self.shared.target().connect(cx.now(), key, client.ip(), sqe, data);
        let granted = match connected {
            Ok(granted) => granted,
            Err(ConnectError { refusal: Refusal::Draining(_), .. }) if cx.now() < until => {
                let (data, awaited) = (Box::new(*data), Some(0));
                let deferred = DeferredConnect { queue: qpn, slot, sqe: *sqe, data, until, awaited };
                return self.deferred.push(deferred);
            }
            Err(error) => {
                let setting = match error.refusal {
                    Refusal::HostLimit(..) => ": see controllers-per-host of [service.nvmf]",
                    Refusal::ControllerLimit(_) => ": see controllers of [service.nvmf]",
                    _ => "",
                };
                self.metrics.refuse(cx.now(), client, "Connect", format_args!("{}{setting}", error.refusal));
                return self.respond(cx, qpn, slot, error.response);
            }
        };
        self.shared.waiting().give_back(client.ip(), 1);
        let controller = granted.controller;
        let role = match granted.io_queue.zip(granted.fence) {
            None => {
                tracing::info!(%client, "nvmf: host {} uses {} as controller {controller}", granted.host, granted.subsystem);
                Role::Admin { controller, held: Vec::new() }
            }
            Some((config, fence)) => {
                let Some(view) = self.view(cx, &granted.subsystem) else {
                    self.shared.fenced(fence);
                    return self.fault(cx, qpn, format_args!("this worker has no memory"));
                };
                let queue = IoQueue::new(config);
                Role::Io { controller, queue, fence, view, counts: Default::default() }
            }
        };
        let host = self.admission.join(HostName::Named(granted.host, data.host_id()));
        if let Some(queue) = self.queues.get_mut(&qpn) {
            queue.role = role;
            self.admission.quit(std::mem::replace(&mut queue.host, host));
        }
        self.respond(cx, qpn, slot, granted.response);
    }

    /// A command on an admin queue.
    pub(super) fn admin(
        &mut self,
        cx: &mut Context<'_>,
        qpn: Qpn,
        slot: u16,
        controller: ControllerId,
        capsule: &[u8],
    ) {
        let Some((sqe, _)) = Sqe::split(capsule) else {
            return self.fault(cx, qpn, format_args!("command capsule of {} bytes", capsule.len()));
        };
        let data = match sqe.sgl() {
            Ok(SglDescriptor::Keyed(buffer)) => buffer.len.min(self.shared.limits().max_transfer()),
            _ => 0,
        };
        if data == 0 {
            return self.execute_command(cx, qpn, slot, controller, sqe, None);
        }
        self.enter_admin(cx, qpn, AdminWork::Command { queue: qpn, slot, controller, sqe: *sqe }, data as usize);
    }

    /// Executes an admin command; `piece` is memory for its data.
    fn execute_command(
        &mut self,
        cx: &mut Context<'_>,
        qpn: Qpn,
        slot: u16,
        controller: ControllerId,
        sqe: &Sqe,
        piece: Option<Piece>,
    ) {
        let reply = self.shared.target().admin(cx.now(), controller, sqe);
        let piece = match (&reply, piece) {
            (AdminReply::Complete { data: Some(_), .. }, piece) => piece,
            (_, piece) => {
                piece.into_iter().for_each(|piece| self.admission.free(piece));
                None
            }
        };
        match reply {
            AdminReply::Complete { data, response } => {
                let data = data.zip(piece).map(|(AdminData { bytes, to }, piece)| {
                    // The piece was made for these bytes.
                    let _ = piece.memory().write(0, &bytes);
                    ((self.admission.sge(&piece, bytes.len() as u32), remote(to)), piece)
                });
                let (data, piece) = data.unzip();
                self.push(cx, qpn, Outgoing::Respond { slot, data, response, piece });
            }
            AdminReply::Held => {
                if let Some(queue) = self.queues.get_mut(&qpn)
                    && let Role::Admin { held, .. } = &mut queue.role
                {
                    held.push((sqe.command_id(), slot));
                }
            }
            AdminReply::Gone => {}
        }
        self.take_events(cx);
    }

    /// Answers a held Asynchronous Event Request.
    pub(super) fn respond_held(&mut self, cx: &mut Context<'_>, key: QueueKey, response: Response) {
        let qpn = qpn_of(key);
        let Some(queue) = self.queues.get_mut(&qpn) else { return };
        let Role::Admin { held, .. } = &mut queue.role else { return };
        let Some(at) = held.iter().position(|(command, _)| *command == response.cqe.command_id()) else { return };
        let (_, slot) = held.swap_remove(at);
        self.respond(cx, qpn, slot, response);
    }

    /// Sends a response.
    fn respond(&mut self, cx: &mut Context<'_>, qpn: Qpn, slot: u16, response: Response) {
        self.push(cx, qpn, Outgoing::Respond { slot, data: None, response, piece: None });
    }
}
