//! Reception: one call of recvmmsg per socket and burst, and frames for the engine.

use std::fmt;
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, MultiHeaders, RecvMsg, SockaddrStorage, recvmmsg};
use rxe_proto::wire::net::{ETH_LEN, Header, Ipv4Header, UDP_LEN};
use rxe_proto::wire::{BTH_LEN, ICRC_LEN, icrc};

use crate::frame::{Addresses, Datagram, MAX_HEADERS, MAX_PAYLOAD, headers_len};
use crate::identification::{PeerTable, recover};
use crate::segmentation::SocketPeers;
use crate::stats::UdpStats;

/// Multicast groups that a port can be a member of, each with a socket of its own.
pub const MAX_GROUPS: usize = 32;

/// Datagrams that one call receives, at most.
const BURST: usize = 64;

/// The same on a socket that merges packets. One datagram then holds up to 64 packets, and a burst should not delay the replies to
/// its first packets for long.
const MERGED_BURST: usize = 32;

/// Datagrams that a call receives after calls that have found few.
const SMALLEST_BURST: usize = 4;

/// Room in front of a payload for headers. A multiple of the length of a cache line keeps payloads aligned.
const ROOM: usize = MAX_HEADERS.next_multiple_of(64);

/// Longest datagram of a socket that merges packets.
const MAX_MERGED: usize = 65_535;

/// A datagram of the current burst.
#[derive(Clone, Copy)]
struct Received {
    /// Offset of its payload in the buffer.
    at: usize,
    len: usize,
    /// Length of each of its packets but the last, which may be shorter.
    segment: usize,
    properties: Datagram,
}

/// The receiving half of a [`UdpPort`](crate::UdpPort).
pub struct UdpRx {
    own: Source,
    /// The multicast groups that the port is a member of.
    groups: Vec<Source>,
    /// The group whose socket is read with the next burst.
    next_group: usize,
    /// Datagrams that the next call receives, at most.
    slots: usize,
    max_slots: usize,
    /// Distance of two slots in the buffer.
    stride: usize,
    buffer: Box<[u8]>,
    received: Vec<Received>,
    /// `Some` when identifications are recovered.
    peers: Option<PeerTable>,
    sockets: Arc<SocketPeers>,
    drained: bool,
    stats: Arc<UdpStats>,
}

/// A socket, and the destination address of what it receives.
struct Source {
    destination: IpAddr,
    socket: Arc<UdpSocket>,
    /// Datagrams that the kernel has dropped for want of room, as far as it has said.
    overflowed: u32,
}

impl Source {
    fn new(destination: IpAddr, socket: Arc<UdpSocket>) -> Source {
        Source { destination, socket, overflowed: 0 }
    }
}

impl UdpRx {
    pub(crate) fn new(
        address: IpAddr,
        socket: Arc<UdpSocket>,
        merges: bool,
        recover_identification: bool,
        sockets: Arc<SocketPeers>,
        stats: Arc<UdpStats>,
    ) -> UdpRx {
        let (max_slots, payload) = if merges { (MERGED_BURST, MAX_MERGED) } else { (BURST, MAX_PAYLOAD) };
        let stride = (ROOM + payload).next_multiple_of(64);
        UdpRx {
            own: Source::new(address, socket),
            groups: Vec::new(),
            next_group: 0,
            slots: SMALLEST_BURST,
            max_slots,
            stride,
            buffer: vec![0; max_slots * stride].into_boxed_slice(),
            received: Vec::with_capacity(max_slots),
            peers: (recover_identification && address.is_ipv4()).then(PeerTable::new),
            sockets,
            drained: false,
            stats,
        }
    }

