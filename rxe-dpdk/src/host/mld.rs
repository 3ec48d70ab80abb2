//! Multicast listener discovery, version 2 (RFC 3810): switches that snoop it send a group only to those who say that
//! they listen, and neighbour solicitations go to groups. We report ours at start and when asked; old queriers get the
//! new report too. IPv4 needs nothing of the kind: the only group that we are in is never reported.

use std::net::{IpAddr, Ipv6Addr};

use rxe_proto::wire::{DropReason, TxQueue};
use rxe_proto::{Duration, Instant};

use super::icmp;
use super::ip::{HOP_BY_HOP, ICMPV6, Ip, IpHeader, Pair};
use super::node::Node;
use super::route::{multicast_mac_v6, solicited_node};

/// ICMPv6 type of a query.
pub(super) const QUERY: u8 = 130;
const REPORT: u8 = 143;
/// All routers that understand version 2 reports.
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop options in front of every message: next header ICMPv6, router alert (MLD), two bytes of padding.
const ROUTER_ALERT: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
/// Bytes of a query of the first version; the second has more.
const QUERY_LEN: usize = 24;
/// Record type: listening to the group, whoever sends to it.
const MODE_IS_EXCLUDE: u8 = 2;
/// No answer comes later than this, whatever the query allows.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Takes the hop-by-hop options off, when they are those of an MLD message.
pub(super) fn strip_router_alert<'a>(ip: &Ip<'a>) -> Option<Ip<'a>> {
    let (options, payload) = ip.payload.split_first_chunk::<8>()?;
    let router_alert = options[2..].windows(4).any(|w| w == [5, 2, 0, 0]);
    (options[..2] == [ICMPV6, 0] && router_alert).then_some(Ip { protocol: ICMPV6, payload, ..*ip })
}

/// Plans the answer to a query, at a time of our own within what the querier allows, so that not all answer at once.
pub(super) fn handle_query(node: &mut Node, now: Instant, ip: &Ip<'_>) -> Result<(), DropReason> {
    let Pair::V6 { src, .. } = ip.pair else { return Err(DropReason::IcmpMalformed) };
    if ip.payload.len() < QUERY_LEN || ip.hop_limit != 1 || !src.is_unicast_link_local() {
        return Err(DropReason::IcmpMalformed);
    }
    // Version 2 has a floating-point form for very long times; they are cut anyway.
    let code = u16::from_be_bytes([ip.payload[4], ip.payload[5]]);
    let allowed = Duration::from_millis(code.into()).min(MAX_DELAY);
    let delay = allowed * u32::from(node.link.mac.0[5]) / 256;
    let at = now + delay;
    node.report_at = Some(node.report_at.map_or(at, |planned| planned.min(at)));
    Ok(())
}

impl Node {
    /// Sends a report that is due. `None` when the port took no more.
    pub(super) fn poll_report(&mut self, now: Instant, tx: &mut impl TxQueue) -> Option<()> {
        if self.report_at.is_none_or(|at| at > now) {
            return Some(());
        }
        let mut groups: Vec<Ipv6Addr> = self.routing.addresses_v6().map(solicited_node).collect();
        groups.sort_unstable();
        groups.dedup();
        // To a group of the link's scope, so from the link-local address: there always is one.
        if let Some(IpAddr::V6(src)) = self.routing.source(ROUTERS.into(), ROUTERS.into()) {
            let pair = Pair::V6 { src, dst: ROUTERS };
            let header = IpHeader { hop_limit: 1, ..IpHeader::new(pair, HOP_BY_HOP) };
            let len = ROUTER_ALERT.len() + 8 + 20 * groups.len();
            let payload = self.push_ip(tx, multicast_mac_v6(ROUTERS), header, len).ok()?;
            let (options, report) = payload.split_at_mut(ROUTER_ALERT.len());
            options.copy_from_slice(&ROUTER_ALERT);
            report[..8].copy_from_slice(&[REPORT, 0, 0, 0, 0, 0, 0, groups.len() as u8]);
            for (record, group) in report[8..].chunks_exact_mut(20).zip(&groups) {
                record[..4].copy_from_slice(&[MODE_IS_EXCLUDE, 0, 0, 0]);
                record[4..].copy_from_slice(&group.octets());
            }
            icmp::fill_checksum(Some(pair), report);
            self.stats.mld_reports_sent.inc();
        }
        self.report_at = None;
        Some(())
    }
}
