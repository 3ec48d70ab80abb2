//! What every IP host must answer on a port: ARP, IPv6 neighbour discovery, ping, and TCP for the side channels of
//! some clients.
//!
//! A [`Host`] is one port's IP stack without IO: frames come in with [`Host::handle_frame`], frames go out through a
//! [`TxQueue`], the time is an argument and randomness a seed. It takes the frames that are not RoCE and decides
//! nothing about those that are, except where they go: [`Host::resolve`] finds the MAC and source address for a peer,
//! and [`HostEvent::NeighbourChanged`] tells when a MAC moved.
//!
//! The layers, bottom up: `ethernet` (header and VLAN tag), `ip` (headers), `neighbour` and `route` (tables), `node`
//! (the four together), `arp`, `nd`, `igmp`, `mld` and `icmp` (protocols over a node), `listeners` (who else listens to groups), `tcp` over smoltcp, which sees bare IP
//! packets only: all addressing below IP is ours.
//!
//! What it does **not** do: fragments and IPv4 options (dropped), forwarding, DHCP, router advertisements, redirects,
//! duplicate address detection for its own addresses, path MTU discovery.
//!
//! Driving it: after frames were handled, and whenever [`Host::next_timeout`] has passed, call [`Host::poll`], then
//! take all events with [`Host::poll_event`].

mod arp;
mod checksum;
mod config;
mod device;
mod ethernet;
mod event;
mod groups;
mod icmp;
mod igmp;
mod ip;
mod listeners;
mod mld;
mod nd;
mod neighbour;
mod node;
mod route;
mod stats;
mod stream;
mod tcp;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, MacAddr, PortId, TxQueue};

pub use config::{Cidr, CidrParseError, HostConfig, HostConfigError, MAX_ADDRESSES, MIN_MTU, Route};
pub use event::{HostEvent, StreamEvent, TcpStreamId};
pub(crate) use route::group_macs;
pub use route::multicast_mac;
pub use stats::HostStats;
pub use tcp::ConnectError;

use ethernet::Ethernet;
use icmp::Unwanted;
use ip::Ip;
use node::Node;
use tcp::Tcp;

/// Where packets to an address go; see [`Host::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Send now.
    Ready {
        /// The MAC of the destination, or of the router on the way.
        mac: MacAddr,
        /// The address of ours to send from.
        source: IpAddr,
    },
    /// The MAC is being asked for: resolve again later. It takes at most three seconds to know.
    Pending,
    /// There is no route, no address of that family, or nobody answers. Who did not answer is asked again some
    /// seconds later, if still resolved then. Our own addresses are unreachable too: no port brings a frame back.
    Unreachable,
}

/// One port's IP stack. See the [module's](self) text.
pub struct Host {
    node: Node,
    tcp: Tcp,
}

