//! What the instances of all workers share: controllers and disks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rxe_inspect::latency::NamespaceTimes;
use rxe_nvmf::controller::{FenceId, Target, TargetConfig};
use rxe_nvmf::subsystem::{AllowedHosts, ConfigError, Limits, Namespace, NamespaceView, Subsystem};
use rxe_nvmf::wire::Nqn;
use rxe_proto::mem::{AllocError, Allocator};
use rxe_storage::{
    Backend, BlockSize, Contents, Disk, DiskBackend, DiskOptions, OpenError, RamBackend, RamDisk, RamOptions,
    RingError, Scrub, ScrubReport, StorageError,
};

use super::admission::PLACES;
use super::identity::{Identity, IdentityError};
use super::latencies::{self, CommandTimes};
use crate::config::nvmf::{Backing, NamespaceConfig, NvmfConfig, SubsystemConfig};
use crate::services::usage::Usage;

/// Queues of one address that have sent no Connect: those of eight controllers, which a host may connect at once.
const MAX_WAITING_PER_ADDRESS: usize = 128;

/// Interval of looks at removed disks that are still in use.
const REAP_INTERVAL: Duration = Duration::from_millis(50);

/// The storage of a namespace, which each worker opens for itself.
#[derive(Clone)]
pub enum Volume {
    /// Blocks in memory.
    Ram(Arc<RamDisk>),
    /// A file or block device.
    Disk(Arc<Disk>),
}

impl Volume {
    /// Opens the storage of a namespace. Returns it with its size in blocks, and logs what an operator should know.
    fn open(config: &NamespaceConfig, allocator: &dyn Allocator) -> Result<(Volume, u64), VolumeError> {
        let NamespaceConfig { block_size, checksums, read_only, .. } = *config;
        match &config.backing {
            Backing::Ram { size } => {
                let memory = allocator.allocate(*size).map_err(|source| VolumeError::Memory {
                    nsid: config.nsid,
                    size: *size,
                    source,
                })?;
                let options = RamOptions { block_size, size: None, checksums, contents: Contents::Zeroes };
                let disk = RamDisk::new(memory, &options, allocator)?;
                let blocks = disk.geometry().blocks;
                Ok((Volume::Ram(disk), blocks))
            }
            Backing::File { path, direct } => {
                let (disk, notices) =
                    Disk::open(path, &DiskOptions { block_size, direct: *direct, checksums, read_only })?;
                for notice in notices {
                    tracing::warn!("nvmf: {notice}");
                }
                let blocks = disk.measure()?.blocks;
                Ok((Volume::Disk(disk), blocks))
            }
        }
    }

    /// A worker's instance.
    pub fn backend(&self) -> Result<Box<dyn Backend>, OpenError> {
        Ok(match self {
            Volume::Ram(disk) => Box::new(RamBackend::new(Arc::clone(disk))),
            Volume::Disk(disk) => Box::new(DiskBackend::new(Arc::clone(disk), PLACES)?),
        })
    }

    /// Whether a flush failed.
    fn is_failed(&self) -> bool {
        match self {
            Volume::Ram(_) => false,
            Volume::Disk(disk) => disk.is_failed(),
        }
    }

    /// Whether deallocated blocks are released, and read as zeroes.
    fn releases_blocks(&self) -> bool {
        match self {
            Volume::Ram(_) => true,
            Volume::Disk(disk) => disk.releases_blocks(),
        }
    }

    /// Whether this is the last handle.
    fn is_unused(&self) -> bool {
        match self {
            Volume::Ram(disk) => Arc::strong_count(disk) == 1,
            Volume::Disk(disk) => Arc::strong_count(disk) == 1,
        }
    }

    /// Whether a worker needs a ring for it.
    pub fn needs_ring(&self) -> bool {
        matches!(self, Volume::Disk(_))
    }
}

