//! The peer of `rdma_client` and `rdma_xclient`: takes one 16-byte SEND and sends 16 bytes back.
//!
//! The two cannot be told apart. `rdma_xclient` posts no receive for the answer: it stays undelivered until the client
//! disconnects, which does no harm.

use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{Access, Qpn, WcOpcode, WcStatus, WorkCompletion};
use rxe_service::{Accept, Context, Decision, EndReason, Listen, QpMap, Service};

use super::endpoint::{Endpoint, ResourcePool};
use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::metrics::{MetricsRegistry, ServiceMetrics};
use super::port7471::{Caller, PORT};

/// The name that users select the service by.
pub const NAME: &str = "rdma-server";

/// A client.
struct Client {
    endpoint: Endpoint,
    /// Its message was answered; another one is not expected.
    answered: bool,
}

/// The service on one lcore.
struct RdmaServer {
    clients: QpMap<Client>,
    resources: ResourcePool,
    idle: Idle<Qpn>,
    metrics: ServiceMetrics,
}

impl Service for RdmaServer {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, 0);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        match self.resources.open(cx, request, Access::empty(), &self.metrics) {
            Ok(endpoint) => {
                let qp = endpoint.qp;
                self.idle.heard(qp.qpn(), cx.now());
                self.clients.insert(qp.qpn(), Client { endpoint, answered: false });
                Decision::Accept(Accept { responder_resources: 1, initiator_depth: 1, ..Accept::new(qp) })
            }
            Err(refusal) => refusal,
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        self.idle.forget(qp);
        let Some(client) = self.clients.remove(&qp) else { return };
        self.metrics.gone(cx.now(), client.endpoint.client, reason);
        self.resources.close(client.endpoint);
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let Some(client) = self.clients.get_mut(&wc.qpn) else { return };
        if wc.status != WcStatus::Success || wc.opcode != WcOpcode::Recv || client.answered {
            return;
        }
        client.answered = true;
        self.idle.heard(wc.qpn, cx.now());
        let Some(message) = client.endpoint.message(wc.wr_id, wc.byte_len) else {
            let what = format_args!("its message is of {} bytes, not of 16", wc.byte_len);
            self.metrics.nonsense(cx.now(), client.endpoint.client, what);
            cx.disconnect(client.endpoint.conn);
            return;
        };
        if let Err(error) = client.endpoint.send(cx, &message) {
            self.metrics.fail(cx.now(), client.endpoint.client, error);
            cx.disconnect(client.endpoint.conn);
            return;
        }
        self.metrics.exchanges.inc();
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        let who = |qp| self.clients.get(&qp).map(|client| client.endpoint.client);
        for qp in self.idle.sweep(cx, &self.metrics, who) {
            if let Some(client) = self.clients.get(&qp) {
                cx.disconnect(client.endpoint.conn);
            }
        }
        cx.set_timer(SWEEP, 0);
    }
}

/// Makes the service, which gives clients up that are silent for `idle_timeout`.
pub fn factory(idle_timeout: Duration, registry: &MetricsRegistry) -> Factory {
    let listens = vec![Listen::cm_if(PORT, |request| Caller::of(request) == Caller::RdmaClient)];
    let create = move |metrics| -> Box<dyn Service> {
        let idle = Idle::new(idle_timeout);
        Box::new(RdmaServer { clients: QpMap::default(), resources: ResourcePool::default(), idle, metrics })
    };
    Factory::new(NAME, listens, create, registry)
}
