//! What the connection manager tells its user, and what the user answers.

use std::net::IpAddr;

use super::{ConnId, MadPath, SidrId};
use crate::transport::Qpn;
use crate::wire::cm::{CmTransport, Rej, RejReason, Rep, Req, ServiceId, SidrRep, SidrReq, SidrStatus};
use crate::wire::{Gid, PathMtu, Psn};

/// Something that the user of a [`Cm`](super::Cm) must know.
///
/// A connection starts with one `ConnectRequest`, or with the user's own [`connect`](super::Cm::connect), and ends with
/// exactly one `ConnectFailed` or `Disconnected`, unless the user rejects or drops it: then nothing more comes. `Disconnected`
/// follows `Established` or the user's own [`disconnect`](super::Cm::disconnect); `ConnectFailed` comes before either,
/// perhaps before the user has answered.
///
/// A question that the user asks with [`resolve_datagram`](super::Cm::resolve_datagram) has exactly one answer:
/// `DatagramResolved` or `ResolveFailed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmEvent {
    /// A peer asks for a connection: answer with [`accept`](super::Cm::accept) or [`reject`](super::Cm::reject).
    ConnectRequest(Box<ConnectRequest>),
    /// The peer grants the connection that we have asked for: take the queue pair to ready-to-send, then answer with
    /// [`confirm`](super::Cm::confirm), or with [`reject`](super::Cm::reject) if that cannot be done.
    ConnectReply(Box<ConnectReply>),
    /// Both sides agree: the peer has confirmed the connection, by RTU or by data, or the user has.
    Established {
        /// Which connection.
        conn: ConnId,
    },
    /// An established connection, or one that [`disconnect`](super::Cm::disconnect) was called for, is over.
    Disconnected {
        /// Which connection.
        conn: ConnId,
        /// Why.
        reason: DisconnectReason,
    },
    /// A connection came to nothing before it was established.
    ConnectFailed {
        /// Which connection.
        conn: ConnId,
        /// Why.
        reason: ConnectFailure,
        /// The peer's REJ, if there is one: with it come additional information and the upper layer's private data.
        rej: Option<Box<Rej>>,
    },
    /// A peer asks for a datagram queue pair: answer with [`reply_sidr`](super::Cm::reply_sidr).
    SidrRequest(Box<SidrRequest>),
    /// The peer has named the datagram queue pair that we have asked for.
    DatagramResolved(Box<DatagramReply>),
    /// A datagram queue pair that we have asked for is not to be had.
    ResolveFailed {
        /// Which question.
        id: SidrId,
        /// Why.
        reason: ResolveFailure,
    },
}

impl CmEvent {
    /// A connection that failed without a REJ of the peer.
    pub(super) fn failed(conn: ConnId, reason: ConnectFailure) -> CmEvent {
        CmEvent::ConnectFailed { conn, reason, rej: None }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DisconnectReason {
    /// The peer asked for it.
    Peer,
    /// We asked for it; the peer has confirmed, or had no connection yet.
    Local,
    /// We asked for it and the peer never answered.
    LocalUnanswered,
    /// The peer rejected the connection although it was established already.
    PeerRejected(RejReason),
    /// The same queue pair or communication id of the same peer came with a new REQ or REP: the peer has forgotten the
    /// old connection.
    Stale,
}

/// Why a connection was not established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectFailure {
    /// The peer rejected our request or our answer, or gave up waiting for the answer.
    PeerRejected(RejReason),
    /// The peer disconnected at once.
    PeerDisconnected,
    /// The peer did not answer, or did not confirm.
    Timeout,
    /// The user neither accepted ([`accept`](super::Cm::accept), [`confirm`](super::Cm::confirm)) nor
    /// [rejected](super::Cm::reject) in time.
    NotAnswered,
    /// The same queue pair or communication id of the same peer came with a new REQ or REP.
    Stale,
    /// The peer's request was unconfirmed and the oldest one when there were too many.
    Evicted,
}

/// A request of a peer that the connection manager has rejected itself, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedRequest {
    /// The source of the packet.
    pub peer: Gid,
    /// What is wrong, as the end of a sentence.
    pub why: &'static str,
}

