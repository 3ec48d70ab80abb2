//! Changes that management makes to a running worker: named regions, services.
//!
//! A named region comes and goes in two steps, so that a change that one worker refuses can be taken back on the others:
//!
//! ```text
//! add:    StageRegion (the keys, in parts) -> PublishRegion: services get to know it
//! remove: WithdrawRegion: services forget it -> ReleaseRegion (the keys, in parts)
//! ```
//!
//! A worker stages one region at a time. Management sends each message after the answer to the one before, so a part is the
//! most work that a worker does for it in one turn of its loop.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use rxe_proto::mem::{MemoryRegion, RegisterError};
use rxe_proto::wire::PrefixList;

/// A named region without its keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionHead {
    /// The name, or the prefix of numbered names.
    pub name: String,
    /// Whether the regions are numbered.
    pub is_numbered: bool,
    /// The name of the protection domain; `None` for one of its own.
    pub domain: Option<String>,
    /// The file with its bytes.
    pub file: Option<PathBuf>,
}

/// A change to one worker. The answer goes to `reply`; it is lost when the other end of that is closed or full.
#[derive(Debug)]
pub enum Change {
    /// Adopts keys of the shared table for a region that no service knows yet. The answer is why the worker cannot; the keys
    /// of this part may then be adopted in part, and [`ReleaseRegion`](Change::ReleaseRegion) takes them back.
    StageRegion {
        /// The region; the same for all of its parts.
        head: Arc<RegionHead>,
        /// The next of its keys.
        part: Vec<MemoryRegion>,
        /// Receives the answer.
        reply: SyncSender<Result<(), RegisterError>>,
    },
    /// Puts the staged region at this position of the list of regions, and calls the services with it.
    PublishRegion {
        /// The position; the end of the list if there are fewer regions.
        at: usize,
        /// Receives a notification.
        reply: SyncSender<()>,
    },
    /// Counts the users of a region: queue pairs in its protection domain.
    CountRegionUsers {
        /// Name of the region.
        name: String,
        /// Receives the answer.
        reply: SyncSender<u32>,
    },
    /// Takes a region from the list, after which it is staged, and calls the services. Its keys stay valid. The answer is
    /// the number of its users, which keep it in the list unless `force` is set.
    WithdrawRegion {
        /// Name of the region.
        name: String,
        /// Withdraw it although it has users.
        force: bool,
        /// Receives the answer.
        reply: SyncSender<Result<(), u32>>,
    },
    /// Deregisters keys of the staged region, the last ones first. With the last key the region is gone. The answer is the
    /// number of keys left.
    ReleaseRegion {
        /// Most keys to deregister.
        most: usize,
        /// Receives the answer.
        reply: SyncSender<usize>,
    },
    /// Disconnects the connections of a service, and resets its TCP streams. The answer is how many there are.
    DisconnectService {
        /// The number of the service.
        service: usize,
        /// Receives the answer.
        reply: SyncSender<usize>,
    },
    /// Changes the control side. Any worker passes it on.
    Control(ControlChange),
    /// Calls [`Service::manage`](crate::Service::manage).
    ManageService {
        /// The number of the service.
        service: usize,
        /// The request.
        request: Arc<str>,
        /// Receives the answer.
        reply: SyncSender<Result<String, String>>,
    },
}

/// A change of the control side that management makes.
#[derive(Debug)]
pub enum ControlChange {
    /// Stops a service, which then refuses new clients, or starts it again.
    SetStopped {
        /// The number of the service.
        service: usize,
        /// True to stop the service, false to start it.
        stopped: bool,
        /// Receives a notification.
        reply: SyncSender<()>,
    },
    /// Sets the allowed peers of a service. Its clients stay.
    SetAllowed {
        /// The number of the service.
        service: usize,
        /// The peers; `None` for everyone.
        peers: Option<PrefixList>,
        /// Receives a notification.
        reply: SyncSender<()>,
    },
}
