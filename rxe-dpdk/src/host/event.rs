//! What a host has to tell.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rxe_proto::wire::MacAddr;

/// A TCP stream of a [`Host`](super::Host). An id is never reused while the host lives, for all that matters: its
/// place in the table is, but with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TcpStreamId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// Something that happened; see [`Host::poll_event`](super::Host::poll_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A neighbour that was known has another MAC now. When the neighbour is a router, all paths through it changed:
    /// resolve them again. Events of this kind are dropped, oldest first, when hundreds are waiting.
    NeighbourChanged {
        /// The neighbour.
        ip: IpAddr,
        /// Its MAC from now on.
        mac: MacAddr,
    },
    /// Another host begins or ceases to listen to a multicast group; only of hosts that
    /// [watch](super::Host::watch_listeners).
    Listener {
        /// The group.
        group: Ipv4Addr,
        /// Who listens.
        host: Ipv4Addr,
        /// It begins; else it ceases.
        joined: bool,
    },
    /// Something about a TCP stream.
    Stream(StreamEvent),
}

/// What happened to a TCP stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// A peer connected to a port that we listen on, or our own connection was accepted.
    Opened {
        /// The new stream.
        stream: TcpStreamId,
        /// Our address and port.
        local: SocketAddr,
        /// The peer's.
        peer: SocketAddr,
    },
    /// Bytes arrived: read with [`Host::recv`](super::Host::recv) until it returns 0. Comes again when more arrive.
    Readable {
        /// The stream.
        stream: TcpStreamId,
    },
    /// The stream is over and its id dead: the peer closed and all its bytes were read, or it was `reset`, or our own
    /// close is done. The last event of every stream, and the only one of a connection attempt that failed. What was
    /// sent before is still delivered if the peer only closed.
    Closed {
        /// The stream.
        stream: TcpStreamId,
        /// Whether it ended by a reset (the peer's or ours) or because the peer fell silent.
        reset: bool,
    },
}
