//! Connections of queue pairs, for management.

use std::sync::mpsc::SyncSender;

use rxe_proto::Instant;
use rxe_proto::cm::Handshake;
use rxe_proto::transport::Qpn;
use rxe_service::inspect::{ConnectionEntry, ControlCounts, EngineOwner, Part, handshakes};

use super::id::{Connection, Id, Phase};
use super::{Host, RdmaCm};

/// The connection manager with its adapter, as management asks it.
pub struct Owner<'a, 'b> {
    /// The device of the connection manager.
    pub rdma_cm: &'a mut RdmaCm,
    /// The parts of the adapter that it uses.
    pub host: Host<'b>,
}

impl RdmaCm {
    /// The connected id of a queue pair.
    fn connected(&self, qpn: Qpn) -> Option<(&Id, &Connection)> {
        let ids = self.connections.values().filter_map(|handle| self.ids.get(*handle));
        let mut connected = ids.filter_map(|id| Some((id, id.connection()?)));
        connected.find(|(id, connection)| id.qpn == qpn.get() && connection.phase != Phase::Ended)
    }
}

impl EngineOwner for Owner<'_, '_> {
    fn service_of(&self, _qpn: Qpn) -> Option<&'static str> {
        None
    }

    fn connection_of(&self, now: Instant, qpn: Qpn) -> Option<ConnectionEntry> {
        let (id, connection) = self.rdma_cm.connected(qpn)?;
        Some(ConnectionEntry {
            conn: connection.conn,
            established: connection.phase == Phase::Established,
            peer: id.dest,
            age: now.saturating_since(connection.since),
        })
    }

    fn connection_count(&self) -> usize {
        self.rdma_cm.connections.len()
    }

    fn service_count(&self) -> usize {
        0
    }

    fn count_control(&mut self, reply: SyncSender<ControlCounts>) {
        let cm = &self.host.cm;
        let counts =
            ControlCounts { connections: cm.len(), sidr: cm.sidr_len() + cm.resolving(), streams: 0, neighbours: 0 };
        // The sender of the question may have timed out.
        let _ = reply.try_send(counts);
    }

    fn list_handshakes(&mut self, from: u32, reply: SyncSender<Part<Handshake>>) {
        let _ = reply.try_send(handshakes(self.host.cm, from));
    }

    fn disconnect(&mut self, now: Instant, qpn: Qpn) -> bool {
        let Some((_, connection)) = self.rdma_cm.connected(qpn) else { return false };
        self.host.cm.disconnect(now, connection.conn).is_ok()
    }
}
