//! The control side: connection manager, host stack, and the routing of what they say to services.
//!
//! It runs on worker 0, between bursts. It owns the CM, one [`Host`] per port and the listen table; it reaches
//! workers (its own included) through their mailboxes only. What services ask of peers is in [`outbound`].

mod gsi;
mod inbound;
pub mod ip_host;
mod outbound;
mod peers;
mod streams;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use rxe_proto::cm::{
    Cm, CmEvent, CmStats, ConnId, ConnectRequest, LocalAddresses, MadTransmit, SidrReply, SidrRequest,
};
use rxe_proto::counters;
use rxe_proto::wire::cm::{PortSpace, RejReason, SidrStatus};
use rxe_proto::wire::{DropCounters, Gid, MacAddr, PathMtu, PortId};
use rxe_proto::{Duration, Instant};

use crate::event_log::EventLog;
use crate::local_port::LocalPort;
use crate::mailbox::ControlMailbox;
use crate::messages::{EndReason, GroupListener, Terms, ToControl, ToWorker};
use crate::multicast::{GroupMembers, WorkerSet};
use crate::service::Listen;
use gsi::GsiQueue;
use inbound::{Arrival, Inbound};
pub use ip_host::{HostEvent, IpHost, Resolution, StreamEvent};
use outbound::Outbound;
use peers::Peers;
use streams::Streams;

counters! {
    /// What the control side did.
    pub struct ControlStats {
        /// Connection requests that no service claimed.
        connect_unclaimed,
        /// Connection requests handed to a service.
        connect_offered,
        /// Connection requests dropped because the peer's MAC could not be found.
        connect_unresolved,
        /// Connection requests dropped because too many others wait for a MAC or for the look at an older connection.
        connect_waiting_full,
        /// Connection requests refused because they name a queue pair or id of a connection in use.
        connect_stale_refused,
        /// Connections that services asked for.
        connect_asked,
        /// Questions for datagram queue pairs that services asked for.
        datagram_asked,
        /// Questions of peers for datagram queue pairs handed to a service.
        datagram_offered,
        /// Peers that no port has a path to.
        path_unresolved,
        /// Addresses that clients named as their own and that are another station's, or behind a router.
        path_foreign,
        /// Multicast groups that a port's address filter did not take.
        group_filter_refused,
        /// TCP streams reset because their client does not read what a service wrote.
        streams_unread,
        /// TCP streams reset at once because the workers have not taken what other streams brought.
        streams_refused,
        /// Messages of the CM that waited because the port took no more frames.
        mad_tx_stalls,
    }
}

/// One port, as the control side sees it.
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

/// The traffic class and priority of what we send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marking {
    /// DSCP and ECN bits; `None` mirrors the peer's traffic class.
    pub traffic_class: Option<u8>,
    /// VLAN priority (PCP), 0 to 7; only on ports with a VLAN.
    pub pcp: u8,
}

/// The control side of an adapter whose ports have hosts of type `H`.
pub struct Control<H: IpHost> {
    ports: Vec<ControlPort<H>>,
    cm: Cm,
    cm_stats: Arc<CmStats>,
    listens: Vec<(usize, Listen)>,
    connections: HashMap<ConnId, Placement>,
    peers: Peers,
    outbound: Outbound,
    inbound: Inbound,
    gsi: GsiQueue,
    streams: Streams<H::Stream>,
    groups: GroupMembers,
    next_worker: usize,
    mailbox: ControlMailbox,
    marking: Marking,
    pending_mad: Option<MadTransmit>,
    drops: Arc<DropCounters>,
    stats: Arc<ControlStats>,
    events: EventLog,
    stopping: Option<Instant>,
}

/// Where a connection lives and where its packets go.
struct Placement {
    worker: usize,
    port: usize,
    peer: Gid,
    mac: MacAddr,
    /// Until the peer has granted a connection that we asked for.
    terms: Option<Box<Terms>>,
}

/// What the CM wants to know of us: which addresses are ours and how large a path MTU a port carries.
struct Locals<'a, H>(&'a [ControlPort<H>]);

