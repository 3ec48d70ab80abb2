//! ARP (RFC 826) with probes, announcements and defences of our addresses (RFC 5227).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::wire::net::ethertype;
use rxe_proto::wire::{DropReason, MacAddr, TxQueue};

use super::HostStats;
use super::interface::Interface;
use super::interface::link::EthFrame;
use super::interface::neighbour::{Evidence, Update};

/// Bytes of an ARP packet for IPv4 over Ethernet.
const LEN: usize = 28;
/// Hardware type Ethernet, protocol IPv4, address lengths 6 and 4.
const PREAMBLE: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// The fields of an ARP packet.
struct ArpPacket {
    operation: u16,
    sender_mac: MacAddr,
    sender: Ipv4Addr,
    target_mac: MacAddr,
    target: Ipv4Addr,
}

impl ArpPacket {
    fn parse(data: &[u8]) -> Option<ArpPacket> {
        let (packet, _) = data.split_first_chunk::<LEN>()?;
        if packet[..6] != PREAMBLE {
            return None;
        }
        let mac = |at: usize| MacAddr([0, 1, 2, 3, 4, 5].map(|n| packet[at + n]));
        let ip = |at: usize| Ipv4Addr::from([0, 1, 2, 3].map(|n| packet[at + n]));
        Some(ArpPacket {
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

    /// `None` when the port takes no more.
    fn send(&self, interface: &Interface, to: MacAddr, tx: &mut impl TxQueue) -> Option<()> {
        self.emit(interface.link.push(tx, to, ethertype::ARP, LEN)?);
        Some(())
    }
}

/// ARP on one interface.
pub(super) struct Arp {
    stats: Arc<HostStats>,
}

impl Arp {
    pub(super) fn new(stats: Arc<HostStats>) -> Arp {
        Arp { stats }
    }

    /// Answers requests for our addresses and updates the neighbour table.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        eth: &EthFrame<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let arp = ArpPacket::parse(eth.payload).ok_or(DropReason::ArpMalformed)?;
        let sender_is_station = !arp.sender_mac.is_multicast() && arp.sender_mac != MacAddr::default();
        if !sender_is_station || !matches!(arp.operation, REQUEST | REPLY) || arp.sender.is_multicast() {
            return Err(DropReason::ArpMalformed);
        }
        if arp.sender_mac == interface.link.mac {
            // A loop returned our own packet.
            return Err(DropReason::ForeignMac);
        }
        let sender: IpAddr = arp.sender.into();
        let for_us = interface.routing.owns(arp.target.into());
        let conflict = interface.routing.owns(sender);
        // Without room, the next frame of the other station has another chance.
        if conflict
            && interface.conflicts.claimed(now, sender, arp.sender_mac)
            && self.announce(interface, arp.sender, tx).is_some()
        {
            interface.conflicts.defended(now, sender);
        }
        let evidence = match arp.operation {
            REPLY => Evidence::Reply,
            _ if for_us => Evidence::Request,
            _ => Evidence::Overheard,
        };
        let update = interface.update_neighbour(now, sender, arp.sender_mac, evidence);
        // compliance.md [HOST-ARP]: Every ARP request for an address of ours is answered, unicast checks and probes
        // included.
        if arp.operation == REQUEST && for_us {
            let reply = ArpPacket {
                operation: REPLY,
                sender_mac: interface.link.mac,
                sender: arp.target,
                target_mac: arp.sender_mac,
                target: arp.sender,
            };
            reply.send(interface, arp.sender_mac, tx).ok_or(DropReason::NoTransmitRoom)?;
            self.stats.arp_replies_sent.inc();
            if arp.sender.is_unspecified() {
                self.stats.address_probes_answered.inc();
                // Switches track stations by probes to one of them, which are no claim.
                if eth.dst.is_multicast() {
                    interface.conflicts.probed(now, arp.target.into(), arp.sender_mac);
                }
            }
            return Ok(());
        }
        // A gratuitous request has its sender as the target. A frame that changed or confirmed an entry is no drop.
        if for_us || conflict || matches!(update, Update::Learned | Update::Changed | Update::Confirmed) {
            Ok(())
        } else {
            Err(DropReason::ForeignAddress)
        }
    }

    /// Requests the MAC address of `ip`, from the station `to` or from all. `None` when the port takes no more.
    pub(super) fn solicit(
        &mut self,
        interface: &Interface,
        ip: Ipv4Addr,
        to: Option<MacAddr>,
        tx: &mut impl TxQueue,
    ) -> Option<()> {
        let sender = match interface.routing.source(ip.into(), ip.into()) {
            Some(IpAddr::V4(sender)) => sender,
            // Without a sender address the request is a probe, which is answered too.
            _ => Ipv4Addr::UNSPECIFIED,
        };
        let request = ArpPacket {
            operation: REQUEST,
            sender_mac: interface.link.mac,
            sender,
            target_mac: to.unwrap_or_default(),
            target: ip,
        };
        request.send(interface, to.unwrap_or(MacAddr::BROADCAST), tx)?;
        self.stats.arp_requests_sent.inc();
        Some(())
    }

    /// Asks all whether another station uses our address `ip`. `None` when the port takes no more.
    pub(super) fn probe(&mut self, interface: &Interface, ip: Ipv4Addr, tx: &mut impl TxQueue) -> Option<()> {
        let probe = ArpPacket {
            operation: REQUEST,
            sender_mac: interface.link.mac,
            // No address, so that nobody learns ours from it.
            sender: Ipv4Addr::UNSPECIFIED,
            target_mac: MacAddr::default(),
            target: ip,
        };
        probe.send(interface, MacAddr::BROADCAST, tx)?;
        self.stats.address_probes_sent.inc();
        Some(())
    }

    /// Announces our address `ip` to all. `None` when the port takes no more.
    pub(super) fn announce(&mut self, interface: &Interface, ip: Ipv4Addr, tx: &mut impl TxQueue) -> Option<()> {
        let announcement = ArpPacket {
            operation: REQUEST,
            sender_mac: interface.link.mac,
            sender: ip,
            target_mac: MacAddr::default(),
            target: ip,
        };
        announcement.send(interface, MacAddr::BROADCAST, tx)?;
        self.stats.announcements_sent.inc();
        Some(())
    }
}
