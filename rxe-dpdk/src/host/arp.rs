//! ARP (RFC 826) with probes, announcements and conflicts (RFC 5227).

use std::net::{IpAddr, Ipv4Addr};

use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, MacAddr, TxQueue};

use super::ethernet::{self, Ethernet};
use super::neighbour::{Evidence, Update};
use super::node::{NOBODY, Node};

/// Bytes of an ARP packet for IPv4 over Ethernet.
const LEN: usize = 28;
/// Hardware type Ethernet, protocol IPv4, address lengths 6 and 4.
const PREAMBLE: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// The fields of an ARP packet.
struct Arp {
    operation: u16,
    sender_mac: MacAddr,
    sender: Ipv4Addr,
    target_mac: MacAddr,
    target: Ipv4Addr,
}

impl Arp {
    fn parse(data: &[u8]) -> Option<Arp> {
        let (packet, _) = data.split_first_chunk::<LEN>()?;
        if packet[..6] != PREAMBLE {
            return None;
        }
        let mac = |at: usize| MacAddr([0, 1, 2, 3, 4, 5].map(|n| packet[at + n]));
        let ip = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|n| packet[at + n]));
        Some(Arp {
            operation: u16::from_be_bytes([packet[6], packet[7]]),
            sender_mac: mac(8),
            sender: ip(14),
            target_mac: mac(18),
            target: ip(24),
        })
    }

    fn emit(&self, packet: &mut [u8]) {
        packet[..6].copy_from_slice(&PREAMBLE);
        packet[6..8].copy_from_slice(&self.operation.to_be_bytes());
        packet[8..14].copy_from_slice(&self.sender_mac.0);
        packet[14..18].copy_from_slice(&self.sender.octets());
        packet[18..24].copy_from_slice(&self.target_mac.0);
        packet[24..28].copy_from_slice(&self.target.octets());
    }
}

impl Node {
    /// Answers requests for our addresses and learns from what it hears.
    pub(super) fn handle_arp(
        &mut self,
        now: Instant,
        eth: &Ethernet<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let arp = Arp::parse(eth.payload).ok_or(DropReason::ArpMalformed)?;
        let sender_is_station = !arp.sender_mac.is_multicast() && arp.sender_mac != MacAddr::default();
        if !sender_is_station || !matches!(arp.operation, REQUEST | REPLY) || arp.sender.is_multicast() {
            return Err(DropReason::ArpMalformed);
        }
        let sender: IpAddr = arp.sender.into();
        let for_us = self.routing.owns(arp.target.into());
        if self.routing.owns(sender) {
            if arp.sender_mac == self.link.mac {
                // Our own words, back from a loop.
                return Err(DropReason::ForeignMac);
            }
            self.conflict(now, sender, arp.sender_mac, tx);
        }
        let evidence = match arp.operation {
            REPLY => Evidence::Reply,
            _ if for_us => Evidence::Request,
            _ => Evidence::Overheard,
        };
        let update = self.update_neighbour(now, sender, arp.sender_mac, evidence);
        // [HOST-ARP]
        if arp.operation == REQUEST && for_us {
            let answer = Arp {
                operation: REPLY,
                sender_mac: self.link.mac,
                sender: arp.target,
                target_mac: arp.sender_mac,
                target: arp.sender,
            };
            self.send_arp(arp.sender_mac, &answer, tx).ok_or(DropReason::NoTransmitRoom)?;
            self.stats.arp_replies_sent.inc();
            return Ok(());
        }
        // A gratuitous request names its sender as the target; a frame that told us something was no waste either.
        if for_us || matches!(update, Update::Learned | Update::Changed | Update::Confirmed) {
            Ok(())
        } else {
            Err(DropReason::ForeignAddress)
        }
    }

    /// Asks for the MAC of `ip`. `None` when the port took no more.
    pub(super) fn ask_arp(&mut self, ip: Ipv4Addr, to: Option<MacAddr>, tx: &mut impl TxQueue) -> Option<()> {
        let sender = match self.routing.source(ip.into(), ip.into()) {
            Some(IpAddr::V4(sender)) => sender,
            // A question from nobody is a probe: it is answered too.
            _ => NOBODY,
        };
        let request = Arp {
            operation: REQUEST,
            sender_mac: self.link.mac,
            sender,
            target_mac: to.unwrap_or_default(),
            target: ip,
        };
        self.send_arp(to.unwrap_or(MacAddr::BROADCAST), &request, tx)?;
        self.stats.arp_requests_sent.inc();
        Some(())
    }

    /// Tells everybody that `ip` is ours.
    pub(super) fn announce_arp(&mut self, ip: Ipv4Addr, tx: &mut impl TxQueue) -> Option<()> {
        let announcement = Arp {
            operation: REQUEST,
            sender_mac: self.link.mac,
            sender: ip,
            target_mac: MacAddr::default(),
            target: ip,
        };
        self.send_arp(MacAddr::BROADCAST, &announcement, tx)
    }

    fn send_arp(&self, to: MacAddr, arp: &Arp, tx: &mut impl TxQueue) -> Option<()> {
        arp.emit(self.link.push(tx, to, ethernet::ARP, LEN)?);
        Some(())
    }
}
