//! Which packets may leave as one datagram of the kernel (`UDP_SEGMENT`).
//!
//! Within a machine, such a datagram passes the kernel's network once, whatever the number of its packets, and a socket gets them
//! together (`UDP_GRO`). Only a socket understands it: without a device that segments on the way, a receiver that bypasses the kernel,
//! as DPDK on a veth, sees one packet that is too long and has no checksum yet. On a wire the packets are separate, but their
//! identifications count up, which the ICRC covers: a socket shows none, but other receivers see them.
//!
//! So on the loopback interface all packets may leave together, and elsewhere those to peers that are sockets. A socket can only send
//! from the UDP port that it is bound to, 4791, while kernels and network cards choose the source port by queue pair, from 49,152
//! on. A wrong guess costs retransmissions: after one, packets leave alone for a while, a longer one each time.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rxe_proto::wire::ROCE_UDP_PORT;

/// Entries of the table of peers, a power of two. A peer that is replaced by another is entered again by its next packet.
const PEERS: usize = 256;

/// Packets that leave alone after a retransmission.
const FIRST_PAUSE: u64 = 1 << 10;

/// Length of a pause after many of them.
const LONGEST_PAUSE: u64 = 1 << 24;

/// Packets that leave together without a retransmission before the next pause is a short one again.
const GOOD_RUN: u64 = 1 << 16;

/// Peers that send from UDP port 4791. One thread enters them, another one looks them up.
#[derive(Debug)]
pub(crate) struct SocketPeers {
    entries: [AtomicU64; PEERS],
}

impl Default for SocketPeers {
    fn default() -> SocketPeers {
        SocketPeers { entries: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl SocketPeers {
    /// Learns from a datagram.
    #[inline]
    pub(crate) fn note(&self, peer: IpAddr, src_port: u16) {
        let (entry, key) = self.entry(peer);
        let is_one = src_port == ROCE_UDP_PORT;
        if (entry.load(Ordering::Relaxed) == key) != is_one {
            entry.store(if is_one { key } else { 0 }, Ordering::Relaxed);
        }
    }

    /// Whether a peer is a socket, as far as known.
    #[inline]
    fn contains(&self, peer: IpAddr) -> bool {
        let (entry, key) = self.entry(peer);
        entry.load(Ordering::Relaxed) == key
    }

    /// Where a peer is entered, and as what. Two IPv6 addresses with one key are as unlikely as a wrong ICRC that looks right.
    fn entry(&self, peer: IpAddr) -> (&AtomicU64, u64) {
        /// 2^64 divided by the golden ratio.
        const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
        let bits = match peer {
            IpAddr::V4(address) => u64::from(address.to_bits()) | 1 << 32,
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                ((bits >> 64) as u64).wrapping_mul(FACTOR).rotate_left(32) ^ bits as u64
            }
        };
        let key = bits.wrapping_add(1).wrapping_mul(FACTOR) | 1;
        (&self.entries[(key >> 56) as usize % PEERS], key)
    }
}

/// The datagrams of packets that a port may form.
#[derive(Debug)]
pub(crate) enum Segmentation {
    /// Nothing: the kernel cannot, or the settings forbid it.
    Never,
    /// Packets to any peer. Checksums stay as they are.
    Everything,
    /// Packets to sockets, with checksums, without which the kernel does not segment.
    Sockets(Sockets),
}

/// Segmentation for peers that are sockets.
#[derive(Debug)]
pub(crate) struct Sockets {
    peers: Arc<SocketPeers>,
    /// Retransmissions of the engine, as last told.
    retransmissions: u64,
    /// Packets that leave alone before others leave together again.
    pause: u64,
    next_pause: u64,
    /// Packets that have left together since the last pause.
    run: u64,
}

impl Sockets {
    pub(crate) fn new(peers: Arc<SocketPeers>) -> Sockets {
        Sockets { peers, retransmissions: 0, pause: 0, next_pause: FIRST_PAUSE, run: 0 }
    }

    /// Packets leave alone for a while, if some have left together.
    fn begin_pause(&mut self) {
        if std::mem::take(&mut self.run) > 0 {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        }
    }
}

/// What a datagram demands of the socket's checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Checksums {
    /// As they are.
    Any,
    On,
    Off,
}

impl Checksums {
    /// What satisfies both; `None` when nothing does.
    pub(crate) fn and(self, other: Checksums) -> Option<Checksums> {
        match (self, other) {
            (Checksums::Any, demand) | (demand, Checksums::Any) => Some(demand),
            (one, other) => (one == other).then_some(one),
        }
    }
}

impl Segmentation {
    /// Whether packets to `destination` may leave together.
    #[inline]
    pub(crate) fn allows(&self, destination: IpAddr) -> bool {
        match self {
            Segmentation::Never => false,
            Segmentation::Everything => true,
            Segmentation::Sockets(sockets) => sockets.pause == 0 && sockets.peers.contains(destination),
        }
    }

