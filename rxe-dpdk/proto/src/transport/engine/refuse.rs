//! Requests refused on purpose, for tests of initiators.

use crate::time::Instant;
use crate::transport::{Qpn, RequestRefusal};
use crate::wire::{PortId, RocePacket, Transport};

use super::Engine;
use super::receive::check;

impl Engine {
    /// Refuses a request on purpose: to be called in place of [`receive`](Engine::receive), and before it when it returns
    /// false, as it then has done nothing.
    ///
    /// `choose` is asked only where a refusal makes sense: for an intact request on a reliable connection, with the PSN
    /// that is expected next. What was refused is not executed. It counts as received, and as dropped for the reason
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
        // What is wrong with it, `receive` finds too.
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