/// A namespace that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// No memory for it.
    #[error("namespace {nsid} of {size} bytes: {source}; give the target more hugepages or make the namespace smaller")]
    Memory {
        /// NSID of the namespace.
        nsid: u32,
        /// Size of the namespace in bytes.
        size: usize,
        /// The allocator's error.
        source: AllocError,
    },
    /// The file or device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The identifiers of the file cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// io_uring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The configuration of the subsystem.
    #[error(transparent)]
    Config(ConfigError),
    /// Hosts would take two disks for one.
    #[error("{0}: if its file is a copy, delete FILE.identity beside it; else give it another 'uuid'")]
    SameIdentity(ConfigError),
    /// Memory has one size.
    #[error(
        "namespace {nsid} of {nqn} is memory, which keeps its size while the target runs: add another namespace, or change \
         the configuration file and restart the target"
    )]
    Fixed {
        /// NQN of the subsystem.
        nqn: Nqn,
        /// NSID of the namespace.
        nsid: u32,
    },
    /// A file is shorter than hosts know.
    #[error(
        "namespace {nsid} of {nqn} has {was} bytes and its file {size}, but a namespace cannot shrink while hosts use it: \
         extend the file, or remove the namespace and add it again"
    )]
    Shrunk {
        /// NQN of the subsystem.
        nqn: Nqn,
        /// NSID of the namespace.
        nsid: u32,
        /// Bytes of the file.
        size: u64,
        /// Bytes of the namespace.
        was: u64,
    },
    /// There is nothing to recover from.
    #[error("namespace {nsid} of {nqn} is as it should be: no flush of its file has failed")]
    NotFailed {
        /// NQN of the subsystem.
        nqn: Nqn,
        /// NSID of the namespace.
        nsid: u32,
    },
    /// The scrub does not go on where it ended.
    #[error("another scrub of namespace {nsid} of {nqn} has begun: start again when it is complete")]
    OtherScrub {
        /// NQN of the subsystem.
        nqn: Nqn,
        /// NSID of the namespace.
        nsid: u32,
    },
    /// Blocks cannot be read.
    #[error("namespace {nsid} of {nqn} cannot be read: {source}")]
    Scrub {
        /// NQN of the subsystem.
        nqn: Nqn,
        /// NSID of the namespace.
        nsid: u32,
        /// The error of the storage.
        source: StorageError,
    },
}

impl From<ConfigError> for VolumeError {
    fn from(error: ConfigError) -> VolumeError {
        match error {
            ConfigError::DuplicateIdentifier { .. } => VolumeError::SameIdentity(error),
            error => VolumeError::Config(error),
        }
    }
}

/// The storage of a namespace, by a number that is not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VolumeId(u64);

/// The disks.
#[derive(Default)]
struct Volumes {
    by_namespace: BTreeMap<(Nqn, u32), (VolumeId, Volume)>,
    next: u64,
    /// Removed, and still open on a worker. Dropping the last handle may flush a file, so a worker must not.
    removed: Vec<Volume>,
    /// Of each namespace and worker.
    times: Vec<(Nqn, u32, VolumeId, Arc<CommandTimes>)>,
    /// Scrubs in progress.
    scrubs: BTreeMap<VolumeId, Scrub>,
}

impl Volumes {
    fn insert(&mut self, subsystem: &Nqn, nsid: u32, volume: Volume) {
        self.next += 1;
        self.by_namespace.insert((subsystem.clone(), nsid), (VolumeId(self.next), volume));
    }

    fn remove(&mut self, subsystem: &Nqn, nsid: u32) {
        if let Some((id, volume)) = self.by_namespace.remove(&(subsystem.clone(), nsid)) {
            self.removed.push(volume);
            self.scrubs.remove(&id);
            self.times.retain(|(_, _, of, _)| *of != id);
        }
    }
}

/// Controllers and disks.
///
/// Where both locks are taken, that of the disks is first.
pub struct Shared {
    target: Mutex<Target>,
    volumes: Mutex<Volumes>,
    /// Increases with each change of the disks.
    generation: AtomicU64,
    /// Increases when no command of an I/O queue that has ended is left.
    fence_changes: AtomicU64,
    /// Queues without a successful Connect by the address of their host.
    waiting: Mutex<Usage>,
    limits: Limits,
}

impl Shared {
    /// No subsystems yet.
    pub fn new(config: TargetConfig) -> Shared {
        let limits = config.limits;
        let (volumes, generation) = (Mutex::default(), AtomicU64::new(1));
        Shared {
            target: Mutex::new(Target::new(config)),
            volumes,
            generation,
            fence_changes: AtomicU64::new(0),
            waiting: Mutex::default(),
            limits,
        }
    }