impl<H: IpHost> LocalAddresses for Locals<'_, H> {
    fn is_local(&self, port: PortId, gid: Gid) -> bool {
        self.0.get(usize::from(port.0)).is_some_and(|p| p.owns(gid.ip()))
    }

    fn path_mtu(&self, port: PortId) -> PathMtu {
        self.0.get(usize::from(port.0)).map_or(PathMtu::Mtu256, |p| p.local.path_mtu)
    }

    fn is_broadcast(&self, port: PortId, gid: Gid) -> bool {
        self.0.get(usize::from(port.0)).is_some_and(|p| p.host.is_broadcast(gid.ip()))
    }
}

impl<H: IpHost> Control<H> {
    /// `hosts` has one host per port. `listens` says what each service, by its number, listens to.
    pub fn new(
        hosts: Vec<H>,
        cm: Cm,
        listens: Vec<(usize, Listen)>,
        mailbox: ControlMailbox,
        marking: Marking,
        drops: Arc<DropCounters>,
        stats: Arc<ControlStats>,
    ) -> Control<H> {
        let ports = hosts.into_iter().map(|host| ControlPort { local: host.local_port(), host }).collect();
        let cm_stats = cm.stats().clone();
        Control {
            ports,
            cm,
            cm_stats,
            listens,
            connections: HashMap::new(),
            peers: Peers::default(),
            outbound: Outbound::default(),
            inbound: Inbound::default(),
            gsi: GsiQueue::default(),
            streams: Streams::default(),
            groups: GroupMembers::default(),
            next_worker: 0,
            mailbox,
            marking,
            pending_mad: None,
            drops,
            stats,
            events: EventLog::new("events of connections"),
            stopping: None,
        }
    }

    /// Counters of the connection manager.
    pub fn cm_stats(&self) -> &Arc<CmStats> {
        &self.cm_stats
    }

    /// The host of a port, for what it receives.
    pub fn host_mut(&mut self, port: PortId) -> Option<&mut H> {
        self.ports.get_mut(usize::from(port.0)).map(|port| &mut port.host)
    }

    /// Counters of what is dropped on the way to the connection manager and the hosts.
    pub fn drops(&self) -> &DropCounters {
        &self.drops
    }

    /// Does what is due: mail from workers, CM events and timers, the hosts' timers and streams.
    pub fn poll(&mut self, now: Instant, output: &mut H::Output) {
        while let Ok(message) = self.mailbox.inbox.try_recv() {
            self.handle_message(now, message);
        }
        self.poll_gsi(now);
        self.poll_outbound(now);
        self.poll_inbound(now);
        if self.cm.next_timeout().is_some_and(|t| t <= now) {
            self.cm.handle_timeout(now);
        }
        while let Some(event) = self.cm.poll_event() {
            self.handle_cm_event(now, event);
        }
        for index in 0..self.ports.len() {
            self.ports[index].host.poll(now, output);
            self.poll_host_events(now, index);
        }
        self.follow_peers(now);
        self.push_streams(now);
        self.send_mads(output);
    }

    /// Asks every peer to disconnect. [`Control::is_idle`] tells when they have answered.
    pub fn begin_stop(&mut self, now: Instant) {
        if self.stopping.is_none() {
            self.stopping = Some(now);
            self.stop_outbound();
            self.stop_inbound();
            let conns: Vec<ConnId> = self.connections.keys().copied().collect();
            for conn in conns {
                self.disconnect(now, conn);
            }
            let groups: Vec<(PortId, Gid)> = self.groups.groups().collect();
            for (port, group) in groups {
                self.set_members(now, port, group, WorkerSet::EMPTY);
            }
        }
    }

    /// Whether nothing more is expected from peers, or they had their time.
    pub fn is_stopped(&self, now: Instant, patience: Duration) -> bool {
        self.stopping.is_some_and(|since| {
            // One more turn in any case, in which the hosts say what groups they leave.
            let idle = now > since && self.connections.is_empty() && self.pending_mad.is_none();
            idle || now.saturating_since(since) >= patience
        })
    }

