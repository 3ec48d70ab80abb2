//! What the instances of all workers share: controllers and disks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rxe_nvmf::controller::{Target, TargetConfig};
use rxe_nvmf::subsystem::{ConfigError, Limits, Namespace, Subsystem};
use rxe_nvmf::wire::Nqn;
use rxe_proto::mem::{AllocError, Allocator};
use rxe_storage::{
    Backend, BlockSize, Contents, Disk, DiskBackend, DiskOptions, OpenError, RamBackend, RamDisk, RamOptions, RingError,
};

use crate::config::nvmf::{Backing, NamespaceConfig, NvmfConfig, SubsystemConfig};

/// Operations of one namespace that a worker's ring executes at once.
const DISK_DEPTH: u32 = 256;

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
        let NamespaceConfig { block_size, checksums, .. } = *config;
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
                let (disk, notices) = Disk::open(path, &DiskOptions { block_size, direct: *direct, checksums })?;
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
            Volume::Disk(disk) => Box::new(DiskBackend::new(Arc::clone(disk), DISK_DEPTH)?),
        })
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
        /// Its number.
        nsid: u32,
        /// Its size in bytes.
        size: usize,
        /// The allocator's error.
        source: AllocError,
    },
    /// Its file or device.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// io_uring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The configuration of the subsystem.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Controllers and disks.
pub struct Shared {
    target: Mutex<Target>,
    volumes: Mutex<BTreeMap<(Nqn, u32), Volume>>,
    limits: Limits,
}

impl Shared {
    /// No subsystems yet.
    pub fn new(config: TargetConfig) -> Shared {
        let limits = config.limits;
        Shared { target: Mutex::new(Target::new(config)), volumes: Mutex::default(), limits }
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

    /// The storage of a namespace.
    pub fn volume(&self, subsystem: &Nqn, nsid: u32) -> Option<Volume> {
        let volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.get(&(subsystem.clone(), nsid)).cloned()
    }

    /// Whether the workers need a ring.
    pub fn needs_ring(&self) -> bool {
        let volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.values().any(Volume::needs_ring)
    }

    /// Opens the storage of all subsystems of the configuration.
    ///
    /// # Errors
    /// The first problem.
    pub fn open_all(&self, config: &NvmfConfig, allocator: &dyn Allocator) -> Result<(), VolumeError> {
        for subsystem in &config.subsystems {
            self.open(subsystem, allocator)?;
        }
        Ok(())
    }

    fn open(&self, config: &SubsystemConfig, allocator: &dyn Allocator) -> Result<(), VolumeError> {
        let mut namespaces = Vec::new();
        let mut volumes = Vec::new();
        for namespace in &config.namespaces {
            let (volume, blocks) = Volume::open(namespace, allocator)?;
            let block_size = match namespace.block_size {
                BlockSize::B512 => rxe_nvmf::subsystem::BlockSize::B512,
                BlockSize::B4096 => rxe_nvmf::subsystem::BlockSize::B4096,
            };
            let mut described = Namespace::new(&config.nqn, namespace.nsid, blocks, block_size);
            described.read_only = namespace.read_only;
            if let Some(uuid) = namespace.uuid {
                described.uuid = uuid;
            }
            namespaces.push(described);
            volumes.push(((config.nqn.clone(), namespace.nsid), volume));
        }
        let subsystem = Subsystem {
            nqn: config.nqn.clone(),
            serial: config.serial.clone(),
            model: config.model.clone(),
            namespaces,
            hosts: config.hosts.clone(),
        };
        self.target().add_subsystem(subsystem)?;
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner).extend(volumes);
        Ok(())
    }
}
