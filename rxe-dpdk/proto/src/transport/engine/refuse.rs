//! Fault injection: refused requests.

use crate::time::Instant;
use crate::transport::{Qpn, RequestRefusal};
use crate::wire::{PortId, RocePacket, Transport};

use super::Engine;
use super::receive::check;

impl Engine {
    /// Refuses a request (fault injection). Call it before [`receive`](Engine::receive); if it returns true, the packet
    /// has been handled, otherwise it had no effect.
    ///
    /// `choose` is called only where a refusal makes sense: for an intact request on a reliable connection, with the
    /// expected PSN. A refused request is not executed. It counts as received, and as dropped for the reason
    /// `injected`.
    #[cold]
    pub fn refuse_request(
        &mut self,
        now: Instant,
        port: PortId,
        packet: &RocePacket<'_>,
        choose: impl FnOnce(&RocePacket<'_>) -> Option<RequestRefusal>,
    ) -> bool {
        let qpn = Qpn::new(packet.dest_qp());
        if packet.transport() != Transport::Rc || packet.info().response || qpn == Qpn::MULTICAST {
            return false;
        }
        // `receive` repeats these checks and counts the reason.
        let Ok(qp) = check(&mut self.qps, qpn, port, packet) else { return false };
        if packet.psn() != qp.responder.expected_psn() {
            return false;
        }
        let Some(refusal) = choose(packet) else { return false };
        let cx = &mut self.cx;
        cx.stats.rcvd_pkts.inc();
        cx.stats.rcvd_bytes.add(packet.frame().len() as u64);
        if packet.is_congestion_marked() {
            qp.congestion_experienced(cx, now);
        }
        qp.refuse_request(cx, packet, refusal);
        true
    }
}
