//! One IP interface: link, addresses, routes, neighbour table and output. It knows no protocol: `arp` and `nd` feed the
//! neighbour table and send the solicitations that it schedules; all protocols send through it.

mod filter;
pub(super) mod link;
pub(super) mod neighbour;
mod route;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, MacAddr, PrefixList, TxQueue};

use super::HostStats;
use super::config::HostConfig;
use super::conflict::Conflicts;
use super::event::{EventQueue, HostEvent};
use super::ip::{AddrPair, IpHeader, IpPacket};
use super::no_route::NoRoute;
use filter::GroupFilter;
use link::{EthFrame, Link};
use neighbour::{Evidence, Lookup, Neighbours, Update};
use route::Routing;
use rxe_adapter::multicast::multicast_mac;

/// Next hop of packets to an address; see [`Host::resolve`](super::Host::resolve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Send now.
    Ready {
        /// The MAC address of the destination, or of the router to it.
        mac: MacAddr,
        /// Our address to send from.
        source: IpAddr,
    },
    /// The MAC address is being resolved: call again later. It takes three seconds at most.
    Pending,
    /// There is no route, no address of that family, or the neighbour does not answer. A neighbour that did not answer is
    /// solicited again some seconds later, on the next call. Our own addresses are unreachable too: no port loops a
    /// frame back.
    Unreachable,
}

/// Link, addresses, routes, neighbours and output of one port.
pub(super) struct Interface {
    pub(super) link: Link,
    /// Largest IP packet, in bytes.
    pub(super) mtu: u16,
    pub(super) routing: Routing,
    pub(super) neighbours: Neighbours,
    /// Other stations that use our addresses.
    pub(super) conflicts: Conflicts,
    /// Events about neighbours and listeners, for the host's user.
    pub(super) events: EventQueue,
    filter: GroupFilter,
    no_route: NoRoute,
    /// `None` serves everyone.
    pub(super) peers: Option<PrefixList>,
    stats: Arc<HostStats>,
    /// A neighbour's MAC address became known since the last [`take_resolved`](Self::take_resolved).
    resolved: bool,
    ip_id: u16,
}

impl Interface {
    /// `ip_id` is the identification of the first IPv4 packet.
    pub(super) fn new(config: &HostConfig, ip_id: u16, stats: Arc<HostStats>) -> Interface {
        let routing = Routing::new(config);
        Interface {
            link: Link { port: config.port, mac: config.mac, vlan: config.vlan },
            mtu: config.mtu,
            filter: GroupFilter::new(routing.multicast_macs()),
            conflicts: Conflicts::new(routing.addresses(), Arc::clone(&stats)),
            routing,
            peers: config.peers.clone(),
            neighbours: Neighbours::new(config.max_neighbours.max(1)),
            events: EventQueue::default(),
            no_route: NoRoute::new(),
            stats,
            resolved: false,
            ip_id,
        }
    }

    /// Replaces the addresses and routes by those of `config`.
    pub(super) fn set_routing(&mut self, config: &HostConfig) {
        self.routing = Routing::new(config);
        self.filter.set_own(self.routing.multicast_macs());
        self.conflicts.set_addresses(self.routing.addresses());
    }

    // --- input ---

    /// Whether a frame is for us, by its MAC addresses.
    pub(super) fn accepts(&self, eth: &EthFrame<'_>) -> bool {
        let for_us = eth.dst == self.link.mac
            || eth.dst == MacAddr::BROADCAST
            || (eth.dst.is_multicast() && self.filter.accepts(eth));
        for_us && !eth.src.is_multicast() && eth.src != self.link.mac
    }

    /// Whether a received IPv4 packet is addressed to us alone: no other is answered.
    pub(super) fn check_v4(&self, ip: &IpPacket<'_>, eth: &EthFrame<'_>) -> Result<(), DropReason> {
        if !self.routing.owns(ip.pair.dst()) || eth.dst.is_multicast() {
            return Err(DropReason::ForeignAddress);
        }
        self.check_source(ip.pair.src())
    }

    /// Whether a received IPv6 packet is addressed to us or to a group of ours. Returns whether to us alone.
    pub(super) fn check_v6(&self, ip: &IpPacket<'_>) -> Result<bool, DropReason> {
        let AddrPair::V6 { dst, .. } = ip.pair else { return Err(DropReason::IpHeaderMalformed) };
        let ours = self.routing.owns(dst.into());
        if ours || self.routing.listens_to(dst) || self.joined(dst.into()) {
            Ok(ours)
        } else {
            Err(DropReason::ForeignAddress)
        }
    }

    /// Refuses a packet whose source is one of our addresses or a broadcast address.
    pub(super) fn check_source(&self, src: IpAddr) -> Result<(), DropReason> {
        let broadcast = matches!(src, IpAddr::V4(v4) if self.routing.is_broadcast(v4));
        if broadcast || self.routing.owns(src) { Err(DropReason::IpHeaderMalformed) } else { Ok(()) }
    }

    /// Refuses a packet from an address that is not among the allowed peers.
    pub(super) fn check_peer(&self, ip: &IpPacket<'_>) -> Result<(), DropReason> {
        match &self.peers {
            Some(peers) if !peers.contains(ip.pair.src().into()) => Err(DropReason::PeerNotAllowed),
            _ => Ok(()),
        }
    }

    // --- output ---

