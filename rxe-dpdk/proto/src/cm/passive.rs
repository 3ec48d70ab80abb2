//! The passive side: from REQ to an established connection.

use std::net::IpAddr;

use super::connection::{Connection, Mad, Peer, State};
use super::path::is_host;
use super::{
    AcceptParams, Cm, CmError, CmEvent, ConnId, ConnState, ConnectFailure, ConnectRequest, DisconnectReason,
    LocalAddresses, MadPath, RefusedRequest,
};
use crate::wire::cm::{Answered, CmMessage, CmTransport, PortSpace, RejReason, Rep, Req, Rtu};
use crate::wire::{DropReason, Gid, PKEY_FULL_MEMBER, PathMtu};
use crate::{Duration, Instant};

/// The contents of a valid REQ.
struct Checked {
    source: (IpAddr, u16),
    dest: (IpAddr, u16),
    path_mtu: PathMtu,
}

/// Why a REQ is rejected, with the additional information of that reason.
struct Refusal {
    reason: RejReason,
    ari: Vec<u8>,
    why: &'static str,
}

impl Refusal {
    fn new(reason: RejReason, why: &'static str) -> Refusal {
        Refusal { reason, ari: Vec::new(), why }
    }
}

/// Most entries in the queue of [`Cm::poll_refusal`].
const MAX_REFUSALS: usize = 64;

impl Cm {
    /// Accepts a connection: sends the REP, and retransmits it until the peer confirms or the retries are used up.
    ///
    /// # Errors
    ///
    /// [`CmError`]: the connection is gone, was answered before, or the private data is too long.
    pub fn accept(&mut self, now: Instant, conn: ConnId, params: AcceptParams) -> Result<(), CmError> {
        let private_data = crate::wire::cm::private_data(&params.private_data).ok_or(CmError::TooLong)?;
        let connection = self.connections.by_id(conn).ok_or(CmError::Unknown)?;
        if connection.state.name() != ConnState::ReqReceived {
            return Err(CmError::WrongState);
        }
        let rep = CmMessage::Rep(Rep {
            local_comm_id: conn.comm_id(),
            remote_comm_id: connection.remote_comm_id,
            local_qpn: params.qpn.get(),
            starting_psn: params.starting_psn,
            // compliance.md [CM-REP-DEPTHS]: A REP grants no more READ resources and depth than the REQ asks for,
            // crossed.
            responder_resources: params.responder_resources.min(connection.initiator_depth),
            initiator_depth: params.initiator_depth.min(connection.responder_resources),
            target_ack_delay: self.config.target_ack_delay & 31,
            flow_control: params.flow_control,
            rnr_retry_count: params.rnr_retry_count.min(7),
            srq: params.srq,
            local_ca_guid: self.config.ca_guid,
            private_data,
            ..Rep::default()
        });
        // compliance.md [CM-TRANSACTION]: An answer carries the transaction id of its request.
        let (path, transaction_id) = (connection.path.clone(), connection.transaction_id);
        let (resends, resend_after) = self.rep_resends(connection);
        let (peer, remote_comm_id, remote_qpn) = (connection.peer, connection.remote_comm_id, connection.remote_qpn);
        // compliance.md [CM-STALE-ACCEPT]: A REQ with a queue pair or id of a known connection is served, and ends that
        // connection when it is accepted.
        self.end_stale_of(now, peer, remote_comm_id, remote_qpn, conn);
        let rep = self.send(&path, transaction_id, &rep);
        if let Some(connection) = self.connections.get_mut(conn.comm_id()) {
            connection.local_qpn = Some(params.qpn);
            connection.rep = Some(rep);
        }
        let expires = now + self.config.unconfirmed_timeout;
        let deadline = if resends > 0 { expires.min(now + resend_after) } else { expires };
        let state = State::RepSent { resends, expires, deferred: false };
        self.connections.transition(&mut self.timers, conn.comm_id(), state, Some(deadline));
        self.stats.accepted.inc();
        Ok(())
    }

