//! IGMP (RFC 3376, RFC 2236): switches that snoop it send an IPv4 group only to those who say that they listen, and
//! routers bring in from other networks only what somebody listens to. We speak version 3, and the version of an older
//! querier while there is one.

use std::net::{IpAddr, Ipv4Addr};

use rxe_proto::wire::{DropReason, MacAddr, TxQueue};
use rxe_proto::{Duration, Instant};

use super::checksum::Sum;
use super::ethernet::IPV4;
use super::groups::{Groups, MAX_DELAY, Record, answer_at};
use super::ip::{IGMP, IPV4_HEADER, Ip, IpHeader, Pair, ROUTER_ALERT};
use super::node::{NOBODY, Node};
use super::route::multicast_mac_v4;

/// The group of all hosts on the link. Everybody is in it, so it is never reported.
pub(super) const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// All routers: who wants to hear of leaving in version 2.
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// All that understand version 3 reports.
const V3_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);

/// Where other hosts say which groups they listen to, besides the groups themselves.
pub(super) const REPORTS_TO: [Ipv4Addr; 2] = [ALL_ROUTERS, V3_ROUTERS];

const QUERY: u8 = 0x11;
const V1_REPORT: u8 = 0x12;
const V2_REPORT: u8 = 0x16;
const V2_LEAVE: u8 = 0x17;
const V3_REPORT: u8 = 0x22;

// What the records of a version 3 report say: which senders a host wants to hear, or all but which.
const MODE_IS_INCLUDE: u8 = 1;
const MODE_IS_EXCLUDE: u8 = 2;
const CHANGE_TO_INCLUDE: u8 = 3;
const CHANGE_TO_EXCLUDE: u8 = 4;
const ALLOW_NEW_SOURCES: u8 = 5;
const BLOCK_OLD_SOURCES: u8 = 6;

/// Bytes of every message of versions 1 and 2, and in front of the records of version 3.
const HEADER: usize = 8;
/// Bytes of the shortest query of version 3.
const V3_QUERY: usize = 12;
/// Bytes of a record without sources.
const RECORD: usize = 8;
/// Bytes of the IP header with the router alert option.
const IP_HEADER: usize = IPV4_HEADER + ROUTER_ALERT.len();
/// Internetwork control, as Linux marks these messages.
const TRAFFIC_CLASS: u8 = 0xC0;

/// How long after its last query an older querier is believed to be there: twice the usual query interval and the
/// longest answer ("older version querier present timeout").
const OLDER_QUERIER: Duration = Duration::from_secs(260);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
    V3,
}

/// Our IPv4 groups.
pub(super) struct Igmp {
    pub(super) groups: Groups<Ipv4Addr>,
    /// An older querier, and until when it counts.
    older: Option<(Version, Instant)>,
}

impl Igmp {
    pub(super) fn new() -> Igmp {
        Igmp { groups: Groups::new(std::iter::empty(), None), older: None }
    }

    fn version(&self, now: Instant) -> Version {
        self.older.filter(|(_, until)| now < *until).map_or(Version::V3, |(version, _)| version)
    }
}

/// Takes an IGMP packet: queries are answered, the reports of others are theirs unless somebody here wants to know.
pub(super) fn handle(node: &mut Node, now: Instant, ip: &Ip<'_>) -> Result<(), DropReason> {
    let Pair::V4 { src, dst } = ip.pair else { return Err(DropReason::IpHeaderMalformed) };
    let watched = node.listeners.is_some() && dst.is_multicast();
    if dst != ALL_HOSTS && !node.routing.owns(dst.into()) && !node.joined(dst.into()) && !watched {
        return Err(DropReason::ForeignAddress);
    }
    node.check_source(src.into(), node.routing.is_broadcast(src))?;
    let message = ip.payload;
    if message.len() < HEADER {
        return Err(DropReason::IcmpMalformed);
    }
    if Sum::default().add(message).finish() != 0 {
        return Err(DropReason::HostChecksum);
    }
    let group = Ipv4Addr::new(message[4], message[5], message[6], message[7]);
    match message[0] {
        QUERY => {}
        kind @ (V1_REPORT | V2_REPORT | V2_LEAVE | V3_REPORT) if watched => {
            node.stats.igmp_reports_heard.inc();
            match kind {
                V3_REPORT => return hear_records(node, now, src, message),
                V2_LEAVE => hear(node, now, src, group, Record::Left),
                _ => hear(node, now, src, group, Record::Listening),
            }
            return Ok(());
        }
        _ => return Err(DropReason::HostUnsupported),
    }
    let code = message[1];
    let tenths = |code: u8| Duration::from_millis(100 * u64::from(code));
    let (version, allowed) = match message.len() {
        HEADER if code == 0 => (Version::V1, MAX_DELAY),
        HEADER => (Version::V2, tenths(code)),
        // From 128 on the code is a floating-point number, of times that are cut anyway.
        V3_QUERY.. => (Version::V3, tenths(code)),
        _ => return Err(DropReason::IcmpMalformed),
    };
    let general = group.is_unspecified();
    if !general && !group.is_multicast() {
        return Err(DropReason::IcmpMalformed);
    }
    if version != Version::V3 {
        node.igmp.older = Some((version, now + OLDER_QUERIER));
    }
    // A query about some senders of a group is answered for all of them: we take them all.
    let at = answer_at(now, allowed, node.link.mac.0[5]);
    node.igmp.groups.ask(at, (!general).then_some(group));
    Ok(())
}

