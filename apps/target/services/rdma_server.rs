//! The peer of `rdma_client` and `rdma_xclient`: takes one 16-byte SEND and sends 16 bytes back.
//!
//! The two cannot be told apart. `rdma_xclient` posts no receive for the answer: it stays undelivered until the client
//! disconnects, which does no harm.

use std::collections::HashMap;
use std::sync::Arc;

use rxe_dpdk::service::{Accept, Context, Decision, EndReason, Listen, Service};
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::mem::Access;
use rxe_proto::transport::{Qpn, WcOpcode, WcStatus, WorkCompletion};

use super::endpoint::{Endpoint, Seats};
use super::factory::Factory;
use super::port7471::{Caller, PORT};
use super::tally::{Book, Tally};

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
    clients: HashMap<Qpn, Client>,
    seats: Seats,
    tally: Arc<Tally>,
}

impl Service for RdmaServer {
    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        match self.seats.open(cx, request.conn, Access::empty()) {
            Ok(endpoint) => {
                self.tally.connections.inc();
                let qp = endpoint.qp;
                self.clients.insert(qp, Client { endpoint, answered: false });
                Decision::Accept(Accept { qp, responder_resources: 1, initiator_depth: 1, private_data: Vec::new() })
            }
            Err(refusal) => {
                self.tally.refused.inc();
                refusal
            }
        }
    }

    fn disconnected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        let Some(client) = self.clients.remove(&qp) else { return };
        tracing::debug!(%qp, ?reason, "rdma_client gone");
        self.seats.close(client.endpoint);
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let Some(client) = self.clients.get_mut(&wc.qpn) else { return };
        if wc.status != WcStatus::Success || wc.opcode != WcOpcode::Recv || client.answered {
            return;
        }
        client.answered = true;
        let Some(message) = client.endpoint.message(wc.wr_id, wc.byte_len) else {
            self.tally.malformed.inc();
            tracing::info!(qp = %wc.qpn, bytes = wc.byte_len, "rdma_client disconnected: its message is not of 16 bytes");
            cx.disconnect(client.endpoint.conn);
            return;
        };
        if let Err(error) = client.endpoint.send(cx, &message) {
            self.tally.post_failures.inc();
            tracing::info!(qp = %wc.qpn, "rdma_client disconnected: {error}");
            cx.disconnect(client.endpoint.conn);
            return;
        }
        self.tally.exchanges.inc();
    }
}

/// Makes the service.
pub fn factory(book: &Book) -> Factory {
    let listens = vec![Listen::cm_if(PORT, |request| Caller::of(request) == Caller::RdmaClient)];
    let create = |tally| -> Box<dyn Service> {
        Box::new(RdmaServer { clients: HashMap::new(), seats: Seats::default(), tally })
    };
    Factory::new(NAME, listens, create, book)
}
