//! The peer of `cmtime`, which measures how long it takes to connect: many connections at once, and no data on them.

use std::sync::Arc;

use rxe_dpdk::service::{Accept, Context, Decision, EndReason, Listen, QpSpec, Service};
use rxe_dpdk::worker::QpCaps;
use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::mem::{Access, PdId};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::RejReason;

use super::factory::Factory;
use super::idle::Idle;
use super::port7471::{Caller, PORT};
use super::tally::{Book, Tally};

/// The name that users select the service by.
pub const NAME: &str = "cmtime";
/// A connection lasts until the client has made all of its own.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// How often we look for the silent.
const SWEEP: Duration = Duration::from_secs(1);
/// Nothing is ever posted.
const CAPS: QpCaps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// The service on one lcore.
struct Cmtime {
    pd: Option<PdId>,
    clients: Idle<ConnId>,
    tally: Arc<Tally>,
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
                self.clients.heard(request.conn, cx.now());
                Decision::Accept(Accept { qp, responder_resources: 1, initiator_depth: 1, private_data: Vec::new() })
            }
            Err(error) => {
                self.tally.refused.inc();
                tracing::warn!("connection refused, no queue pair: {error}");
                Decision::Reject { reason: RejReason::NoQp, private_data: Vec::new() }
            }
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, conn: ConnId, _qp: Qpn) {
        self.tally.exchanges.inc();
        self.clients.heard(conn, cx.now());
    }

    fn disconnected(&mut self, _cx: &mut Context<'_>, conn: ConnId, qp: Qpn, reason: EndReason) {
        tracing::debug!(%qp, ?reason, "cmtime connection over");
        self.clients.forget(conn);
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        for conn in self.clients.take_expired(cx.now()) {
            self.tally.idle_ended.inc();
            cx.disconnect(conn);
        }
        cx.set_timer(SWEEP, 0);
    }
}

/// Makes the service.
pub fn factory(book: &Book) -> Factory {
    let listens = vec![Listen::cm_if(PORT, |request| Caller::of(request) == Caller::Cmtime)];
    Factory::new(NAME, listens, |tally| Box::new(Cmtime { pd: None, clients: Idle::new(IDLE_LIMIT), tally }), book)
}
