//! Events of a queue pair: packets received, packets to transmit, timeouts.

use crate::prefetch;
use crate::time::Instant;
use crate::transport::context::{Context, TxOutcome};
use crate::transport::long_limit::Mix;
use crate::transport::requester::Turn;
use crate::transport::responder::{FatalError, Undelivered};
use crate::transport::{AsyncEvent, CongestionControl, QpState, QpType, RequestRefusal};
use crate::wire::{DropReason, RocePacket, TxQueue};

use super::Qp;

impl Qp {
    /// Prefetches what handling a response, or a request, needs.
    #[inline]
    pub(in crate::transport) fn prefetch(&self, response: bool) {
        prefetch::whole(&self.common);
        prefetch::whole(&self.link);
        if response {
            prefetch::whole(&self.requester);
        } else {
            prefetch::whole(&self.responder);
        }
    }

    /// Handles a request whose source, partition and ICRC have been checked.
    #[inline]
    pub(in crate::transport) fn handle_request(&mut self, cx: &mut Context, packet: &RocePacket<'_>) {
        let outcome = self.responder.handle_request(&self.common, cx, packet);
        self.request_done(cx, packet, outcome);
        if self.responder.has_replies() {
            self.activate(cx);
        }
    }

    /// Refuses the request with the expected PSN (fault injection).
    #[cold]
    pub(in crate::transport) fn refuse_request(
        &mut self,
        cx: &mut Context,
        packet: &RocePacket<'_>,
        refusal: RequestRefusal,
    ) {
        let outcome = self.responder.refuse_on_purpose(cx, refusal);
        self.request_done(cx, packet, outcome.map(|()| false));
        self.activate(cx);
    }

    /// Handles a request on an unreliable connection.
    #[inline]
    pub(in crate::transport) fn handle_unreliable(&mut self, cx: &mut Context, packet: &RocePacket<'_>) {
        let outcome = self.responder.handle_unreliable(&self.common, cx, packet);
        self.request_done(cx, packet, outcome);
    }

    /// Acts on the outcome of a request. The first one that is executed shows that the peer considers the connection
    /// established.
    #[inline]
    fn request_done(&mut self, cx: &mut Context, packet: &RocePacket<'_>, outcome: Result<bool, FatalError>) {
        // compliance.md [RC-RSP-COMM-EST]: The first executed request raises an event, unless the consumer knows that
        // the connection is established.
        match outcome {
            Ok(true) if !self.established => {
                self.established = true;
                cx.events.push_back(AsyncEvent::CommunicationEstablished { qpn: self.common.qpn });
            }
            Ok(_) => {}
            Err(FatalError { cause, receive }) => {
                cx.record_error_packet(self.common.qpn, packet);
                self.fail(cx, cause, None, receive);
            }
        }
    }

