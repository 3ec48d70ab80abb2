//! Admission of commands on a worker: which of them get a place and staging memory, and which wait.
//!
//! Every command that may wait for memory or for the storage goes through here, and nothing else makes it wait before its first
//! transfer: [`Turns`] has the policy. As admission has no more places than the storage takes operations, an admitted command
//! never finds the storage full. Connects and admin commands have memory of their own, in the same turns, so that no I/O keeps a
//! host from connecting. Reads that go straight from the memory of a namespace, and admin commands without data, need no room.

use rxe_inspect::nvmf::NvmfShare;
use rxe_proto::verbs::{Memory, ProtectionDomain, Sge};
use rxe_service::Context;
use rxe_storage::{Ring, RingConfig};

use super::admin_work::AdminWork;
use super::hosts::{HostName, HostNumber, Hosts};
use super::staging::{StagingPool, taken};
use super::turns::{HostShare, Turns};

/// I/O commands of a worker in progress: each has one request in the ring at most.
pub const PLACES: u32 = 512;
/// The part of the memory for I/O that there is besides for admin commands.
const ADMIN_PART: usize = 8;
/// The least memory for admin commands, in bytes.
const MIN_ADMIN: usize = 2 << 20;

/// The settings of a ring for as many commands as are admitted.
pub const RING: RingConfig = RingConfig { depth: PLACES };

/// The use of a piece of staging memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Io,
    Admin,
}

/// Staging memory of a command. It is given back with [`Admission::free`].
#[derive(Debug)]
pub struct Piece {
    piece: rxe_storage::Piece,
    host: HostNumber,
    purpose: Purpose,
}

impl Piece {
    /// The bytes, at least as many as were asked for.
    pub fn memory(&self) -> &Memory {
        self.piece.memory()
    }
}

/// The place of an I/O command in progress. It is given back with [`Admission::leave`].
#[derive(Debug)]
pub struct Place(HostNumber);

/// What an admitted I/O command has.
#[derive(Debug)]
pub struct Grant {
    /// Its place.
    pub place: Place,
    /// Staging, if it needs some.
    pub piece: Option<Piece>,
}

/// Memory for one kind of commands, and who gets it.
struct Class<T> {
    pool: StagingPool,
    turns: Turns<T>,
}

/// The commands of the hosts of a worker. Without memory it admits none.
#[derive(Default)]
pub struct Admission {
    hosts: Hosts,
    classes: Option<(Class<usize>, Class<AdminWork>)>,
}

impl<T> Class<T> {
    fn new(cx: &mut Context<'_>, pd: ProtectionDomain, bytes: usize, places: usize) -> Result<Class<T>, String> {
        let pool = StagingPool::new(cx, pd, bytes)?;
        let turns = Turns::new(pool.capacity(), places);
        Ok(Class { pool, turns })
    }

    /// A new command. Returns `None` when it has to wait.
    fn enter(&mut self, host: HostNumber, len: usize, command: T) -> Option<(T, Option<rxe_storage::Piece>)> {
        let Class { pool, turns } = self;
        turns.enter(host, taken(len), command, || memory(pool, taken(len)))
    }

    /// The next command that has waited.
    fn next(&mut self) -> Option<(HostNumber, T, Option<rxe_storage::Piece>)> {
        let Class { pool, turns } = self;
        turns.next(|bytes| memory(pool, bytes))
    }

    fn free(&mut self, host: HostNumber, piece: rxe_storage::Piece) {
        let len = piece.memory().len();
        self.pool.free(piece);
        self.turns.free(host, taken(len));
    }
}

/// A piece, or none for a command that needs none; `None` when there is no room.
fn memory(pool: &mut StagingPool, len: usize) -> Option<Option<rxe_storage::Piece>> {
    if len == 0 { Some(None) } else { pool.allocate(len).map(Some) }
}

impl Admission {
    /// Admission with `bytes` of memory for I/O.
    ///
    /// # Errors
    /// Why there is no memory, in a sentence.
    pub fn new(cx: &mut Context<'_>, pd: ProtectionDomain, bytes: usize) -> Result<Admission, String> {
        let io = Class::new(cx, pd, bytes, PLACES as usize)?;
        let admin = Class::new(cx, pd, (bytes / ADMIN_PART).max(MIN_ADMIN), usize::MAX)?;
        Ok(Admission { classes: Some((io, admin)), ..Admission::default() })
    }

    /// Whether there is memory.
    pub fn is_usable(&self) -> bool {
        self.classes.is_some()
    }

    /// Lets a ring keep the pages of the memory for I/O mapped.
    pub fn pin(&self, ring: &mut Ring) {
        if let Some((io, _)) = &self.classes {
            io.pool.pin(ring);
        }
    }

    /// A queue of a host comes.
    pub fn join(&mut self, name: HostName) -> HostNumber {
        self.hosts.join(name)
    }

    /// A queue of a host goes, of which nothing waits any more.
    pub fn quit(&mut self, host: HostNumber) {
        self.hosts.leave(host);
    }