/// Takes note of the records of a version 3 report.
fn hear_records(node: &mut Node, now: Instant, host: Ipv4Addr, report: &[u8]) -> Result<(), DropReason> {
    let mut rest = report.get(HEADER..).unwrap_or_default();
    for _ in 0..u16::from_be_bytes([report[6], report[7]]) {
        let (record, behind) = rest.split_first_chunk::<RECORD>().ok_or(DropReason::IcmpMalformed)?;
        let [kind, auxiliary, high, low, group @ ..] = *record;
        let (sources, behind) = behind
            .split_at_checked(4 * usize::from(u16::from_be_bytes([high, low])))
            .ok_or(DropReason::IcmpMalformed)?;
        rest = behind.get(4 * usize::from(auxiliary)..).ok_or(DropReason::IcmpMalformed)?;
        let names_us =
            || sources.chunks_exact(4).any(|ip| node.routing.owns(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3]).into()));
        let said = match kind {
            MODE_IS_INCLUDE if names_us() => Record::Listening,
            MODE_IS_EXCLUDE if !names_us() => Record::Listening,
            CHANGE_TO_INCLUDE | ALLOW_NEW_SOURCES if names_us() => Record::Joined,
            CHANGE_TO_EXCLUDE if !names_us() => Record::Joined,
            CHANGE_TO_INCLUDE | CHANGE_TO_EXCLUDE => Record::Left,
            BLOCK_OLD_SOURCES if names_us() => Record::Left,
            _ => continue,
        };
        hear(node, now, host, group.into(), said);
    }
    Ok(())
}

/// Takes note of one word about one group.
fn hear(node: &mut Node, now: Instant, host: Ipv4Addr, group: Ipv4Addr, said: Record) {
    // Groups of the link's own protocols, everybody's and routers', are nobody's to send to. And who has no address is a
    // switch that speaks for others.
    let [first, second, third, _] = group.octets();
    if group.is_multicast() && (first, second, third) != (224, 0, 0) && host != NOBODY {
        node.listener(now, group, host, said);
    }
}

impl Node {
    /// Tells what is to be told of our IPv4 groups. `None` when the port took no more.
    pub(super) fn poll_igmp(&mut self, now: Instant, tx: &mut impl TxQueue) -> Option<()> {
        if self.igmp.groups.next_timeout().is_none_or(|at| at > now) {
            return Some(());
        }
        // [HOST-IGMP]
        let records = self.igmp.groups.due(now);
        let version = self.igmp.version(now);
        if version == Version::V3 {
            let most = (usize::from(self.mtu) - IP_HEADER - HEADER) / RECORD;
            for records in records.chunks(most) {
                self.send_igmp(V3_ROUTERS, HEADER + RECORD * records.len(), tx, |message| {
                    // At most as many as fit a packet.
                    let [high, low] = (records.len() as u16).to_be_bytes();
                    message[..HEADER].copy_from_slice(&[V3_REPORT, 0, 0, 0, 0, 0, high, low]);
                    for (place, (group, record)) in message[HEADER..].chunks_exact_mut(RECORD).zip(records) {
                        place[..4].copy_from_slice(&[*record as u8, 0, 0, 0]);
                        place[4..].copy_from_slice(&group.octets());
                    }
                })?;
            }
        } else {
            for (group, record) in records {
                let (kind, to) = match (record, version) {
                    // Version 1 knows no leaving: it waits until nobody answers.
                    (Record::Left, Version::V1) => continue,
                    (Record::Left, _) => (V2_LEAVE, ALL_ROUTERS),
                    (_, Version::V1) => (V1_REPORT, group),
                    _ => (V2_REPORT, group),
                };
                self.send_igmp(to, HEADER, tx, |message| {
                    message[..4].copy_from_slice(&[kind, 0, 0, 0]);
                    message[4..].copy_from_slice(&group.octets());
                })?;
            }
        }
        self.igmp.groups.told(now);
        Some(())
    }

    /// Sends a message of `len` bytes, which `write` writes but for the checksum. `None` when the port took no more.
    fn send_igmp(
        &mut self,
        to: Ipv4Addr,
        len: usize,
        tx: &mut impl TxQueue,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        // A port without an IPv4 address reports from nobody, as switches do that have none either.
        let src = match self.routing.source(to.into(), to.into()) {
            Some(IpAddr::V4(src)) => src,
            _ => NOBODY,
        };
        let id = self.next_id();
        let mac: MacAddr = multicast_mac_v4(to);
        let packet = self.link.push(tx, mac, IPV4, IP_HEADER + len)?;
        let header =
            IpHeader { traffic_class: TRAFFIC_CLASS, hop_limit: 1, ..IpHeader::new(Pair::V4 { src, dst: to }, IGMP) };
        let message = header.emit_router_alert(packet, id);
        write(message);
        message[2..4].fill(0);
        let sum = Sum::default().add(message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.stats.igmp_reports_sent.inc();
        Some(())
    }
}
