//! The table of connections, and the state of each.

use std::collections::{BTreeMap, BTreeSet};

use super::timers::{TimerKey, Timers, time_of};
use super::{CmConfig, ConnId, MadPath, mad_of};
use crate::transport::Qpn;
use crate::wire::cm::{CmMessage, Req, ServiceId};
use crate::wire::mad::MAD_LEN;
use crate::wire::{Gid, Psn};
use crate::{Duration, Instant};

/// A whole MAD.
pub(super) type Mad = Box<[u8; MAD_LEN]>;

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConnState {
    /// REQ received; the user has not answered yet.
    ReqReceived,
    /// REP sent; the peer has not confirmed yet.
    RepSent,
    /// REQ sent; the peer has not answered yet.
    ReqSent,
    /// REP received; the user has not confirmed yet.
    RepReceived,
    /// Confirmed by RTU or by data.
    Established,
    /// DREQ sent; the peer has not confirmed yet.
    DreqSent,
    /// Ended; the ids are kept for a while.
    Timewait,
}

/// [`ConnState`] with the data of each state.
#[derive(Debug)]
pub(super) enum State {
    ReqReceived,
    RepSent {
        resends: u8,
        /// When the request is given up if the peer does not confirm.
        expires: Instant,
        /// The peer has answered with an MRA, so it has the REP.
        deferred: bool,
    },
    ReqSent {
        resends: u8,
    },
    RepReceived,
    /// With our RTU on the active side: it answers repetitions of the REP.
    Established {
        rtu: Option<Mad>,
    },
    DreqSent {
        dreq: Mad,
        resends: u8,
    },
    Timewait,
}

impl State {
    pub fn name(&self) -> ConnState {
        match self {
            State::ReqReceived => ConnState::ReqReceived,
            State::RepSent { .. } => ConnState::RepSent,
            State::ReqSent { .. } => ConnState::ReqSent,
            State::RepReceived => ConnState::RepReceived,
            State::Established { .. } => ConnState::Established,
            State::DreqSent { .. } => ConnState::DreqSent,
            State::Timewait => ConnState::Timewait,
        }
    }

    /// Not established yet.
    pub fn is_pending(&self) -> bool {
        matches!(self, State::ReqReceived | State::RepSent { .. } | State::ReqSent { .. } | State::RepReceived)
    }

    /// Ended for the user; only ids are left.
    fn is_closing(&self) -> bool {
        matches!(self, State::DreqSent { .. } | State::Timewait)
    }
}

/// Identity of a peer. Virtual machines cloned from one image may share a GUID, hence the address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Peer {
    pub guid: u64,
    pub gid: Gid,
}

/// Peer, communication id, queue pair, PSN, service and transaction of a REQ.
type RequestKey = (Peer, u32, u32, u32, u64, u64);

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnId,
    pub state: State,
    /// The message that made the connection, until that ends.
    pub req: Option<Mad>,
    /// Its answer, until the connection ends.
    pub rep: Option<Mad>,
    pub path: MadPath,
    /// On the active side, the GUID and the peer's numbers are 0 until the REP.
    pub peer: Peer,
    pub remote_comm_id: u32,
    pub remote_qpn: u32,
    /// Set when accepted; on the active side from the beginning.
    pub local_qpn: Option<Qpn>,
    pub service_id: ServiceId,
    /// The PSN of the peer's REQ: distinguishes a repetition from a new attempt with the same numbers. `None` on the
    /// active side.
    pub req_psn: Option<Psn>,
    /// Of the REQ, and of every answer to it.
    pub transaction_id: u64,
    /// As the REQ says.
    pub responder_resources: u8,
    /// As the REQ says.
    pub initiator_depth: u8,
    /// As the REQ says.
    pub ack_timeout: u8,
    /// Retransmission interval of REQ, REP and DREQ.
    pub resend_after: Duration,
    pub max_resends: u8,
    pub timewait: Duration,
    deadline: Option<Instant>,
    /// Sequence number among closing connections.
    closing: Option<u64>,
    /// Sequence number among the peers' unconfirmed requests.
    unconfirmed: Option<u64>,
}

impl Connection {
    /// A connection requested by a peer's REQ.
    pub fn from_req(
        id: ConnId,
        peer: Peer,
        path: &MadPath,
        req: &Req,
        transaction_id: u64,
        config: &CmConfig,
    ) -> Connection {
        // The low two bits are ECN bits of the received packet.
        let path = MadPath { traffic_class: req.primary.traffic_class & !3, ..path.clone() };
        Connection {
            id,
            state: State::ReqReceived,
            req: Some(mad_of(transaction_id, &CmMessage::Req(req.clone()))),
            rep: None,
            path,
            peer,
            remote_comm_id: req.local_comm_id,
            remote_qpn: req.local_qpn,
            local_qpn: None,
            service_id: req.service_id,
            req_psn: Some(req.starting_psn),
            transaction_id,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            ack_timeout: req.primary.ack_timeout,
            resend_after: time_of(req.local_response_timeout).clamp(config.min_resend, config.max_resend),
            max_resends: req.max_cm_retries,
            timewait: time_of(req.primary.ack_timeout).clamp(config.min_timewait, config.max_timewait),
            deadline: None,
            closing: None,
            unconfirmed: None,
        }
    }

