//! The peer of `rstream` and `riostream`: an rsocket that sends every byte of its stream back, and every mapped buffer.
//!
//! rsockets are streams over RDMA WRITEs with immediate data. [`data`] has what they tell each other, [`stream`] how much
//! each end may write where, [`backlog`] the bytes that came and did not go back yet, [`mapped`] the buffers past the
//! stream, [`resources`] a client's memory, [`client`] what a connection does. docs/protocol-notes.md has the protocol.

mod backlog;
mod client;
mod data;
mod mapped;
mod resources;
mod stream;
#[cfg(test)]
mod tests;

use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{Access, ProtectionDomain, Qpn, QueuePair, Rc, RecvWr, WcOpcode, WcStatus, WorkCompletion};
use rxe_proto::wire::cm::RejReason;
use rxe_proto::{Duration, Instant};
use rxe_service::{Accept, Context, Decision, EndReason, Listen, QpMap, Service};

use super::factory::Factory;
use super::idle::SWEEP;
use super::metrics::{MetricsRegistry, ServiceMetrics, caller};
use super::port7471::{Caller, PORT};
use client::{CAPS, Client, Fault, Reserves};
use data::{ConnData, ENTRIES};
use resources::ConnResources;
use stream::Nonsense;

/// The name that users select the service by.
pub const NAME: &str = "rsocket";

/// The timer that looks for clients that are silent, or wait for memory, every [`SWEEP`].
const SWEEP_TOKEN: u64 = 0;
/// The timer that looks into mapped buffers.
const LOOK_TOKEN: u64 = 1;
/// Intervals of checks of mapped buffers: while they change, and when nothing has changed for [`HOT`].
const LOOK: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// See [`LOOK`].
const HOT: Duration = Duration::from_millis(50);

/// The service on one lcore.
struct Rsocket {
    clients: QpMap<Client>,
    /// Protection domains without a queue pair.
    pds: Vec<ProtectionDomain>,
    /// `None` before the start.
    reserves: Option<Reserves>,
    /// Whether the timer that looks into mapped buffers runs, and when one had changed last.
    looking: bool,
    changed: Instant,
    /// Time after which a silent client is disconnected.
    idle_timeout: Duration,
    metrics: ServiceMetrics,
}

impl Rsocket {
    fn new(idle_timeout: Duration, metrics: ServiceMetrics) -> Rsocket {
        let (clients, pds, reserves) = (QpMap::default(), Vec::new(), None);
        Rsocket { clients, pds, reserves, looking: false, changed: Instant::ZERO, idle_timeout, metrics }
    }

    /// A queue pair with receives posted, and the memory behind it; or the refusal to send.
    fn open(
        &mut self,
        cx: &mut Context<'_>,
        request: &ConnectRequest,
    ) -> Result<(QueuePair<Rc>, ConnResources), Decision> {
        let now = cx.now();
        let refuse =
            |reason, what, error: String| self.metrics.reject(now, request, reason, format_args!("no {what}: {error}"));
        let Some(reserves) = &self.reserves else {
            return Err(refuse(RejReason::NoResources, "memory", "the service has not started".to_owned()));
        };
        let (budget, client) = (reserves.connections, caller(request).ip());
        let pd = self.pds.pop().unwrap_or_else(|| cx.device().alloc_pd());
        let resources = match ConnResources::new(cx, budget, client, pd) {
            Ok(resources) => resources,
            Err(error) => {
                self.pds.push(pd);
                return Err(refuse(RejReason::NoResources, "memory", error.to_string()));
            }
        };
        let attr = cx.qp_attr().with_caps(CAPS);
        let qp = match cx.device().create_qp_in_init(resources.pd, attr, Access::REMOTE_WRITE) {
            Ok(qp) => qp,
            Err(error) => {
                self.pds.push(resources.close(cx));
                return Err(refuse(RejReason::NoQp, "queue pair", error.to_string()));
            }
        };
        for _ in 0..CAPS.max_recv_wr {
            if let Err(error) = cx.device().post_recv(qp, RecvWr { wr_id: 0, sges: &[] }) {
                let _ = cx.device().destroy_qp(qp);
                self.pds.push(resources.close(cx));
                return Err(refuse(RejReason::NoResources, "receive queue", error.to_string()));
            }
        }
        Ok((qp, resources))
    }

    /// Looks into all mapped buffers, and comes again as long as there are some.
    fn look(&mut self, cx: &mut Context<'_>) {
        self.looking = false;
        for client in self.clients.values_mut().filter(|client| client.maps()) {
            self.looking = true;
            match client.look(cx, &self.metrics) {
                Ok(changed) => {
                    if changed {
                        self.changed = cx.now();
                    }
                }
                Err(fault) => Rsocket::end(cx, client, &self.metrics, fault),
            }
        }
        if self.looking {
            let hot = cx.now().saturating_since(self.changed) < HOT;
            cx.set_timer(if hot { LOOK.0 } else { LOOK.1 }, LOOK_TOKEN);
        }
    }