/// Why a datagram queue pair is not to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResolveFailure {
    /// The peer says why.
    Refused(SidrStatus),
    /// The peer did not answer.
    Timeout,
}

/// A peer's wish to connect, checked as far as the connection manager can: addresses, transport, partition and path MTU
/// are good; whether there is such a service, and whether it wants the peer, is for the user to decide.
///
/// "Remote" and "peer" is the initiator, "local" is our side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// The handle to answer with.
    pub conn: ConnId,
    /// The way of the connection manager's packets.
    pub path: MadPath,
    /// What the peer wants.
    pub service_id: ServiceId,
    /// Reliable or unreliable connection, never another: what our queue pair must be.
    pub transport: CmTransport,
    /// The initiator's address and port, as it says.
    pub source: (IpAddr, u16),
    /// Our address and port.
    pub dest: (IpAddr, u16),
    /// The initiator's queue pair.
    pub remote_qpn: u32,
    /// The PSN that *our* first request must carry (our `sq_psn`).
    pub starting_psn: Psn,
    /// Path MTU, at most what the port allows. Final: the answer cannot change it.
    pub path_mtu: PathMtu,
    /// READs and atomics that the initiator takes at once: bounds our initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that the initiator wants to have outstanding: bounds our responder resources.
    pub initiator_depth: u8,
    /// Transport retries for our queue pair.
    pub retry_count: u8,
    /// Receiver-not-ready retries for our queue pair; 7 is without end.
    pub rnr_retry_count: u8,
    /// ACK timeout for our queue pair: 4.096 us * 2^this; 0 is none.
    pub local_ack_timeout: u8,
    /// The initiator wants end-to-end flow control.
    pub flow_control: bool,
    /// The initiator's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Traffic class for the packets of our queue pair.
    pub traffic_class: u8,
    /// Flow label for the packets of our queue pair (20 bits).
    pub flow_label: u32,
    /// The address that our queue pair's packets go to.
    pub peer_gid: Gid,
    /// The address that our queue pair's packets come from.
    pub local_gid: Gid,
    /// The initiator's channel adapter.
    pub ca_guid: u64,
    /// The initiator's communication id.
    pub remote_comm_id: u32,
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; Req::ULP_DATA_LEN],
}

impl ConnectRequest {
    /// How many READs and atomics either side may have outstanding, when we hold at most `responder_resources` of the
    /// peer's and want at most `initiator_depth` of our own: what to program into the queue pair and to say in
    /// [`AcceptParams`].
    #[must_use]
    pub fn negotiate(&self, responder_resources: u8, initiator_depth: u8) -> (u8, u8) {
        (responder_resources.min(self.initiator_depth), initiator_depth.min(self.responder_resources))
    }
}

/// The answer that grants a connection.
///
/// By then the queue pair must be able to receive, receives posted: data can arrive before the peer's RTU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptParams {
    /// Our queue pair.
    pub qpn: Qpn,
    /// The PSN that the *peer's* first request must carry (our `rq_psn`).
    pub starting_psn: Psn,
    /// READs and atomics of the peer that our queue pair holds. Never says more than the peer asked for.
    pub responder_resources: u8,
    /// READs and atomics that our queue pair will have outstanding. Never says more than the peer can take. When 0,
    /// Linux peers refuse READs.
    pub initiator_depth: u8,
    /// Receiver-not-ready retries that the peer shall make; 7, without end, is right nearly always.
    pub rnr_retry_count: u8,
    /// End-to-end flow control; mirror the request's.
    pub flow_control: bool,
    /// Our queue pair uses a shared receive queue.
    pub srq: bool,
    /// The upper layer's private data, at most 196 bytes.
    pub private_data: Vec<u8>,
}