    fn handle_message(&mut self, now: Instant, message: ToControl) {
        match message {
            ToControl::Accept { conn, params } => {
                if let Err(error) = self.cm.accept(now, conn, params) {
                    if self.events.admits(now) {
                        tracing::info!(?conn, %error, "accepted too late");
                    }
                    self.end_connection(conn, EndReason::Unacceptable);
                }
            }
            ToControl::Reject { conn, reason, private_data } => {
                self.remove_placement(conn);
                self.reject(conn, reason, &private_data);
            }
            ToControl::CommunicationEstablished { conn } => {
                // A connection that ended meanwhile needs no RTU.
                let _ = self.cm.established(conn);
            }
            ToControl::Connect { asker, connect, rq_psn } => self.ask_connection(now, asker, connect, rq_psn),
            ToControl::Confirm { conn } => {
                if let Err(error) = self.cm.confirm(conn, &[]) {
                    tracing::debug!(?conn, %error, "over before it was confirmed");
                }
            }
            ToControl::ResolveDatagram { asker, remote, private_data } => {
                self.ask_datagram(now, asker, remote, private_data);
            }
            ToControl::ReplyDatagram { id, reply } => {
                // A question that timed out meanwhile needs no answer.
                let _ = self.cm.reply_sidr(now, id, reply);
            }
            ToControl::ResolvePath { asker, remote, client } => self.ask_path(now, asker, remote, client),
            ToControl::Disconnect { conn } => self.disconnect(now, conn),
            ToControl::Watched { request, in_use } => self.checked(now, request, in_use),
            ToControl::StreamSend { stream, data } => self.send_on_stream(now, stream, data),
            ToControl::StreamTaken { stream, len } => self.stream_taken(stream, len),
            ToControl::StreamClose { stream } => self.streams.close(stream),
            ToControl::GroupMember { worker, port, group, joined } => {
                let members = self.groups.get(port, group);
                let members = if joined { members.with(worker) } else { members.without(worker) };
                // When we stop, every group was left already.
                if self.stopping.is_none() {
                    self.set_members(now, port, group, members);
                }
            }
        }
    }

    /// These workers have members of a group now: the first one joins it on the network, the last one leaves it, and
    /// every worker hears where its frames belong.
    fn set_members(&mut self, now: Instant, port: PortId, group: Gid, workers: WorkerSet) {
        self.groups.set(port, group, workers);
        if let Some(own) = self.ports.get_mut(usize::from(port.0)) {
            let changed = if workers == WorkerSet::EMPTY {
                own.host.leave_group(now, group.ip())
            } else {
                own.host.join_group(now, group.ip())
            };
            if let Err(error) = changed {
                self.stats.group_filter_refused.inc();
                tracing::warn!(%group, "the port may not let the multicast group in: {error}");
            }
        }
        for worker in 0..self.mailbox.workers.len() {
            self.send(worker, ToWorker::GroupMembers { port, group, workers });
        }
    }

