//! Messages between the control side and the service hosts, and the types that services see in them.
//!
//! A connection that a peer requests, and one that a service requests:
//!
//! ```text
//! passive: ToWorker::ConnectRequest -> ToControl::SendRep -> ToWorker::Connected -> ... -> ToWorker::Disconnected
//! active:  ToControl::Connect -> ToWorker::ReqSent -> ToWorker::RepReceived -> ToControl::SendRtu -> ToWorker::Connected ...
//! ```

use std::any::Any;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::SyncSender;

use rxe_proto::cm::{
    AcceptParams, CmError, ConnId, ConnectFailure, ConnectReply, ConnectRequest, DisconnectReason, Handshake, SidrId,
    SidrReply, SidrRequest,
};
use rxe_proto::verbs::{AnyQueuePair, QpErrorCause, Qpn};
use rxe_proto::wire::cm::{CmTransport, Rej, RejReason, SidrRep, SidrStatus};
use rxe_proto::wire::{Gid, MacAddr, Path, PathMtu, PortId, Psn};

use crate::change::{Change, ControlChange};
use crate::inspect::{ControlCounts, Part, Question};
use crate::multicast::WorkerSet;

/// A TCP stream of a service, unique while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub(crate) u64);

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// It was up, and one side disconnected.
    Disconnected(DisconnectReason),
    /// It was never established: the peer refused, or did not answer or confirm.
    NotEstablished(ConnectFailure),
    /// The queue pair went to the error state; the peer gets a DREQ.
    QueuePair(QpErrorCause),
    /// It was never established: the queue pair does not support what the peer asked for in its REQ or REP.
    Unacceptable,
    /// No REQ was sent: no port has a route to the peer, or no host has the peer's address.
    NoPath,
    /// No REQ was sent: the connection manager cannot send such a request.
    ReqNotSent(CmError),
    /// No REQ was sent: the adapter stops.
    Stopping,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Disconnected(DisconnectReason::Peer) => f.write_str("the peer disconnected"),
            EndReason::Disconnected(DisconnectReason::Local) => f.write_str("we disconnected"),
            EndReason::Disconnected(DisconnectReason::LocalUnanswered) => {
                f.write_str("we disconnected and the peer did not answer")
            }
            EndReason::Disconnected(DisconnectReason::PeerRejected(reason)) => {
                write!(f, "the peer rejected it although it was up ({reason})")
            }
            EndReason::Disconnected(DisconnectReason::Stale) => {
                f.write_str("the peer has lost it and requested a new one")
            }
            EndReason::NotEstablished(ConnectFailure::PeerRejected(reason)) => {
                write!(f, "it was not established: the peer rejected it ({reason})")
            }
            EndReason::NotEstablished(ConnectFailure::PeerDisconnected) => {
                f.write_str("it was not established: the peer disconnected at once")
            }
            EndReason::NotEstablished(ConnectFailure::Timeout) => {
                f.write_str("it was not established: the peer did not answer")
            }
            EndReason::NotEstablished(ConnectFailure::NotAnswered) => {
                f.write_str("it was not established: the service did not answer in time")
            }
            EndReason::NotEstablished(ConnectFailure::Evicted) => {
                f.write_str("it was not established: the peer had not confirmed it, and newer requests needed the room")
            }
            EndReason::NotEstablished(ConnectFailure::Stale) => {
                f.write_str("it was not established: the peer has requested a new one")
            }
            EndReason::QueuePair(cause) => write!(f, "its queue pair is in error ({cause})"),
            EndReason::Unacceptable => {
                f.write_str("it was not established: the queue pair does not support what the peer asked for")
            }
            EndReason::NoPath => f.write_str("no request was sent: there is no path to the peer"),
            EndReason::ReqNotSent(error) => write!(f, "no request was sent: {error}"),
            EndReason::Stopping => f.write_str("no request was sent: the adapter stops"),
        }
    }
}

