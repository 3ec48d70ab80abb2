//! Packets to queue pair 1: which are processed, and how many per turn.
//!
//! A MAD costs much more than a data packet, so at most [`BUDGET`] are processed per turn. The others wait in order, within bounds:
//! each address has a share of the places, and some places are reserved for messages other than requests.

use std::collections::{HashMap, VecDeque};

use rxe_proto::Instant;
use rxe_proto::cm::{MadPath, read_mad};
use rxe_proto::wire::mad::{MAD_LEN, attribute};
use rxe_proto::wire::{DropReason, Gid, PortId, RocePacket};

use super::ip_host::IpHost;
use super::{Control, Locals};

/// Most MADs per turn.
const BUDGET: u32 = 16;

/// Most waiting MADs.
const MAX_WAITING: usize = 1024;

/// Most waiting requests.
const MAX_REQUESTS: usize = MAX_WAITING * 3 / 4;

/// Most waiting MADs of one address.
const MAX_PER_PEER: usize = MAX_WAITING / 4;

struct Waiting {
    path: MadPath,
    mad: Box<[u8; MAD_LEN]>,
}

pub(super) struct GsiQueue {
    /// MADs that this turn may still process.
    budget: u32,
    waiting: VecDeque<Waiting>,
    /// Waiting MADs by address.
    per_peer: HashMap<Gid, usize>,
}

impl Default for GsiQueue {
    fn default() -> GsiQueue {
        GsiQueue { budget: BUDGET, waiting: VecDeque::new(), per_peer: HashMap::new() }
    }
}

impl GsiQueue {
    /// Whether a MAD may be processed at once.
    fn admits(&mut self) -> bool {
        let admitted = self.budget > 0 && self.waiting.is_empty();
        self.budget -= u32::from(admitted);
        admitted
    }

    fn enqueue(&mut self, path: MadPath, mad: &[u8]) -> Result<(), DropReason> {
        let mad: Box<[u8; MAD_LEN]> = mad.to_vec().try_into().map_err(|_| DropReason::MadMalformed)?;
        let places = if is_request(&*mad) { MAX_REQUESTS } else { MAX_WAITING };
        let from_peer = self.per_peer.entry(path.peer).or_default();
        if self.waiting.len() >= places || *from_peer >= MAX_PER_PEER {
            if *from_peer == 0 {
                self.per_peer.remove(&path.peer);
            }
            return Err(DropReason::GsiBudget);
        }
        *from_peer += 1;
        self.waiting.push_back(Waiting { path, mad });
        Ok(())
    }

    /// Whether MADs wait for the next turn.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn dequeue(&mut self) -> Option<Waiting> {
        if self.budget == 0 {
            return None;
        }
        let waiting = self.waiting.pop_front()?;
        self.budget -= 1;
        if let Some(from_peer) = self.per_peer.get_mut(&waiting.path.peer) {
            *from_peer -= 1;
            if *from_peer == 0 {
                self.per_peer.remove(&waiting.path.peer);
            }
        }
        Some(waiting)
    }
}

/// Whether a MAD asks for a connection or a datagram queue pair.
fn is_request(mad: &[u8]) -> bool {
    let [.., high, low] = *mad.first_chunk::<18>().unwrap_or(&[0; 18]);
    matches!(u16::from_be_bytes([high, low]), attribute::REQ | attribute::SIDR_REQ)
}

impl<H: IpHost> Control<H> {
    /// Handles a packet to queue pair 1.
    pub fn handle_gsi(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) {
        if let Err(reason) = self.gsi(now, port, packet) {
            self.drop_mad(now, packet.src_gid(), reason);
        }
    }

    fn gsi(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) -> Result<(), DropReason> {
        let own = self.ports.get_mut(usize::from(port.0)).ok_or(DropReason::ForeignAddress)?;
        if !own.owns(packet.dst_gid().ip()) {
            return Err(DropReason::ForeignAddress);
        }
        let (path, mad) = read_mad(port, packet)?;
        if own.host.is_broadcast(path.peer.ip()) {
            return Err(DropReason::GsiSource);
        }
        if !packet.icrc_ok() {
            return Err(DropReason::IcrcMismatch);
        }
        if is_request(mad) && !self.requests.admits(now, path.peer) {
            return Err(DropReason::GsiRate);
        }
        if self.gsi.admits() {
            self.cm.handle_mad(now, &path, mad, &Locals(&self.ports))
        } else {
            self.gsi.enqueue(path, mad)
        }
    }

