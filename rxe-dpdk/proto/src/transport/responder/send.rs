//! SEND, also with immediate or invalidate.

use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::{Operation, QpErrorCause, WcOpcode, WcStatus, sge};
use crate::wire::{NakCode, RocePacket};

use super::{Message, Refusal, Responder, part_at, payload_fits};

impl Responder {
    pub(super) fn send(&mut self, common: &Common, cx: &mut Context, packet: &RocePacket<'_>) -> Result<(), Refusal> {
        let position = packet.info().position;
        // compliance.md [RC-RSP-OPCODE-ORDER]: FIRST, MIDDLE and LAST must form a message without interruption.
        let received = match (self.message, position.is_start()) {
            (Message::None, true) => 0,
            (Message::Send { received }, false) => received,
            _ => return Err(Refusal::invalid(QpErrorCause::OpcodeSequence)),
        };
        if !self.has_receive(common, cx) {
            return Err(Refusal::NotReady);
        }
        let Some((wqe, sges)) = self.rq.front() else { return Err(Refusal::NotReady) };
        // From here on the receive is in use: an error completes it with its cause.
        self.message = Message::Send { received };
        if !payload_fits(packet, common.mtu) {
            return Err(Refusal::invalid(QpErrorCause::Length));
        }
        let payload = packet.payload();
        let total = received.saturating_add(payload.len() as u32);
        // compliance.md [RC-RSP-RECV-TOO-SMALL]: A SEND longer than its receive is an invalid request for the peer and
        // a local length error here.
        if total > wqe.length {
            // IBTA: a message longer than the receive is an invalid request (rxe says operational error).
            return Err(Refusal::Fatal {
                nak: Some(NakCode::InvalidRequest),
                cause: QpErrorCause::ReceiveTooSmall,
                receive: WcStatus::LocLenErr,
            });
        }
        // compliance.md [RC-RSP-RECV-KEY]: A bad local key of a receive is a remote operational error for the peer and
        // a local protection error here.
        let part = || part_at(position);
        sge::scatter_part(&cx.keys, common.recv_pd, sges, received as usize, payload, part).map_err(|_| {
            Refusal::Fatal {
                nak: Some(NakCode::RemoteOperational),
                cause: QpErrorCause::ReceiveKey,
                receive: WcStatus::LocProtErr,
            }
        })?;
        if !position.is_end() {
            self.message = Message::Send { received: total };
            self.executed(common, cx, packet, None);
            return Ok(());
        }
        self.message_done();
        self.executed(common, cx, packet, Some(Operation::Send));
        // compliance.md [RC-RSP-INVALIDATE]: SEND with invalidate applies to fast-registration MRs and type 2 windows
        // bound on this queue pair, not to plain regions.
        if let Some(rkey) = packet.invalidate_rkey() {
            invalidate(cx, common, rkey)?;
        }
        self.message = Message::None;
        cx.stats.rdma_recvs.inc();
        self.complete_receive(common, cx, packet, WcOpcode::Recv, total)
    }
}

/// Invalidates the key in a SEND with invalidate. The message has been received by then: a bad key is the receiver's
/// error, and the peer gets no NAK (rxe does the same).
fn invalidate(cx: &mut Context, common: &Common, rkey: u32) -> Result<(), Refusal> {
    cx.keys.invalidate_remote(rkey, common.pd, common.qpn.get()).map_err(|_| Refusal::Fatal {
        nak: None,
        cause: QpErrorCause::Invalidate,
        receive: WcStatus::RemInvReqErr,
    })
}