/// A connection that a service requests; see [`Context::connect`](crate::Context::connect). Start from
/// [`Connect::new`] and change what differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The peer's address and its port in the TCP port space.
    pub remote: SocketAddr,
    /// A queue pair in INIT, with the first receives posted; see
    /// [`Device::create_qp_in_init`](rxe_proto::verbs::Device::create_qp_in_init).
    pub qp: AnyQueuePair,
    /// The queue pair's transport service. Set by [`Context::connect`](crate::Context::connect).
    pub transport: CmTransport,
    /// READs and atomics that we let the peer have outstanding.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding; the peer may grant fewer.
    pub initiator_depth: u8,
    /// Transport retries of both queue pairs, 0 to 7.
    pub retry_count: u8,
    /// Receiver-not-ready retries of the peer, 0 to 7; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Receiver-not-ready retries of our queue pair, 0 to 7; 7 is without end.
    pub rnr_retry: u8,
    /// Path MTU; `None` for the largest that our port carries. The peer cannot negotiate it, and refuses one that its
    /// own port does not carry.
    pub path_mtu: Option<PathMtu>,
    /// ACK timeout of the peer's queue pair, and at least of ours: 4.096 us * 2^this.
    pub local_ack_timeout: u8,
    /// How long the peer may take to answer the REQ: 4.096 us * 2^this.
    pub response_timeout: u8,
    /// Retransmissions of a REQ without an answer, 0 to 15.
    pub max_cm_retries: u8,
    /// The upper layer's private data, at most 56 bytes.
    pub private_data: Vec<u8>,
}

impl Connect {
    /// A connection from `qp` to `remote` with the usual parameters of Linux programs: no READs and atomics in
    /// either direction, 7 retries, unlimited RNR retries, 16 REQs in 103 s.
    #[must_use]
    pub fn new(remote: SocketAddr, qp: impl Into<AnyQueuePair>) -> Connect {
        Connect {
            remote,
            qp: qp.into(),
            transport: CmTransport::Rc,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            rnr_retry: 7,
            path_mtu: None,
            local_ack_timeout: 19,
            response_timeout: 20,
            max_cm_retries: 15,
            private_data: Vec::new(),
        }
    }
}

/// The path to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerPath {
    /// Port and addresses. Flow label and UDP source port are 0; a queue pair derives its own from the numbers of both
    /// queue pairs.
    pub path: Path,
    /// The largest path MTU that our port carries.
    pub path_mtu: PathMtu,
}

/// A peer's datagram queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramPeer {
    /// The path to it.
    pub path: PeerPath,
    /// The queue pair.
    pub qpn: Qpn,
    /// Q_Key of the queue pair.
    pub qkey: u32,
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; SidrRep::PRIVATE_DATA_LEN],
}

/// Another host that joined or left a multicast group; see
/// [`Service::group_listener`](crate::service::Service::group_listener).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupListener {
    /// The port on whose network it is.
    pub port: PortId,
    /// The group.
    pub group: IpAddr,
    /// The host's address.
    pub host: IpAddr,
    /// It joined; else it left.
    pub joined: bool,
}

impl GroupListener {
    /// A number that spreads listeners over workers. It is the same for joining and leaving.
    pub(crate) fn spread(&self) -> usize {
        let low_bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            // The interface identifier: hosts differ in that.
            IpAddr::V6(ip) => ip.to_bits() as u64,
        };
        low_bits(self.group).wrapping_add(low_bits(self.host)) as usize
    }
}

/// Why a SIDR request has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResolveError {
    /// No port has a route to the peer, or no host has the peer's address.
    NoPath,
    /// The connection manager cannot send such a request.
    NotSent(CmError),
    /// The peer refused, with this status.
    Refused(SidrStatus),
    /// The peer did not answer.
    Timeout,
    /// The adapter stops.
    Stopping,
}

/// The service that a reply goes to, and the number that the reply carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyTo {
    pub(crate) worker: usize,
    pub(crate) service: usize,
    /// Chosen by the service.
    pub(crate) token: u64,
}

/// Attributes that a queue pair needs for RTR and RTS besides the REP.
#[derive(Debug)]
pub(crate) struct RtsParams {
    pub(crate) path: Path,
    pub(crate) path_mtu: PathMtu,
    /// The PSN of the peer's first request, from our REQ.
    pub(crate) rq_psn: Psn,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
}

/// A message of a service's instance to the instance of the same service on another worker, or to itself.
#[derive(Debug)]
pub(crate) struct InstanceMessage {
    pub(crate) service: usize,
    /// The worker of the sender.
    pub(crate) from: usize,
    pub(crate) message: Box<dyn Any + Send>,
}

