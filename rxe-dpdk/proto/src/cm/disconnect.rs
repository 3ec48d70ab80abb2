//! Disconnection: DREQ and DREP, from either side.

use super::connection::{Mad, State};
use super::{Cm, CmError, CmEvent, ConnId, ConnState, ConnectFailure, DisconnectReason, MadPath};
use crate::Instant;
use crate::wire::DropReason;
use crate::wire::cm::{Answered, CmMessage, Drep, Dreq, RejReason};

impl Cm {
    /// Ends a connection that was accepted, or requested by [`connect`](Self::connect). Its queue pair and buffers may
    /// be freed right away. One `Disconnected` event follows, when the peer has confirmed or its retries are used up;
    /// at once if we had not confirmed the connection ourselves. No effect on a connection that is closing already.
    ///
    /// # Errors
    ///
    /// [`CmError::Unknown`] when the connection is gone; [`CmError::WrongState`] when it is a request of the peer that
    /// was not accepted: [`reject`](Self::reject) it.
    pub fn disconnect(&mut self, now: Instant, conn: ConnId) -> Result<(), CmError> {
        let connection = self.connections.by_id(conn).ok_or(CmError::Unknown)?;
        match connection.state.name() {
            ConnState::ReqReceived => return Err(CmError::WrongState),
            ConnState::DreqSent | ConnState::Timewait => return Ok(()),
            ConnState::Established => {}
            ConnState::ReqSent => {
                self.abandon(conn);
                return Ok(());
            }
            ConnState::RepReceived => {
                self.reject(conn, RejReason::ConsumerDefined, &[], &[])?;
                self.events.push_back(CmEvent::Disconnected { conn, reason: DisconnectReason::Local });
                return Ok(());
            }
            // compliance.md [CM-DISCONNECT-EARLY]: Disconnecting before the RTU sends REJ and DREQ, for a peer without
            // and with our REP.
            ConnState::RepSent => {
                // If the REP was lost, the peer accepts only a REJ of its REQ. A peer that has the REP ignores that and
                // accepts the DREQ.
                let (path, transaction_id) = (connection.path.clone(), connection.transaction_id);
                let ids = (conn.comm_id(), connection.remote_comm_id);
                let reason = RejReason::ConsumerDefined;
                let _fits = self.send_rej(&path, transaction_id, ids, Answered::Req, reason, &[], &[]);
            }
        }
        self.start_disconnect(now, conn.comm_id());
        Ok(())
    }

    /// Handles a DREQ. Always answered, known or not: a peer without an answer keeps its side for minutes.
    pub(super) fn on_dreq(
        &mut self,
        now: Instant,
        path: &MadPath,
        transaction_id: u64,
        dreq: &Dreq,
    ) -> Result<(), DropReason> {
        self.stats.rx_dreq.inc();
        // A peer may disconnect before its REP arrives: then it knows our queue pair, but we do not know its id yet.
        let (ours, theirs) = (dreq.remote_comm_id, dreq.local_comm_id);
        // compliance.md [CM-ACTIVE-DREQ]: A DREQ that arrives before the REP is answered, and the attempt has failed.
        let early = || self.connections.requested(ours).filter(|conn| conn.has_qpn(dreq.remote_qpn));
        let Some(conn) = self.connections.by_ids(ours, theirs).or_else(early) else {
            // compliance.md [CM-DREQ-ANSWER]: Every DREQ is answered by a DREP, known or not, repeated or not.
            self.stats.rx_dreq_unknown.inc();
            self.send_drep(path, transaction_id, dreq);
            return Ok(());
        };
        if !conn.is_from_peer(path) {
            return Err(self.foreign());
        }
        // Right ids with a wrong queue pair are forged or mixed up. A connection not accepted yet has no queue pair.
        if !conn.has_qpn(dreq.remote_qpn) {
            // compliance.md [CM-DREQ-ANSWER]: Every DREQ is answered by a DREP, known or not, repeated or not.
            self.stats.rx_dreq_wrong_qpn.inc();
            return Err(DropReason::CmUnexpected);
        }
        let id = conn.id;
        let event = match conn.state.name() {
            ConnState::Timewait => {
                self.stats.rx_dreq_duplicate.inc();
                self.send_drep(path, transaction_id, dreq);
                return Ok(());
            }
            ConnState::ReqReceived | ConnState::RepSent | ConnState::ReqSent | ConnState::RepReceived => {
                CmEvent::failed(id, ConnectFailure::PeerDisconnected)
            }
            ConnState::Established => CmEvent::Disconnected { conn: id, reason: DisconnectReason::Peer },
            // Both DREQs cross: each is answered.
            // compliance.md [CM-DREQ-CROSS]: A DREQ that crosses ours is answered and ends the wait for the DREP.
            ConnState::DreqSent => CmEvent::Disconnected { conn: id, reason: DisconnectReason::Local },
        };
        self.send_drep(path, transaction_id, dreq);
        self.events.push_back(event);
        self.enter_timewait(now, id.comm_id());
        Ok(())
    }

