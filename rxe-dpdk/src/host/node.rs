//! What ARP, ND, ICMP and TCP share: the link, our addresses, the neighbours and the way out.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use rxe_proto::wire::{DropReason, MacAddr, TxQueue};
use rxe_proto::{Duration, Instant};

use super::config::HostConfig;
use super::ethernet::{self, Ethernet, Link};
use super::event::HostEvent;
use super::groups::{Groups, Record};
use super::igmp::{ALL_HOSTS, Igmp, REPORTS_TO};
use super::ip::{ICMPV6, Ip, IpHeader, Pair};
use super::listeners::{Listeners, News};
use super::neighbour::{Evidence, Lookup, Neighbours, Update};
use super::route::{ALL_NODES, Routing, group_macs, multicast_mac, multicast_mac_v4, solicited_node};
use super::stats::HostStats;
use super::{Resolution, nd};

/// Most events about neighbours and listeners that wait; they are hints, the oldest goes first.
const MAX_EVENTS: usize = 256;

/// What the MACs of all IPv4 groups begin with.
const GROUP_V4: [u8; 3] = [0x01, 0x00, 0x5E];

/// Rounds of announcements at start, and the time between them (RFC 5227 section 2.3 for ARP).
const ANNOUNCE_ROUNDS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// At least so long from one defence of an address, or one warning about it, to the next (RFC 5227 section 2.4).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Announcements that are still to be made.
struct Announcing {
    at: Instant,
    rounds: u8,
    /// Addresses of this round that were announced already.
    done: usize,
}

/// Lets an action happen `per_second` times a second on average, and as often in a burst.
pub(super) struct RateLimit {
    per_second: u32,
    tokens: u32,
    refilled: Instant,
}

impl RateLimit {
    pub(super) fn new(per_second: u32) -> RateLimit {
        RateLimit { per_second, tokens: per_second, refilled: Instant::ZERO }
    }

    /// Whether the action may happen once more.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        let fresh = now.saturating_since(self.refilled).as_nanos() * u128::from(self.per_second) / 1_000_000_000;
        if fresh > 0 {
            self.tokens = self.per_second.min(self.tokens.saturating_add(u32::try_from(fresh).unwrap_or(u32::MAX)));
            self.refilled = now;
        }
        let allowed = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        allowed
    }
}

pub(super) struct Node {
    pub(super) link: Link,
    pub(super) mtu: u16,
    pub(super) routing: Routing,
    pub(super) neighbours: Neighbours,
    pub(super) stats: Arc<HostStats>,
    pub(super) events: VecDeque<HostEvent>,
    /// Messages about what nobody here wants.
    pub(super) unreachable_limit: RateLimit,
    /// A neighbour became known since this was last cleared: whoever waits for one should look again.
    pub(super) resolved: bool,
    /// What is to be told of our IPv4 groups.
    pub(super) igmp: Igmp,
    /// What is to be told of our IPv6 groups, those of our addresses among them.
    pub(super) mld: Groups<Ipv6Addr>,
    /// Who else listens to groups, where somebody wants to know.
    pub(super) listeners: Option<Listeners>,
    /// The groups that services have joined.
    groups: BTreeSet<IpAddr>,
    /// The MACs of all groups that we are in.
    multicast_macs: Vec<MacAddr>,
    ip_id: u16,
    announcing: Option<Announcing>,
    defended: Option<Instant>,
}

impl Node {
    pub(super) fn new(config: &HostConfig, ip_id: u16) -> Node {
        let routing = Routing::new(config);
        Node {
            link: Link { port: config.port, mac: config.mac, vlan: config.vlan },
            mtu: config.mtu,
            mld: Groups::new(routing.addresses_v6().map(solicited_node), Some(Instant::ZERO)),
            igmp: Igmp::new(),
            listeners: None,
            groups: BTreeSet::new(),
            multicast_macs: routing.multicast_macs().to_vec(),
            routing,
            neighbours: Neighbours::new(config.max_neighbours.max(1)),
            stats: Arc::default(),
            events: VecDeque::new(),
            unreachable_limit: RateLimit::new(100),
            resolved: false,
            ip_id,
            announcing: Some(Announcing { at: Instant::ZERO, rounds: ANNOUNCE_ROUNDS, done: 0 }),
            defended: None,
        }
    }

    /// Whether a frame is for us, by its MAC addresses.
    pub(super) fn accepts(&self, eth: &Ethernet<'_>) -> bool {
        let for_us = eth.dst == self.link.mac
            || eth.dst == MacAddr::BROADCAST
            || (eth.dst.is_multicast() && self.multicast_macs.contains(&eth.dst))
            || (self.listeners.is_some() && eth.ethertype == ethernet::IPV4 && eth.dst.0.starts_with(&GROUP_V4));
        for_us && !eth.src.is_multicast() && eth.src != self.link.mac
    }

    pub(super) fn multicast_macs(&self) -> &[MacAddr] {
        &self.multicast_macs
    }

    /// Whether a service has joined `group`.
    pub(super) fn joined(&self, group: IpAddr) -> bool {
        self.groups.contains(&group)
    }

