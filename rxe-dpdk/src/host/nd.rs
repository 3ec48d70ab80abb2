//! IPv6 neighbour discovery (RFC 4861): solicitations and advertisements. Router advertisements and redirects are not
//! believed: routes are configured. Our own addresses are announced, not probed for (no duplicate address detection).

use std::net::{IpAddr, Ipv6Addr};

use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, MacAddr, TxQueue};

use super::ethernet::Ethernet;
use super::icmp;
use super::ip::{ICMPV6, Ip, IpHeader, Pair};
use super::neighbour::Evidence;
use super::node::Node;
use super::route::{ALL_NODES, multicast_mac_v6, solicited_node};

/// ICMPv6 type of a neighbour solicitation.
pub(super) const SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub(super) const ADVERTISEMENT: u8 = 136;

/// A message with any other hop limit may have crossed a router, and is no neighbour's.
const HOP_LIMIT: u8 = 255;
/// Bytes before the options.
const FIXED: usize = 24;
/// Bytes with one link-layer address option.
const LEN: usize = FIXED + 8;
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A neighbour message: solicitation and advertisement have one shape.
struct Message {
    /// Flags of an advertisement.
    flags: u8,
    target: Ipv6Addr,
    /// The link-layer address option of the kind that goes with the message.
    mac: Option<MacAddr>,
}

impl Message {
    /// Reads a message whose checksum was right, by the rules of RFC 4861 sections 7.1.1 and 7.1.2.
    fn parse(ip: &Ip<'_>, option: u8) -> Option<Message> {
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

/// Writes a message with one option and sends it.
fn send(
    node: &mut Node,
    to: MacAddr,
    pair: Pair,
    (kind, flags, option): (u8, u8, u8),
    target: Ipv6Addr,
    tx: &mut impl TxQueue,
) -> Option<()> {
    let mac = node.link.mac;
    let header = IpHeader { hop_limit: HOP_LIMIT, ..IpHeader::new(pair, ICMPV6) };
    let message = node.push_ip(tx, to, header, LEN).ok()?;
    message[..8].copy_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    message[8..FIXED].copy_from_slice(&target.octets());
    message[FIXED..FIXED + 2].copy_from_slice(&[option, 1]);
    message[FIXED + 2..].copy_from_slice(&mac.0);
    icmp::fill_checksum(Some(pair), message);
    Some(())
}

/// Asks for the MAC of `target`: the station `to`, or the group that it is in. `None` when the port took no more.
pub(super) fn solicit(node: &mut Node, target: Ipv6Addr, to: Option<MacAddr>, tx: &mut impl TxQueue) -> Option<()> {
    let dst = if to.is_some() { target } else { solicited_node(target) };
    let to = to.unwrap_or(multicast_mac_v6(dst));
    let Some(IpAddr::V6(src)) = node.routing.source(target.into(), target.into()) else { return Some(()) };
    send(node, to, Pair::V6 { src, dst }, (SOLICITATION, 0, SOURCE_ADDRESS), target, tx)?;
    node.stats.nd_solicitations_sent.inc();
    Some(())
}

/// Tells everybody that `ip` is ours.
pub(super) fn announce(node: &mut Node, ip: Ipv6Addr, tx: &mut impl TxQueue) -> Option<()> {
    let pair = Pair::V6 { src: ip, dst: ALL_NODES };
    send(node, multicast_mac_v6(ALL_NODES), pair, (ADVERTISEMENT, OVERRIDE, TARGET_ADDRESS), ip, tx)
}

/// Answers who asks for an address of ours, and learns where it is.
pub(super) fn handle_solicitation(
    node: &mut Node,
    now: Instant,
    eth: &Ethernet<'_>,
    ip: &Ip<'_>,
    tx: &mut impl TxQueue,
) -> Result<(), DropReason> {
    let Pair::V6 { src, dst } = ip.pair else { return Err(DropReason::IcmpMalformed) };
    let message = Message::parse(ip, SOURCE_ADDRESS).ok_or(DropReason::IcmpMalformed)?;
    let target = message.target;
    // Without an address yet, it can only ask whether anybody has `target`, and only in its group.
    let is_probe = src.is_unspecified();
    if is_probe && (message.mac.is_some() || dst != solicited_node(target)) {
        return Err(DropReason::IcmpMalformed);
    }
    if !node.routing.owns(target.into()) {
        return Err(DropReason::ForeignAddress);
    }
    // [HOST-ND]
    let (to, dst, flags) = if is_probe {
        (multicast_mac_v6(ALL_NODES), ALL_NODES, OVERRIDE)
    } else {
        if let Some(mac) = message.mac {
            node.update_neighbour(now, src.into(), mac, Evidence::Request);
        }
        (message.mac.unwrap_or(eth.src), src, SOLICITED | OVERRIDE)
    };
    let pair = Pair::V6 { src: target, dst };
    send(node, to, pair, (ADVERTISEMENT, flags, TARGET_ADDRESS), target, tx).ok_or(DropReason::NoTransmitRoom)?;
    node.stats.nd_advertisements_sent.inc();
    Ok(())
}

/// Learns from an answer or announcement.
pub(super) fn handle_advertisement(
    node: &mut Node,
    now: Instant,
    eth: &Ethernet<'_>,
    ip: &Ip<'_>,
    tx: &mut impl TxQueue,
) -> Result<(), DropReason> {
    let message = Message::parse(ip, TARGET_ADDRESS).ok_or(DropReason::IcmpMalformed)?;
    let solicited = message.flags & SOLICITED != 0;
    if ip.pair.src().is_unspecified() || (solicited && ip.pair.dst().is_multicast()) {
        return Err(DropReason::IcmpMalformed);
    }
    let target: IpAddr = message.target.into();
    if node.routing.owns(target) {
        node.conflict(now, target, message.mac.unwrap_or(eth.src), tx);
        return Ok(());
    }
    // An answer to a unicast question may leave the MAC out: the question proved that it is known.
    let mac = message.mac.or_else(|| node.neighbours.peek(target)).ok_or(DropReason::IcmpMalformed)?;
    let evidence = match (message.flags & OVERRIDE != 0, solicited) {
        (true, true) => Evidence::Reply,
        (true, false) => Evidence::Overheard,
        (false, _) => Evidence::Hint,
    };
    node.update_neighbour(now, target, mac, evidence);
    Ok(())
}
