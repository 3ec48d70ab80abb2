//! An instance of the service: the state of one worker, and what the parts of the service do with it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rxe_nvmf::controller::{Event, FenceId, IoCounts, QueueKey};
use rxe_nvmf::wire::{Nqn, Status};
use rxe_proto::verbs::{PostError, ProtectionDomain, Qpn};
use rxe_service::{Context, QpMap};
use rxe_storage::{Completion, NamespaceId, Ring, RingError, Storage, StorageError};
use slab::Slab;

use super::admission::{Admission, RING};
use super::command::{Awaited, Command, DeferredConnect, PendingConnect};
use super::namespaces::{Namespaces, SubsystemView, Users};
use super::queue::{Outgoing, Queue, Role};
use super::shared::Shared;
use crate::config::nvmf::NvmfConfig;
use crate::services::endpoint::Pool;
use crate::services::metrics::ServiceMetrics;

/// Unused memory for receives that is kept for the next queues, in bytes.
const POOLED: usize = 16 << 20;

/// The service on one worker.
pub struct Nvmf {
    pub(super) shared: Arc<Shared>,
    pub(super) metrics: ServiceMetrics,
    pub(super) queues: QpMap<Queue>,
    pub(super) commands: Slab<Command>,
    pub(super) next_command: u64,
    /// Commands that Connects wait for.
    pub(super) awaited: Vec<Awaited>,
    /// Connects whose data are being fetched.
    pub(super) connects: HashMap<Qpn, PendingConnect>,
    /// Connects that wait for the storage.
    pub(super) deferred: Vec<DeferredConnect>,
    /// Number of commands in the storage of each I/O queue that has ended.
    pub(super) fences: HashMap<FenceId, usize>,
    /// The state of [`Shared::fenced`] in which the deferred Connects were tried.
    pub(super) fenced: u64,
    pub(super) admission: Admission,
    pub(super) storage: Storage,
    /// Commands whose next part is for the next turn, one of them in each, so that turns stay short.
    pub(super) continued: VecDeque<usize>,
    /// Room for a capsule, for copies of small data.
    pub(super) scratch: Box<[u8]>,
    pub(super) namespaces: Namespaces,
    pub(super) staging_bytes: usize,
    pub(super) port: u16,
    pub(super) completed: Vec<Completion>,
    pub(super) receives: Pool,
    pub(super) pd: Option<ProtectionDomain>,
    /// Why there is no ring.
    pub(super) no_ring: Option<String>,
    /// Executes the requests of the ring instead of Linux.
    #[cfg(test)]
    pub(super) kernel: Option<rxe_storage::simulated::SimulatedKernel>,
}

/// A command that the storage did not carry out.
pub(super) struct FailedCommand {
    pub(super) queue: Qpn,
    pub(super) command_id: u16,
    pub(super) nsid: u32,
    pub(super) lba: u64,
    pub(super) status: Status,
    pub(super) error: StorageError,
}

/// What uses the namespaces of a worker.
struct InUse<'a> {
    commands: &'a Slab<Command>,
    queues: &'a QpMap<Queue>,
}

impl Users for InUse<'_> {
    fn command_uses(&self, namespace: NamespaceId) -> bool {
        self.commands.iter().any(|(_, command)| command.uses(namespace))
    }

    fn responses(&self) -> Vec<(Qpn, u64)> {
        self.queues.iter().map(|(qpn, queue)| (*qpn, queue.responses())).collect()
    }

    fn has_acknowledged(&self, qpn: Qpn, responses: u64) -> bool {
        self.queues.get(&qpn).is_none_or(|queue| queue.acknowledged() >= responses)
    }
}

/// The key of a queue: its worker and its queue pair.
pub(super) fn key_of(worker: usize, qpn: Qpn) -> QueueKey {
    QueueKey((worker as u64) << 32 | u64::from(qpn.get()))
}

/// The queue pair of a queue.
pub(super) fn qpn_of(key: QueueKey) -> Qpn {
    Qpn::new(key.0 as u32)
}

/// Counts a read of a queue.
pub(super) fn count_read(counts: &mut IoCounts, bytes: u32) {
    counts.reads += 1;
    counts.bytes_read += u64::from(bytes);
}

