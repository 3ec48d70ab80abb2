//! The active side: connections, SIDR requests and paths that services ask for.
//!
//! Each starts with path resolution. The port is one that has the peer on one of its networks, or else one with a route;
//! its host finds the MAC, which may take some seconds. A [`Goal`] whose path is not known is retried until then; with its
//! path it goes to the connection manager.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use rxe_proto::cm::{ConnectParams, ConnectReply, DatagramReply, MadPath, ResolveFailure, ResolveParams, SidrId};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::RejReason;
use rxe_proto::wire::{Gid, Path, PortId, Psn};
use rxe_proto::{Duration, Instant};

use super::ip_host::{IpHost, Resolution};
use super::{Control, Placement};
use crate::messages::{Connect, DatagramPeer, EndReason, PeerPath, ReplyTo, ResolveError, RtsParams, ToWorker};

/// Interval between attempts to resolve MACs.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Hop limit of packets to peers.
const HOP_LIMIT: u8 = 64;

/// The first source port of connections and SIDR requests; they rotate from here to 65,535.
const FIRST_SOURCE_PORT: u16 = 49_152;

/// Purpose of a service's path.
enum Goal {
    Connection {
        connect: Box<Connect>,
        rq_psn: Psn,
    },
    Datagram {
        dest_port: u16,
        private_data: Vec<u8>,
    },
    /// The path itself. With a client, only if the address is the client's own.
    Path {
        client: Option<IpAddr>,
    },
}

/// A goal whose path is not known yet.
struct Waiting {
    reply_to: ReplyTo,
    remote: IpAddr,
    goal: Goal,
    /// Ports to try, the next one last.
    ports: Vec<usize>,
}

/// A SIDR request that was sent.
struct PendingSidr {
    reply_to: ReplyTo,
    path: PeerPath,
}

/// Requests of services that are not answered yet.
#[derive(Default)]
pub(super) struct Outbound {
    waiting: VecDeque<Waiting>,
    pub(super) next_retry: Option<Instant>,
    sidr: HashMap<SidrId, PendingSidr>,
    /// Source ports used so far.
    source_ports_used: u16,
}

impl Outbound {
    fn next_source_port(&mut self) -> u16 {
        let port = FIRST_SOURCE_PORT + self.source_ports_used % (u16::MAX - FIRST_SOURCE_PORT + 1);
        self.source_ports_used = self.source_ports_used.wrapping_add(1);
        port
    }
}

impl<H: IpHost> Control<H> {
    /// See [`ToControl::Connect`](crate::messages::ToControl::Connect).
    pub(super) fn request_connection(&mut self, now: Instant, reply_to: ReplyTo, connect: Box<Connect>, rq_psn: Psn) {
        let remote = connect.remote.ip();
        self.find_path(now, reply_to, remote, Goal::Connection { connect, rq_psn });
    }

    /// See [`ToControl::ResolveDatagram`](crate::messages::ToControl::ResolveDatagram).
    pub(super) fn request_datagram(
        &mut self,
        now: Instant,
        reply_to: ReplyTo,
        remote: SocketAddr,
        private_data: Vec<u8>,
    ) {
        self.find_path(now, reply_to, remote.ip(), Goal::Datagram { dest_port: remote.port(), private_data });
    }

    /// See [`ToControl::ResolvePath`](crate::messages::ToControl::ResolvePath).
    pub(super) fn request_path(&mut self, now: Instant, reply_to: ReplyTo, remote: IpAddr, client: Option<IpAddr>) {
        self.find_path(now, reply_to, remote, Goal::Path { client });
    }

    /// Retries what waits for a path.
    pub(super) fn poll_outbound(&mut self, now: Instant) {
        if self.outbound.next_retry.is_none_or(|at| at > now) {
            return;
        }
        self.outbound.next_retry = None;
        // Each once: a goal that goes on waiting is appended again.
        for _ in 0..self.outbound.waiting.len() {
            if let Some(waiting) = self.outbound.waiting.pop_front() {
                self.try_path(now, waiting);
            }
        }
    }

    /// Fails everything that is not answered yet.
    pub(super) fn stop_outbound(&mut self) {
        for waiting in std::mem::take(&mut self.outbound.waiting) {
            self.fail(waiting.reply_to, waiting.goal, EndReason::Stopping, ResolveError::Stopping);
        }
        for (_, pending) in std::mem::take(&mut self.outbound.sidr) {
            self.answer_datagram(pending.reply_to, Err(ResolveError::Stopping));
        }
    }

