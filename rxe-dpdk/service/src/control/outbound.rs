//! What services ask of peers: connections, datagram queue pairs, paths.
//!
//! Each begins with the way there. A port is chosen that has the peer on one of its networks, or else one with a route;
//! its host stack finds the MAC, which may take some seconds. What waits for that is looked at again and again; what
//! has its path goes to the connection manager.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use rxe_proto::cm::{ConnectParams, ConnectReply, DatagramReply, MadPath, ResolveFailure, ResolveParams, SidrId};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::RejReason;
use rxe_proto::wire::{Gid, Path, PortId, Psn};
use rxe_proto::{Duration, Instant};

use super::ip_host::{IpHost, Resolution};
use super::{Control, Placement};
use crate::messages::{Asker, Connect, DatagramPeer, EndReason, PeerPath, ResolveError, Terms, ToWorker};

/// How often what waits for a MAC is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Hop limit of packets to peers.
const HOP_LIMIT: u8 = 64;

/// The first of the ports that we connect from; they are taken in turn up to the last one there is.
const FIRST_SOURCE_PORT: u16 = 49_152;

/// What is wanted of a peer.
enum Wish {
    Connection {
        connect: Box<Connect>,
        rq_psn: Psn,
    },
    Datagram {
        dest_port: u16,
        private_data: Vec<u8>,
    },
    /// For a client that names the address as its own, if any.
    Path {
        client: Option<IpAddr>,
    },
}

/// A wish whose path is not known yet.
struct Waiting {
    asker: Asker,
    remote: IpAddr,
    wish: Wish,
    /// Ports to try, the next one last.
    ports: Vec<usize>,
}

/// A question for a datagram queue pair that a peer has been asked.
struct Question {
    asker: Asker,
    path: PeerPath,
}

/// Wishes of services that are not settled.
#[derive(Default)]
pub(super) struct Outbound {
    waiting: VecDeque<Waiting>,
    next_look: Option<Instant>,
    questions: HashMap<SidrId, Question>,
    /// How many source ports were taken.
    taken: u16,
}

impl Outbound {
    fn source_port(&mut self) -> u16 {
        let port = FIRST_SOURCE_PORT + self.taken % (u16::MAX - FIRST_SOURCE_PORT + 1);
        self.taken = self.taken.wrapping_add(1);
        port
    }
}

impl<H: IpHost> Control<H> {
    /// See [`ToControl::Connect`](crate::messages::ToControl::Connect).
    pub(super) fn ask_connection(&mut self, now: Instant, asker: Asker, connect: Box<Connect>, rq_psn: Psn) {
        let remote = connect.remote.ip();
        self.find_path(now, asker, remote, Wish::Connection { connect, rq_psn });
    }

    /// See [`ToControl::ResolveDatagram`](crate::messages::ToControl::ResolveDatagram).
    pub(super) fn ask_datagram(&mut self, now: Instant, asker: Asker, remote: SocketAddr, private_data: Vec<u8>) {
        self.find_path(now, asker, remote.ip(), Wish::Datagram { dest_port: remote.port(), private_data });
    }

    /// See [`ToControl::ResolvePath`](crate::messages::ToControl::ResolvePath).
    pub(super) fn ask_path(&mut self, now: Instant, asker: Asker, remote: IpAddr, client: Option<IpAddr>) {
        self.find_path(now, asker, remote, Wish::Path { client });
    }

    /// Looks after what waits for a path.
    pub(super) fn poll_outbound(&mut self, now: Instant) {
        if self.outbound.next_look.is_none_or(|at| at > now) {
            return;
        }
        self.outbound.next_look = None;
        // Each once: those that go on waiting come to the back.
        for _ in 0..self.outbound.waiting.len() {
            if let Some(waiting) = self.outbound.waiting.pop_front() {
                self.look(now, waiting);
            }
        }
    }

    /// Gives up what waits for a path; questions end when the connection manager does.
    pub(super) fn stop_outbound(&mut self) {
        for waiting in std::mem::take(&mut self.outbound.waiting) {
            self.fail(waiting.asker, waiting.wish, EndReason::Stopping, ResolveError::Stopping);
        }
        for (_, question) in std::mem::take(&mut self.outbound.questions) {
            self.answer_datagram(question.asker, Err(ResolveError::Stopping));
        }
    }

    fn find_path(&mut self, now: Instant, asker: Asker, remote: IpAddr, wish: Wish) {
        if self.stopping.is_some() {
            self.fail(asker, wish, EndReason::Stopping, ResolveError::Stopping);
            return;
        }
        // The last one is tried first: of those on the peer's network the first.
        let on_link = |&port: &usize| self.ports[port].host.is_on_link(remote);
        let (near, far): (Vec<usize>, Vec<usize>) = (0..self.ports.len()).rev().partition(on_link);
        self.look(now, Waiting { asker, remote, wish, ports: [far, near].concat() });
    }

