//! The control side of an adapter: the connection manager and the ports' IP hosts, and the routing of their events to
//! services.
//!
//! There is one [`Control`] per adapter. It owns the connection manager ([`Cm`]), one [`IpHost`] per port, and the list of
//! what services listen to. It runs between bursts on the thread of worker 0. All workers, that one included, are reached
//! through their mailboxes only, so that control needs nothing of a worker but its number.
//!
//! | module | subject |
//! |---|---|
//! | [`ip_host`] | what control needs of a port: addresses, routes, groups, TCP streams, transmission of MADs |
//! | `admission` | which services take new clients, of which peers |
//! | `gsi` | packets to queue pair 1, and how many of them are processed per turn |
//! | `inbound` | passive side: requests of peers, from the REQ to the service |
//! | `outbound` | active side: connections, SIDR requests and paths that services ask for |
//! | `rate` | requests per second of an address |
//! | `peers` | connections whose next hop changed its MAC address |
//! | `streams` | TCP streams of services, with flow control |
//! | `groups` | multicast groups of all workers |

mod admission;
mod groups;
mod gsi;
mod inbound;
pub mod ip_host;
mod outbound;
mod peers;
mod rate;
mod stats;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use rxe_proto::cm::{Cm, CmEvent, CmStats, ConnId, LocalAddresses, MadTransmit};
use rxe_proto::wire::cm::RejReason;
use rxe_proto::wire::{DropCounters, Gid, MacAddr, PathMtu, PortId, PrefixList};
use rxe_proto::{Duration, Instant};

use crate::event_log::EventLog;
use crate::inspect::{self, ControlCounts};
use crate::local_port::LocalPort;
use crate::mailbox::ControlMailbox;
use crate::messages::{EndReason, GroupListener, RtsParams, ToControl, ToWorker};
use crate::multicast::GroupMembers;
use crate::service::{Listen, ServiceFactory};
use admission::Admission;
use gsi::GsiQueue;
use inbound::Inbound;
use ip_host::{HostEvent, IpHost};
use outbound::Outbound;
use peers::Peers;
use rate::RequestRate;
pub use stats::ControlStats;
use streams::Streams;

/// One port.
struct ControlPort<H> {
    local: LocalPort,
    host: H,
}

impl<H> ControlPort<H> {
    /// Whether `ip` is an address of the port.
    fn owns(&self, ip: IpAddr) -> bool {
        self.local.addresses.contains(&ip)
    }
}

/// Traffic class and priority of transmitted packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrafficClassConfig {
    /// DSCP and ECN bits; `None` mirrors the peer's traffic class.
    pub value: Option<u8>,
    /// VLAN priority (PCP), 0 to 7; only on ports with a VLAN.
    pub pcp: u8,
}

impl TrafficClassConfig {
    /// The traffic class of packets to a peer whose own packets have `of_peer`.
    fn class(self, of_peer: u8) -> u8 {
        self.value.unwrap_or(of_peer)
    }

    /// The tag of frames to a peer whose own frames have `of_peer`.
    fn tag(self, of_peer: Option<u16>) -> Option<u16> {
        of_peer.map(|tci| (tci & 0x0FFF) | (u16::from(self.pcp) << 13))
    }
}

/// The parts of a [`Control`] besides its hosts.
pub struct ControlParts {
    /// The connection manager.
    pub cm: Cm,
    /// Listeners with the number of their service; where two match, the first one is used.
    pub listens: Vec<(usize, Listen)>,
    /// By service number: the factories, which choose the workers of connections. A service without one takes all in turn.
    pub factories: Arc<[Box<dyn ServiceFactory>]>,
    /// By service number: the allowed peers, `None` for everyone.
    pub allowed: Vec<Option<PrefixList>>,
    /// Most connection and SIDR requests per second of one address; 0 is no limit.
    pub requests_per_second: u32,
    /// The mailboxes of the workers.
    pub mailbox: ControlMailbox,
    /// Traffic class and priority of transmitted packets.
    pub traffic_class: TrafficClassConfig,
}