impl Host {
    /// A host for `config`. It announces its addresses on the first [`Host::poll`].
    ///
    /// # Errors
    ///
    /// Configurations that contradict themselves or the rules of IP; see [`HostConfigError`].
    pub fn new(config: &HostConfig) -> Result<Host, HostConfigError> {
        config.check()?;
        let word = |n: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| config.seed[8 * n + byte]));
        // Cuts to what an IP id holds.
        let node = Node::new(config, word(0) as u16);
        Ok(Host { node, tcp: Tcp::new(config, word(1) ^ word(2), word(3)) })
    }

    /// Takes one received frame: anything but RoCE. Answers go out at once.
    ///
    /// # Errors
    ///
    /// Why the frame was dropped, for the caller to count. A datagram or segment that was refused with an ICMP message
    /// counts as dropped, one answered with a TCP reset does not.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], tx: &mut impl TxQueue) -> Result<(), DropReason> {
        let eth = self.node.link.receive(frame)?;
        if !matches!(eth.ethertype, ethernet::ARP | ethernet::IPV4 | ethernet::IPV6) {
            return Err(DropReason::UnknownEthertype);
        }
        if !self.node.accepts(&eth) {
            return Err(DropReason::ForeignMac);
        }
        let result = match eth.ethertype {
            ethernet::ARP => self.node.handle_arp(now, &eth, tx),
            ethernet::IPV4 => self.handle_ipv4(now, &eth, tx),
            _ => self.handle_ipv6(now, &eth, tx),
        };
        if std::mem::take(&mut self.node.resolved) {
            self.tcp.neighbours_resolved(now, &mut self.node, tx);
        }
        result
    }

    fn handle_ipv4(&mut self, now: Instant, eth: &Ethernet<'_>, tx: &mut impl TxQueue) -> Result<(), DropReason> {
        let ip = Ip::parse_v4(eth.payload)?;
        if ip.protocol == ip::IGMP {
            return igmp::handle(&mut self.node, now, &ip);
        }
        self.node.check_v4(&ip, eth)?;
        match ip.protocol {
            ip::ICMP => self.node.handle_icmp(eth, &ip, tx),
            ip::TCP => self.tcp.handle(now, &mut self.node, eth, &ip, tx),
            _ => self.refuse(now, eth, &ip, tx),
        }
    }

    fn handle_ipv6(&mut self, now: Instant, eth: &Ethernet<'_>, tx: &mut impl TxQueue) -> Result<(), DropReason> {
        let mut ip = Ip::parse_v6(eth.payload)?;
        let to_us_alone = self.node.check_v6(&ip)?;
        if ip.protocol == ip::HOP_BY_HOP {
            ip = mld::strip_router_alert(&ip).ok_or(DropReason::IpOptions)?;
        }
        match ip.protocol {
            ip::ICMPV6 => self.node.handle_icmpv6(now, eth, &ip, tx),
            _ if !to_us_alone || eth.dst.is_multicast() => Err(DropReason::ForeignAddress),
            _ if ip.pair.src().is_unspecified() => Err(DropReason::IpHeaderMalformed),
            ip::TCP => self.tcp.handle(now, &mut self.node, eth, &ip, tx),
            _ => self.refuse(now, eth, &ip, tx),
        }
    }

    /// Refuses what nothing here listens to.
    fn refuse(
        &mut self,
        now: Instant,
        eth: &Ethernet<'_>,
        ip: &Ip<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let unwanted = if ip.protocol == ip::UDP {
            let claimed = ip.payload.get(4..6).map_or(0, |len| usize::from(u16::from_be_bytes([len[0], len[1]])));
            if claimed < 8 || claimed > ip.payload.len() {
                return Err(DropReason::UdpLengthMismatch);
            }
            Unwanted::Port
        } else {
            Unwanted::Protocol
        };
        self.node.send_unreachable(now, eth, ip, unwanted, tx);
        Err(DropReason::HostUnsupported)
    }

    /// Does what is due: announcements, questions for neighbours, TCP's timers and what services gave it to send.
    /// Cheap when nothing is.
    pub fn poll(&mut self, now: Instant, tx: &mut impl TxQueue) {
        if self.node.next_timeout().is_some_and(|at| at <= now) {
            self.node.poll(now, tx);
        }
        self.tcp.poll(now, &mut self.node, tx);
    }

    /// When [`Host::poll`] has something to do next; a time that has passed means now.
    pub fn next_timeout(&self) -> Option<Instant> {
        [self.node.next_timeout(), self.tcp.next_timeout()].into_iter().flatten().min()
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        self.node.events.pop_front().or_else(|| self.tcp.poll_event().map(HostEvent::Stream))
    }

    /// Announces our addresses again, on the next [`Host::poll`]: for a link that came back.
    pub fn announce(&mut self, now: Instant) {
        self.node.announce(now);
    }

    /// The port that frames go out by.
    pub fn port(&self) -> PortId {
        self.node.link.port
    }

    /// Our MAC address.
    pub fn mac(&self) -> MacAddr {
        self.node.link.mac
    }

    /// Tag control information of our VLAN.
    pub fn vlan(&self) -> Option<u16> {
        self.node.link.vlan
    }

    /// Largest IP packet, in bytes.
    pub fn mtu(&self) -> u16 {
        self.node.mtu
    }

    /// Whether `ip` is ours, the link-local address included.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.node.routing.owns(ip)
    }

    /// Whether `ip` is in a network of ours.
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        self.node.routing.is_on_link(ip)
    }

    /// Whether there is a way to `ip`: it is in a network of ours, or there is a route.
    pub fn has_route(&self, ip: IpAddr) -> bool {
        self.node.routing.next_hop(ip).is_some()
    }

    /// Whether `ip` is a broadcast address, of a network of ours or of all.
    pub fn is_broadcast(&self, ip: IpAddr) -> bool {
        matches!(ip, IpAddr::V4(v4) if self.node.routing.is_broadcast(v4))
    }

    /// Our addresses, in the order of the configuration; the link-local one comes last.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.node.routing.addresses()
    }

    /// The group MACs that the port must let in besides our own and broadcast. They change when a group is joined or
    /// left.
    pub fn multicast_macs(&self) -> &[MacAddr] {
        self.node.multicast_macs()
    }

    /// Joins a multicast group: tells routers and switches, on the next [`Host::poll`], and answers when they ask.
    /// Frames to the group that are not RoCE are dropped as before. Returns whether that is new; what is no group is not.
    pub fn join_group(&mut self, now: Instant, group: IpAddr) -> bool {
        self.node.join_group(now, group)
    }

    /// Leaves a multicast group that was joined; returns whether it was.
    pub fn leave_group(&mut self, now: Instant, group: IpAddr) -> bool {
        self.node.leave_group(now, group)
    }

    /// Reports from now on, as [`HostEvent::Listener`], which IPv4 multicast groups other hosts begin or cease to listen to,
    /// by IGMP of all versions. Reports of versions 1 and 2 go to the groups themselves: of those only what the port lets
    /// in is heard. Groups of the link's own protocols (224.0.0.0/24) are left out.
    pub fn watch_listeners(&mut self) {
        self.node.watch_listeners();
    }

    /// Counters; readable from any thread.
    pub fn stats(&self) -> &Arc<HostStats> {
        &self.node.stats
    }

    /// Finds the MAC and source address for packets to `dst`, by longest prefix over our networks, routes and default
    /// routers. Asks for a MAC that is not known; groups and broadcast addresses have theirs by rule.
    pub fn resolve(&mut self, now: Instant, dst: IpAddr) -> Resolution {
        self.node.resolve(now, dst)
    }

    /// The neighbour through which packets to `dst` go: the router, or `dst` itself where it is on the link or there is no
    /// route. It is the same for as long as the host lives, as routes are configured.
    pub fn next_hop(&self, dst: IpAddr) -> IpAddr {
        self.node.routing.next_hop(dst).unwrap_or(dst)
    }

    /// Whether two addresses are those of one station: the same, or both on the link at one MAC. What is behind a router
    /// has the router's, which says nothing.
    pub fn same_station(&mut self, now: Instant, a: IpAddr, b: IpAddr) -> bool {
        if a == b {
            return true;
        }
        if !self.is_on_link(a) || !self.is_on_link(b) || self.next_hop(a) != a || self.next_hop(b) != b {
            return false;
        }
        match (self.resolve(now, a), self.resolve(now, b)) {
            (Resolution::Ready { mac: a, .. }, Resolution::Ready { mac: b, .. }) => a == b,
            _ => false,
        }
    }

    /// Takes note that a packet from `ip` which the caller trusts (a connection manager's message) came from `mac`.
    /// It fills a gap in the neighbour table; where another MAC is known, the neighbour is asked which one is right.
    /// For a peer beyond our networks the MAC is used only when there is no route to it.
    pub fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        self.node.learn(now, ip, mac);
    }

    /// Neighbours in the table, those being asked for included.
    pub fn neighbour_count(&self) -> usize {
        self.node.neighbours.len()
    }

    /// Accepts TCP streams to `port`, on all our addresses.
    pub fn listen(&mut self, port: u16) {
        self.tcp.listen(port);
    }

    /// Accepts no more streams to `port`; those that are open stay.
    pub fn unlisten(&mut self, port: u16) {
        self.tcp.unlisten(port);
    }

    /// Opens a stream to `peer`. [`StreamEvent::Opened`] or [`StreamEvent::Closed`] follows.
    ///
    /// # Errors
    ///
    /// No route to the peer, or no room for a stream.
    pub fn connect(&mut self, now: Instant, peer: SocketAddr) -> Result<TcpStreamId, ConnectError> {
        self.tcp.connect(now, &mut self.node, peer)
    }

    /// Reads bytes that arrived; 0 when there are none, or the stream is over.
    pub fn recv(&mut self, stream: TcpStreamId, buffer: &mut [u8]) -> usize {
        self.tcp.recv(stream, buffer)
    }

    /// Gives `data` to a stream and returns how many bytes it took: all, if they fit the room left of 64 KiB.
    ///
    /// What one call took is one message: its bytes go out (on the next [`Host::poll`]) in segments of their own, in
    /// one when they fit. Clients that read a message with one call and count on getting all of it need that.
    pub fn send(&mut self, stream: TcpStreamId, data: &[u8]) -> usize {
        self.tcp.send(stream, data)
    }

    /// How many bytes [`Host::send`] takes now.
    pub fn send_room(&self, stream: TcpStreamId) -> usize {
        self.tcp.send_room(stream)
    }

    /// Ends a stream in good order: what was sent goes out first, what arrives from now on is thrown away.
    /// [`StreamEvent::Closed`] follows when the peer has closed too, at the latest after half a minute.
    pub fn close(&mut self, stream: TcpStreamId) {
        self.tcp.close(stream);
    }

    /// Ends a stream with a reset, at once. No event follows.
    pub fn abort(&mut self, stream: TcpStreamId) {
        self.tcp.abort(stream);
    }

    /// TCP streams in any state, those in TIME-WAIT included.
    pub fn stream_count(&self) -> usize {
        self.tcp.len()
    }
}
