//! The active side: from `connect` to an established connection.

use super::connection::{Connection, Peer, State};
use super::path::is_host;
use super::timers::ack_timeout;
use super::{
    Cm, CmError, CmEvent, ConnId, ConnState, ConnectFailure, ConnectParams, ConnectReply, DisconnectReason, MadPath,
    mad_of,
};
use crate::Instant;
use crate::wire::cm::{Answered, CmMessage, CmPath, CmTransport, IpAddressing, RejReason, Rep, Req, Rtu, ServiceId};
use crate::wire::{DEFAULT_PKEY, DropReason};

/// LID of both ends where there are none.
const NO_LID: u16 = 0xFFFF;

/// Hop limit that a REQ names.
const HOP_LIMIT: u8 = 64;

impl Cm {
    /// Requests a connection: sends the REQ, and retransmits it until the peer answers or the retries are used up.
    /// `ConnectReply` or `ConnectFailed` follows. [`disconnect`](Self::disconnect) cancels the attempt.
    ///
    /// # Errors
    ///
    /// [`CmError`]: addresses, transport or private data that cannot be sent, or too many connections.
    pub fn connect(&mut self, now: Instant, params: ConnectParams) -> Result<ConnId, CmError> {
        if !matches!(params.transport, CmTransport::Rc | CmTransport::Uc) {
            return Err(CmError::Transport);
        }
        let (source, dest) = (params.path.local.ip(), params.path.peer.ip());
        let addressing = IpAddressing::new((source, params.source_port), dest)
            .filter(|_| is_host(source) && is_host(dest))
            .ok_or(CmError::Address)?;
        if self.connections.open() >= self.config.max_connections
            || self.connections.pending() >= self.config.max_pending
        {
            return Err(CmError::Limit);
        }
        // The low two bits are ECN bits, set per packet.
        let path = MadPath { traffic_class: params.path.traffic_class & !3, ..params.path };
        let response_timeout = params.response_timeout & 31;
        // compliance.md [CM-ACTIVE-REQ]: Our REQ equals that of Linux for the same parameters.
        let mut req = Req {
            service_id: ServiceId::new(params.port_space, params.dest_port),
            local_ca_guid: self.config.ca_guid,
            local_qpn: params.qpn.get(),
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            remote_response_timeout: response_timeout,
            transport: params.transport,
            flow_control: params.flow_control,
            starting_psn: params.starting_psn,
            local_response_timeout: response_timeout,
            retry_count: params.retry_count.min(7),
            pkey: DEFAULT_PKEY,
            path_mtu: params.path_mtu.code(),
            rnr_retry_count: params.rnr_retry_count.min(7),
            max_cm_retries: params.max_cm_retries.min(15),
            srq: params.srq,
            primary: CmPath {
                local_lid: NO_LID,
                remote_lid: NO_LID,
                local_gid: path.local,
                remote_gid: path.peer,
                flow_label: params.flow_label & 0xF_FFFF,
                traffic_class: path.traffic_class,
                hop_limit: HOP_LIMIT,
                ack_timeout: params.local_ack_timeout & 31,
                ..CmPath::default()
            },
            ..Req::default()
        };
        if !req.set_private_data(&addressing, &params.private_data) {
            return Err(CmError::TooLong);
        }
        let id = self.ids.connection(|comm_id| self.connections.contains(comm_id));
        req.local_comm_id = id.comm_id();
        let transaction_id = self.ids.transaction();
        let sent = self.send(&path, transaction_id, &CmMessage::Req(req.clone()));
        let conn = Connection::from_own_req(id, &path, &req, transaction_id, sent, &self.config);
        let deadline = now + conn.resend_after;
        self.connections.insert(conn);
        self.connections.set_deadline(&mut self.timers, id.comm_id(), deadline);
        self.stats.connects.inc();
        Ok(id)
    }

    /// Confirms the peer's REP: sends the RTU, with at most 224 bytes of private data. The peer may send from then on,
    /// so the queue pair must be ready to receive.
    ///
    /// # Errors
    ///
    /// [`CmError`]: the connection is gone, is not waiting for this, or the private data is too long.
    pub fn confirm(&mut self, conn: ConnId, private_data: &[u8]) -> Result<(), CmError> {
        let private_data = crate::wire::cm::private_data(private_data).ok_or(CmError::TooLong)?;
        let connection = self.connections.by_id(conn).ok_or(CmError::Unknown)?;
        if connection.state.name() != ConnState::RepReceived {
            return Err(CmError::WrongState);
        }
        let (path, transaction_id) = (connection.path.clone(), connection.transaction_id);
        let (local_comm_id, remote_comm_id) = (conn.comm_id(), connection.remote_comm_id);
        let rtu = Rtu { local_comm_id, remote_comm_id, private_data };
        let rtu = self.send(&path, transaction_id, &CmMessage::Rtu(rtu));
        self.stats.confirmed.inc();
        self.establish(conn, Some(rtu));
        Ok(())
    }

