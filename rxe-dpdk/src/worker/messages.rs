//! What control and workers tell each other. With one lcore both ends live in one loop and still talk this way, so
//! that there is one path to get right.

use std::net::SocketAddr;

use rxe_proto::cm::{AcceptParams, ConnId, ConnectFailure, ConnectRequest, DisconnectReason};
use rxe_proto::transport::QpErrorCause;
use rxe_proto::wire::cm::RejReason;
use rxe_proto::wire::{MacAddr, Path};

/// A TCP stream of the side channels, unique while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub(crate) u64);

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// It was up, and one side disconnected.
    Disconnected(DisconnectReason),
    /// It never came up: the peer did not confirm.
    NotEstablished(ConnectFailure),
    /// The queue pair went to the error state; the peer is told by a DREQ.
    QueuePair(QpErrorCause),
    /// It never came up: the queue pair does not take what the peer asked for.
    Unacceptable,
}

/// From the control side to the worker that owns a connection or stream.
#[derive(Debug)]
pub(crate) enum ToWorker {
    /// Decide about this request; the answer is [`ToControl::Accept`] or [`ToControl::Reject`].
    ConnectRequest { service: usize, request: Box<ConnectRequest>, path: Path },
    /// The peer confirmed.
    Connected { conn: ConnId },
    /// The connection is over.
    Disconnected { conn: ConnId, reason: EndReason },
    /// The peer, or the router to it, has another MAC address now.
    PeerMoved { conn: ConnId, mac: MacAddr },
    /// A stream to a service's port was opened.
    StreamOpened { service: usize, stream: StreamId, local: SocketAddr, peer: SocketAddr },
    /// Bytes from the peer.
    StreamData { stream: StreamId, data: Vec<u8> },
    /// The stream is over.
    StreamClosed { stream: StreamId, reset: bool },
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
    /// The service or a dead queue pair wants the connection gone.
    Disconnect { conn: ConnId },
    /// Bytes for the peer of a stream.
    StreamSend { stream: StreamId, data: Vec<u8> },
    /// Close after what was sent.
    StreamClose { stream: StreamId },
}