    /// Drops a request of a peer without an answer. If the peer retransmits its REQ, that is a new request.
    ///
    /// # Errors
    ///
    /// [`CmError`]: the connection is gone, or was answered.
    pub fn discard(&mut self, conn: ConnId) -> Result<(), CmError> {
        let connection = self.connections.by_id(conn).ok_or(CmError::Unknown)?;
        if connection.state.name() != ConnState::ReqReceived {
            return Err(CmError::WrongState);
        }
        self.stats.req_dropped.inc();
        self.connections.remove(&mut self.timers, conn.comm_id());
        Ok(())
    }

    /// The established connections that end when the request `conn` is accepted, because the peer names a queue pair or
    /// communication id of theirs as its own.
    ///
    /// Anyone with these numbers can forge such a REQ. While one of these connections receives packets in sequence, its
    /// peer has not restarted: then [`reject`](Self::reject) the request.
    #[must_use]
    pub fn replaced_by(&self, conn: ConnId) -> Vec<ConnId> {
        let Some(new) = self.connections.by_id(conn) else { return Vec::new() };
        let rivals = self.connections.rivals(new.peer, new.remote_comm_id, new.remote_qpn);
        rivals.filter(|old| old.state.name() == ConnState::Established).map(|old| old.id).collect()
    }

    /// The connection's queue pair has received its first valid packet: the peer has our REP, even if its RTU was lost.
    /// No effect when the connection is established already.
    ///
    /// # Errors
    ///
    /// [`CmError`]: the connection is gone, not accepted yet, or closing.
    pub fn established(&mut self, conn: ConnId) -> Result<(), CmError> {
        match self.connections.by_id(conn).ok_or(CmError::Unknown)?.state.name() {
            ConnState::RepSent => {
                // compliance.md [CM-DATA-IS-RTU]: The first request on the queue pair counts as RTU, which may come
                // later or not at all.
                self.stats.implied_rtu.inc();
                self.establish(conn, None);
                Ok(())
            }
            ConnState::Established => Ok(()),
            ConnState::ReqReceived
            | ConnState::ReqSent
            | ConnState::RepReceived
            | ConnState::DreqSent
            | ConnState::Timewait => Err(CmError::WrongState),
        }
    }

