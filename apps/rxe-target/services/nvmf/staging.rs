//! Staging memory of a worker, registered for RDMA, and the share of each address in it.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use rxe_proto::verbs::{Access, Memory, MemoryRegion, ProtectionDomain, Sge};
use rxe_service::Context;
use rxe_storage::{PAGE, Ring, Staging, StagingConfig};

use crate::services::usage::Usage;

/// Two transfers of a Compare.
const MAX_PIECE: usize = 2 << 20;

/// The use of a piece of staging memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The data of an I/O command, which waits behind those of its address that wait already.
    Io,
    /// The data of an I/O command that [`StagingPool::next_ready`] returned.
    Waited,
    /// The data of a Connect or an admin command, which does not wait: I/O commands leave an eighth of the pool for these.
    Admin,
}

/// Why there is no piece now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRoom {
    /// The pool has none.
    Pool,
    /// The address uses its share.
    Share,
}

/// A piece of the pool, which belongs to the share of an address.
#[derive(Debug)]
pub struct Piece {
    piece: rxe_storage::Piece,
    owner: IpAddr,
}

impl Piece {
    /// The bytes, as many as were asked for.
    pub fn memory(&self) -> &Memory {
        self.piece.memory()
    }
}

/// The pool's memory.
struct Buffers {
    staging: Staging,
    region: MemoryRegion,
}

/// A pool of buffers for the data of commands. Without memory it has none.
#[derive(Default)]
pub struct StagingPool {
    buffers: Option<Buffers>,
    used: Usage,
    /// Commands that wait for the share of their address, with the bytes that they need. An address in it uses memory or is woken.
    waiting: HashMap<IpAddr, VecDeque<(usize, usize)>>,
    /// Addresses of which a piece came back.
    woken: VecDeque<IpAddr>,
}

/// Bytes that a piece takes of the pool.
fn taken(len: usize) -> usize {
    len.max(PAGE).next_power_of_two()
}

/// Whether an address with `used` bytes of a pool of `capacity` may have a piece of `len` more. One that uses nothing may always.
fn is_within_share(capacity: usize, used: usize, len: usize, purpose: Purpose) -> bool {
    let share = match purpose {
        Purpose::Io | Purpose::Waited => capacity / 2,
        Purpose::Admin => capacity / 2 + capacity / 8,
    };
    used == 0 || used + taken(len) <= share
}

impl StagingPool {
    /// A pool of `bytes`.
    ///
    /// # Errors
    /// Why there is no memory, in a sentence.
    pub fn new(cx: &mut Context<'_>, pd: ProtectionDomain, bytes: usize) -> Result<StagingPool, String> {
        let config = StagingConfig { bytes, max_piece: MAX_PIECE };
        let staging = Staging::new(cx.allocator(), config).map_err(|error| error.to_string())?;
        let memory = staging.memory().clone();
        let region = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        Ok(StagingPool { buffers: Some(Buffers { staging, region }), ..StagingPool::default() })
    }

    /// Whether the pool has memory.
    pub fn is_usable(&self) -> bool {
        self.buffers.is_some()
    }

    /// Bytes in use.
    #[cfg(test)]
    pub fn in_use(&self) -> u64 {
        self.buffers.as_ref().map_or(0, |buffers| buffers.staging.stats().in_use)
    }

    /// Number of commands that wait for the share of their address.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum::<usize>()
    }

    /// Lets a ring keep the pages of the pool mapped.
    pub fn pin(&self, ring: &mut Ring) {
        if let Some(buffers) = &self.buffers {
            ring.pin(buffers.staging.memory());
        }
    }

    /// A piece of the share of `owner`.
    ///
    /// # Errors
    /// There is no room now.
    pub fn allocate(&mut self, owner: IpAddr, len: usize, purpose: Purpose) -> Result<Piece, NoRoom> {
        let buffers = self.buffers.as_mut().ok_or(NoRoom::Pool)?;
        let capacity = buffers.staging.stats().capacity as usize;
        let is_behind = purpose == Purpose::Io && self.waiting.contains_key(&owner);
        if is_behind || !is_within_share(capacity, self.used.of(owner), len, purpose) {
            return Err(NoRoom::Share);
        }
        let piece = buffers.staging.allocate(len).ok_or(NoRoom::Pool)?;
        self.used.take(owner, taken(len));
        Ok(Piece { piece, owner })
    }

    /// Keeps a command whose address uses its share until that has room for `len` bytes.
    pub fn wait(&mut self, owner: IpAddr, command: usize, len: usize) {
        self.waiting.entry(owner).or_default().push_back((command, len));
    }

    /// The next command whose address has room again; it is to be tried before the next call.
    pub fn next_ready(&mut self) -> Option<usize> {
        let capacity = self.buffers.as_ref()?.staging.stats().capacity as usize;
        while let Some(&owner) = self.woken.front() {
            if let Some(waiting) = self.waiting.get_mut(&owner) {
                let used = self.used.of(owner);
                let has_room = |&(_, len): &(usize, usize)| is_within_share(capacity, used, len, Purpose::Waited);
                let ready = if waiting.front().is_some_and(has_room) { waiting.pop_front() } else { None };
                if waiting.is_empty() {
                    self.waiting.remove(&owner);
                }
                if let Some((command, _)) = ready {
                    return Some(command);
                }
            }
            self.woken.pop_front();
        }
        None
    }

    /// Takes a piece back.
    pub fn free(&mut self, piece: Piece) {
        let Some(buffers) = &mut self.buffers else { return };
        let (owner, len) = (piece.owner, piece.memory().len());
        buffers.staging.free(piece.piece);
        self.used.give_back(owner, taken(len));
        if self.waiting.contains_key(&owner) && !self.woken.contains(&owner) {
            self.woken.push_back(owner);
        }
    }

    /// The first `len` bytes of a piece for a work request.
    pub fn sge(&self, piece: &Piece, len: u32) -> Sge {
        let Some(Buffers { staging, region }) = &self.buffers else { return Sge::default() };
        let offset = piece.memory().as_ptr() as usize - staging.memory().as_ptr() as usize;
        Sge { addr: region.addr() + offset as u64, length: len, lkey: region.lkey() }
    }
}
