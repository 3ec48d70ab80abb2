//! TCP over smoltcp: which segment belongs to which stream, and when each stream has its turn.
//!
//! smoltcp knows no listen queue: of several sockets that listen on a port, the first takes a SYN, and the SYN's
//! retransmission goes to the next one. So none of ours listens in advance: each first SYN from an endpoint gets a
//! socket, found again by the two endpoints. As every stream has a socket set of its own, work per segment does not
//! grow with the number of streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use rxe_proto::wire::{DropReason, TxQueue};
use rxe_proto::{Duration, Instant};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::wire::HardwareAddress;

use super::Resolution;
use super::config::HostConfig;
use super::device::{Outlet, PacketDevice, from_smoltcp, to_smoltcp};
use super::ethernet::{self, Ethernet};
use super::event::{StreamEvent, TcpStreamId};
use super::ip::{self, Ip};
use super::node::Node;
use super::stream::{Progress, Stream};

/// First port of those that our own connections come from (RFC 6335).
const FIRST_PORT: u16 = 49152;

/// How long a stream whose peer's MAC is not known waits before it asks again.
const UNRESOLVED_RETRY: Duration = Duration::from_secs(1);

/// How long a socket waits that has something to do and does not do it.
const IDLE_RETRY: Duration = Duration::from_millis(10);

/// Why a connection could not even be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No route, or no address of that family.
    #[error("there is no route to the peer")]
    NoRoute,
    /// No room for a stream, or no free port.
    #[error("there are too many streams")]
    NoRoom,
}

/// A place for a stream. The generation counts the streams that were there.
#[derive(Default)]
struct Slot {
    generation: u32,
    stream: Option<Box<Stream>>,
}

/// Local and remote endpoint.
type Endpoints = (SocketAddr, SocketAddr);

pub(super) struct Tcp {
    iface: Interface,
    /// For segments that belong to no stream: smoltcp answers them with a reset.
    nobody: SocketSet<'static>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    max_streams: usize,
    half_open: usize,
    by_endpoints: BTreeMap<Endpoints, u32>,
    listening: BTreeSet<u16>,
    outlet: Outlet,
    events: VecDeque<StreamEvent>,
    /// Streams to look at on the next poll.
    dirty: Vec<u32>,
    /// Not later than the first stream's next turn.
    wake: Option<Instant>,
    next_port: u16,
    mtu: u16,
    verify_checksums: bool,
}

/// What of a segment's header we look at ourselves.
struct Segment {
    local_port: u16,
    peer_port: u16,
    /// SYN without ACK: somebody wants to connect.
    is_first: bool,
}

impl Segment {
    /// Checks a segment so far that smoltcp need not say why it did not like it.
    fn parse(ip: &Ip<'_>, verify_checksum: bool, node: &Node) -> Result<Segment, DropReason> {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;

        let malformed = || {
            node.stats.tcp_malformed.inc();
            DropReason::HostUnsupported
        };
        let (header, _) = ip.payload.split_first_chunk::<20>().ok_or_else(malformed)?;
        let header_len = usize::from(header[12] >> 4) * 4;
        let peer_port = u16::from_be_bytes([header[0], header[1]]);
        let local_port = u16::from_be_bytes([header[2], header[3]]);
        if header_len < header.len() || header_len > ip.payload.len() || peer_port == 0 || local_port == 0 {
            return Err(malformed());
        }
        if ip.pseudo_header(ip::TCP).add(ip.payload).finish() != 0 {
            if verify_checksum {
                return Err(DropReason::HostChecksum);
            }
            node.stats.tcp_checksum_unfinished.inc();
        }
        Ok(Segment { local_port, peer_port, is_first: header[13] & (SYN | ACK) == SYN })
    }
}

