//! The connection manager: how peers find services and agree on queue pairs, over queue pair 1.
//!
//! [`Cm`] is a state machine without IO, in the style of the whole crate. Its user
//!
//! * feeds it with received MADs ([`Cm::handle_mad`]) and with time ([`Cm::handle_timeout`], not later than
//!   [`Cm::next_timeout`]);
//! * gives it commands: as the side that is asked [`accept`](Cm::accept), [`established`](Cm::established) and
//!   [`reply_sidr`](Cm::reply_sidr), as the side that asks [`connect`](Cm::connect), [`confirm`](Cm::confirm) and
//!   [`resolve_datagram`](Cm::resolve_datagram), as either [`reject`](Cm::reject) and [`disconnect`](Cm::disconnect);
//! * and after any of these takes out what it has to say: MADs to send ([`Cm::poll_transmit`], written as frames by
//!   [`write_mad`]) and events ([`Cm::poll_event`]).
//!
//! It knows nothing of queue pairs but their numbers: programming them is the user's part. Each message has its handler
//! in the file of its part of a connection's life (`passive`, `active`, `mra`, `reject`, `disconnect`), all on the same
//! table of connections; datagram queue pairs are found through `sidr`, which answers, and `resolve`, which asks.
//!
//! # A connection's life
//!
//! The side that is asked:
//!
//! ```text
//! REQ -> ReqReceived -- accept: REP --> RepSent -- RTU or data --> Established
//!           | reject: REJ                  | REJ, retries used up
//!           v                              v
//!         gone                           gone
//! ```
//!
//! The side that asks:
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
//! A peer may also disconnect before that: a DREQ is answered in every state and leads to Timewait. Every connection is
//! dropped from memory at its end; all tables and queues are bounded by [`CmConfig`].
//!
//! # Who is believed
//!
//! Messages are matched by communication ids, as every implementation does; transaction ids are echoed and never
//! checked. A message for a connection counts only if it comes from the address of the connection's peer. A REQ must
//! come from the address that it names as the peer's, since that is where our queue pair sends.
//!
//! A REQ is the same as an earlier one if GUID, source address, communication id, queue pair, PSN and service
//! agree. If only the queue pair or only the communication id of a REQ or REP is known already, the peer has restarted:
//! the old connection ends ([`DisconnectReason::Stale`]) when the new one is accepted. Before that, the user can find
//! out by [`Cm::replaced_by`] and the old connection's queue pair whether that is so.
//!
//! Until a peer has confirmed a connection, its address may be forged. So one REQ yields few REPs, in short time
//! ([`CmConfig::max_rep_resends`]), one address has a share of the pending connections, and when there are as many as
//! allowed, the oldest unconfirmed one gives way.

mod active;
mod config;
mod connection;
mod disconnect;
mod events;
mod gsi;
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
pub use gsi::{MAD_FRAME_LEN_MAX, read_mad, write_mad};
pub use ids::{ConnId, SidrId};
pub use path::{LocalAddresses, MadPath};
pub use stats::CmStats;

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
    /// Its way.
    pub path: MadPath,
    /// The MAD, header included.
    pub mad: Box<[u8; MAD_LEN]>,
}

/// What is known of a connection, for tools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnInfo {
    /// The handle.
    pub conn: ConnId,
    /// Where it stands.
    pub state: ConnState,
    /// The way of its MADs.
    pub path: MadPath,
    /// What it is for.
    pub service_id: ServiceId,
    /// Our queue pair, once accepted.
    pub local_qpn: Option<Qpn>,
    /// The peer's queue pair; this and what follows is 0 until the peer has answered our REQ.
    pub remote_qpn: u32,
    /// The peer's communication id.
    pub remote_comm_id: u32,
    /// The peer's channel adapter, as it says.
    pub remote_ca_guid: u64,
    /// When its timer runs out.
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
            ids: IdSource::new(config.seed),
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

    /// Takes in one MAD that came to queue pair 1 along `path`, whose local address is ours.
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
            // [CM-MAD]
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
                // [CM-NO-APM]
                self.stats.rx_lap.inc();
                Err(DropReason::MadUnsupported)
            }
            CmMessage::Apr(_) => {
                self.stats.rx_apr.inc();
                Err(DropReason::MadUnsupported)
            }
        }
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<MadTransmit> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// The next request of a peer that was rejected without asking the user.
    pub fn poll_refusal(&mut self) -> Option<RefusedRequest> {
        self.refusals.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Does what is due at `now`: sends again, gives up, forgets.
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

    /// What is known of a connection; `None` when it is gone.
    #[must_use]
    pub fn connection(&self, conn: ConnId) -> Option<ConnInfo> {
        self.connections.by_id(conn).map(info)
    }

    /// All connections, closing ones included.
    pub fn connections(&self) -> impl Iterator<Item = ConnInfo> + '_ {
        self.connections.iter().map(info)
    }

    /// How many connections are remembered, closing ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether no connection is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many SIDR requests of peers are remembered.
    #[must_use]
    pub fn sidr_len(&self) -> usize {
        self.sidr.len()
    }

    /// How many SIDR requests of our own wait for their answer.
    #[must_use]
    pub fn resolving(&self) -> usize {
        self.resolves.len()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &Arc<CmStats> {
        &self.stats
    }

    /// A handle that names no connection and never will, for users who number attempts that never reached this module.
    pub fn unused_id(&mut self) -> ConnId {
        self.ids.connection(|comm_id| self.connections.contains(comm_id))
    }

    /// Sends the MADs of a connection to another Ethernet address from now on, because the peer or the way to it has
    /// changed.
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

    /// Counts a message for a connection that does not come from its peer.
    fn foreign(&self) -> DropReason {
        self.stats.rx_foreign.inc();
        DropReason::CmForeign
    }

    /// Whether the user has so many events unread that no new request is taken in.
    fn events_full(&self) -> bool {
        self.events.len() >= self.config.max_events
    }

    /// Queues a message and returns its MAD, for sending it again.
    fn send(&mut self, path: &MadPath, transaction_id: u64, message: &CmMessage) -> Mad {
        let mut mad = Box::new([0; MAD_LEN]);
        message.emit(transaction_id, &mut mad);
        self.queue(path, mad.clone());
        mad
    }

    /// Queues a MAD and counts it. A full queue loses it: whatever matters is sent again by a timer, ours or the peer's.
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

    /// Ends a connection whose peer, or whose user, is done with it: only its ids stay for a while.
    fn enter_timewait(&mut self, now: Instant, comm_id: u32) {
        let Some(conn) = self.connections.get(comm_id) else { return };
        // [CM-TIMEWAIT]
        let until = now + conn.timewait;
        self.connections.transition(&mut self.timers, comm_id, State::Timewait, Some(until));
        self.limit_closing();
    }

    /// Forgets the oldest closing connections when there are too many.
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
