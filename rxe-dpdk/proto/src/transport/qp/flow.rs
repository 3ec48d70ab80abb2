//! What moves a queue pair: packets in, packets out, time.

use crate::prefetch;
use crate::time::Instant;
use crate::transport::common::Failure;
use crate::transport::context::{Context, Turn};
use crate::transport::responder::{Broken, Undelivered};
use crate::transport::{AsyncEvent, QpState, QpType, RequestRefusal};
use crate::wire::{DropReason, RocePacket, TxQueue};

use super::Qp;

impl Qp {
    /// Asks for what a response to this queue pair needs, or a request.
    #[inline]
    pub(in crate::transport) fn foresee(&self, response: bool) {
        prefetch::whole(&self.common);
        prefetch::whole(&self.link);
        if response {
            prefetch::whole(&self.requester);
        } else {
            prefetch::whole(&self.responder);
        }
    }

    /// A request whose source, partition and ICRC have been checked.
    #[inline]
    pub(in crate::transport) fn handle_request(&mut self, cx: &mut Context, packet: &RocePacket<'_>) {
        let outcome = self.responder.handle_request(&self.common, cx, packet);
        self.served(cx, packet, outcome);
        if self.responder.owes() {
            self.activate(cx);
        }
    }

    /// As [`handle_request`](Self::handle_request), for the next one in sequence, which is refused on purpose.
    #[cold]
    pub(in crate::transport) fn refuse_request(
        &mut self,
        cx: &mut Context,
        packet: &RocePacket<'_>,
        refusal: RequestRefusal,
    ) {
        let outcome = self.responder.refuse_on_purpose(cx, refusal);
        self.served(cx, packet, outcome.map(|()| false));
        self.activate(cx);
    }

    /// A request on an unreliable connection.
    #[inline]
    pub(in crate::transport) fn handle_unreliable(&mut self, cx: &mut Context, packet: &RocePacket<'_>) {
        let outcome = self.responder.handle_unreliable(&self.common, cx, packet);
        self.served(cx, packet, outcome);
    }

    /// What became of a request: the first one that is executed shows that the peer takes the connection for
    /// established.
    #[inline]
    fn served(&mut self, cx: &mut Context, packet: &RocePacket<'_>, outcome: Result<bool, Broken>) {
        // [RC-RSP-COMM-EST]
        match outcome {
            Ok(true) if !self.established => {
                self.established = true;
                cx.events.push_back(AsyncEvent::CommunicationEstablished { qpn: self.common.qpn });
            }
            Ok(_) => {}
            Err(Broken { cause, receive }) => {
                cx.blame(self.common.qpn, packet);
                self.fail(cx, cause, None, receive);
            }
        }
    }

    /// A datagram.
    ///
    /// # Errors
    /// Why it is dropped.
    #[inline]
    pub(in crate::transport) fn handle_datagram(
        &mut self,
        cx: &mut Context,
        packet: &RocePacket<'_>,
    ) -> Result<(), DropReason> {
        match self.responder.handle_datagram(&self.common, cx, packet) {
            Ok(()) => Ok(()),
            Err(Undelivered::Dropped(reason)) => Err(reason),
            Err(Undelivered::Broken(Broken { cause, receive })) => {
                // The packet is not the cause: it has been received, as far as it could be.
                self.fail(cx, cause, None, receive);
                Ok(())
            }
        }
    }

    /// A switch marked a packet of the peer's.
    #[cold]
    pub(in crate::transport) fn congestion_experienced(&mut self, cx: &mut Context, now: Instant) {
        cx.stats.ecn_marked.inc();
        // A datagram's sender cannot be told: we know no way back to it.
        // [UD-NO-CNP]
        if self.link.is_some() && self.congestion.marked(now, cx.config.cnp_interval) {
            self.activate(cx);
        }
    }

    /// A response whose source, partition and ICRC have been checked.
    #[inline]
    pub(in crate::transport) fn handle_response(&mut self, cx: &mut Context, now: Instant, packet: &RocePacket<'_>) {
        if let Err(failure) = self.requester.respond(&self.common, cx, now, packet) {
            cx.blame(self.common.qpn, packet);
            self.fail(cx, failure.cause, failure.wqe, None);
            return;
        }
        self.watch(cx);
        if self.requester.has_unsent() {
            self.activate(cx);
        }
        self.report_drained(cx);
    }

