//! The connection manager: how peers find services and agree on queue pairs, over queue pair 1.
//!
//! [`Cm`] is a state machine without IO, in the style of the whole crate. Its user
//!
//! * passes received MADs ([`Cm::handle_mad`]) and time ([`Cm::handle_timeout`], not later than [`Cm::next_timeout`]);
//! * calls commands: on the passive side [`accept`](Cm::accept), [`established`](Cm::established) and
//!   [`reply_sidr`](Cm::reply_sidr), on the active side [`connect`](Cm::connect), [`confirm`](Cm::confirm) and
//!   [`resolve_datagram`](Cm::resolve_datagram), on either [`reject`](Cm::reject) and [`disconnect`](Cm::disconnect);
//! * and after any of these dequeues MADs to send ([`Cm::poll_transmit`], written as frames by [`write_mad`]) and
//!   events
//!   ([`Cm::poll_event`]).
//!
//! It knows queue pairs by number only: programming them is up to the user. Each message is handled in the file of its
//! phase of a connection (`passive`, `active`, `mra`, `reject`, `disconnect`), all on the same table of connections.
//! For datagram queue pairs (SIDR), `sidr` is the passive side and `resolve` the active one.
//!
//! # States of a connection
//!
//! Passive side:
//!
//! ```text
//! REQ -> ReqReceived -- accept: REP --> RepSent -- RTU or data --> Established
//!           | reject: REJ                  | REJ, retries used up
//!           v                              v
//!         gone                           gone
//! ```
//!
//! Active side:
//!
//! ```text
//! connect: REQ -> ReqSent -- REP --> RepReceived -- confirm: RTU --> Established
//!                   | REJ,              | REJ, reject: REJ              REP again: RTU again
//!                   | retries used up   v
//!                   v                 gone
//!                 gone
//! ```
//!
//! Either side, once the connection is established:
//!
//! ```text
//! Established -- disconnect: DREQ --> DreqSent -- DREP, DREQ, REJ or retries used up --> Timewait -> gone
//!      '------------------------- DREQ: DREP, or REJ -----------------------------------------^
//! ```
//!
//! A peer may also disconnect before that: a DREQ is answered in every state and leads to Timewait. A connection is
//! removed from memory at its end; all tables and queues are bounded by [`CmConfig`].
//!
//! # Which messages are accepted
//!
//! Messages are matched by communication ids, as in every implementation; transaction ids are echoed and never checked.
//! A message for a connection is accepted only from the address of the connection's peer. A REQ must come from the
//! address that it names as the peer's, because that is where the local queue pair sends.
//!
//! A REQ is the same as an earlier one if GUID, source address, communication id, queue pair, PSN and service
//! agree. If only the queue pair or only the communication id of a REQ or REP is known already, the peer has restarted:
//! the old connection ends ([`DisconnectReason::Stale`]) when the new one is accepted. Before that, the user can check
//! with [`Cm::replaced_by`] whether the old connection's queue pair still receives packets.
//!
//! Until a peer has confirmed a connection, its address may be forged. So one REQ causes few REPs, within a short time
//! ([`CmConfig::max_rep_resends`]), each address has a limit of pending connections, and when the total limit is
//! reached, the oldest unconfirmed one is evicted.

mod active;
mod config;
mod connection;
mod disconnect;
mod events;
mod gsi;
mod handshake;
mod ids;
mod mra;
mod passive;
mod path;
mod reject;
mod resolve;
mod sidr;
mod stats;
mod timers;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

pub use config::CmConfig;
pub use connection::ConnState;
pub use events::{
    AcceptParams, CmError, CmEvent, ConnectFailure, ConnectParams, ConnectReply, ConnectRequest, DatagramReply,
    DisconnectReason, RefusedRequest, ResolveFailure, ResolveParams, SidrReply, SidrRequest,
};
pub use gsi::{GSI_UDP_SRC_PORT, MAD_FRAME_LEN_MAX, read_mad, write_mad};
pub use handshake::Handshake;
pub use ids::{ConnId, SidrId};
pub use path::{LocalAddresses, MadPath};
pub use stats::CmStats;
pub use timers::ack_timeout;

