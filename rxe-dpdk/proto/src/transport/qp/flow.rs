//! What moves a queue pair: packets in, packets out, time.

use crate::time::Instant;
use crate::transport::QpEvent;
use crate::transport::common::Failure;
use crate::transport::context::{Context, Turn};
use crate::transport::responder::Broken;
use crate::transport::state::QpState;
use crate::wire::{RocePacket, TxQueue};

use super::Qp;

impl Qp {
    /// A request whose source, partition and ICRC have been checked.
    #[inline]
    pub(in crate::transport) fn handle_request(&mut self, cx: &mut Context, packet: &RocePacket<'_>) {
        match self.responder.handle_request(&self.common, cx, packet) {
            Ok(true) if !self.established => {
                self.established = true;
                cx.events.push_back(QpEvent::CommunicationEstablished { qpn: self.common.qpn });
            }
            Ok(_) => {}
            Err(Broken { cause, receive }) => self.fail(cx, cause, None, receive),
        }
        if self.responder.owes() {
            self.activate(cx);
        }
    }

    /// A response whose source, partition and ICRC have been checked.
    #[inline]
    pub(in crate::transport) fn handle_response(&mut self, cx: &mut Context, now: Instant, packet: &RocePacket<'_>) {
        let before = self.requester.una;
        if let Err(failure) = self.requester.respond(&self.common, cx, now, packet) {
            self.fail(cx, failure.cause, failure.wqe, None);
            return;
        }
        if self.requester.una > before {
            self.requester.rearm(now);
        }
        self.watch(cx);
        self.activate(cx);
        if self.state == QpState::Sqd && !self.drained && self.requester.is_drained() {
            self.drained = true;
            cx.events.push_back(QpEvent::SendQueueDrained { qpn: self.common.qpn });
        }
    }

    /// The deadline has passed.
    pub(in crate::transport) fn handle_timeout(&mut self, cx: &mut Context, now: Instant) {
        match self.requester.handle_timeout(cx, now) {
            Ok(()) => self.activate(cx),
            Err(Failure { wqe, cause }) => self.fail(cx, cause, wqe, None),
        }
    }

    /// One turn: replies first, as the peer waits for them, then requests.
    pub(in crate::transport) fn transmit(
        &mut self,
        cx: &mut Context,
        now: Instant,
        tx: &mut impl TxQueue,
    ) -> (usize, Turn) {
        let Some(link) = &self.link else { return (0, Turn::Idle) };
        let (replies, turn, broken) = self.responder.reply(&self.common, link, cx, tx);
        if let Some(Broken { cause, receive }) = broken {
            self.fail(cx, cause, None, receive);
            return (replies, if self.responder.owes() { Turn::More } else { Turn::Idle });
        }
        if turn == Turn::Refused || !self.state.sends() {
            return (replies, turn);
        }
        let draining = self.state == QpState::Sqd;
        let (requests, after, failure) = self.requester.send_requests(&self.common, link, cx, now, tx, draining);
        if requests > 0 {
            self.watch(cx);
        }
        if let Some(Failure { wqe, cause }) = failure {
            cx.stats.send_err.inc();
            self.fail(cx, cause, wqe, None);
            return (replies + requests, if self.responder.owes() { Turn::More } else { Turn::Idle });
        }
        (replies + requests, if after == Turn::Idle { turn } else { after })
    }
}