    /// Handles a REQ: a repetition, a new attempt of a restarted peer, or a new connection.
    pub(super) fn on_req(
        &mut self,
        now: Instant,
        path: &MadPath,
        transaction_id: u64,
        req: &Req,
        local: &impl LocalAddresses,
    ) -> Result<(), DropReason> {
        self.stats.rx_req.inc();
        // compliance.md [CM-CLONE]: Peers with the same GUID but different addresses are different peers.
        let peer = Peer { guid: req.local_ca_guid, gid: path.peer };
        let mut same_id = self.connections.with_remote_comm_id(peer, req.local_comm_id);
        let repeated = same_id.find(|conn| conn.is_repetition(req)).map(|conn| conn.id.comm_id());
        drop(same_id);
        if let Some(comm_id) = repeated {
            // compliance.md [CM-REQ-DUP]: A repeated REQ makes no second connection.
            return self.on_repeated_req(now, comm_id);
        }
        // A late copy: the peer has ended this connection.
        if self.connections.is_finished(peer, transaction_id, req) {
            self.stats.rx_req_duplicate_late.inc();
            return Err(DropReason::CmDuplicate);
        }
        let checked = match self.check_req(path, req, local) {
            Ok(checked) => checked,
            Err(refusal) => return self.refuse_req(path, transaction_id, req, &refusal),
        };
        if self.events_full() {
            self.stats.event_queue_full.inc();
            return Err(DropReason::CmLimit);
        }
        // compliance.md [CM-STALE-ACCEPT]: A REQ with a queue pair or id of a known connection is served, and ends that
        // connection when it is accepted.
        // Pending attempts of the peer that this one replaces do not count against the limits. An established connection
        // ends only when the new one is accepted.
        let rivals = self.connections.rivals(peer, req.local_comm_id, req.local_qpn);
        let (attempts, replaced): (Vec<_>, Vec<_>) =
            rivals.map(|conn| (conn.id.comm_id(), conn.state.is_pending())).partition(|&(_, pending)| pending);
        let leaving = attempts.len() + replaced.len();
        // compliance.md [CM-LIMITS]: Too many connections are rejected with reason 1, too many of one address,
        // pending or not, with 3.
        if self.connections.open() >= self.config.max_connections + leaving {
            self.stats.req_connection_limit.inc();
            let refusal = Refusal::new(RejReason::NoQp, "there are as many connections as allowed");
            return self.refuse_req(path, transaction_id, req, &refusal);
        }
        // compliance.md [CM-LIMITS]: Too many connections are rejected with reason 1, too many of one address,
        // pending or not, with 3.
        if self.connections.open_of(peer.gid) >= self.config.max_connections_per_peer + leaving {
            self.stats.req_address_limit.inc();
            let refusal = Refusal::new(RejReason::NoResources, "this address has as many connections as it may have");
            return self.refuse_req(path, transaction_id, req, &refusal);
        }
        // compliance.md [CM-LIMITS]: Too many connections are rejected with reason 1, too many of one address,
        // pending or not, with 3.
        if self.connections.unconfirmed_of(peer.gid) >= self.config.max_pending_per_peer + attempts.len() {
            self.stats.req_peer_limit.inc();
            let refusal =
                Refusal::new(RejReason::NoResources, "this address has as many pending connections as it may have");
            return self.refuse_req(path, transaction_id, req, &refusal);
        }
        for (comm_id, _) in attempts {
            self.end_stale(now, comm_id);
        }
        // compliance.md [CM-LIMITS]: Too many connections are rejected with reason 1, too many of one address,
        // pending or not, with 3.
        if self.connections.pending() >= self.config.max_pending && !self.evict_unconfirmed() {
            self.stats.req_pending_limit.inc();
            let refusal = Refusal::new(RejReason::NoResources, "there are as many pending connections as allowed");
            return self.refuse_req(path, transaction_id, req, &refusal);
        }

        let id = self.ids.connection(|comm_id| self.connections.contains(comm_id));
        let conn = Connection::from_req(id, peer, path, req, transaction_id, &self.config);
        let request = connect_request(&conn, req, &checked);
        self.connections.insert(conn);
        self.connections.set_deadline(&mut self.timers, id.comm_id(), now + self.config.answer_timeout);
        self.stats.requests.inc();
        self.events.push_back(CmEvent::ConnectRequest(Box::new(request)));
        Ok(())
    }

    /// Evicts the oldest unconfirmed request of a peer in favour of a newer one. Its REQ may be retransmitted.
    fn evict_unconfirmed(&mut self) -> bool {
        let oldest = self.connections.oldest_unconfirmed().and_then(|comm_id| self.connections.get(comm_id));
        let Some(id) = oldest.map(|conn| conn.id) else { return false };
        self.stats.pending_evicted.inc();
        self.events.push_back(CmEvent::failed(id, ConnectFailure::Evicted));
        self.connections.remove(&mut self.timers, id.comm_id());
        true
    }

    /// Handles an RTU.
    pub(super) fn on_rtu(&mut self, path: &MadPath, rtu: &Rtu) -> Result<(), DropReason> {
        self.stats.rx_rtu.inc();
        let Some(conn) = self.connections.by_ids(rtu.remote_comm_id, rtu.local_comm_id) else {
            return Err(self.unknown_id());
        };
        if !conn.is_from_peer(path) {
            return Err(self.foreign());
        }
        match conn.state.name() {
            _ if conn.is_active() => Err(self.unexpected()),
            ConnState::ReqReceived | ConnState::ReqSent | ConnState::RepReceived => Err(self.unexpected()),
            ConnState::RepSent => {
                let id = conn.id;
                self.establish(id, None);
                Ok(())
            }
            ConnState::Established | ConnState::DreqSent | ConnState::Timewait => {
                self.stats.rx_rtu_duplicate.inc();
                Err(DropReason::CmDuplicate)
            }
        }
    }

