//! Log lines about connections and queue pairs.

use std::fmt;
use std::net::IpAddr;

use rxe_proto::Instant;
use rxe_proto::transport::{Engine, QpErrorCause, Qpn};

use super::ServiceHost;
use super::connections::Connection;
use crate::messages::EndReason;

/// A peer, as far as it is known.
pub(super) struct Peer<'a> {
    connection: Option<&'a Connection>,
    pub(super) ip: Option<IpAddr>,
    pub(super) qpn: Option<Qpn>,
}

impl Peer<'_> {
    pub(super) fn of<'a>(engine: &Engine, qpn: Qpn, connection: Option<&'a Connection>) -> Peer<'a> {
        let info = engine.query_qp(qpn);
        let ip = info.as_ref().and_then(|info| Some(info.path.as_ref()?.dst.ip()));
        Peer { connection, ip, qpn: info.and_then(|info| info.dest_qpn) }
    }
}

impl fmt::Display for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.connection.and_then(|connection| connection.peer), self.ip) {
            (Some(peer), _) => write!(f, "{peer}")?,
            (None, Some(ip)) => write!(f, "{ip}")?,
            (None, None) => f.write_str("unknown")?,
        }
        self.qpn.map_or(Ok(()), |qpn| write!(f, " qp {qpn}"))
    }
}

impl ServiceHost {
    #[cold]
    pub(super) fn log_connected(&mut self, now: Instant, engine: &Engine, service: usize, qpn: Qpn) {
        if self.events.admits(now) {
            let connection = self.connection_of(qpn).map(|(_, connection)| connection);
            let peer = Peer::of(engine, qpn, connection);
            tracing::info!(service = self.name_of(service, qpn), qp = %qpn, %peer, "connected");
        }
    }

    #[cold]
    pub(super) fn log_disconnected(
        &mut self,
        now: Instant,
        engine: &Engine,
        connection: &Connection,
        reason: EndReason,
    ) {
        // A queue pair in error has its own line.
        if !matches!(reason, EndReason::QueuePair(_)) && self.events.admits(now) {
            let peer = Peer::of(engine, connection.qpn, Some(connection));
            let after = now.saturating_since(connection.since).as_millis();
            let service = self.name_of(connection.service, connection.qpn);
            tracing::info!(service, qp = %connection.qpn, %peer, after_ms = after as u64, "disconnected: {reason}");
        }
    }

    #[cold]
    pub(super) fn log_qp_error(&mut self, now: Instant, engine: &mut Engine, qpn: Qpn, cause: QpErrorCause) {
        // Taken even when no line is written: a later error of the same queue pair must not show it.
        let packet = engine.take_error_packet(qpn).unwrap_or_else(|| "none".to_owned());
        if self.events.admits(now) {
            let connection = self.connection_of(qpn).map(|(_, connection)| connection);
            let peer = Peer::of(engine, qpn, connection);
            let service = self.service_of(qpn).unwrap_or("none");
            tracing::warn!(service, qp = %qpn, %peer, %cause, packet, "queue pair in error: {}", cause.describe());
        }
    }
}