    /// The limits of hosts.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The controllers. The lock is held for one command; no I/O command takes it.
    pub fn target(&self) -> MutexGuard<'_, Target> {
        // The state is consistent between the calls of its methods.
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn volumes(&self) -> MutexGuard<'_, Volumes> {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that changes with the disks.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// No command of an I/O queue that has ended is in the storage of its worker any more.
    pub fn fenced(&self, fence: FenceId) {
        self.target().fenced(fence);
        self.fence_changes.fetch_add(1, Ordering::Release);
    }

    /// A number that changes with [`fenced`](Self::fenced).
    pub fn fence_changes(&self) -> u64 {
        self.fence_changes.load(Ordering::Acquire)
    }

    /// Makes the namespaces read-only of whose file a flush failed. Returns whether there is a new one; then the caller carries out
    /// the events of the controllers.
    pub fn note_failed_flushes(&self) -> bool {
        let volumes = self.volumes();
        let mut target = self.target();
        let failed = volumes.by_namespace.iter().filter(|(_, (_, volume))| volume.is_failed());
        let mut is_new = false;
        for ((nqn, nsid), _) in failed {
            if target.set_failed(nqn, *nsid, true) == Ok(true) {
                is_new = true;
                tracing::error!(
                    "nvmf: namespace {nsid} of {nqn}: a flush failed, so data that hosts have written may be lost; it is read-only \
                     until `rxe-ctl nvmf namespace recover {nqn} {nsid}` or a restart of the target"
                );
            }
        }
        if is_new {
            self.generation.fetch_add(1, Ordering::Release);
        }
        is_new
    }

    /// Allows hosts to write to a namespace again after a failed flush.
    ///
    /// # Errors
    /// [`VolumeError`]: there is no such namespace, no flush failed, or the file cannot be flushed now.
    pub fn recover(&self, nqn: &Nqn, nsid: u32) -> Result<(), VolumeError> {
        let (_, _, volume) = self.find(nqn, nsid)?;
        match volume {
            Volume::Disk(disk) if disk.is_failed() => disk.recover()?,
            _ => return Err(VolumeError::NotFailed { nqn: nqn.clone(), nsid }),
        }
        self.change(|_, target| Ok(target.set_failed(nqn, nsid, false).map(drop)?))
    }

    /// The namespaces of a subsystem with their storage, in ascending order of the NSID.
    pub fn namespaces(&self, subsystem: &Nqn) -> Vec<(NamespaceView, VolumeId, Volume)> {
        let volumes = self.volumes();
        let views = self.target().namespace_views(subsystem);
        let find = |view: NamespaceView| {
            let (id, volume) = volumes.by_namespace.get(&(subsystem.clone(), view.nsid))?;
            Some((view, *id, volume.clone()))
        };
        views.into_iter().filter_map(find).collect()
    }

    /// Whether the storage is that of a namespace.
    pub fn has_volume(&self, id: VolumeId) -> bool {
        self.volumes().by_namespace.values().any(|(other, _)| *other == id)
    }

    /// Where a worker counts the times of the commands of a namespace.
    pub fn times(&self, subsystem: &Nqn, nsid: u32, id: VolumeId) -> Arc<CommandTimes> {
        let times = Arc::<CommandTimes>::default();
        self.volumes().times.push((subsystem.clone(), nsid, id, Arc::clone(&times)));
        times
    }

    /// The times of the commands of all namespaces.
    pub fn latencies(&self) -> Vec<NamespaceTimes> {
        let mut all: Vec<_> = self.volumes().times.iter().map(|of| (of.0.clone(), of.1, Arc::clone(&of.3))).collect();
        all.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        latencies::report(&all)
    }

    /// Number of queues without a successful Connect by the address of their host. Taken for one request or Connect.
    pub fn waiting(&self) -> MutexGuard<'_, Usage> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a queue without Connect of an address. Returns false when the address has its share of them already.
    pub fn take_waiting(&self, host: IpAddr) -> bool {
        self.waiting().take_one(host, MAX_WAITING_PER_ADDRESS)
    }

    /// Whether the workers need a ring.
    pub fn needs_ring(&self) -> bool {
        self.volumes().by_namespace.values().any(|(_, volume)| volume.needs_ring())
    }

