//! ICMP and ICMPv6: echo replies, "nobody here wants that", and the way to neighbour discovery.

use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, TxQueue};

use super::checksum::Sum;
use super::config::MIN_MTU;
use super::ethernet::Ethernet;
use super::ip::{ICMP, ICMPV6, IPV4_HEADER, IPV6_HEADER, Ip, IpHeader, Pair};
use super::node::Node;
use super::{mld, nd};

/// Bytes of an echo or "unreachable" message before the data.
const HEADER: usize = 8;

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const V6_UNREACHABLE: u8 = 1;
const V6_PARAMETER_PROBLEM: u8 = 4;
const V6_ECHO_REQUEST: u8 = 128;
const V6_ECHO_REPLY: u8 = 129;

/// Every IPv4 host takes a packet of this size: error messages are no longer.
const V4_ERROR_MAX: usize = 576;

/// Fills in the checksum (bytes 2 and 3) of a message; ICMPv6 sums the addresses too.
pub(super) fn fill_checksum(v6: Option<Pair>, message: &mut [u8]) {
    let start = v6.map_or_else(Sum::default, |pair| Sum::pseudo_header(pair, ICMPV6, message.len()));
    message[2..4].fill(0);
    let sum = start.add(message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// What is wrong with a packet that nobody wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwanted {
    Port,
    Protocol,
}

impl Node {
    pub(super) fn handle_icmp(
        &mut self,
        eth: &Ethernet<'_>,
        ip: &Ip<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        if ip.payload.len() < HEADER {
            return Err(DropReason::IcmpMalformed);
        }
        if Sum::default().add(ip.payload).finish() != 0 {
            return Err(DropReason::HostChecksum);
        }
        match ip.payload[..2] {
            [ECHO_REQUEST, 0] => self.send_echo_reply(eth, ip, ip.pair, tx),
            _ => Err(DropReason::HostUnsupported),
        }
    }

    pub(super) fn handle_icmpv6(
        &mut self,
        now: Instant,
        eth: &Ethernet<'_>,
        ip: &Ip<'_>,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        if ip.payload.len() < HEADER {
            return Err(DropReason::IcmpMalformed);
        }
        if ip.pseudo_header(ICMPV6).add(ip.payload).finish() != 0 {
            return Err(DropReason::HostChecksum);
        }
        if ip.payload[0] != nd::ADVERTISEMENT {
            self.check_source(ip.pair.src(), false)?;
        }
        match ip.payload[0] {
            nd::SOLICITATION => nd::handle_solicitation(self, now, eth, ip, tx),
            nd::ADVERTISEMENT => nd::handle_advertisement(self, now, eth, ip, tx),
            mld::QUERY => mld::handle_query(self, now, ip),
            V6_ECHO_REQUEST if ip.payload[1] == 0 => {
                let Pair::V6 { src, dst } = ip.pair else { return Err(DropReason::IcmpMalformed) };
                if src.is_unspecified() {
                    return Err(DropReason::IpHeaderMalformed);
                }
                // Asked as one of a group, we answer as ourselves.
                let from =
                    if dst.is_multicast() { self.routing.source(src.into(), src.into()) } else { Some(dst.into()) };
                let asked = from.and_then(|from| Pair::new(src.into(), from)).ok_or(DropReason::HostUnsupported)?;
                self.send_echo_reply(eth, ip, asked, tx)
            }
            _ => Err(DropReason::HostUnsupported),
        }
    }

    /// Answers an echo request that came along `asked`, to the MAC that it came from: no lookup, nothing to wait for.
    fn send_echo_reply(
        &mut self,
        eth: &Ethernet<'_>,
        ip: &Ip<'_>,
        asked: Pair,
        tx: &mut impl TxQueue,
    ) -> Result<(), DropReason> {
        if ip.packet.len() > usize::from(self.mtu) {
            return Err(DropReason::IpLengthMismatch);
        }
        let (pair, kind) = match asked {
            Pair::V4 { src, dst } => (Pair::V4 { src: dst, dst: src }, ECHO_REPLY),
            Pair::V6 { src, dst } => (Pair::V6 { src: dst, dst: src }, V6_ECHO_REPLY),
        };
        let header = IpHeader { traffic_class: ip.traffic_class, ..IpHeader::new(pair, ip.protocol) };
        let reply = self.push_ip(tx, eth.src, header, ip.payload.len())?;
        reply.copy_from_slice(ip.payload);
        reply[0] = kind;
        fill_checksum(matches!(pair, Pair::V6 { .. }).then_some(pair), reply);
        self.stats.echo_replies_sent.inc();
        Ok(())
    }

    /// Tells the sender of `ip`, which is addressed to us alone, that nobody here wants it. Not too often, so that
    /// nobody uses us to shout at others.
    pub(super) fn send_unreachable(
        &mut self,
        now: Instant,
        eth: &Ethernet<'_>,
        ip: &Ip<'_>,
        unwanted: Unwanted,
        tx: &mut impl TxQueue,
    ) {
        if eth.dst.is_multicast() || ip.pair.src().is_unspecified() {
            return;
        }
        if !self.unreachable_limit.allow(now) {
            self.stats.unreachables_limited.inc();
            return;
        }
        let (pair, protocol, max, start) = match ip.pair {
            Pair::V4 { src, dst } => {
                let code = if unwanted == Unwanted::Port { 3 } else { 2 };
                (Pair::V4 { src: dst, dst: src }, ICMP, V4_ERROR_MAX - IPV4_HEADER, [UNREACHABLE, code, 0])
            }
            Pair::V6 { src, dst } => {
                // A parameter problem points at the field: the next header one.
                let start = match unwanted {
                    Unwanted::Port => [V6_UNREACHABLE, 4, 0],
                    Unwanted::Protocol => [V6_PARAMETER_PROBLEM, 1, 6],
                };
                (Pair::V6 { src: dst, dst: src }, ICMPV6, usize::from(MIN_MTU) - IPV6_HEADER, start)
            }
        };
        let quoted = &ip.packet[..ip.packet.len().min(max - HEADER)];
        let Ok(message) = self.push_ip(tx, eth.src, IpHeader::new(pair, protocol), HEADER + quoted.len()) else {
            return;
        };
        let (head, tail) = message.split_at_mut(HEADER);
        head.copy_from_slice(&[start[0], start[1], 0, 0, 0, 0, 0, start[2]]);
        tail.copy_from_slice(quoted);
        fill_checksum(matches!(pair, Pair::V6 { .. }).then_some(pair), message);
        self.stats.unreachables_sent.inc();
    }
}
