//! A worker's view of the disks: its storage instances, and the keys for RDMA WRITE straight from memory.
//!
//! Management changes the disks in [`Shared`] and then calls each worker. A worker opens what is new, and closes what was
//! removed when nothing uses it any more: no command, no response that is not acknowledged, as its data may come straight from
//! the memory of the namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use rxe_nvmf::io::{IoOperation, IoRequest};
use rxe_nvmf::subsystem::NamespaceView;
use rxe_nvmf::wire::{HostBuffer, Nqn};
use rxe_proto::verbs::{Access, Memory, MemoryRegion, ProtectionDomain, Qpn, Sge};
use rxe_service::Context;
use rxe_storage::{Completion, NamespaceId, Storage};
use slab::Slab;

use super::latencies::CommandTimes;
use super::shared::{Shared, Volume, VolumeId};
use super::work::Work;

/// Bytes of a read that are prefetched at most: of a longer one the beginning.
const PREFETCHED: usize = 4096;

/// A namespace as a worker uses it.
#[derive(Clone, Copy)]
pub struct Namespace {
    /// Its number in the storage of the worker.
    pub storage: NamespaceId,
    /// Whether it is in memory, so that the source of a write needs no alignment.
    pub in_memory: bool,
    /// Address and key of its memory, when reads can go straight from there.
    direct: Option<(u64, u32)>,
    /// The number of its [`Attached`].
    attached: usize,
}

/// A read whose blocks leave by RDMA WRITE straight from the memory of the namespace.
pub struct DirectRead {
    attached: usize,
    offset: u64,
    /// The blocks.
    pub from: Sge,
    /// The host's memory.
    pub to: HostBuffer,
}

/// The namespaces of a subsystem, in ascending order of the NSID.
pub struct SubsystemView {
    /// The subsystem.
    pub subsystem: Nqn,
    /// For the checks of commands.
    pub views: Vec<NamespaceView>,
    /// In the same order.
    namespaces: Vec<Namespace>,
    /// Why a namespace is missing, in a sentence.
    pub problem: Option<String>,
}

impl SubsystemView {
    /// A namespace.
    pub fn find(&self, nsid: u32) -> Option<Namespace> {
        let at = self.views.binary_search_by_key(&nsid, |view| view.nsid).ok()?;
        self.namespaces.get(at).copied()
    }

    /// The request as a read without a copy, if it can be one.
    pub fn direct_read(&self, request: &IoRequest) -> Option<DirectRead> {
        let IoOperation::Read { range, to } = request.operation else { return None };
        let Namespace { direct, attached, .. } = self.find(request.nsid)?;
        let (addr, lkey) = direct?;
        let offset = range.byte_offset(request.block_shift);
        let from = Sge { addr: addr + offset, length: to.len, lkey };
        Some(DirectRead { attached, offset, from, to })
    }

    /// All namespaces.
    pub fn all(&self) -> &[Namespace] {
        &self.namespaces
    }
}

/// An opened namespace.
struct Opened {
    namespace: Namespace,
    /// Kept for its key.
    region: Option<MemoryRegion>,
}

/// What the commands of an opened namespace use besides its number.
struct Attached {
    times: Arc<CommandTimes>,
    /// The memory that reads go straight from.
    memory: Option<Memory>,
}

/// A removed namespace that is still in use.
struct Closing {
    opened: Opened,
    /// The queue pairs of the moment of the removal, with the number of responses that each had been given by then.
    responses: Vec<(Qpn, u64)>,
}

/// What still uses the namespaces of a worker.
pub trait Users {
    /// Whether a command uses a namespace.
    fn command_uses(&self, namespace: NamespaceId) -> bool;
    /// The queue pairs, with the number of responses that each has been given.
    fn responses(&self) -> Vec<(Qpn, u64)>;
    /// Whether a queue pair is gone, or the host has acknowledged that many responses.
    fn has_acknowledged(&self, qpn: Qpn, responses: u64) -> bool;
}

/// The namespaces that a worker has opened.
#[derive(Default)]
pub struct Namespaces {
    /// The state of [`Shared`] that `views` are of.
    generation: u64,
    opened: BTreeMap<VolumeId, Opened>,
    views: BTreeMap<Nqn, Arc<SubsystemView>>,
    closing: Vec<Closing>,
    attached: Slab<Attached>,
}

impl Namespaces {
    /// Counts a command that took `nanos`.
    pub fn record(&self, namespace: Namespace, work: &Work, nanos: u64) {
        if let Some(attached) = self.attached.get(namespace.attached) {
            attached.times.record(work, nanos);
        }
    }

    /// Counts a read that is answered at once, and prefetches its first blocks: they are sent at the end of the turn.
    #[inline]
    pub fn begin_direct(&self, read: &DirectRead) {
        let Some(Attached { times, memory }) = self.attached.get(read.attached) else { return };
        times.record_direct_read();
        if let Some(memory) = memory {
            memory.prefetch(read.offset as usize, (read.from.length as usize).min(PREFETCHED));
        }
    }

