//! The passive side: requests of peers on their way to a service.
//!
//! No service sees a request, and no queue pair is created for it, before its source has proved to exist: the source's MAC,
//! or that of the router to it, must be known or be found. A request that names numbers of an established connection waits
//! until that connection's worker has checked whether its peer still uses it.
//!
//! ```text
//! REQ ─> offer ─> resolve MAC ─> check older connections ─> ToWorker::ConnectRequest
//! ```

use std::collections::{HashMap, VecDeque};

use rxe_proto::cm::{ConnId, ConnectRequest, SidrReply, SidrRequest};
use rxe_proto::wire::cm::{PortSpace, RejReason, SidrStatus};
use rxe_proto::wire::{Gid, MacAddr, Path, udp_source_port};
use rxe_proto::{Duration, Instant};

use super::admission::Refusal;
use super::ip_host::{IpHost, Resolution};
use super::{Control, Placement};
use crate::messages::ToWorker;
use crate::service::Listen;

/// Interval between attempts to resolve the MACs of waiting requests.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Most requests that wait for a MAC. A host that wants to connect has usually asked for our MAC before, so that its own is
/// known.
const MAX_WAITING: usize = 256;

/// Most of them from one address.
const MAX_WAITING_PER_PEER: usize = MAX_WAITING / 4;

/// How long a request has its place for sure: a host that is there answers within a round trip. Later it gives way to a new one, so
/// that requests from addresses that nobody has keep nobody out for long.
const ANSWER_TIME: Duration = Duration::from_millis(20);

/// Most waiting requests looked at per poll.
const RETRIES_PER_POLL: usize = 32;

/// Most requests that wait for the check of an older connection.
const MAX_CHECKS: usize = 64;

/// Most of them from one address.
const MAX_CHECKS_PER_PEER: usize = MAX_CHECKS / 4;

/// Private data of a REJ for a client whose address the service does not serve.
const PEER_NOT_ALLOWED: &[u8] = b"this service does not serve your address";

/// Private data of a REJ for a new client of a service that management has stopped.
const STOPPED: &[u8] = b"this service is stopped";

/// Private data of a REJ for a new client of a target that is being drained.
const DRAINING: &[u8] = b"the target is ending, and takes no new clients";

/// A request and the service that claims it.
struct Arrival {
    service: usize,
    request: Box<ConnectRequest>,
    /// When it came.
    since: Instant,
}

/// A request that waits for workers to check connections that it would replace.
struct Check {
    arrival: Arrival,
    path: Path,
    /// Answers that are missing.
    pending: usize,
}

/// Requests that no service has seen yet.
#[derive(Default)]
pub(super) struct Inbound {
    waiting: VecDeque<Arrival>,
    pub(super) next_retry: Option<Instant>,
    checks: HashMap<ConnId, Check>,
}

impl Inbound {
    /// Makes `arrival` wait for a MAC. Returns the request that does not wait: an older one, or `arrival` itself.
    fn wait(&mut self, now: Instant, arrival: Arrival) -> Option<Arrival> {
        self.next_retry.get_or_insert(now + RETRY_INTERVAL);
        let of_peer = self.waiting.iter().filter(|other| other.request.peer_gid == arrival.request.peer_gid).count();
        if of_peer >= MAX_WAITING_PER_PEER {
            return Some(arrival);
        }
        let mut replaced = None;
        if self.waiting.len() >= MAX_WAITING {
            let oldest = (0..self.waiting.len()).min_by_key(|&index| self.waiting[index].since);
            let oldest = oldest.filter(|&index| now.saturating_since(self.waiting[index].since) >= ANSWER_TIME);
            replaced = oldest.and_then(|index| self.waiting.remove(index));
            if replaced.is_none() {
                return Some(arrival);
            }
        }
        self.waiting.push_back(arrival);
        replaced
    }

    /// Whether a request of `peer` may wait for the check of an older connection.
    fn may_be_checked(&self, peer: Gid) -> bool {
        let of_peer = self.checks.values().filter(|check| check.arrival.request.peer_gid == peer).count();
        self.checks.len() < MAX_CHECKS && of_peer < MAX_CHECKS_PER_PEER
    }
}

