//! The IP host of a port: ARP, IPv6 neighbour discovery, ping, multicast membership, and TCP for the side channels of
//! some clients.
//!
//! A [`Host`] does no IO: frames come in with [`Host::handle_frame`] and leave through a [`TxQueue`], the time is an
//! argument, randomness a seed. It handles the frames that are not RoCE. For RoCE it only finds paths: [`Host::resolve`]
//! returns the MAC and source address for a peer, and [`HostEvent::NeighbourChanged`] reports a changed MAC address.
//!
//! # Structure
//!
//! `interface` has what all protocols share: the link, our addresses and routes, the neighbour table, output. It knows
//! none of them. Each protocol is a type that owns its state and takes the interface and a packet: `arp`, `nd`
//! (neighbour discovery), `icmp` (ping and "unreachable"), `igmp` and `mld` (multicast membership, both over `groups`),
//! `tcp` (over smoltcp, which sees bare IP packets: all addressing below IP is ours). `announce` schedules the
//! probes and announcements of our addresses, `conflict` detects other stations that use them; `addresses` changes them.
//! [`Host`] owns them all and dispatches: received packets in [`Host::handle_frame`], time in [`Host::poll`].
//!
//! Not supported: fragments and IPv4 options (dropped), forwarding, DHCP, router advertisements, redirects, path MTU
//! discovery.
//!
//! # Use
//!
//! After frames were handled, and whenever [`Host::next_timeout`] has passed, call [`Host::poll`], then take all events
//! with [`Host::poll_event`].

mod addresses;
mod announce;
mod arp;
mod config;
mod conflict;
mod event;
mod groups;
mod icmp;
mod igmp;
mod interface;
mod ip;
mod mld;
mod multicast;
mod nd;
mod no_route;
mod rate_limit;
mod tcp;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::wire::net::{Header, UDP_LEN, UdpHeader, ethertype};
use rxe_proto::wire::{DropReason, MacAddr, PortId, PrefixList, TxQueue};

pub use config::{HostConfig, HostConfigError, MAX_ADDRESSES, MIN_MTU};
pub use event::{HostEvent, StreamEvent, TcpStreamId};
pub use interface::Resolution;
pub use rxe_adapter::addressing::{AddressConflicts, Addressing, ConflictReports, Route};
pub use rxe_adapter::host_stats::HostStats;
pub use rxe_adapter::multicast::multicast_mac;
pub use tcp::ConnectError;

use announce::{Announcer, Step};
use arp::Arp;
use icmp::{Icmp, Unreachable};
use igmp::Igmp;
use interface::Interface;
use interface::link::EthFrame;
use ip::IpPacket;
use mld::Mld;
use nd::Nd;
use tcp::Tcp;

/// One port's IP host; see the [module](self).
pub struct Host {
    config: HostConfig,
    interface: Interface,
    announcer: Announcer,
    arp: Arp,
    nd: Nd,
    icmp: Icmp,
    igmp: Igmp,
    mld: Mld,
    tcp: Tcp,
    stats: Arc<HostStats>,
}

