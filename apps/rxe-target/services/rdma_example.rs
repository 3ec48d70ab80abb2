//! The peer of rdma-example's `rdma_client`: lends it a buffer.
//!
//! The client SENDs the attributes of its own buffer, of which only the length matters. We answer with those of a fresh
//! buffer of that length, which the client then WRITEs to and READs from as it likes.

use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{Access, Memory, MemoryRegion, Qpn, WcOpcode, WcStatus, WorkCompletion};
use rxe_service::{Accept, Context, Decision, EndReason, Listen, QpMap, Service};

use super::endpoint::{Endpoint, MESSAGE, Pool, ResourcePool};
use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::metrics::{MetricsRegistry, ServiceMetrics};

/// The name that users select the service by.
pub const NAME: &str = "rdma-example";
/// rdma-example's port.
const PORT: u16 = 20886;
/// The longest buffer lent to a client.
const MAX_LENGTH: u32 = 16 << 20;
/// Unused buffers kept for the next clients, in bytes.
const POOLED: usize = 32 << 20;
/// READs that a client may have outstanding.
const RESPONDER_RESOURCES: u8 = 16;
/// A client's access to its buffer.
const BUFFER_ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// A buffer as client and server describe it to each other: packed, in the byte order of the x86 machines that the
/// example was written on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attributes {
    address: u64,
    length: u32,
    /// Named so in the example: the remote key.
    stag: u32,
}

impl Attributes {
    fn parse(message: &[u8; MESSAGE]) -> Attributes {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, s0, s1, s2, s3] = *message;
        Attributes {
            address: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            stag: u32::from_le_bytes([s0, s1, s2, s3]),
        }
    }

    fn emit(&self) -> [u8; MESSAGE] {
        let mut message = [0; MESSAGE];
        message[..8].copy_from_slice(&self.address.to_le_bytes());
        message[8..12].copy_from_slice(&self.length.to_le_bytes());
        message[12..].copy_from_slice(&self.stag.to_le_bytes());
        message
    }
}

/// A client.
struct Client {
    endpoint: Endpoint,
    /// The region lent to the client, and the whole buffer of the pool, of which the region is the front.
    loan: Option<(MemoryRegion, Memory)>,
    /// We asked for the end of the connection.
    ending: bool,
}

/// The service on one lcore.
struct RdmaExample {
    clients: QpMap<Client>,
    resources: ResourcePool,
    pool: Pool,
    idle: Idle<Qpn>,
    metrics: ServiceMetrics,
}

impl RdmaExample {
    fn new(idle_timeout: Duration, metrics: ServiceMetrics) -> RdmaExample {
        let idle = Idle::new(idle_timeout);
        RdmaExample {
            clients: QpMap::default(),
            resources: ResourcePool::default(),
            pool: Pool::new(POOLED),
            idle,
            metrics,
        }
    }

    /// Ends a connection.
    fn end(&mut self, cx: &mut Context<'_>, qp: Qpn) {
        self.idle.forget(qp);
        if let Some(client) = self.clients.get_mut(&qp) {
            client.ending = true;
            cx.disconnect(client.endpoint.conn);
        }
    }

