//! A queue pair: responder, requester, and what they share.

mod detect;
mod flow;
mod modify;

use std::fmt;
use std::sync::Arc;

use crate::mem::PdId;
use crate::time::Instant;
use crate::wire::{Path, PathMtu, PortId};

use super::attr::{PostError, QpCaps, QpInfo, QpInit};
use super::common::{Common, Failure};
use super::congestion::Notifier;
use super::context::Context;
use super::link::Link;
use super::recv_queue::RecvQueue;
use super::requester::{Requester, SendQueue};
use super::responder::{Resources, Responder};
use super::send_policy::SendPolicy;
use super::state::QpState;
use super::{AsyncEvent, Latencies, QpErrorCause, QpType, Qpn, RecvWr, SendWr, Wait, WcOpcode, WcStatus};

impl QpCaps {
    /// Memory of a queue pair with these queues and `rd_atomic` READ and atomic resources, in bytes.
    pub fn footprint(&self, rd_atomic: u8) -> usize {
        let depth = if rd_atomic == 0 { 0 } else { usize::from(rd_atomic).next_power_of_two() };
        size_of::<Qp>()
            + size_of::<Path>()
            + SendQueue::footprint(self.max_send_wr, self.max_send_sge, self.max_inline_data)
            + RecvQueue::footprint(self.max_recv_wr, self.max_recv_sge)
            + Resources::footprint(depth)
    }
}

use detect::PeerDetection;

/// A queue pair.
pub(super) struct Qp {
    pub(super) common: Common,
    pub(super) state: QpState,
    /// Whether the slot is in the transmit scheduler.
    active: bool,
    /// Whether communication is established: the event was raised or is suppressed.
    pub(super) established: bool,
    /// Whether the end of draining was reported, by an event.
    pub(super) drained: bool,
    /// Set while the transport service is to be detected from the peer's first packet.
    pub(super) detection: Option<PeerDetection>,
    /// The path to the peer (RC and UC).
    pub(super) link: Option<Link>,
    notifier: Notifier,
    policy: SendPolicy,
    pub(super) responder: Responder,
    pub(super) requester: Requester,
    caps: QpCaps,
}

impl Qp {
    /// `recv_pd` is the protection domain of the receives.
    pub(super) fn new(qpn: Qpn, init: &QpInit, recv_pd: PdId, srq_sges: u32, latencies: Arc<Latencies>) -> Qp {
        let caps = init.caps;
        let rq = match init.srq {
            // Holds the receive in use, taken from the shared queue.
            Some(_) => RecvQueue::new(1, srq_sges),
            None => RecvQueue::new(caps.max_recv_wr, caps.max_recv_sge),
        };
        Qp {
            common: Common {
                qpn,
                qp_type: init.qp_type,
                pd: init.pd,
                recv_pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                qkey: 0,
                port: None,
                mtu: PathMtu::Mtu4096.bytes() as u32,
                sq_sig_all: init.sq_sig_all,
                latencies,
            },
            state: QpState::Reset,
            active: false,
            established: false,
            drained: false,
            detection: None,
            link: None,
            notifier: Notifier::default(),
            policy: SendPolicy::default(),
            responder: Responder::new(rq),
            requester: Requester::new(SendQueue::new(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data)),
            caps,
        }
    }