/// The control side of an adapter whose ports have hosts of type `H`.
pub struct Control<H: IpHost> {
    ports: Vec<ControlPort<H>>,
    cm: Cm,
    cm_stats: Arc<CmStats>,
    listens: Vec<(usize, Listen)>,
    factories: Arc<[Box<dyn ServiceFactory>]>,
    admission: Admission,
    connections: HashMap<ConnId, Placement>,
    peers: Peers,
    outbound: Outbound,
    inbound: Inbound,
    gsi: GsiQueue,
    requests: RequestRate,
    streams: Streams<H::Stream>,
    groups: GroupMembers,
    next_worker: usize,
    mailbox: ControlMailbox,
    traffic_class: TrafficClassConfig,
    /// A MAD that the port had no room for.
    pending_mad: Option<MadTransmit>,
    drops: Arc<DropCounters>,
    stats: Arc<ControlStats>,
    events: EventLog,
    stopping: Option<Instant>,
}

/// Where a connection lives and where its packets go.
struct Placement {
    worker: usize,
    /// Index into `ports`.
    port: usize,
    peer: Gid,
    /// The neighbour through which it is indexed.
    next_hop: IpAddr,
    mac: MacAddr,
    /// Of a connection that a service requested, until the REP arrives.
    rts: Option<Box<RtsParams>>,
}

/// The ports as the connection manager sees them.
struct Locals<'a, H>(&'a [ControlPort<H>]);

impl<H: IpHost> LocalAddresses for Locals<'_, H> {
    fn is_local(&self, port: PortId, gid: Gid) -> bool {
        self.0.get(usize::from(port.0)).is_some_and(|p| p.owns(gid.ip()))
    }

    fn path_mtu(&self, port: PortId) -> PathMtu {
        self.0.get(usize::from(port.0)).map_or(PathMtu::Mtu256, |p| p.local.path_mtu)
    }

    fn serves_full_members_only(&self, port: PortId) -> bool {
        self.0.get(usize::from(port.0)).is_some_and(|p| p.local.restrictions.full_members_only)
    }

    fn is_broadcast(&self, port: PortId, gid: Gid) -> bool {
        self.0.get(usize::from(port.0)).is_some_and(|p| p.host.is_broadcast(gid.ip()))
    }
}

impl<H: IpHost> Control<H> {
    /// `hosts` has one host per port, in the order of the port numbers.
    ///
    /// # Errors
    /// A host cannot listen as a service wants.
    pub fn new(hosts: Vec<H>, parts: ControlParts) -> Result<Control<H>, H::Error> {
        let ControlParts { cm, listens, factories, allowed, requests_per_second, mailbox, traffic_class } = parts;
        let mut ports = Vec::with_capacity(hosts.len());
        for mut host in hosts {
            for (_, listen) in &listens {
                match *listen {
                    Listen::Tcp { port } => host.listen(port)?,
                    Listen::GroupListeners => host.watch_listeners()?,
                    Listen::Cm { .. } => {}
                }
            }
            ports.push(ControlPort { local: host.local_port(), host });
        }
        let cm_stats = cm.stats().clone();
        Ok(Control {
            ports,
            cm,
            cm_stats,
            listens,
            factories,
            admission: Admission::new(allowed),
            connections: HashMap::new(),
            peers: Peers::default(),
            outbound: Outbound::default(),
            inbound: Inbound::default(),
            gsi: GsiQueue::default(),
            requests: RequestRate::new(requests_per_second),
            streams: Streams::default(),
            groups: GroupMembers::default(),
            next_worker: 0,
            mailbox,
            traffic_class,
            pending_mad: None,
            drops: Arc::default(),
            stats: Arc::default(),
            events: EventLog::new("events of connections"),
            stopping: None,
        })
    }

    /// Counters.
    pub fn stats(&self) -> &Arc<ControlStats> {
        &self.stats
    }

    /// Counters of the connection manager.
    pub fn cm_stats(&self) -> &Arc<CmStats> {
        &self.cm_stats
    }

    /// Dropped packets of queue pair 1 and of the hosts, by reason.
    pub fn drops(&self) -> &Arc<DropCounters> {
        &self.drops
    }

    /// The host of a port, to give it received frames.
    pub fn host_mut(&mut self, port: PortId) -> Option<&mut H> {
        self.ports.get_mut(usize::from(port.0)).map(|port| &mut port.host)
    }

    /// The addresses or routes of a port's host were changed.
    #[cold]
    pub fn port_changed(&mut self, port: PortId) {
        let index = usize::from(port.0);
        if let Some(port) = self.ports.get_mut(index) {
            port.local = port.host.local_port();
            self.peers.all_changed(index);
        }
    }

