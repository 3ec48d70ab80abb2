//! Connections indexed by next hop, so that a neighbour with a new MAC address costs no scan of all connections.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr};

use rxe_proto::cm::ConnId;
use rxe_proto::wire::{MacAddr, Path};
use rxe_proto::{Duration, Instant};

use super::ip_host::{IpHost, Resolution};
use super::{Control, Placement};
use crate::messages::ToWorker;

/// Most connections updated per poll of the control side: a router may have thousands behind it.
const PEERS_PER_POLL: usize = 256;

/// Pause before connections are updated whose next hop is being resolved.
const UNRESOLVED_RETRY: Duration = Duration::from_millis(10);

/// Connections by their next hop.
pub(super) struct Peers<C = ConnId> {
    /// By port and neighbour.
    by_next_hop: HashMap<(usize, IpAddr), HashSet<C>>,
    /// Neighbours whose MAC changed, with the connections that are not updated yet.
    moved: VecDeque<(usize, IpAddr, Vec<C>)>,
    /// Connections to update again, with their ports, and when: their next hops are being resolved.
    unresolved: (Vec<(usize, C)>, Option<Instant>),
}

impl<C> Default for Peers<C> {
    fn default() -> Peers<C> {
        Peers { by_next_hop: HashMap::new(), moved: VecDeque::new(), unresolved: (Vec::new(), None) }
    }
}

impl<C: Copy + Eq + Hash> Peers<C> {
    fn insert(&mut self, port: usize, next_hop: IpAddr, conn: C) {
        self.by_next_hop.entry((port, next_hop)).or_default().insert(conn);
    }

    fn remove(&mut self, port: usize, next_hop: IpAddr, conn: C) {
        if let Some(conns) = self.by_next_hop.get_mut(&(port, next_hop)) {
            conns.remove(&conn);
            if conns.is_empty() {
                self.by_next_hop.remove(&(port, next_hop));
            }
        }
    }

    /// Queues the connections through a neighbour for an update. An earlier change that is not applied to all of them yet
    /// is replaced: the MAC is looked up when it is applied.
    fn changed(&mut self, port: usize, next_hop: IpAddr) {
        self.moved.retain(|(p, ip, _)| (*p, *ip) != (port, next_hop));
        if let Some(conns) = self.by_next_hop.get(&(port, next_hop)) {
            self.moved.push_back((port, next_hop, conns.iter().copied().collect()));
        }
    }

    /// Queues all connections of a port for an update: its routes changed.
    pub(super) fn all_changed(&mut self, port: usize) {
        let next_hops = self.by_next_hop.keys().filter(|(of, _)| *of == port);
        let next_hops: Vec<IpAddr> = next_hops.map(|(_, next_hop)| *next_hop).collect();
        next_hops.into_iter().for_each(|next_hop| self.changed(port, next_hop));
    }

    /// Queues a connection whose next hop is being resolved.
    fn wait(&mut self, now: Instant, port: usize, conn: C) {
        let (waiting, retry_at) = &mut self.unresolved;
        waiting.push((port, conn));
        retry_at.get_or_insert(now + UNRESOLVED_RETRY);
    }

    /// Queues the connections that have waited for an update.
    fn retry(&mut self, now: Instant) {
        if self.unresolved.1.is_some_and(|at| at <= now) {
            self.unresolved.1 = None;
            for (port, conn) in std::mem::take(&mut self.unresolved.0) {
                // No neighbour has this address.
                self.moved.push_back((port, Ipv4Addr::UNSPECIFIED.into(), vec![conn]));
            }
        }
    }

    /// The next connection to update, with its port.
    fn next_moved(&mut self) -> Option<(usize, C)> {
        loop {
            let (port, _, conns) = self.moved.front_mut()?;
            if let Some(conn) = conns.pop() {
                return Some((*port, conn));
            }
            self.moved.pop_front();
        }
    }
}

impl<H: IpHost> Control<H> {
    /// Records where a connection lives.
    pub(super) fn place(&mut self, conn: ConnId, placement: Placement) {
        self.peers.insert(placement.port, placement.next_hop, conn);
        self.connections.insert(conn, placement);
    }

    /// Forgets a connection.
    pub(super) fn remove_placement(&mut self, conn: ConnId) -> Option<Placement> {
        let placement = self.connections.remove(&conn)?;
        self.peers.remove(placement.port, placement.next_hop, conn);
        Some(placement)
    }

    /// The neighbour through which packets of a path go.
    pub(super) fn next_hop(&self, path: &Path) -> IpAddr {
        self.ports[usize::from(path.port.0)].host.next_hop(path.dst.ip())
    }

    /// A neighbour of a port has another MAC address: a peer, or the router to many.
    pub(super) fn neighbour_changed(&mut self, now: Instant, port: usize, ip: IpAddr, mac: MacAddr) {
        if self.events.admits(now) {
            tracing::info!(%ip, %mac, "the neighbour has another MAC address now");
        }
        self.peers.changed(port, ip);
    }

    /// Updates the MAC address of connections whose next hop has a new one, or which have a new next hop, a limited number
    /// per poll.
    pub(super) fn update_moved_peers(&mut self, now: Instant) {
        self.peers.retry(now);
        for _ in 0..PEERS_PER_POLL {
            let Some((port, conn)) = self.peers.next_moved() else { return };
            let Some(placement) = self.connections.get_mut(&conn) else { continue };
            let next_hop = self.ports[port].host.next_hop(placement.peer.ip());
            if next_hop != placement.next_hop {
                self.peers.remove(port, placement.next_hop, conn);
                self.peers.insert(port, next_hop, conn);
                placement.next_hop = next_hop;
            }
            if self.ports[port].local.restrictions.pin_mac {
                self.stats.peer_moves_refused.inc();
                continue;
            }
            match self.ports[port].host.resolve(now, placement.peer.ip()) {
                Resolution::Ready { mac, .. } if mac != placement.mac => {
                    placement.mac = mac;
                    // The connection may have ended just now.
                    let _ = self.cm.set_peer_mac(conn, mac);
                    let _ = self.mailbox.workers[placement.worker].send(ToWorker::PeerMacChanged { conn, mac });
                }
                Resolution::Pending => self.peers.wait(now, port, conn),
                // Unreachable peers keep the path that they have, until they time out.
                Resolution::Ready { .. } | Resolution::Unreachable => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(peers: &mut Peers<u32>) -> Vec<(usize, u32)> {
        let mut moved: Vec<_> = std::iter::from_fn(|| peers.next_moved()).collect();
        moved.sort();
        moved
    }

    #[test]
    fn a_mac_change_updates_only_connections_through_that_neighbour() {
        let mut peers = Peers::<u32>::default();
        let (router, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for n in 0..1000 {
            peers.insert(0, router, n);
        }
        peers.insert(0, other, 1000);
        peers.insert(1, router, 1001);
        peers.changed(0, other);
        assert_eq!(drain(&mut peers), [(0, 1000)]);
        peers.changed(0, router);
        peers.next_moved();
        // A second change before the first is applied does not queue the connections twice.
        peers.changed(0, router);
        assert_eq!(drain(&mut peers).len(), 1000);
        peers.remove(0, other, 1000);
        peers.changed(0, other);
        assert_eq!(peers.next_moved(), None);
        assert_eq!(peers.by_next_hop.len(), 2, "neighbours without connections are forgotten");
    }
}
