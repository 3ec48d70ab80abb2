//! REJ, of either side.

use super::connection::Peer;
use super::{Cm, CmError, CmEvent, ConnId, ConnState, ConnectFailure, DisconnectReason, MadPath};
use crate::Instant;
use crate::wire::DropReason;
use crate::wire::cm::{Answered, CmMessage, Rej, RejReason};

impl Cm {
    /// Rejects a peer's REQ, or a REP with parameters that our queue pair cannot take: sends a REJ with `reason`,
    /// additional information `ari` (at most 72 bytes) and the upper layer's `private_data` (at most 148 bytes), and
    /// removes the connection. Use [`RejReason::InvalidServiceId`] for a service that does not exist,
    /// [`RejReason::ConsumerDefined`] to reject the peer or its parameters.
    ///
    /// # Errors
    ///
    /// [`CmError`]: the connection is gone, is not waiting for an answer of ours, or something is too long.
    pub fn reject(&mut self, conn: ConnId, reason: RejReason, ari: &[u8], private_data: &[u8]) -> Result<(), CmError> {
        self.refuse(conn, reason, ari, private_data)?;
        self.stats.rejected.inc();
        Ok(())
    }

    /// Sends a REJ of the REQ or REP that waits for the user's answer, and removes the connection.
    pub(super) fn refuse(
        &mut self,
        conn: ConnId,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let connection = self.connections.by_id(conn).ok_or(CmError::Unknown)?;
        // A peer that waits for a REP expects a REJ without an id of ours.
        // compliance.md [CM-REJ-IDS]: A REJ of a REQ has local id 0 and says that it answers a REQ.
        let (local_comm_id, answered) = match connection.state.name() {
            ConnState::ReqReceived => (0, Answered::Req),
            ConnState::RepReceived => (conn.comm_id(), Answered::Rep),
            _ => return Err(CmError::WrongState),
        };
        let (path, transaction_id) = (connection.path.clone(), connection.transaction_id);
        let ids = (local_comm_id, connection.remote_comm_id);
        self.send_rej(&path, transaction_id, ids, answered, reason, ari, private_data)?;
        self.connections.remove(&mut self.timers, conn.comm_id());
        Ok(())
    }

    /// Handles a REJ: of our REQ or REP, or from a peer that has given up.
    pub(super) fn on_rej(&mut self, now: Instant, path: &MadPath, rej: &Rej) -> Result<(), DropReason> {
        self.stats.rx_rej.inc();
        // Before the REP the peer's id is not known, and the peer need not have one.
        // compliance.md [CM-ACTIVE-REJ]: A REJ of our REQ, with the peer's id or without, ends the attempt with its
        // reason, its information and its private data.
        let asked = || self.connections.requested(rej.remote_comm_id).filter(|_| rej.answered != Answered::Rep);
        let by_ids = self.connections.by_ids(rej.remote_comm_id, rej.local_comm_id).or_else(asked);
        // A peer that gives up before our REP arrives does not know our id. It sends its GUID instead.
        // compliance.md [CM-REJ-KILLED]: REJ "timeout" without our id finds the connection by GUID and the peer's id,
        // if it is not established.
        let found = by_ids.or_else(|| {
            let guid = u64::from_be_bytes(*rej.ari().first_chunk()?);
            let peer = Peer { guid, gid: path.peer };
            // Prefer the pending attempt to an older connection with this id.
            let conn =
                self.connections.with_remote_comm_id(peer, rej.local_comm_id).max_by_key(|c| c.state.is_pending())?;
            (rej.reason == RejReason::Timeout && rej.remote_comm_id == 0).then_some(conn)
        });
        let Some(conn) = found else { return Err(self.unknown_id()) };
        if !conn.is_from_peer(path) {
            return Err(self.foreign());
        }
        let (id, knows_our_id) = (conn.id, by_ids.is_some());
        match conn.state.name() {
            ConnState::ReqReceived | ConnState::RepSent | ConnState::ReqSent | ConnState::RepReceived => {
                let reason = ConnectFailure::PeerRejected(rej.reason);
                let rej = Some(Box::new(rej.clone()));
                self.events.push_back(CmEvent::ConnectFailed { conn: id, reason, rej });
                self.connections.remove(&mut self.timers, id.comm_id());
            }
            // The peer has our REP, so this "timeout" is out of date.
            ConnState::Established | ConnState::DreqSent if !knows_our_id => return Err(self.unexpected()),
            // The peer's REP has overtaken it. If the peer wants to end the connection, it sends a DREQ.
            ConnState::Established if rej.answered == Answered::Req => return Err(self.unexpected()),
            ConnState::Established => {
                let reason = DisconnectReason::PeerRejected(rej.reason);
                self.events.push_back(CmEvent::Disconnected { conn: id, reason });
                self.enter_timewait(now, id.comm_id());
            }
            ConnState::DreqSent => {
                self.events.push_back(CmEvent::Disconnected { conn: id, reason: DisconnectReason::Local });
                self.enter_timewait(now, id.comm_id());
            }
            ConnState::Timewait => return Err(self.unexpected()),
        }
        self.stats.peer_rejected.inc();
        Ok(())
    }

    /// Enqueues a REJ. If `ari` or `private_data` do not fit, nothing is sent.
    #[allow(clippy::too_many_arguments)] // the fields of the message
    pub(super) fn send_rej(
        &mut self,
        path: &MadPath,
        transaction_id: u64,
        (local_comm_id, remote_comm_id): (u32, u32),
        answered: Answered,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = crate::wire::cm::private_data(private_data).ok_or(CmError::TooLong)?;
        let mut rej = Rej { local_comm_id, remote_comm_id, answered, reason, private_data, ..Rej::default() };
        if !rej.set_ari(ari) {
            return Err(CmError::TooLong);
        }
        self.send(path, transaction_id, &CmMessage::Rej(rej));
        Ok(())
    }
}