impl Tcp {
    pub(super) fn new(config: &HostConfig, seed: u64, port_seed: u64) -> Tcp {
        let mut outlet = Outlet::default();
        let mut device = PacketDevice { received: None, staging: &mut outlet.staging, mtu: config.mtu };
        let mut smoltcp_config = Config::new(HardwareAddress::Ip);
        smoltcp_config.random_seed = seed;
        let mut iface = Interface::new(smoltcp_config, &mut device, to_smoltcp(Instant::ZERO));
        // Only packets to our addresses come this far, so smoltcp need not know them, nor limit their number.
        iface.set_any_ip(true);
        Tcp {
            iface,
            nobody: SocketSet::new(Vec::new()),
            slots: Vec::new(),
            free: Vec::new(),
            max_streams: config.max_streams.clamp(1, 1 << 16),
            half_open: 0,
            by_endpoints: BTreeMap::new(),
            listening: BTreeSet::new(),
            outlet,
            events: VecDeque::new(),
            dirty: Vec::new(),
            wake: None,
            // Cuts to the 14 bits that ports above the first have.
            next_port: FIRST_PORT | (port_seed as u16 & 0x3FFF),
            mtu: config.mtu,
            verify_checksums: config.verify_tcp_checksums,
        }
    }

    pub(super) fn listen(&mut self, port: u16) {
        if port != 0 {
            self.listening.insert(port);
        }
    }

    pub(super) fn unlisten(&mut self, port: u16) {
        self.listening.remove(&port);
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn poll_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.dirty.is_empty() { self.wake } else { Some(Instant::ZERO) }
    }