    /// Handles a REP: the answer to our REQ, or a repetition because our RTU was lost.
    pub(super) fn on_rep(
        &mut self,
        now: Instant,
        path: &MadPath,
        transaction_id: u64,
        rep: &Rep,
    ) -> Result<(), DropReason> {
        self.stats.rx_rep.inc();
        let (ours, theirs) = (rep.remote_comm_id, rep.local_comm_id);
        if let Some(conn) = self.connections.by_ids(ours, theirs) {
            if !conn.is_from_peer(path) {
                return Err(self.foreign());
            }
            let id = conn.id;
            return self.on_repeated_rep(id);
        }
        let Some(conn) = self.connections.requested(ours) else {
            // Tell the peer now, not after its last retry.
            self.stats.rx_rep_unknown.inc();
            // compliance.md [CM-ACTIVE-UNKNOWN]: A REP without an outstanding REQ is rejected with reason 6.
            let reason = RejReason::InvalidCommId;
            let _fits = self.send_rej(path, transaction_id, (ours, theirs), Answered::Rep, reason, &[], &[]);
            return Ok(());
        };
        if !conn.is_from_peer(path) {
            return Err(self.foreign());
        }
        if self.events_full() {
            self.stats.event_queue_full.inc();
            return Err(DropReason::CmLimit);
        }
        let (id, reply) = (conn.id, connect_reply(conn, rep));
        let peer = Peer { guid: rep.local_ca_guid, gid: conn.path.peer };
        self.end_stale_of(now, peer, theirs, rep.local_qpn, id);
        self.connections.set_peer(ours, rep.local_ca_guid, theirs, rep.local_qpn);
        if let Some(conn) = self.connections.get_mut(ours) {
            conn.rep = Some(mad_of(transaction_id, &CmMessage::Rep(rep.clone())));
        }
        let deadline = now + self.config.answer_timeout;
        self.connections.transition(&mut self.timers, ours, State::RepReceived, Some(deadline));
        self.stats.replies.inc();
        self.events.push_back(CmEvent::ConnectReply(Box::new(reply)));
        Ok(())
    }

    fn on_repeated_rep(&mut self, id: ConnId) -> Result<(), DropReason> {
        let Some(conn) = self.connections.by_id(id).filter(|conn| conn.is_active()) else {
            return Err(self.unexpected());
        };
        match &conn.state {
            // The user has not confirmed yet: extend the peer's timeout.
            State::RepReceived => {
                // compliance.md [CM-MRA-SEND]: A REP that is repeated before the user has confirmed is answered by an
                // MRA.
                self.send_mra(id.comm_id(), Answered::Rep);
                Ok(())
            }
            // Our RTU was lost, or is in flight.
            // compliance.md [CM-ACTIVE-RTU]: The RTU is sent when the user has confirmed, and again for each repeated
            // REP.
            State::Established { rtu: Some(rtu) } => {
                let (path, rtu) = (conn.path.clone(), rtu.clone());
                self.stats.rx_rep_duplicate_answered.inc();
                self.queue(&path, rtu);
                Ok(())
            }
            _ => {
                self.stats.rx_rep_duplicate.inc();
                Err(DropReason::CmDuplicate)
            }
        }
    }

    /// Retransmits the REQ, or gives up.
    pub(super) fn req_timeout(&mut self, now: Instant, comm_id: u32) {
        let Some(conn) = self.connections.get_mut(comm_id) else { return };
        // compliance.md [CM-ACTIVE-RETRY]: A REQ is retransmitted until it is answered.
        let State::ReqSent { resends } = &mut conn.state else { return };
        if *resends > 0
            && let Some(req) = conn.req.clone()
        {
            *resends -= 1;
            let (path, req, deadline) = (conn.path.clone(), req, now + conn.resend_after);
            self.stats.tx_req_retry.inc();
            self.queue(&path, req);
            self.connections.set_deadline(&mut self.timers, comm_id, deadline);
            return;
        }
        let id = conn.id;
        self.stats.req_timeout.inc();
        self.give_up(comm_id);
        self.events.push_back(CmEvent::failed(id, ConnectFailure::Timeout));
    }

    /// Cancels a connection attempt at the user's request.
    pub(super) fn abandon(&mut self, conn: ConnId) {
        self.stats.abandoned.inc();
        self.give_up(conn.comm_id());
        self.events.push_back(CmEvent::Disconnected { conn, reason: DisconnectReason::Local });
    }

    /// Removes a connection that waits for its REP, and tells the peer: it may have the REQ, or be waiting for our RTU,
    /// and identifies the connection by our GUID and id.
    fn give_up(&mut self, comm_id: u32) {
        let Some(conn) = self.connections.get(comm_id) else { return };
        let (path, transaction_id) = (conn.path.clone(), conn.transaction_id);
        let guid = self.config.ca_guid.to_be_bytes();
        // compliance.md [CM-ACTIVE-RETRY]: A REQ is retransmitted until it is answered.
        let reason = RejReason::Timeout;
        let _fits = self.send_rej(&path, transaction_id, (comm_id, 0), Answered::Other, reason, &guid, &[]);
        self.connections.remove(&mut self.timers, comm_id);
    }
}

fn connect_reply(conn: &Connection, rep: &Rep) -> ConnectReply {
    ConnectReply {
        conn: conn.id,
        remote_qpn: rep.local_qpn,
        starting_psn: rep.starting_psn,
        // compliance.md [CM-ACTIVE-GRANT]: No more READs are outstanding than requested, whatever the REP allows.
        responder_resources: rep.responder_resources.min(conn.initiator_depth),
        initiator_depth: rep.initiator_depth,
        rnr_retry_count: rep.rnr_retry_count,
        // 0 disables the timeout, whatever the peer's delay.
        local_ack_timeout: match conn.ack_timeout {
            0 => 0,
            timeout => ack_timeout(timeout - 1, rep.target_ack_delay),
        },
        flow_control: rep.flow_control,
        srq: rep.srq,
        ca_guid: rep.local_ca_guid,
        remote_comm_id: rep.local_comm_id,
        private_data: rep.private_data,
    }
}
