//! The filter of a capture.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rxe_proto::wire::net::{ETH_LEN, IP_PROTO_UDP, IPV6_LEN, ROCE_UDP_PORT, UDP_LEN, VLAN_LEN, ethertype};
use rxe_proto::wire::{BTH_LEN, Headers, OPCODES};

use crate::worker::injector::Direction;

/// A local queue pair whose packets are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WantedQp {
    /// Its number, the destination of received packets.
    pub qpn: u32,
    /// The peer's address and queue pair number, the destination of sent packets; `None` for datagrams, which carry their
    /// sender's number.
    pub peer: Option<(IpAddr, u32)>,
}

/// Admits frames that match one of the queue pairs and one of the peers. An empty list matches every frame.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Filter {
    /// Queue pairs whose packets are recorded; empty for all.
    pub qps: Vec<WantedQp>,
    /// Addresses whose packets are recorded; empty for all.
    pub peers: Vec<IpAddr>,
}

impl Filter {
    /// Whether a frame is recorded.
    pub fn admits(&self, direction: Direction, frame: &[u8]) -> bool {
        if self.qps.is_empty() && self.peers.is_empty() {
            return true;
        }
        let Some(addresses) = Addresses::of(frame) else { return false };
        let other = match direction {
            Direction::Rx => addresses.src,
            Direction::Tx => addresses.dst,
        };
        (self.peers.is_empty() || self.peers.contains(&other))
            && (self.qps.is_empty() || self.qps.iter().any(|qp| qp.has(direction, &addresses)))
    }
}

impl WantedQp {
    fn has(&self, direction: Direction, addresses: &Addresses) -> bool {
        match direction {
            Direction::Rx => addresses.dest_qp == Some(self.qpn),
            Direction::Tx if addresses.src_qp.is_some() => addresses.src_qp == Some(self.qpn),
            Direction::Tx => self.peer.is_some_and(|(ip, qpn)| addresses.dst == ip && addresses.dest_qp == Some(qpn)),
        }
    }
}

/// Source and destination of a frame. The rest of the frame may be malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Addresses {
    src: IpAddr,
    dst: IpAddr,
    /// Present in RoCEv2 packets.
    dest_qp: Option<u32>,
    /// Present in RoCEv2 datagrams.
    src_qp: Option<u32>,
}

impl Addresses {
    fn of(frame: &[u8]) -> Option<Addresses> {
        let mut at = ETH_LEN;
        let mut kind = be16(frame, ETH_LEN - 2)?;
        if kind == ethertype::VLAN {
            at += VLAN_LEN;
            kind = be16(frame, at - 2)?;
        }
        let packet = frame.get(at..)?;
        let ip4 = |at: usize| Some(IpAddr::from(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?)));
        let ip6 = |at: usize| Some(IpAddr::from(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?)));
        let (src, dst, protocol, header) = match kind {
            ethertype::IPV4 => (ip4(12)?, ip4(16)?, *packet.get(9)?, usize::from(packet.first()? & 0xF) * 4),
            ethertype::IPV6 => (ip6(8)?, ip6(24)?, *packet.get(6)?, IPV6_LEN),
            ethertype::ARP => (ip4(14)?, ip4(24)?, 0, 0),
            _ => return None,
        };
        let mut addresses = Addresses { src, dst, dest_qp: None, src_qp: None };
        if protocol == IP_PROTO_UDP
            && be16(packet, header + 2) == Some(ROCE_UDP_PORT)
            && let Some(bth) = packet.get(header + UDP_LEN..)
        {
            addresses.dest_qp = qpn(bth, 4);
            let info = bth.first().and_then(|opcode| OPCODES[usize::from(*opcode)].as_ref());
            // A DETH follows the BTH at once.
            if info.is_some_and(|info| info.headers.contains(Headers::DETH)) {
                addresses.src_qp = qpn(bth, BTH_LEN + 4);
            }
        }
        Some(addresses)
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