    /// A connection requested by our REQ, whose MAD is `sent`.
    pub fn from_own_req(
        id: ConnId,
        path: &MadPath,
        req: &Req,
        transaction_id: u64,
        sent: Mad,
        config: &CmConfig,
    ) -> Connection {
        // The peer's response timeout plus the round trip: twice the packet lifetime, which is an ACK timeout.
        let resend_after = time_of(req.remote_response_timeout) + time_of(req.primary.ack_timeout);
        Connection {
            id,
            state: State::ReqSent { resends: req.max_cm_retries },
            req: Some(sent),
            rep: None,
            path: path.clone(),
            peer: Peer { guid: 0, gid: path.peer },
            remote_comm_id: 0,
            remote_qpn: 0,
            local_qpn: Some(Qpn::new(req.local_qpn)),
            service_id: req.service_id,
            req_psn: None,
            transaction_id,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            ack_timeout: req.primary.ack_timeout,
            resend_after: resend_after.clamp(config.min_resend, config.max_resend),
            max_resends: req.max_cm_retries,
            timewait: time_of(req.primary.ack_timeout).clamp(config.min_timewait, config.max_timewait),
            deadline: None,
            closing: None,
            unconfirmed: None,
        }
    }

    /// Whether `qpn` is our queue pair. A request that was not accepted has none yet.
    pub fn has_qpn(&self, qpn: u32) -> bool {
        self.local_qpn.is_some_and(|own| own.get() == qpn)
    }

    /// Whether we are the active side.
    pub fn is_active(&self) -> bool {
        self.req_psn.is_none()
    }

    /// Whether a message came along `path` from the peer of this connection.
    pub fn is_from_peer(&self, path: &MadPath) -> bool {
        self.path.port == path.port && self.peer.gid == path.peer
    }

    /// Identifies its REQ after the connection has ended.
    fn request_key(&self) -> Option<RequestKey> {
        let psn = self.req_psn?.get();
        Some((self.peer, self.remote_comm_id, self.remote_qpn, psn, self.service_id.0, self.transaction_id))
    }

    /// Whether `req`, which has the same communication id, is the one that made this connection.
    pub fn is_repetition(&self, req: &Req) -> bool {
        req.local_qpn == self.remote_qpn && Some(req.starting_psn) == self.req_psn && req.service_id == self.service_id
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Records that the timer has expired.
    pub fn deadline_passed(&mut self) {
        self.deadline = None;
    }
}

/// All connections, indexed by our communication id and by the contents of their REQ. Counts pending and open ones.
///
/// A peer's communication id or queue pair may have two owners for a while: an established connection, and a request
/// that would replace it.
#[derive(Debug, Default)]
pub(super) struct Connections {
    by_comm_id: BTreeMap<u32, Connection>,
    /// Peer, the peer's communication id, our communication id, until timewait.
    by_remote_comm_id: BTreeSet<(Peer, u32, u32)>,
    /// Peer, the peer's queue pair, our communication id, until timewait.
    by_remote_qpn: BTreeSet<(Peer, u32, u32)>,
    /// REQs of the connections in timewait.
    finished: BTreeMap<RequestKey, u32>,
    /// The closing ones, the oldest first.
    closing: BTreeMap<u64, u32>,
    /// Requests of peers that are not confirmed, the oldest first.
    unconfirmed: BTreeMap<u64, u32>,
    /// Number of connections that are not closing, by address.
    open_of: BTreeMap<Gid, usize>,
    /// Number of unconfirmed requests by address.
    unconfirmed_of: BTreeMap<Gid, usize>,
    next_place: u64,
    pending: usize,
}

impl Connections {
    /// All connections, closing ones included.
    pub fn len(&self) -> usize {
        self.by_comm_id.len()
    }

    /// Not established yet.
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// Not closing.
    pub fn open(&self) -> usize {
        self.by_comm_id.len() - self.closing.len()
    }

    /// The oldest closing connection, if there are more than `limit`.
    pub fn surplus_closing(&self, limit: usize) -> Option<u32> {
        if self.closing.len() > limit { self.closing.first_key_value().map(|(_, &id)| id) } else { None }
    }

