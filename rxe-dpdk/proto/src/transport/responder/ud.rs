//! Datagrams: independent of each other, never acknowledged.

use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::{QpErrorCause, Qpn, WcOpcode, WcStatus, WorkCompletion, sge};
use crate::wire::{DropReason, RocePacket};

use super::{FatalError, Message, Responder};

/// Bytes in front of every received datagram, for the global route header.
pub(in crate::transport) const GRH_LEN: usize = 40;

/// Why a datagram was not received.
pub(in crate::transport) enum Undelivered {
    /// It is dropped.
    Dropped(DropReason),
    /// The queue pair must go to error, because of one of its own receives.
    Fatal(FatalError),
}

impl Responder {
    /// Receives a datagram whose partition and ICRC have been checked.
    ///
    /// # Errors
    /// Why it was not received.
    #[inline]
    pub(in crate::transport) fn handle_datagram(
        &mut self,
        common: &Common,
        cx: &mut Context,
        packet: &RocePacket<'_>,
    ) -> Result<(), Undelivered> {
        use Undelivered::Dropped;
        let deth = packet.deth().ok_or(Dropped(DropReason::HeaderTruncated))?;
        // compliance.md [UD-RSP-QKEY]: A datagram with another Q_Key than the queue pair's is dropped.
        if deth.qkey() != common.qkey {
            return Err(Dropped(DropReason::QkeyMismatch));
        }
        let payload = packet.payload();
        // compliance.md [UD-RSP-ONE-PACKET]: A datagram is one packet of at most the path MTU, accepted whatever its
        // PSN.
        if payload.len() > common.mtu as usize || packet.pad() != payload.len().wrapping_neg() & 3 {
            return Err(Dropped(DropReason::PayloadLength));
        }
        // compliance.md [UD-RSP-NO-RECEIVE]: Without a receive a datagram is dropped.
        if !self.has_receive(common, cx) {
            cx.stats.receive_queue_empty.inc();
            return Err(Dropped(DropReason::NoReceive));
        }
        let Some((wqe, sges)) = self.rq.front() else { return Err(Dropped(DropReason::NoReceive)) };
        let total = GRH_LEN + payload.len();
        // compliance.md [UD-RSP-TOO-LONG]: A datagram that does not fit its receive is dropped and leaves the receive
        // posted.
        if total > wqe.length as usize {
            // The receive stays posted.
            return Err(Dropped(DropReason::UdTooLong));
        }
        let error = |cause, receive| Undelivered::Fatal(FatalError { cause, receive: Some(receive) });
        // compliance.md [UD-RSP-GRH]: 40 bytes precede the payload.
        let header = packet.ip_header();
        let route = sge::scatter(&cx.keys, common.recv_pd, sges, 0, &[0; GRH_LEN][header.len()..])
            .and_then(|()| sge::scatter(&cx.keys, common.recv_pd, sges, GRH_LEN - header.len(), header));
        if route.and_then(|()| sge::scatter(&cx.keys, common.recv_pd, sges, GRH_LEN, payload)).is_err() {
            // The receive is in use: it completes with the cause, those behind it are flushed.
            self.message = Message::Send { received: 0 };
            return Err(error(QpErrorCause::ReceiveKey, WcStatus::LocProtErr));
        }
        let wc = WorkCompletion {
            wr_id: wqe.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            qpn: common.qpn,
            byte_len: total as u32,
            imm: packet.imm(),
            invalidated_rkey: None,
            solicited: packet.solicited(),
            src_qpn: Some(Qpn::new(deth.src_qp())),
        };
        self.rq.pop();
        cx.stats.datagrams_rcvd.inc();
        if cx.complete(common.recv_cq, wc) {
            Ok(())
        } else {
            Err(error(QpErrorCause::CqOverflow, WcStatus::WrFlushErr))
        }
    }
}