use connection::{Connection, Connections, Mad, State};
use ids::IdSource;
use resolve::ResolveTable;
use sidr::SidrTable;
use timers::{TimerKey, Timers};

use crate::Instant;
use crate::transport::Qpn;
use crate::wire::cm::{CmMessage, ServiceId};
use crate::wire::mad::MAD_LEN;
use crate::wire::{DropReason, MacAddr};

/// A MAD to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MadTransmit {
    /// Ports and addresses to send it with.
    pub path: MadPath,
    /// The MAD, header included.
    pub mad: Box<[u8; MAD_LEN]>,
}

/// State of a connection, for tools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnInfo {
    /// The handle.
    pub conn: ConnId,
    /// State.
    pub state: ConnState,
    /// Path of its MADs.
    pub path: MadPath,
    /// The service id of its REQ.
    pub service_id: ServiceId,
    /// Our queue pair, once accepted.
    pub local_qpn: Option<Qpn>,
    /// The peer's queue pair; on the active side this and the following fields are 0 until the REP.
    pub remote_qpn: u32,
    /// The peer's communication id.
    pub remote_comm_id: u32,
    /// GUID of the peer's channel adapter, from its REQ or REP.
    pub remote_ca_guid: u64,
    /// Expiry of its timer.
    pub deadline: Option<Instant>,
}

/// The connection manager of one channel adapter. See the [module](self) for how to drive it.
pub struct Cm {
    config: CmConfig,
    ids: IdSource,
    connections: Connections,
    sidr: SidrTable,
    resolves: ResolveTable,
    timers: Timers,
    events: VecDeque<CmEvent>,
    transmits: VecDeque<MadTransmit>,
    refusals: VecDeque<RefusedRequest>,
    stats: Arc<CmStats>,
}

impl Cm {
    /// A connection manager without connections.
    #[must_use]
    pub fn new(config: CmConfig) -> Cm {
        Cm {
            ids: IdSource::new(config.seed, config.id_prefix),
            config,
            connections: Connections::default(),
            sidr: SidrTable::default(),
            resolves: ResolveTable::default(),
            timers: Timers::default(),
            events: VecDeque::new(),
            transmits: VecDeque::new(),
            refusals: VecDeque::new(),
            stats: Arc::new(CmStats::default()),
        }
    }

    /// Handles a MAD that queue pair 1 received along `path`, whose local address is ours.
    ///
    /// # Errors
    ///
    /// Why it had no effect, for the caller's counters; more detail is in [`CmStats`]. An answered MAD had an effect,
    /// even if the answer is a rejection.
    pub fn handle_mad(
        &mut self,
        now: Instant,
        path: &MadPath,
        mad: &[u8],
        local: &impl LocalAddresses,
    ) -> Result<(), DropReason> {
        let (header, message) = CmMessage::parse(mad).map_err(|error| {
            // compliance.md [CM-MAD]: A MAD with another length, version, class, method or attribute is dropped with a
            // reason.
            let reason = DropReason::from(error);
            match reason {
                DropReason::MadMalformed => self.stats.rx_malformed.inc(),
                _ => self.stats.rx_unsupported.inc(),
            }
            reason
        })?;
        let transaction_id = header.transaction_id;
        match message {
            CmMessage::Req(req) => self.on_req(now, path, transaction_id, &req, local),
            CmMessage::Mra(mra) => self.on_mra(now, path, &mra),
            CmMessage::Rej(rej) => self.on_rej(now, path, &rej),
            CmMessage::Rtu(rtu) => self.on_rtu(path, &rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(now, path, transaction_id, &dreq),
            CmMessage::Drep(drep) => self.on_drep(now, path, &drep),
            CmMessage::SidrReq(req) => self.on_sidr_req(now, path, transaction_id, &req, local),
            CmMessage::Rep(rep) => self.on_rep(now, path, transaction_id, &rep),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(&rep),
            CmMessage::Lap(_) => {
                // compliance.md [CM-NO-APM]: LAP and APR are dropped by name, alternate paths in a REQ rejected with
                // reason 18.
                self.stats.rx_lap.inc();
                Err(DropReason::MadUnsupported)
            }
            CmMessage::Apr(_) => {
                self.stats.rx_apr.inc();
                Err(DropReason::MadUnsupported)
            }
        }
    }

    /// Dequeues the next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<MadTransmit> {
        self.transmits.pop_front()
    }