impl<H: IpHost> Control<H> {
    /// Finds the service that claims a new request.
    pub(super) fn offer(&mut self, now: Instant, request: Box<ConnectRequest>) {
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
        if let Some(refusal) = self.refuses(now, service, request.peer_gid) {
            let (reason, text) = match refusal {
                Refusal::Draining => (RejReason::NoResources, DRAINING),
                Refusal::Stopped => (RejReason::ConsumerDefined, STOPPED),
                Refusal::PeerNotAllowed => (RejReason::ConsumerDefined, PEER_NOT_ALLOWED),
            };
            self.reject(conn, reason, text);
            return;
        }
        if let Some(port) = self.ports.get_mut(usize::from(request.path.port.0)) {
            port.host.note_peer(now, request.peer_gid.ip());
        }
        self.arrive(now, Arrival { service, request, since: now });
    }

    /// Hands a SIDR request to the service that listens on its port.
    pub(super) fn offer_datagram(&mut self, now: Instant, mut request: Box<SidrRequest>) {
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
        if let Some(refusal) = self.refuses(now, service, request.path.peer) {
            let status = match refusal {
                Refusal::Draining => SidrStatus::NoQp,
                Refusal::Stopped | Refusal::PeerNotAllowed => SidrStatus::Rejected,
            };
            let _ = self.cm.reply_sidr(now, request.id, SidrReply::refuse(status));
            return;
        }
        if let Some(port) = self.ports.get_mut(usize::from(request.path.port.0)) {
            let peer = request.path.peer.ip();
            port.host.note_peer(now, peer);
            // The service may resolve the path to the peer. Without a route, only this packet has the peer's MAC.
            if !port.host.has_route(peer) {
                port.host.learn(now, peer, request.path.peer_mac);
            }
        }
        // The service sends its datagrams there.
        request.path.vlan = self.traffic_class.tag(request.path.vlan);
        request.path.traffic_class = self.traffic_class.class(request.path.traffic_class);
        let worker = self.next_worker();
        self.stats.datagram_offered.inc();
        self.send(worker, ToWorker::SidrRequest { service, request });
    }

    /// Resolves the source of a request that is new or has waited.
    fn arrive(&mut self, now: Instant, arrival: Arrival) {
        let conn = arrival.request.conn;
        match self.resolve_source(now, &arrival.request) {
            Resolution::Ready { mac, .. } => {
                let Some(path) = self.path_to(&arrival.request, mac) else { return };
                // The connection manager has just reported the request, so it knows the connection.
                let _ = self.cm.set_peer_mac(conn, mac);
                self.check_replaced(now, arrival, path);
            }
            Resolution::Pending => {
                if let Some(replaced) = self.inbound.wait(now, arrival) {
                    // The peer retransmits its REQ.
                    self.stats.connect_waiting_full.inc();
                    self.discard(now, &replaced, "too many others wait for their MAC address to be found");
                }
            }
            Resolution::Unreachable => {
                self.stats.connect_unresolved.inc();
                self.discard(now, &arrival, "no host has the address, or there is no route to it");
            }
        }
    }

    /// Retries requests that wait for a MAC.
    pub(super) fn poll_inbound(&mut self, now: Instant) {
        if self.inbound.next_retry.is_none_or(|at| at > now) {
            return;
        }
        self.inbound.next_retry = None;
        // Each once at most: a request that goes on waiting is appended again.
        for _ in 0..self.inbound.waiting.len().min(RETRIES_PER_POLL) {
            if let Some(arrival) = self.inbound.waiting.pop_front()
                && self.cm.connection(arrival.request.conn).is_some()
            {
                self.arrive(now, arrival);
            }
        }
        if !self.inbound.waiting.is_empty() {
            self.inbound.next_retry.get_or_insert(now + RETRY_INTERVAL);
        }
    }

    /// Discards all requests that no service has seen.
    pub(super) fn stop_inbound(&mut self) {
        let checks = self.inbound.checks.drain().map(|(_, check)| check.arrival);
        for arrival in self.inbound.waiting.drain(..).chain(checks) {
            // It may be over already.
            let _ = self.cm.discard(arrival.request.conn);
        }
    }

    /// A worker has checked a connection that `request` would replace.
    pub(super) fn in_use_checked(&mut self, now: Instant, request: ConnId, in_use: bool) {
        let Some(check) = self.inbound.checks.get_mut(&request) else { return };
        check.pending -= 1;
        if !in_use && check.pending > 0 {
            return;
        }
        let Some(Check { arrival, path, .. }) = self.inbound.checks.remove(&request) else { return };
        if !in_use {
            self.offer_to_service(now, arrival, path);
            return;
        }
        self.stats.connect_stale_refused.inc();
        if self.events.admits(now) {
            let peer = arrival.request.peer_gid;
            tracing::warn!(%peer, "a connection request is refused: it names a queue pair or id of a connection in use");
        }
        self.reject(request, RejReason::StaleConnection, &[]);
    }

