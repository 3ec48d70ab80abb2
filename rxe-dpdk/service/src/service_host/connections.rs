//! Established and ended connections.

use std::net::SocketAddr;

use rxe_proto::Instant;
use rxe_proto::cm::ConnId;
use rxe_proto::transport::{Engine, QpTransition, Qpn};

use super::ServiceHost;
use crate::messages::EndReason;

/// A connection of one of the worker's queue pairs.
pub(super) struct Connection {
    pub(super) service: usize,
    pub(super) qpn: Qpn,
    /// Whether the service has been called with `connected`.
    pub(super) connected: bool,
    /// The peer's address and port, of a connection that the peer requested.
    pub(super) peer: Option<SocketAddr>,
    /// When it was requested.
    pub(super) since: Instant,
}

impl ServiceHost {
    /// Both sides have confirmed a connection. Called again for the RTU after the first packet, which changes nothing.
    pub(super) fn connected(&mut self, now: Instant, engine: &mut Engine, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        if connection.connected {
            return;
        }
        connection.connected = true;
        let (service, qpn) = (connection.service, connection.qpn);
        self.stats.connections_established.inc();
        self.log_connected(now, engine, service, qpn);
        self.report_connected(now, engine, service, qpn);
        self.call(now, engine, service, |s, cx| s.connected(cx, conn, qpn));
    }

    /// A connection is over: its service is called, its queue pair destroyed.
    pub(super) fn disconnected(&mut self, now: Instant, engine: &mut Engine, conn: ConnId, reason: EndReason) {
        let Some(connection) = self.connections.remove(&conn) else { return };
        let Connection { service, qpn, .. } = connection;
        self.by_qp.remove(&qpn);
        self.log_disconnected(now, engine, &connection, reason);
        self.report_disconnected(now, engine, &connection, reason);
        self.stats.connections_ended.inc();
        // Outstanding work requests are flushed first, so that the service sees the completion of each.
        let _ = engine.modify_qp(qpn, QpTransition::ToError);
        self.deliver_completions(now, engine);
        self.call(now, engine, service, |s, cx| s.disconnected(cx, conn, qpn, reason));
        self.destroy(now, engine, service, qpn);
    }

    /// Destroys the queue pair of a connection.
    pub(super) fn destroy(&mut self, now: Instant, engine: &mut Engine, service: usize, qpn: Qpn) {
        self.objects.forget_qp(qpn, &mut self.cqs[service]);
        // The service may have destroyed it.
        let _ = engine.destroy_qp(now, qpn);
    }
}