    /// Answers a client's message; false when the connection must end, which was counted and logged.
    fn lend(
        cx: &mut Context<'_>,
        client: &mut Client,
        pool: &mut Pool,
        metrics: &ServiceMetrics,
        wc: &WorkCompletion,
    ) -> bool {
        let who = client.endpoint.client;
        let wanted = client.endpoint.message(wc.wr_id, wc.byte_len).map(|message| Attributes::parse(&message));
        let length = match wanted {
            Some(Attributes { length: length @ 1..=MAX_LENGTH, .. }) if client.loan.is_none() => length,
            _ => {
                let length = wanted.map(|attributes| attributes.length);
                let asked = length.map_or("no buffer".to_owned(), |length| format!("a buffer of {length} bytes"));
                metrics.nonsense(
                    cx.now(),
                    who,
                    format_args!(
                        "its message of {} bytes asks for {asked}; one of 1 to {MAX_LENGTH} is lent, once",
                        wc.byte_len
                    ),
                );
                return false;
            }
        };
        let buffer = match pool.take(length as usize, |size| cx.alloc_memory(size)) {
            Ok(buffer) => buffer,
            Err(error) => {
                metrics.no_buffer(cx.now(), who, format_args!("{length} bytes"), error);
                return false;
            }
        };
        // A client must not see the bytes of the one before.
        let lent = buffer.fill(0, length as usize, 0).ok().and_then(|()| buffer.slice(0, length as usize));
        let region = lent.ok_or_else(|| "buffer too short".to_owned()).and_then(|memory| {
            cx.device().reg_mr(client.endpoint.pd(), memory, BUFFER_ACCESS).map_err(|error| error.to_string())
        });
        let region = match region {
            Ok(region) => region,
            Err(error) => {
                metrics.no_buffer(cx.now(), who, format_args!("{length} bytes"), error);
                pool.give(buffer);
                return false;
            }
        };
        let ours = Attributes { address: region.addr(), length, stag: region.rkey() };
        client.loan = Some((region, buffer));
        if let Err(error) = client.endpoint.send(cx, &ours.emit()) {
            metrics.fail(cx.now(), who, error);
            return false;
        }
        metrics.exchanges.inc();
        true
    }
}

impl Service for RdmaExample {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, 0);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        match self.resources.open(cx, request, Access::REMOTE_READ | Access::REMOTE_WRITE, &self.metrics) {
            Ok(endpoint) => {
                let qp = endpoint.qp;
                self.idle.heard(qp.qpn(), cx.now());
                self.clients.insert(qp.qpn(), Client { endpoint, loan: None, ending: false });
                Decision::Accept(Accept {
                    responder_resources: RESPONDER_RESOURCES,
                    initiator_depth: 1,
                    ..Accept::new(qp)
                })
            }
            Err(refusal) => refusal,
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        self.idle.forget(qp);
        let Some(client) = self.clients.remove(&qp) else { return };
        self.metrics.gone(cx.now(), client.endpoint.client, reason);
        if let Some((region, buffer)) = client.loan {
            let _ = cx.device().dereg_mr(&region);
            self.pool.give(buffer);
        }
        self.resources.close(client.endpoint);
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let Some(client) = self.clients.get_mut(&wc.qpn) else { return };
        if wc.status != WcStatus::Success || wc.opcode != WcOpcode::Recv || client.ending {
            return;
        }
        self.idle.heard(wc.qpn, cx.now());
        if !RdmaExample::lend(cx, client, &mut self.pool, &self.metrics, wc) {
            self.end(cx, wc.qpn);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        let who = |qp| self.clients.get(&qp).map(|client| client.endpoint.client);
        for qp in self.idle.sweep(cx, &self.metrics, who) {
            self.end(cx, qp);
        }
        cx.set_timer(SWEEP, 0);
    }
}

/// Makes the service, which gives clients up that are silent for `idle_timeout`.
pub fn factory(idle_timeout: Duration, registry: &MetricsRegistry) -> Factory {
    Factory::new(
        NAME,
        vec![Listen::cm(PORT)],
        move |metrics| Box::new(RdmaExample::new(idle_timeout, metrics)),
        registry,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_little_endian_as_seen_on_the_wire() {
        let seen = [0x30, 0xAF, 0x91, 0x3E, 0xC2, 0x55, 0, 0, 0x0A, 0, 0, 0, 0x4F, 0x12, 0, 0];
        let attributes = Attributes::parse(&seen);
        assert_eq!(attributes, Attributes { address: 0x55C2_3E91_AF30, length: 10, stag: 0x124F });
        assert_eq!(attributes.emit(), seen);
    }
}
