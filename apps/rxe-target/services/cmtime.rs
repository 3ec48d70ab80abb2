//! The peer of `cmtime`, which measures how long it takes to connect: many connections at once, and no data on them.

use std::collections::HashMap;
use std::net::SocketAddr;

use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{Access, ProtectionDomain, QpCaps, Qpn, Rc};
use rxe_proto::wire::cm::RejReason;
use rxe_service::{Accept, Context, Decision, EndReason, Listen, Service};

use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::metrics::{MetricsRegistry, ServiceMetrics, caller};
use super::port7471::{Caller, PORT};

/// The name that users select the service by.
pub const NAME: &str = "cmtime";
/// Nothing is ever posted.
const CAPS: QpCaps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// The service on one lcore.
struct Cmtime {
    pd: Option<ProtectionDomain>,
    clients: HashMap<ConnId, SocketAddr>,
    idle: Idle<ConnId>,
    metrics: ServiceMetrics,
}

impl Service for Cmtime {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, 0);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        let pd = *self.pd.get_or_insert_with(|| cx.device().alloc_pd());
        let attr = cx.qp_attr().with_caps(CAPS);
        match cx.device().create_qp_in_init::<Rc>(pd, attr, Access::empty()) {
            Ok(qp) => {
                self.metrics.connections.inc();
                self.clients.insert(request.conn, caller(request));
                self.idle.heard(request.conn, cx.now());
                Decision::Accept(Accept { responder_resources: 1, initiator_depth: 1, ..Accept::new(qp) })
            }
            Err(error) => {
                self.metrics.reject(cx.now(), request, RejReason::NoQp, format_args!("no queue pair: {error}"))
            }
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, conn: ConnId, _qp: Qpn) {
        self.metrics.exchanges.inc();
        self.idle.heard(conn, cx.now());
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, conn: ConnId, _qp: Qpn, reason: EndReason) {
        self.idle.forget(conn);
        if let Some(client) = self.clients.remove(&conn) {
            self.metrics.gone(cx.now(), client, reason);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        for conn in self.idle.give_up(cx.now(), &self.metrics, |conn| self.clients.get(&conn)) {
            cx.disconnect(conn);
        }
        cx.set_timer(SWEEP, 0);
    }
}

/// Makes the service, which gives clients up that neither connect nor disconnect for `idle_timeout`.
pub fn factory(idle_timeout: Duration, registry: &MetricsRegistry) -> Factory {
    let listens = vec![Listen::cm_if(PORT, |request| Caller::of(request) == Caller::Cmtime)];
    let create = move |metrics| -> Box<dyn Service> {
        let idle = Idle::new(idle_timeout);
        Box::new(Cmtime { pd: None, clients: HashMap::new(), idle, metrics })
    };
    Factory::new(NAME, listens, create, registry)
}
