//! TCP over smoltcp: assigns segments to streams and drives each stream when it has something to do.
//!
//! smoltcp has no listen queue: of several sockets that listen on a port, the first one takes a SYN, and a retransmitted
//! SYN goes to the next one. So no socket listens in advance: the first SYN from an endpoint creates one, which is found
//! again by its two endpoints. Every stream has a socket set of its own, so that the work per segment does not grow with
//! the number of streams.

mod device;
mod segment;
mod stream;
mod table;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rxe_proto::wire::net::ethertype;
use rxe_proto::wire::{DropReason, TxQueue};
use rxe_proto::{Duration, Instant};
use smoltcp::iface::{Config, Interface as SmoltcpInterface, SocketSet};
use smoltcp::wire::HardwareAddress;

use super::HostStats;
use super::config::HostConfig;
use super::event::{StreamEvent, TcpStreamId};
use super::interface::link::EthFrame;
use super::interface::{Interface, Resolution};
use super::ip::{self, IpPacket};
use device::{Outlet, PacketDevice, from_smoltcp, to_smoltcp};
use segment::{RESET_MAX, Segment};
use stream::{Progress, Stream};
use table::StreamTable;

/// First port of the ephemeral range (RFC 6335).
const FIRST_PORT: u16 = 49152;

/// How long a stream waits for its peer's MAC address before it resolves again.
const UNRESOLVED_RETRY: Duration = Duration::from_secs(1);

/// Delay before a socket that is due but sends nothing is polled again.
const IDLE_RETRY: Duration = Duration::from_millis(10);

/// Why a connection could not be attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No route, or no address of that family.
    #[error("there is no route to the peer")]
    NoRoute,
    /// No room for a stream, or no free port.
    #[error("there are too many streams")]
    NoRoom,
}

/// TCP on one interface.
pub(super) struct Tcp {
    iface: SmoltcpInterface,
    /// For segments that belong to no stream: smoltcp answers them with a reset.
    no_sockets: SocketSet<'static>,
    streams: StreamTable,
    listening: BTreeSet<u16>,
    outlet: Outlet,
    events: VecDeque<StreamEvent>,
    /// Streams to drive on the next poll.
    dirty: Vec<u32>,
    /// Not later than the first time at which a stream is due.
    wake: Option<Instant>,
    next_port: u16,
    mtu: u16,
    verify_checksums: bool,
    stats: Arc<HostStats>,
}

impl Tcp {
    pub(super) fn new(config: &HostConfig, seed: u64, port_seed: u64, stats: Arc<HostStats>) -> Tcp {
        let mut outlet = Outlet::default();
        let mut device = PacketDevice { received: None, staging: &mut outlet.staging, mtu: config.mtu };
        let mut smoltcp_config = Config::new(HardwareAddress::Ip);
        smoltcp_config.random_seed = seed;
        let mut iface = SmoltcpInterface::new(smoltcp_config, &mut device, to_smoltcp(Instant::ZERO));
        // Only packets to our addresses get here, so smoltcp need not know them, nor limit their number.
        iface.set_any_ip(true);
        Tcp {
            iface,
            no_sockets: SocketSet::new(Vec::new()),
            streams: StreamTable::new(config.max_streams, Arc::clone(&stats)),
            listening: BTreeSet::new(),
            outlet,
            events: VecDeque::new(),
            dirty: Vec::new(),
            wake: None,
            // The ephemeral range has 14 bits.
            next_port: FIRST_PORT | (port_seed as u16 & 0x3FFF),
            mtu: config.mtu,
            verify_checksums: config.verify_tcp_checksums,
            stats,
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
        self.streams.len()
    }

    pub(super) fn poll_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.dirty.is_empty() { self.wake } else { Some(Instant::ZERO) }
    }

