//! Settings of the connection manager.

use crate::Duration;

/// Settings of a [`Cm`](super::Cm). Start from [`CmConfig::new`] and change what differs.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// Bits 31..28 of our communication ids and SIDR request ids, for managers that share an address: messages for them are told
    /// apart by these bits. `None`: they are random.
    pub id_prefix: Option<u8>,
    /// Our channel adapter's GUID, as in every REP: stable over restarts, unique on the network, never 0.
    pub ca_guid: u64,
    /// Seed of communication ids and transaction ids. Fresh at every start: a peer ignores messages with ids that it
    /// still remembers from an earlier run.
    pub seed: [u8; 32],
    /// Most connections at once, from REQ to the DREQ of either side. More are rejected with reason 1 (no QP);
    /// [`connect`](super::Cm::connect) fails.
    pub max_connections: usize,
    /// Most connections of one peer address, from REQ to the DREQ of either side. More are rejected with reason 3 (no
    /// resources), so that one peer cannot use up what all share.
    pub max_connections_per_peer: usize,
    /// Most connections that are not established yet. A further REQ evicts the oldest unconfirmed request of a
    /// peer; [`connect`](super::Cm::connect) fails.
    pub max_pending: usize,
    /// Most connections that are requested by peers of one address and not established yet. More are rejected with
    /// reason 3 (no resources).
    pub max_pending_per_peer: usize,
    /// Most closing connections, whose ids are still kept. Beyond that the oldest is removed, and its retransmissions
    /// end.
    pub max_closing: usize,
    /// Most SIDR requests of peers in the table, answered ones included; and most outstanding ones of ours. A further
    /// request replaces the oldest answered one.
    pub max_sidr: usize,
    /// Most SIDR requests of one peer address in the table. A further request replaces the address's own oldest answered
    /// one.
    pub max_sidr_per_peer: usize,
    /// Most outgoing MADs that wait for [`poll_transmit`](super::Cm::poll_transmit). More are dropped, as
    /// a network might.
    pub max_transmits: usize,
    /// Most events that wait for [`poll_event`](super::Cm::poll_event) before new requests are dropped.
    pub max_events: usize,
    /// Time for the user to accept or reject a REQ, or to confirm or reject a REP. After it the peer is rejected.
    pub answer_timeout: Duration,
    /// Minimum retransmission interval of REQ, REP, DREQ and SIDR_REQ, whatever was requested.
    pub min_resend: Duration,
    /// Maximum retransmission interval of REQ, REP, DREQ and SIDR_REQ, whatever was requested.
    pub max_resend: Duration,
    /// How long the DREQ of a connection that a peer requested is retransmitted, whatever the REQ says: a silent peer could
    /// keep the connection for minutes otherwise.
    pub max_disconnect: Duration,
    /// Most retransmissions of a REP per copy of the REQ.
    pub max_rep_resends: u8,
    /// Maximum retransmission interval of a REP, whatever the peer requests.
    pub max_rep_resend: Duration,
    /// How long an accepted request waits for the peer's confirmation, after the last copy of the REQ, or after the
    /// service timeout of an MRA of the peer.
    pub unconfirmed_timeout: Duration,
    /// The longest time by which an MRA of the peer can delay the next REQ or REP.
    pub max_service_timeout: Duration,
    /// Service timeout in our MRAs, sent when a REP is repeated before the user has confirmed: 4.096 us * 2^this. If
    /// our RTU is lost, the peer retransmits its REP only after that time.
    pub service_timeout: u8,
    /// Minimum timewait: time that the ids of a finished connection are kept.
    pub min_timewait: Duration,
    /// Maximum timewait.
    pub max_timewait: Duration,
    /// How long an answered SIDR request is kept, so that its retries get the same answer.
    pub sidr_memory: Duration,
    /// Target ACK delay of every REP: 4.096 us * 2^this. Linux adds it to its ACK timeout, so 15 or less.
    pub target_ack_delay: u8,
    /// Requests for the port space IB are the user's, as those for TCP and UDP are. Otherwise they are refused. Programs use it
    /// with IP addresses for queue pairs of types that TCP and UDP do not have.
    pub ib_port_space: bool,
}

impl CmConfig {
    /// The defaults, which fit Linux peers.
    #[must_use]
    pub fn new(ca_guid: u64, seed: [u8; 32]) -> CmConfig {
        CmConfig {
            id_prefix: None,
            ca_guid,
            seed,
            max_connections: 1 << 16,
            max_connections_per_peer: 1 << 16,
            max_pending: 1 << 13,
            max_pending_per_peer: 1 << 12,
            max_closing: 1 << 16,
            max_sidr: 1 << 12,
            max_sidr_per_peer: 1 << 11,
            max_transmits: 1 << 14,
            max_events: 1 << 14,
            // A Linux initiator gives up after 16 REQs, 98 s.
            answer_timeout: Duration::from_secs(90),
            min_resend: Duration::from_millis(50),
            max_resend: Duration::from_secs(20),
            // As long as a Linux peer waits for the DREP: 16 DREQs, 4.1 s apart, and a little more.
            max_disconnect: Duration::from_secs(70),
            max_rep_resends: 2,
            max_rep_resend: Duration::from_secs(2),
            // Longer than a Linux initiator waits before its second REQ, 6.4 s.
            unconfirmed_timeout: Duration::from_secs(8),
            // Linux sends service timeout 24 (68.7 s).
            max_service_timeout: Duration::from_secs(80),
            // 4.3 s, about the retransmission interval of a REP.
            service_timeout: 20,
            min_timewait: Duration::from_millis(500),
            max_timewait: Duration::from_secs(10),
            // 16 tries, 4.1 s apart.
            sidr_memory: Duration::from_secs(70),
            target_ack_delay: 15,
            ib_port_space: false,
        }
    }
}
