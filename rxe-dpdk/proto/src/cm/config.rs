//! What a connection manager is told at its start.

use crate::Duration;

/// Settings of a [`Cm`](super::Cm). Start from [`CmConfig::new`] and change what differs.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// Our channel adapter's GUID, as in every REP: stable over restarts, unique on the network, never 0.
    pub ca_guid: u64,
    /// Where communication ids and transaction ids come from. Fresh at every start: ids that a peer still remembers
    /// from an earlier run make it ignore us.
    pub seed: [u8; 32],
    /// Most connections at once, from REQ to the DREQ of either side. More are rejected with reason 1 (no QP), or
    /// refused to the user who wants to connect.
    pub max_connections: usize,
    /// Most connections that are not established yet. For a peer's further request the oldest one that a peer has
    /// requested and not confirmed is given up; the user who wants to connect is refused.
    pub max_pending: usize,
    /// Most connections that are requested by peers of one address and not established yet. More are rejected with
    /// reason 3 (no resources).
    pub max_pending_per_peer: usize,
    /// Most connections that are over but whose ids are still kept. Beyond that the oldest is forgotten, which only
    /// costs its retransmissions.
    pub max_closing: usize,
    /// Most SIDR requests of peers remembered, answered ones included; and most of our own that wait for an answer.
    pub max_sidr: usize,
    /// Most outgoing MADs that wait for [`poll_transmit`](super::Cm::poll_transmit). More are dropped, as a switch
    /// might.
    pub max_transmits: usize,
    /// Most events that wait for [`poll_event`](super::Cm::poll_event) before new requests are dropped.
    pub max_events: usize,
    /// How long the user may take to accept or reject a REQ, or to confirm or reject a REP, before the peer is
    /// rejected.
    pub answer_timeout: Duration,
    /// The shortest time between two REQs, REPs, DREQs or SIDR_REQs, whatever was asked for.
    pub min_resend: Duration,
    /// The longest time between two REQs, REPs, DREQs or SIDR_REQs, whatever was asked for.
    pub max_resend: Duration,
    /// How often a REP is sent again unless the REQ comes again, at most; each copy of a REQ yields one more than this.
    pub max_rep_resends: u8,
    /// The longest time between two REPs, whatever the peer asks for.
    pub max_rep_resend: Duration,
    /// How long a request that was accepted waits for the peer's confirmation, from the REQ's last copy on, or from the
    /// end of what an MRA of the peer asks for.
    pub unconfirmed_timeout: Duration,
    /// The longest time that an MRA of the peer may put off the next REQ or REP.
    pub max_service_timeout: Duration,
    /// What our MRAs ask for when a REP comes again before the user has confirmed: 4.096 us * 2^this. It is a promise:
    /// should our RTU be lost, the peer sends its REP again only after that time.
    pub service_timeout: u8,
    /// The shortest time that the ids of a finished connection are kept.
    pub min_timewait: Duration,
    /// The longest time that the ids of a finished connection are kept.
    pub max_timewait: Duration,
    /// How long an answered SIDR request is remembered, so that its retries get the same answer.
    pub sidr_memory: Duration,
    /// Target ACK delay of every REP: 4.096 us * 2^this. Linux adds it to its ACK timeout, so 15 or less.
    pub target_ack_delay: u8,
}

impl CmConfig {
    /// The defaults, which fit Linux peers.
    #[must_use]
    pub fn new(ca_guid: u64, seed: [u8; 32]) -> CmConfig {
        CmConfig {
            ca_guid,
            seed,
            max_connections: 1 << 16,
            max_pending: 1 << 13,
            max_pending_per_peer: 1 << 12,
            max_closing: 1 << 16,
            max_sidr: 1 << 12,
            max_transmits: 1 << 14,
            max_events: 1 << 14,
            // A Linux initiator gives up after 16 REQs, 98 s.
            answer_timeout: Duration::from_secs(90),
            min_resend: Duration::from_millis(50),
            max_resend: Duration::from_secs(20),
            max_rep_resends: 2,
            max_rep_resend: Duration::from_secs(2),
            // Longer than a Linux initiator waits before its second REQ, 6.4 s.
            unconfirmed_timeout: Duration::from_secs(8),
            // Linux sends service timeout 24 (68.7 s).
            max_service_timeout: Duration::from_secs(80),
            // 4.3 s, about the time after which a REP comes again anyway.
            service_timeout: 20,
            min_timewait: Duration::from_millis(500),
            max_timewait: Duration::from_secs(10),
            // 16 tries, 4.1 s apart.
            sidr_memory: Duration::from_secs(70),
            target_ack_delay: 15,
        }
    }
}