/// From the control side, from management, or from another worker, to the service host of a worker.
#[derive(Debug)]
pub(crate) enum ToWorker {
    /// A peer requests a connection. The answer is [`ToControl::SendRep`] or [`ToControl::SendRej`].
    ConnectRequest { service: usize, request: Box<ConnectRequest>, path: Path },
    /// The REQ for a connection that a service requested was sent.
    ReqSent { service: usize, conn: ConnId, qp: Qpn },
    /// The connection that a service requested failed before a REQ was sent.
    ReqNotSent { service: usize, conn: ConnId, qp: Qpn, reason: EndReason },
    /// The peer accepts. The answer is [`ToControl::SendRtu`] or [`ToControl::SendRej`].
    RepReceived { reply: Box<ConnectReply>, rts: Box<RtsParams> },
    /// The peer refuses; [`ToWorker::Disconnected`] follows.
    RejReceived { conn: ConnId, rej: Box<Rej> },
    /// Both sides have confirmed the connection.
    Connected { conn: ConnId },
    /// The connection is over.
    Disconnected { conn: ConnId, reason: EndReason },
    /// The next hop to the peer has another MAC address now.
    PeerMacChanged { conn: ConnId, mac: MacAddr },
    /// Check whether the peer of `conn` still uses it: `request` would replace it. The answer is
    /// [`ToControl::InUseChecked`].
    CheckInUse { conn: ConnId, request: ConnId },
    /// A peer sends a SIDR request. The answer is [`ToControl::SendSidrRep`].
    SidrRequest { service: usize, request: Box<SidrRequest> },
    /// The answer to [`ToControl::ResolveDatagram`].
    DatagramResolved { service: usize, token: u64, result: Result<Box<DatagramPeer>, ResolveError> },
    /// The answer to [`ToControl::ResolvePath`].
    PathResolved { service: usize, token: u64, path: Option<Box<PeerPath>> },
    /// A client opened a stream to a service's port.
    StreamOpened { service: usize, stream: StreamId, local: SocketAddr, peer: SocketAddr },
    /// Bytes from the client.
    StreamData { stream: StreamId, data: Vec<u8> },
    /// The stream is over.
    StreamClosed { stream: StreamId, reset: bool },
    /// Another host joined or left a multicast group.
    GroupListener { service: usize, listener: GroupListener },
    /// The workers that have members of a multicast group.
    GroupMembers { port: PortId, group: Gid, workers: WorkerSet },
    /// From the instance of a service on another worker.
    InstanceMessage(InstanceMessage),
    /// Management asks.
    Inspect(Question),
    /// Management changes something.
    Change(Box<Change>),
}

/// From the service host of a worker to the control side.
#[derive(Debug)]
pub(crate) enum ToControl {
    /// Send the REP: the queue pair can receive.
    SendRep { conn: ConnId, params: AcceptParams },
    /// Refuse a connection.
    SendRej { conn: ConnId, reason: RejReason, private_data: Vec<u8> },
    /// The first valid request arrived on the queue pair, which replaces the RTU.
    CommunicationEstablished { conn: ConnId },
    /// Request a connection from a peer; `reply_to.token` is not used. The answer is [`ToWorker::ReqSent`] or
    /// [`ToWorker::ReqNotSent`].
    Connect { reply_to: ReplyTo, connect: Box<Connect>, rq_psn: Psn },
    /// Send the RTU: the queue pair is ready.
    SendRtu { conn: ConnId },
    /// Send a SIDR request.
    ResolveDatagram { reply_to: ReplyTo, remote: SocketAddr, private_data: Vec<u8> },
    /// Answer a SIDR request.
    SendSidrRep { id: SidrId, reply: SidrReply },
    /// Find the path to a peer. With a client, which names `remote` as its address, only if that is the client's own.
    ResolvePath { reply_to: ReplyTo, remote: IpAddr, client: Option<IpAddr> },
    /// End a connection.
    Disconnect { conn: ConnId },
    /// Whether packets in sequence arrived on a connection that `request` would replace.
    InUseChecked { request: ConnId, in_use: bool },
    /// Bytes for the client of a stream.
    StreamSend { stream: StreamId, data: Vec<u8> },
    /// The service has taken a new stream (`len` is 0) or this many bytes of one: flow control.
    StreamTaken { stream: StreamId, len: usize },
    /// Close after what was sent.
    StreamClose { stream: StreamId },
    /// Reset a stream.
    StreamReset { stream: StreamId },
    /// `worker` has its first member of a multicast group, or lost its last one.
    GroupMember { worker: usize, port: PortId, group: Gid, joined: bool },
    /// Management asks for the numbers of entries in the control side's tables.
    Counts { reply: SyncSender<ControlCounts> },
    /// Management asks for the messages that made the connections, from a communication id on.
    Handshakes { from: u32, reply: SyncSender<Part<Handshake>> },
    /// Management changes something.
    Change(ControlChange),
}
