//! Which messages an ACK answers, and how long the peer waited for the answers.

use crate::time::Instant;
use crate::transport::Operation;
use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::latency::record;
use crate::wire::RocePacket;

use super::Responder;
use super::resources::Resource;

/// The messages that the pending ACK answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unanswered {
    /// When the first packet of the oldest came.
    since: Instant,
    sends: u32,
    writes: u32,
}

impl Unanswered {
    pub(super) const NONE: Unanswered = Unanswered { since: Instant::ZERO, sends: 0, writes: 0 };
}

impl Responder {
    /// Records that a packet of a SEND or WRITE has been executed; `ended` if it was the last one of such a message. The time of
    /// the message is counted when it is answered, or now if no answer is requested.
    #[inline(always)]
    pub(super) fn executed(
        &mut self,
        common: &Common,
        cx: &Context,
        packet: &RocePacket<'_>,
        ended: Option<Operation>,
    ) {
        // compliance.md [RC-RSP-READ-NO-ACK]: READs and atomics are answered by their responses whatever AckReq says,
        // never by a plain ACK.
        // compliance.md [RC-RSP-ACK-WHERE]: A plain ACK is for the end of a message, or for a packet that has asked for it.
        if ended.is_some() || packet.ack_req() {
            self.acknowledges = (self.expected, self.msn);
        }
        self.expected = self.expected.add(1);
        let starts = packet.info().position.is_start();
        if ended.is_none() && starts {
            self.begun = cx.now;
        }
        // compliance.md [RC-RSP-ACK-COALESCE]: One ACK acknowledges all SENDs and WRITEs before it.
        if packet.ack_req() {
            self.owe_ack(cx, if starts { cx.now } else { self.begun });
            match ended {
                Some(Operation::Send) => self.unanswered.sends += 1,
                Some(_) => self.unanswered.writes += 1,
                None => {}
            }
        } else if let Some(operation) = ended
            && !starts
        {
            record(common.latencies.responder(operation), self.begun, cx.now, 1);
        }
    }

    /// An ACK is due, for a message that began at `begun`.
    #[inline(always)]
    pub(super) fn owe_ack(&mut self, cx: &Context, begun: Instant) {
        if self.ack_due {
            cx.stats.ack_deferred.inc();
        } else {
            self.ack_due = true;
            self.unanswered.since = begun;
        }
    }

    /// The pending ACK has been written, or is not needed: counts the times of the messages that it answers.
    #[inline(always)]
    pub(super) fn acknowledged(&mut self, common: &Common, cx: &Context) {
        self.ack_due = false;
        let Unanswered { since, sends, writes } = self.unanswered;
        (self.unanswered.sends, self.unanswered.writes) = (0, 0);
        if since != cx.now {
            acknowledged_late(common, cx, since, sends, writes);
        }
    }
}

/// Counts the times of messages that are not answered in the turn in which they began.
#[cold]
#[inline(never)]
fn acknowledged_late(common: &Common, cx: &Context, since: Instant, sends: u32, writes: u32) {
    for (operation, times) in [(Operation::Send, sends), (Operation::Write, writes)] {
        if times > 0 {
            record(common.latencies.responder(operation), since, cx.now, times);
        }
    }
}

/// Counts the time of a READ or atomic whose last response is not written in the turn in which the request came, unless the responses
/// are repeated.
#[cold]
#[inline(never)]
pub(super) fn answered_late(common: &Common, cx: &Context, resource: &Resource) {
    if !resource.is_answered() {
        record(common.latencies.responder(resource.kind.operation()), resource.begun, cx.now, 1);
    }
}
