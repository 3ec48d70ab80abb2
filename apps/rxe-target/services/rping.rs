//! The peer of `rping -c`.
//!
//! Per ping the client SENDs an advert of its source buffer; we READ it and SEND a go-ahead; the client SENDs an advert
//! of its sink buffer; we WRITE back what we READ and SEND another go-ahead. Adverts and go-aheads are 16 bytes; what a
//! go-ahead contains does not matter.

use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{Access, MemoryRegion, Qpn, RemoteAddr, Sge, WcOpcode, WcStatus, WorkCompletion, WorkRequest};
use rxe_proto::wire::cm::RejReason;
use rxe_service::{Accept, Context, Decision, EndReason, Listen, QpMap, Service};

use super::endpoint::{Endpoint, MESSAGE, Pool, ResourcePool, WR_RDMA};
use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::metrics::{MetricsRegistry, ServiceMetrics};

/// The name that users select the service by.
pub const NAME: &str = "rping";
/// rping's port.
const PORT: u16 = 7174;
/// The longest buffer that a client may advertise; rping itself stops at 65,535 bytes.
const MAX_LENGTH: u32 = 1 << 20;
/// Unused buffers kept for the next clients, in bytes.
const POOLED: usize = 16 << 20;
/// Our message: its content does not matter.
const GO_AHEAD: [u8; MESSAGE] = [0; MESSAGE];

/// A buffer of the client's, as it advertises it: big endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Advert {
    remote: RemoteAddr,
    length: u32,
}

impl Advert {
    fn parse(message: &[u8; MESSAGE]) -> Advert {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = *message;
        Advert {
            remote: RemoteAddr {
                addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
                rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            },
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }
}

/// Progress of a client's ping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ping {
    /// The advert of the source is next.
    Source,
    /// We are reading this many bytes.
    Reading(u32),
    /// We hold this many bytes; the advert of the sink is next.
    Sink(u32),
}

/// The operation that an advert requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// READ this many bytes.
    Read(RemoteAddr, u32),
    /// WRITE back this many bytes, then SEND the go-ahead.
    Write(RemoteAddr, u32),
}

/// Why an advert makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum Nonsense {
    /// A READ is still going on.
    #[error("it comes before the last one was dealt with")]
    OutOfTurn,
    /// No bytes, or more than [`MAX_LENGTH`].
    #[error("it is of {0} bytes; 1 to {MAX_LENGTH} are served")]
    Length(u32),
    /// The sink is smaller than the source.
    #[error("its sink has {sink} bytes and its source {given}")]
    SinkTooSmall { given: u32, sink: u32 },
}

impl Ping {
    fn advert(&mut self, advert: Advert) -> Result<Work, Nonsense> {
        if !(1..=MAX_LENGTH).contains(&advert.length) {
            return Err(Nonsense::Length(advert.length));
        }
        match *self {
            Ping::Source => {
                *self = Ping::Reading(advert.length);
                Ok(Work::Read(advert.remote, advert.length))
            }
            Ping::Reading(_) => Err(Nonsense::OutOfTurn),
            Ping::Sink(source) if advert.length < source => {
                Err(Nonsense::SinkTooSmall { given: source, sink: advert.length })
            }
            Ping::Sink(source) => {
                *self = Ping::Source;
                Ok(Work::Write(advert.remote, source))
            }
        }
    }

    /// A READ completed: whether it was one of ours, so that the go-ahead is due.
    fn read_done(&mut self) -> bool {
        let Ping::Reading(length) = *self else { return false };
        *self = Ping::Sink(length);
        true
    }
}

/// A client.
struct Client {
    endpoint: Endpoint,
    ping: Ping,
    /// Buffers for the client's data. The last one is in use; those before were too small for a longer ping, but may
    /// be needed for a retransmission.
    buffers: Vec<MemoryRegion>,
    /// We asked for the end of the connection; whatever still comes in is ignored.
    ending: bool,
}

