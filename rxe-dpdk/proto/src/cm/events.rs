//! Events of the connection manager, and the parameters of its commands.

use std::net::IpAddr;

use super::{ConnId, MadPath, SidrId};
use crate::transport::Qpn;
use crate::wire::cm::{CmTransport, PortSpace, Rej, RejReason, Rep, Req, ServiceId, SidrRep, SidrReq, SidrStatus};
use crate::wire::{Gid, PathMtu, Psn};

/// An event for the user of a [`Cm`](super::Cm).
///
/// A connection starts with one `ConnectRequest`, or with the user's own [`connect`](super::Cm::connect), and ends with
/// exactly one `ConnectFailed` or `Disconnected`, unless the user rejects or drops it: then no event follows.
/// `Disconnected` follows `Established` or the user's own [`disconnect`](super::Cm::disconnect); `ConnectFailed` comes
/// before either, possibly before the user has answered.
///
/// Each [`resolve_datagram`](super::Cm::resolve_datagram) is followed by exactly one `DatagramResolved` or
/// `ResolveFailed`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CmEvent {
    /// A peer requests a connection: answer with [`accept`](super::Cm::accept) or [`reject`](super::Cm::reject).
    ConnectRequest(Box<ConnectRequest>),
    /// The peer accepts our connection: take the queue pair to RTS, then answer with
    /// [`confirm`](super::Cm::confirm), or with [`reject`](super::Cm::reject) if that cannot be done.
    ConnectReply(Box<ConnectReply>),
    /// The connection is confirmed: by the peer, by RTU or data, or by the user.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// An established connection, or one that [`disconnect`](super::Cm::disconnect) was called for, has ended.
    Disconnected {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: DisconnectReason,
    },
    /// A connection failed before it was established.
    ConnectFailed {
        /// The connection.
        conn: ConnId,
        /// Why.
        reason: ConnectFailure,
        /// The peer's REJ, if there is one, with additional information and the upper layer's private data.
        rej: Option<Box<Rej>>,
    },
    /// A peer sends a SIDR request: answer with [`reply_sidr`](super::Cm::reply_sidr).
    SidrRequest(Box<SidrRequest>),
    /// The peer has answered our SIDR request with a datagram queue pair.
    DatagramResolved(Box<DatagramReply>),
    /// Our SIDR request was refused, or not answered.
    ResolveFailed {
        /// The request.
        id: SidrId,
        /// Why.
        reason: ResolveFailure,
        /// The upper layer's private data, padded with zeros, if the peer has refused.
        private_data: Option<Box<[u8; SidrRep::PRIVATE_DATA_LEN]>>,
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
    /// The peer sent a DREQ.
    Peer,
    /// The user called [`disconnect`](super::Cm::disconnect); the peer has confirmed, or had no connection yet.
    Local,
    /// The user called [`disconnect`](super::Cm::disconnect), and the peer did not answer.
    LocalUnanswered,
    /// The peer rejected the connection although it was established already.
    PeerRejected(RejReason),
    /// A new REQ or REP of the same peer has the same queue pair or communication id: the peer has restarted.
    Stale,
}

/// Why a connection was not established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectFailure {
    /// The peer rejected our REQ or REP, or gave up waiting for the REP.
    PeerRejected(RejReason),
    /// The peer disconnected at once.
    PeerDisconnected,
    /// The peer did not answer, or did not confirm.
    Timeout,
    /// The user neither accepted ([`accept`](super::Cm::accept), [`confirm`](super::Cm::confirm)) nor
    /// [rejected](super::Cm::reject) in time.
    NotAnswered,
    /// A new REQ or REP of the same peer has the same queue pair or communication id.
    Stale,
    /// The limit of pending connections was reached, and this was the oldest unconfirmed request.
    Evicted,
}

/// A request that was rejected without asking the user, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedRequest {
    /// The source of the packet.
    pub peer: Gid,
    /// The fault, as the end of a sentence.
    pub why: &'static str,
}

/// Why a SIDR request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResolveFailure {
    /// The peer refused it with this status.
    Refused(SidrStatus),
    /// The peer did not answer.
    Timeout,
}