    /// Receives a burst: what the socket has, up to 64 datagrams, and what the socket of one of the multicast groups has, in turn.
    #[inline]
    pub fn receive(&mut self) -> RxBurst<'_> {
        let received = self.fetch(None);
        self.drained = received < self.slots;
        if !self.drained {
            self.slots = (4 * self.slots).min(self.max_slots);
        } else if received < self.slots / 4 {
            self.slots = (self.slots / 2).max(SMALLEST_BURST);
        }
        let group = self.next_group.checked_rem(self.groups.len());
        self.next_group = self.next_group.wrapping_add(1);
        RxBurst { rx: self, group, index: 0, offset: 0 }
    }

    /// Whether the last burst emptied the socket of the port's address. If not, the next burst is there already.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// The groups that the port is a member of.
    pub(crate) fn groups(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.groups.iter().map(|source| source.destination)
    }

    pub(crate) fn add_group(&mut self, group: IpAddr, socket: UdpSocket) {
        self.groups.push(Source::new(group, Arc::new(socket)));
    }

    /// Returns whether the port was a member.
    pub(crate) fn remove_group(&mut self, group: IpAddr) -> bool {
        let before = self.groups.len();
        self.groups.retain(|source| source.destination != group);
        self.groups.len() < before
    }

    /// Descriptors that become readable when there is something to receive.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.groups.iter().chain([&self.own]).map(|source| source.socket.as_fd())
    }

    /// Receives what the socket of a group has, or that of the port's address; returns how many datagrams.
    fn fetch(&mut self, group: Option<usize>) -> usize {
        self.received.clear();
        let source = match group {
            Some(group) => self.groups.get_mut(group),
            None => Some(&mut self.own),
        };
        let Some(Source { destination, socket, overflowed }) = source else { return 0 };
        // Headers for this call only: the kernel replaces the room for control messages in them by what it has used, which nix
        // does not restore, and they could not move to another thread with the port. Few headers cost little.
        let mut headers: MultiHeaders<SockaddrStorage> =
            MultiHeaders::preallocate(self.slots, Some(cmsg_space!(i32, i32, i32, u32)));
        let mut slots = self.buffer.chunks_exact_mut(self.stride);
        let mut slices: [[IoSliceMut<'_>; 1]; BURST] =
            std::array::from_fn(|_| [IoSliceMut::new(slots.next().map_or(&mut [], |slot| &mut slot[ROOM..]))]);
        let messages = match recvmmsg(socket.as_raw_fd(), &mut headers, &mut slices, MsgFlags::empty(), None) {
            Ok(messages) => messages,
            Err(Errno::EAGAIN | Errno::EINTR) => return 0,
            Err(_) => {
                self.stats.receive_errors.inc();
                return 0;
            }
        };
        let mut count = 0;
        for (slot, message) in messages.enumerate() {
            count += 1;
            let len = message.bytes;
            let Some((segment, properties, dropped)) = properties(&message, *destination) else {
                self.stats.rcvd_incomplete.inc();
                continue;
            };
            if let Some(total) = dropped {
                self.stats.rcvd_overflowed.add(total.wrapping_sub(*overflowed).into());
                *overflowed = total;
            }
            let segment = segment.unwrap_or(len);
            if segment == 0 || segment > MAX_PAYLOAD || message.flags.contains(MsgFlags::MSG_TRUNC) {
                self.stats.rcvd_bad_length.inc();
                continue;
            }
            self.stats.rcvd_datagrams.inc();
            self.sockets.note(properties.addresses.source(), properties.src_port);
            self.stats.rcvd_bytes.add(len as u64);
            self.received.push(Received { at: slot * self.stride + ROOM, len, segment, properties });
        }
        self.stats.rcvd_bursts.inc();
        count
    }

    /// Writes the headers of the packet of `len` bytes at `at`; returns where they begin.
    #[inline]
    fn complete(&mut self, properties: &Datagram, at: usize, len: usize) -> usize {
        let headers = headers_len(properties.addresses.source());
        let start = at - headers;
        properties.write_headers(&mut self.buffer[start..], len);
        self.stats.rcvd_packets.inc();
        if let (Some(peers), Addresses::V4(src, _)) = (&mut self.peers, properties.addresses) {
            let frame = &mut self.buffer[start..at + len];
            if (goes_to_gsi(&frame[headers..]) || peers.is_due(src)) && examine(peers, src, frame) {
                self.stats.identification_recovered.inc();
            }
        }
        start
    }
}

/// Reads what the kernel reports about a datagram: the length of its merged packets, if it has several, the fields of its
/// headers, and how many datagrams the socket has dropped, if any.
#[inline]
fn properties(
    message: &RecvMsg<'_, '_, SockaddrStorage>,
    destination: IpAddr,
) -> Option<(Option<usize>, Datagram, Option<u32>)> {
    let from = message.address.as_ref()?;
    let (addresses, src_port) = match destination {
        IpAddr::V4(destination) => {
            let from = from.as_sockaddr_in()?;
            (Addresses::V4(from.ip(), destination), from.port())
        }
        IpAddr::V6(destination) => {
            let from = from.as_sockaddr_in6()?;
            (Addresses::V6(from.ip(), destination), from.port())
        }
    };
    let mut properties = Datagram { addresses, src_port, traffic_class: 0, hop_limit: 0 };
    let (mut segment, mut dropped) = (None, None);
    for control in message.cmsgs().ok()? {
        match control {
            ControlMessageOwned::Ipv4Tos(tos) => properties.traffic_class = tos,
            ControlMessageOwned::Ipv6TClass(class) => properties.traffic_class = class as u8,
            ControlMessageOwned::Ipv4Ttl(hops) | ControlMessageOwned::Ipv6HopLimit(hops) => {
                properties.hop_limit = hops as u8;
            }
            ControlMessageOwned::RxqOvfl(total) => dropped = Some(total),
            ControlMessageOwned::UdpGroSegments(len) => segment = usize::try_from(len).ok(),
            _ => {}
        }
    }
    Some((segment, properties, dropped))
}

/// Whether a UDP payload is a packet to queue pair 1. The connection manager repeats lost messages so slowly that each of them is
/// examined.
#[inline]
fn goes_to_gsi(payload: &[u8]) -> bool {
    payload.get(5..8) == Some(&[0, 0, 1])
}

/// Finds identification and flags of an IPv4 frame. Returns whether they are others than 0 and "don't fragment", and were written into
/// the frame. A frame whose ICRC is wrong with all of them stays as it is.
fn examine(peers: &mut PeerTable, src: Ipv4Addr, frame: &mut [u8]) -> bool {
    let Some((covered, stored)) = frame[ETH_LEN..].split_last_chunk::<ICRC_LEN>() else { return false };
    if covered.len() < size_of::<Ipv4Header>() + UDP_LEN + BTH_LEN {
        return false;
    }
    let difference = icrc(covered, true) ^ u32::from_le_bytes(*stored);
    if difference == 0 {
        peers.note(src, true);
        return false;
    }
    let Some(hidden) = recover(difference, covered.len()) else { return false };
    peers.note(src, false);
    let Some((ip, _)) = Ipv4Header::split(&frame[ETH_LEN..]) else { return false };
    let mut ip = *ip;
    ip.id.set(hidden.id);
    if !hidden.dont_fragment {
        ip.fragment.set(0);
    }
    ip.fill_checksum();
    ip.put(&mut frame[ETH_LEN..]).is_some()
}

/// The frames of one burst. Those that are not taken are dropped.
pub struct RxBurst<'p> {
    rx: &'p mut UdpRx,
    /// The multicast group whose socket is read when the datagrams received are used up.
    group: Option<usize>,
    index: usize,
    /// Offset of the next packet in its datagram.
    offset: usize,
}