    pub(super) fn join_group(&mut self, now: Instant, group: IpAddr) -> bool {
        if !group.is_multicast() || !self.groups.insert(group) {
            return false;
        }
        match group {
            IpAddr::V4(ip) if ip != ALL_HOSTS => self.igmp.groups.join(now, ip),
            IpAddr::V6(ip) if self.is_reported(ip) => self.mld.join(now, ip),
            _ => {}
        }
        self.stats.groups_joined.inc();
        self.follow_groups();
        true
    }

    pub(super) fn leave_group(&mut self, now: Instant, group: IpAddr) -> bool {
        if !self.groups.remove(&group) {
            return false;
        }
        match group {
            IpAddr::V4(ip) if ip != ALL_HOSTS => self.igmp.groups.leave(now, ip),
            IpAddr::V6(ip) if self.is_reported(ip) => self.mld.leave(now, ip),
            _ => {}
        }
        self.stats.groups_left.inc();
        self.follow_groups();
        true
    }

    /// Whether routers hear of a group when a service joins or leaves it. Not of those that everybody is in, that do
    /// not leave the host, or that we are in for our addresses' sake.
    fn is_reported(&self, group: Ipv6Addr) -> bool {
        let interface_local = group.segments()[0] & 0xF <= 1;
        group != ALL_NODES && !interface_local && !self.routing.listens_to(group)
    }

    /// See [`Host::watch_listeners`](super::Host::watch_listeners).
    pub(super) fn watch_listeners(&mut self) {
        self.listeners.get_or_insert_with(Listeners::new);
        self.follow_groups();
    }

    /// Tells what a report of another host came to.
    pub(super) fn listener(&mut self, now: Instant, group: Ipv4Addr, host: Ipv4Addr, record: Record) {
        let Some(listeners) = &mut self.listeners else { return };
        let joined = match listeners.reported(now, group, host, record) {
            News::Nothing => return,
            News::Limited => return self.stats.listeners_limited.inc(),
            News::Joined => true,
            News::Left => false,
        };
        if joined {
            self.stats.listeners_joined.inc();
        } else {
            self.stats.listeners_left.inc();
        }
        self.tell(HostEvent::Listener { group, host, joined });
    }

    /// Keeps an event for whoever polls; the oldest goes when nobody does.
    fn tell(&mut self, event: HostEvent) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn follow_groups(&mut self) {
        let mut macs = self.routing.multicast_macs().to_vec();
        macs.extend(self.groups.iter().copied().flat_map(group_macs));
        // Where general queries go.
        if self.groups.iter().any(IpAddr::is_ipv4) {
            macs.extend(multicast_mac(ALL_HOSTS.into()));
        }
        if self.listeners.is_some() {
            macs.extend(REPORTS_TO.map(multicast_mac_v4));
        }
        macs.sort_by_key(|mac| mac.0);
        macs.dedup();
        self.multicast_macs = macs;
    }

    /// The identification of the next IPv4 packet.
    pub(super) fn next_id(&mut self) -> u16 {
        self.ip_id = self.ip_id.wrapping_add(1).max(1);
        self.ip_id
    }