    /// Handles a segment to one of our addresses.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let segment = Segment::parse(ip, self.verify_checksums, &self.stats)?;
        // smoltcp's answer needs the outlet.
        if !self.flush(interface, tx) {
            return Err(DropReason::NoTransmitRoom);
        }
        let local = SocketAddr::new(ip.pair.dst(), segment.local_port);
        let peer = SocketAddr::new(ip.pair.src(), segment.peer_port);
        let mut index = self.streams.find(local, peer);
        if segment.is_first {
            if let Some(old) = index.filter(|&index| self.streams.get(index).is_some_and(Stream::is_replaceable)) {
                self.streams.detach(old);
                index = None;
            }
            if index.is_none() && self.listening.contains(&segment.local_port) {
                interface.note_peer(now, peer.ip());
                let new = self.streams.accept(now, local, peer, self.listening.len(), &mut self.events);
                index = Some(new.ok_or(DropReason::HostUnsupported)?);
            }
        }
        let (mut packet, mut room) = (ip.packet, [0; RESET_MAX]);
        // RFC 5961: the answer to a reset that may be forged has a genuine peer send another one, at the right place.
        if let (Some(sequence), Some(stream)) = (segment.reset, index.and_then(|index| self.streams.get(index)))
            && stream.doubts_reset(sequence)
        {
            self.stats.tcp_resets_ignored.inc();
            match stream.unsent_ack().and_then(|ack| segment::as_ack(ip, ack, &mut room)) {
                Some(ack) => packet = ack,
                None => return Ok(()),
            }
        }
        self.outlet.to = eth.src;
        let mut device = PacketDevice { received: Some(packet), staging: &mut self.outlet.staging, mtu: self.mtu };
        let sockets = match index.and_then(|index| self.streams.get_mut(index)) {
            Some(stream) => &mut stream.set,
            None => &mut self.no_sockets,
        };
        self.iface.poll_ingress_single(to_smoltcp(now), &mut device, sockets);
        let answered = self.outlet.staging.packet().is_some();
        self.note_sent(index);
        self.flush(interface, tx);
        match index {
            Some(index) => {
                self.drive(now, index, interface, tx);
                Ok(())
            }
            None if answered => {
                self.stats.tcp_refused.inc();
                Ok(())
            }
            None => Err(DropReason::HostUnsupported),
        }
    }

    /// Drives every stream that is due.
    pub(super) fn poll(&mut self, now: Instant, interface: &mut Interface, tx: &mut impl TxQueue) {
        for index in std::mem::take(&mut self.dirty) {
            self.drive(now, index, interface, tx);
        }
        if self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        self.wake = None;
        for index in self.streams.indices() {
            let Some(stream) = self.streams.get(index) else { continue };
            let due = [stream.wake, stream.limit].into_iter().flatten().min();
            if due.is_some_and(|due| due <= now) {
                self.drive(now, index, interface, tx);
            } else {
                self.wake_at(due);
            }
        }
        // A packet may wait although no stream is due.
        if !self.flush(interface, tx) {
            self.wake_at(Some(now));
        }
    }

    /// A neighbour's MAC address became known: drives the streams that wait for one.
    pub(super) fn neighbours_resolved(&mut self, now: Instant, interface: &mut Interface, tx: &mut impl TxQueue) {
        for index in self.streams.indices() {
            if self.streams.get(index).is_some_and(|s| s.unresolved) {
                self.drive(now, index, interface, tx);
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        peer: SocketAddr,
    ) -> Result<TcpStreamId, ConnectError> {
        let ip = peer.ip();
        let source = match interface.resolve(now, ip) {
            Resolution::Ready { source, .. } => Some(source),
            _ => interface.routing.next_hop(ip).and_then(|next_hop| interface.routing.source(ip, next_hop)),
        };
        let source = source
            .filter(|_| peer.port() != 0 && !ip.is_multicast() && !interface.routing.owns(ip))
            .ok_or(ConnectError::NoRoute)?;
        // Without flow label and scope: they do not identify a stream.
        let peer = SocketAddr::new(ip, peer.port());
        let local = (FIRST_PORT..=u16::MAX)
            .map(|_| {
                self.next_port = self.next_port.wrapping_add(1).max(FIRST_PORT);
                SocketAddr::new(source, self.next_port)
            })
            .find(|&local| !self.listening.contains(&local.port()) && self.streams.find(local, peer).is_none())
            .ok_or(ConnectError::NoRoom)?;
        let index = self.streams.insert(now, local, peer, false, &mut self.events).ok_or(ConnectError::NoRoom)?;
        let stream = self.streams.get_mut(index).ok_or(ConnectError::NoRoom)?;
        let id = stream.id;
        if stream.socket().connect(self.iface.context(), peer, local).is_err() {
            self.streams.remove(index);
            return Err(ConnectError::NoRoute);
        }
        self.mark_dirty(index);
        Ok(id)
    }

    pub(super) fn recv(&mut self, id: TcpStreamId, buffer: &mut [u8]) -> usize {
        let Some(stream) = self.streams.by_id(id) else { return 0 };
        let n = stream.recv(buffer);
        // The window may have opened, or the end of the stream been reached.
        self.mark_dirty(id.index);
        n
    }

    pub(super) fn send(&mut self, id: TcpStreamId, data: &[u8]) -> usize {
        let Some(stream) = self.streams.by_id(id) else { return 0 };
        let n = stream.send(data);
        self.mark_dirty(id.index);
        n
    }

    pub(super) fn send_room(&self, id: TcpStreamId) -> usize {
        self.streams.get(id.index).filter(|s| s.id == id).map_or(0, Stream::send_room)
    }

    pub(super) fn close(&mut self, id: TcpStreamId) {
        if let Some(stream) = self.streams.by_id(id) {
            stream.close();
            self.mark_dirty(id.index);
        }
    }

    pub(super) fn abort(&mut self, id: TcpStreamId) {
        if let Some(stream) = self.streams.by_id(id) {
            stream.abort();
            self.mark_dirty(id.index);
        }
    }

    /// Open streams at an address of ours.
    pub(super) fn count_at(&self, local: IpAddr) -> usize {
        let streams = self.streams.indices().filter_map(|index| self.streams.get(index));
        streams.filter(|stream| stream.local.ip() == local && stream.is_usable()).count()
    }

    /// Resets all streams at an address of ours; their users get the event.
    pub(super) fn reset_all_at(&mut self, local: IpAddr) {
        for index in self.streams.indices() {
            if let Some(stream) = self.streams.get_mut(index).filter(|stream| stream.local.ip() == local) {
                stream.reset();
                self.mark_dirty(index);
            }
        }
    }

    fn mark_dirty(&mut self, index: u32) {
        if let Some(stream) = self.streams.get_mut(index)
            && !std::mem::replace(&mut stream.dirty, true)
        {
            self.dirty.push(index);
        }
    }

    fn wake_at(&mut self, at: Option<Instant>) {
        self.wake = [self.wake, at].into_iter().flatten().min();
    }

    /// The staged packet is one of this stream.
    fn note_sent(&mut self, index: Option<u32>) {
        if let (Some(packet), Some(stream)) =
            (self.outlet.staging.packet(), index.and_then(|index| self.streams.get_mut(index)))
        {
            stream.note_sent(packet);
        }
    }

    /// Sends the staged packet. Returns whether the outlet is free.
    fn flush(&mut self, interface: &mut Interface, tx: &mut impl TxQueue) -> bool {
        let Some(packet) = self.outlet.staging.packet() else { return true };
        let ethertype = if packet.first().is_some_and(|b| b >> 4 == 4) { ethertype::IPV4 } else { ethertype::IPV6 };
        let Some(room) = interface.link.push(tx, self.outlet.to, ethertype, packet.len()) else { return false };
        ip::set_id(packet, interface.next_id());
        room.copy_from_slice(packet);
        self.outlet.staging.clear();
        true
    }

    /// Drives one stream: emits its events, sends what it has, and finds out when it is due next.
    fn drive(&mut self, now: Instant, index: u32, interface: &mut Interface, tx: &mut impl TxQueue) {
        let wake = self.drive_until_idle(now, index, interface, tx);
        let Some(stream) = self.streams.get_mut(index) else { return };
        if stream.is_gone() {
            self.streams.remove(index);
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
        interface: &mut Interface,
        tx: &mut impl TxQueue,
    ) -> Option<Instant> {
        let smol_now = to_smoltcp(now);
        let mut idle = false;
        loop {
            if !self.flush(interface, tx) {
                return Some(now);
            }
            let stream = self.streams.get_mut(index)?;
            stream.dirty = false;
            stream.expire(now);
            if !self.emit_events(index) {
                return None;
            }
            let stream = self.streams.get_mut(index)?;
            // A message is passed to the socket when the one before has left it.
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
            let to = match interface.resolve(now, stream.peer.ip()) {
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
            self.note_sent(Some(index));
            if to.is_none() {
                // The peer is unreachable: the packet is lost, and the socket's own timeout ends the stream.
                self.outlet.staging.clear();
            }
            // One round without a packet may be that of a timer that ended something; two in a row are a stall.
            if self.outlet.staging.packet().is_some() {
                idle = false;
            } else if std::mem::replace(&mut idle, true) {
                return Some(now + IDLE_RETRY);
            }
        }
    }

    /// Emits what happened to a stream. False when it failed to open and was removed.
    fn emit_events(&mut self, index: u32) -> bool {
        while let Some(stream) = self.streams.get_mut(index) {
            let (was_half_open, peer) = (stream.is_half_open(), stream.peer.ip());
            let progress = stream.advance();
            if was_half_open && !stream.is_half_open() {
                self.streams.half_open_ended(peer);
            }
            match progress {
                None => return true,
                Some(Progress::OpenFailed) => {
                    self.stats.tcp_open_failed.inc();
                    self.streams.remove(index);
                }
                Some(Progress::Event(event)) => {
                    match event {
                        StreamEvent::Opened { .. } => self.stats.tcp_opened.inc(),
                        StreamEvent::Closed { reset: true, .. } => self.stats.tcp_reset.inc(),
                        StreamEvent::Closed { reset: false, .. } => self.stats.tcp_closed.inc(),
                        StreamEvent::Readable { .. } => {}
                    }
                    self.events.push_back(event);
                }
            }
        }
        false
    }
}