    /// Processes waiting MADs, as far as this turn's budget goes, and starts the next turn's.
    pub(super) fn poll_gsi(&mut self, now: Instant) {
        while let Some(Waiting { path, mad }) = self.gsi.dequeue() {
            if let Err(reason) = self.cm.handle_mad(now, &path, &*mad, &Locals(&self.ports)) {
                self.drop_mad(now, path.peer, reason);
            }
        }
        self.gsi.budget = BUDGET;
        while let Some(refusal) = self.cm.poll_refusal() {
            if self.events.admits(now) {
                tracing::info!(peer = %refusal.peer, "a connection request is refused: {}", refusal.why);
            }
        }
    }

    fn drop_mad(&mut self, now: Instant, peer: Gid, reason: DropReason) {
        self.drops.count(reason);
        // Forged messages and floods concern the operator; the other reasons are usual on lossy links.
        let hostile = matches!(
            reason,
            DropReason::GsiBudget | DropReason::GsiRate | DropReason::GsiSource | DropReason::CmForeign
        );
        if hostile && self.events.admits(now) {
            tracing::warn!(%peer, reason = reason.name(), "a message to queue pair 1 was dropped: {}", reason.describe());
        } else {
            tracing::debug!(%peer, reason = reason.name(), "a message to queue pair 1 was dropped");
        }
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::MacAddr;

    use super::*;

    fn path(peer: u32) -> MadPath {
        MadPath {
            port: PortId(0),
            local_mac: MacAddr::default(),
            peer_mac: MacAddr::default(),
            vlan: None,
            local: Gid::default(),
            peer: std::net::Ipv4Addr::from(peer).into(),
            traffic_class: 0,
        }
    }

    fn mad(attribute: u16) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad
    }

    #[test]
    fn mads_beyond_the_budget_of_a_turn_wait_in_order() {
        let mut queue = GsiQueue::default();
        assert_eq!((0..BUDGET + 5).filter(|_| queue.admits()).count(), BUDGET as usize);
        for peer in 0..BUDGET + 5 {
            queue.enqueue(path(peer), &mad(attribute::REQ)).unwrap();
        }
        assert!(queue.dequeue().is_none() && queue.is_waiting(), "so that a host does not sleep");
        queue.budget = BUDGET;
        assert!(!queue.admits(), "waiting MADs come first");
        let first: Vec<Gid> = std::iter::from_fn(|| queue.dequeue()).map(|waiting| waiting.path.peer).collect();
        assert_eq!(first, (0..BUDGET).map(|peer| path(peer).peer).collect::<Vec<_>>());
        queue.budget = BUDGET;
        while queue.dequeue().is_some() {}
        assert!(queue.per_peer.is_empty() && !queue.is_waiting());
    }

    #[test]
    fn waiting_places_are_limited_per_address_and_for_requests() {
        let mut queue = GsiQueue { budget: 0, ..GsiQueue::default() };
        let taken = |queue: &mut GsiQueue, peer, attribute| queue.enqueue(path(peer), &mad(attribute)).is_ok();
        assert_eq!((0..MAX_WAITING).filter(|_| taken(&mut queue, 1, attribute::REQ)).count(), MAX_PER_PEER);
        let others = 2..2 + MAX_WAITING as u32;
        let requests = others.clone().filter(|&peer| taken(&mut queue, peer, attribute::REQ)).count();
        assert_eq!(requests, MAX_REQUESTS - MAX_PER_PEER);
        let others = others.filter(|&peer| taken(&mut queue, peer, attribute::RTU)).count();
        assert_eq!(others, MAX_WAITING - MAX_REQUESTS);
        assert_eq!(queue.enqueue(path(7), &mad(attribute::RTU)), Err(DropReason::GsiBudget));
    }
}