/// A peer's connection request. Addresses, transport, partition and path MTU have been checked; whether the service
/// exists and accepts the peer is up to the user.
///
/// "Remote" and "peer" mean the initiator, "local" means our side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectRequest {
    /// The handle to answer with.
    pub conn: ConnId,
    /// Path of the connection manager's MADs.
    pub path: MadPath,
    /// The requested service.
    pub service_id: ServiceId,
    /// Transport service of our queue pair: reliable or unreliable connection, never another.
    pub transport: CmTransport,
    /// The initiator's address and port, from the REQ.
    pub source: (IpAddr, u16),
    /// Our address and port.
    pub dest: (IpAddr, u16),
    /// The initiator's queue pair.
    pub remote_qpn: u32,
    /// The PSN that *our* first request must carry (our `sq_psn`).
    pub starting_psn: Psn,
    /// Path MTU, at most the port's. Final: the REP cannot change it.
    pub path_mtu: PathMtu,
    /// READs and atomics that the initiator can hold: limits our initiator depth.
    pub responder_resources: u8,
    /// READs and atomics that the initiator wants to have outstanding: limits our responder resources.
    pub initiator_depth: u8,
    /// Transport retries for our queue pair.
    pub retry_count: u8,
    /// RNR retries for our queue pair; 7 is unlimited.
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
    /// READs and atomics that either side may have outstanding, if we hold at most `responder_resources` of the peer's
    /// and want at most `initiator_depth` of our own. Use these values for the queue pair and in [`AcceptParams`].
    #[must_use]
    pub fn negotiate(&self, responder_resources: u8, initiator_depth: u8) -> (u8, u8) {
        (responder_resources.min(self.initiator_depth), initiator_depth.min(self.responder_resources))
    }
}

/// Parameters of [`accept`](super::Cm::accept).
///
/// By then the queue pair must be able to receive, receives posted: data can arrive before the peer's RTU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptParams {
    /// Our queue pair.
    pub qpn: Qpn,
    /// The PSN that the *peer's* first request must carry (our `rq_psn`).
    pub starting_psn: Psn,
    /// READs and atomics of the peer that our queue pair can hold. Sent value: at most what the peer requested.
    pub responder_resources: u8,
    /// READs and atomics that our queue pair will have outstanding. Sent value: at most what the peer can hold. When 0,
    /// Linux peers refuse READs.
    pub initiator_depth: u8,
    /// RNR retries of the peer; use 7 (unlimited) unless the service limits them.
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

