//! Requests refused on purpose, for tests of initiators.

use crate::time::Instant;
use crate::transport::Qpn;
use crate::wire::{NakCode, PortId, RocePacket, Transport};

use super::{Engine, addressed};

/// How a request is refused without a reason of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RequestRefusal {
    /// As if no receive were posted: the peer is to come again.
    NotReady {
        /// The RNR timer code, 0 to 31; see [`rnr_timer`](crate::wire::rnr_timer).
        timer: u8,
    },
    /// As if the request before it were lost: the peer is to send it again.
    PsnSequence,
    /// As an invalid request. The queue pair goes to error, as it does in the following.
    InvalidRequest,
    /// As one that may not reach the memory it names.
    RemoteAccess,
    /// As one that cannot be carried out for a reason of our own.
    RemoteOperational,
}

impl RequestRefusal {
    /// What the peer is told by a NAK; `None` where it is told by an RNR NAK.
    pub const fn nak_code(self) -> Option<NakCode> {
        match self {
            RequestRefusal::NotReady { .. } => None,
            RequestRefusal::PsnSequence => Some(NakCode::PsnSequence),
            RequestRefusal::InvalidRequest => Some(NakCode::InvalidRequest),
            RequestRefusal::RemoteAccess => Some(NakCode::RemoteAccess),
            RequestRefusal::RemoteOperational => Some(NakCode::RemoteOperational),
        }
    }
}

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
        let Ok(qp) = addressed(&mut self.qps, qpn, port, packet) else { return false };
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
