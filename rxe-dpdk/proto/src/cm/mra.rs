//! MRA: extends the time to answer.

use super::connection::{Connection, State};
use super::timers::time_of;
use super::{Cm, ConnState, MadPath};
use crate::Instant;
use crate::wire::DropReason;
use crate::wire::cm::{Answered, CmMessage, Mra};

impl Cm {
    /// Handles an MRA of our REQ or REP: the peer needs more time, so the retransmission is delayed.
    pub(super) fn on_mra(&mut self, now: Instant, path: &MadPath, mra: &Mra) -> Result<(), DropReason> {
        self.stats.rx_mra.inc();
        let (ours, theirs) = (mra.remote_comm_id, mra.local_comm_id);
        let Some(conn) = self.connections.by_ids(ours, theirs).or_else(|| self.connections.requested(ours)) else {
            return Err(self.unknown_id());
        };
        if !conn.is_from_peer(path) {
            return Err(self.foreign());
        }
        if !is_waited_for(conn, mra.answered) {
            return Err(self.unexpected());
        }
        // The peer's service timeout plus the time of flight of its answer, as Linux computes it.
        // compliance.md [CM-MRA]: An MRA delays the next retransmission of REQ or REP by its service timeout, once and
        // within a limit.
        let wait = (time_of(mra.service_timeout) + time_of(19)).min(self.config.max_service_timeout);
        let until = now + wait;
        if let Some(conn) = self.connections.get_mut(ours)
            && let State::RepSent { resends, expires, deferred, .. } = &mut conn.state
        {
            // Only once: a peer must not hold a queue pair without limit.
            if *deferred {
                self.stats.rx_mra_again.inc();
                return Err(DropReason::CmDuplicate);
            }
            *deferred = true;
            // The peer has the REP; one more retransmission finds out whether its RTU was lost.
            *resends = 1;
            *expires = until + self.config.unconfirmed_timeout;
        }
        self.connections.set_deadline(&mut self.timers, ours, until);
        self.stats.mra_honoured.inc();
        Ok(())
    }

    /// Sends an MRA for the peer's message.
    pub(super) fn send_mra(&mut self, comm_id: u32, answered: Answered) {
        let Some(conn) = self.connections.get(comm_id) else { return };
        let mra = Mra {
            local_comm_id: comm_id,
            remote_comm_id: conn.remote_comm_id,
            answered,
            service_timeout: self.config.service_timeout & 31,
            ..Mra::default()
        };
        let (path, transaction_id) = (conn.path.clone(), conn.transaction_id);
        self.send(&path, transaction_id, &CmMessage::Mra(mra));
    }
}

/// Whether `conn` waits for the answer to this kind of message.
fn is_waited_for(conn: &Connection, answered: Answered) -> bool {
    matches!((conn.state.name(), answered), (ConnState::ReqSent, Answered::Req) | (ConnState::RepSent, Answered::Rep))
}
