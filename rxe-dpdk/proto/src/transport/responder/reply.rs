//! Writes pending replies.

use crate::mem::Access;
use crate::transport::QpErrorCause;
use crate::transport::common::Common;
use crate::transport::context::{Context, write_acknowledge};
use crate::transport::link::{Flags, Link};
use crate::transport::send_policy::Left;
use crate::wire::{BthOpcode, NakCode, Opcode, Syndrome, TxQueue};

use super::acknowledge::answered_late;
use super::resources::Kind;
use super::{FatalError, Nak, Responder};

/// Outcome of writing one response to a READ or atomic.
enum Response {
    Written,
    /// The port takes no more packets now.
    Backpressure,
    /// The memory was deregistered or lost, or is not mapped.
    Unreadable,
}

/// What a responder did in a turn.
pub(in crate::transport) struct Replied {
    /// Packets written, and how many of them are responses to READs and atomics.
    pub(in crate::transport) packets: u32,
    pub(in crate::transport) responses: u32,
    pub(in crate::transport) left: Left,
    /// Why the queue pair must go to error: the region of a READ was deregistered before all of it was sent. The NAK for that is
    /// pending then.
    pub(in crate::transport) error: Option<FatalError>,
}

impl Responder {
    /// Writes up to `quantum` pending replies, in PSN order, among them at most `room` responses to READs and atomics.
    // Inlined into the hot path although it has a second, cold caller (destroyed queue pairs).
    #[inline(always)]
    pub(in crate::transport) fn reply(
        &mut self,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        quantum: u32,
        room: u32,
    ) -> Replied {
        let mut done = Replied { packets: 0, responses: 0, left: Left::Nothing, error: None };
        if self.nak.is_some() {
            self.update_nak();
        }
        while done.packets < quantum {
            // compliance.md [RC-RSP-ACK-ORDER]: Replies are sent in PSN order.
            let due = self.resources.oldest_due_psn();
            // A NAK acknowledges as well; until it is written, the ACK stays pending.
            let nak_instead = due.is_none() && self.nak.is_some();
            if self.ack_due && !nak_instead && due.is_none_or(|first| self.acknowledges.0 < first) {
                if !acknowledge(self, common, link, cx, tx) {
                    return Replied { left: Left::Refused, ..done };
                }
                self.acknowledged(common, cx);
                done.packets += 1;
                continue;
            }
            if due.is_some() {
                if done.responses == room {
                    return Replied { left: Left::Later, ..done };
                }
                match self.respond(common, link, cx, tx) {
                    Response::Written => {
                        done.packets += 1;
                        done.responses += 1;
                    }
                    Response::Backpressure => return Replied { left: Left::Refused, ..done },
                    Response::Unreadable => {
                        if let Some(error) = self.unreadable(cx) {
                            return Replied { left: Left::More, error: Some(error), ..done };
                        }
                    }
                }
                continue;
            }
            let Some(nak) = self.nak else { return done };
            if !write_nak(nak, link, cx, tx) {
                return Replied { left: Left::Refused, ..done };
            }
            self.nak = None;
            self.acknowledged(common, cx);
            done.packets += 1;
        }
        if self.has_replies() {
            done.left = Left::More;
        }
        done
    }

    /// Ends a READ whose region was deregistered before all of it was sent.
    fn unreadable(&mut self, cx: &mut Context) -> Option<FatalError> {
        let resource = self.resources.oldest_due()?;
        let (msn, reply) = (resource.msn, resource.reply?);
        self.resources.done();
        if reply.replay {
            cx.stats.replays_abandoned.inc();
            return None;
        }
        self.resources.abandon();
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        // The READ is not complete, so the MSN does not count it.
        // compliance.md [RC-RSP-READ-GONE]: When the memory of a READ is deregistered between its responses, the next
        // PSN gets a remote access NAK.
        self.nak = Some(Nak { psn: reply.next.psn(), msn: msn.wrapping_sub(1) & 0xFF_FFFF, syndrome });
        Some(FatalError { cause: QpErrorCause::RemoteKey, receive: None })
    }
}