    /// Counts what is wrong with a client and disconnects it.
    fn end(cx: &mut Context<'_>, client: &mut Client, metrics: &ServiceMetrics, fault: Fault) {
        if client.ending {
            return;
        }
        client.ending = true;
        match fault {
            Fault::Nonsense(Nonsense(what)) => metrics.nonsense(cx.now(), client.from, what),
            Fault::Memory(error) => metrics.no_buffer(cx.now(), client.from, "what it maps", error),
            Fault::Post(error) => metrics.fail(cx.now(), client.from, error),
            Fault::Share(refusal) => metrics.no_buffer(cx.now(), client.from, "its connection", refusal),
        }
        cx.disconnect(client.conn);
    }
}

impl Service for Rsocket {
    fn start(&mut self, cx: &mut Context<'_>) {
        self.reserves = Some(Reserves::new(cx));
        cx.set_timer(SWEEP, SWEEP_TOKEN);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        let peer = match ConnData::parse(&request.private_data) {
            Some(peer) if peer.entries == ENTRIES => peer,
            _ => {
                let why = "rsockets here have lists of two buffers";
                return self.metrics.reject(cx.now(), request, RejReason::ConsumerDefined, why);
            }
        };
        let (qp, resources) = match self.open(cx, request) {
            Ok(opened) => opened,
            Err(refusal) => return refusal,
        };
        self.metrics.connections.inc();
        let private_data = resources.conn_data().write();
        let client = Client::new((request.conn, caller(request)), qp, resources, peer, cx.now());
        self.clients.insert(qp.qpn(), client);
        Decision::Accept(Accept { private_data, ..Accept::new(qp) })
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        let (Some(client), Some(reserves)) = (self.clients.get_mut(&qp), &mut self.reserves) else { return };
        let confirmed = client.confirmed(cx);
        if let Err(fault) = confirmed.and_then(|()| client.pump(cx, reserves, &self.metrics)) {
            Rsocket::end(cx, client, &self.metrics, fault);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        let (Some(client), Some(reserves)) = (self.clients.remove(&qp), &mut self.reserves) else { return };
        self.metrics.gone(cx.now(), client.from, reason);
        // The queue pair is destroyed next.
        self.pds.push(client.close(cx, reserves));
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let (Some(client), Some(reserves)) = (self.clients.get_mut(&wc.qpn), &mut self.reserves) else { return };
        if wc.status != WcStatus::Success {
            // The queue pair is in error, and the runtime ends the connection.
            tracing::debug!(qp = %wc.qpn, status = %wc.status, "rsocket work request failed");
            return;
        }
        let done = match wc.opcode {
            WcOpcode::RecvRdmaWithImm => client.message(cx, wc.imm, wc.byte_len),
            WcOpcode::Recv => Err(Nonsense("it sent a message where rsockets write").into()),
            _ => {
                client.sent(wc.wr_id);
                Ok(())
            }
        };
        if let Err(fault) = done.and_then(|()| client.pump(cx, reserves, &self.metrics)) {
            Rsocket::end(cx, client, &self.metrics, fault);
        }
        if client.maps() && !self.looking {
            self.looking = true;
            self.changed = cx.now();
            cx.set_timer(LOOK.0, LOOK_TOKEN);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        if token == LOOK_TOKEN {
            self.look(cx);
            return;
        }
        cx.set_timer(SWEEP, SWEEP_TOKEN);
        let Some(reserves) = &mut self.reserves else { return };
        for client in self.clients.values_mut() {
            if client.silence(cx) >= self.idle_timeout && !client.ending {
                client.ending = true;
                self.metrics.give_up(cx.now(), client.from, self.idle_timeout);
                cx.disconnect(client.conn);
            } else if let Err(fault) = client.pump(cx, reserves, &self.metrics) {
                // Others may have given back memory that it waits for.
                Rsocket::end(cx, client, &self.metrics, fault);
            }
        }
    }
}

/// Makes the service, which gives clients up that are silent for `idle_timeout`.
pub fn factory(idle_timeout: Duration, registry: &MetricsRegistry) -> Factory {
    let listens = vec![Listen::cm_if(PORT, |request| Caller::of(request) == Caller::Rsocket)];
    Factory::new(NAME, listens, move |metrics| Box::new(Rsocket::new(idle_timeout, metrics)), registry)
}
