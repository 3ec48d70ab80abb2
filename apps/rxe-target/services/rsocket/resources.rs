//! The memory of a client: a region that it may write, one that only we touch, and the buffer that it has mapped.

use std::net::IpAddr;

use rxe_proto::verbs::{Access, Memory, MemoryRegion, ProtectionDomain, RemoteAddr};
use rxe_service::{BudgetId, Context, Lease, LendError, Refusal, Standing};

use super::data::{BUFFER, Buffer, ConnData, ENTRIES};
use super::mapped::{ENTRY, Entry, Markers, NOTHING_YET};
use rxe_proto::mem::RegisterError;

/// Messages that a client may be ahead.
pub const QUEUE: u16 = 256;
/// Half of the ring that a client writes to.
pub const HALF: u32 = 128 << 10;
/// Offset of the table of mapped buffers, behind the list of buffers, in the region that a client may write.
pub const TABLE: usize = ENTRIES as usize * BUFFER;
/// Offset of the ring, behind both.
pub const RING: usize = 64;
/// Length of the region that a client may write.
const SHARED: usize = RING + 2 * HALF as usize;
/// Memory for what was sent and is not acknowledged.
pub const SEND_RING: u32 = 256 << 10;

/// Why a client gets no memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Its account does not admit it, or there is none.
    #[error("{0}")]
    Lend(LendError),
    /// The key table takes no more.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// The memory of one connection, in a protection domain of its own.
pub struct ConnResources {
    /// Protection domain of the memory and of the connection's queue pair.
    pub pd: ProtectionDomain,
    /// Memory that the client may write.
    pub shared: MemoryRegion,
    /// Memory that only we access.
    pub own: MemoryRegion,
    /// The memory of both.
    lease: Lease,
}

impl ConnResources {
    /// Memory for a client that has not confirmed its connection yet, in the domain `pd`.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn new(
        cx: &mut Context<'_>,
        budget: BudgetId,
        client: IpAddr,
        pd: ProtectionDomain,
    ) -> Result<ConnResources, MemoryError> {
        let lease = cx.lend(budget, client, SHARED + SEND_RING as usize, Standing::Unproven);
        let lease = lease.map_err(MemoryError::Lend)?;
        let registered = ConnResources::register(cx, pd, lease.memory());
        match registered {
            Ok((shared, own)) => Ok(ConnResources { pd, shared, own, lease }),
            Err(error) => {
                cx.take_back(lease);
                Err(error.into())
            }
        }
    }

    fn register(
        cx: &mut Context<'_>,
        pd: ProtectionDomain,
        memory: &Memory,
    ) -> Result<(MemoryRegion, MemoryRegion), RegisterError> {
        // Both parts are inside, as the memory has the length of both.
        let part = |offset, len| memory.slice(offset, len).unwrap_or_else(|| memory.clone());
        let shared = cx.device().reg_mr(pd, part(0, SHARED), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        match cx.device().reg_mr(pd, part(SHARED, SEND_RING as usize), Access::LOCAL_WRITE) {
            Ok(own) => Ok((shared, own)),
            Err(error) => {
                let _ = cx.device().dereg_mr(&shared);
                Err(error)
            }
        }
    }

    /// The client has confirmed its connection: its memory is charged to its address.
    ///
    /// # Errors
    /// The address has its share.
    pub fn prove(&mut self, cx: &mut Context<'_>) -> Result<(), Refusal> {
        cx.prove(&mut self.lease)
    }

    /// Gives the memory back. Returns the protection domain, which is free when the queue pair is destroyed.
    pub fn close(self, cx: &mut Context<'_>) -> ProtectionDomain {
        // No window is bound to them.
        let _ = (cx.device().dereg_mr(&self.shared), cx.device().dereg_mr(&self.own));
        cx.take_back(self.lease);
        self.pd
    }

    /// Our connection data for the client.
    pub fn conn_data(&self) -> ConnData {
        let (addr, rkey) = (self.shared.addr(), self.shared.rkey());
        ConnData {
            big_endian: false,
            iomap: true,
            credits: QUEUE,
            iomap_entries: 1,
            list: RemoteAddr { addr, rkey },
            entries: ENTRIES,
            buffer: self.half(0),
        }
    }

    /// The half of the ring that begins at `offset`.
    pub fn half(&self, offset: u32) -> Buffer {
        let addr = self.shared.addr() + RING as u64 + u64::from(offset);
        Buffer { at: RemoteAddr { addr, rkey: self.shared.rkey() }, length: HALF }
    }

    /// An entry of our list, which the client writes.
    pub fn entry(&self, index: u32) -> Buffer {
        let mut entry = [0; BUFFER];
        // The entry lies inside; an empty one is refused.
        let _ = self.shared.memory().read(index as usize * BUFFER, &mut entry);
        Buffer::parse(&entry)
    }

    /// The entry of our table of mapped buffers, which the client writes.
    pub fn mapped(&self) -> Entry {
        let mut entry = [0; ENTRY];
        // The entry lies inside; an empty one is refused.
        let _ = self.shared.memory().read(TABLE, &mut entry);
        Entry::parse(&entry)
    }
}

/// A buffer that the client has mapped, and the client's buffer that it is paired with.
pub struct Mapped {
    lease: Lease,
    /// The part that the client may write.
    pub region: MemoryRegion,
    /// The client's.
    pub peer: Entry,
    markers: Markers,
}

impl Mapped {
    /// A buffer as long as the client's.
    pub fn new(
        cx: &mut Context<'_>,
        budget: BudgetId,
        client: IpAddr,
        pd: ProtectionDomain,
        peer: Entry,
    ) -> Result<Mapped, MemoryError> {
        let length = peer.buffer.length as usize;
        let lease = cx.lend(budget, client, length, Standing::Proven).map_err(MemoryError::Lend)?;
        let memory = lease.memory();
        let _ = memory.write(length.saturating_sub(1), &[NOTHING_YET]);
        let part = memory.slice(0, length).unwrap_or_else(|| memory.clone());
        match cx.device().reg_mr(pd, part, Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
            Ok(region) => Ok(Mapped { lease, region, peer, markers: Markers::default() }),
            Err(error) => {
                cx.take_back(lease);
                Err(error.into())
            }
        }
    }

    /// Gives it back.
    pub fn close(self, cx: &mut Context<'_>) {
        let _ = cx.device().dereg_mr(&self.region);
        cx.take_back(self.lease);
    }

    /// The client's entry for it.
    pub fn entry(&self) -> Entry {
        let at = RemoteAddr { addr: self.region.addr(), rkey: self.region.rkey() };
        Entry { offset: self.peer.offset, buffer: Buffer { at, length: self.peer.buffer.length } }
    }

    /// Whether the client is done with it; then the last byte has the marker to send back.
    pub fn turn(&mut self) -> bool {
        let last_at = self.region.memory().len().saturating_sub(1);
        let mut last = [0];
        if self.region.memory().read(last_at, &mut last).is_err() {
            return false;
        }
        let answer = self.markers.seen(last[0]);
        answer.is_some_and(|marker| self.region.memory().write(last_at, &[marker]).is_ok())
    }
}