impl Client {
    /// A local buffer of `length` bytes.
    fn buffer(&mut self, cx: &mut Context<'_>, pool: &mut Pool, length: u32) -> Result<Sge, String> {
        let region = match self.buffers.last() {
            Some(region) if region.len() >= u64::from(length) => region,
            _ => {
                let memory = pool.take(length as usize, |size| cx.alloc_memory(size)).map_err(|e| e.to_string())?;
                let pd = self.endpoint.pd();
                let region = cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|e| e.to_string())?;
                self.buffers.push(region);
                &self.buffers[self.buffers.len() - 1]
            }
        };
        Ok(Sge { addr: region.addr(), length, lkey: region.lkey() })
    }
}

/// The service on one lcore.
struct Rping {
    clients: QpMap<Client>,
    resources: ResourcePool,
    pool: Pool,
    idle: Idle<Qpn>,
    metrics: ServiceMetrics,
}

impl Rping {
    fn new(idle_timeout: Duration, metrics: ServiceMetrics) -> Rping {
        let idle = Idle::new(idle_timeout);
        Rping { clients: QpMap::default(), resources: ResourcePool::default(), pool: Pool::new(POOLED), idle, metrics }
    }

    /// Ends a connection.
    fn end(&mut self, cx: &mut Context<'_>, qp: Qpn) {
        self.idle.forget(qp);
        if let Some(client) = self.clients.get_mut(&qp) {
            client.ending = true;
            cx.disconnect(client.endpoint.conn);
        }
    }

    /// Deals with the completion for `client`; false when the connection must end, which was counted and logged.
    fn handle(
        cx: &mut Context<'_>,
        client: &mut Client,
        pool: &mut Pool,
        metrics: &ServiceMetrics,
        wc: &WorkCompletion,
    ) -> bool {
        let who = client.endpoint.client;
        match wc.opcode {
            WcOpcode::Recv => {
                let Some(message) = client.endpoint.message(wc.wr_id, wc.byte_len) else {
                    metrics.nonsense(cx.now(), who, format_args!("a message of {} bytes is no advert", wc.byte_len));
                    return false;
                };
                let work = match client.ping.advert(Advert::parse(&message)) {
                    Ok(work) => work,
                    Err(nonsense) => {
                        metrics.nonsense(cx.now(), who, format_args!("its advert makes no sense: {nonsense}"));
                        return false;
                    }
                };
                let (Work::Read(_, length) | Work::Write(_, length)) = work;
                let buffer = match client.buffer(cx, pool, length) {
                    Ok(buffer) => buffer,
                    Err(error) => {
                        metrics.no_buffer(cx.now(), who, format_args!("{length} bytes"), error);
                        return false;
                    }
                };
                let posted = client.endpoint.post_recv(cx, wc.wr_id).and_then(|()| {
                    let sges = [buffer];
                    let wr = match work {
                        Work::Read(remote, _) => WorkRequest::read(&sges, remote),
                        Work::Write(remote, _) => WorkRequest::write(&sges, remote),
                    };
                    cx.device().post_send(client.endpoint.qp, wr.wr_id(WR_RDMA).signaled())?;
                    // The go-ahead may follow a WRITE at once: the client sees them in order.
                    if matches!(work, Work::Write(..)) { client.endpoint.send(cx, &GO_AHEAD) } else { Ok(()) }
                });
                if let Err(error) = posted {
                    metrics.fail(cx.now(), who, error);
                    return false;
                }
                if matches!(work, Work::Write(..)) {
                    metrics.exchanges.inc();
                }
            }
            WcOpcode::RdmaRead if client.ping.read_done() => {
                if let Err(error) = client.endpoint.send(cx, &GO_AHEAD) {
                    metrics.fail(cx.now(), who, error);
                    return false;
                }
            }
            _ => {}
        }
        true
    }
}

