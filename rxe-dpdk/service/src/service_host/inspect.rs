//! Queue pairs of a service host, for management.

use std::sync::mpsc::SyncSender;

use rxe_proto::Instant;
use rxe_proto::cm::Handshake;
use rxe_proto::transport::Qpn;

use super::ServiceHost;
use crate::inspect::{ConnectionEntry, ControlCounts, EngineOwner, Part};
use crate::messages::ToControl;

impl EngineOwner for ServiceHost {
    fn service_of(&self, qpn: Qpn) -> Option<&'static str> {
        ServiceHost::service_of(self, qpn)
    }

    fn connection_of(&self, now: Instant, qpn: Qpn) -> Option<ConnectionEntry> {
        ServiceHost::connection_of(self, qpn).map(|(conn, connection)| ConnectionEntry {
            conn,
            established: connection.connected,
            peer: connection.peer,
            age: now.saturating_since(connection.since),
        })
    }

    fn connection_count(&self) -> usize {
        self.connections.len()
    }

    fn service_count(&self) -> usize {
        self.services.len()
    }

    fn operation_count(&self) -> usize {
        self.outstanding.0
    }

    fn count_control(&mut self, reply: SyncSender<ControlCounts>) {
        self.send(ToControl::Counts { reply });
    }

    fn list_handshakes(&mut self, from: u32, reply: SyncSender<Part<Handshake>>) {
        self.send(ToControl::Handshakes { from, reply });
    }

    fn disconnect(&mut self, _now: Instant, qpn: Qpn) -> bool {
        let Some((conn, _)) = ServiceHost::connection_of(self, qpn) else { return false };
        self.send(ToControl::Disconnect { conn });
        true
    }
}
