//! What the service remembers of commands in progress: I/O commands, and Connects.

use rxe_nvmf::controller::{FenceId, QueueKey};
use rxe_nvmf::io::CommandTag;
use rxe_nvmf::subsystem::NamespaceView;
use rxe_nvmf::wire::{ConnectData, DataLocation, HostBuffer, Sqe};
use rxe_proto::Instant;
use rxe_proto::verbs::{Memory, Qpn, RemoteAddr};
use rxe_storage::{Completion, NamespaceId};

use super::admission::{Grant, Place};
use super::namespaces::Namespace;
use super::work::Work;

/// What a backend uses: it cannot be given back before the operation is complete.
#[derive(Debug)]
pub struct Lent(Grant);

impl Lent {
    /// The storage has begun an operation.
    pub fn new(grant: Grant) -> Lent {
        Lent(grant)
    }

    /// The operation is complete: what it used is the command's again.
    pub fn returned(self, _completion: &Completion) -> Grant {
        self.0
    }
}

/// The state of a command: what it waits for, and where its staging is.
#[derive(Debug)]
pub enum Stage {
    /// It waits for admission.
    Admission,
    /// It waits for the host's data, by RDMA READ. Its queue has the staging.
    Fetch(Place),
    /// Its data are complete: the next operation can be submitted.
    Ready(Grant),
    /// It waits for the storage, which may use the staging.
    Storage(Lent),
}

/// A command in progress.
pub struct Command {
    /// Its queue, while that is connected and its controller lives.
    pub queue: Option<Qpn>,
    /// The commands of its queue, for the controllers.
    pub fence: FenceId,
    /// The receive of the command.
    pub slot: u16,
    /// Identity of the command, for its response.
    pub tag: CommandTag,
    /// Its namespace in the storage of the worker.
    pub namespace: Namespace,
    /// The namespace as hosts see it.
    pub view: NamespaceView,
    /// When it arrived.
    pub arrived: Instant,
    /// Storage operations of the command.
    pub work: Work,
    /// Where its data are, until they are fetched.
    pub from: DataLocation,
    /// Data that stay in the capsule.
    pub in_place: Option<Memory>,
    /// What it waits for.
    pub stage: Stage,
    /// Not used again on this worker.
    pub number: u64,
}

impl Command {
    /// Whether nothing happens before the host has sent data.
    pub fn waits_for_host(&self) -> bool {
        match self.stage {
            Stage::Admission => matches!(self.from, DataLocation::Host(_)),
            Stage::Fetch(_) => true,
            Stage::Ready(_) | Stage::Storage(_) => false,
        }
    }

    /// Whether the command accesses this namespace.
    pub fn uses(&self, namespace: NamespaceId) -> bool {
        let flushes = matches!(&self.work, Work::Flush { namespaces } if namespaces.contains(&namespace));
        self.namespace.storage == namespace || flushes
    }
}

/// A Connect whose data are being fetched, or wait for memory.
pub struct PendingConnect {
    /// The receive of the command.
    pub slot: u16,
    /// The command.
    pub sqe: Sqe,
}

/// A Connect of a host whose earlier commands are still in the storage.
pub struct DeferredConnect {
    /// The queue pair.
    pub queue: Qpn,
    /// The receive of the command.
    pub slot: u16,
    /// The command.
    pub sqe: Sqe,
    /// Its data.
    pub data: Box<ConnectData>,
    /// When it is refused.
    pub until: Instant,
    /// Number of workers that have still to reply, once the commands of other connections of the host have been asked for.
    pub awaited: Option<usize>,
}

/// Commands that a Connect waits for.
pub struct Awaited {
    /// Its queue pair.
    pub connect: QueueKey,
    /// Index and number of each.
    pub commands: Vec<(usize, u64)>,
}

/// Flag of the numbers of READs that fetch the data of a Connect; the queue pair is in the lower bits.
pub const CONNECT: usize = 1 << 40;

/// The host's memory of a descriptor.
pub fn remote(HostBuffer { addr, rkey, .. }: HostBuffer) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}
