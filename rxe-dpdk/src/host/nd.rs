//! IPv6 neighbour discovery (RFC 4861): solicitations and advertisements, and duplicate address detection for our own
//! addresses (RFC 4862 section 5.4). Router advertisements and redirects are ignored, as routes are configured.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, MacAddr, TxQueue};

use super::HostStats;
use super::icmp;
use super::interface::Interface;
use super::interface::link::EthFrame;
use super::interface::neighbour::Evidence;
use super::ip::{AddrPair, ICMPV6, IpHeader, IpPacket};
use super::multicast::{ALL_NODES, solicited_node};
use rxe_adapter::multicast::multicast_mac_v6;

/// ICMPv6 type of a neighbour solicitation.
pub(super) const SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub(super) const ADVERTISEMENT: u8 = 136;

/// A message with any other hop limit may have crossed a router, so it is not from a neighbour.
const HOP_LIMIT: u8 = 255;
/// Bytes in front of the options.
const FIXED: usize = 24;
/// Bytes with one link-layer address option.
const LEN: usize = FIXED + 8;
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A received neighbour message; solicitations and advertisements have the same layout.
struct Message {
    /// Flags of an advertisement.
    flags: u8,
    target: Ipv6Addr,
    /// The link-layer address option that belongs to this type of message.
    mac: Option<MacAddr>,
}

impl Message {
    /// Reads a message with a correct checksum, by the rules of RFC 4861 sections 7.1.1 and 7.1.2.
    fn parse(ip: &IpPacket<'_>, option: u8) -> Option<Message> {
        let (fixed, mut options) = ip.payload.split_first_chunk::<FIXED>()?;
        let target = Ipv6Addr::from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|n| fixed[8 + n]));
        if ip.hop_limit != HOP_LIMIT || fixed[1] != 0 || target.is_multicast() {
            return None;
        }
        let mut mac = None;
        while let [kind, units, ..] = *options {
            let (this, rest) = options.split_at_checked(usize::from(units) * 8).filter(|(this, _)| !this.is_empty())?;
            if kind == option && units == 1 {
                mac = this.last_chunk::<6>().map(|m| MacAddr(*m));
            }
            options = rest;
        }
        if !options.is_empty() || mac.is_some_and(|m| m.is_multicast() || m == MacAddr::default()) {
            return None;
        }
        Some(Message { flags: fixed[4], target, mac })
    }
}

/// Sends a message, with our MAC address if there is an option for it. `None` when the port takes no more.
fn send(
    interface: &mut Interface,
    to: MacAddr,
    pair: AddrPair,
    (kind, flags, option): (u8, u8, Option<u8>),
    target: Ipv6Addr,
    tx: &mut impl TxQueue,
) -> Option<()> {
    let mac = interface.link.mac;
    let header = IpHeader { hop_limit: HOP_LIMIT, ..IpHeader::new(pair, ICMPV6) };
    let message = interface.push_ip(tx, to, header, if option.is_some() { LEN } else { FIXED }).ok()?;
    message[..8].copy_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    message[8..FIXED].copy_from_slice(&target.octets());
    if let Some(option) = option {
        message[FIXED..FIXED + 2].copy_from_slice(&[option, 1]);
        message[FIXED + 2..].copy_from_slice(&mac.0);
    }
    icmp::fill_checksum(pair, message);
    Some(())
}

/// Neighbour discovery on one interface.
pub(super) struct Nd {
    stats: Arc<HostStats>,
}

impl Nd {
    pub(super) fn new(stats: Arc<HostStats>) -> Nd {
        Nd { stats }
    }

    /// Solicits the MAC address of `target`, from the station `to` or from the group of `target`. `None` when the port
    /// takes no more.
    pub(super) fn solicit(
        &mut self,
        interface: &mut Interface,
        target: Ipv6Addr,
        to: Option<MacAddr>,
        tx: &mut impl TxQueue,
    ) -> Option<()> {
        let dst = if to.is_some() { target } else { solicited_node(target) };
        let to = to.unwrap_or(multicast_mac_v6(dst));
        let Some(IpAddr::V6(src)) = interface.routing.source(target.into(), target.into()) else { return Some(()) };
        let pair = AddrPair::V6 { src, dst };
        send(interface, to, pair, (SOLICITATION, 0, Some(SOURCE_ADDRESS)), target, tx)?;
        self.stats.nd_solicitations_sent.inc();
        Some(())
    }