    /// Does what is due: messages of workers, the connection manager's events and timers, the hosts' timers and streams. Returns
    /// whether there was an event or a message, which others may have to follow up.
    pub fn poll(&mut self, now: Instant, output: &mut H::Output) -> bool {
        let mut busy = false;
        while let Ok(message) = self.mailbox.inbox.try_recv() {
            busy = true;
            self.handle_message(now, message);
        }
        self.poll_gsi(now);
        self.poll_outbound(now);
        self.poll_inbound(now);
        if self.cm.next_timeout().is_some_and(|t| t <= now) {
            self.cm.handle_timeout(now);
        }
        while let Some(event) = self.cm.poll_event() {
            busy = true;
            self.handle_cm_event(now, event);
        }
        for index in 0..self.ports.len() {
            self.ports[index].host.poll(now, output);
            busy |= self.poll_host_events(now, index);
        }
        self.update_moved_peers(now);
        self.push_streams(now);
        self.send_mads(output);
        busy
    }

    /// When the next call of [`poll`](Self::poll) is due, unless a message, a packet or an event of a host arrives before. Limits
    /// without a timer of their own, such as that of an unread stream, are checked in each call: a host that sleeps calls it a few
    /// times per second at least.
    pub fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let gsi = self.gsi.is_waiting().then_some(now);
        let retries = [self.inbound.next_retry, self.outbound.next_retry];
        retries.into_iter().chain([gsi, self.cm.next_timeout()]).flatten().min()
    }

    /// Disconnects every peer and leaves every group. Later calls change nothing.
    pub fn begin_stop(&mut self, now: Instant) {
        if self.stopping.is_none() {
            self.stopping = Some(now);
            self.stop_outbound();
            self.stop_inbound();
            let conns: Vec<ConnId> = self.connections.keys().copied().collect();
            for conn in conns {
                self.disconnect(now, conn);
            }
            self.leave_groups(now);
        }
    }

    /// Whether all peers have answered since [`begin_stop`](Self::begin_stop), or `patience` has passed.
    pub fn is_stopped(&self, now: Instant, patience: Duration) -> bool {
        // One more turn in any case, in which the hosts announce the groups that they leave.
        let is_idle = |since| now > since && self.connections.is_empty() && self.pending_mad.is_none();
        self.stopping.is_some_and(is_idle) || self.is_stop_overdue(now, patience)
    }

    /// Whether `patience` has passed since [`begin_stop`](Self::begin_stop).
    pub fn is_stop_overdue(&self, now: Instant, patience: Duration) -> bool {
        self.stopping.is_some_and(|since| now.saturating_since(since) >= patience)
    }

    fn handle_message(&mut self, now: Instant, message: ToControl) {
        match message {
            ToControl::SendRep { conn, params } => {
                if let Err(error) = self.cm.accept(now, conn, params) {
                    if self.events.admits(now) {
                        tracing::info!(?conn, %error, "accepted too late");
                    }
                    self.end_connection(conn, EndReason::Unacceptable);
                }
            }
            ToControl::SendRej { conn, reason, private_data } => {
                self.remove_placement(conn);
                self.reject(conn, reason, &private_data);
            }
            ToControl::CommunicationEstablished { conn } => {
                // A connection that ended meanwhile needs no RTU.
                let _ = self.cm.established(conn);
            }
            ToControl::Connect { reply_to, connect, rq_psn } => self.request_connection(now, reply_to, connect, rq_psn),
            ToControl::SendRtu { conn } => {
                if let Err(error) = self.cm.confirm(conn, &[]) {
                    tracing::debug!(?conn, %error, "over before the RTU");
                }
            }
            ToControl::ResolveDatagram { reply_to, remote, private_data } => {
                self.request_datagram(now, reply_to, remote, private_data);
            }
            ToControl::SendSidrRep { id, reply } => {
                // A request that timed out meanwhile needs no answer.
                let _ = self.cm.reply_sidr(now, id, reply);
            }
            ToControl::ResolvePath { reply_to, remote, client } => self.request_path(now, reply_to, remote, client),
            ToControl::Disconnect { conn } => self.disconnect(now, conn),
            ToControl::InUseChecked { request, in_use } => self.in_use_checked(now, request, in_use),
            ToControl::StreamSend { stream, data } => self.send_on_stream(now, stream, data),
            ToControl::StreamTaken { stream, len } => self.stream_taken(stream, len),
            ToControl::StreamClose { stream } => self.streams.close(stream),
            ToControl::GroupMember { worker, port, group, joined } => {
                self.member_changed(now, worker, port, group, joined);
            }
            ToControl::StreamReset { stream } => self.reset_stream(stream),
            ToControl::Change(change) => self.change(change),
            ToControl::Counts { reply } => {
                // A thread that has given up is no loss.
                let _ = reply.try_send(self.counts());
            }
            ToControl::Handshakes { from, reply } => {
                let _ = reply.try_send(inspect::handshakes(&self.cm, from));
            }
        }
    }

    #[cold]
    fn counts(&self) -> ControlCounts {
        let hosts = || self.ports.iter().map(|port| &port.host);
        ControlCounts {
            connections: self.cm.len(),
            sidr: self.cm.sidr_len() + self.cm.resolving(),
            streams: hosts().map(H::stream_count).sum(),
            neighbours: hosts().map(H::neighbour_count).sum(),
        }
    }

    fn handle_cm_event(&mut self, now: Instant, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest(request) => self.offer(now, request),
            CmEvent::Established { conn } => {
                self.learn_confirmed(now, conn);
                self.send_to_owner(conn, ToWorker::Connected { conn });
            }
            CmEvent::Disconnected { conn, reason } => self.end_connection(conn, EndReason::Disconnected(reason)),
            CmEvent::ConnectFailed { conn, reason, rej } => {
                self.forget_check(conn);
                if let Some(rej) = rej {
                    self.send_to_owner(conn, ToWorker::RejReceived { conn, rej });
                }
                self.end_connection(conn, EndReason::NotEstablished(reason));
            }
            CmEvent::ConnectReply(reply) => self.rep_received(reply),
            CmEvent::SidrRequest(request) => self.offer_datagram(now, request),
            CmEvent::DatagramResolved(reply) => self.datagram_resolved(&reply),
            CmEvent::ResolveFailed { id, reason, .. } => self.datagram_failed(id, reason),
        }
    }

    /// Returns whether there were any.
    fn poll_host_events(&mut self, now: Instant, index: usize) -> bool {
        let mut any = false;
        while let Some(event) = self.ports[index].host.poll_event() {
            any = true;
            match event {
                HostEvent::NeighbourChanged { ip, mac } => self.neighbour_changed(now, index, ip, mac),
                HostEvent::GroupListener { group, host, joined } => {
                    let port = self.ports[index].local.id;
                    self.report_listener(now, GroupListener { port, group, host, joined });
                }
                HostEvent::Stream(event) => self.handle_stream_event(now, index, event),
            }
        }
        any
    }

    fn reject(&mut self, conn: ConnId, reason: RejReason, private_data: &[u8]) {
        if let Err(error) = self.cm.reject(conn, reason, &[], private_data) {
            tracing::debug!(?conn, %error, "over before the REJ");
        }
    }

    fn disconnect(&mut self, now: Instant, conn: ConnId) {
        if let Err(error) = self.cm.disconnect(now, conn) {
            tracing::debug!(?conn, %error, "nothing to disconnect");
        }
    }

    /// The worker for the next connection or stream whose service has no choice of its own: round robin.
    fn next_worker(&mut self) -> usize {
        let worker = self.next_worker % self.mailbox.workers.len();
        self.next_worker = worker + 1;
        worker
    }

    fn end_connection(&mut self, conn: ConnId, reason: EndReason) {
        if let Some(placement) = self.remove_placement(conn) {
            self.send(placement.worker, ToWorker::Disconnected { conn, reason });
        }
    }

    fn send_to_owner(&self, conn: ConnId, message: ToWorker) {
        if let Some(placement) = self.connections.get(&conn) {
            self.send(placement.worker, message);
        }
    }

    fn send(&self, worker: usize, message: ToWorker) {
        // A worker that has ended has no connection left that the message could be about.
        let _ = self.mailbox.workers[worker].send(message);
    }

    fn send_mads(&mut self, output: &mut H::Output) {
        while let Some(mut mad) = self.pending_mad.take().or_else(|| self.cm.poll_transmit()) {
            mad.path.vlan = self.traffic_class.tag(mad.path.vlan);
            // Queue pair 1 does not react to congestion notifications.
            mad.path.traffic_class = self.traffic_class.class(mad.path.traffic_class) & !3;
            let Some(port) = self.ports.get_mut(usize::from(mad.path.port.0)) else { continue };
            if !port.host.send_mad(output, &mad.path, &mad.mad) {
                self.stats.mad_tx_stalls.inc();
                self.pending_mad = Some(mad);
                return;
            }
        }
    }
}