    fn find_path(&mut self, now: Instant, reply_to: ReplyTo, remote: IpAddr, goal: Goal) {
        if self.stopping.is_some() {
            self.fail(reply_to, goal, EndReason::Stopping, ResolveError::Stopping);
            return;
        }
        // Ports are tried from the end: first those on the peer's network, then the others, each in ascending order.
        let on_link = |&port: &usize| self.ports[port].host.is_on_link(remote);
        let (near, far): (Vec<usize>, Vec<usize>) = (0..self.ports.len()).rev().partition(on_link);
        self.try_path(now, Waiting { reply_to, remote, goal, ports: [far, near].concat() });
    }

    fn try_path(&mut self, now: Instant, mut waiting: Waiting) {
        while let Some(&index) = waiting.ports.last() {
            match self.ports[index].host.resolve(now, waiting.remote) {
                Resolution::Ready { mac, source } => {
                    if let Goal::Path { client: Some(client) } = waiting.goal
                        && !self.ports[index].host.same_station(now, waiting.remote, client)
                    {
                        self.stats.path_foreign.inc();
                        self.answer_path(waiting.reply_to, None);
                        return;
                    }
                    let local = &self.ports[index].local;
                    let path = Path {
                        port: PortId(index as u16),
                        src_mac: local.mac,
                        dst_mac: mac,
                        vlan: local.vlan,
                        src: Gid::from(source),
                        dst: Gid::from(waiting.remote),
                        udp_src_port: 0,
                        traffic_class: self.traffic_class.class(0),
                        flow_label: 0,
                        hop_limit: HOP_LIMIT,
                    };
                    let path = PeerPath { path, path_mtu: local.path_mtu };
                    self.path_found(now, waiting.reply_to, waiting.goal, path);
                    return;
                }
                Resolution::Pending => {
                    self.outbound.waiting.push_back(waiting);
                    self.outbound.next_retry.get_or_insert(now + RETRY_INTERVAL);
                    return;
                }
                Resolution::Unreachable => waiting.ports.pop(),
            };
        }
        self.stats.path_unresolved.inc();
        if self.events.admits(now) {
            tracing::info!(peer = %waiting.remote, "no path there: no route, or no host has the address");
        }
        self.fail(waiting.reply_to, waiting.goal, EndReason::NoPath, ResolveError::NoPath);
    }

    /// Passes a goal with its path to the connection manager; a path alone to the service.
    fn path_found(&mut self, now: Instant, reply_to: ReplyTo, goal: Goal, path: PeerPath) {
        let source_port = self.outbound.next_source_port();
        match goal {
            Goal::Connection { connect, rq_psn } => self.send_req(now, reply_to, &connect, rq_psn, path, source_port),
            Goal::Datagram { dest_port, private_data } => {
                let params = ResolveParams {
                    private_data,
                    ..ResolveParams::new(mad_path(&path.path), (source_port, dest_port))
                };
                match self.cm.resolve_datagram(now, params) {
                    Ok(id) => {
                        self.stats.datagram_asked.inc();
                        self.outbound.sidr.insert(id, PendingSidr { reply_to, path });
                    }
                    Err(error) => self.answer_datagram(reply_to, Err(ResolveError::NotSent(error))),
                }
            }
            Goal::Path { .. } => self.answer_path(reply_to, Some(Box::new(path))),
        }
    }