    /// What a datagram of some packets to `destination` demands.
    #[inline]
    pub(crate) fn checksums(&self, destination: IpAddr, packets: usize) -> Checksums {
        match self {
            Segmentation::Never | Segmentation::Everything => Checksums::Any,
            Segmentation::Sockets(_) if packets > 1 => Checksums::On,
            Segmentation::Sockets(sockets) if sockets.peers.contains(destination) => Checksums::Any,
            Segmentation::Sockets(_) => Checksums::Off,
        }
    }

    /// Packets were sent in some datagrams.
    #[inline]
    pub(crate) fn sent(&mut self, packets: usize, datagrams: usize) {
        let Segmentation::Sockets(sockets) = self else { return };
        if packets > datagrams {
            sockets.run += packets as u64;
            if sockets.run >= GOOD_RUN {
                sockets.next_pause = FIRST_PAUSE;
            }
        } else {
            sockets.pause = sockets.pause.saturating_sub(packets as u64);
        }
    }

    /// Reports the number of packets that the engine has retransmitted since its start.
    #[inline]
    pub(crate) fn retransmitted(&mut self, total: u64) {
        if let Segmentation::Sockets(sockets) = self
            && sockets.retransmissions != total
        {
            sockets.retransmissions = total;
            sockets.begin_pause();
        }
    }

    /// The kernel has refused packets that were to leave together. Returns whether they may leave alone, instead of being dropped.
    pub(crate) fn refused(&mut self) -> bool {
        let Segmentation::Sockets(sockets) = self else { return false };
        sockets.run += 1;
        sockets.begin_pause();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn for_sockets() -> (Arc<SocketPeers>, Segmentation) {
        let peers = Arc::<SocketPeers>::default();
        (Arc::clone(&peers), Segmentation::Sockets(Sockets::new(peers)))
    }

    #[test]
    fn peers_are_sockets_while_they_send_from_the_port_of_one() {
        let (peers, segmentation) = for_sockets();
        for peer in ["10.0.0.1", "fd00::1", "0.0.0.0", "::"].map(address) {
            assert!(!segmentation.allows(peer));
            peers.note(peer, ROCE_UDP_PORT);
            assert!(segmentation.allows(peer));
        }
        for other in ["10.0.0.2", "fd00::2", "fd00:0:0:1::1", "255.255.255.255"] {
            assert!(!segmentation.allows(address(other)), "{other}");
            peers.note(address(other), 0xC000);
        }
        peers.note(address("10.0.0.1"), 0xC000);
        assert!(!segmentation.allows(address("10.0.0.1")));
        assert!(segmentation.allows(address("fd00::1")));
    }

    #[test]
    fn more_peers_than_entries_replace_each_other() {
        let (peers, segmentation) = for_sockets();
        for last in 0..=u16::MAX {
            let peer = IpAddr::from([10, 0, (last >> 8) as u8, last as u8]);
            peers.note(peer, ROCE_UDP_PORT);
            assert!(segmentation.allows(peer));
        }
        let known = (0..=u16::MAX).filter(|last| segmentation.allows([10, 0, (last >> 8) as u8, *last as u8].into()));
        assert!((PEERS / 2..=PEERS).contains(&known.count()), "they are spread");
    }

    #[test]
    fn after_a_retransmission_packets_leave_alone_for_longer_each_time() {
        let (peers, mut segmentation) = for_sockets();
        let peer = address("10.0.0.1");
        peers.note(peer, ROCE_UDP_PORT);
        segmentation.retransmitted(3);
        assert!(segmentation.allows(peer), "nothing has left together");
        let mut total = 3;
        for pause in [1, 2, 4, 8].map(|times| times * FIRST_PAUSE) {
            segmentation.sent(64, 1);
            segmentation.retransmitted(total);
            assert!(segmentation.allows(peer), "the same number");
            total += 1;
            segmentation.retransmitted(total);
            for _ in 0..pause {
                assert!(!segmentation.allows(peer));
                segmentation.sent(1, 1);
            }
            assert!(segmentation.allows(peer));
        }
        segmentation.sent(GOOD_RUN as usize, 1000);
        assert!(segmentation.refused());
        segmentation.sent(FIRST_PAUSE as usize, FIRST_PAUSE as usize);
        assert!(segmentation.allows(peer), "a short pause again");
    }

    #[test]
    fn datagrams_of_several_packets_have_checksums_and_those_to_unknown_peers_have_none() {
        let (peers, segmentation) = for_sockets();
        let (socket, other) = (address("10.0.0.1"), address("10.0.0.2"));
        peers.note(socket, ROCE_UDP_PORT);
        assert_eq!(segmentation.checksums(socket, 2), Checksums::On);
        assert_eq!(segmentation.checksums(socket, 1), Checksums::Any);
        assert_eq!(segmentation.checksums(other, 1), Checksums::Off);
        assert_eq!(Segmentation::Everything.checksums(other, 9), Checksums::Any);
        assert_eq!(Checksums::On.and(Checksums::Any), Some(Checksums::On));
        assert_eq!(Checksums::On.and(Checksums::Off), None);
    }
}
