//! Multicast listener discovery, version 2 (RFC 3810): switches that snoop it send a group only to those who say that
//! they listen, and neighbour solicitations go to groups. We report those at start and when asked, and what services
//! join; old queriers get the new report too.

use std::net::{IpAddr, Ipv6Addr};

use rxe_proto::wire::{DropReason, TxQueue};
use rxe_proto::{Duration, Instant};

use super::groups::answer_at;
use super::icmp;
use super::ip::{HOP_BY_HOP, ICMPV6, IPV6_HEADER, Ip, IpHeader, Pair};
use super::node::Node;
use super::route::multicast_mac_v6;

/// ICMPv6 type of a query.
pub(super) const QUERY: u8 = 130;
const REPORT: u8 = 143;
/// All routers that understand version 2 reports.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop options in front of every message: next header ICMPv6, router alert (MLD), two bytes of padding.
const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// Bytes of a query of the first version; the second has more.
const QUERY_LEN: usize = 24;
/// Bytes in front of the records of a report, and of a record without sources.
const HEADER: usize = 8;
const RECORD: usize = 20;

/// Takes the hop-by-hop options off, when they are those of an MLD message.
pub(super) fn strip_router_alert<'a>(ip: &Ip<'a>) -> Option<Ip<'a>> {
    let (options, payload) = ip.payload.split_first_chunk::<8>()?;
    let router_alert = options[2..].windows(4).any(|w| w == [5, 2, 0, 0]);
    (options[..2] == [ICMPV6, 0] && router_alert).then_some(Ip { protocol: ICMPV6, payload, ..*ip })
}

/// Plans the answer to a query.
pub(super) fn handle_query(node: &mut Node, now: Instant, ip: &Ip<'_>) -> Result<(), DropReason> {
    let Pair::V6 { src, .. } = ip.pair else { return Err(DropReason::IcmpMalformed) };
    let (query, _) = ip.payload.split_first_chunk::<QUERY_LEN>().ok_or(DropReason::IcmpMalformed)?;
    let group = Ipv6Addr::from([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].map(|n| query[8 + n]));
    let general = group.is_unspecified();
    if ip.hop_limit != 1 || !src.is_unicast_link_local() || !(general || group.is_multicast()) {
        return Err(DropReason::IcmpMalformed);
    }
    // Version 2 has a floating-point form for very long times; they are cut anyway.
    let code = u16::from_be_bytes([query[4], query[5]]);
    let at = answer_at(now, Duration::from_millis(code.into()), node.link.mac.0[5]);
    // A query about some senders of a group is answered for all of them: we take them all.
    node.mld.ask(at, (!general).then_some(group));
    Ok(())
}

impl Node {
    /// Tells what is to be told of our IPv6 groups. `None` when the port took no more.
    pub(super) fn poll_mld(&mut self, now: Instant, tx: &mut impl TxQueue) -> Option<()> {
        if self.mld.next_timeout().is_none_or(|at| at > now) {
            return Some(());
        }
        // [HOST-MLD]
        let records = self.mld.due(now);
        // To a group of the link's scope, so from the link-local address: there always is one.
        if let Some(IpAddr::V6(src)) = self.routing.source(ROUTERS.into(), ROUTERS.into()) {
            let pair = Pair::V6 { src, dst: ROUTERS };
            let most = (usize::from(self.mtu) - IPV6_HEADER - ROUTER_ALERT.len() - HEADER) / RECORD;
            for records in records.chunks(most) {
                let header = IpHeader { hop_limit: 1, ..IpHeader::new(pair, HOP_BY_HOP) };
                let len = ROUTER_ALERT.len() + HEADER + RECORD * records.len();
                let payload = self.push_ip(tx, multicast_mac_v6(ROUTERS), header, len).ok()?;
                let (options, report) = payload.split_at_mut(ROUTER_ALERT.len());
                options.copy_from_slice(&ROUTER_ALERT);
                // At most as many as fit a packet.
                let [high, low] = (records.len() as u16).to_be_bytes();
                report[..HEADER].copy_from_slice(&[REPORT, 0, 0, 0, 0, 0, high, low]);
                for (place, (group, record)) in report[HEADER..].chunks_exact_mut(RECORD).zip(records) {
                    place[..4].copy_from_slice(&[*record as u8, 0, 0, 0]);
                    place[4..].copy_from_slice(&group.octets());
                }
                icmp::fill_checksum(Some(pair), report);
                self.stats.mld_reports_sent.inc();
            }
        }
        self.mld.told(now);
        Some(())
    }
}