    pub fn contains(&self, comm_id: u32) -> bool {
        self.by_comm_id.contains_key(&comm_id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.by_comm_id.values()
    }

    /// Those with this communication id of ours and higher ones, in their order.
    pub fn iter_from(&self, comm_id: u32) -> impl Iterator<Item = &Connection> {
        self.by_comm_id.range(comm_id..).map(|(_, conn)| conn)
    }

    pub fn get(&self, comm_id: u32) -> Option<&Connection> {
        self.by_comm_id.get(&comm_id)
    }

    pub fn get_mut(&mut self, comm_id: u32) -> Option<&mut Connection> {
        self.by_comm_id.get_mut(&comm_id)
    }

    /// The connection behind a handle.
    pub fn by_id(&self, id: ConnId) -> Option<&Connection> {
        self.get(id.comm_id()).filter(|conn| conn.id == id)
    }

    /// The connection with both communication ids of a message; `local` is ours. Before the REP the peer's id is not
    /// known: see [`requested`](Self::requested).
    pub fn by_ids(&self, local: u32, remote: u32) -> Option<&Connection> {
        self.get(local).filter(|conn| conn.remote_comm_id == remote && !matches!(conn.state, State::ReqSent { .. }))
    }

    /// The connection with an id of ours that waits for its REP.
    pub fn requested(&self, local: u32) -> Option<&Connection> {
        self.get(local).filter(|conn| matches!(conn.state, State::ReqSent { .. }))
    }

    /// The connections with a communication id of a peer.
    pub fn with_remote_comm_id(&self, peer: Peer, comm_id: u32) -> impl Iterator<Item = &Connection> {
        let range = (peer, comm_id, 0)..=(peer, comm_id, u32::MAX);
        self.by_remote_comm_id.range(range).filter_map(|&(_, _, own)| self.get(own))
    }

    /// The connections with a queue pair of a peer.
    pub fn with_remote_qpn(&self, peer: Peer, qpn: u32) -> impl Iterator<Item = &Connection> {
        let range = (peer, qpn, 0)..=(peer, qpn, u32::MAX);
        self.by_remote_qpn.range(range).filter_map(|&(_, _, own)| self.get(own))
    }

    /// The connections that a new one with these numbers of the peer makes stale.
    pub fn rivals(&self, peer: Peer, remote_comm_id: u32, remote_qpn: u32) -> impl Iterator<Item = &Connection> {
        let same_id = self.with_remote_comm_id(peer, remote_comm_id);
        let same_qpn = self.with_remote_qpn(peer, remote_qpn).filter(move |c| c.remote_comm_id != remote_comm_id);
        same_id.chain(same_qpn)
    }

    /// Whether a REQ made a connection that is in timewait now.
    pub fn is_finished(&self, peer: Peer, transaction_id: u64, req: &Req) -> bool {
        let psn = req.starting_psn.get();
        let key = (peer, req.local_comm_id, req.local_qpn, psn, req.service_id.0, transaction_id);
        self.finished.contains_key(&key)
    }

    /// Unconfirmed requests of an address.
    pub fn unconfirmed_of(&self, peer: Gid) -> usize {
        self.unconfirmed_of.get(&peer).copied().unwrap_or(0)
    }

    /// Connections with an address that are not closing.
    pub fn open_of(&self, peer: Gid) -> usize {
        self.open_of.get(&peer).copied().unwrap_or(0)
    }

    /// The oldest unconfirmed request of a peer.
    pub fn oldest_unconfirmed(&self) -> Option<u32> {
        self.unconfirmed.first_key_value().map(|(_, &comm_id)| comm_id)
    }

    /// Adds a connection in its first state. On the active side it has no keys of the peer yet.
    pub fn insert(&mut self, mut conn: Connection) {
        let comm_id = conn.id.comm_id();
        self.pending += usize::from(conn.state.is_pending());
        *self.open_of.entry(conn.peer.gid).or_default() += 1;
        if !matches!(conn.state, State::ReqSent { .. }) {
            self.by_remote_comm_id.insert((conn.peer, conn.remote_comm_id, comm_id));
            self.by_remote_qpn.insert((conn.peer, conn.remote_qpn, comm_id));
        }
        if matches!(conn.state, State::ReqReceived) {
            self.next_place += 1;
            conn.unconfirmed = Some(self.next_place);
            self.unconfirmed.insert(self.next_place, comm_id);
            *self.unconfirmed_of.entry(conn.peer.gid).or_default() += 1;
        }
        self.by_comm_id.insert(comm_id, conn);
    }

    /// Sets the peer's identity and numbers from its REP.
    pub fn set_peer(&mut self, comm_id: u32, guid: u64, remote_comm_id: u32, remote_qpn: u32) {
        let Some(conn) = self.by_comm_id.get_mut(&comm_id) else { return };
        conn.peer.guid = guid;
        conn.remote_comm_id = remote_comm_id;
        conn.remote_qpn = remote_qpn;
        self.by_remote_comm_id.insert((conn.peer, remote_comm_id, comm_id));
        self.by_remote_qpn.insert((conn.peer, remote_qpn, comm_id));
    }

    /// Moves a connection to another state with another deadline. In timewait its peer may use its numbers again.
    pub fn transition(&mut self, timers: &mut Timers, comm_id: u32, state: State, deadline: Option<Instant>) {
        let Some(conn) = self.by_comm_id.get_mut(&comm_id) else { return };
        self.pending -= usize::from(conn.state.is_pending());
        conn.state = state;
        self.pending += usize::from(conn.state.is_pending());
        timers.set(TimerKey::Connection(comm_id), &mut conn.deadline, deadline);
        if conn.state.is_closing() && conn.closing.is_none() {
            self.next_place += 1;
            conn.closing = Some(self.next_place);
            self.closing.insert(self.next_place, comm_id);
            decrement(&mut self.open_of, conn.peer.gid);
            (conn.req, conn.rep) = (None, None);
        }
        let unconfirmed = if conn.state.is_pending() { None } else { conn.unconfirmed.take() };
        let (peer, remote_comm_id, remote_qpn) = (conn.peer, conn.remote_comm_id, conn.remote_qpn);
        if matches!(conn.state, State::Timewait) {
            if let Some(key) = conn.request_key() {
                self.finished.insert(key, comm_id);
            }
            self.release_keys(peer, remote_comm_id, remote_qpn, comm_id);
        }
        self.release_unconfirmed(peer.gid, unconfirmed);
    }

    /// Sets the deadline alone.
    pub fn set_deadline(&mut self, timers: &mut Timers, comm_id: u32, at: Instant) {
        if let Some(conn) = self.by_comm_id.get_mut(&comm_id) {
            timers.set(TimerKey::Connection(comm_id), &mut conn.deadline, Some(at));
        }
    }

    /// Removes a connection.
    pub fn remove(&mut self, timers: &mut Timers, comm_id: u32) {
        let Some(mut conn) = self.by_comm_id.remove(&comm_id) else { return };
        timers.set(TimerKey::Connection(comm_id), &mut conn.deadline, None);
        self.pending -= usize::from(conn.state.is_pending());
        match conn.closing {
            Some(place) => {
                self.closing.remove(&place);
            }
            None => decrement(&mut self.open_of, conn.peer.gid),
        }
        if let Some(key) = conn.request_key()
            && self.finished.get(&key) == Some(&comm_id)
        {
            self.finished.remove(&key);
        }
        self.release_unconfirmed(conn.peer.gid, conn.unconfirmed);
        self.release_keys(conn.peer, conn.remote_comm_id, conn.remote_qpn, comm_id);
    }

    fn release_keys(&mut self, peer: Peer, remote_comm_id: u32, remote_qpn: u32, comm_id: u32) {
        self.by_remote_comm_id.remove(&(peer, remote_comm_id, comm_id));
        self.by_remote_qpn.remove(&(peer, remote_qpn, comm_id));
    }

    fn release_unconfirmed(&mut self, peer: Gid, place: Option<u64>) {
        let Some(place) = place else { return };
        self.unconfirmed.remove(&place);
        decrement(&mut self.unconfirmed_of, peer);
    }
}

/// Subtracts one; an address without any has no entry.
pub(super) fn decrement(counts: &mut BTreeMap<Gid, usize>, peer: Gid) {
    if let Some(count) = counts.get_mut(&peer) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MacAddr, PortId};

    #[test]
    fn a_handle_outlives_neither_its_connection_nor_its_number() {
        let path = MadPath {
            port: PortId(0),
            local_mac: MacAddr::default(),
            peer_mac: MacAddr::default(),
            vlan: None,
            local: Gid::default(),
            peer: Gid::default(),
            traffic_class: 0,
        };
        let config = CmConfig::new(1, [0; 32]);
        let peer = Peer { guid: 1, gid: Gid::default() };
        let made = |id| Connection::from_req(id, peer, &path, &Req::default(), 0, &config);
        let (old, new) = (ConnId::new(1, 77), ConnId::new(2, 77));
        let (mut connections, mut timers) = (Connections::default(), Timers::default());
        connections.insert(made(old));
        assert!(connections.by_id(old).is_some());
        connections.remove(&mut timers, 77);
        assert!(connections.by_id(old).is_none());
        connections.insert(made(new));
        assert!(connections.by_id(new).is_some() && connections.by_id(old).is_none());
        assert_eq!((connections.pending(), connections.open(), connections.len()), (1, 1, 1));
    }
}