    /// The deadline has passed.
    pub(in crate::transport) fn handle_timeout(&mut self, cx: &mut Context, now: Instant) {
        if self.requester.deadline.is_some_and(|at| at <= now) {
            match self.requester.handle_timeout(cx, now) {
                Ok(()) => self.activate(cx),
                Err(Failure { wqe, cause }) => self.fail(cx, cause, wqe, None),
            }
        }
        if self.requester.keep_alive_at().is_some_and(|at| at <= now) {
            match self.requester.look_at_peer(cx, now, self.responder.packets_served()) {
                Ok(()) => self.activate(cx),
                Err(Failure { wqe, cause }) => self.fail(cx, cause, wqe, None),
            }
        }
    }

    /// One turn: replies first, as the peer waits for them, then requests.
    // Called per packet, from one place.
    #[inline(always)]
    pub(in crate::transport) fn transmit(
        &mut self,
        cx: &mut Context,
        now: Instant,
        tx: &mut impl TxQueue,
    ) -> (usize, Turn) {
        let (mut written, mut turn) = (0, Turn::Idle);
        if self.requester.owes_probe() {
            if !self.write_probe(cx, tx) {
                return (0, Turn::Refused);
            }
            written = 1;
        }
        if self.responder.owes() || self.congestion.owes() {
            let (replies, after) = self.reply(cx, tx);
            (written, turn) = (written + replies, after);
        }
        if turn == Turn::Refused || !self.requester.has_unsent() || !self.state.sends() {
            return (written, turn);
        }
        let draining = self.state == QpState::Sqd;
        let (requests, after, failure) = match (self.common.qp_type, &self.link) {
            (QpType::Rc, Some(link)) => self.requester.send_requests(&self.common, link, cx, now, tx, draining),
            (QpType::Uc, Some(link)) => self.requester.send_unreliable(&self.common, Some(link), cx, tx, draining),
            (QpType::Ud, _) => self.requester.send_unreliable(&self.common, None, cx, tx, draining),
            (QpType::Rc | QpType::Uc, None) => (0, Turn::Idle, None),
        };
        written += requests;
        // Nothing else in a turn starts the clock.
        if requests > 0 {
            self.watch(cx);
        }
        if let Some(failure) = failure {
            self.fail_send(cx, failure);
            return (written, self.turn_in_error());
        }
        if draining {
            self.report_drained(cx);
        }
        (written, if after == Turn::Idle { turn } else { after })
    }

    /// Writes the keep-alive probe; false when there is no room.
    #[cold]
    fn write_probe(&mut self, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
        self.link.as_ref().is_none_or(|link| self.requester.write_probe(link, cx, tx))
    }

    /// What the peer waits for.
    fn reply(&mut self, cx: &mut Context, tx: &mut impl TxQueue) -> (usize, Turn) {
        let Some(link) = &self.link else { return (0, Turn::Idle) };
        let Some(notified) = self.congestion.notify(link, cx, tx) else { return (0, Turn::Refused) };
        let (replies, turn, broken) = self.responder.reply(&self.common, link, cx, tx);
        let written = usize::from(notified) + replies;
        match broken {
            None => (written, turn),
            Some(Broken { cause, receive }) => {
                self.fail(cx, cause, None, receive);
                (written, self.turn_in_error())
            }
        }
    }

    /// What is left to do after a failure.
    fn turn_in_error(&self) -> Turn {
        if self.responder.owes() { Turn::More } else { Turn::Idle }
    }

    /// In SQD, says so once when everything begun has completed.
    fn report_drained(&mut self, cx: &mut Context) {
        // [REQ-SQD]
        if self.state == QpState::Sqd && !self.drained && self.requester.is_drained() {
            self.drained = true;
            cx.events.push_back(AsyncEvent::SendQueueDrained { qpn: self.common.qpn });
        }
    }
}
