//! What control and workers tell each other. With one lcore both ends live in one loop and still talk this way, so
//! that there is one path to get right.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use rxe_proto::cm::{
    AcceptParams, CmError, ConnId, ConnectFailure, ConnectReply, ConnectRequest, DisconnectReason, SidrId, SidrReply,
    SidrRequest,
};
use rxe_proto::transport::{QpErrorCause, Qpn};
use rxe_proto::wire::cm::{CmTransport, Rej, RejReason, SidrRep, SidrStatus};
use rxe_proto::wire::{Gid, MacAddr, Path, PathMtu, PortId, Psn};

use crate::inspect::Question;
use crate::multicast::WorkerSet;

/// A TCP stream of the side channels, unique while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub(crate) u64);

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// It was up, and one side disconnected.
    Disconnected(DisconnectReason),
    /// It never came up: the peer refused, or did not answer or confirm.
    NotEstablished(ConnectFailure),
    /// The queue pair went to the error state; the peer is told by a DREQ.
    QueuePair(QpErrorCause),
    /// It never came up: the queue pair does not take what the peer asked for or granted.
    Unacceptable,
    /// It was never asked for: no port has a route to the peer, or nobody has the peer's address.
    NoPath,
    /// It was never asked for: the connection manager cannot send such a request.
    NotAsked(CmError),
    /// It was never asked for: the adapter stops.
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
            EndReason::Disconnected(DisconnectReason::Stale) => f.write_str("the peer has forgotten it and asked anew"),
            EndReason::NotEstablished(ConnectFailure::PeerRejected(reason)) => {
                write!(f, "it never came up: the peer rejected it ({reason})")
            }
            EndReason::NotEstablished(ConnectFailure::PeerDisconnected) => {
                f.write_str("it never came up: the peer disconnected at once")
            }
            EndReason::NotEstablished(ConnectFailure::Timeout) => {
                f.write_str("it never came up: the peer did not answer")
            }
            EndReason::NotEstablished(ConnectFailure::NotAnswered) => {
                f.write_str("it never came up: the service did not answer in time")
            }
            EndReason::NotEstablished(ConnectFailure::Evicted) => {
                f.write_str("it never came up: the peer had not confirmed it when newer requests needed its place")
            }
            EndReason::NotEstablished(ConnectFailure::Stale) => {
                f.write_str("it never came up: the peer has asked anew")
            }
            EndReason::QueuePair(cause) => write!(f, "its queue pair is in error ({cause})"),
            EndReason::Unacceptable => {
                f.write_str("it never came up: the queue pair does not take what the peer wants or grants")
            }
            EndReason::NoPath => f.write_str("it was never asked for: there is no way to the peer"),
            EndReason::NotAsked(error) => write!(f, "it was never asked for: {error}"),
            EndReason::Stopping => f.write_str("it was never asked for: the adapter stops"),
        }
    }
}

/// A connection that a service wants; see [`Context::connect`](crate::service::Context::connect). Start from
/// [`Connect::new`] and change what differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect {
    /// The peer's address and its port in the TCP port space.
    pub remote: SocketAddr,
    /// A queue pair from [`Context::create_qp`](crate::service::Context::create_qp), in Init, with the first receives
    /// posted.
    pub qp: Qpn,
    /// What the queue pair is.
    pub transport: CmTransport,
    /// READs and atomics that we let the peer have outstanding.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding; the peer may grant fewer.
    pub initiator_depth: u8,
    /// Transport retries of both queue pairs, 0 to 7.
    pub retry_count: u8,
    /// Receiver-not-ready retries that the peer shall make, 0 to 7; 7 is without end.
    pub rnr_retry_count: u8,
    /// Path MTU; `None` takes the largest that our port carries. The peer cannot change it, and refuses one that its
    /// own port does not carry.
    pub path_mtu: Option<PathMtu>,
    /// ACK timeout of the peer's queue pair, and at least of ours: 4.096 us * 2^this.
    pub local_ack_timeout: u8,
    /// How long the peer may take to answer the REQ: 4.096 us * 2^this.
    pub response_timeout: u8,
    /// How often a REQ without an answer is sent again, 0 to 15.
    pub max_cm_retries: u8,
    /// The upper layer's private data, at most 56 bytes.
    pub private_data: Vec<u8>,
}

impl Connect {
    /// A reliable connection from `qp` to `remote` as Linux programs ask for it: READs and atomics refused and not
    /// wanted, 7 retries, those of receivers that are not ready without end, 16 REQs in 103 s.
    #[must_use]
    pub fn new(remote: SocketAddr, qp: Qpn) -> Connect {
        Connect {
            remote,
            qp,
            transport: CmTransport::Rc,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            path_mtu: None,
            local_ack_timeout: 19,
            response_timeout: 20,
            max_cm_retries: 15,
            private_data: Vec::new(),
        }
    }
}

/// The way to a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerPath {
    /// Port and addresses. The flow label is 0, and so is the UDP source port: who sends sets it by the queue pairs.
    pub path: Path,
    /// The largest path MTU that our port carries.
    pub path_mtu: PathMtu,
}

/// A peer's datagram queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramPeer {
    /// The way to it.
    pub path: PeerPath,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
    /// The upper layer's private data, padded with zeros.
    pub private_data: [u8; SidrRep::PRIVATE_DATA_LEN],
}

/// Another host that listens to a multicast group; see
/// [`Service::group_listener`](crate::service::Service::group_listener).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupListener {
    /// The port that it is behind.
    pub port: PortId,
    /// The group.
    pub group: IpAddr,
    /// The host's address.
    pub host: IpAddr,
    /// It begins to listen; else it ceases.
    pub joined: bool,
}