    /// Rejects a REQ or REP that the user did not answer in time.
    pub(super) fn answer_timeout(&mut self, comm_id: u32) {
        let Some(id) = self.connections.get(comm_id).map(|conn| conn.id) else { return };
        // Not reason 4 (timeout): a peer without our REP would look that up by an id that it does not have.
        // compliance.md [CM-ANSWER-TIMEOUT]: If a service does not answer in time, the peer gets a REJ, and the
        // connection is removed.
        let _fits = self.refuse(id, RejReason::NoResources, &[], &[]);
        self.stats.unanswered.inc();
        self.events.push_back(CmEvent::failed(id, ConnectFailure::NotAnswered));
    }

    /// Retransmissions of a connection's REP, and their interval: as the REQ requests, within our limits.
    fn rep_resends(&self, conn: &Connection) -> (u8, Duration) {
        (conn.max_resends.min(self.config.max_rep_resends), conn.resend_after.min(self.config.max_rep_resend))
    }

    /// Retransmits the REP, or gives up.
    pub(super) fn rep_timeout(&mut self, now: Instant, comm_id: u32) {
        let Some(conn) = self.connections.get(comm_id) else { return };
        let (_, resend_after) = self.rep_resends(conn);
        let Some(conn) = self.connections.get_mut(comm_id) else { return };
        // compliance.md [CM-REP-RETRY]: A REP is retransmitted until RTU, data or REJ, as often and as fast as the REQ
        // requests, but twice at most per copy of the REQ.
        let State::RepSent { resends, expires, deferred } = &mut conn.state else { return };
        let (id, path, transaction_id) = (conn.id, conn.path.clone(), conn.transaction_id);
        let (expires, deferred) = (*expires, *deferred);
        if now < expires {
            if *resends > 0
                && let Some(rep) = conn.rep.clone()
            {
                *resends -= 1;
                let more = *resends > 0;
                let deadline = if more { expires.min(now + resend_after) } else { expires };
                self.stats.tx_rep_retry.inc();
                self.queue(&path, rep);
                self.connections.set_deadline(&mut self.timers, comm_id, deadline);
            } else {
                self.connections.set_deadline(&mut self.timers, comm_id, expires);
            }
            return;
        }
        // A peer that has the REP, but whose RTUs were all lost, finds its connection by our GUID and id. Others get no
        // REJ: a forged REQ must not make us send more than the REPs to the forged address.
        if deferred {
            let ids = (id.comm_id(), conn.remote_comm_id);
            let guid = self.config.ca_guid.to_be_bytes();
            let _fits = self.send_rej(&path, transaction_id, ids, Answered::Other, RejReason::Timeout, &guid, &[]);
        }
        self.stats.rep_timeout.inc();
        self.events.push_back(CmEvent::failed(id, ConnectFailure::Timeout));
        self.connections.remove(&mut self.timers, comm_id);
    }

    fn on_repeated_req(&mut self, now: Instant, comm_id: u32) -> Result<(), DropReason> {
        let Some(conn) = self.connections.get(comm_id) else { return Err(DropReason::CmDuplicate) };
        let (again, resend_after) = self.rep_resends(conn);
        let Some(conn) = self.connections.get_mut(comm_id) else { return Err(DropReason::CmDuplicate) };
        match (&mut conn.state, &conn.rep) {
            // Our REP was lost, or is in flight.
            (State::RepSent { resends, expires, deferred }, Some(rep)) => {
                let (path, rep) = (conn.path.clone(), rep.clone());
                if !*deferred {
                    *resends = again;
                    *expires = now + self.config.unconfirmed_timeout;
                    let deadline = if again > 0 { (*expires).min(now + resend_after) } else { *expires };
                    self.connections.set_deadline(&mut self.timers, comm_id, deadline);
                }
                // compliance.md [CM-REP-AT-ONCE]: A REQ repeated after our REP gets the REP again at once, not with the
                // next timeout.
                self.stats.rx_req_duplicate_answered.inc();
                self.queue(&path, rep);
                Ok(())
            }
            (State::ReqReceived, _) => {
                self.stats.rx_req_duplicate.inc();
                Err(DropReason::CmDuplicate)
            }
            _ => {
                self.stats.rx_req_duplicate_late.inc();
                Err(DropReason::CmDuplicate)
            }
        }
    }