    pub(super) fn info(&self, cx: &Context) -> QpInfo {
        let link = self.link.as_ref();
        let sq = &self.requester.sq;
        QpInfo {
            qpn: self.common.qpn,
            qp_type: self.common.qp_type,
            state: self.state,
            pd: self.common.pd,
            send_cq: self.common.send_cq,
            recv_cq: self.common.recv_cq,
            srq: self.common.srq,
            caps: self.caps,
            qkey: self.common.qkey,
            access: self.responder.access(),
            path: link.map(|link| (*link.path).clone()),
            dest_qpn: link.map(|link| link.dest_qpn),
            path_mtu: self.path_mtu(),
            port: link.map(|link| link.template.port()).or(self.common.port),
            pkey_index: 0,
            min_rnr_timer: self.responder.min_rnr_timer(),
            max_dest_rd_atomic: self.responder.max_dest_rd_atomic(),
            timeout: self.requester.timeout_code(),
            sq_sig_all: self.common.sq_sig_all,
            sq_draining: self.state == QpState::Sqd && !self.drained,
            expected_psn: self.responder.expected_psn(),
            next_psn: self.requester.next_psn(),
            unsent_psn: self.requester.unsent_psn(),
            unacked_psn: self.requester.una_psn(),
            send_queued: (sq.tail() - sq.head()) as u32,
            recv_queued: self.responder.rq.len(),
            peer_not_ready: self.requester.rnr_wait.is_some(),
            rtt: self.requester.rtt(),
            cnps: (self.policy.notifications(), self.notifier.sent()),
            rate: self.policy.rate(),
            window: self.policy.window(&cx.config),
            established: self.established,
            waits: self.waits(cx),
            sends: self.requester.progress(),
            packets_served: self.responder.packets_served(),
            recvs_completed: self.responder.rq.removed(),
            msn: self.responder.msn(),
        }
    }