    /// Room for a packet of `len` bytes of payload, its header written.
    pub(super) fn push_ip<'t>(
        &mut self,
        tx: &'t mut impl TxQueue,
        to: MacAddr,
        header: IpHeader,
        len: usize,
    ) -> Result<&'t mut [u8], DropReason> {
        let id = self.next_id();
        let packet = self
            .link
            .push(tx, to, header.pair.ethertype(), header.pair.header_len() + len)
            .ok_or(DropReason::NoTransmitRoom)?;
        Ok(header.emit(packet, id))
    }

    /// The MAC and source address for packets to `dst`.
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
        let lookup = match next_hop {
            Some(next_hop) => self.neighbours.lookup(now, next_hop),
            // No route: only what a trusted packet told.
            None if self.neighbours.peek(dst).is_some() => self.neighbours.lookup(now, dst),
            None => Lookup::Failed,
        };
        match lookup {
            Lookup::Ready(mac) => Resolution::Ready { mac, source },
            Lookup::Pending => Resolution::Pending,
            Lookup::Failed => Resolution::Unreachable,
        }
    }

    /// Takes note of a neighbour's MAC. Addresses that are ours, or that no neighbour can have, are not believed.
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
                self.tell(HostEvent::NeighbourChanged { ip, mac });
            }
            Update::Locked => self.stats.neighbours_locked.inc(),
            Update::Refused => self.stats.neighbours_refused.inc(),
            Update::Ignored | Update::Confirmed => {}
        }
        update
    }

    /// A trusted packet from `ip` came in from `mac`.
    pub(super) fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        match self.routing.next_hop(ip) {
            // [HOST-PEER-MAC]
            Some(next_hop) if next_hop == ip => {
                self.update_neighbour(now, ip, mac, Evidence::Trusted);
            }
            // The MAC is some router's; which router we use is for our routes to say.
            Some(_) => {}
            None => {
                self.update_neighbour(now, ip, mac, Evidence::TrustedRemote);
            }
        }
    }

    /// Another station claims our address `ip`: says so, and says whose it is, not too often.
    pub(super) fn conflict(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, tx: &mut impl TxQueue) {
        self.stats.address_conflicts.inc();
        if self.defended.is_some_and(|last| now.saturating_since(last) < DEFEND_INTERVAL) {
            return;
        }
        self.defended = Some(now);
        tracing::warn!(%ip, %mac, "another station claims our address");
        self.announce_one(ip, tx);
    }

    /// Announces all addresses anew: at start, and when the link came back.
    pub(super) fn announce(&mut self, now: Instant) {
        self.announcing = Some(Announcing { at: now, rounds: ANNOUNCE_ROUNDS, done: 0 });
        self.mld.tell_all(now);
        self.igmp.groups.tell_all(now);
    }

    /// Sends what is due: announcements, listener reports, questions for neighbours.
    pub(super) fn poll(&mut self, now: Instant, tx: &mut impl TxQueue) {
        let stalled = self.poll_announcements(now, tx).is_none()
            || self.poll_mld(now, tx).is_none()
            || self.poll_igmp(now, tx).is_none();
        self.stats.neighbours_failed.add(self.neighbours.expire(now));
        if stalled {
            return;
        }
        for question in self.neighbours.questions(now) {
            let sent = match question.ip {
                IpAddr::V4(ip) => self.ask_arp(ip, question.to, tx),
                IpAddr::V6(ip) => nd::solicit(self, ip, question.to, tx),
            };
            if sent.is_none() {
                return;
            }
            self.neighbours.asked(now, question.ip);
        }
    }

    /// `None` when the port took no more.
    fn poll_announcements(&mut self, now: Instant, tx: &mut impl TxQueue) -> Option<()> {
        while let Some(Announcing { at, done, .. }) = self.announcing
            && at <= now
        {
            let next = self.routing.addresses().nth(done);
            if let Some(ip) = next {
                self.announce_one(ip, tx)?;
            }
            let count = self.routing.addresses().count();
            if let Some(announcing) = &mut self.announcing {
                announcing.done += 1;
                if announcing.done >= count {
                    announcing.rounds -= 1;
                    announcing.done = 0;
                    announcing.at = now + ANNOUNCE_INTERVAL;
                    if announcing.rounds == 0 {
                        self.announcing = None;
                    }
                }
            }
        }
        Some(())
    }

    fn announce_one(&mut self, ip: IpAddr, tx: &mut impl TxQueue) -> Option<()> {
        match ip {
            IpAddr::V4(ip) => self.announce_arp(ip, tx)?,
            IpAddr::V6(ip) => nd::announce(self, ip, tx)?,
        }
        self.stats.announcements_sent.inc();
        Some(())
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let announcing = self.announcing.as_ref().map(|a| a.at);
        [announcing, self.mld.next_timeout(), self.igmp.groups.next_timeout(), self.neighbours.next_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether a received IPv4 packet is addressed to us alone, which is all that we answer.
    pub(super) fn check_v4(&self, ip: &Ip<'_>, eth: &Ethernet<'_>) -> Result<(), DropReason> {
        let Pair::V4 { src, dst } = ip.pair else { return Err(DropReason::IpHeaderMalformed) };
        if !self.routing.owns(dst.into()) || eth.dst.is_multicast() {
            return Err(DropReason::ForeignAddress);
        }
        self.check_source(src.into(), self.routing.is_broadcast(src))
    }

    /// Whether a received IPv6 packet is addressed to us or to a group of ours. Returns whether to us alone. An ICMPv6
    /// packet may come from an address of ours: that is how another owner of it shows.
    pub(super) fn check_v6(&self, ip: &Ip<'_>) -> Result<bool, DropReason> {
        let Pair::V6 { src, dst } = ip.pair else { return Err(DropReason::IpHeaderMalformed) };
        let ours = self.routing.owns(dst.into());
        if !ours && !self.routing.listens_to(dst) && !self.joined(dst.into()) {
            return Err(DropReason::ForeignAddress);
        }
        if ip.protocol != ICMPV6 {
            self.check_source(src.into(), false)?;
        }
        Ok(ours)
    }

    /// Refuses packets that seem to come from ourselves or from everybody.
    pub(super) fn check_source(&self, src: IpAddr, is_broadcast: bool) -> Result<(), DropReason> {
        if is_broadcast || self.routing.owns(src) { Err(DropReason::IpHeaderMalformed) } else { Ok(()) }
    }
}

/// `0.0.0.0`: who has no address yet.
pub(super) const NOBODY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_limited() {
        let mut limit = RateLimit::new(10);
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        assert_eq!((0..100).filter(|_| limit.allow(at(5))).count(), 10);
        assert_eq!((0..100).filter(|_| limit.allow(at(205))).count(), 2);
        assert_eq!((0..1000).filter(|n| limit.allow(at(1000 + n))).count(), 16);
    }
}
