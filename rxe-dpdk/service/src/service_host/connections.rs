//! Established and ended connections.

use std::net::SocketAddr;

use rxe_proto::Instant;
use rxe_proto::cm::{ConnId, ConnectFailure};
use rxe_proto::transport::{Engine, QpTransition, Qpn};

use super::ServiceHost;
use crate::messages::{EndReason, ToControl};

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
    /// Its place among those that their peers have not confirmed.
    pub(super) place: u64,
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
        self.unconfirmed.remove(&(service, connection.place));
        self.stats.connections_established.inc();
        self.log_connected(now, engine, service, qpn);
        self.report_connected(now, engine, service, qpn);
        self.call(now, engine, service, |s, cx| s.connected(cx, conn, qpn));
    }

    /// A connection is over: its service is called, its queue pair destroyed.
    pub(super) fn disconnected(&mut self, now: Instant, engine: &mut Engine, conn: ConnId, reason: EndReason) {
        let Some(connection) = self.connections.remove(&conn) else { return };
        let Connection { service, qpn, place, .. } = connection;
        self.unconfirmed.remove(&(service, place));
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

    /// Ends the oldest connection of a service that its peer has not confirmed, if such connections hold most of what they may:
    /// a peer that is there confirms within a round trip, so the next client finds room.
    pub(super) fn relieve(&mut self, now: Instant, engine: &mut Engine, service: usize) {
        if !self.ledger.is_crowded(service) {
            return;
        }
        let mut by_age = self.unconfirmed.range((service, 0)..=(service, u64::MAX)).map(|(_, &conn)| conn);
        // Not the newest one: it is the client that wants room.
        if let (Some(conn), Some(_)) = (by_age.next(), by_age.next()) {
            self.stats.unconfirmed_ended.inc();
            self.send(ToControl::Disconnect { conn });
            self.disconnected(now, engine, conn, EndReason::NotEstablished(ConnectFailure::Evicted));
        }
    }

    /// Destroys the queue pair of a connection.
    pub(super) fn destroy(&mut self, now: Instant, engine: &mut Engine, service: usize, qpn: Qpn) {
        self.objects.forget_qp(qpn, &mut self.cqs[service]);
        // The service may have destroyed it.
        let _ = engine.destroy_qp(now, qpn);
    }
}
