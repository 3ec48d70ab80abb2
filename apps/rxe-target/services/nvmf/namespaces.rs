//! A worker's view of the disks: its storage instances, and the keys for RDMA WRITE straight from memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use rxe_nvmf::subsystem::NamespaceView;
use rxe_nvmf::wire::Nqn;
use rxe_proto::verbs::{Access, MemoryRegion, ProtectionDomain, Sge};
use rxe_service::Context;
use rxe_storage::{NamespaceId, Storage};

use super::shared::Shared;

/// A namespace as a worker uses it.
#[derive(Clone, Copy)]
pub struct Namespace {
    /// Its number in the storage of the worker.
    pub storage: NamespaceId,
    /// Whether it is in memory, so that the source of a write needs no alignment.
    pub in_memory: bool,
    /// Address and key of its memory, when reads can go straight from there.
    direct: Option<(u64, u32)>,
}

impl Namespace {
    /// The blocks for an RDMA WRITE without a copy.
    pub fn direct(&self, offset: u64, len: u32) -> Option<Sge> {
        let (addr, lkey) = self.direct?;
        Some(Sge { addr: addr + offset, length: len, lkey })
    }
}

/// The namespaces of a subsystem, in ascending order of the NSID.
#[derive(Default)]
pub struct SubsystemView {
    /// For the checks of commands.
    pub views: Vec<NamespaceView>,
    /// In the same order.
    namespaces: Vec<Namespace>,
}

impl SubsystemView {
    /// A namespace.
    pub fn find(&self, nsid: u32) -> Option<Namespace> {
        let at = self.views.binary_search_by_key(&nsid, |view| view.nsid).ok()?;
        self.namespaces.get(at).copied()
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
    _region: Option<MemoryRegion>,
}

/// The namespaces that a worker has opened.
#[derive(Default)]
pub struct Namespaces {
    opened: BTreeMap<(Nqn, u32), Opened>,
    views: BTreeMap<Nqn, Arc<SubsystemView>>,
}

impl Namespaces {
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
        let listed = shared.target().namespace_views(subsystem);
        let (mut views, mut namespaces) = (Vec::new(), Vec::new());
        for view in listed {
            match self.open(cx, shared, storage, pd, subsystem, view) {
                Ok(namespace) => {
                    views.push(view);
                    namespaces.push(namespace);
                }
                // Its commands are refused as those of an unknown namespace.
                Err(error) => tracing::error!("nvmf: namespace {} of {subsystem} is not served: {error}", view.nsid),
            }
        }
        let view = Arc::new(SubsystemView { views, namespaces });
        self.views.insert(subsystem.clone(), Arc::clone(&view));
        view
    }

    fn open(
        &mut self,
        cx: &mut Context<'_>,
        shared: &Shared,
        storage: &mut Storage,
        pd: ProtectionDomain,
        subsystem: &Nqn,
        view: NamespaceView,
    ) -> Result<Namespace, String> {
        let key = (subsystem.clone(), view.nsid);
        if let Some(opened) = self.opened.get(&key) {
            return Ok(opened.namespace);
        }
        let volume = shared.volume(subsystem, view.nsid).ok_or("it has no storage")?;
        let in_memory = !volume.needs_ring();
        let backend = volume.backend().map_err(|error| error.to_string())?;
        let id = storage.add(backend).map_err(|error| error.to_string())?;
        let memory = storage.get(id).and_then(|backend| backend.memory()).cloned();
        let region = match memory {
            Some(memory) => Some(cx.device().reg_mr(pd, memory, Access::empty()).map_err(|error| error.to_string())?),
            None => None,
        };
        let direct = region.as_ref().map(|region| (region.addr(), region.lkey()));
        let namespace = Namespace { storage: id, in_memory, direct };
        self.opened.insert(key, Opened { namespace, _region: region });
        Ok(namespace)
    }
}
