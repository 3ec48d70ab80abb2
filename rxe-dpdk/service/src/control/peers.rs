//! Connections indexed by next hop, so that a neighbour with a new MAC address costs no scan of all connections.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;

use rxe_proto::Instant;
use rxe_proto::cm::ConnId;
use rxe_proto::wire::MacAddr;

use super::ip_host::{IpHost, Resolution};
use super::{Control, Placement};
use crate::messages::ToWorker;

/// Most connections updated per poll of the control side: a router may have thousands behind it.
const PEERS_PER_POLL: usize = 256;

/// Connections by their next hop.
pub(super) struct Peers<C = ConnId> {
    /// By port and neighbour.
    by_next_hop: HashMap<(usize, IpAddr), HashSet<C>>,
    /// Neighbours whose MAC changed, with the connections that are not updated yet.
    moved: VecDeque<(usize, IpAddr, Vec<C>)>,
}

impl<C> Default for Peers<C> {
    fn default() -> Peers<C> {
        Peers { by_next_hop: HashMap::new(), moved: VecDeque::new() }
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
        let port = placement.port;
        let next_hop = self.ports[port].host.next_hop(placement.peer.ip());
        self.peers.insert(port, next_hop, conn);
        self.connections.insert(conn, placement);
    }

    /// Forgets a connection.
    pub(super) fn remove_placement(&mut self, conn: ConnId) -> Option<Placement> {
        let placement = self.connections.remove(&conn)?;
        let next_hop = self.ports[placement.port].host.next_hop(placement.peer.ip());
        self.peers.remove(placement.port, next_hop, conn);
        Some(placement)
    }

    /// A neighbour of a port has another MAC address: a peer, or the router to many.
    pub(super) fn neighbour_changed(&mut self, now: Instant, port: usize, ip: IpAddr, mac: MacAddr) {
        if self.events.admits(now) {
            tracing::info!(%ip, %mac, "the neighbour has another MAC address now");
        }
        self.peers.changed(port, ip);
    }

    /// Updates the MAC address of connections whose next hop has a new one, a limited number per poll.
    pub(super) fn update_moved_peers(&mut self, now: Instant) {
        for _ in 0..PEERS_PER_POLL {
            let Some((port, conn)) = self.peers.next_moved() else { return };
            let Some(placement) = self.connections.get_mut(&conn) else { continue };
            if self.ports[port].local.restrictions.pin_mac {
                self.stats.peer_moves_refused.inc();
                continue;
            }
            if let Resolution::Ready { mac, .. } = self.ports[port].host.resolve(now, placement.peer.ip())
                && mac != placement.mac
            {
                placement.mac = mac;
                // The connection may have ended just now.
                let _ = self.cm.set_peer_mac(conn, mac);
                let _ = self.mailbox.workers[placement.worker].send(ToWorker::PeerMacChanged { conn, mac });
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
