//! Long messages of a queue pair beside short ones of others: see [`LongLimit`](crate::transport::long_limit::LongLimit).

use crate::time::Instant;
use crate::transport::context::Context;
use crate::transport::long_limit::{Charge, Mix};
use crate::wire::PortId;

use super::Qp;

impl Qp {
    /// Whether requests may be sent: what is retransmitted does not wait for the limit.
    #[inline]
    pub(super) fn may_request(&self) -> bool {
        !self.held || self.requester.retransmits()
    }

    /// Request packets that may be written in this turn, where the port limits long messages, with the last of them requesting an ACK;
    /// `None` when the next one has to wait: for the limit, or, if its peer is silent, for an answer or for the retransmission.
    #[cold]
    pub(super) fn limited_quantum(&mut self, cx: &mut Context) -> Option<usize> {
        if !self.requester.continues_long() {
            return Some(usize::MAX);
        }
        if self.requester.has_forgotten() {
            return None;
        }
        let room = cx.scheduler.limit_mut(self.port()).map_or(u32::MAX, |limit| limit.room(self.common.mtu));
        // What has been sent may be waiting for the next packet to request an ACK.
        let room = room.max(u32::from(self.requester.lacks_ack_request()));
        if room == 0 {
            cx.stats.long_stalls.inc();
            self.held = true;
            cx.scheduler.hold(self.port(), self.common.qpn.slot());
            return None;
        }
        Some(self.requester.limit_long(room))
    }

    /// Requests may be sent again.
    #[cold]
    pub(in crate::transport) fn end_hold(&mut self, cx: &mut Context) {
        self.held = false;
        if !self.active {
            self.active = true;
            cx.scheduler.requeue(usize::from(self.port().0), self.common.qpn.slot());
        }
    }

    /// Counts what was sent.
    #[inline(never)]
    pub(super) fn count_long(&mut self, cx: &mut Context, now: Instant) {
        self.recount_long(cx, now, false);
        if !self.requester.has_long()
            && cx.mix != Mix::NoneLong
            && let Some(limit) = cx.scheduler.limit_mut(self.port())
        {
            limit.short_sent(now);
        }
    }

    /// Counts what was answered.
    #[inline(never)]
    pub(super) fn long_answered(&mut self, cx: &mut Context, now: Instant) {
        if self.charge.packets > 0 || self.requester.has_long() {
            self.recount_long(cx, now, true);
        } else if let Some((round_trip, shortest)) = self.requester.take_round_trip(now)
            && let Some(limit) = cx.scheduler.limit_mut(self.port())
        {
            limit.short_answered(now, round_trip, shortest);
        }
    }

    /// Nothing of this queue pair is outstanding any more.
    #[cold]
    pub(in crate::transport) fn forget_long(&mut self, cx: &mut Context) {
        let charge = std::mem::take(&mut self.charge);
        if let Some(limit) = cx.scheduler.limit_mut(charge.port) {
            limit.release(charge);
        }
    }

    /// Counts packets of long messages that are outstanding now. `progress`: the peer has answered some.
    #[inline]
    fn recount_long(&mut self, cx: &mut Context, now: Instant, progress: bool) {
        let packets = self.requester.count_long();
        let changed = match cx.scheduler.limit_mut(self.charge.port) {
            Some(limit) => limit.change(now, &mut self.charge, packets),
            None => false,
        };
        if changed {
            self.requester.note_charged();
        } else {
            self.charge_again(cx, now, progress);
        }
    }

    /// [`recount_long`](Self::recount_long), for the first time, or for another port or period than last.
    #[inline(never)]
    fn charge_again(&mut self, cx: &mut Context, now: Instant, progress: bool) {
        let (port, last) = (self.port(), self.charge);
        if let Some(limit) = cx.scheduler.limit_mut(last.port) {
            if limit.has_expired(last) {
                self.requester.forget_long();
            }
            limit.release(last);
        }
        let packets = self.requester.count_long();
        self.charge = match cx.scheduler.limit_mut(port) {
            Some(limit) => limit.charge(now, (port, packets, self.common.mtu), last, progress),
            None => Charge::default(),
        };
        self.requester.note_charged();
    }

    fn port(&self) -> PortId {
        self.link.as_ref().map_or(PortId(0), |link| link.template.port())
    }
}