/// The lower 24 bits of a word.
fn qpn(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word) & 0xFF_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: [u8; 4] = [10, 0, 0, 1];
    const PEERS: [u8; 4] = [10, 0, 0, 2];

    fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
        [&[0; 12][..], &kind.to_be_bytes(), payload].concat()
    }

    /// A minimal IPv4 and UDP header, followed by these bytes of a BTH.
    fn roce4(src: [u8; 4], dst: [u8; 4], bth: &[u8]) -> Vec<u8> {
        let mut packet = [&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0][..], &src, &dst].concat();
        packet.extend([0xC0, 0, 0x12, 0xB7, 0, 0, 0, 0]);
        packet.extend(bth);
        packet
    }

    fn bth(opcode: u8, dest: u8) -> Vec<u8> {
        vec![opcode, 0, 0xFF, 0xFF, 0, 0, 0, dest, 0, 0, 0, 1]
    }

    #[test]
    fn a_queue_pair_is_matched_in_both_directions() {
        let peer = Some((IpAddr::from(PEERS), 0x22));
        let filter = Filter { qps: vec![WantedQp { qpn: 0x11, peer }], peers: Vec::new() };
        let write = |src, dst, qpn| ethernet(ethertype::IPV4, &roce4(src, dst, &bth(0x0A, qpn)));
        assert!(filter.admits(Direction::Rx, &write(PEERS, OURS, 0x11)));
        assert!(!filter.admits(Direction::Rx, &write(PEERS, OURS, 0x22)));
        assert!(filter.admits(Direction::Tx, &write(OURS, PEERS, 0x22)));
        assert!(!filter.admits(Direction::Tx, &write(OURS, PEERS, 0x11)));
        assert!(!filter.admits(Direction::Tx, &write(OURS, [10, 0, 0, 3], 0x22)), "another host's queue pair");
        // A tag in front, and cut off behind the number.
        let tagged = [&[0, 7, 8, 0][..], &roce4(PEERS, OURS, &bth(0x0A, 0x11)[..8])].concat();
        assert!(filter.admits(Direction::Rx, &ethernet(ethertype::VLAN, &tagged)));
        assert!(!filter.admits(Direction::Rx, &write(PEERS, OURS, 0x11)[..48]), "cut off before it");
        assert!(!filter.admits(Direction::Rx, &[]));
    }

    #[test]
    fn sent_datagrams_are_matched_by_their_source_qpn() {
        let filter = Filter { qps: vec![WantedQp { qpn: 1, peer: None }], peers: Vec::new() };
        let datagram = |from: u8, to: u8| {
            let deth = [0, 0, 0, 0, 0, 0, 0, from];
            ethernet(ethertype::IPV4, &roce4(OURS, PEERS, &[&bth(0x64, to)[..], &deth].concat()))
        };
        assert!(filter.admits(Direction::Tx, &datagram(1, 7)) && !filter.admits(Direction::Tx, &datagram(7, 1)));
        assert!(filter.admits(Direction::Rx, &datagram(7, 1)) && !filter.admits(Direction::Rx, &datagram(1, 7)));
    }

    #[test]
    fn a_peer_is_matched_in_arp_ipv4_and_ipv6() {
        let filter = Filter { qps: Vec::new(), peers: vec![PEERS.into(), "fd00::2".parse().unwrap()] };
        let arp = |src: [u8; 4], dst: [u8; 4]| {
            ethernet(ethertype::ARP, &[&[0, 1, 8, 0, 6, 4, 0, 1][..], &[0; 6], &src, &[0; 6], &dst].concat())
        };
        assert!(filter.admits(Direction::Rx, &arp(PEERS, OURS)) && filter.admits(Direction::Tx, &arp(OURS, PEERS)));
        assert!(
            !filter.admits(Direction::Rx, &arp(OURS, PEERS)),
            "the target address of an ARP request is not its sender"
        );
        let mut ping6 = vec![0x60, 0, 0, 0, 0, 0, 58, 64];
        ping6.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        ping6.extend([0; 16]);
        assert!(filter.admits(Direction::Rx, &ethernet(ethertype::IPV6, &ping6)));
        assert!(!filter.admits(Direction::Tx, &ethernet(ethertype::IPV6, &ping6)));
        assert!(!filter.admits(Direction::Rx, &ethernet(0x88CC, &[0; 40])), "no address");
        assert!(Filter::default().admits(Direction::Rx, &[]), "an empty filter admits every frame");
    }
}