    /// The view of a subsystem, made when it is first wanted.
    pub fn view(
        &mut self,
        cx: &mut Context<'_>,
        shared: &Shared,
        storage: &mut Storage,
        pd: ProtectionDomain,
        subsystem: &Nqn,
    ) -> Arc<SubsystemView> {
        if let Some(view) = self.views.get(subsystem) {
            return Arc::clone(view);
        }
        let mut view =
            SubsystemView { subsystem: subsystem.clone(), views: Vec::new(), namespaces: Vec::new(), problem: None };
        for (listed, id, volume) in shared.namespaces(subsystem) {
            match self.open(cx, shared, storage, pd, (subsystem, listed), id, &volume) {
                Ok(namespace) => {
                    view.views.push(listed);
                    view.namespaces.push(namespace);
                }
                // Its commands are refused as those of an unknown namespace.
                Err(error) => {
                    let problem = format!("namespace {} of {subsystem} is not served: {error}", listed.nsid);
                    tracing::error!("nvmf: worker {}: {problem}", cx.worker());
                    view.problem = Some(problem);
                }
            }
        }
        let view = Arc::new(view);
        self.views.insert(subsystem.clone(), Arc::clone(&view));
        view
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of the service that a namespace is opened in")]
    fn open(
        &mut self,
        cx: &mut Context<'_>,
        shared: &Shared,
        storage: &mut Storage,
        pd: ProtectionDomain,
        (subsystem, view): (&Nqn, NamespaceView),
        id: VolumeId,
        volume: &Volume,
    ) -> Result<Namespace, String> {
        if let Some(Opened { namespace, .. }) = self.opened.get(&id) {
            let instance = storage.get_mut(namespace.storage).ok_or("it is closed")?;
            if instance.geometry().blocks != view.blocks {
                instance.resize().map_err(|error| error.to_string())?;
            }
            return Ok(*namespace);
        }
        let in_memory = !volume.needs_ring();
        let backend = volume.backend().map_err(|error| error.to_string())?;
        let number = storage.add(backend).map_err(|error| error.to_string())?;
        let memory = storage.get(number).and_then(|backend| backend.memory()).cloned();
        let region = match memory.map(|memory| cx.device().reg_mr(pd, memory, Access::empty())).transpose() {
            Ok(region) => region,
            Err(error) => {
                // Nothing is outstanding.
                let _ = storage.remove(number, &mut Vec::new());
                return Err(error.to_string());
            }
        };
        let direct = region.as_ref().map(|region| (region.addr(), region.lkey()));
        let memory = region.as_ref().map(|region| region.memory().clone());
        let times = shared.times(subsystem, view.nsid, id);
        let attached = self.attached.insert(Attached { times, memory });
        let namespace = Namespace { storage: number, in_memory, direct, attached };
        self.opened.insert(id, Opened { namespace, region });
        Ok(namespace)
    }

    /// Forgets the views if the disks have changed, and prepares the removed namespaces for the end. Returns whether they have:
    /// then every queue gets a new view, before anything else happens on this worker.
    pub fn forget_changed(&mut self, shared: &Shared, users: &dyn Users) -> bool {
        let generation = shared.generation();
        if self.generation == generation {
            return false;
        }
        self.generation = generation;
        self.views.clear();
        let removed: Vec<VolumeId> = self.opened.keys().copied().filter(|id| !shared.has_volume(*id)).collect();
        for opened in removed.into_iter().filter_map(|id| self.opened.remove(&id)) {
            self.closing.push(Closing { opened, responses: users.responses() });
        }
        true
    }

    /// Whether there are removed namespaces that are still in use.
    pub fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Closes removed namespaces that nothing uses any more. Operations of other namespaces are not touched.
    pub fn close_removed(
        &mut self,
        cx: &mut Context<'_>,
        storage: &mut Storage,
        users: &dyn Users,
        completed: &mut Vec<Completion>,
    ) {
        let Namespaces { closing, attached, .. } = self;
        closing.retain_mut(|Closing { opened: Opened { namespace, region }, responses }| {
            responses.retain(|(qpn, count)| !users.has_acknowledged(*qpn, *count));
            let outstanding = storage.get(namespace.storage).is_some_and(|instance| instance.outstanding() > 0);
            if !responses.is_empty() || outstanding || users.command_uses(namespace.storage) {
                return true;
            }
            if let Some(region) = region {
                // No windows are bound to it: its access lacks MW_BIND.
                let _ = cx.device().dereg_mr(region);
            }
            if let Err(error) = storage.remove(namespace.storage, completed) {
                tracing::error!("nvmf: a removed namespace: {error}");
            }
            attached.try_remove(namespace.attached);
            false
        });
    }
}