    /// Opens the storage of all subsystems of the configuration.
    ///
    /// # Errors
    /// The first problem.
    pub fn open_all(&self, config: &NvmfConfig, allocator: &dyn Allocator) -> Result<(), VolumeError> {
        config.subsystems.iter().try_for_each(|subsystem| self.add_subsystem(subsystem, allocator))
    }

    /// Adds a subsystem, and opens the storage of its namespaces.
    ///
    /// # Errors
    /// [`VolumeError`]; nothing has changed then.
    pub fn add_subsystem(&self, config: &SubsystemConfig, allocator: &dyn Allocator) -> Result<(), VolumeError> {
        if self.target().subsystems().any(|other| other.nqn == config.nqn) {
            return Err(ConfigError::DuplicateSubsystem(config.nqn.clone()).into());
        }
        let mut namespaces = Vec::new();
        let mut opened = Vec::new();
        for namespace in &config.namespaces {
            let (volume, blocks) = Volume::open(namespace, allocator)?;
            namespaces.push(described(&config.nqn, namespace, &volume, blocks)?);
            opened.push((namespace.nsid, volume));
        }
        let subsystem = Subsystem {
            nqn: config.nqn.clone(),
            serial: config.serial.clone(),
            model: config.model.clone(),
            namespaces,
            hosts: config.hosts.clone(),
        };
        self.change(|volumes, target| {
            target.add_subsystem(subsystem)?;
            opened.into_iter().for_each(|(nsid, volume)| volumes.insert(&config.nqn, nsid, volume));
            Ok(())
        })
    }

    /// Removes a subsystem; its hosts are disconnected.
    ///
    /// # Errors
    /// [`VolumeError::Config`].
    pub fn remove_subsystem(&self, nqn: &Nqn) -> Result<(), VolumeError> {
        self.change(|volumes, target| {
            let nsids: Vec<u32> = target.namespace_views(nqn).iter().map(|view| view.nsid).collect();
            target.remove_subsystem(nqn)?;
            nsids.into_iter().for_each(|nsid| volumes.remove(nqn, nsid));
            Ok(())
        })
    }

    /// Adds a namespace, and opens its storage.
    ///
    /// # Errors
    /// [`VolumeError`]; nothing has changed then.
    pub fn add_namespace(
        &self,
        nqn: &Nqn,
        config: &NamespaceConfig,
        allocator: &dyn Allocator,
    ) -> Result<(), VolumeError> {
        // Before memory is allocated and a file opened for nothing.
        let subsystem = self.target().subsystems().find(|other| other.nqn == *nqn).cloned();
        let subsystem = subsystem.ok_or_else(|| ConfigError::UnknownSubsystem(nqn.clone()))?;
        if subsystem.namespace(config.nsid).is_some() {
            return Err(ConfigError::DuplicateNsid(nqn.clone(), config.nsid).into());
        }
        let (volume, blocks) = Volume::open(config, allocator)?;
        let namespace = described(nqn, config, &volume, blocks)?;
        self.change(|volumes, target| {
            target.add_namespace(nqn, namespace)?;
            volumes.insert(nqn, config.nsid, volume);
            Ok(())
        })
    }

    /// Removes a namespace.
    ///
    /// # Errors
    /// [`VolumeError::Config`].
    pub fn remove_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<(), VolumeError> {
        self.change(|volumes, target| {
            target.remove_namespace(nqn, nsid)?;
            volumes.remove(nqn, nsid);
            Ok(())
        })
    }

    /// Gives a namespace the size of its file or device. Returns it in bytes.
    ///
    /// # Errors
    /// [`VolumeError`]; nothing has changed then. [`VolumeError::Fixed`] for memory, [`VolumeError::Shrunk`] for a file that is
    /// shorter than the namespace.
    pub fn grow(&self, nqn: &Nqn, nsid: u32) -> Result<u64, VolumeError> {
        let (view, _, volume) = self.find(nqn, nsid)?;
        let Volume::Disk(disk) = volume else { return Err(VolumeError::Fixed { nqn: nqn.clone(), nsid }) };
        let geometry = disk.measure()?;
        if geometry.blocks < view.blocks {
            let (size, was) = (geometry.bytes(), view.blocks << view.block_shift);
            return Err(VolumeError::Shrunk { nqn: nqn.clone(), nsid, size, was });
        }
        let geometry = disk.resize()?;
        self.change(|_, target| Ok(target.resize_namespace(nqn, nsid, geometry.blocks)?))?;
        Ok(geometry.bytes())
    }

