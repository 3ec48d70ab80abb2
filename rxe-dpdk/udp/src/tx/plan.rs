//! The batch of one sendmmsg: consecutive frames that need the same socket options.

use std::io::IoSlice;
use std::net::{IpAddr, UdpSocket};

use rustix::io::Errno;
use rustix::net::SocketAddrAny;
use rxe_proto::wire::ROCE_UDP_PORT;

use super::messages::{Message, send};
use super::{BURST, Staged};
use crate::frame::{Outgoing, headers_len, outgoing};
use crate::local::socket_address;
use crate::segmentation::{Checksums, Segmentation};
use crate::socket::SendOptions;

/// Packets of one datagram, at most: `UDP_MAX_SEGMENTS` of Linux.
const MAX_SEGMENTS: usize = 64;

/// Longest UDP payload that fits an IPv4 packet.
const MAX_DATAGRAM: usize = 65_507;

/// Frames up to which `send` uses the short arrays.
const FEW: usize = 4;

/// Properties of the port that a plan depends on.
pub(super) struct Context<'a> {
    pub(super) source: IpAddr,
    pub(super) scope: u32,
    pub(super) segmentation: &'a Segmentation,
}

/// The datagrams of one call. It has room for a burst, so that making a plan does not allocate.
pub(super) struct Plan {
    datagrams: Vec<Datagram>,
    destinations: Vec<SocketAddrAny>,
}

/// Consecutive frames that leave as one datagram.
#[derive(Clone, Copy)]
struct Datagram {
    /// Number of the frames before its own.
    first: usize,
    frames: usize,
    /// Bytes of UDP payload.
    len: usize,
    /// Payload length of each frame but the last, which may be shorter.
    segment: usize,
    outgoing: Outgoing,
}

impl Datagram {
    /// Whether a frame with `len` bytes of payload can be the next one.
    fn accepts(&self, outgoing: Outgoing, len: usize) -> bool {
        // A shorter frame ends the datagram.
        self.len == self.frames * self.segment
            && len <= self.segment
            && self.frames < MAX_SEGMENTS
            && self.len + len <= MAX_DATAGRAM
            && self.outgoing == outgoing
    }
}

impl Plan {
    pub(super) fn new() -> Plan {
        Plan { datagrams: Vec::with_capacity(BURST), destinations: Vec::with_capacity(BURST) }
    }

    /// Plans to send as many of `frames`, at most a burst, as one call can. Returns the options that the socket must have; `None` when
    /// the first frame is not one to send.
    pub(super) fn make(&mut self, context: &Context<'_>, arena: &[u8], frames: &[Staged]) -> Option<SendOptions> {
        self.datagrams.clear();
        self.destinations.clear();
        let headers = headers_len(context.source);
        for (index, staged) in frames.iter().enumerate() {
            let frame = &arena[staged.range()];
            let (Some(outgoing), Some(len)) = (outgoing(frame, context.source), frame.len().checked_sub(headers))
            else {
                break;
            };
            if let Some(last) = self.datagrams.last_mut()
                && last.accepts(outgoing, len)
                && context.segmentation.allows(outgoing.destination)
            {
                last.frames += 1;
                last.len += len;
                continue;
            }
            self.datagrams.push(Datagram { first: index, frames: 1, len, segment: len, outgoing });
        }
        let first = self.datagrams.first()?.outgoing;
        let multicast = first.destination.is_multicast();
        let mut checksums = Checksums::Any;
        for datagram in &self.datagrams {
            let Outgoing { destination, traffic_class, hop_limit } = datagram.outgoing;
            let same = (traffic_class, hop_limit, destination.is_multicast())
                == (first.traffic_class, first.hop_limit, multicast);
            let demand = context.segmentation.checksums(destination, datagram.frames);
            match checksums.and(demand) {
                Some(both) if same => checksums = both,
                _ => break,
            }
            let address = socket_address(destination, ROCE_UDP_PORT, context.scope);
            self.destinations.push(SocketAddrAny::from(address));
        }
        self.datagrams.truncate(self.destinations.len());
        let Outgoing { traffic_class, hop_limit, .. } = first;
        Some(SendOptions { traffic_class, hop_limit, multicast, checksums })
    }

    /// Frames and bytes of UDP payload of the first `datagrams`.
    pub(super) fn totals(&self, datagrams: usize) -> (usize, usize) {
        let sent = self.datagrams.iter().take(datagrams);
        sent.fold((0, 0), |(frames, bytes), datagram| (frames + datagram.frames, bytes + datagram.len))
    }