    fn refuse_req(
        &mut self,
        path: &MadPath,
        transaction_id: u64,
        req: &Req,
        refusal: &Refusal,
    ) -> Result<(), DropReason> {
        let ids = (0, req.local_comm_id);
        let _fits = self.send_rej(path, transaction_id, ids, Answered::Req, refusal.reason, &refusal.ari, &[]);
        if self.refusals.len() < MAX_REFUSALS {
            self.refusals.push_back(RefusedRequest { peer: path.peer, why: refusal.why });
        } else {
            self.stats.refusals_untold.inc();
        }
        Ok(())
    }

    /// Checks everything in a REQ that does not depend on the service.
    fn check_req(&self, path: &MadPath, req: &Req, local: &impl LocalAddresses) -> Result<Checked, Refusal> {
        let refuse = |reason, ari: &[u8], why| Err(Refusal { reason, ari: ari.to_vec(), why });
        let stats = &self.stats;
        // compliance.md [CM-REJ-REASON]: An invalid REQ is rejected with the matching reason, and the supported value
        // as additional information.
        match req.service_id.port_space() {
            Some(PortSpace::Tcp) => {}
            Some(PortSpace::Ib) if self.config.ib_port_space => {}
            _ => {
                stats.req_service_id.inc();
                return refuse(RejReason::InvalidServiceId, &[], "the service id is not of the TCP port space");
            }
        }
        if !matches!(req.transport, CmTransport::Rc | CmTransport::Uc) {
            stats.req_transport.inc();
            return refuse(RejReason::InvalidTransportType, &[], "the transport is neither RC nor UC");
        }
        // There is no reject reason for a wrong partition; Linux uses this one. Full and limited members are both
        // accepted.
        // compliance.md [CM-LENIENT]: REQs are as lenient as Linux.
        if req.pkey & 0x7FFF != 0x7FFF {
            stats.req_pkey.inc();
            return refuse(RejReason::InvalidGid, &path.local.0, "the partition key is not the default one");
        }
        if req.pkey & PKEY_FULL_MEMBER == 0 && local.serves_full_members_only(path.port) {
            stats.req_pkey_limited.inc();
            return refuse(RejReason::InvalidGid, &path.local.0, "the partition key is that of a limited member");
        }
        let (ours, theirs) = (req.primary.remote_gid, req.primary.local_gid);
        // The queue pair would send to this address, so it must be the source of the REQ.
        if theirs != path.peer || !local.is_peer(path, theirs) {
            stats.req_gid_foreign.inc();
            return refuse(RejReason::InvalidGid, &path.local.0, "its GID is not the address that the REQ came from");
        }
        if !local.is_local(path.port, ours) || ours.is_ipv4() != theirs.is_ipv4() {
            stats.req_gid.inc();
            return refuse(RejReason::InvalidGid, &path.local.0, "our GID in it is not an address of this port");
        }
        // compliance.md [CM-NO-APM]: LAP and APR are dropped by name, alternate paths in a REQ rejected with reason 18.
        if req.alternate.local_lid != 0 {
            stats.req_alternate_path.inc();
            return refuse(RejReason::InvalidAlternateGid, &path.local.0, "it has an alternate path");
        }
        // compliance.md [CM-REJ-REASON]: An invalid REQ is rejected with the matching reason, and the supported value
        // as additional information.
        let largest = local.path_mtu(path.port);
        let Some(path_mtu) = PathMtu::from_code(req.path_mtu).filter(|&mtu| mtu <= largest) else {
            stats.req_path_mtu.inc();
            return refuse(RejReason::InvalidMtu, &[largest.code()], "the path MTU is larger than this port carries");
        };
        let ip = req.ip_addressing();
        // compliance.md [CM-IP-HEADER]: A REQ begins its private data with the IP addresses and the port of the
        // connection.
        let (Some(source), Some(dest)) = (ip.source(), ip.destination()) else {
            stats.req_ip_header.inc();
            return refuse(RejReason::ConsumerDefined, &[], "the IP addressing header is malformed");
        };
        if !is_host(source.0) || !local.is_local(path.port, Gid::from(dest)) {
            stats.req_ip_header.inc();
            return refuse(RejReason::ConsumerDefined, &[], "the IP addressing header does not name this port");
        }
        Ok(Checked { source, dest: (dest, req.service_id.port()), path_mtu })
    }