/// The worker of a queue.
pub(super) fn worker_of(key: QueueKey) -> usize {
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
            next_command: 0,
            awaited: Vec::new(),
            connects: HashMap::new(),
            deferred: Vec::new(),
            fences: HashMap::new(),
            fenced: 0,
            admission: Admission::default(),
            storage: Storage::new(None),
            continued: VecDeque::new(),
            scratch: vec![0; scratch].into(),
            namespaces: Namespaces::default(),
            staging_bytes: config.staging,
            port: config.port,
            completed: Vec::new(),
            receives: Pool::new(POOLED),
            pd: None,
            no_ring: None,
            #[cfg(test)]
            kernel: None,
        }
    }

    /// Makes what the queues of this worker share.
    pub(super) fn prepare(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        let pd = cx.device().alloc_pd();
        self.pd = Some(pd);
        self.admission = Admission::new(cx, pd, self.staging_bytes).map_err(|error| format!("no staging: {error}"))?;
        match self.ring() {
            Ok(mut ring) => {
                self.admission.pin(&mut ring);
                self.storage = Storage::new(Some(ring));
                Ok(())
            }
            Err(error) if self.shared.needs_ring() => Err(error.to_string()),
            // Memory is served without one; files cannot be added.
            Err(error) => {
                self.no_ring = Some(error.to_string());
                Ok(())
            }
        }
    }

    #[cfg(not(test))]
    fn ring(&self) -> Result<Ring, RingError> {
        Ring::new(RING)
    }

    #[cfg(test)]
    fn ring(&self) -> Result<Ring, RingError> {
        match &self.kernel {
            Some(kernel) => Ok(Ring::simulated(kernel, RING)),
            None => Ring::new(RING),
        }
    }

    /// The namespaces of a subsystem; `None` on a worker that could not be prepared, which accepts no connection.
    pub(super) fn view(&mut self, cx: &mut Context<'_>, subsystem: &Nqn) -> Option<Arc<SubsystemView>> {
        let Nvmf { namespaces, shared, storage, pd, .. } = self;
        Some(namespaces.view(cx, shared, storage, (*pd)?, subsystem))
    }

    /// Follows the changes of the disks: every queue gets a new view, and removed namespaces are closed.
    pub(super) fn follow_changes(&mut self, cx: &mut Context<'_>) {
        let users = InUse { commands: &self.commands, queues: &self.queues };
        if self.namespaces.forget_changed(&self.shared, &users) {
            let Nvmf { namespaces, shared, storage, pd, queues, .. } = self;
            for queue in queues.values_mut() {
                if let (Role::Io { view, .. }, Some(pd)) = (&mut queue.role, *pd) {
                    *view = namespaces.view(cx, shared, storage, pd, &view.subsystem.clone());
                }
            }
        }
        self.close_removed(cx);
    }

    /// Closes removed namespaces that nothing uses any more.
    pub(super) fn close_removed(&mut self, cx: &mut Context<'_>) {
        let Nvmf { namespaces, storage, commands, queues, completed, .. } = self;
        if namespaces.is_closing() {
            queues.values_mut().for_each(|queue| queue.take_unsignaled(cx));
        }
        namespaces.close_removed(cx, storage, &InUse { commands, queues }, completed);
    }

    /// Sends on a queue; an error costs the host the connection.
    pub(super) fn push(&mut self, cx: &mut Context<'_>, qpn: Qpn, outgoing: Outgoing) {
        let Some(queue) = self.queues.get_mut(&qpn) else { return };
        if let Err(error) = queue.push(cx, outgoing) {
            self.post_failed(cx, qpn, error);
        }
    }

    /// A work request was not posted: that costs the host the connection.
    #[cold]
    pub(super) fn post_failed(&mut self, cx: &mut Context<'_>, qpn: Qpn, error: PostError) {
        let Some(queue) = self.queues.get(&qpn).filter(|queue| !queue.ending) else { return };
        self.metrics.fail(cx.now(), queue.client, error);
        self.end(cx, qpn);
    }

    /// Ends a queue: nothing more of it is submitted, and it is disconnected.
    pub(super) fn end(&mut self, cx: &mut Context<'_>, qpn: Qpn) {
        let Some(queue) = self.queues.get_mut(&qpn).filter(|queue| !queue.ending) else { return };
        queue.ending = true;
        cx.disconnect(queue.conn);
        self.stop_commands(qpn);
    }

    /// A host breaks the rules, or cannot be served: its controller ends.
    pub(super) fn fault(&mut self, cx: &mut Context<'_>, qpn: Qpn, what: std::fmt::Arguments<'_>) {
        let Some(queue) = self.queues.get(&qpn).filter(|queue| !queue.ending) else { return };
        self.metrics.nonsense(cx.now(), queue.client, what);
        let controller = match queue.role {
            Role::Admin { controller, .. } | Role::Io { controller, .. } => Some(controller),
            Role::New => None,
        };
        self.end(cx, qpn);
        if let Some(controller) = controller {
            self.shared.target().fail(controller);
            self.take_events(cx);
        }
    }

    /// An error of the storage: a line of the log, an entry of the controller's error log, and a count of the SMART log if data
    /// are lost.
    pub(super) fn note_storage_error(&mut self, cx: &mut Context<'_>, failed: &FailedCommand) {
        let FailedCommand { queue, command_id, nsid, lba, status, error } = *failed;
        if self.metrics.admits(cx.now()) {
            tracing::error!("nvmf: namespace {nsid}: {error}");
        }
        // Flushes of a namespace that is read-only already lose nothing more.
        let loses_data = error.is_of_media() && (error != StorageError::FlushFailed || self.note_failed_flush(cx));
        if let Some(Queue { role: Role::Io { controller, queue: entries, counts, .. }, .. }) =
            self.queues.get_mut(&queue)
        {
            counts.media_errors += u64::from(loses_data);
            let (controller, qid) = (*controller, entries.qid());
            self.shared.target().record_error(controller, qid, command_id, status, nsid, lba);
        }
    }

    /// After a failed flush the namespace is read-only for all hosts. Returns whether it was not before.
    pub(super) fn note_failed_flush(&mut self, cx: &mut Context<'_>) -> bool {
        let is_new = self.shared.note_failed_flushes();
        if is_new {
            self.take_events(cx);
            self.follow_changes(cx);
        }
        is_new
    }

    /// Stops the commands of a queue that ends. Those in the storage end there before they submit more, the others at once; then
    /// the controllers are told that none is left.
    pub(super) fn stop_commands(&mut self, qpn: Qpn) {
        let Nvmf { queues, commands, admission, .. } = self;
        let Some(queue) = queues.get_mut(&qpn) else { return };
        admission.withdraw_io(queue.host, |index| commands.get(index).is_none_or(|command| command.queue == Some(qpn)));
        let commands = queue.take_commands();
        let Role::Io { fence, .. } = queue.role else { return };
        let stored = commands.into_iter().filter(|index| self.stop(*index)).count();
        if stored == 0 {
            self.shared.fenced(fence);
        } else {
            self.fences.insert(fence, stored);
        }
    }

    /// A command of a queue that has ended is out of the storage.
    pub(super) fn left_storage(&mut self, fence: FenceId) {
        let Some(stored) = self.fences.get_mut(&fence) else { return };
        *stored -= 1;
        if *stored == 0 {
            self.fences.remove(&fence);
            self.shared.fenced(fence);
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
            count_read(counts, bytes);
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
    pub(super) fn apply(&mut self, cx: &mut Context<'_>, event: &Event) {
        let own = cx.worker();
        let own = |queues: &[QueueKey]| -> Vec<Qpn> {
            queues.iter().filter(|key| worker_of(**key) == own).map(|key| qpn_of(*key)).collect()
        };
        match event {
            Event::Respond { queue, response } => self.respond_held(cx, *queue, *response),
            Event::TearDown { reason, queues, .. } => {
                for qpn in own(queues) {
                    let Some(queue) = self.queues.get(&qpn).filter(|queue| !queue.ending) else { continue };
                    self.metrics.give_up_as(cx.now(), queue.client, reason);
                    self.end(cx, qpn);
                }
            }
            Event::Ready { queues, ready, .. } => {
                for qpn in own(queues) {
                    if let Some(Role::Io { queue, .. }) = self.queues.get_mut(&qpn).map(|queue| &mut queue.role) {
                        queue.set_ready(*ready);
                    }
                }
            }
            Event::NamespacesChanged { .. } => self.follow_changes(cx),
        }
    }
}