    /// A segment to one of our addresses.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        node: &mut Node,
        eth: &Ethernet<'_>,
        ip: &Ip<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let segment = Segment::parse(ip, self.verify_checksums, node)?;
        // smoltcp's answer needs the place.
        if !self.flush(node, tx) {
            return Err(DropReason::NoTransmitRoom);
        }
        let local = SocketAddr::new(ip.pair.dst(), segment.local_port);
        let peer = SocketAddr::new(ip.pair.src(), segment.peer_port);
        let mut index = self.by_endpoints.get(&(local, peer)).copied();
        if segment.is_first {
            if let Some(old) = index.filter(|&index| self.stream(index).is_some_and(|s| s.is_replaceable())) {
                self.detach(old);
                index = None;
            }
            if index.is_none() && self.listening.contains(&segment.local_port) {
                index = Some(self.accept(now, node, local, peer).ok_or(DropReason::HostUnsupported)?);
            }
        }
        self.outlet.to = eth.src;
        let mut device = PacketDevice { received: Some(ip.packet), staging: &mut self.outlet.staging, mtu: self.mtu };
        let stream = index.and_then(|index| self.slots.get_mut(index as usize)?.stream.as_deref_mut());
        if let Some(stream) = stream {
            self.iface.poll_ingress_single(to_smoltcp(now), &mut device, &mut stream.set);
        } else {
            self.iface.poll_ingress_single(to_smoltcp(now), &mut device, &mut self.nobody);
        }
        let answered = self.outlet.staging.packet().is_some();
        self.flush(node, tx);
        match index {
            Some(index) => {
                self.drive(now, index, node, tx);
                Ok(())
            }
            None if answered => {
                node.stats.tcp_refused.inc();
                Ok(())
            }
            None => Err(DropReason::HostUnsupported),
        }
    }

    /// Gives every stream its turn that wants one.
    pub(super) fn poll(&mut self, now: Instant, node: &mut Node, tx: &mut impl TxQueue) {
        for index in std::mem::take(&mut self.dirty) {
            self.drive(now, index, node, tx);
        }
        if self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        self.wake = None;
        for index in 0..self.slots.len() as u32 {
            let Some(stream) = self.stream(index) else { continue };
            let due = [stream.wake, stream.limit].into_iter().flatten().min();
            if due.is_some_and(|due| due <= now) {
                self.drive(now, index, node, tx);
            } else {
                self.wake_at(due);
            }
        }
        // Nobody may be due and yet a packet be left from before.
        if !self.flush(node, tx) {
            self.wake_at(Some(now));
        }
    }

    /// Some neighbour's MAC became known: whoever waits for one has its turn.
    pub(super) fn neighbours_resolved(&mut self, now: Instant, node: &mut Node, tx: &mut impl TxQueue) {
        for index in 0..self.slots.len() as u32 {
            if self.stream(index).is_some_and(|s| s.unresolved) {
                self.drive(now, index, node, tx);
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        now: Instant,
        node: &mut Node,
        peer: SocketAddr,
    ) -> Result<TcpStreamId, ConnectError> {
        let ip = peer.ip();
        let source = match node.resolve(now, ip) {
            Resolution::Ready { source, .. } => Some(source),
            _ => node.routing.next_hop(ip).and_then(|next_hop| node.routing.source(ip, next_hop)),
        };
        let source = source
            .filter(|_| peer.port() != 0 && !ip.is_multicast() && !node.routing.owns(ip))
            .ok_or(ConnectError::NoRoute)?;
        // Without flow label and scope: they are no part of a stream's name.
        let peer = SocketAddr::new(ip, peer.port());
        let local = (FIRST_PORT..=u16::MAX)
            .map(|_| {
                self.next_port = self.next_port.wrapping_add(1).max(FIRST_PORT);
                SocketAddr::new(source, self.next_port)
            })
            .find(|&local| !self.listening.contains(&local.port()) && !self.by_endpoints.contains_key(&(local, peer)))
            .ok_or(ConnectError::NoRoom)?;
        let index = self.insert(now, local, peer, false).ok_or(ConnectError::NoRoom)?;
        let stream = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.as_deref_mut());
        let stream = stream.ok_or(ConnectError::NoRoom)?;
        let id = stream.id;
        if stream.socket().connect(self.iface.context(), peer, local).is_err() {
            self.remove(index);
            return Err(ConnectError::NoRoute);
        }
        self.mark_dirty(index);
        Ok(id)
    }

    pub(super) fn recv(&mut self, id: TcpStreamId, buffer: &mut [u8]) -> usize {
        let Some(stream) = self.stream_by_id(id) else { return 0 };
        let n = stream.recv(buffer);
        // The window opened, or the last byte before the end was read.
        self.mark_dirty(id.index);
        n
    }

    pub(super) fn send(&mut self, id: TcpStreamId, data: &[u8]) -> usize {
        let Some(stream) = self.stream_by_id(id) else { return 0 };
        let n = stream.send(data);
        self.mark_dirty(id.index);
        n
    }

    pub(super) fn send_room(&self, id: TcpStreamId) -> usize {
        self.stream(id.index).filter(|s| s.id == id).map_or(0, Stream::send_room)
    }

    pub(super) fn close(&mut self, id: TcpStreamId) {
        if let Some(stream) = self.stream_by_id(id) {
            stream.close();
            self.mark_dirty(id.index);
        }
    }

    pub(super) fn abort(&mut self, id: TcpStreamId) {
        if let Some(stream) = self.stream_by_id(id) {
            stream.abort();
            self.mark_dirty(id.index);
        }
    }

    fn stream(&self, index: u32) -> Option<&Stream> {
        self.slots.get(index as usize)?.stream.as_deref()
    }

    fn stream_by_id(&mut self, id: TcpStreamId) -> Option<&mut Stream> {
        self.slots.get_mut(id.index as usize)?.stream.as_deref_mut().filter(|s| s.id == id)
    }

    fn mark_dirty(&mut self, index: u32) {
        if let Some(stream) = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.as_deref_mut())
            && !std::mem::replace(&mut stream.dirty, true)
        {
            self.dirty.push(index);
        }
    }

    fn wake_at(&mut self, at: Option<Instant>) {
        self.wake = [self.wake, at].into_iter().flatten().min();
    }

    /// A stream for a peer's SYN. At most half of the places are for half-open streams, and when these are used the
    /// oldest one makes room: a peer that is there answers within a round trip, so that SYNs from forged addresses
    /// do not close a port. One source has at most half of these, and three quarters of all places; of several ports
    /// no one has the last eighth.
    fn accept(&mut self, now: Instant, node: &Node, local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        let half_open_limit = self.max_streams.div_ceil(2);
        let (mut from_source, mut half_open_from_source, mut to_port) = (0, 0, 0);
        let mut oldest: Option<(Option<Instant>, u32)> = None;
        for (index, stream) in (0..).zip(&self.slots).filter_map(|(n, slot)| Some((n, slot.stream.as_deref()?))) {
            if stream.is_expendable() {
                continue;
            }
            let half_open = stream.is_half_open();
            let same_source = stream.peer.ip() == peer.ip();
            from_source += usize::from(same_source);
            half_open_from_source += usize::from(same_source && half_open);
            to_port += usize::from(stream.local.port() == local.port());
            // All half-open streams have the same time: the first to end is the oldest.
            if half_open && oldest.is_none_or(|(limit, _)| stream.limit < limit) {
                oldest = Some((stream.limit, index));
            }
        }
        if half_open_from_source >= half_open_limit.div_ceil(2) || from_source >= (self.max_streams * 3).div_ceil(4) {
            node.stats.tcp_source_limited.inc();
            return None;
        }
        if self.listening.len() > 1 && to_port >= (self.max_streams * 7).div_ceil(8) {
            node.stats.tcp_no_room.inc();
            return None;
        }
        if self.half_open >= half_open_limit
            && let Some((_, oldest)) = oldest
        {
            node.stats.tcp_half_open_evicted.inc();
            self.remove(oldest);
        }
        let new = self.insert(now, local, peer, true);
        if new.is_none() {
            node.stats.tcp_no_room.inc();
        }
        new
    }

    fn insert(&mut self, now: Instant, local: SocketAddr, peer: SocketAddr, passive: bool) -> Option<u32> {
        // Whoever never takes events would pile them up by ever new streams.
        if self.events.len() >= 4 * self.max_streams {
            return None;
        }
        if self.len() >= self.max_streams {
            let expendable =
                (0..self.slots.len() as u32).find(|&i| self.stream(i).is_some_and(Stream::is_expendable))?;
            // It was reset, and its user never came for the last bytes.
            if let Some(stream) = self.stream(expendable).filter(|s| s.is_usable()) {
                self.events.push_back(StreamEvent::Closed { stream: stream.id, reset: true });
            }
            self.remove(expendable);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            // At most `max_streams`, which fits.
            self.slots.len() as u32 - 1
        });
        let slot = self.slots.get_mut(index as usize)?;
        let id = TcpStreamId { index, generation: slot.generation };
        slot.stream = Some(Box::new(Stream::new(now, id, local, peer, passive)));
        self.half_open += usize::from(passive);
        self.by_endpoints.insert((local, peer), index);
        Some(index)
    }

    /// Lets a new stream have the endpoints of one that has ended.
    fn detach(&mut self, index: u32) {
        if let Some(stream) = self.stream(index) {
            let endpoints = (stream.local, stream.peer);
            if self.by_endpoints.get(&endpoints) == Some(&index) {
                self.by_endpoints.remove(&endpoints);
            }
        }
        // One that still has bytes or an event for its user stays; the others are done.
        if self.stream(index).is_some_and(|s| !s.is_usable()) {
            self.remove(index);
        }
    }

    fn remove(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Some(stream) = slot.stream.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.half_open -= usize::from(stream.is_half_open());
        let endpoints = (stream.local, stream.peer);
        if self.by_endpoints.get(&endpoints) == Some(&index) {
            self.by_endpoints.remove(&endpoints);
        }
    }

    /// Sends the packet that waits. Returns whether the place is free.
    fn flush(&mut self, node: &mut Node, tx: &mut impl TxQueue) -> bool {
        let Some(packet) = self.outlet.staging.packet() else { return true };
        let ethertype = if packet.first().is_some_and(|b| b >> 4 == 4) { ethernet::IPV4 } else { ethernet::IPV6 };
        let Some(room) = node.link.push(tx, self.outlet.to, ethertype, packet.len()) else { return false };
        ip::set_id(packet, node.next_id());
        room.copy_from_slice(packet);
        self.outlet.staging.clear();
        true
    }

    /// One stream's turn: tells what happened to it, sends what it has, and finds out when its next turn is.
    fn drive(&mut self, now: Instant, index: u32, node: &mut Node, tx: &mut impl TxQueue) {
        let wake = self.drive_until_idle(now, index, node, tx);
        let Some(stream) = self.slots.get_mut(index as usize).and_then(|slot| slot.stream.as_deref_mut()) else {
            return;
        };
        if stream.is_gone() {
            self.remove(index);
            return;
        }
        stream.wake = wake;
        let due = [wake, stream.limit].into_iter().flatten().min();
        self.wake_at(due);
    }

    fn drive_until_idle(
        &mut self,
        now: Instant,
        index: u32,
        node: &mut Node,
        tx: &mut impl TxQueue,
    ) -> Option<Instant> {
        let smol_now = to_smoltcp(now);
        let mut idle = false;
        loop {
            if !self.flush(node, tx) {
                return Some(now);
            }
            let stream = self.slots.get_mut(index as usize)?.stream.as_deref_mut()?;
            stream.dirty = false;
            stream.expire(now);
            while let Some(progress) = {
                let was_half_open = stream.is_half_open();
                let progress = stream.advance();
                self.half_open -= usize::from(was_half_open && !stream.is_half_open());
                progress
            } {
                match progress {
                    Progress::OpenFailed => {
                        node.stats.tcp_open_failed.inc();
                        self.remove(index);
                        return None;
                    }
                    Progress::Event(event) => {
                        match event {
                            StreamEvent::Opened { .. } => node.stats.tcp_opened.inc(),
                            StreamEvent::Closed { reset: true, .. } => node.stats.tcp_reset.inc(),
                            StreamEvent::Closed { reset: false, .. } => node.stats.tcp_closed.inc(),
                            StreamEvent::Readable { .. } => {}
                        }
                        self.events.push_back(event);
                    }
                }
            }
            // A message goes to the socket when the one before has left it.
            let mut due = self.iface.poll_at(smol_now, &stream.set);
            if due.is_none_or(|due| due > smol_now) {
                stream.feed();
                due = self.iface.poll_at(smol_now, &stream.set);
            }
            match due {
                Some(due) if due <= smol_now => {}
                _ if stream.has_messages() => continue,
                _ => return due.map(from_smoltcp),
            }
            let to = match node.resolve(now, stream.peer.ip()) {
                Resolution::Ready { mac, .. } => Some(mac),
                Resolution::Pending => {
                    stream.unresolved = true;
                    return Some(now + UNRESOLVED_RETRY);
                }
                Resolution::Unreachable => None,
            };
            stream.unresolved = false;
            self.outlet.to = to.unwrap_or_default();
            let mut device = PacketDevice { received: None, staging: &mut self.outlet.staging, mtu: self.mtu };
            self.iface.poll_egress(smol_now, &mut device, &mut stream.set);
            if to.is_none() {
                // Nobody is there: the packet is lost, and the socket's own patience ends in time.
                self.outlet.staging.clear();
            }
            // A turn without a packet may be one in which a timer ended something; two in a row are a stall.
            if self.outlet.staging.packet().is_some() {
                idle = false;
            } else if std::mem::replace(&mut idle, true) {
                return Some(now + IDLE_RETRY);
            }
        }
    }
}
