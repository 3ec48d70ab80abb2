//! ICMP and ICMPv6: echo replies and "unreachable" messages. Neighbour discovery and MLD, which use ICMPv6, share its
//! checksum.

use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::wire::net::{IPV4_LEN, IPV6_LEN};
use rxe_proto::wire::{Checksum, DropReason, TxQueue};

use super::HostStats;
use super::config::MIN_MTU;
use super::interface::Interface;
use super::interface::link::EthFrame;
use super::ip::{AddrPair, ICMP, ICMPV6, IpHeader, IpPacket};
use super::rate_limit::RateLimit;

/// Bytes of an echo or "unreachable" message in front of the data.
const HEADER: usize = 8;

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const V6_UNREACHABLE: u8 = 1;
const V6_PARAMETER_PROBLEM: u8 = 4;
const V6_ECHO_REQUEST: u8 = 128;
const V6_ECHO_REPLY: u8 = 129;

/// Longest IPv4 packet with an error message: every IPv4 host accepts packets of this size.
const V4_ERROR_MAX: usize = 576;

/// "Unreachable" messages per second.
const UNREACHABLES_PER_SECOND: u32 = 100;

/// Sets the checksum (bytes 2 and 3) of a message; ICMPv6 includes the addresses.
pub(super) fn fill_checksum(pair: AddrPair, message: &mut [u8]) {
    let start = match pair {
        AddrPair::V4 { .. } => Checksum::default(),
        AddrPair::V6 { .. } => pair.pseudo_header(ICMPV6, message.len()),
    };
    message[2..4].fill(0);
    let sum = start.with(message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// Checks length and checksum of an ICMPv6 message; returns its type.
pub(super) fn check_v6(ip: &IpPacket<'_>) -> Result<u8, DropReason> {
    if ip.payload.len() < HEADER {
        Err(DropReason::IcmpMalformed)
    } else if ip.transport_checksum_ok(ICMPV6) {
        Ok(ip.payload[0])
    } else {
        Err(DropReason::HostChecksum)
    }
}

/// Why a packet is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreachable {
    Port,
    Protocol,
}

/// ICMP and ICMPv6 on one interface.
pub(super) struct Icmp {
    limit: RateLimit,
    stats: Arc<HostStats>,
}

impl Icmp {
    pub(super) fn new(stats: Arc<HostStats>) -> Icmp {
        Icmp { limit: RateLimit::new(UNREACHABLES_PER_SECOND), stats }
    }

    /// Handles an ICMP message.
    pub(super) fn handle_v4(
        &mut self,
        interface: &mut Interface,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        if ip.payload.len() < HEADER {
            return Err(DropReason::IcmpMalformed);
        }
        if Checksum::default().with(ip.payload).finish() != 0 {
            return Err(DropReason::HostChecksum);
        }
        match ip.payload[..2] {
            [ECHO_REQUEST, 0] => self.send_echo_reply(interface, eth, ip, ip.pair.reversed(), tx),
            _ => Err(DropReason::HostUnsupported),
        }
    }

    /// Handles an ICMPv6 message that passed [`check_v6`] and belongs to no other protocol.
    pub(super) fn handle_v6(
        &mut self,
        interface: &mut Interface,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        let (AddrPair::V6 { src, dst }, [V6_ECHO_REQUEST, 0, ..]) = (ip.pair, ip.payload) else {
            return Err(DropReason::HostUnsupported);
        };
        if src.is_unspecified() {
            return Err(DropReason::IpHeaderMalformed);
        }
        // A request to a group is answered from an address of ours.
        let from = if dst.is_multicast() { interface.routing.source(src.into(), src.into()) } else { Some(dst.into()) };
        let reply = from.and_then(|from| AddrPair::new(from, src.into())).ok_or(DropReason::HostUnsupported)?;
        self.send_echo_reply(interface, eth, ip, reply, tx)
    }

    /// Answers an echo request, to the MAC address from which it came: nothing needs resolving.
    fn send_echo_reply(
        &mut self,
        interface: &mut Interface,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        pair: AddrPair,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        if ip.packet.len() > usize::from(interface.mtu) {
            return Err(DropReason::IpLengthMismatch);
        }
        let header = IpHeader { traffic_class: ip.traffic_class, ..IpHeader::new(pair, ip.protocol) };
        let reply = interface.push_ip(tx, eth.src, header, ip.payload.len())?;
        reply.copy_from_slice(ip.payload);
        reply[0] = match pair {
            AddrPair::V4 { .. } => ECHO_REPLY,
            AddrPair::V6 { .. } => V6_ECHO_REPLY,
        };
        fill_checksum(pair, reply);
        self.stats.echo_replies_sent.inc();
        Ok(())
    }

    /// Tells the sender of `ip`, which is addressed to us alone, that nothing here accepts it. Rate-limited, so that
    /// forged packets cannot make us flood a third host.
    pub(super) fn send_unreachable(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        eth: &EthFrame<'_>,
        ip: &IpPacket<'_>,
        unreachable: Unreachable,
        tx: &mut impl TxQueue,
    ) {
        if eth.dst.is_multicast() || ip.pair.src().is_unspecified() {
            return;
        }
        if !self.limit.allow(now) {
            self.stats.unreachables_limited.inc();
            return;
        }
        let (protocol, max, [kind, code, pointer]) = match ip.pair {
            AddrPair::V4 { .. } => {
                let code = if unreachable == Unreachable::Port { 3 } else { 2 };
                (ICMP, V4_ERROR_MAX - IPV4_LEN, [UNREACHABLE, code, 0])
            }
            AddrPair::V6 { .. } => {
                // A parameter problem points at the field, here the next header.
                let start = match unreachable {
                    Unreachable::Port => [V6_UNREACHABLE, 4, 0],
                    Unreachable::Protocol => [V6_PARAMETER_PROBLEM, 1, 6],
                };
                (ICMPV6, usize::from(MIN_MTU) - IPV6_LEN, start)
            }
        };
        let pair = ip.pair.reversed();
        let quoted = &ip.packet[..ip.packet.len().min(max - HEADER)];
        let header = IpHeader::new(pair, protocol);
        let Ok(message) = interface.push_ip(tx, eth.src, header, HEADER + quoted.len()) else { return };
        let (head, tail) = message.split_at_mut(HEADER);
        head.copy_from_slice(&[kind, code, 0, 0, 0, 0, 0, pointer]);
        tail.copy_from_slice(quoted);
        fill_checksum(pair, message);
        self.stats.unreachables_sent.inc();
    }
}