    /// The path MTU, from RTR on.
    fn path_mtu(&self) -> Option<PathMtu> {
        match (&self.link, self.state) {
            (Some(link), _) => Some(link.path_mtu),
            (None, QpState::Reset | QpState::Init) => None,
            (None, _) => PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() == self.common.mtu as usize),
        }
    }

    /// The event that the queue pair waits for now: for its own requests first, then for the peer's.
    fn waits(&self, cx: &Context) -> Wait {
        let sends = match self.state {
            QpState::Reset | QpState::Init | QpState::Sqe | QpState::Error => return Wait::State,
            QpState::Rtr => Wait::Nothing,
            QpState::Rts | QpState::Sqd => {
                self.requester.waits_for(self.policy.window(&cx.config), self.state == QpState::Sqd)
            }
        };
        match sends {
            Wait::Turn if self.policy.is_held() => Wait::ShortMessages,
            Wait::Turn if self.policy.deadline().is_some() => Wait::Rate,
            Wait::Nothing if self.responder.lacks_receive() => Wait::Receive,
            Wait::Nothing if self.responder.has_responses_due() && self.policy.deadline().is_some() => Wait::Rate,
            Wait::Nothing if self.responder.has_replies() => Wait::Turn,
            wait => wait,
        }
    }

    /// Enqueues this queue pair for transmission.
    #[inline]
    pub(super) fn activate(&mut self, cx: &mut Context) {
        if !self.active {
            self.active = true;
            let port = self.link.as_ref().map(|link| link.template.port()).or(self.common.port);
            // Without a port it has nothing to send: any port's scheduler will do.
            cx.scheduler.enqueue(port.unwrap_or(PortId(0)), self.common.qpn.slot());
        }
    }

    /// Arms the timer for the retransmission deadline.
    #[inline(always)]
    pub(super) fn arm_retransmit_timer(&self, cx: &mut Context) {
        if let Some(deadline) = self.requester.deadline() {
            cx.arm_timer_at(self.common.qpn.slot(), deadline);
        }
    }

    /// The earliest deadline: retransmission, keep-alive or rate.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadlines = [self.requester.deadline(), self.requester.keep_alive_at(), self.policy.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Arms the timer for the earliest deadline, keep-alive included.
    #[cold]
    pub(super) fn arm_timer(&self, cx: &mut Context) {
        if let Some(deadline) = self.deadline() {
            cx.arm_timer_at(self.common.qpn.slot(), deadline);
        }
    }

    /// Goes to the error state for a cause other than the consumer's request. `send` is the failed work request with
    /// its status, `receive` the status of a receive in use.
    #[cold]
    pub(super) fn fail(
        &mut self,
        cx: &mut Context,
        cause: QpErrorCause,
        send: Option<(u64, WcStatus)>,
        receive: Option<WcStatus>,
    ) {
        if self.state == QpState::Error {
            return;
        }
        cx.stats.link_downed.inc();
        // compliance.md [RC-RSP-FATAL-SILENT]: After a fatal NAK the queue pair is in error and sends nothing else.
        cx.events.push_back(AsyncEvent::QpError { qpn: self.common.qpn, cause });
        self.enter_error(cx, send, receive);
        // A fatal NAK must still be sent, and every reply before it. So must the ACK of a SEND whose invalidation
        // failed.
        if !self.responder.has_fatal_nak() && cause != QpErrorCause::Invalidate {
            self.responder.abandon_replies();
        }
        if self.responder.has_replies() {
            self.activate(cx);
        }
    }

    /// A work request failed. On UC and UD only the send queue stops (SQE): receiving does not depend on it.
    pub(super) fn fail_send(&mut self, cx: &mut Context, failure: Failure) {
        cx.stats.send_err.inc();
        if self.common.qp_type == QpType::Rc || failure.cause == QpErrorCause::CqOverflow {
            self.fail(cx, failure.cause, failure.wqe(), None);
        } else {
            // compliance.md [UNREL-SQE]: A failed work request of UC or UD stops the send queue (SQE) and flushes the
            // ones behind it.
            self.state = QpState::Sqe;
            self.requester.flush(&self.common, cx, failure.wqe());
        }
    }

    /// Posts a work request with `inline` data or with buffers.
    #[inline]
    pub(super) fn post_send(
        &mut self,
        cx: &mut Context,
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        match self.state {
            QpState::Rts | QpState::Sqd => {
                self.requester.post(&self.common, cx, wr, inline)?;
                self.activate(cx);
                Ok(())
            }
            QpState::Error | QpState::Sqe => self.flush_posted(cx, wr, inline),
            state => Err(PostError::State(state)),
        }
    }

    /// Completes a work request that is posted in the error state.
    #[cold]
    fn flush_posted(&mut self, cx: &mut Context, wr: &SendWr<'_>, inline: Option<&[u8]>) -> Result<(), PostError> {
        // compliance.md [REQ-ERROR-POST]: Work posted in ERROR completes at once as flushed.
        let wqe = self.requester.check(&self.common, cx, wr, inline)?;
        let status = WcStatus::WrFlushErr;
        cx.complete(self.common.send_cq, self.common.failed(wqe.wr_id, wqe.op.wc_opcode(), status));
        Ok(())
    }

    pub(super) fn post_recv(&mut self, cx: &mut Context, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.common.srq.is_some() {
            return Err(PostError::SharedReceiveQueue);
        }
        if self.state == QpState::Reset {
            return Err(PostError::State(self.state));
        }
        self.responder.rq.push(wr)?;
        // compliance.md [REQ-ERROR-POST]: Work posted in ERROR completes at once as flushed.
        if self.state == QpState::Error
            && let Some(wqe) = self.responder.rq.pop()
        {
            let status = WcStatus::WrFlushErr;
            cx.complete(self.common.recv_cq, self.common.failed(wqe.wr_id, WcOpcode::Recv, status));
        }
        Ok(())
    }

    /// Receives that can be posted now.
    #[inline]
    pub(super) fn recv_room(&self) -> u32 {
        let refused = self.common.srq.is_some() || self.state == QpState::Reset;
        if refused { 0 } else { self.responder.rq.room() }
    }

    /// Work requests that can be posted to the send queue now.
    #[inline]
    pub(super) fn send_room(&self) -> u32 {
        match self.state {
            QpState::Reset | QpState::Init | QpState::Rtr => 0,
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error => self.requester.sq.room(),
        }
    }

    /// The slot has left the transmit scheduler.
    pub(super) fn set_inactive(&mut self) {
        self.active = false;
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.common.qpn).field("state", &self.state).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::requester::SendWqe;
    use crate::transport::responder::Resource;

    #[test]
    fn an_idle_queue_pair_is_small() {
        let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let bytes = caps.footprint(4);
        println!(
            "Qp {} (Responder {}, Requester {}, Link {}), SendWqe {}, Resource {}; idle with small queues {bytes}",
            size_of::<Qp>(),
            size_of::<Responder>(),
            size_of::<Requester>(),
            size_of::<Link>(),
            size_of::<SendWqe>(),
            size_of::<Resource>(),
        );
        assert!(bytes <= 2048, "{bytes} bytes");
    }
}