    fn handle_cm_event(&mut self, now: Instant, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest(request) => self.offer(now, request),
            CmEvent::Established { conn } => {
                self.learn_confirmed(now, conn);
                self.tell_owner(conn, ToWorker::Connected { conn });
            }
            CmEvent::Disconnected { conn, reason } => self.end_connection(conn, EndReason::Disconnected(reason)),
            CmEvent::ConnectFailed { conn, reason, rej } => {
                self.forget_check(conn);
                if let Some(rej) = rej {
                    self.tell_owner(conn, ToWorker::Rejected { conn, rej });
                }
                self.end_connection(conn, EndReason::NotEstablished(reason));
            }
            CmEvent::ConnectReply(reply) => self.granted(reply),
            CmEvent::SidrRequest(request) => self.offer_datagram(now, request),
            CmEvent::DatagramResolved(reply) => self.datagram_resolved(&reply),
            CmEvent::ResolveFailed { id, reason } => self.datagram_failed(id, reason),
        }
    }

    fn reject(&mut self, conn: ConnId, reason: RejReason, private_data: &[u8]) {
        if let Err(error) = self.cm.reject(conn, reason, &[], private_data) {
            tracing::debug!(?conn, %error, "the peer is gone before its rejection");
        }
    }

    fn disconnect(&mut self, now: Instant, conn: ConnId) {
        if let Err(error) = self.cm.disconnect(now, conn) {
            tracing::debug!(?conn, %error, "nothing to disconnect");
        }
    }

    /// Finds the service that claims a request. It is asked when the request's source has proved to exist.
    fn offer(&mut self, now: Instant, request: Box<ConnectRequest>) {
        let conn = request.conn;
        let service = self.listens.iter().find_map(|(service, listen)| match listen {
            Listen::Cm { space, port, claims }
                if request.service_id.port_space() == Some(*space)
                    && request.service_id.port() == *port
                    && claims(&request) =>
            {
                Some(*service)
            }
            _ => None,
        });
        let Some(service) = service.filter(|_| self.stopping.is_none()) else {
            self.stats.connect_unclaimed.inc();
            if self.events.admits(now) {
                tracing::info!(peer = %request.source.0, service_id = %request.service_id, "no service listens there");
            }
            self.reject(conn, RejReason::InvalidServiceId, &[]);
            return;
        };
        self.arrive(now, Arrival { service, request });
    }

    /// Finds the service that answers questions for datagram queue pairs at a port, and asks it.
    fn offer_datagram(&mut self, now: Instant, request: Box<SidrRequest>) {
        let service = self.listens.iter().find_map(|(service, listen)| match listen {
            Listen::Cm { space: PortSpace::Udp, port, .. } if request.service_id.port() == *port => Some(*service),
            _ => None,
        });
        let Some(service) = service.filter(|_| self.stopping.is_none()) else {
            self.stats.connect_unclaimed.inc();
            if self.events.admits(now) {
                tracing::info!(peer = %request.source.0, service_id = %request.service_id, "no service listens there");
            }
            // A request that timed out meanwhile needs no answer.
            let _ = self.cm.reply_sidr(now, request.id, SidrReply::refuse(SidrStatus::ServiceIdNotSupported));
            return;
        };
        // The service may ask for the way to the peer. Without a route, only this packet tells it.
        if let Some(port) = self.ports.get_mut(usize::from(request.path.port.0))
            && !port.host.has_route(request.path.peer.ip())
        {
            port.host.learn(now, request.path.peer.ip(), request.path.peer_mac);
        }
        let worker = self.next_worker();
        self.stats.datagram_offered.inc();
        self.send(worker, ToWorker::DatagramRequest { service, request });
    }

    /// Workers take turns.
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

    fn tell_owner(&self, conn: ConnId, message: ToWorker) {
        if let Some(placement) = self.connections.get(&conn) {
            self.send(placement.worker, message);
        }
    }

    fn send(&self, worker: usize, message: ToWorker) {
        // A worker that is gone has no connections left to hear of.
        let _ = self.mailbox.workers[worker].send(message);
    }

    fn send_mads(&mut self, output: &mut H::Output) {
        while let Some(mad) = self.pending_mad.take().or_else(|| self.cm.poll_transmit()) {
            let Some(port) = self.ports.get_mut(usize::from(mad.path.port.0)) else { continue };
            if !port.host.send_mad(output, &mad.path, &mad.mad) {
                self.stats.mad_tx_stalls.inc();
                self.pending_mad = Some(mad);
                return;
            }
        }
    }

    fn poll_host_events(&mut self, now: Instant, index: usize) {
        while let Some(event) = self.ports[index].host.poll_event() {
            match event {
                HostEvent::NeighbourChanged { ip, mac } => self.neighbour_changed(now, index, ip, mac),
                HostEvent::GroupListener { group, host, joined } => {
                    let port = self.ports[index].local.id;
                    self.tell_listener(GroupListener { port, group, host, joined });
                }
                HostEvent::Stream(event) => self.handle_stream_event(now, index, event),
            }
        }
    }

    /// Tells the services that want to know of another host that begins or ceases to listen to a group.
    fn tell_listener(&self, listener: GroupListener) {
        let worker = listener.spread() % self.mailbox.workers.len();
        for (service, listen) in &self.listens {
            if matches!(listen, Listen::GroupListeners) {
                self.send(worker, ToWorker::GroupListener { service: *service, listener });
            }
        }
    }
}