    /// Dequeues the next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// Dequeues the next request that was rejected without asking the user.
    pub fn poll_refusal(&mut self) -> Option<RefusedRequest> {
        self.refusals.pop_front()
    }

    /// The deadline for the next call of [`handle_timeout`](Self::handle_timeout).
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles every deadline up to `now`: retransmits, gives up, or ends timewait.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(key) = self.timers.pop_due(now) {
            match key {
                TimerKey::Connection(comm_id) => {
                    let Some(conn) = self.connections.get_mut(comm_id) else { continue };
                    conn.deadline_passed();
                    match conn.state.name() {
                        ConnState::ReqReceived | ConnState::RepReceived => self.answer_timeout(comm_id),
                        ConnState::RepSent => self.rep_timeout(now, comm_id),
                        ConnState::ReqSent => self.req_timeout(now, comm_id),
                        ConnState::DreqSent => self.dreq_timeout(now, comm_id),
                        ConnState::Established => {}
                        ConnState::Timewait => self.connections.remove(&mut self.timers, comm_id),
                    }
                }
                TimerKey::Sidr(id) => self.sidr.forget(&mut self.timers, id),
                TimerKey::Resolve(request_id) => self.resolve_timeout(now, request_id),
            }
        }
    }

    /// State of a connection; `None` when it is gone.
    #[must_use]
    pub fn connection(&self, conn: ConnId) -> Option<ConnInfo> {
        self.connections.by_id(conn).map(info)
    }

    /// All connections, closing ones included.
    pub fn connections(&self) -> impl Iterator<Item = ConnInfo> + '_ {
        self.connections.iter().map(info)
    }

    /// Number of connections, closing ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// SIDR requests of peers in the table, answered ones included.
    #[must_use]
    pub fn sidr_len(&self) -> usize {
        self.sidr.len()
    }

    /// Outstanding SIDR requests of ours.
    #[must_use]
    pub fn resolving(&self) -> usize {
        self.resolves.len()
    }

    /// Counters, readable from any thread.
    #[must_use]
    pub fn stats(&self) -> &Arc<CmStats> {
        &self.stats
    }

    /// A handle that is never used for a connection: a number for attempts that fail before [`connect`](Self::connect).
    pub fn unused_id(&mut self) -> ConnId {
        self.ids.connection(|comm_id| self.connections.contains(comm_id))
    }

    /// Changes the Ethernet address that MADs of a connection are sent to, after a change of the peer or its route.
    ///
    /// # Errors
    ///
    /// [`CmError::Unknown`].
    pub fn set_peer_mac(&mut self, conn: ConnId, mac: MacAddr) -> Result<(), CmError> {
        let conn = self.connections.get_mut(conn.comm_id()).filter(|c| c.id == conn).ok_or(CmError::Unknown)?;
        conn.path.peer_mac = mac;
        Ok(())
    }

    /// Counts a message that the connection's state does not allow.
    fn unexpected(&self) -> DropReason {
        self.stats.rx_unexpected.inc();
        DropReason::CmUnexpected
    }

    /// Counts a message for ids that are not known.
    fn unknown_id(&self) -> DropReason {
        self.stats.rx_unknown_id.inc();
        DropReason::CmUnknownId
    }

    /// Counts a message for a connection from an address other than its peer's.
    fn foreign(&self) -> DropReason {
        self.stats.rx_foreign.inc();
        DropReason::CmForeign
    }

    /// Whether the event queue is too full to accept new requests.
    fn events_full(&self) -> bool {
        self.events.len() >= self.config.max_events
    }

    /// Enqueues a message and returns its MAD, for retransmission.
    fn send(&mut self, path: &MadPath, transaction_id: u64, message: &CmMessage) -> Mad {
        let mad = mad_of(transaction_id, message);
        self.queue(path, mad.clone());
        mad
    }

    /// Enqueues a MAD and counts it. If the queue is full, the MAD is dropped: a timer of ours or of the peer
    /// retransmits it.
    fn queue(&mut self, path: &MadPath, mad: Mad) {
        use crate::wire::mad::attribute;
        if self.transmits.len() >= self.config.max_transmits {
            self.stats.tx_queue_full.inc();
            return;
        }
        let [.., high, low] = *mad.first_chunk::<18>().unwrap_or(&[0; 18]);
        match u16::from_be_bytes([high, low]) {
            attribute::REQ => self.stats.tx_req.inc(),
            attribute::MRA => self.stats.tx_mra.inc(),
            attribute::RTU => self.stats.tx_rtu.inc(),
            attribute::REP => self.stats.tx_rep.inc(),
            attribute::REJ => self.stats.tx_rej.inc(),
            attribute::DREQ => self.stats.tx_dreq.inc(),
            attribute::DREP => self.stats.tx_drep.inc(),
            attribute::SIDR_REQ => self.stats.tx_sidr_req.inc(),
            attribute::SIDR_REP => self.stats.tx_sidr_rep.inc(),
            _ => {}
        }
        self.transmits.push_back(MadTransmit { path: path.clone(), mad });
    }

    /// Ends a connection: only its ids stay for a while.
    fn enter_timewait(&mut self, now: Instant, comm_id: u32) {
        let Some(conn) = self.connections.get(comm_id) else { return };
        // compliance.md [CM-TIMEWAIT]: After its end a connection's ids are kept for an ACK timeout.
        let until = now + conn.timewait;
        self.connections.transition(&mut self.timers, comm_id, State::Timewait, Some(until));
        self.limit_closing();
    }

    /// Removes the oldest closing connections when there are too many.
    fn limit_closing(&mut self) {
        while let Some(comm_id) = self.connections.surplus_closing(self.config.max_closing) {
            if let Some(conn) = self.connections.get(comm_id)
                && matches!(conn.state, State::DreqSent { .. })
            {
                let reason = DisconnectReason::LocalUnanswered;
                self.events.push_back(CmEvent::Disconnected { conn: conn.id, reason });
            }
            self.stats.timewait_evicted.inc();
            self.connections.remove(&mut self.timers, comm_id);
        }
    }
}

impl fmt::Debug for Cm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cm")
            .field("connections", &self.connections.len())
            .field("pending", &self.connections.pending())
            .field("sidr", &self.sidr.len())
            .field("next_timeout", &self.timers.next())
            .finish_non_exhaustive()
    }
}

/// The MAD of a message.
fn mad_of(transaction_id: u64, message: &CmMessage) -> Mad {
    let mut mad = Box::new([0; MAD_LEN]);
    message.emit(transaction_id, &mut mad);
    mad
}

fn info(conn: &Connection) -> ConnInfo {
    ConnInfo {
        conn: conn.id,
        state: conn.state.name(),
        path: conn.path.clone(),
        service_id: conn.service_id,
        local_qpn: conn.local_qpn,
        remote_qpn: conn.remote_qpn,
        remote_comm_id: conn.remote_comm_id,
        remote_ca_guid: conn.peer.guid,
        deadline: conn.deadline(),
    }
}