    /// A request ended before a service has seen it.
    pub(super) fn forget_check(&mut self, conn: ConnId) {
        self.inbound.checks.remove(&conn);
    }

    /// Has workers check the connections that the request would replace.
    fn check_replaced(&mut self, now: Instant, arrival: Arrival, path: Path) {
        let request = arrival.request.conn;
        let replaced = self.cm.replaced_by(request);
        let replaced: Vec<_> =
            replaced.into_iter().filter_map(|old| Some((old, self.connections.get(&old)?.worker))).collect();
        if replaced.is_empty() {
            self.offer_to_service(now, arrival, path);
            return;
        }
        if !self.inbound.may_be_checked(arrival.request.peer_gid) {
            self.stats.connect_waiting_full.inc();
            self.discard(now, &arrival, "too many others name connections that exist already");
            return;
        }
        self.inbound.checks.insert(request, Check { arrival, path, pending: replaced.len() });
        for (conn, worker) in replaced {
            self.send(worker, ToWorker::CheckInUse { conn, request });
        }
    }

    /// Hands a request to its service, on the worker where the connection will live.
    fn offer_to_service(&mut self, now: Instant, Arrival { service, request, .. }: Arrival, path: Path) {
        let conn = request.conn;
        if self.cm.connection(conn).is_none() {
            return;
        }
        let worker = self.worker_for(now, service, &request);
        self.stats.connect_offered.inc();
        let port = usize::from(path.port.0);
        let next_hop = self.next_hop(&path);
        let placement = Placement { worker, port, peer: request.peer_gid, next_hop, mac: path.dst_mac, rts: None };
        self.place(conn, placement);
        self.send(worker, ToWorker::ConnectRequest { service, request, path });
    }

    /// The worker that the service's factory chooses, or else the next one in turn.
    fn worker_for(&mut self, now: Instant, service: usize, request: &ConnectRequest) -> usize {
        let workers = self.mailbox.workers.len();
        match self.factories.get(service).and_then(|factory| factory.worker_for(request, workers)) {
            Some(worker) if worker < workers => return worker,
            Some(worker) => {
                self.stats.worker_choice_invalid.inc();
                if self.events.admits(now) {
                    let peer = request.source.0;
                    tracing::warn!(%peer, worker, workers, "a service chose a worker that does not exist for a connection");
                }
            }
            None => {}
        }
        self.next_worker()
    }

    fn discard(&mut self, now: Instant, arrival: &Arrival, why: &str) {
        if self.events.admits(now) {
            tracing::info!(peer = %arrival.request.peer_gid, "a connection request is dropped: {why}");
        }
        // It may be over already.
        let _ = self.cm.discard(arrival.request.conn);
    }

    /// The MAC of a request's source, by a lookup of our own: the one in the packet may be forged. Without a route it is
    /// all there is; the neighbour table learns it only once the peer has confirmed the connection.
    fn resolve_source(&mut self, now: Instant, request: &ConnectRequest) -> Resolution {
        let Some(port) = self.ports.get_mut(usize::from(request.path.port.0)) else { return Resolution::Unreachable };
        let source = request.peer_gid.ip();
        if port.host.has_route(source) {
            port.host.resolve(now, source)
        } else {
            Resolution::Ready { mac: request.path.peer_mac, source: request.local_gid.ip() }
        }
    }

    /// Learns the MAC of a peer without a route that has confirmed its connection, and so received our answer there.
    pub(super) fn learn_confirmed(&mut self, now: Instant, conn: ConnId) {
        let Some(placement) = self.connections.get(&conn) else { return };
        let (peer, mac) = (placement.peer.ip(), placement.mac);
        if let Some(port) = self.ports.get_mut(placement.port)
            && !port.host.has_route(peer)
        {
            port.host.learn(now, peer, mac);
        }
    }

    /// The path of the queue pair of `request`.
    fn path_to(&self, request: &ConnectRequest, dst_mac: MacAddr) -> Option<Path> {
        let port = self.ports.get(usize::from(request.path.port.0))?;
        Some(Path {
            port: request.path.port,
            src_mac: port.local.mac,
            dst_mac,
            vlan: self.traffic_class.tag(request.path.vlan),
            src: request.local_gid,
            dst: request.peer_gid,
            // The worker sets it when the service has created the queue pair.
            udp_src_port: udp_source_port(request.flow_label, 0, request.remote_qpn),
            traffic_class: self.traffic_class.class(request.traffic_class),
            flow_label: request.flow_label,
            hop_limit: 64,
        })
    }
}
