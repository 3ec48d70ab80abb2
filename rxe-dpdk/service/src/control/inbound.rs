//! Requests of peers on their way to a service.
//!
//! No service hears of a request, and no queue pair is made for it, before the source has proved to exist: its MAC, or
//! that of the router to it, must be known or be found. A request that names numbers of an established connection waits
//! until that connection's worker has looked whether its peer still uses it.

use std::collections::{HashMap, VecDeque};

use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::wire::cm::RejReason;
use rxe_proto::wire::{Path, udp_source_port};
use rxe_proto::{Duration, Instant};

use super::ip_host::{IpHost, Resolution};
use super::{Control, Placement};
use crate::messages::ToWorker;

/// How often requests that wait for a MAC are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Requests that wait for a MAC, at most. A host that wants to connect has most likely asked for our MAC before, and then
/// its own is known.
const MAX_WAITING: usize = 256;

/// Requests that wait until it is known whether the connection that they would replace is in use, at most.
const MAX_CHECKS: usize = 64;

/// A request and the service that claims it.
pub(super) struct Arrival {
    pub(super) service: usize,
    pub(super) request: Box<ConnectRequest>,
}

/// A request for which workers look after connections.
struct Check {
    arrival: Arrival,
    path: Path,
    /// Answers that are missing.
    asked: usize,
}

/// Requests that no service has heard of yet.
#[derive(Default)]
pub(super) struct Inbound {
    waiting: VecDeque<Arrival>,
    next_look: Option<Instant>,
    checks: HashMap<ConnId, Check>,
}

impl<H: IpHost> Control<H> {
    /// A new request, or one that has waited.
    pub(super) fn arrive(&mut self, now: Instant, arrival: Arrival) {
        let conn = arrival.request.conn;
        match self.resolve_source(now, &arrival.request) {
            Resolution::Ready { mac, .. } => {
                let Some(path) = self.path_to(&arrival.request, mac) else { return };
                // It was there a moment ago.
                let _ = self.cm.set_peer_mac(conn, mac);
                self.check_replaced(now, arrival, path);
            }
            Resolution::Pending if self.inbound.waiting.len() < MAX_WAITING => {
                self.inbound.waiting.push_back(arrival);
                self.inbound.next_look.get_or_insert(now + LOOK_EVERY);
            }
            // The peer sends its REQ again.
            Resolution::Pending => {
                self.stats.connect_waiting_full.inc();
                self.discard(now, &arrival, "too many others wait for their MAC address to be found");
            }
            Resolution::Unreachable => {
                self.stats.connect_unresolved.inc();
                self.discard(now, &arrival, "no host has the address, or there is no route to it");
            }
        }
    }

    /// Looks after requests that wait for a MAC.
    pub(super) fn poll_inbound(&mut self, now: Instant) {
        if self.inbound.next_look.is_none_or(|at| at > now) {
            return;
        }
        self.inbound.next_look = None;
        // Each once: those that go on waiting come to the back.
        for _ in 0..self.inbound.waiting.len() {
            if let Some(arrival) = self.inbound.waiting.pop_front()
                && self.cm.connection(arrival.request.conn).is_some()
            {
                self.arrive(now, arrival);
            }
        }
    }

    /// Forgets all requests that no service has heard of, since we stop.
    pub(super) fn stop_inbound(&mut self) {
        let checks = self.inbound.checks.drain().map(|(_, check)| check.arrival);
        for arrival in self.inbound.waiting.drain(..).chain(checks) {
            // It may be over already.
            let _ = self.cm.discard(arrival.request.conn);
        }
    }

    /// Whether a connection is in use that the request `request` would replace.
    pub(super) fn checked(&mut self, now: Instant, request: ConnId, in_use: bool) {
        let Some(check) = self.inbound.checks.get_mut(&request) else { return };
        check.asked -= 1;
        if !in_use && check.asked > 0 {
            return;
        }
        let Some(Check { arrival, path, .. }) = self.inbound.checks.remove(&request) else { return };
        if !in_use {
            self.offer_to_service(arrival, path);
            return;
        }
        self.stats.connect_stale_refused.inc();
        if self.events.admits(now) {
            let peer = arrival.request.peer_gid;
            tracing::warn!(%peer, "a connection request is refused: it names a queue pair or id of a connection in use");
        }
        self.reject(request, RejReason::StaleConnection, &[]);
    }