    /// Handles a DREP: the peer confirms the end.
    pub(super) fn on_drep(&mut self, now: Instant, path: &MadPath, drep: &Drep) -> Result<(), DropReason> {
        self.stats.rx_drep.inc();
        let Some(conn) = self.connections.by_ids(drep.remote_comm_id, drep.local_comm_id) else {
            return Err(self.unknown_id());
        };
        if !conn.is_from_peer(path) {
            return Err(self.foreign());
        }
        match conn.state.name() {
            ConnState::ReqReceived
            | ConnState::RepSent
            | ConnState::ReqSent
            | ConnState::RepReceived
            | ConnState::Established => Err(self.unexpected()),
            ConnState::DreqSent => {
                let id = conn.id;
                self.events.push_back(CmEvent::Disconnected { conn: id, reason: DisconnectReason::Local });
                self.enter_timewait(now, id.comm_id());
                Ok(())
            }
            ConnState::Timewait => {
                self.stats.rx_drep_duplicate.inc();
                Err(DropReason::CmDuplicate)
            }
        }
    }

    /// Retransmits the DREQ, or gives up.
    pub(super) fn dreq_timeout(&mut self, now: Instant, comm_id: u32) {
        let Some(conn) = self.connections.get_mut(comm_id) else { return };
        // compliance.md [CM-DREQ-RETRY]: A DREQ is retransmitted until DREP, DREQ or REJ, or until its retries are used
        // up.
        let State::DreqSent { dreq, resends } = &mut conn.state else { return };
        if *resends > 0 {
            *resends -= 1;
            let (path, dreq, deadline) = (conn.path.clone(), dreq.clone(), now + conn.resend_after);
            self.stats.tx_dreq_retry.inc();
            self.queue(&path, dreq);
            self.connections.set_deadline(&mut self.timers, comm_id, deadline);
            return;
        }
        let id = conn.id;
        self.stats.dreq_timeout.inc();
        self.events.push_back(CmEvent::Disconnected { conn: id, reason: DisconnectReason::LocalUnanswered });
        self.enter_timewait(now, comm_id);
    }

    /// Sends a DREQ with a transaction id of ours and returns its MAD.
    pub(super) fn send_dreq(&mut self, comm_id: u32) -> Option<Mad> {
        let conn = self.connections.get(comm_id)?;
        let dreq = Dreq {
            local_comm_id: comm_id,
            remote_comm_id: conn.remote_comm_id,
            remote_qpn: conn.remote_qpn,
            ..Dreq::default()
        };
        let path = conn.path.clone();
        let transaction_id = self.ids.transaction();
        Some(self.send(&path, transaction_id, &CmMessage::Dreq(dreq)))
    }

    fn start_disconnect(&mut self, now: Instant, comm_id: u32) {
        let Some(conn) = self.connections.get(comm_id) else { return };
        // The address of an unconfirmed peer may be forged: fewer retransmissions.
        let most = if conn.state.is_pending() { self.config.max_rep_resends } else { u8::MAX };
        // compliance.md [CM-DREQ-RETRY]: A DREQ is retransmitted until DREP, DREQ or REJ, or until its retries are used
        // up.
        // The peer chose number and interval of the retransmissions, if it requested the connection.
        let in_time = if conn.is_active() {
            u8::MAX
        } else {
            // The interval is not zero, as `min_resend` bounds it.
            let intervals = self.config.max_disconnect.as_nanos() / conn.resend_after.as_nanos().max(1);
            u8::try_from(intervals.saturating_sub(1)).unwrap_or(u8::MAX)
        };
        let (resends, deadline) = (conn.max_resends.min(most).min(in_time), now + conn.resend_after);
        let Some(dreq) = self.send_dreq(comm_id) else { return };
        let state = State::DreqSent { dreq, resends };
        self.connections.transition(&mut self.timers, comm_id, state, Some(deadline));
        self.limit_closing();
    }

    /// Answers a DREQ along its path.
    fn send_drep(&mut self, path: &MadPath, transaction_id: u64, dreq: &Dreq) {
        let drep = Drep { local_comm_id: dreq.remote_comm_id, remote_comm_id: dreq.local_comm_id, ..Drep::default() };
        self.send(path, transaction_id, &CmMessage::Drep(drep));
    }
}
