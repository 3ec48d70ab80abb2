//! The control side's interface to the IP host of a port.

use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use rxe_proto::Instant;
use rxe_proto::cm::MadPath;
use rxe_proto::wire::MacAddr;
use rxe_proto::wire::mad::MAD_LEN;

use crate::local_port::LocalPort;

/// The IP host of one port: addresses and routes, neighbours, multicast groups, TCP streams, and transmission from queue
/// pair 1. An IP stack over Ethernet frames implements it, and so can the sockets of a kernel.
///
/// No method blocks. What takes time shows in a later [`poll_event`](Self::poll_event), or in a later answer to the same
/// call.
pub trait IpHost {
    /// Where the host puts what it sends. A host that sends by system calls uses `()`.
    type Output;
    /// Identifies a TCP stream; not reused while the host lives.
    type Stream: Copy + Eq + Hash;
    /// Why the host cannot listen, or its port cannot receive a multicast group.
    type Error: fmt::Display;

    /// The port. Its addresses change only with a call of [`Control::port_changed`](super::Control::port_changed); the rest
    /// stays as it is while the host lives.
    fn local_port(&self) -> LocalPort;

    /// Whether `ip` is a broadcast address, of a network of the port or of all networks.
    fn is_broadcast(&self, ip: IpAddr) -> bool;

    /// Whether `ip` is in a network of the port.
    fn is_on_link(&self, ip: IpAddr) -> bool;

    /// Whether packets to `ip` can leave by the port: it is on the link, or there is a route.
    fn has_route(&self, ip: IpAddr) -> bool;

    /// The neighbour through which packets to `dst` go: a router, or `dst` itself. It changes as the addresses do. A host
    /// that does not know its routers answers `dst`, which costs an update per connection when a router moves.
    fn next_hop(&self, dst: IpAddr) -> IpAddr;

    /// Finds the MAC and source address for packets to `dst`, and starts the search where they are not known.
    fn resolve(&mut self, now: Instant, dst: IpAddr) -> Resolution;

    /// Whether two addresses belong to one station: they are equal, or both are known as addresses of one machine.
    fn same_station(&mut self, now: Instant, a: IpAddr, b: IpAddr) -> bool;

    /// A peer requests a connection: where packets to it have no route, the host says so to its operator.
    fn note_peer(&mut self, now: Instant, peer: IpAddr);

    /// Notes that a trusted packet from `ip` came from `mac`. Only called for peers without a route.
    fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr);

    /// Accepts TCP streams to `port`, on all addresses.
    ///
    /// # Errors
    /// The port is in use.
    fn listen(&mut self, port: u16) -> Result<(), Self::Error>;

    /// Reports from now on which groups other hosts join and leave; see [`HostEvent::GroupListener`]. A host that cannot
    /// observe that reports nothing.
    ///
    /// # Errors
    /// The port cannot receive what other hosts report.
    fn watch_listeners(&mut self) -> Result<(), Self::Error>;

    /// Joins a multicast group on the network. A group that was joined already stays so.
    ///
    /// # Errors
    /// The port may not pass the group's frames. It counts as joined nevertheless.
    fn join_group(&mut self, now: Instant, group: IpAddr) -> Result<(), Self::Error>;

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// The port's filter could not be changed. It counts as left nevertheless.
    fn leave_group(&mut self, now: Instant, group: IpAddr) -> Result<(), Self::Error>;

    /// Reads bytes that arrived on a stream; 0 when there are none, or the stream is over.
    fn recv(&mut self, stream: Self::Stream, buffer: &mut [u8]) -> usize;

    /// Writes to a stream and returns how many bytes it took. What one call took leaves in segments of its own, where the
    /// host can arrange that: some clients read one message per call.
    fn send(&mut self, stream: Self::Stream, data: &[u8]) -> usize;

    /// Closes a stream after what was sent.
    fn close(&mut self, stream: Self::Stream);

    /// Resets a stream at once. No event follows.
    fn abort(&mut self, stream: Self::Stream);

    /// Number of TCP streams in any state.
    fn stream_count(&self) -> usize;

    /// Number of neighbours in any state; 0 where a kernel knows them.
    fn neighbour_count(&self) -> usize;

    /// Does what is due.
    fn poll(&mut self, now: Instant, output: &mut Self::Output);

    /// The next thing that happened.
    fn poll_event(&mut self) -> Option<HostEvent<Self::Stream>>;

    /// Sends a MAD from queue pair 1 to the peer's. False when `output` has no room: nothing was sent.
    #[must_use]
    fn send_mad(&mut self, output: &mut Self::Output, path: &MadPath, mad: &[u8; MAD_LEN]) -> bool;
}

/// Next hop of packets to an address; see [`IpHost::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Send now.
    Ready {
        /// The MAC of the destination, or of the router on the way. Zero from a host whose kernel knows it.
        mac: MacAddr,
        /// The address of ours to send from.
        source: IpAddr,
    },
    /// The search goes on: resolve again later.
    Pending,
    /// There is no route, no address of that family, or no answer.
    Unreachable,
}

/// Something that happened at a host; see [`IpHost::poll_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent<S> {
    /// A known neighbour has another MAC now. When the neighbour is a router, all paths through it changed.
    NeighbourChanged {
        /// The neighbour.
        ip: IpAddr,
        /// The new MAC address.
        mac: MacAddr,
    },
    /// Another host joined or left a multicast group; only after [`IpHost::watch_listeners`].
    GroupListener {
        /// The group.
        group: IpAddr,
        /// The other host's address.
        host: IpAddr,
        /// It joined; else it left.
        joined: bool,
    },
    /// Something happened to a TCP stream.
    Stream(StreamEvent<S>),
}

/// Event of a TCP stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent<S> {
    /// A peer connected to a port that we listen on.
    Opened {
        /// The new stream.
        stream: S,
        /// Our address and port.
        local: SocketAddr,
        /// The peer's.
        peer: SocketAddr,
    },
    /// Bytes arrived: read with [`IpHost::recv`] until it returns 0. Repeated when more arrive.
    Readable {
        /// The stream.
        stream: S,
    },
    /// The stream is over, and all its bytes were read unless it was reset. The last event of a stream.
    Closed {
        /// The stream.
        stream: S,
        /// Whether it ended by a reset (the peer's or ours) or because the peer stopped answering.
        reset: bool,
    },
}
