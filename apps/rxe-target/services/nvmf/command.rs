//! What the service remembers of commands in progress: I/O commands, and Connects.

use rxe_nvmf::controller::FenceId;
use rxe_nvmf::io::CommandTag;
use rxe_nvmf::subsystem::NamespaceView;
use rxe_nvmf::wire::{ConnectData, DataLocation, HostBuffer, Sqe};
use rxe_proto::Instant;
use rxe_proto::verbs::{Memory, Qpn, RemoteAddr};
use rxe_storage::{Completion, NamespaceId};

use super::namespaces::Namespace;
use super::staging::Piece;
use super::work::Work;

/// Staging that a backend may read or write. It cannot be freed before the operation is complete.
#[derive(Debug)]
pub struct Lent(Option<Piece>);

impl Lent {
    /// The storage has begun an operation on a piece, if the command has one.
    pub fn new(piece: Option<Piece>) -> Lent {
        Lent(piece)
    }

    /// The operation is complete: the piece is the command's again.
    pub fn returned(self, _completion: &Completion) -> Option<Piece> {
        self.0
    }
}

/// The state of a command: what it waits for, and where its staging is.
#[derive(Debug)]
pub enum Stage {
    /// It waits for room in the staging pool.
    Room,
    /// It waits for room in its address's share of the staging pool.
    Share,
    /// It waits for the host's data, by RDMA READ. Its queue has the staging.
    Fetch,
    /// Its data are complete: the next operation can be submitted, or waits for room in the storage.
    Ready(Option<Piece>),
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
}

impl Command {
    /// Whether the command accesses this namespace.
    pub fn uses(&self, namespace: NamespaceId) -> bool {
        let flushes = matches!(&self.work, Work::Flush { namespaces } if namespaces.contains(&namespace));
        self.namespace.storage == namespace || flushes
    }
}

/// A Connect whose data are being fetched: its queue has the staging.
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
}

/// Flag of the numbers of READs that fetch the data of a Connect; the queue pair is in the lower bits.
pub const CONNECT: usize = 1 << 40;

/// The host's memory of a descriptor.
pub fn remote(HostBuffer { addr, rkey, .. }: HostBuffer) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}
