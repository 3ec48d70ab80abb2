//! Events of a queue pair: packets received, packets to transmit, timeouts.

use crate::prefetch;
use crate::time::Instant;
use crate::transport::context::Context;
use crate::transport::long_limit::{Direction, LongBudget, LongLimit, Mix, Outstanding};
use crate::transport::responder::{FatalError, Undelivered};
use crate::transport::send_policy::{Left, Turn};
use crate::transport::{AsyncEvent, CongestionControl, QpState, QpType, RequestRefusal};
use crate::wire::{DropReason, PortId, RocePacket, TxQueue};

use super::Qp;

/// What was written of replies.
struct Replies {
    packets: usize,
    /// Those of the turn's quantum: all but congestion notifications.
    quantum: u32,
    /// Those of the rate.
    paced: u32,
    left: Left,
}

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
        if self.link.is_some() && self.notifier.marked(now, cx.config.cnp_interval) {
            self.activate(cx);
        }
    }

    /// Handles a congestion notification of the peer.
    #[cold]
    pub(in crate::transport) fn congestion_notified(&mut self, cx: &Context, now: Instant) {
        cx.stats.cnps_rcvd.inc();
        // Datagrams of one queue pair go to many places.
        let control = if self.link.is_some() { &cx.config.congestion } else { &CongestionControl::Off };
        self.policy.notified(control, now, self.requester.mean_round_trip());
    }

    /// Handles a response whose source, partition and ICRC have been checked.
    #[inline]
    pub(in crate::transport) fn handle_response(&mut self, cx: &mut Context, now: Instant, packet: &RocePacket<'_>) {
        let before = self.requester.una;
        if let Err(failure) = self.requester.respond(&self.common, cx, now, packet) {
            cx.record_error_packet(self.common.qpn, packet);
            self.fail(cx, failure.cause, failure.wqe(), None);
            return;
        }
        if (cx.scheduler.is_limited() || self.policy.follows_answers()) && self.requester.ends_step(before) {
            self.answered(cx, now);
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
        if self.policy.resume(now) {
            self.activate(cx);
        }
        if self.requester.deadline().is_some_and(|at| at <= now) {
            match self.requester.handle_timeout(cx, now) {
                Ok(()) => {
                    self.answered(cx, now);
                    self.activate(cx);
                }
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

    /// Writes what is left of a turn: replies, which the peer waits for, then requests. Returns the number of packets, and what is
    /// left to send; `turn` is what is left of it.
    // Called per packet, from one place.
    #[inline(always)]
    pub(in crate::transport) fn transmit(
        &mut self,
        cx: &mut Context,
        turn: &mut Turn,
        tx: &mut impl TxQueue,
    ) -> (usize, Left) {
        let is_paced = self.policy.is_paced();
        let room = if is_paced { self.room(cx, turn.now) } else { None };
        let (written, left) = self.write_packets(cx, turn, tx, room);
        // Asking for the room may have ended the rate.
        if is_paced && self.policy.is_paced() { (written, self.pace(cx, turn.now, left)) } else { (written, left) }
    }

    /// Packets that the rate leaves for this turn.
    #[cold]
    fn room(&mut self, cx: &Context, now: Instant) -> Option<u32> {
        let round_trip = self.requester.mean_round_trip();
        self.policy.room(&cx.config.congestion, now, self.common.mtu, cx.stats.sent_bytes.get(), round_trip)
    }

    /// Records what was written. What is left to send may have to wait for its time.
    #[cold]
    fn pace(&mut self, cx: &mut Context, now: Instant, left: Left) -> Left {
        match self.policy.sent(&cx.config.congestion, now, cx.stats.sent_bytes.get(), left) {
            Some(at) => {
                cx.stats.rate_stalls.inc();
                cx.arm_timer_at(self.common.qpn.slot(), at);
                Left::Later
            }
            None if left == Left::Later => Left::More,
            None => left,
        }
    }

    /// Writes what is left of a turn, but no more than `room` packets that the rate applies to.
    #[inline(always)]
    fn write_packets(
        &mut self,
        cx: &mut Context,
        turn: &mut Turn,
        tx: &mut impl TxQueue,
        mut room: Option<u32>,
    ) -> (usize, Left) {
        let (mut written, mut left) = (0, Left::Nothing);
        if self.requester.probe_due() {
            if !self.write_probe(cx, tx) {
                return (0, Left::Refused);
            }
            written = 1;
        }
        if self.responder.has_replies() || self.notifier.is_due() {
            let replied = self.reply(cx, turn.quanta.replies, tx, room);
            turn.quanta.replies -= replied.quantum;
            room = room.map(|room| room - replied.paced);
            (written, left) = (written + replied.packets, replied.left);
        }
        if left == Left::Refused || !self.requester.has_unsent() || !self.state.sends() || !self.may_request() {
            return (written, left);
        }
        if room == Some(0) && self.requester.has_unasked() {
            // It has stopped behind a packet that does not ask for an answer.
            room = Some(1);
        }
        if let Some(repeated) = self.requester.repeated_room(turn.mix == Mix::Limited, &cx.config) {
            if repeated == 0 {
                return (written, left);
            }
            room = Some(room.map_or(repeated, |room| room.min(repeated)));
        }
        let draining = self.state == QpState::Sqd;
        let mut grant = self.policy.grant(&cx.config, turn, room, draining);
        if turn.mix == Mix::Limited && self.common.qp_type == QpType::Rc {
            grant.long = self.long_budget(cx);
        }
        let requested = match (self.common.qp_type, &self.link) {
            (QpType::Rc, Some(link)) => self.requester.send_requests(&self.common, link, cx, tx, grant),
            (QpType::Uc, Some(link)) => self.requester.send_unreliable(&self.common, Some(link), cx, tx, &grant),
            (QpType::Ud, _) => self.requester.send_unreliable(&self.common, None, cx, tx, &grant),
            (QpType::Rc | QpType::Uc, None) => return (written, left),
        };
        written += requested.packets as usize;
        turn.quanta.requests -= requested.packets;
        // Only requests start the retransmission timer.
        if requested.packets > 0 {
            self.arm_retransmit_timer(cx);
            if self.requester.has_long() {
                // Without a limit nobody looks at the sums: what is sent then counts when the peer answers next.
                if turn.mix == Mix::Limited || !self.policy.has_share() {
                    self.settle(cx, turn.now);
                }
            } else if turn.mix != Mix::NoneLong && self.common.qp_type == QpType::Rc {
                self.short_sent(cx, turn.now, turn.mix);
            }
        }
        if let Some(direction) = requested.held {
            self.hold(cx, direction);
        }
        if let Some(failure) = requested.failure {
            self.fail_send(cx, failure);
            return (written, self.left_in_error());
        }
        if draining {
            self.report_drained(cx);
        }
        (written, left.max(requested.left))
    }

    /// Whether requests may be sent: what is retransmitted does not wait for the limit of long messages.
    #[inline]
    fn may_request(&self) -> bool {
        !self.policy.is_held() || self.requester.retransmits()
    }

    /// What may be sent of long messages in this turn, where the port limits them.
    #[cold]
    fn long_budget(&self, cx: &Context) -> Option<LongBudget> {
        let limit = cx.scheduler.limit(self.port())?;
        Some(self.policy.long_budget(limit, self.common.mtu, self.requester.has_unasked()))
    }

    /// The next packet waits for the limit of long messages.
    #[cold]
    fn hold(&mut self, cx: &mut Context, direction: Direction) {
        cx.stats.long_stalls.inc();
        self.policy.set_held(true);
        cx.scheduler.hold(self.port(), direction, self.common.qpn.slot());
        cx.scheduler.with_limit(self.port(), LongLimit::bind);
    }

    /// The queue pair has left the queue of those that wait for the limit of long messages. Returns whether its turn has come: it
    /// may be in the schedule besides.
    #[cold]
    pub(in crate::transport) fn end_hold(&mut self) -> bool {
        self.policy.set_held(false);
        !std::mem::replace(&mut self.active, true)
    }

    /// Tells the limit of a short message.
    #[inline(never)]
    fn short_sent(&mut self, cx: &mut Context, now: Instant, mix: Mix) {
        if cx.config.short_messages_first {
            let knows_path = self.requester.knows_path;
            if mix != Mix::Limited {
                // What was measured before there was a limit says nothing about it.
                self.requester.take_sample();
            }
            let mean = self.requester.mean_round_trip();
            cx.scheduler.with_limit(self.port(), |limit| limit.short_sent(now, knows_path, mean));
        }
    }

    /// The peer has answered, or its time is over: tells the policy what was measured, and what is outstanding now.
    #[inline(never)]
    fn answered(&mut self, cx: &mut Context, now: Instant) {
        let sample = self.requester.take_sample();
        self.policy.answered(&cx.config, now, sample, self.requester.retries(), self.common.mtu);
        if let Some(at) = self.policy.deadline() {
            cx.arm_timer_at(self.common.qpn.slot(), at);
        }
        let was_long = self.policy.has_share();
        self.settle(cx, now);
        if let Some(sample) = sample
            && !was_long
        {
            let (port, shortest) = (self.port(), self.requester.shortest_round_trip());
            let knows_path = &mut self.requester.knows_path;
            cx.scheduler.with_limit(port, |limit| *knows_path |= limit.short_answered(now, sample, shortest));
        }
    }

    /// The sums of the port's limit follow what is outstanding.
    pub(in crate::transport) fn settle(&mut self, cx: &mut Context, now: Instant) {
        let outstanding = self.requester.long_outstanding(self.common.mtu);
        self.policy.settle(&mut cx.scheduler, self.port(), now, outstanding);
    }

    /// Nothing of this queue pair counts for a limit any more.
    pub(in crate::transport) fn leave_limit(&mut self, cx: &mut Context, now: Instant) {
        self.policy.settle(&mut cx.scheduler, self.policy.share_port(), now, Outstanding::default());
    }

    fn port(&self) -> PortId {
        self.link.as_ref().map_or(self.policy.share_port(), |link| link.template.port())
    }

    /// Writes the keep-alive probe; false when there is no room.
    #[cold]
    fn write_probe(&mut self, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
        self.link.as_ref().is_none_or(|link| self.requester.write_probe(link, cx, tx))
    }

    /// Writes pending replies: congestion notification, responses, ACK, NAK; of `room` packets that the rate leaves at most.
    // Called per turn, from one place.
    #[inline(always)]
    fn reply(&mut self, cx: &mut Context, quantum: u32, tx: &mut impl TxQueue, room: Option<u32>) -> Replies {
        let mut replies = Replies { packets: 0, quantum: 0, paced: 0, left: Left::Nothing };
        let Some(link) = &self.link else { return replies };
        let Some(notified) = self.notifier.notify(link, cx, tx) else {
            return Replies { left: Left::Refused, ..replies };
        };
        let responses = room.filter(|_| self.policy.paces_responses());
        let done = self.responder.reply(&self.common, link, cx, tx, quantum, responses.unwrap_or(u32::MAX));
        replies.quantum = done.packets;
        replies.packets = usize::from(notified) + done.packets as usize;
        replies.left = done.left;
        if room.is_some() {
            if responses.is_some() {
                replies.paced = done.responses;
            }
            let control = u64::from(done.packets - done.responses) + u64::from(notified);
            self.policy.replied(cx.stats.sent_bytes.get(), control * link.acks.frame_len() as u64);
        }
        if let Some(FatalError { cause, receive }) = done.error {
            self.fail(cx, cause, None, receive);
            replies.left = self.left_in_error();
        }
        replies
    }

    /// What is left after a failure: a NAK may be pending.
    fn left_in_error(&self) -> Left {
        if self.responder.has_replies() { Left::More } else { Left::Nothing }
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