    /// Sets the hosts that may use a subsystem; others are disconnected.
    ///
    /// # Errors
    /// [`ConfigError::UnknownSubsystem`].
    pub fn set_hosts(&self, nqn: &Nqn, hosts: AllowedHosts) -> Result<(), ConfigError> {
        self.target().set_hosts(nqn, hosts)
    }

    /// Drops the removed disks that no worker has open. Returns the number of those that are left. Files may be flushed, so it
    /// is for threads of management.
    pub fn reap(&self) -> usize {
        let mut removed = std::mem::take(&mut self.volumes().removed);
        let unused: Vec<Volume> = removed.extract_if(.., |volume| volume.is_unused()).collect();
        let left = removed.len();
        self.volumes().removed.append(&mut removed);
        drop(unused);
        left
    }

    /// Drops the removed disks when the workers have closed them, on a thread of its own.
    pub fn reap_later(self: &Arc<Shared>) {
        let shared = Arc::downgrade(self);
        let reap = move || {
            while shared.upgrade().is_some_and(|shared| shared.reap() > 0) {
                thread::sleep(REAP_INTERVAL);
            }
        };
        if let Err(error) = thread::Builder::new().name("nvmf-reap".to_owned()).spawn(reap) {
            tracing::warn!("nvmf: removed disks are closed at the next removal: no thread: {error}");
        }
    }

    /// Compares up to `blocks` blocks of a namespace with their checksums, from block `from` on.
    ///
    /// # Errors
    /// [`VolumeError`]: there is no such namespace, another scrub has begun, or blocks cannot be read.
    pub fn scrub(&self, nqn: &Nqn, nsid: u32, from: u64, blocks: u64) -> Result<(ScrubReport, u64), VolumeError> {
        let (_, id, volume) = self.find(nqn, nsid)?;
        let held = self.volumes().scrubs.remove(&id);
        let mut scrub = match (from, held) {
            (0, _) => match volume {
                Volume::Ram(disk) => Scrub::ram(disk),
                Volume::Disk(disk) => Scrub::disk(disk),
            },
            (from, Some(scrub)) if scrub.position() == from => scrub,
            _ => return Err(VolumeError::OtherScrub { nqn: nqn.clone(), nsid }),
        };
        let report = scrub.step(blocks).map_err(|source| VolumeError::Scrub { nqn: nqn.clone(), nsid, source })?;
        let next = scrub.position();
        let mut volumes = self.volumes();
        // A namespace that was removed meanwhile is not kept open.
        if !report.done && volumes.by_namespace.values().any(|(other, _)| *other == id) {
            volumes.scrubs.insert(id, scrub);
        }
        Ok((report, next))
    }

    fn find(&self, nqn: &Nqn, nsid: u32) -> Result<(NamespaceView, VolumeId, Volume), VolumeError> {
        if !self.target().subsystems().any(|subsystem| subsystem.nqn == *nqn) {
            return Err(ConfigError::UnknownSubsystem(nqn.clone()).into());
        }
        let found = self.namespaces(nqn).into_iter().find(|(view, ..)| view.nsid == nsid);
        Ok(found.ok_or_else(|| ConfigError::UnknownNamespace(nqn.clone(), nsid))?)
    }

    /// Changes controllers and disks together.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Volumes, &mut Target) -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        let mut volumes = self.volumes();
        let done = change(&mut volumes, &mut self.target())?;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(done)
    }
}

/// A namespace as hosts see it.
fn described(
    subsystem: &Nqn,
    config: &NamespaceConfig,
    volume: &Volume,
    blocks: u64,
) -> Result<Namespace, IdentityError> {
    let block_size = match config.block_size {
        BlockSize::B512 => rxe_nvmf::subsystem::BlockSize::B512,
        BlockSize::B4096 => rxe_nvmf::subsystem::BlockSize::B4096,
    };
    let mut namespace = Namespace::new(subsystem, config.nsid, blocks, block_size);
    namespace.read_only = config.read_only;
    namespace.releases_blocks = volume.releases_blocks();
    let Identity { uuid, nguid } = Identity::of(subsystem, config)?;
    (namespace.uuid, namespace.nguid) = (uuid, nguid);
    Ok(namespace)
}