impl GroupListener {
    /// A number that spreads listeners over workers: who hears that one begins hears that it ceases.
    pub(crate) fn spread(&self) -> usize {
        let low_bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            // The interface's part is what differs.
            IpAddr::V6(ip) => ip.to_bits() as u64,
        };
        low_bits(self.group).wrapping_add(low_bits(self.host)) as usize
    }
}

/// Why a datagram queue pair of a peer is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResolveError {
    /// No port has a route to the peer, or nobody has the peer's address.
    NoPath,
    /// The connection manager cannot ask such a question.
    NotAsked(CmError),
    /// The peer says why.
    Refused(SidrStatus),
    /// The peer did not answer.
    Timeout,
    /// The adapter stops.
    Stopping,
}

/// Who asked for something, and the number that the answer carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) worker: usize,
    pub(crate) service: usize,
    /// The service's own number.
    pub(crate) token: u64,
}

/// What a queue pair needs besides the REP of its connection.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) path: Path,
    pub(crate) path_mtu: PathMtu,
    /// The PSN of the peer's first request.
    pub(crate) rq_psn: Psn,
    pub(crate) retry_count: u8,
}

/// From the control side to the worker that owns a connection or stream.
#[derive(Debug)]
pub(crate) enum ToWorker {
    /// Decide about this request; the answer is [`ToControl::Accept`] or [`ToControl::Reject`].
    ConnectRequest { service: usize, request: Box<ConnectRequest>, path: Path },
    /// The REQ for a connection that the service wants is on its way.
    Asked { service: usize, conn: ConnId, qp: Qpn },
    /// The connection that the service wants cannot even be asked for.
    NotAsked { service: usize, conn: ConnId, qp: Qpn, reason: EndReason },
    /// The peer grants a connection: the answer is [`ToControl::Confirm`] or [`ToControl::Reject`].
    Granted { reply: Box<ConnectReply>, terms: Box<Terms> },
    /// The peer refuses a connection, in these words; [`ToWorker::Disconnected`] follows.
    Rejected { conn: ConnId, rej: Box<Rej> },
    /// Both sides have confirmed.
    Connected { conn: ConnId },
    /// The connection is over.
    Disconnected { conn: ConnId, reason: EndReason },
    /// The peer, or the router to it, has another MAC address now.
    PeerMoved { conn: ConnId, mac: MacAddr },
    /// Look whether the peer of `conn` still uses it, since `request` would replace it; the answer is
    /// [`ToControl::Watched`].
    WatchConnection { conn: ConnId, request: ConnId },
    /// Decide about this question for a datagram queue pair; the answer is [`ToControl::ReplyDatagram`].
    DatagramRequest { service: usize, request: Box<SidrRequest> },
    /// The answer to [`ToControl::ResolveDatagram`].
    DatagramResolved { service: usize, token: u64, result: Result<Box<DatagramPeer>, ResolveError> },
    /// The answer to [`ToControl::ResolvePath`].
    PathResolved { service: usize, token: u64, path: Option<Box<PeerPath>> },
    /// A stream to a service's port was opened.
    StreamOpened { service: usize, stream: StreamId, local: SocketAddr, peer: SocketAddr },
    /// Bytes from the peer.
    StreamData { stream: StreamId, data: Vec<u8> },
    /// The stream is over.
    StreamClosed { stream: StreamId, reset: bool },
    /// Another host begins or ceases to listen to a multicast group.
    GroupListener { service: usize, listener: GroupListener },
    /// These workers have members of a multicast group now.
    GroupMembers { port: PortId, group: Gid, workers: WorkerSet },
    /// Somebody who looks after the adapter asks.
    Inspect(Question),
}

/// From a worker to the control side.
#[derive(Debug)]
pub(crate) enum ToControl {
    /// Send the REP: the queue pair can receive.
    Accept { conn: ConnId, params: AcceptParams },
    /// Refuse.
    Reject { conn: ConnId, reason: RejReason, private_data: Vec<u8> },
    /// The first valid request arrived on the queue pair: an RTU by other means.
    CommunicationEstablished { conn: ConnId },
    /// Ask a peer for a connection; `asker.token` is not used. The answer is [`ToWorker::Asked`] or
    /// [`ToWorker::NotAsked`].
    Connect { asker: Asker, connect: Box<Connect>, rq_psn: Psn },
    /// Send the RTU: the queue pair is ready.
    Confirm { conn: ConnId },
    /// Ask a peer for a datagram queue pair.
    ResolveDatagram { asker: Asker, remote: SocketAddr, private_data: Vec<u8> },
    /// Answer a peer's question for a datagram queue pair.
    ReplyDatagram { id: SidrId, reply: SidrReply },
    /// Find the way to a peer; for a client that names its address, only if it is the client's own.
    ResolvePath { asker: Asker, remote: IpAddr, client: Option<IpAddr> },
    /// The service or a dead queue pair wants the connection gone.
    Disconnect { conn: ConnId },
    /// Whether packets in sequence came for a connection that `request` would replace.
    Watched { request: ConnId, in_use: bool },
    /// Bytes for the peer of a stream.
    StreamSend { stream: StreamId, data: Vec<u8> },
    /// The worker has taken a new stream (`len` is 0) or this many bytes of one, and may get more.
    StreamTaken { stream: StreamId, len: usize },
    /// Close after what was sent.
    StreamClose { stream: StreamId },
    /// `worker` has its first member of a multicast group, or lost its last one.
    GroupMember { worker: usize, port: PortId, group: Gid, joined: bool },
}