    fn send_req(
        &mut self,
        now: Instant,
        reply_to: ReplyTo,
        connect: &Connect,
        rq_psn: Psn,
        PeerPath { mut path, path_mtu: largest }: PeerPath,
        source_port: u16,
    ) {
        let (service, qp) = (reply_to.service, connect.qp.qpn());
        let path_mtu = connect.path_mtu.unwrap_or(largest).min(largest);
        let ports = (source_port, connect.remote.port());
        let params = ConnectParams {
            transport: connect.transport,
            responder_resources: connect.responder_resources,
            initiator_depth: connect.initiator_depth,
            retry_count: connect.retry_count,
            rnr_retry_count: connect.rnr_retry_count,
            local_ack_timeout: connect.local_ack_timeout,
            response_timeout: connect.response_timeout,
            max_cm_retries: connect.max_cm_retries,
            private_data: connect.private_data.clone(),
            ..ConnectParams::new(mad_path(&path), ports, qp, rq_psn, path_mtu)
        };
        path.flow_label = params.flow_label;
        match self.cm.connect(now, params) {
            Ok(conn) => {
                self.stats.connect_asked.inc();
                let placement = Placement {
                    worker: reply_to.worker,
                    port: usize::from(path.port.0),
                    peer: path.dst,
                    next_hop: self.next_hop(&path),
                    mac: path.dst_mac,
                    rts: Some(Box::new(RtsParams {
                        path,
                        path_mtu,
                        rq_psn,
                        retry_count: connect.retry_count,
                        rnr_retry: connect.rnr_retry,
                    })),
                };
                self.place(conn, placement);
                self.send(reply_to.worker, ToWorker::ReqSent { service, conn, qp });
            }
            Err(error) => self.req_not_sent(reply_to, qp, EndReason::ReqNotSent(error)),
        }
    }

    /// The peer accepts a connection that a service requested: the worker takes the queue pair to RTS.
    pub(super) fn rep_received(&mut self, reply: Box<ConnectReply>) {
        let conn = reply.conn;
        let Some((placement, mut rts)) =
            self.connections.get_mut(&conn).and_then(|placement| placement.rts.take().map(|rts| (placement, rts)))
        else {
            // The worker has dropped the connection meanwhile.
            self.reject(conn, RejReason::ConsumerDefined, &[]);
            return;
        };
        // The peer's MAC may have changed since the REQ.
        rts.path.dst_mac = placement.mac;
        let worker = placement.worker;
        self.send(worker, ToWorker::RepReceived { reply, rts });
    }

    /// A peer has answered a SIDR request with a queue pair.
    pub(super) fn datagram_resolved(&mut self, reply: &DatagramReply) {
        let Some(PendingSidr { reply_to, path }) = self.outbound.sidr.remove(&reply.id) else { return };
        let (qpn, qkey, private_data): (Qpn, _, _) = (reply.qpn, reply.qkey, reply.private_data);
        self.answer_datagram(reply_to, Ok(Box::new(DatagramPeer { path, qpn, qkey, private_data })));
    }

    /// A peer has refused a SIDR request, or has not answered it.
    pub(super) fn datagram_failed(&mut self, id: SidrId, reason: ResolveFailure) {
        let Some(pending) = self.outbound.sidr.remove(&id) else { return };
        let error = match reason {
            ResolveFailure::Refused(status) => ResolveError::Refused(status),
            ResolveFailure::Timeout => ResolveError::Timeout,
        };
        self.answer_datagram(pending.reply_to, Err(error));
    }

    fn fail(&mut self, reply_to: ReplyTo, goal: Goal, reason: EndReason, error: ResolveError) {
        match goal {
            Goal::Connection { connect, .. } => self.req_not_sent(reply_to, connect.qp.qpn(), reason),
            Goal::Datagram { .. } => self.answer_datagram(reply_to, Err(error)),
            Goal::Path { .. } => self.answer_path(reply_to, None),
        }
    }

    fn req_not_sent(&mut self, reply_to: ReplyTo, qp: Qpn, reason: EndReason) {
        let conn = self.cm.unused_id();
        self.send(reply_to.worker, ToWorker::ReqNotSent { service: reply_to.service, conn, qp, reason });
    }

    fn answer_datagram(&self, reply_to: ReplyTo, result: Result<Box<DatagramPeer>, ResolveError>) {
        let ReplyTo { worker, service, token } = reply_to;
        self.send(worker, ToWorker::DatagramResolved { service, token, result });
    }

    fn answer_path(&self, reply_to: ReplyTo, path: Option<Box<PeerPath>>) {
        let ReplyTo { worker, service, token } = reply_to;
        self.send(worker, ToWorker::PathResolved { service, token, path });
    }
}

/// The same path for the connection manager's messages.
fn mad_path(path: &Path) -> MadPath {
    MadPath {
        port: path.port,
        local_mac: path.src_mac,
        peer_mac: path.dst_mac,
        vlan: path.vlan,
        local: path.src,
        peer: path.dst,
        traffic_class: path.traffic_class,
    }
}