impl AcceptParams {
    /// The usual answer to `request`: at most `responder_resources` READs of the peer and `initiator_depth` of ours at
    /// a time, endless receiver-not-ready retries, flow control as the peer wants it, no private data.
    #[must_use]
    pub fn for_request(
        request: &ConnectRequest,
        qpn: Qpn,
        starting_psn: Psn,
        responder_resources: u8,
        initiator_depth: u8,
    ) -> AcceptParams {
        let (responder_resources, initiator_depth) = request.negotiate(responder_resources, initiator_depth);
        AcceptParams {
            qpn,
            starting_psn,
            responder_resources,
            initiator_depth,
            rnr_retry_count: 7,
            flow_control: request.flow_control,
            srq: false,
            private_data: Vec::new(),
        }
    }
}

/// What [`connect`](super::Cm::connect) asks for. [`ConnectParams::new`] fills in what is usual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectParams {
    /// The way of the connection manager's packets: our address and the peer's, and the traffic class of the
    /// connection. Both addresses are of the same IP version.
    pub path: MadPath,
    /// Our port, as the peer's service sees it.
    pub source_port: u16,
    /// The peer's port, in the TCP port space.
    pub dest_port: u16,
    /// What our queue pair is: RC or UC.
    pub transport: CmTransport,
    /// Our queue pair. It need not be able to receive yet.
    pub qpn: Qpn,
    /// The PSN that the *peer's* first request must carry (our `rq_psn`).
    pub starting_psn: Psn,
    /// Path MTU of the connection; the peer cannot change it.
    pub path_mtu: PathMtu,
    /// READs and atomics of the peer that our queue pair holds.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// Transport retries that the peer shall make, 0 to 7.
    pub retry_count: u8,
    /// Receiver-not-ready retries that the peer shall make, 0 to 7; 7 is without end.
    pub rnr_retry_count: u8,
    /// ACK timeout for the peer's queue pair: 4.096 us * 2^this. Also the time that a REQ and its answer may be on
    /// their way.
    pub local_ack_timeout: u8,
    /// How long either side may take to answer a message of the connection manager: 4.096 us * 2^this.
    pub response_timeout: u8,
    /// How often a message without an answer is sent again, 0 to 15, by either side.
    pub max_cm_retries: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Our queue pair uses a shared receive queue.
    pub srq: bool,
    /// Flow label for the packets of both queue pairs (20 bits).
    pub flow_label: u32,
    /// The upper layer's private data, at most 56 bytes.
    pub private_data: Vec<u8>,
}

impl ConnectParams {
    /// A reliable connection as Linux asks for it: retries without end for receivers that are not ready, 7 others, ACK
    /// timeout 2.1 s, 16 REQs in 103 s, the flow label made of the ports, no READs and atomics, no private data.
    #[must_use]
    pub fn new(path: MadPath, ports: (u16, u16), qpn: Qpn, starting_psn: Psn, path_mtu: PathMtu) -> ConnectParams {
        let (source_port, dest_port) = ports;
        ConnectParams {
            path,
            source_port,
            dest_port,
            transport: CmTransport::Rc,
            qpn,
            starting_psn,
            path_mtu,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            local_ack_timeout: 19,
            response_timeout: 20,
            max_cm_retries: 15,
            flow_control: false,
            srq: false,
            flow_label: (u32::from(source_port) * 31 + u32::from(dest_port)) & 0xF_FFFF,
            private_data: Vec::new(),
        }
    }
}

/// What a peer grants to our [`connect`](super::Cm::connect), for our queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectReply {
    /// The handle to answer with.
    pub conn: ConnId,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The PSN that *our* first request must carry (our `sq_psn`).
    pub starting_psn: Psn,
    /// READs and atomics that the peer takes at once: bounds what we have outstanding, and what we asked for does too.
    pub responder_resources: u8,
    /// READs and atomics that the peer may have outstanding: our queue pair must hold them. A peer may say more than we
    /// offered; who cannot hold that many must reject.
    pub initiator_depth: u8,
    /// Receiver-not-ready retries for our queue pair; 7 is without end.
    pub rnr_retry_count: u8,
    /// ACK timeout for our queue pair, made of the one we asked for and the peer's ACK delay: 4.096 us * 2^this.
    pub local_ack_timeout: u8,
    /// The peer does end-to-end flow control.
    pub flow_control: bool,
    /// The peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// The peer's channel adapter.
    pub ca_guid: u64,
    /// The peer's communication id.
    pub remote_comm_id: u32,
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; Rep::PRIVATE_DATA_LEN],
}

