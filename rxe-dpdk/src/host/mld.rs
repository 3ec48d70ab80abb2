//! Multicast listener discovery, version 2 (RFC 3810): switches that snoop it forward an IPv6 group only to ports with
//! reported members, and neighbour solicitations are sent to groups. We report the groups of our addresses at start and
//! when queried, and the groups that services join. Queriers of version 1 get version 2 reports too.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use rxe_proto::wire::net::IPV6_LEN;
use rxe_proto::wire::{DropReason, TxQueue};
use rxe_proto::{Duration, Instant};

use super::HostStats;
use super::groups::{Groups, answer_at};
use super::icmp;
use super::interface::Interface;
use super::ip::{AddrPair, HOP_BY_HOP, ICMPV6, IpHeader, IpPacket};
use super::multicast::{ALL_NODES, solicited_node};
use rxe_adapter::multicast::multicast_mac_v6;

/// ICMPv6 type of a query.
pub(super) const QUERY: u8 = 130;
const REPORT: u8 = 143;
/// All routers that understand version 2 reports.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop options in front of every message: next header ICMPv6, router alert (MLD), two bytes of padding.
const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// Bytes of a version 1 query; version 2 has more.
const QUERY_LEN: usize = 24;
/// Bytes in front of the records of a report, and of a record without sources.
const HEADER: usize = 8;
const RECORD: usize = 20;

/// Removes the hop-by-hop options of an MLD message; `None` for any other options.
pub(super) fn strip_router_alert<'a>(ip: &IpPacket<'a>) -> Option<IpPacket<'a>> {
    let (options, payload) = ip.payload.split_first_chunk::<8>()?;
    let router_alert = options[2..].windows(4).any(|w| w == [5, 2, 0, 0]);
    (options[..2] == [ICMPV6, 0] && router_alert).then_some(IpPacket { protocol: ICMPV6, payload, ..*ip })
}

/// MLD on one interface: our membership of IPv6 groups.
pub(super) struct Mld {
    groups: Groups<Ipv6Addr>,
    stats: Arc<HostStats>,
}

impl Mld {
    /// Reports the groups of our addresses on the first poll.
    pub(super) fn new(interface: &Interface, stats: Arc<HostStats>) -> Mld {
        Mld { groups: Groups::new(interface.routing.addresses_v6().map(solicited_node), Some(Instant::ZERO)), stats }
    }

    /// Reports that we are a member of `group`.
    pub(super) fn join(&mut self, now: Instant, interface: &Interface, group: Ipv6Addr) {
        if is_reported(interface, group) {
            self.groups.join(now, group);
        }
    }

    /// Reports that we are no longer a member of `group`.
    pub(super) fn leave(&mut self, now: Instant, interface: &Interface, group: Ipv6Addr) {
        if is_reported(interface, group) {
            self.groups.leave(now, group);
        }
    }

    /// Our addresses were `before`: reports the groups that came and went with them.
    pub(super) fn addresses_changed(&mut self, now: Instant, interface: &Interface, before: &[Ipv6Addr]) {
        for group in before.iter().copied().map(solicited_node) {
            if !interface.routing.listens_to(group) && !interface.joined(group.into()) {
                self.groups.leave(now, group);
            }
        }
        for group in interface.routing.addresses_v6().map(solicited_node) {
            self.groups.join(now, group);
        }
    }

    /// Reports all groups at `at`.
    pub(super) fn report_all(&mut self, at: Instant) {
        self.groups.report_all(at);
    }

    /// When [`poll`](Self::poll) has something to send.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.groups.next_timeout()
    }

    /// Schedules the answer to a query.
    pub(super) fn handle_query(
        &mut self,
        now: Instant,
        interface: &Interface,
        ip: &IpPacket<'_>,
    ) -> Result<(), DropReason> {
        let AddrPair::V6 { src, .. } = ip.pair else { return Err(DropReason::IcmpMalformed) };
        let (query, _) = ip.payload.split_first_chunk::<QUERY_LEN>().ok_or(DropReason::IcmpMalformed)?;
        let group = Ipv6Addr::from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|n| query[8 + n]));
        let general = group.is_unspecified();
        if ip.hop_limit != 1 || !src.is_unicast_link_local() || !(general || group.is_multicast()) {
            return Err(DropReason::IcmpMalformed);
        }
        // Version 2 has a floating-point form for times that are longer than the longest delay anyway.
        let code = u16::from_be_bytes([query[4], query[5]]);
        let at = answer_at(now, Duration::from_millis(code.into()), interface.link.mac.0[5]);
        // A query about some sources of a group is answered for all of them, as we listen to all.
        self.groups.query(at, (!general).then_some(group));
        Ok(())
    }

    /// Sends the reports that are due. `None` when the port takes no more.
    pub(super) fn poll(&mut self, now: Instant, interface: &mut Interface, tx: &mut impl TxQueue) -> Option<()> {
        if self.groups.next_timeout().is_none_or(|at| at > now) {
            return Some(());
        }
        // compliance.md [HOST-MLD]: IPv6 groups are reported by MLD version 2, except those of every node and of
        // interface-local scope.
        let records = self.groups.due(now);
        // The destination has link scope, so the source is the link-local address, which always exists.
        if let Some(IpAddr::V6(src)) = interface.routing.source(ROUTERS.into(), ROUTERS.into()) {
            let pair = AddrPair::V6 { src, dst: ROUTERS };
            let most = (usize::from(interface.mtu) - IPV6_LEN - ROUTER_ALERT.len() - HEADER) / RECORD;
            for records in records.chunks(most) {
                let header = IpHeader { hop_limit: 1, ..IpHeader::new(pair, HOP_BY_HOP) };
                let len = ROUTER_ALERT.len() + HEADER + RECORD * records.len();
                let payload = interface.push_ip(tx, multicast_mac_v6(ROUTERS), header, len).ok()?;
                let (options, report) = payload.split_at_mut(ROUTER_ALERT.len());
                options.copy_from_slice(&ROUTER_ALERT);
                // `most` fits 16 bits.
                let [high, low] = (records.len() as u16).to_be_bytes();
                report[..HEADER].copy_from_slice(&[REPORT, 0, 0, 0, 0, 0, high, low]);
                for (place, (group, record)) in report[HEADER..].chunks_exact_mut(RECORD).zip(records) {
                    place[..4].copy_from_slice(&[*record as u8, 0, 0, 0]);
                    place[4..].copy_from_slice(&group.octets());
                }
                icmp::fill_checksum(pair, report);
                self.stats.mld_reports_sent.inc();
            }
        }
        self.groups.sent(now);
        Some(())
    }
}

/// Whether routers are told when a service joins or leaves `group`. Not of the group of all nodes, groups that do not
/// leave the host, and groups that our addresses keep us in.
fn is_reported(interface: &Interface, group: Ipv6Addr) -> bool {
    let interface_local = group.segments()[0] & 0xF <= 1;
    group != ALL_NODES && !interface_local && !interface.routing.listens_to(group)
}
