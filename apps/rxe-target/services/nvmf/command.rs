//! What the service remembers of commands in progress: I/O commands, and Connects.

use rxe_nvmf::io::CommandTag;
use rxe_nvmf::subsystem::NamespaceView;
use rxe_nvmf::wire::{DataLocation, HostBuffer, Sqe};
use rxe_proto::Instant;
use rxe_proto::verbs::{Memory, Qpn, RemoteAddr};
use rxe_storage::NamespaceId;

use super::namespaces::Namespace;
use super::staging::Piece;
use super::work::Work;

/// The resource or event that a command waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Room in the staging pool.
    Room,
    /// Room in its address's share of the staging pool.
    Share,
    /// The host's data, by RDMA READ.
    Fetch,
    /// Room in the storage.
    Submit,
    /// The storage.
    Storage,
}

/// A command in progress.
pub struct Command {
    /// Its queue, while that is connected.
    pub queue: Option<Qpn>,
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
    /// Staging for its data.
    pub piece: Option<Piece>,
    /// The resource or event that the command waits for.
    pub stage: Stage,
}

impl Command {
    /// Whether the command accesses this namespace.
    pub fn uses(&self, namespace: NamespaceId) -> bool {
        let flushes = matches!(&self.work, Work::Flush { namespaces } if namespaces.contains(&namespace));
        self.namespace.storage == namespace || flushes
    }
}

/// A Connect whose data are being fetched.
pub struct PendingConnect {
    /// The receive of the command.
    pub slot: u16,
    /// The command.
    pub sqe: Sqe,
    /// Staging memory that receives the data.
    pub piece: Piece,
}

/// Flag of the numbers of READs that fetch the data of a Connect; the queue pair is in the lower bits.
pub const CONNECT: usize = 1 << 40;

/// The host's memory of a descriptor.
pub fn remote(HostBuffer { addr, rkey, .. }: HostBuffer) -> RemoteAddr {
    RemoteAddr { addr, rkey }
}
