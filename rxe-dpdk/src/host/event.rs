//! Events of a host, for its user.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rxe_proto::wire::MacAddr;

/// A TCP stream of a [`Host`](super::Host). Ids are not reused: when a slot of the table is, its generation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TcpStreamId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// An event; see [`Host::poll_event`](super::Host::poll_event).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A known neighbour has another MAC address now. When it is a router, all paths through it changed: resolve them
    /// again. Events of this kind are dropped, oldest first, when 256 are waiting.
    NeighbourChanged {
        /// The neighbour.
        ip: IpAddr,
        /// The new MAC address.
        mac: MacAddr,
    },
    /// Another host begins or ceases to listen to a multicast group; only after
    /// [`Host::watch_listeners`](super::Host::watch_listeners).
    Listener {
        /// The group.
        group: Ipv4Addr,
        /// The listener.
        host: Ipv4Addr,
        /// Whether it begins to listen; else it ceases to.
        joined: bool,
    },
    /// An event of a TCP stream.
    Stream(StreamEvent),
}

/// An event of a TCP stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// A peer connected to a port that we listen on, or our own connection was accepted.
    Opened {
        /// The new stream.
        stream: TcpStreamId,
        /// Our address and port.
        local: SocketAddr,
        /// The peer's address and port.
        peer: SocketAddr,
    },
    /// Bytes arrived: read with [`Host::recv`](super::Host::recv) until it returns 0. Repeated when more arrive.
    Readable {
        /// The stream.
        stream: TcpStreamId,
    },
    /// The stream ended and its id is invalid: the peer closed and all its bytes were read, or it was `reset`, or our
    /// own close is complete. The last event of every stream, and the only one of a failed connection attempt. Bytes
    /// sent before are still delivered if the peer only closed.
    Closed {
        /// The stream.
        stream: TcpStreamId,
        /// Whether it ended by a reset (the peer's or ours) or because the peer did not answer.
        reset: bool,
    },
}

/// Capacity of an [`EventQueue`].
const MAX_EVENTS: usize = 256;

/// Events that wait for the host's user. They are hints: when the queue is full, the oldest is dropped.
#[derive(Default)]
pub(super) struct EventQueue(VecDeque<HostEvent>);

impl EventQueue {
    pub(super) fn push(&mut self, event: HostEvent) {
        if self.0.len() >= MAX_EVENTS {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<HostEvent> {
        self.0.pop_front()
    }
}