/// Parameters of [`connect`](super::Cm::connect). [`ConnectParams::new`] has the defaults of Linux.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectParams {
    /// Path of the connection manager's MADs: our address and the peer's, of the same IP version, and the traffic class
    /// of the connection.
    pub path: MadPath,
    /// Our port, as the peer's service sees it.
    pub source_port: u16,
    /// The peer's port.
    pub dest_port: u16,
    /// The port space of `dest_port`: TCP, or IB for a peer with [`CmConfig::ib_port_space`](super::CmConfig).
    pub port_space: PortSpace,
    /// Transport service of our queue pair: RC or UC.
    pub transport: CmTransport,
    /// Our queue pair. It need not be able to receive yet.
    pub qpn: Qpn,
    /// The PSN that the *peer's* first request must carry (our `rq_psn`).
    pub starting_psn: Psn,
    /// Path MTU of the connection; the peer cannot change it.
    pub path_mtu: PathMtu,
    /// READs and atomics of the peer that our queue pair can hold.
    pub responder_resources: u8,
    /// READs and atomics that our queue pair will have outstanding.
    pub initiator_depth: u8,
    /// Transport retries of the peer, 0 to 7.
    pub retry_count: u8,
    /// RNR retries of the peer, 0 to 7; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// ACK timeout for the peer's queue pair: 4.096 us * 2^this. Also the time that a REQ and its REP may be in
    /// flight.
    pub local_ack_timeout: u8,
    /// How long either side may take to answer a message of the connection manager: 4.096 us * 2^this.
    pub response_timeout: u8,
    /// Retransmissions of a message without an answer, 0 to 15, on either side.
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
    /// A reliable connection with the defaults of Linux: unlimited RNR retries, 7 transport retries, ACK timeout 2.1 s,
    /// 16 REQs in 103 s, flow label computed from the ports, no READs and atomics, no private data.
    #[must_use]
    pub fn new(path: MadPath, ports: (u16, u16), qpn: Qpn, starting_psn: Psn, path_mtu: PathMtu) -> ConnectParams {
        let (source_port, dest_port) = ports;
        ConnectParams {
            path,
            source_port,
            dest_port,
            port_space: PortSpace::Tcp,
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

/// The peer's REP to our [`connect`](super::Cm::connect): parameters for our queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectReply {
    /// The handle to answer with.
    pub conn: ConnId,
    /// The peer's queue pair.
    pub remote_qpn: u32,
    /// The PSN that *our* first request must carry (our `sq_psn`).
    pub starting_psn: Psn,
    /// READs and atomics that our queue pair may have outstanding: at most what the peer holds and what we requested.
    pub responder_resources: u8,
    /// READs and atomics that the peer may have outstanding: our queue pair must hold them. It may exceed our offer;
    /// reject the REP if the queue pair cannot hold that many.
    pub initiator_depth: u8,
    /// RNR retries for our queue pair; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// ACK timeout for our queue pair, computed from the requested one and the peer's ACK delay: 4.096 us * 2^this.
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

/// Parameters of [`resolve_datagram`](super::Cm::resolve_datagram). [`ResolveParams::new`] has the defaults of Linux.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolveParams {
    /// Path of the SIDR request: our address and the peer's, of the same IP version.
    pub path: MadPath,
    /// Our port, as the peer's service sees it.
    pub source_port: u16,
    /// The peer's port.
    pub dest_port: u16,
    /// The port space of `dest_port`: UDP, or IB for a peer with [`CmConfig::ib_port_space`](super::CmConfig).
    pub port_space: PortSpace,
    /// How long the peer may take to answer: 4.096 us * 2^this.
    pub response_timeout: u8,
    /// Retransmissions of a request without an answer, 0 to 15.
    pub max_cm_retries: u8,
    /// The upper layer's private data, at most 180 bytes.
    pub private_data: Vec<u8>,
}

impl ResolveParams {
    /// A request with the defaults of Linux: sent 16 times in 69 s, no private data.
    #[must_use]
    pub fn new(path: MadPath, ports: (u16, u16)) -> ResolveParams {
        let (source_port, dest_port) = ports;
        ResolveParams {
            path,
            source_port,
            dest_port,
            port_space: PortSpace::Udp,
            response_timeout: 20,
            max_cm_retries: 15,
            private_data: Vec::new(),
        }
    }
}

/// The peer's datagram queue pair, in answer to [`resolve_datagram`](super::Cm::resolve_datagram).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramReply {
    /// The request that it answers.
    pub id: SidrId,
    /// Number of the peer's datagram queue pair.
    pub qpn: Qpn,
    /// Its Q_Key, for every packet to it.
    pub qkey: u32,
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; SidrRep::PRIVATE_DATA_LEN],
}

/// A peer's SIDR request: which datagram queue pair serves a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRequest {
    /// The handle to answer with.
    pub id: SidrId,
    /// Path of the request.
    pub path: MadPath,
    /// The requested service.
    pub service_id: ServiceId,
    /// The peer's address and port, from the request.
    pub source: (IpAddr, u16),
    /// Our address and port.
    pub dest: (IpAddr, u16),
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; SidrReq::ULP_DATA_LEN],
}

/// The answer to a [`SidrRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReply {
    /// [`SidrStatus::Valid`], or the reason for the refusal.
    pub status: SidrStatus,
    /// The datagram queue pair of the service; 0 unless valid.
    pub qpn: Qpn,
    /// Its Q_Key. Clients of the IP port spaces require [`RDMA_UDP_QKEY`](crate::wire::mad::RDMA_UDP_QKEY).
    pub qkey: u32,
    /// The upper layer's private data, at most 136 bytes.
    pub private_data: Vec<u8>,
}

impl SidrReply {
    /// The reply with a queue pair.
    #[must_use]
    pub fn valid(qpn: Qpn) -> SidrReply {
        let qkey = crate::wire::mad::RDMA_UDP_QKEY;
        SidrReply { status: SidrStatus::Valid, qpn, qkey, private_data: Vec::new() }
    }

    /// The reply that refuses the request.
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
    /// The two addresses are of different IP versions, or not unicast host addresses.
    #[error("not the addresses of two hosts of the same IP version")]
    Address,
    /// Connections are RC or UC.
    #[error("not a transport of connections")]
    Transport,
    /// The limit of connections or SIDR requests in [`CmConfig`](super::CmConfig) is reached.
    #[error("too many connections")]
    Limit,
}
