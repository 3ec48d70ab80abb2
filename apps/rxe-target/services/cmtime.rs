//! The peer of `cmtime`, which measures how long it takes to connect: many connections at once, and no data on them.

use std::collections::HashMap;
use std::net::SocketAddr;

use rxe_dpdk::service::{Accept, Context, Decision, EndReason, Listen, QpSpec, Service};
use rxe_dpdk::worker::QpCaps;
use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::mem::{Access, PdId};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::RejReason;

use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::port7471::{Caller, PORT};
use super::tally::{Book, Tally, caller};

/// The name that users select the service by.
pub const NAME: &str = "cmtime";
/// Nothing is ever posted.
const CAPS: QpCaps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// The service on one lcore.
struct Cmtime {
    pd: Option<PdId>,
    clients: HashMap<ConnId, SocketAddr>,
    idle: Idle<ConnId>,
    tally: Tally,
}

impl Service for Cmtime {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, 0);
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        let pd = *self.pd.get_or_insert_with(|| cx.alloc_pd());
        match cx.create_qp(&QpSpec::rc(pd, CAPS, Access::empty())) {
            Ok(qp) => {
                self.tally.connections.inc();
                self.clients.insert(request.conn, caller(request));
                self.idle.heard(request.conn, cx.now());
                Decision::Accept(Accept { qp, responder_resources: 1, initiator_depth: 1, private_data: Vec::new() })
            }
            Err(error) => self.tally.reject(cx.now(), request, RejReason::NoQp, format_args!("no queue pair: {error}")),
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, conn: ConnId, _qp: Qpn) {
        self.tally.exchanges.inc();
        self.idle.heard(conn, cx.now());
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, conn: ConnId, _qp: Qpn, reason: EndReason) {
        self.idle.forget(conn);
        if let Some(client) = self.clients.remove(&conn) {
            self.tally.gone(cx.now(), client, reason);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        for conn in self.idle.give_up(cx.now(), &self.tally, |conn| self.clients.get(&conn)) {
            cx.disconnect(conn);
        }
        cx.set_timer(SWEEP, 0);
    }
}

/// Makes the service, which gives clients up that neither connect nor disconnect for `idle_timeout`.
pub fn factory(idle_timeout: Duration, book: &Book) -> Factory {
    let listens = vec![Listen::cm_if(PORT, |request| Caller::of(request) == Caller::Cmtime)];
    let create = move |tally| -> Box<dyn Service> {
        let idle = Idle::new(idle_timeout);
        Box::new(Cmtime { pd: None, clients: HashMap::new(), idle, tally })
    };
    Factory::new(NAME, listens, create, book)
}
