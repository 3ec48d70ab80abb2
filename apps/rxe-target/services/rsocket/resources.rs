//! The memory of a client: a region that it may write, one that only we touch, and the buffer that it has mapped.

use rxe_proto::verbs::{Access, Memory, MemoryRegion, ProtectionDomain, RemoteAddr};
use rxe_service::Context;

use super::super::endpoint::Pool;
use super::data::{BUFFER, Buffer, ConnData, ENTRIES};
use super::mapped::{ENTRY, Entry, Markers, NOTHING_YET};

/// Messages that a client may be ahead.
pub const QUEUE: u16 = 256;
/// Half of the ring that a client writes to.
pub const HALF: u32 = 128 << 10;
/// Offset of the table of mapped buffers, behind the list of buffers, in the region that a client may write.
pub const TABLE: usize = ENTRIES as usize * BUFFER;
/// Offset of the ring, behind both.
pub const RING: usize = 64;
/// Memory for what was sent and is not acknowledged.
pub const SEND_RING: u32 = 256 << 10;

/// A protection domain and the memory of one connection. Outlives connections: the next one takes it over.
pub struct ConnResources {
    /// Protection domain of the memory and of the connection's queue pair.
    pub pd: ProtectionDomain,
    /// Memory that the client may write.
    pub shared: MemoryRegion,
    /// Memory that only we access.
    pub own: MemoryRegion,
}

impl ConnResources {
    /// Fresh memory.
    pub fn new(cx: &mut Context<'_>) -> Result<ConnResources, String> {
        let shared = cx.alloc_memory(RING + 2 * HALF as usize).map_err(|error| error.to_string())?;
        let own = cx.alloc_memory(SEND_RING as usize).map_err(|error| error.to_string())?;
        let pd = cx.device().alloc_pd();
        match cx.device().reg_mr(pd, shared, Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
            Ok(shared) => match cx.device().reg_mr(pd, own, Access::LOCAL_WRITE) {
                Ok(own) => Ok(ConnResources { pd, shared, own }),
                Err(error) => {
                    let _ = cx.device().dereg_mr(&shared);
                    let _ = cx.device().dealloc_pd(pd);
                    Err(error.to_string())
                }
            },
            Err(error) => {
                let _ = cx.device().dealloc_pd(pd);
                Err(error.to_string())
            }
        }
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
    /// As it came from the pool.
    memory: Memory,
    /// The part that the client may write.
    pub region: MemoryRegion,
    /// The client's.
    pub peer: Entry,
    markers: Markers,
}

impl Mapped {
    /// A buffer as long as the client's.
    pub fn new(cx: &mut Context<'_>, pool: &mut Pool, pd: ProtectionDomain, peer: Entry) -> Result<Mapped, String> {
        let length = peer.buffer.length as usize;
        let memory = pool.take(length, |size| cx.alloc_memory(size)).map_err(|error| error.to_string())?;
        // A client must not see the bytes of the one before.
        let _ = memory.fill(0, memory.len(), 0);
        let _ = memory.write(length.saturating_sub(1), &[NOTHING_YET]);
        let part = memory.slice(0, length).unwrap_or_else(|| memory.clone());
        match cx.device().reg_mr(pd, part, Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
            Ok(region) => Ok(Mapped { memory, region, peer, markers: Markers::default() }),
            Err(error) => {
                pool.give(memory);
                Err(error.to_string())
            }
        }
    }

    /// Takes it back.
    pub fn close(self, cx: &mut Context<'_>, pool: &mut Pool) {
        let _ = cx.device().dereg_mr(&self.region);
        pool.give(self.memory);
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