impl Host {
    /// A host for `config`. It probes its addresses from the first [`Host::poll`] on, then announces them, and uses
    /// them all the while.
    ///
    /// # Errors
    ///
    /// Configurations that contradict themselves or the rules of IP; see [`HostConfigError`].
    pub fn new(config: &HostConfig) -> Result<Host, HostConfigError> {
        config.check()?;
        let stats = Arc::<HostStats>::default();
        let word = |n: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| config.seed[8 * n + byte]));
        // An IPv4 id has 16 bits.
        let interface = Interface::new(config, word(0) as u16, Arc::clone(&stats));
        Ok(Host {
            announcer: Announcer::new(word(0)),
            arp: Arp::new(Arc::clone(&stats)),
            nd: Nd::new(Arc::clone(&stats)),
            icmp: Icmp::new(Arc::clone(&stats)),
            igmp: Igmp::new(Arc::clone(&stats)),
            mld: Mld::new(&interface, Arc::clone(&stats)),
            tcp: Tcp::new(config, word(1) ^ word(2), word(3), Arc::clone(&stats)),
            config: config.clone(),
            interface,
            stats,
        })
    }

    /// Handles one received frame, which is not RoCE. Answers are sent at once.
    ///
    /// # Errors
    ///
    /// Why the frame was dropped, for the caller to count. A datagram or segment refused with an ICMP message counts as
    /// dropped, one answered with a TCP reset does not.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], tx: &mut impl TxQueue) -> Result<(), DropReason> {
        let eth = self.interface.link.receive(frame)?;
        if !matches!(eth.ethertype, ethertype::ARP | ethertype::IPV4 | ethertype::IPV6) {
            return Err(DropReason::UnknownEthertype);
        }
        if !self.interface.accepts(&eth) {
            return Err(DropReason::ForeignMac);
        }
        let result = match eth.ethertype {
            ethertype::ARP => self.arp.handle(now, &mut self.interface, &eth, tx),
            ethertype::IPV4 => self.handle_ipv4(now, &eth, tx),
            _ => self.handle_ipv6(now, &eth, tx),
        };
        if self.interface.take_resolved() {
            self.tcp.neighbours_resolved(now, &mut self.interface, tx);
        }
        result
    }

    fn handle_ipv4(&mut self, now: Instant, eth: &EthFrame<'_>, tx: &mut impl TxQueue) -> Result<(), DropReason> {
        let ip = IpPacket::parse_v4(eth.payload)?;
        if ip.protocol == ip::IGMP {
            return self.igmp.handle(now, &mut self.interface, &ip);
        }
        self.interface.check_v4(&ip, eth)?;
        self.interface.check_peer(&ip)?;
        match ip.protocol {
            ip::ICMP => self.icmp.handle_v4(&mut self.interface, eth, &ip, tx),
            ip::TCP => self.tcp.handle(now, &mut self.interface, eth, &ip, tx),
            _ => self.refuse(now, eth, &ip, tx),
        }
    }

    fn handle_ipv6(&mut self, now: Instant, eth: &EthFrame<'_>, tx: &mut impl TxQueue) -> Result<(), DropReason> {
        let mut ip = IpPacket::parse_v6(eth.payload)?;
        let to_us_alone = self.interface.check_v6(&ip)?;
        // The source of an ICMPv6 message is checked by its type.
        if ip.protocol != ip::ICMPV6 {
            self.interface.check_source(ip.pair.src())?;
            self.interface.check_peer(&ip)?;
        }
        if ip.protocol == ip::HOP_BY_HOP {
            ip = mld::strip_router_alert(&ip).ok_or(DropReason::IpOptions)?;
        }
        match ip.protocol {
            ip::ICMPV6 => self.handle_icmpv6(now, eth, &ip, tx),
            _ if !to_us_alone || eth.dst.is_multicast() => Err(DropReason::ForeignAddress),
            _ if ip.pair.src().is_unspecified() => Err(DropReason::IpHeaderMalformed),
            ip::TCP => self.tcp.handle(now, &mut self.interface, eth, &ip, tx),
            _ => self.refuse(now, eth, &ip, tx),
        }
    }

    fn handle_icmpv6(
        &mut self,
        now: Instant,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let kind = icmp::check_v6(ip)?;
        // An advertisement from an address of ours reveals that another station claims it.
        if kind != nd::ADVERTISEMENT {
            self.interface.check_source(ip.pair.src())?;
        }
        match kind {
            nd::SOLICITATION => self.nd.handle_solicitation(now, &mut self.interface, eth, ip, tx),
            nd::ADVERTISEMENT => self.nd.handle_advertisement(now, &mut self.interface, eth, ip, tx),
            mld::QUERY => self.mld.handle_query(now, &self.interface, ip),
            _ => {
                self.interface.check_peer(ip)?;
                self.icmp.handle_v6(&mut self.interface, eth, ip, tx)
            }
        }
    }

    /// Refuses a packet of a protocol or to a UDP port that nothing here listens to.
    fn refuse(
        &mut self,
        now: Instant,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let unreachable = if ip.protocol == ip::UDP {
            let claimed = UdpHeader::split(ip.payload).map_or(0, |(udp, _)| usize::from(udp.len.get()));
            if claimed < UDP_LEN || claimed > ip.payload.len() {
                return Err(DropReason::UdpLengthMismatch);
            }
            Unreachable::Port
        } else {
            Unreachable::Protocol
        };
        self.icmp.send_unreachable(now, &mut self.interface, eth, ip, unreachable, tx);
        Err(DropReason::HostUnsupported)
    }

    /// Does what is due: probes, announcements, reports, solicitations, TCP's timers and output. Cheap when nothing is.
    pub fn poll(&mut self, now: Instant, tx: &mut impl TxQueue) {
        if self.interface_timeout().is_some_and(|at| at <= now) {
            // A switch that snoops MLD passes the answers to probes only to reported groups (RFC 4862 section 5.4.2).
            let sent = (self.mld.poll(now, &mut self.interface, tx))
                .and_then(|()| self.igmp.poll(now, &mut self.interface, tx))
                .and_then(|()| self.poll_announcements(now, tx));
            self.interface.expire_neighbours(now);
            if sent.is_some() {
                self.poll_neighbours(now, tx);
            }
        }
        self.tcp.poll(now, &mut self.interface, tx);
    }

    /// `None` when the port takes no more.
    fn poll_announcements(&mut self, now: Instant, tx: &mut impl TxQueue) -> Option<()> {
        let Host { announcer, interface, arp, nd, .. } = self;
        if announcer.next_timeout().is_none_or(|at| at > now) {
            return Some(());
        }
        let addresses: Vec<IpAddr> = interface.routing.addresses().collect();
        announcer.poll(now, &addresses, |ip, step| match (step, ip) {
            (Step::Probe, _) if !interface.conflicts.wants_probe(ip) => Some(()),
            (Step::Probe, IpAddr::V4(ip)) => arp.probe(interface, ip, tx),
            (Step::Probe, IpAddr::V6(ip)) => nd.probe(interface, ip, tx),
            (Step::Announce, _) if !interface.conflicts.wants_announcement(now, ip) => Some(()),
            (Step::Announce, IpAddr::V4(ip)) => arp.announce(interface, ip, tx),
            (Step::Announce, IpAddr::V6(ip)) => nd.announce(interface, ip, tx),
        })
    }

    /// Sends the solicitations that the neighbour table schedules.
    fn poll_neighbours(&mut self, now: Instant, tx: &mut impl TxQueue) {
        let interface = &mut self.interface;
        for due in interface.neighbours.due_solicitations(now) {
            let sent = match due.ip {
                IpAddr::V4(ip) => self.arp.solicit(interface, ip, due.to, tx),
                IpAddr::V6(ip) => self.nd.solicit(interface, ip, due.to, tx),
            };
            if sent.is_none() {
                return;
            }
            interface.neighbours.solicited(now, due.ip);
        }
    }

    /// When [`Host::poll`] has something to do next; a time in the past means now.
    pub fn next_timeout(&self) -> Option<Instant> {
        [self.interface_timeout(), self.tcp.next_timeout()].into_iter().flatten().min()
    }

    /// When one of the protocols below TCP has something to do.
    fn interface_timeout(&self) -> Option<Instant> {
        let timeouts = [
            self.announcer.next_timeout(),
            self.mld.next_timeout(),
            self.igmp.next_timeout(),
            self.interface.neighbours.next_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<HostEvent> {
        self.interface.events.pop().or_else(|| self.tcp.poll_event().map(HostEvent::Stream))
    }

    /// Changes the allowed peers; `None` for everyone.
    pub fn set_peers(&mut self, peers: Option<PrefixList>) {
        self.interface.peers = peers;
    }

    /// Probes and announces our addresses again, and reports our groups, from the next [`Host::poll`] on: for a link that
    /// came back.
    pub fn announce(&mut self, now: Instant) {
        self.announcer.restart(now);
        self.interface.conflicts.start_probing();
        self.mld.report_all(now);
        self.igmp.report_all(now);
    }

    /// The port by which frames leave.
    pub fn port(&self) -> PortId {
        self.interface.link.port
    }

    /// Our MAC address.
    pub fn mac(&self) -> MacAddr {
        self.interface.link.mac
    }

    /// Tag control information of our VLAN.
    pub fn vlan(&self) -> Option<u16> {
        self.interface.link.vlan
    }

    /// Largest IP packet, in bytes.
    pub fn mtu(&self) -> u16 {
        self.interface.mtu
    }

    /// Whether `ip` is ours, the link-local address included.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.interface.routing.owns(ip)
    }

    /// Whether `ip` is in a network of ours.
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        self.interface.routing.is_on_link(ip)
    }

    /// Whether `ip` is in a network of ours, or has a route.
    pub fn has_route(&self, ip: IpAddr) -> bool {
        self.interface.routing.next_hop(ip).is_some()
    }

    /// Whether `ip` is a broadcast address, of a network of ours or of all.
    pub fn is_broadcast(&self, ip: IpAddr) -> bool {
        matches!(ip, IpAddr::V4(v4) if self.interface.routing.is_broadcast(v4))
    }

    /// Our addresses, in the order of the configuration; the link-local one comes last.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.interface.routing.addresses()
    }

    /// Our addresses with their conflicts, in the same order; readable from any thread.
    pub fn conflicts(&self) -> &ConflictReports {
        self.interface.conflicts.reports()
    }

    /// The group MAC addresses that the port must accept besides its own and broadcast. They change when a group is
    /// joined or left.
    pub fn multicast_macs(&self) -> &[MacAddr] {
        self.interface.multicast_macs()
    }

    /// Joins a multicast group: reports the membership to routers and switches on the next [`Host::poll`] and answers
    /// their queries. Frames to the group that are not RoCE are dropped as before. Returns whether the group is new;
    /// false for an address that is not a multicast address.
    pub fn join_group(&mut self, now: Instant, group: IpAddr) -> bool {
        if !self.interface.join(group) {
            return false;
        }
        match group {
            IpAddr::V4(group) => self.igmp.join(now, group),
            IpAddr::V6(group) => self.mld.join(now, &self.interface, group),
        }
        true
    }

    /// Leaves a multicast group; returns whether it was joined.
    pub fn leave_group(&mut self, now: Instant, group: IpAddr) -> bool {
        if !self.interface.leave(group) {
            return false;
        }
        match group {
            IpAddr::V4(group) => self.igmp.leave(now, group),
            IpAddr::V6(group) => self.mld.leave(now, &self.interface, group),
        }
        true
    }

    /// Emits a [`HostEvent::Listener`] from now on when another host begins or ceases to listen to an IPv4 multicast group,
    /// as reported by IGMP of any version. Reports of versions 1 and 2 are sent to the groups themselves, so only those to
    /// groups that the port accepts are seen. Groups of the link's own protocols (224.0.0.0/24) are ignored.
    pub fn watch_listeners(&mut self) {
        self.igmp.watch_listeners(&mut self.interface);
    }

    /// Counters; readable from any thread.
    pub fn stats(&self) -> &Arc<HostStats> {
        &self.stats
    }

    /// The MAC and source address for packets to `dst`, by longest prefix over our networks, routes and default routers.
    /// Solicits an unknown MAC address; those of groups and broadcast addresses follow from the address.
    pub fn resolve(&mut self, now: Instant, dst: IpAddr) -> Resolution {
        self.interface.resolve(now, dst)
    }

    /// The next hop of packets to `dst`: the router, or `dst` itself when it is on the link or has no route. Constant, as
    /// routes are configured.
    pub fn next_hop(&self, dst: IpAddr) -> IpAddr {
        self.interface.routing.next_hop(dst).unwrap_or(dst)
    }

    /// Whether two addresses belong to one station: they are the same, or both are on the link at one MAC address. Hosts
    /// behind a router have the router's MAC address, so they are never one station.
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

    /// Learns that a packet from `ip` that the caller trusts (a connection manager's message) came from `mac`. This adds
    /// an unknown neighbour; where another MAC address is known, the neighbour is solicited to find which one is right.
    /// For a peer outside our networks the MAC address is used only when there is no route to it.
    pub fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        self.interface.learn(now, ip, mac);
    }

    /// A peer requests a connection. Without a route to it, counts that, and names the peer in the log once.
    pub fn note_peer(&mut self, now: Instant, peer: IpAddr) {
        self.interface.note_peer(now, peer);
    }

    /// Neighbours in the table, including those being resolved.
    pub fn neighbour_count(&self) -> usize {
        self.interface.neighbours.len()
    }

    /// Accepts TCP streams to `port`, on all our addresses.
    pub fn listen(&mut self, port: u16) {
        self.tcp.listen(port);
    }

    /// Accepts no more streams to `port`; open ones stay.
    pub fn unlisten(&mut self, port: u16) {
        self.tcp.unlisten(port);
    }

    /// Opens a stream to `peer`. [`StreamEvent::Opened`] or [`StreamEvent::Closed`] follows.
    ///
    /// # Errors
    ///
    /// No route to the peer, or no room for a stream.
    pub fn connect(&mut self, now: Instant, peer: SocketAddr) -> Result<TcpStreamId, ConnectError> {
        self.tcp.connect(now, &mut self.interface, peer)
    }

    /// Reads received bytes; 0 when there are none, or the stream has ended.
    pub fn recv(&mut self, stream: TcpStreamId, buffer: &mut [u8]) -> usize {
        self.tcp.recv(stream, buffer)
    }

    /// Queues `data` on a stream and returns the number of bytes taken: all that fit the free part of its 64 KiB.
    ///
    /// The bytes of one call are one message: they leave (on the next [`Host::poll`]) in segments of their own, in one
    /// when they fit. Clients that read a whole message with one call depend on that.
    pub fn send(&mut self, stream: TcpStreamId, data: &[u8]) -> usize {
        self.tcp.send(stream, data)
    }

    /// Bytes that [`Host::send`] takes now.
    pub fn send_room(&self, stream: TcpStreamId) -> usize {
        self.tcp.send_room(stream)
    }

    /// Closes a stream gracefully: queued bytes are sent first, bytes received from now on are discarded.
    /// [`StreamEvent::Closed`] follows when the peer has closed too, after half a minute at the latest.
    pub fn close(&mut self, stream: TcpStreamId) {
        self.tcp.close(stream);
    }

    /// Resets a stream at once. No event follows.
    pub fn abort(&mut self, stream: TcpStreamId) {
        self.tcp.abort(stream);
    }

    /// TCP streams in any state, including TIME-WAIT.
    pub fn stream_count(&self) -> usize {
        self.tcp.len()
    }
}