    /// A new I/O command, which needs `len` bytes of staging. Returns `None` when it has to wait for [`next_io`](Self::next_io).
    pub fn enter_io(&mut self, host: HostNumber, command: usize, len: usize) -> Option<Grant> {
        let (_, piece) = self.classes.as_mut()?.0.enter(host, len, command)?;
        Some(grant(host, piece))
    }

    /// The next I/O command that has waited.
    pub fn next_io(&mut self) -> Option<(usize, Grant)> {
        let (host, command, piece) = self.classes.as_mut()?.0.next()?;
        Some((command, grant(host, piece)))
    }

    /// A new Connect or admin command, which needs `len` bytes of staging. Returns `None` when it has to wait for
    /// [`next_admin`](Self::next_admin).
    pub fn enter_admin(&mut self, host: HostNumber, work: AdminWork, len: usize) -> Option<(AdminWork, Piece)> {
        let admin = &mut self.classes.as_mut()?.1;
        let (work, piece) = admin.enter(host, len, work)?;
        admin.turns.leave(host);
        Some((work, Piece { piece: piece?, host, purpose: Purpose::Admin }))
    }

    /// The next admin command that has waited.
    pub fn next_admin(&mut self) -> Option<(AdminWork, Piece)> {
        let admin = &mut self.classes.as_mut()?.1;
        let (host, work, piece) = admin.next()?;
        // Memory is what counts.
        admin.turns.leave(host);
        Some((work, Piece { piece: piece?, host, purpose: Purpose::Admin }))
    }

    /// Forgets the I/O commands of a host that wait and of which `is_gone` says so.
    pub fn withdraw_io(&mut self, host: HostNumber, mut is_gone: impl FnMut(usize) -> bool) {
        if let Some((io, _)) = &mut self.classes {
            io.turns.withdraw(host, |command| is_gone(*command));
        }
    }

    /// The same for Connects and admin commands.
    pub fn withdraw_admin(&mut self, host: HostNumber, is_gone: impl FnMut(&AdminWork) -> bool) {
        if let Some((_, admin)) = &mut self.classes {
            admin.turns.withdraw(host, is_gone);
        }
    }

    /// An I/O command is no longer in progress.
    pub fn leave(&mut self, Place(host): Place) {
        if let Some((io, _)) = &mut self.classes {
            io.turns.leave(host);
        }
    }

    /// Takes a piece back, which nothing reads or writes any more.
    pub fn free(&mut self, Piece { piece, host, purpose }: Piece) {
        match (&mut self.classes, purpose) {
            (Some((io, _)), Purpose::Io) => io.free(host, piece),
            (Some((_, admin)), Purpose::Admin) => admin.free(host, piece),
            // Not reached: there is no memory for pieces.
            (None, _) => {}
        }
    }

    /// Takes back all that an I/O command had.
    pub fn end(&mut self, Grant { place, piece }: Grant) {
        self.leave(place);
        if let Some(piece) = piece {
            self.free(piece);
        }
    }

    /// The first `len` bytes of a piece for a work request.
    pub fn sge(&self, piece: &Piece, len: u32) -> Sge {
        match (&self.classes, piece.purpose) {
            (Some((io, _)), Purpose::Io) => io.pool.sge(&piece.piece, len),
            (Some((_, admin)), Purpose::Admin) => admin.pool.sge(&piece.piece, len),
            (None, _) => Sge::default(),
        }
    }

    /// What the hosts have and wait for.
    pub fn report(&self, worker: usize) -> Vec<NvmfShare> {
        let Some((io, admin)) = &self.classes else { return Vec::new() };
        let all = io.turns.shares().into_iter().map(|share| ("io", share));
        let all = all.chain(admin.turns.shares().into_iter().map(|share| ("admin", share)));
        let report = |(class, share): (&str, HostShare)| NvmfShare {
            worker: worker as u32,
            class: class.to_owned(),
            host: self.hosts.name(share.host).map_or_else(|| "-".to_owned(), ToString::to_string),
            commands: share.commands as u64,
            bytes: share.bytes as u64,
            waiting: share.waiting as u64,
            waiting_bytes: share.waiting_bytes as u64,
        };
        all.map(report).collect()
    }

    /// Bytes in use, and commands that wait.
    #[cfg(test)]
    pub fn in_use(&self) -> (usize, usize) {
        let shares = self.report(0);
        let sum = |of: fn(&NvmfShare) -> u64| shares.iter().map(of).sum::<u64>() as usize;
        (sum(|share| share.bytes + share.commands), sum(|share| share.waiting))
    }

    /// Whether there are hosts with queues.
    #[cfg(test)]
    pub fn has_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }
}

fn grant(host: HostNumber, piece: Option<rxe_storage::Piece>) -> Grant {
    let piece = piece.map(|piece| Piece { piece, host, purpose: Purpose::Io });
    Grant { place: Place(host), piece }
}