    /// Handles a datagram.
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
            Err(Undelivered::Fatal(FatalError { cause, receive })) => {
                // The receive is the cause, not the packet: the packet does not count as dropped.
                self.fail(cx, cause, None, receive);
                Ok(())
            }
        }
    }

    /// Handles an ECN mark on a packet of the peer.
    #[cold]
    pub(in crate::transport) fn congestion_experienced(&mut self, cx: &mut Context, now: Instant) {
        cx.stats.ecn_marked.inc();
        // There is no known path back to the sender of a datagram.
        // compliance.md [UD-NO-CNP]: A marked datagram is counted, but its sender gets no congestion notification.
        if self.link.is_some() && self.congestion.marked(now, cx.config.cnp_interval) {
            self.activate(cx);
        }
    }

    /// Handles a congestion notification of the peer.
    #[cold]
    pub(in crate::transport) fn congestion_notified(&mut self, cx: &Context, now: Instant) {
        cx.stats.cnps_rcvd.inc();
        // Datagrams of one queue pair go to many places.
        let control = if self.link.is_some() { &cx.config.congestion } else { &CongestionControl::Off };
        self.congestion.notified(control, now);
    }

    /// Handles a response whose source, partition and ICRC have been checked.
    #[inline]
    pub(in crate::transport) fn handle_response(&mut self, cx: &mut Context, now: Instant, packet: &RocePacket<'_>) {
        if let Err(failure) = self.requester.respond(&self.common, cx, now, packet) {
            cx.record_error_packet(self.common.qpn, packet);
            self.fail(cx, failure.cause, failure.wqe(), None);
            return;
        }
        if cx.mix == Mix::Limited || self.charge.packets > 0 {
            self.long_answered(cx, now);
        }
        if let Some(delay) = &self.requester.delay {
            self.congestion.set_rate(delay.rate(self.common.mtu));
        }
        self.arm_retransmit_timer(cx);
        if self.requester.has_unsent() && self.may_request() {
            self.activate(cx);
        }
        if self.state == QpState::Sqd {
            self.report_drained(cx);
        }
    }

    /// Handles expired deadlines: rate, retransmission, keep-alive.
    pub(in crate::transport) fn handle_timeout(&mut self, cx: &mut Context, now: Instant) {
        if self.congestion.resume(now) {
            self.activate(cx);
        }
        if self.requester.deadline.is_some_and(|at| at <= now) {
            match self.requester.handle_timeout(cx, now) {
                Ok(()) => self.activate(cx),
                Err(failure) => self.fail(cx, failure.cause, failure.wqe(), None),
            }
        }
        if self.requester.keep_alive_at().is_some_and(|at| at <= now) {
            match self.requester.probe_peer(cx, now, self.responder.packets_served()) {
                Ok(()) => self.activate(cx),
                Err(failure) => self.fail(cx, failure.cause, failure.wqe(), None),
            }
        }
    }

    /// Writes up to one quantum of replies, which the peer waits for, then one of requests; less if the rate is limited.
    // Called per packet, from one place.
    #[inline(always)]
    pub(in crate::transport) fn transmit(
        &mut self,
        cx: &mut Context,
        now: Instant,
        tx: &mut impl TxQueue,
    ) -> (usize, TxOutcome) {
        let room = if self.congestion.is_limited() { self.room(cx, now) } else { usize::MAX };
        let (written, outcome) = self.write_packets(cx, now, tx, room);
        // `room` may have ended the limit.
        if self.congestion.is_limited() { (written, self.pace(cx, now, outcome)) } else { (written, outcome) }
    }

    /// Packets that may be written now, where the rate is limited.
    #[cold]
    fn room(&mut self, cx: &Context, now: Instant) -> usize {
        let room = self.congestion.room(&cx.config.congestion, now, self.common.mtu, cx.stats.sent_bytes.get());
        room.unwrap_or(usize::MAX)
    }

    /// Records what was written. Returns the outcome: what is left to send waits for its time.
    #[cold]
    fn pace(&mut self, cx: &mut Context, now: Instant, outcome: TxOutcome) -> TxOutcome {
        self.congestion.sent(&cx.config.congestion, now, cx.stats.sent_bytes.get());
        if !matches!(outcome, TxOutcome::Quantum | TxOutcome::Paced) {
            return outcome;
        }
        let Some(at) = self.congestion.wait(now) else { return TxOutcome::Quantum };
        cx.stats.rate_stalls.inc();
        cx.arm_timer_at(self.common.qpn.slot(), at);
        TxOutcome::Paced
    }

    /// Writes up to one quantum of replies, then one of requests, but no more than `room` responses to READs and atomics or requests.
    #[inline(always)]
    fn write_packets(
        &mut self,
        cx: &mut Context,
        now: Instant,
        tx: &mut impl TxQueue,
        room: usize,
    ) -> (usize, TxOutcome) {
        let (mut written, mut outcome) = (0, TxOutcome::Done);
        if self.requester.probe_due() {
            if !self.write_probe(cx, tx) {
                return (0, TxOutcome::Backpressure);
            }
            written = 1;
        }
        if self.responder.has_replies() || self.congestion.cnp_due() {
            let (replies, after) = self.reply(cx, tx, room);
            (written, outcome) = (written + replies, after);
        }
        if outcome == TxOutcome::Backpressure
            || !self.requester.has_unsent()
            || !self.state.sends()
            || !self.may_request()
        {
            return (written, outcome);
        }
        let mut quantum = room.min(cx.config.send_quantum as usize);
        if cx.mix == Mix::Limited && self.common.qp_type == QpType::Rc {
            match self.limited_quantum(cx) {
                Some(limit) => quantum = quantum.min(limit),
                None => return (written, outcome),
            }
        } else {
            self.requester.lift_limit();
        }
        let draining = self.state == QpState::Sqd;
        let turn = Turn { now, quantum, draining };
        let (requests, after, failure) = match (self.common.qp_type, &self.link) {
            (QpType::Rc, Some(link)) => self.requester.send_requests(&self.common, link, cx, tx, turn),
            (QpType::Uc, Some(link)) => self.requester.send_unreliable(&self.common, Some(link), cx, tx, turn),
            (QpType::Ud, _) => self.requester.send_unreliable(&self.common, None, cx, tx, turn),
            (QpType::Rc | QpType::Uc, None) => (0, TxOutcome::Done, None),
        };
        written += requests;
        // Only requests start the retransmission timer.
        if requests > 0 {
            self.arm_retransmit_timer(cx);
            if self.requester.has_long() || cx.mix != Mix::NoneLong && self.common.qp_type == QpType::Rc {
                self.count_long(cx, now);
            }
        }
        if let Some(failure) = failure {
            self.fail_send(cx, failure);
            return (written, self.outcome_in_error());
        }
        if draining {
            self.report_drained(cx);
        }
        (written, if after == TxOutcome::Done { outcome } else { after })
    }

    /// Writes the keep-alive probe; false when there is no room.
    #[cold]
    fn write_probe(&mut self, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
        self.link.as_ref().is_none_or(|link| self.requester.write_probe(link, cx, tx))
    }

    /// Writes pending replies: congestion notification, responses, ACK, NAK.
    fn reply(&mut self, cx: &mut Context, tx: &mut impl TxQueue, responses: usize) -> (usize, TxOutcome) {
        let Some(link) = &self.link else { return (0, TxOutcome::Done) };
        let Some(notified) = self.congestion.notify(link, cx, tx) else { return (0, TxOutcome::Backpressure) };
        let (replies, outcome, error) = self.responder.reply(&self.common, link, cx, tx, responses);
        let written = usize::from(notified) + replies;
        match error {
            None => (written, outcome),
            Some(FatalError { cause, receive }) => {
                self.fail(cx, cause, None, receive);
                (written, self.outcome_in_error())
            }
        }
    }

    /// The outcome after a failure: a NAK may be pending.
    fn outcome_in_error(&self) -> TxOutcome {
        if self.responder.has_replies() { TxOutcome::Quantum } else { TxOutcome::Done }
    }

    /// Raises the event once when everything begun has completed. Call only in SQD.
    fn report_drained(&mut self, cx: &mut Context) {
        // compliance.md [REQ-SQD]: In SQD, messages that were begun are finished and retransmitted, no other is begun,
        // requests are served.
        if !self.drained && self.requester.is_drained() {
            self.drained = true;
            cx.events.push_back(AsyncEvent::SendQueueDrained { qpn: self.common.qpn });
        }
    }
}
