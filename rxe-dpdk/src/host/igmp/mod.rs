//! IGMP (RFC 3376, RFC 2236): switches that snoop it forward an IPv4 group only to ports with reported members, and
//! routers forward only groups that have members. We speak version 3, and the version of an older querier while there is
//! one.

mod listeners;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rxe_proto::wire::net::{IPV4_LEN, ethertype};
use rxe_proto::wire::{Checksum, DropReason, TxQueue};
use rxe_proto::{Duration, Instant};

use super::HostStats;
use super::event::HostEvent;
use super::groups::{Groups, MAX_DELAY, Record, answer_at};
use super::icmp;
use super::interface::Interface;
use super::ip::{AddrPair, IGMP, IpHeader, IpPacket, ROUTER_ALERT};
use super::multicast::ALL_HOSTS;
use listeners::{Change, Listeners};
use rxe_adapter::multicast::multicast_mac_v4;

/// All routers: the destination of version 2 leave messages.
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// All routers that understand version 3 reports.
const V3_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);

/// Destinations of the reports of other hosts, besides the groups themselves.
const REPORTS_TO: [Ipv4Addr; 2] = [ALL_ROUTERS, V3_ROUTERS];

const QUERY: u8 = 0x11;
const V1_REPORT: u8 = 0x12;
const V2_REPORT: u8 = 0x16;
const V2_LEAVE: u8 = 0x17;
const V3_REPORT: u8 = 0x22;

// Types of the records of a version 3 report. "Include" lists the sources that a host listens to, "exclude" those that it
// does not.
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
const IP_HEADER: usize = IPV4_LEN + ROUTER_ALERT.len();
/// Internetwork control, as Linux marks these messages.
const TRAFFIC_CLASS: u8 = 0xC0;

/// How long after its last query an older querier is assumed present: twice the usual query interval plus the longest
/// response time ("older version querier present timeout").
const OLDER_QUERIER: Duration = Duration::from_secs(260);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
    V3,
}

/// IGMP on one interface: our own membership, and the listeners behind the port when they are watched.
pub(super) struct Igmp {
    groups: Groups<Ipv4Addr>,
    /// An older querier, and until when it is assumed present.
    older: Option<(Version, Instant)>,
    /// Other hosts in groups; `None` until [`watch_listeners`](Self::watch_listeners).
    listeners: Option<Listeners>,
    stats: Arc<HostStats>,
}

impl Igmp {
    pub(super) fn new(stats: Arc<HostStats>) -> Igmp {
        Igmp { groups: Groups::new(std::iter::empty(), None), older: None, listeners: None, stats }
    }

    /// Reports that we are a member of `group`.
    pub(super) fn join(&mut self, now: Instant, group: Ipv4Addr) {
        if group != ALL_HOSTS {
            self.groups.join(now, group);
        }
    }

    /// Reports that we are no longer a member of `group`.
    pub(super) fn leave(&mut self, now: Instant, group: Ipv4Addr) {
        if group != ALL_HOSTS {
            self.groups.leave(now, group);
        }
    }

    /// Reports all groups at `at`.
    pub(super) fn report_all(&mut self, at: Instant) {
        self.groups.report_all(at);
    }

    /// See [`Host::watch_listeners`](super::Host::watch_listeners).
    pub(super) fn watch_listeners(&mut self, interface: &mut Interface) {
        self.listeners.get_or_insert_with(Listeners::new);
        interface.watch_reports(&REPORTS_TO);
    }