impl Service for Rping {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, 0);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        if request.responder_resources == 0 {
            let why = "rping READs from its client, which offers no responder resources";
            return self.metrics.reject(cx.now(), request, RejReason::ConsumerDefined, why);
        }
        match self.resources.open(cx, request, Access::empty(), &self.metrics) {
            Ok(endpoint) => {
                let qp = endpoint.qp;
                self.idle.heard(qp.qpn(), cx.now());
                self.clients
                    .insert(qp.qpn(), Client { endpoint, ping: Ping::Source, buffers: Vec::new(), ending: false });
                // The client's queue pair answers READs only if we announce that we will send some.
                Decision::Accept(Accept { responder_resources: 1, initiator_depth: 1, ..Accept::new(qp) })
            }
            Err(refusal) => refusal,
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        self.idle.forget(qp);
        let Some(client) = self.clients.remove(&qp) else { return };
        self.metrics.gone(cx.now(), client.endpoint.client, reason);
        for region in client.buffers {
            let _ = cx.device().dereg_mr(&region);
            self.pool.give(region.memory().clone());
        }
        self.resources.close(client.endpoint);
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let Some(client) = self.clients.get_mut(&wc.qpn) else { return };
        if wc.status != WcStatus::Success {
            // The queue pair is in error, and the runtime ends the connection.
            tracing::debug!(qp = %wc.qpn, status = %wc.status, "rping work request failed");
            return;
        }
        if client.ending {
            return;
        }
        self.idle.heard(wc.qpn, cx.now());
        if !Rping::handle(cx, client, &mut self.pool, &self.metrics, wc) {
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
    Factory::new(NAME, vec![Listen::cm(PORT)], move |metrics| Box::new(Rping::new(idle_timeout, metrics)), registry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advert(length: u32) -> Advert {
        Advert { remote: RemoteAddr { addr: 0x1000, rkey: 7 }, length }
    }

    #[test]
    fn adverts_are_big_endian() {
        let message = [0, 0, 0x55, 0xCA, 0x60, 0xF6, 0x80, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 64];
        let parsed = Advert::parse(&message);
        assert_eq!(parsed.remote, RemoteAddr { addr: 0x55CA_60F6_8000, rkey: 0x1234 });
        assert_eq!(parsed.length, 64);
    }

    #[test]
    fn pings_go_round() {
        let mut ping = Ping::Source;
        for length in [64, MAX_LENGTH] {
            assert_eq!(ping.advert(advert(length)), Ok(Work::Read(advert(0).remote, length)));
            assert!(ping.read_done());
            assert_eq!(ping.advert(advert(length)), Ok(Work::Write(advert(0).remote, length)));
        }
    }

    #[test]
    fn nonsense_is_recognised() {
        let mut ping = Ping::Source;
        assert!(!ping.read_done());
        assert_eq!(ping.advert(advert(0)), Err(Nonsense::Length(0)));
        assert_eq!(ping.advert(advert(MAX_LENGTH + 1)), Err(Nonsense::Length(MAX_LENGTH + 1)));
        assert!(ping.advert(advert(64)).is_ok());
        assert_eq!(ping.advert(advert(64)), Err(Nonsense::OutOfTurn));
        assert!(ping.read_done());
        assert_eq!(ping.advert(advert(63)), Err(Nonsense::SinkTooSmall { given: 64, sink: 63 }));
        assert_eq!(ping.advert(advert(65)), Ok(Work::Write(advert(0).remote, 64)));
    }

    #[test]
    fn mutated_adverts_are_served_within_limits_or_refused() {
        let mut seed = vec![0; MESSAGE];
        seed[15] = 64;
        let two = [&seed[..], &seed].concat();
        rxe_testkit::mutate::check_mutations("rping", &[&seed, &two], 8_000, |input| {
            let mut ping = Ping::Source;
            for message in input.chunks_exact(MESSAGE) {
                let advert = Advert::parse(message.try_into().expect("the length"));
                match ping.advert(advert) {
                    Ok(Work::Read(_, length) | Work::Write(_, length)) => {
                        assert!((1..=MAX_LENGTH).contains(&length) && length <= advert.length);
                    }
                    Err(why) => assert!(!why.to_string().is_empty()),
                }
                if message[0] & 1 == 0 {
                    ping.read_done();
                }
            }
        });
    }
}