    fn look(&mut self, now: Instant, mut waiting: Waiting) {
        while let Some(&index) = waiting.ports.last() {
            match self.ports[index].host.resolve(now, waiting.remote) {
                Resolution::Ready { mac, source } => {
                    if let Wish::Path { client: Some(client) } = waiting.wish
                        && !self.ports[index].host.same_station(now, waiting.remote, client)
                    {
                        self.stats.path_foreign.inc();
                        self.answer_path(waiting.asker, None);
                        return;
                    }
                    let port = &self.ports[index];
                    let path = Path {
                        port: PortId(index as u16),
                        src_mac: port.local.mac,
                        dst_mac: mac,
                        vlan: port.local.vlan,
                        src: Gid::from(source),
                        dst: Gid::from(waiting.remote),
                        udp_src_port: 0,
                        traffic_class: self.marking.traffic_class.unwrap_or(0),
                        flow_label: 0,
                        hop_limit: HOP_LIMIT,
                    };
                    let path = PeerPath { path, path_mtu: port.local.path_mtu };
                    self.go(now, waiting.asker, waiting.wish, path);
                    return;
                }
                Resolution::Pending => {
                    self.outbound.waiting.push_back(waiting);
                    self.outbound.next_look.get_or_insert(now + LOOK_EVERY);
                    return;
                }
                Resolution::Unreachable => waiting.ports.pop(),
            };
        }
        self.stats.path_unresolved.inc();
        if self.events.admits(now) {
            tracing::info!(peer = %waiting.remote, "no path there: no route, or nobody has the address");
        }
        self.fail(waiting.asker, waiting.wish, EndReason::NoPath, ResolveError::NoPath);
    }

    /// The path is known: on to the connection manager, or to the service that wanted just that.
    fn go(&mut self, now: Instant, asker: Asker, wish: Wish, path: PeerPath) {
        let source_port = self.outbound.source_port();
        match wish {
            Wish::Connection { connect, rq_psn } => self.connect(now, asker, &connect, rq_psn, path, source_port),
            Wish::Datagram { dest_port, private_data } => {
                let params = ResolveParams {
                    private_data,
                    ..ResolveParams::new(mad_path(&path.path), (source_port, dest_port))
                };
                match self.cm.resolve_datagram(now, params) {
                    Ok(id) => {
                        self.stats.datagram_asked.inc();
                        self.outbound.questions.insert(id, Question { asker, path });
                    }
                    Err(error) => self.answer_datagram(asker, Err(ResolveError::NotAsked(error))),
                }
            }
            Wish::Path { .. } => self.answer_path(asker, Some(Box::new(path))),
        }
    }

    fn connect(
        &mut self,
        now: Instant,
        asker: Asker,
        connect: &Connect,
        rq_psn: Psn,
        PeerPath { mut path, path_mtu: largest }: PeerPath,
        source_port: u16,
    ) {
        let (service, qp) = (asker.service, connect.qp);
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
                    worker: asker.worker,
                    port: usize::from(path.port.0),
                    peer: path.dst,
                    mac: path.dst_mac,
                    terms: Some(Box::new(Terms { path, path_mtu, rq_psn, retry_count: connect.retry_count })),
                };
                self.place(conn, placement);
                self.send(asker.worker, ToWorker::Asked { service, conn, qp });
            }
            Err(error) => self.not_asked(asker, qp, EndReason::NotAsked(error)),
        }
    }

    /// A peer grants what we asked for: the worker takes the queue pair to RTS.
    pub(super) fn granted(&mut self, reply: Box<ConnectReply>) {
        let conn = reply.conn;
        let Some((placement, mut terms)) = self
            .connections
            .get_mut(&conn)
            .and_then(|placement| placement.terms.take().map(|terms| (placement, terms)))
        else {
            // The worker has let go of it meanwhile.
            self.reject(conn, RejReason::ConsumerDefined, &[]);
            return;
        };
        // The peer may have moved since it was asked.
        terms.path.dst_mac = placement.mac;
        let worker = placement.worker;
        self.send(worker, ToWorker::Granted { reply, terms });
    }

    /// A peer has named its datagram queue pair.
    pub(super) fn datagram_resolved(&mut self, reply: &DatagramReply) {
        let Some(Question { asker, path }) = self.outbound.questions.remove(&reply.id) else { return };
        let (qpn, qkey, private_data): (Qpn, _, _) = (reply.qpn, reply.qkey, reply.private_data);
        self.answer_datagram(asker, Ok(Box::new(DatagramPeer { path, qpn, qkey, private_data })));
    }

    /// A peer has refused to, or has not answered.
    pub(super) fn datagram_failed(&mut self, id: SidrId, reason: ResolveFailure) {
        let Some(question) = self.outbound.questions.remove(&id) else { return };
        let error = match reason {
            ResolveFailure::Refused(status) => ResolveError::Refused(status),
            ResolveFailure::Timeout => ResolveError::Timeout,
        };
        self.answer_datagram(question.asker, Err(error));
    }

    fn fail(&mut self, asker: Asker, wish: Wish, reason: EndReason, error: ResolveError) {
        match wish {
            Wish::Connection { connect, .. } => self.not_asked(asker, connect.qp, reason),
            Wish::Datagram { .. } => self.answer_datagram(asker, Err(error)),
            Wish::Path { .. } => self.answer_path(asker, None),
        }
    }

    fn not_asked(&mut self, asker: Asker, qp: Qpn, reason: EndReason) {
        let conn = self.cm.unused_id();
        self.send(asker.worker, ToWorker::NotAsked { service: asker.service, conn, qp, reason });
    }

    fn answer_datagram(&self, asker: Asker, result: Result<Box<DatagramPeer>, ResolveError>) {
        let Asker { worker, service, token } = asker;
        self.send(worker, ToWorker::DatagramResolved { service, token, result });
    }

    fn answer_path(&self, asker: Asker, path: Option<Box<PeerPath>>) {
        let Asker { worker, service, token } = asker;
        self.send(worker, ToWorker::PathResolved { service, token, path });
    }
}

/// The same way for the connection manager's messages.
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