impl RxBurst<'_> {
    /// The next frame, from the Ethernet header to the ICRC, for [`classify`](rxe_proto::wire::classify). The MAC addresses, the
    /// UDP checksum and the IPv6 flow label are 0. `None` at the end of the burst.
    #[inline]
    pub fn next_frame(&mut self) -> Option<&[u8]> {
        let Received { at, len, segment, properties } = self.current()?;
        let (packet, left) = (at + self.offset, len - self.offset);
        let packet_len = segment.min(left);
        if packet_len == left {
            (self.index, self.offset) = (self.index + 1, 0);
        } else {
            self.offset += packet_len;
        }
        // Of merged packets, the headers overwrite the end of the packet before, which the caller is done with.
        let start = self.rx.complete(&properties, packet, packet_len);
        self.rx.buffer.get(start..packet + packet_len)
    }

    #[inline]
    fn current(&mut self) -> Option<Received> {
        if self.index == self.rx.received.len() {
            let group = self.group.take()?;
            self.rx.fetch(Some(group));
            self.index = 0;
        }
        self.rx.received.get(self.index).copied()
    }
}

impl fmt::Debug for UdpRx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UdpRx({}, {} groups)", self.own.destination, self.groups.len())
    }
}

impl fmt::Debug for RxBurst<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RxBurst({} of {})", self.index, self.rx.received.len())
    }
}