    /// Ends connections whose queue pair or communication id `peer` now uses for the connection `new`: the peer has
    /// restarted.
    pub(super) fn end_stale_of(&mut self, now: Instant, peer: Peer, remote_comm_id: u32, remote_qpn: u32, new: ConnId) {
        let rivals = self.connections.rivals(peer, remote_comm_id, remote_qpn);
        let old: Vec<u32> = rivals.map(|conn| conn.id).filter(|&id| id != new).map(ConnId::comm_id).collect();
        // compliance.md [CM-STALE]: A queue pair or id of a known connection in a new REQ or REP means that the peer
        // has restarted.
        for comm_id in old {
            self.end_stale(now, comm_id);
        }
    }

    fn end_stale(&mut self, now: Instant, comm_id: u32) {
        let Some(conn) = self.connections.get(comm_id) else { return };
        let id = conn.id;
        match conn.state.name() {
            ConnState::ReqReceived | ConnState::RepSent | ConnState::ReqSent | ConnState::RepReceived => {
                self.events.push_back(CmEvent::failed(id, ConnectFailure::Stale));
                self.connections.remove(&mut self.timers, comm_id);
            }
            ConnState::Established => {
                // One DREQ: if the peer is alive after all, it learns that this connection has ended.
                self.send_dreq(comm_id);
                self.events.push_back(CmEvent::Disconnected { conn: id, reason: DisconnectReason::Stale });
                self.enter_timewait(now, comm_id);
            }
            ConnState::DreqSent => {
                self.events.push_back(CmEvent::Disconnected { conn: id, reason: DisconnectReason::Stale });
                self.enter_timewait(now, comm_id);
            }
            ConnState::Timewait => return,
        }
        self.stats.stale.inc();
    }

    /// Enters Established. `rtu` is ours, on the active side.
    pub(super) fn establish(&mut self, conn: ConnId, rtu: Option<Mad>) {
        self.connections.transition(&mut self.timers, conn.comm_id(), State::Established { rtu }, None);
        self.stats.established.inc();
        self.events.push_back(CmEvent::Established { conn });
    }
}

fn connect_request(conn: &Connection, req: &Req, checked: &Checked) -> ConnectRequest {
    ConnectRequest {
        conn: conn.id,
        path: conn.path.clone(),
        service_id: req.service_id,
        transport: req.transport,
        source: checked.source,
        dest: checked.dest,
        remote_qpn: req.local_qpn,
        starting_psn: req.starting_psn,
        path_mtu: checked.path_mtu,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        local_ack_timeout: req.primary.ack_timeout,
        flow_control: req.flow_control,
        srq: req.srq,
        traffic_class: req.primary.traffic_class,
        flow_label: req.primary.flow_label,
        peer_gid: req.primary.local_gid,
        local_gid: req.primary.remote_gid,
        ca_guid: req.local_ca_guid,
        remote_comm_id: req.local_comm_id,
        private_data: req.ulp_data(),
    }
}