    /// When [`poll`](Self::poll) has something to send.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.groups.next_timeout()
    }

    fn version(&self, now: Instant) -> Version {
        self.older.filter(|(_, until)| now < *until).map_or(Version::V3, |(version, _)| version)
    }

    /// Handles an IGMP packet: schedules the answer to a query; takes a report of another host as news of a listener,
    /// when listeners are watched.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        ip: &IpPacket<'_>,
    ) -> Result<(), DropReason> {
        let AddrPair::V4 { src, dst } = ip.pair else { return Err(DropReason::IpHeaderMalformed) };
        let watched = self.listeners.is_some() && dst.is_multicast();
        if dst != ALL_HOSTS && !interface.routing.owns(dst.into()) && !interface.joined(dst.into()) && !watched {
            return Err(DropReason::ForeignAddress);
        }
        interface.check_source(src.into())?;
        let message = ip.payload;
        if message.len() < HEADER {
            return Err(DropReason::IcmpMalformed);
        }
        if Checksum::default().with(message).finish() != 0 {
            return Err(DropReason::HostChecksum);
        }
        match message[0] {
            QUERY => self.handle_query(now, interface, message),
            V1_REPORT | V2_REPORT | V2_LEAVE | V3_REPORT if watched => {
                interface.check_peer(ip)?;
                self.stats.igmp_reports_heard.inc();
                self.handle_report(now, interface, src, message)
            }
            _ => Err(DropReason::HostUnsupported),
        }
    }

    fn handle_query(&mut self, now: Instant, interface: &Interface, message: &[u8]) -> Result<(), DropReason> {
        let code = message[1];
        let tenths = |code: u8| Duration::from_millis(100 * u64::from(code));
        let (version, allowed) = match message.len() {
            HEADER if code == 0 => (Version::V1, MAX_DELAY),
            HEADER => (Version::V2, tenths(code)),
            // From 128 on the code is a floating-point number, of times longer than `MAX_DELAY` anyway.
            V3_QUERY.. => (Version::V3, tenths(code)),
            _ => return Err(DropReason::IcmpMalformed),
        };
        let group = Ipv4Addr::new(message[4], message[5], message[6], message[7]);
        let general = group.is_unspecified();
        if !general && !group.is_multicast() {
            return Err(DropReason::IcmpMalformed);
        }
        if version != Version::V3 {
            self.older = Some((version, now + OLDER_QUERIER));
        }
        // A query about some sources of a group is answered for all of them, as we listen to all.
        let at = answer_at(now, allowed, interface.link.mac.0[5]);
        self.groups.query(at, (!general).then_some(group));
        Ok(())
    }

    /// Handles a report of `host`.
    fn handle_report(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        host: Ipv4Addr,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let group = Ipv4Addr::new(message[4], message[5], message[6], message[7]);
        match message[0] {
            V3_REPORT => return self.handle_records(now, interface, host, message),
            V2_LEAVE => self.update_listener(now, interface, host, group, Record::Left),
            _ => self.update_listener(now, interface, host, group, Record::Listening),
        }
        Ok(())
    }

    /// Handles the records of a version 3 report.
    fn handle_records(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        host: Ipv4Addr,
        report: &[u8],
    ) -> Result<(), DropReason> {
        let mut rest = report.get(HEADER..).unwrap_or_default();
        for _ in 0..u16::from_be_bytes([report[6], report[7]]) {
            let (record, behind) = rest.split_first_chunk::<RECORD>().ok_or(DropReason::IcmpMalformed)?;
            let [kind, auxiliary, high, low, group @ ..] = *record;
            let (sources, behind) = behind
                .split_at_checked(4 * usize::from(u16::from_be_bytes([high, low])))
                .ok_or(DropReason::IcmpMalformed)?;
            rest = behind.get(4 * usize::from(auxiliary)..).ok_or(DropReason::IcmpMalformed)?;
            let (sources, _) = sources.as_chunks::<4>();
            let lists_us = || sources.iter().any(|ip| interface.routing.owns(Ipv4Addr::from(*ip).into()));
            let record = match kind {
                MODE_IS_INCLUDE if lists_us() => Record::Listening,
                MODE_IS_EXCLUDE if !lists_us() => Record::Listening,
                CHANGE_TO_INCLUDE | ALLOW_NEW_SOURCES if lists_us() => Record::Joined,
                CHANGE_TO_EXCLUDE if !lists_us() => Record::Joined,
                CHANGE_TO_INCLUDE | CHANGE_TO_EXCLUDE => Record::Left,
                BLOCK_OLD_SOURCES if lists_us() => Record::Left,
                _ => continue,
            };
            self.update_listener(now, interface, host, group.into(), record);
        }
        Ok(())
    }

    /// Updates the listener table, and emits an event when `host` is a new or a lost listener.
    fn update_listener(
        &mut self,
        now: Instant,
        interface: &mut Interface,
        host: Ipv4Addr,
        group: Ipv4Addr,
        record: Record,
    ) {
        // 224.0.0.0/24 is for the link's own protocols: no service sends there. A report without a source address is from
        // a switch that reports for other hosts.
        let [first, second, third, _] = group.octets();
        if !group.is_multicast() || (first, second, third) == (224, 0, 0) || host.is_unspecified() {
            return;
        }
        let Some(listeners) = &mut self.listeners else { return };
        let joined = match listeners.update(now, group, host, record) {
            Change::None => return,
            Change::Limited => return self.stats.listeners_limited.inc(),
            Change::Joined => true,
            Change::Left => false,
        };
        if joined {
            self.stats.listeners_joined.inc();
        } else {
            self.stats.listeners_left.inc();
        }
        interface.events.push(HostEvent::Listener { group, host, joined });
    }

    /// Sends the reports that are due. `None` when the port takes no more.
    pub(super) fn poll(&mut self, now: Instant, interface: &mut Interface, tx: &mut impl TxQueue) -> Option<()> {
        if self.groups.next_timeout().is_none_or(|at| at > now) {
            return Some(());
        }
        // compliance.md [HOST-IGMP]: Joining and leaving an IPv4 group is reported by IGMP version 3, twice and a
        // second apart.
        let records = self.groups.due(now);
        let version = self.version(now);
        if version == Version::V3 {
            let most = (usize::from(interface.mtu) - IP_HEADER - HEADER) / RECORD;
            for records in records.chunks(most) {
                self.send(interface, V3_ROUTERS, HEADER + RECORD * records.len(), tx, |message| {
                    // `most` fits 16 bits.
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
                    // Version 1 has no leave message: queriers notice that no host answers.
                    (Record::Left, Version::V1) => continue,
                    (Record::Left, _) => (V2_LEAVE, ALL_ROUTERS),
                    (_, Version::V1) => (V1_REPORT, group),
                    _ => (V2_REPORT, group),
                };
                self.send(interface, to, HEADER, tx, |message| {
                    message[..4].copy_from_slice(&[kind, 0, 0, 0]);
                    message[4..].copy_from_slice(&group.octets());
                })?;
            }
        }
        self.groups.sent(now);
        Some(())
    }

    /// Sends a message of `len` bytes, which `write` fills in except for the checksum. `None` when the port takes no more.
    fn send(
        &mut self,
        interface: &mut Interface,
        to: Ipv4Addr,
        len: usize,
        tx: &mut impl TxQueue,
        write: impl FnOnce(&mut [u8]),
    ) -> Option<()> {
        // A port without an IPv4 address reports from 0.0.0.0, like switches without an address.
        let src = match interface.routing.source(to.into(), to.into()) {
            Some(IpAddr::V4(src)) => src,
            _ => Ipv4Addr::UNSPECIFIED,
        };
        let id = interface.next_id();
        let packet = interface.link.push(tx, multicast_mac_v4(to), ethertype::IPV4, IP_HEADER + len)?;
        let pair = AddrPair::V4 { src, dst: to };
        let header = IpHeader { traffic_class: TRAFFIC_CLASS, hop_limit: 1, ..IpHeader::new(pair, IGMP) };
        let message = header.emit_router_alert(packet, id);
        write(message);
        // IGMP places its checksum as ICMP does.
        icmp::fill_checksum(pair, message);
        self.stats.igmp_reports_sent.inc();
        Some(())
    }
}