    /// Asks the group of our address `ip` whether another station uses it. `None` when the port takes no more.
    pub(super) fn probe(&mut self, interface: &mut Interface, ip: Ipv6Addr, tx: &mut impl TxQueue) -> Option<()> {
        let dst = solicited_node(ip);
        // No address, so that nobody learns ours from it; then the option must be missing (RFC 4861 section 4.3).
        let pair = AddrPair::V6 { src: Ipv6Addr::UNSPECIFIED, dst };
        send(interface, multicast_mac_v6(dst), pair, (SOLICITATION, 0, None), ip, tx)?;
        self.stats.address_probes_sent.inc();
        Some(())
    }

    /// Announces our address `ip` to all. `None` when the port takes no more.
    pub(super) fn announce(&mut self, interface: &mut Interface, ip: Ipv6Addr, tx: &mut impl TxQueue) -> Option<()> {
        let pair = AddrPair::V6 { src: ip, dst: ALL_NODES };
        send(interface, multicast_mac_v6(ALL_NODES), pair, (ADVERTISEMENT, OVERRIDE, Some(TARGET_ADDRESS)), ip, tx)?;
        self.stats.announcements_sent.inc();
        Some(())
    }

    /// Answers a solicitation for an address of ours, and learns the sender's MAC address.
    pub(super) fn handle_solicitation(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let AddrPair::V6 { src, dst } = ip.pair else { return Err(DropReason::IcmpMalformed) };
        let message = Message::parse(ip, SOURCE_ADDRESS).ok_or(DropReason::IcmpMalformed)?;
        let target = message.target;
        // A sender without an address probes whether `target` is in use, which is allowed to the target's group only.
        let is_probe = src.is_unspecified();
        if is_probe && (message.mac.is_some() || dst != solicited_node(target)) {
            return Err(DropReason::IcmpMalformed);
        }
        if !interface.routing.owns(target.into()) {
            return Err(DropReason::ForeignAddress);
        }
        // compliance.md [HOST-ND]: Every neighbour solicitation for an address of ours is answered, to all nodes when
        // it is a probe.
        let (to, dst, flags) = if is_probe {
            (multicast_mac_v6(ALL_NODES), ALL_NODES, OVERRIDE)
        } else {
            if let Some(mac) = message.mac {
                interface.update_neighbour(now, src.into(), mac, Evidence::Request);
            }
            (message.mac.unwrap_or(eth.src), src, SOLICITED | OVERRIDE)
        };
        let pair = AddrPair::V6 { src: target, dst };
        send(interface, to, pair, (ADVERTISEMENT, flags, Some(TARGET_ADDRESS)), target, tx)
            .ok_or(DropReason::NoTransmitRoom)?;
        self.stats.nd_advertisements_sent.inc();
        if is_probe {
            self.stats.address_probes_answered.inc();
            interface.conflicts.probed(now, target.into(), eth.src);
        }
        Ok(())
    }

    /// Updates the neighbour table from an advertisement.
    pub(super) fn handle_advertisement(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let message = Message::parse(ip, TARGET_ADDRESS).ok_or(DropReason::IcmpMalformed)?;
        let solicited = message.flags & SOLICITED != 0;
        if ip.pair.src().is_unspecified() || (solicited && ip.pair.dst().is_multicast()) {
            return Err(DropReason::IcmpMalformed);
        }
        let target: IpAddr = message.target.into();
        if interface.routing.owns(target) {
            let mac = message.mac.unwrap_or(eth.src);
            if mac == interface.link.mac {
                // A loop returned our own message.
                return Err(DropReason::ForeignMac);
            }
            // Without room, the next message of the other station has another chance.
            if interface.conflicts.claimed(now, target, mac) && self.announce(interface, message.target, tx).is_some() {
                interface.conflicts.defended(now, target);
            }
            return Ok(());
        }
        // The answer to a unicast solicitation may omit the MAC address: it is known then.
        let mac = message.mac.or_else(|| interface.neighbours.peek(target)).ok_or(DropReason::IcmpMalformed)?;
        let evidence = match (message.flags & OVERRIDE != 0, solicited) {
            (true, true) => Evidence::Reply,
            (true, false) => Evidence::Overheard,
            (false, _) => Evidence::Hint,
        };
        interface.update_neighbour(now, target, mac, evidence);
        Ok(())
    }
}