    /// Sends the datagrams; returns how many the kernel accepted. The first `headers` bytes of each frame are not sent.
    pub(super) fn send(
        &self,
        socket: &UdpSocket,
        arena: &[u8],
        frames: &[Staged],
        headers: usize,
    ) -> Result<usize, Errno> {
        let planned = self.datagrams.iter().map(|datagram| datagram.frames).sum();
        let payloads =
            frames.iter().take(planned).map(|staged| &arena[staged.start as usize + headers..staged.end as usize]);
        if planned <= FEW {
            self.send_array::<FEW>(socket, payloads)
        } else {
            self.send_array::<BURST>(socket, payloads)
        }
    }

    /// Sends the datagrams, whose frames are at most `N`. The arrays are filled whatever their use, so a few frames have shorter ones.
    fn send_array<'a, const N: usize>(
        &self,
        socket: &UdpSocket,
        payloads: impl Iterator<Item = &'a [u8]>,
    ) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); N];
        for (slice, payload) in slices.iter_mut().zip(payloads) {
            *slice = IoSlice::new(payload);
        }
        let messages = self.datagrams.iter().zip(&self.destinations).map(|(datagram, destination)| Message {
            destination,
            payloads: slices.get(datagram.first..datagram.first + datagram.frames).unwrap_or_default(),
            segment: (datagram.frames > 1).then_some(datagram.segment as u16),
        });
        send::<N>(socket, messages).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use rxe_proto::wire::net::{ETH_LEN, IPV4_LEN, UDP_LEN};

    use super::*;
    use crate::frame::{Addresses, Datagram as Properties};
    use crate::segmentation::{SocketPeers, Sockets};

    const HEADERS: usize = ETH_LEN + IPV4_LEN + UDP_LEN;
    const HERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);

    /// A frame to 127.0.0.`to`.
    fn frame(to: u8, traffic_class: u8, len: usize) -> Vec<u8> {
        let mut frame = vec![0; HEADERS + len];
        let addresses = Addresses::V4(HERE, Ipv4Addr::new(127, 0, 0, to));
        let properties = Properties { addresses, src_port: ROCE_UDP_PORT, traffic_class, hop_limit: 64 };
        properties.write_headers(&mut frame, len);
        frame
    }

    /// Frames per datagram of the plans in which frames (destination, traffic class, length) leave.
    fn plans(segmentation: &Segmentation, frames: &[(u8, u8, usize)]) -> Vec<Vec<usize>> {
        let mut arena = Vec::new();
        let mut staged = Vec::new();
        for &(to, traffic_class, len) in frames {
            let start = arena.len() as u32;
            arena.extend(frame(to, traffic_class, len));
            staged.push(Staged { start, end: arena.len() as u32, seal: None });
        }
        let (mut plan, mut plans, mut head) = (Plan::new(), Vec::new(), 0);
        while head < staged.len() {
            let context = Context { source: HERE.into(), scope: 0, segmentation };
            let options = plan.make(&context, &arena, &staged[head..]).unwrap();
            assert_eq!(options.traffic_class, frames[head].1);
            head += plan.totals(plan.datagrams.len()).0;
            plans.push(plan.datagrams.iter().map(|datagram| datagram.frames).collect());
        }
        plans
    }

    #[test]
    fn frames_of_one_length_to_one_destination_leave_together() {
        // A WRITE of six packets, of which the first one is the longest, and an ACK to another peer.
        let write = [(2, 0, 4128), (2, 0, 4112), (2, 0, 4112), (2, 0, 4112), (2, 0, 4112), (2, 0, 100), (3, 0, 20)];
        assert_eq!(plans(&Segmentation::Everything, &write), [vec![2, 4, 1]]);
        assert_eq!(plans(&Segmentation::Never, &write), [vec![1; 7]]);
    }

    #[test]
    fn datagrams_stay_below_64_kib_and_64_packets() {
        assert_eq!(plans(&Segmentation::Everything, &[(2, 0, 4112); 20]), [vec![15, 5]]);
        assert_eq!(plans(&Segmentation::Everything, &[(2, 0, 80); 64]), [vec![64]]);
    }

    #[test]
    fn frames_of_one_traffic_class_leave_with_one_call() {
        let frames = [(2, 0, 80), (2, 0, 80), (3, 0, 60), (3, 0, 60), (3, 0, 90), (2, 4, 80), (2, 4, 96)];
        assert_eq!(plans(&Segmentation::Everything, &frames), [vec![2, 2, 1], vec![1, 1]]);
    }

    #[test]
    fn only_packets_to_sockets_leave_together_and_not_beside_others() {
        let peers = Arc::<SocketPeers>::default();
        peers.note(Ipv4Addr::new(127, 0, 0, 2).into(), ROCE_UDP_PORT);
        let segmentation = Segmentation::Sockets(Sockets::new(peers));
        let frames = [(2, 0, 80), (2, 0, 80), (3, 0, 20), (3, 0, 20), (2, 0, 80), (2, 0, 80)];
        assert_eq!(plans(&segmentation, &frames), [vec![2], vec![1, 1], vec![2]]);
    }
}