    /// The identification of the next IPv4 packet.
    pub(super) fn next_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1).max(1);
        self.ip_id
    }

    /// Room for a packet with `len` bytes of payload, its header written.
    pub(super) fn push_ip<'t>(
        &mut self,
        tx: &'t mut impl TxQueue,
        to: MacAddr,
        header: IpHeader,
        len: usize,
    ) -> Result<&'t mut [u8], DropReason> {
        let id = self.next_id();
        let packet =
            self.link.push(tx, to, header.pair.ethertype(), header.len() + len).ok_or(DropReason::NoTransmitRoom)?;
        Ok(header.emit(packet, id))
    }

    /// The MAC address and source address of packets to `dst`.
    pub(super) fn resolve(&mut self, now: Instant, dst: IpAddr) -> Resolution {
        let group_mac = match dst {
            IpAddr::V4(ip) if self.routing.is_broadcast(ip) => Some(MacAddr::BROADCAST),
            _ => multicast_mac(dst),
        };
        if let Some(mac) = group_mac {
            let source = self.routing.source(dst, dst);
            return source.map_or(Resolution::Unreachable, |source| Resolution::Ready { mac, source });
        }
        if dst.is_unspecified() || self.routing.owns(dst) {
            return Resolution::Unreachable;
        }
        let next_hop = self.routing.next_hop(dst);
        let Some(source) = self.routing.source(dst, next_hop.unwrap_or(dst)) else { return Resolution::Unreachable };
        let evicted = self.neighbours.evicted();
        let lookup = match next_hop {
            Some(next_hop) => self.neighbours.lookup(now, next_hop),
            // No route: only a MAC address learned from a trusted packet.
            None if self.neighbours.peek(dst).is_some() => self.neighbours.lookup(now, dst),
            None => Lookup::Failed,
        };
        self.stats.neighbours_evicted.add(self.neighbours.evicted() - evicted);
        match lookup {
            Lookup::Ready(mac) => Resolution::Ready { mac, source },
            Lookup::Pending => Resolution::Pending,
            Lookup::Failed => Resolution::Unreachable,
        }
    }

    /// A peer requests a connection. Without a route to it, counts that, and names the peer in the log once.
    pub(super) fn note_peer(&mut self, now: Instant, peer: IpAddr) {
        if self.routing.next_hop(peer).is_some() {
            return;
        }
        self.stats.no_route.inc();
        if self.no_route.is_news(now, peer) {
            tracing::warn!(
                %peer, port = self.link.port.0,
                "a connection request comes from an address that is in no network of the port, and there is no route to it: name its \
                 router with --gateway, or with --route (gateways or routes of [[port]])"
            );
        }
    }

    // --- neighbours ---

    /// Updates the neighbour table. Addresses of ours, and those that no neighbour can have, are ignored.
    pub(super) fn update_neighbour(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, evidence: Evidence) -> Update {
        let impossible = matches!(ip, IpAddr::V4(v4) if self.routing.is_broadcast(v4));
        if impossible
            || ip.is_unspecified()
            || ip.is_multicast()
            || ip.is_loopback()
            || self.routing.owns(ip)
            || mac.is_multicast()
            || mac == MacAddr::default()
        {
            return Update::Ignored;
        }
        if evidence != Evidence::TrustedRemote && !self.routing.is_on_link(ip) {
            return Update::Ignored;
        }
        let evicted = self.neighbours.evicted();
        let update = self.neighbours.update(now, ip, mac, evidence);
        self.stats.neighbours_evicted.add(self.neighbours.evicted() - evicted);
        match update {
            Update::Learned => {
                self.stats.neighbours_learned.inc();
                self.resolved = true;
            }
            Update::Changed => {
                self.stats.neighbours_changed.inc();
                self.resolved = true;
                self.events.push(HostEvent::NeighbourChanged { ip, mac });
            }
            Update::Locked => self.stats.neighbours_locked.inc(),
            Update::Refused => self.stats.neighbours_refused.inc(),
            Update::Ignored | Update::Confirmed => {}
        }
        update
    }

    /// Learns from a trusted packet from `ip` that arrived from `mac`.
    pub(super) fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        match self.routing.next_hop(ip) {
            // compliance.md [HOST-PEER-MAC]: A MAC learned from a peer's REQ fills a gap and replaces nothing that a
            // neighbour said.
            Some(next_hop) if next_hop == ip => {
                self.update_neighbour(now, ip, mac, Evidence::Trusted);
            }
            // The MAC address is some router's; our routes decide which router we use.
            Some(_) => {}
            None => {
                self.update_neighbour(now, ip, mac, Evidence::TrustedRemote);
            }
        }
    }

    /// Expires entries of the neighbour table.
    pub(super) fn expire_neighbours(&mut self, now: Instant) {
        self.stats.neighbours_failed.add(self.neighbours.expire(now));
    }

    /// Whether a neighbour's MAC address became known since the last call.
    pub(super) fn take_resolved(&mut self) -> bool {
        std::mem::take(&mut self.resolved)
    }

    // --- multicast groups ---

    /// The MAC addresses of all groups that the port must accept.
    pub(super) fn multicast_macs(&self) -> &[MacAddr] {
        self.filter.macs()
    }

    /// Whether a service has joined `group`.
    pub(super) fn joined(&self, group: IpAddr) -> bool {
        self.filter.contains(group)
    }

    /// Returns whether the group is new.
    pub(super) fn join(&mut self, group: IpAddr) -> bool {
        let new = self.filter.join(group);
        self.stats.groups_joined.add(new.into());
        new
    }

    /// Returns whether the group was joined.
    pub(super) fn leave(&mut self, group: IpAddr) -> bool {
        let known = self.filter.leave(group);
        self.stats.groups_left.add(known.into());
        known
    }

    /// Accepts reports about IPv4 groups from now on, also those sent to `groups`.
    pub(super) fn watch_reports(&mut self, groups: &[Ipv4Addr]) {
        self.filter.watch_reports(groups);
    }
}