    /// A request ended before a service has heard of it.
    pub(super) fn forget_check(&mut self, conn: ConnId) {
        self.inbound.checks.remove(&conn);
    }

    /// Asks the workers of connections that the request would replace whether they are in use.
    fn check_replaced(&mut self, now: Instant, arrival: Arrival, path: Path) {
        let request = arrival.request.conn;
        let replaced = self.cm.replaced_by(request);
        let watched: Vec<_> =
            replaced.into_iter().filter_map(|old| Some((old, self.connections.get(&old)?.worker))).collect();
        if watched.is_empty() {
            self.offer_to_service(arrival, path);
            return;
        }
        if self.inbound.checks.len() >= MAX_CHECKS {
            self.stats.connect_waiting_full.inc();
            self.discard(now, &arrival, "too many others name connections that there are already");
            return;
        }
        self.inbound.checks.insert(request, Check { arrival, path, asked: watched.len() });
        for (conn, worker) in watched {
            self.send(worker, ToWorker::WatchConnection { conn, request });
        }
    }

    /// Hands a request to its service, on the worker where the connection will live.
    fn offer_to_service(&mut self, Arrival { service, request }: Arrival, path: Path) {
        let conn = request.conn;
        if self.cm.connection(conn).is_none() {
            return;
        }
        let worker = self.next_worker();
        self.stats.connect_offered.inc();
        let port = usize::from(path.port.0);
        let placement = Placement { worker, port, peer: request.peer_gid, mac: path.dst_mac, terms: None };
        self.place(conn, placement);
        self.send(worker, ToWorker::ConnectRequest { service, request, path });
    }

    fn discard(&mut self, now: Instant, arrival: &Arrival, why: &str) {
        if self.events.admits(now) {
            tracing::info!(peer = %arrival.request.peer_gid, "a connection request is dropped: {why}");
        }
        // It may be over already.
        let _ = self.cm.discard(arrival.request.conn);
    }

    /// The MAC by which the source of a request is reached: by our own lookup, since the one in its packet may be forged.
    /// Only without a route there is nothing else to go by. The neighbour table learns that when the peer has confirmed.
    fn resolve_source(&mut self, now: Instant, request: &ConnectRequest) -> Resolution {
        let Some(port) = self.ports.get_mut(usize::from(request.path.port.0)) else { return Resolution::Unreachable };
        let source = request.peer_gid.ip();
        if port.host.has_route(source) {
            port.host.resolve(now, source)
        } else {
            Resolution::Ready { mac: request.path.peer_mac, source: request.local_gid.ip() }
        }
    }

    /// A peer has confirmed its connection, so it is where its packets come from. Without a route, nothing else says so.
    pub(super) fn learn_confirmed(&mut self, now: Instant, conn: ConnId) {
        let Some(placement) = self.connections.get(&conn) else { return };
        let (peer, mac) = (placement.peer.ip(), placement.mac);
        if let Some(port) = self.ports.get_mut(placement.port)
            && !port.host.has_route(peer)
        {
            port.host.learn(now, peer, mac);
        }
    }

    /// The way of the queue pair of `request`.
    fn path_to(&self, request: &ConnectRequest, dst_mac: rxe_proto::wire::MacAddr) -> Option<Path> {
        let port = self.ports.get(usize::from(request.path.port.0))?;
        let vlan = request.path.vlan.map(|tci| (tci & 0x0FFF) | (u16::from(self.marking.pcp) << 13));
        Some(Path {
            port: request.path.port,
            src_mac: port.local.mac,
            dst_mac,
            vlan,
            src: request.local_gid,
            dst: request.peer_gid,
            // The queue pair number is not known before the service has made one: see `connect` in the worker.
            udp_src_port: udp_source_port(request.flow_label, 0, request.remote_qpn),
            traffic_class: self.marking.traffic_class.unwrap_or(request.traffic_class),
            flow_label: request.flow_label,
            hop_limit: 64,
        })
    }
}
