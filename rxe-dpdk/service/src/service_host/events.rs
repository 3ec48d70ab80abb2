//! Events about connections and queue pairs, for management.

use rxe_proto::Instant;
use rxe_proto::transport::{Engine, QpErrorCause, Qpn};

use super::ServiceHost;
use super::connections::Connection;
use super::log::Peer;
use crate::events::{QpEvent, QpEventKind};
use crate::messages::EndReason;

impl ServiceHost {
    pub(super) fn report_connected(&mut self, now: Instant, engine: &Engine, service: usize, qpn: Qpn) {
        if !self.event_sender.is_listening() {
            return;
        }
        let service = Some(self.name_of(service, qpn));
        let connection = self.by_qp.get(&qpn).and_then(|conn| self.connections.get(conn));
        self.event_sender.send(|| event(now, engine, qpn, service, connection, QpEventKind::Connected));
    }

    pub(super) fn report_disconnected(
        &mut self,
        now: Instant,
        engine: &Engine,
        connection: &Connection,
        reason: EndReason,
    ) {
        if !self.event_sender.is_listening() {
            return;
        }
        let service = self.name_of(connection.service, connection.qpn);
        self.event_sender.send(|| {
            let after = now.saturating_since(connection.since);
            let kind = QpEventKind::Disconnected { reason, after };
            event(now, engine, connection.qpn, Some(service), Some(connection), kind)
        });
    }

    pub(super) fn report_qp_error(&mut self, now: Instant, engine: &Engine, qpn: Qpn, cause: QpErrorCause) {
        if !self.event_sender.is_listening() {
            return;
        }
        let service = self.service_of(qpn);
        let connection = self.by_qp.get(&qpn).and_then(|conn| self.connections.get(conn));
        self.event_sender.send(|| event(now, engine, qpn, service, connection, QpEventKind::Error(cause)));
    }
}

fn event(
    now: Instant,
    engine: &Engine,
    qpn: Qpn,
    service: Option<&'static str>,
    connection: Option<&Connection>,
    kind: QpEventKind,
) -> QpEvent {
    let peer = Peer::of(engine, qpn, connection);
    let socket = connection.and_then(|connection| connection.peer);
    QpEvent {
        at: now,
        qpn,
        service,
        peer: socket.map(|socket| socket.ip()).or(peer.ip),
        peer_port: socket.map(|socket| socket.port()),
        peer_qpn: peer.qpn,
        kind,
    }
}