/// What [`resolve_datagram`](super::Cm::resolve_datagram) asks. [`ResolveParams::new`] fills in what is usual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolveParams {
    /// The way of the question: our address and the peer's, of the same IP version.
    pub path: MadPath,
    /// Our port, as the peer's service sees it.
    pub source_port: u16,
    /// The peer's port, in the UDP port space.
    pub dest_port: u16,
    /// How long the peer may take to answer: 4.096 us * 2^this.
    pub response_timeout: u8,
    /// How often a question without an answer is sent again, 0 to 15.
    pub max_cm_retries: u8,
    /// The upper layer's private data, at most 180 bytes.
    pub private_data: Vec<u8>,
}

impl ResolveParams {
    /// A question as Linux asks it, 16 times in 69 s, without private data.
    #[must_use]
    pub fn new(path: MadPath, ports: (u16, u16)) -> ResolveParams {
        let (source_port, dest_port) = ports;
        let private_data = Vec::new();
        ResolveParams { path, source_port, dest_port, response_timeout: 20, max_cm_retries: 15, private_data }
    }
}

/// The datagram queue pair that serves, in answer to [`resolve_datagram`](super::Cm::resolve_datagram).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramReply {
    /// The question.
    pub id: SidrId,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its Q_Key, for every packet to it.
    pub qkey: u32,
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; SidrRep::PRIVATE_DATA_LEN],
}

/// A peer's question for a datagram queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// The handle to answer with.
    pub id: SidrId,
    /// The way of the request.
    pub path: MadPath,
    /// What the peer wants.
    pub service_id: ServiceId,
    /// The peer's address and port, as it says.
    pub source: (IpAddr, u16),
    /// Our address and port.
    pub dest: (IpAddr, u16),
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; SidrReq::ULP_DATA_LEN],
}

/// The answer to a [`SidrRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReply {
    /// [`SidrStatus::Valid`], or why not.
    pub status: SidrStatus,
    /// The queue pair that serves; 0 unless valid.
    pub qpn: Qpn,
    /// Its Q_Key. Clients of the IP port spaces insist on [`RDMA_UDP_QKEY`](crate::wire::mad::RDMA_UDP_QKEY).
    pub qkey: u32,
    /// The upper layer's private data, at most 136 bytes.
    pub private_data: Vec<u8>,
}

impl SidrReply {
    /// The answer that names a queue pair.
    #[must_use]
    pub fn valid(qpn: Qpn) -> SidrReply {
        let qkey = crate::wire::mad::RDMA_UDP_QKEY;
        SidrReply { status: SidrStatus::Valid, qpn, qkey, private_data: Vec::new() }
    }

    /// The answer that refuses.
    #[must_use]
    pub fn refuse(status: SidrStatus) -> SidrReply {
        SidrReply { status, qpn: Qpn::new(0), qkey: 0, private_data: Vec::new() }
    }
}

/// Why a command was refused. Nothing changes then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CmError {
    /// There is no such connection or request (any more).
    #[error("no such connection")]
    Unknown,
    /// The connection is not in a state for this.
    #[error("not possible in the connection's state")]
    WrongState,
    /// Private data or additional reject information longer than the message has room for.
    #[error("private data too long")]
    TooLong,
    /// The two addresses cannot be the ends of a connection: they are of different IP versions, or not those of hosts.
    #[error("not the addresses of two hosts of the same IP version")]
    Address,
    /// Connections are RC or UC.
    #[error("not a transport of connections")]
    Transport,
    /// As many connections or questions as [`CmConfig`](super::CmConfig) allows.
    #[error("too many connections")]
    Limit,
}