impl Responder {
    /// Writes the next response to the oldest READ or atomic.
    #[inline(always)]
    fn respond(&mut self, common: &Common, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> Response {
        let syndrome = self.credits(common, cx);
        let Some(resource) = self.resources.oldest_due() else { return Response::Unreadable };
        let Some(reply) = &mut resource.reply else { return Response::Unreadable };
        let psn = reply.next.psn();
        let done = match resource.kind {
            Kind::Atomic { original, .. } => {
                if !link.write_atomic_ack(tx, &cx.stats, psn, syndrome, resource.msn, original) {
                    return Response::Backpressure;
                }
                true
            }
            Kind::Flush | Kind::AtomicWrite => {
                let op = BthOpcode::rc(Opcode::ReadResponseOnly);
                let Some(mut packet) = link.begin(tx, &cx.stats, op, psn, Flags::default(), 0) else {
                    return Response::Backpressure;
                };
                packet.aeth(syndrome, resource.msn);
                packet.finish();
                true
            }
            Kind::Read { rkey, .. } => {
                let len = reply.left.min(common.mtu);
                // compliance.md [RC-RSP-DUP-READ-FIRST]: The responses to a partly repeated READ begin with FIRST or
                // ONLY.
                let op = match (reply.next == reply.from, reply.left <= common.mtu) {
                    (true, true) => Opcode::ReadResponseOnly,
                    (true, false) => Opcode::ReadResponseFirst,
                    (false, false) => Opcode::ReadResponseMiddle,
                    (false, true) => Opcode::ReadResponseLast,
                };
                let span = match len {
                    0 => None,
                    _ => match cx.keys.check_remote(
                        rkey,
                        common.pd,
                        common.qpn.get(),
                        reply.va,
                        u64::from(len),
                        Access::REMOTE_READ,
                    ) {
                        Ok(span) => Some(span),
                        Err(_) => return Response::Unreadable,
                    },
                };
                let flags = Flags::default();
                let Some(mut packet) = link.begin(tx, &cx.stats, BthOpcode::rc(op), psn, flags, len as usize) else {
                    return Response::Backpressure;
                };
                // compliance.md [RC-RSP-READ-AETH]: FIRST, LAST and ONLY of a READ response carry an AETH, MIDDLE does
                // not.
                if op != Opcode::ReadResponseMiddle {
                    packet.aeth(syndrome, resource.msn);
                }
                // The span has this length, but the memory behind it may be lost or unmapped at any time.
                if let Some(span) = span
                    && span.read(0, packet.payload_mut()).is_err()
                {
                    packet.make_void();
                    packet.finish();
                    return Response::Unreadable;
                }
                packet.finish();
                cx.stats.read_responses_sent.inc();
                reply.next = reply.next.add(1);
                reply.va = reply.va.wrapping_add(u64::from(len));
                reply.left -= len;
                reply.left == 0
            }
        };
        if done {
            if resource.begun != cx.now {
                answered_late(common, cx, resource);
            }
            self.resources.done();
        }
        Response::Written
    }
}

/// Writes the plain ACK; false when there is no room.
#[inline(always)]
fn acknowledge(responder: &Responder, common: &Common, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
    let syndrome = responder.credits(common, cx);
    let (psn, msn) = responder.acknowledges;
    let written = write_acknowledge(tx, &cx.stats, &link.acks, psn.psn(), syndrome, msn);
    if written {
        cx.stats.acks_sent.inc();
    }
    written
}

/// Writes a NAK; false when there is no room.
fn write_nak(nak: Nak, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
    let Some(mut packet) = link.begin(tx, &cx.stats, BthOpcode::rc(Opcode::Acknowledge), nak.psn, Flags::default(), 0)
    else {
        return false;
    };
    packet.aeth(nak.syndrome, nak.msn);
    packet.finish();
    match nak.syndrome {
        Syndrome::Rnr { .. } => cx.stats.send_rnr_err.inc(),
        Syndrome::Nak(NakCode::PsnSequence) => cx.stats.sequence_naks_sent.inc(),
        _ => cx.stats.fatal_naks_sent.inc(),
    }
    true
}
