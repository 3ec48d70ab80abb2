//! Parts of the services that exchange 16-byte messages: a queue pair, a protection domain of its own, and memory for
//! messages; and a pool for larger buffers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::mem::AllocError;
use rxe_proto::verbs::{
    Access, Memory, MemoryRegion, PostError, ProtectionDomain, QpCaps, QueuePair, Rc, RecvWr, Sge, WorkRequest,
};
use rxe_proto::wire::cm::RejReason;
use rxe_service::{Context, Decision};

use super::metrics::{ServiceMetrics, caller};

/// Length of every message.
pub const MESSAGE: usize = 16;
/// Receives posted at any time.
const RECEIVES: u64 = 4;
/// A ping of rping needs the most: READ, SEND, WRITE and SEND, while the last two before may not be acknowledged yet.
const CAPS: QpCaps =
    QpCaps { max_send_wr: 8, max_recv_wr: RECEIVES as u32, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// Offset of the outgoing message, behind the receives.
const SEND_OFFSET: usize = RECEIVES as usize * MESSAGE;
/// Our numbers of work requests: receives have those below [`RECEIVES`].
const WR_SEND: u64 = 0x100;
/// The number that services give their READs and WRITEs.
pub const WR_RDMA: u64 = 0x101;

/// A protection domain and memory for messages that only we may touch. Outlives connections: the next one takes it
/// over, since a protection domain can be freed only after its queue pair is destroyed.
struct ConnResources {
    pd: ProtectionDomain,
    messages: MemoryRegion,
}

/// The resources that no connection uses.
#[derive(Default)]
pub struct ResourcePool(Vec<ConnResources>);

/// A connection: queue pair and messages. Its peer may access no memory except what the service registers.
pub struct Endpoint {
    /// The connection manager's handle.
    pub conn: ConnId,
    /// The client's address.
    pub client: SocketAddr,
    /// The queue pair.
    pub qp: QueuePair<Rc>,
    resources: ConnResources,
}

impl ResourcePool {
    /// A queue pair whose peer has the rights `access`, with receives posted, and the connection counted; or the refusal
    /// to send.
    pub fn open(
        &mut self,
        cx: &mut Context<'_>,
        request: &ConnectRequest,
        access: Access,
        metrics: &ServiceMetrics,
    ) -> Result<Endpoint, Decision> {
        let now = cx.now();
        let lacks = |what: &str, error: &dyn fmt::Display| {
            metrics.reject(now, request, RejReason::NoResources, format!("no {what}: {error}"))
        };
        let conn = request.conn;
        let resources = match self.0.pop() {
            Some(resources) => resources,
            None => {
                let messages = cx.alloc_memory(SEND_OFFSET + MESSAGE).map_err(|e| lacks("memory", &e))?;
                let pd = cx.device().alloc_pd();
                match cx.device().reg_mr(pd, messages, Access::LOCAL_WRITE) {
                    Ok(messages) => ConnResources { pd, messages },
                    Err(error) => {
                        let _ = cx.device().dealloc_pd(pd);
                        return Err(lacks("memory region", &error));
                    }
                }
            }
        };
        let attr = cx.qp_attr().with_caps(CAPS);
        let qp = match cx.device().create_qp_in_init(resources.pd, attr, access) {
            Ok(qp) => qp,
            Err(error) => {
                self.0.push(resources);
                return Err(metrics.reject(cx.now(), request, RejReason::NoQp, format!("no queue pair: {error}")));
            }
        };
        let endpoint = Endpoint { conn, client: caller(request), qp, resources };
        for slot in 0..RECEIVES {
            if let Err(error) = endpoint.post_recv(cx, slot) {
                let _ = cx.device().destroy_qp(qp);
                self.close(endpoint);
                return Err(lacks("receive queue", &error));
            }
        }
        metrics.connections.inc();
        Ok(endpoint)
    }

    /// Keeps the resources of a connection for the next one. The runtime destroys its queue pair.
    pub fn close(&mut self, endpoint: Endpoint) {
        self.0.push(endpoint.resources);
    }
}

impl Endpoint {
    /// The protection domain for further regions.
    pub fn pd(&self) -> ProtectionDomain {
        self.resources.pd
    }

    /// Posts the receive `slot` (again).
    pub fn post_recv(&self, cx: &mut Context<'_>, slot: u64) -> Result<(), PostError> {
        let sge = self.sge(slot as usize * MESSAGE);
        cx.device().post_recv(self.qp, RecvWr { wr_id: slot, sges: &[sge] })
    }

    /// The message that the completed receive `slot` got, if it was one: `byte_len` must be its length.
    pub fn message(&self, slot: u64, byte_len: u32) -> Option<[u8; MESSAGE]> {
        if slot >= RECEIVES || byte_len as usize != MESSAGE {
            return None;
        }
        let mut message = [0; MESSAGE];
        self.resources.messages.memory().read(slot as usize * MESSAGE, &mut message).ok()?;
        Some(message)
    }

    /// Sends a message. There is room for one: a second may be sent only when the peer has answered the first, or if
    /// it is the same.
    pub fn send(&self, cx: &mut Context<'_>, message: &[u8; MESSAGE]) -> Result<(), PostError> {
        // The memory was made large enough, so this cannot fail; if it did, the peer would see old bytes.
        let _ = self.resources.messages.memory().write(SEND_OFFSET, message);
        cx.device().post_send(self.qp, WorkRequest::send(&[self.sge(SEND_OFFSET)]).wr_id(WR_SEND).signaled())
    }

    fn sge(&self, offset: usize) -> Sge {
        let messages = &self.resources.messages;
        Sge { addr: messages.addr() + offset as u64, length: MESSAGE as u32, lkey: messages.lkey() }
    }
}

/// Buffers that connections left behind, for the next ones. Sizes are powers of two, so that they fit again.
pub struct Pool {
    free: BTreeMap<usize, Vec<Memory>>,
    kept: usize,
    keep: usize,
}

/// The smallest buffer.
const MIN_BUFFER: usize = 4096;

impl Pool {
    /// A pool that keeps up to `keep` unused bytes.
    pub fn new(keep: usize) -> Pool {
        Pool { free: BTreeMap::new(), kept: 0, keep }
    }

    /// A buffer of at least `len` bytes from the pool or else from `allocate`. A used one has old bytes in it.
    pub fn take(
        &mut self,
        len: usize,
        allocate: impl FnOnce(usize) -> Result<Memory, AllocError>,
    ) -> Result<Memory, AllocError> {
        let size = len.max(MIN_BUFFER).next_power_of_two();
        match self.free.get_mut(&size).and_then(Vec::pop) {
            Some(memory) => {
                self.kept -= size;
                Ok(memory)
            }
            None => allocate(size),
        }
    }

    /// Takes a buffer back.
    pub fn give(&mut self, memory: Memory) {
        let size = memory.len();
        if self.kept.saturating_add(size) <= self.keep {
            self.kept += size;
            self.free.entry(size).or_default().push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_gives_back_what_fits_and_keeps_no_more_than_told() {
        let mut pool = Pool::new(3 * MIN_BUFFER);
        let mut made = 0;
        let mut take = |pool: &mut Pool, len| {
            pool.take(len, |size| {
                made += 1;
                Ok(Memory::heap(size))
            })
            .unwrap_or_else(|error| panic!("{error}"))
        };
        let (small, large) = (take(&mut pool, 1), take(&mut pool, MIN_BUFFER + 1));
        assert_eq!((small.len(), large.len()), (MIN_BUFFER, 2 * MIN_BUFFER));
        let third = take(&mut pool, MIN_BUFFER);
        pool.give(small);
        pool.give(large);
        pool.give(third); // one too many
        assert_eq!(pool.kept, 3 * MIN_BUFFER);
        take(&mut pool, MIN_BUFFER);
        take(&mut pool, MIN_BUFFER);
        assert_eq!((made, pool.kept), (4, 2 * MIN_BUFFER));
    }
}
