//! Writing what is owed to the peer.

use crate::mem::Access;
use crate::transport::QpErrorCause;
use crate::transport::context::{Context, Turn};
use crate::transport::link::{Flags, Link};
use crate::transport::qp::{Common, Qp};
use crate::wire::{NakCode, Opcode, Syndrome, TxQueue};

use super::resources::Kind;
use super::{Nak, Responder};

/// What became of one response to a READ or atomic.
enum Response {
    Written,
    Refused,
    /// The memory is no longer registered.
    Unreadable,
}

impl Qp {
    /// Writes up to `quantum` packets of what the responder owes, in PSN order. Returns how many and how it ended.
    pub(in crate::transport) fn reply(
        &mut self,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        quantum: u32,
    ) -> (usize, Turn) {
        let mut written = 0;
        while written < quantum as usize {
            let Some(link) = &self.link else { return (written, Turn::Idle) };
            let responder = &mut self.responder;
            let due = responder.resources.oldest_due_psn();
            if responder.ack_owed && due.is_none_or(|first| responder.executed.0 < first) {
                responder.ack_owed = false;
                // A NAK says the same and more.
                if due.is_some() || responder.nak.is_none() {
                    if !acknowledge(responder, link, cx, tx) {
                        responder.ack_owed = true;
                        return (written, Turn::Refused);
                    }
                    written += 1;
                }
                continue;
            }
            if due.is_some() {
                match responder.respond(&self.common, link, cx, tx) {
                    Response::Written => written += 1,
                    Response::Refused => return (written, Turn::Refused),
                    Response::Unreadable => self.reply_unreadable(cx),
                }
                continue;
            }
            let Some(nak) = responder.nak else { return (written, Turn::Idle) };
            if !write_nak(nak, link, cx, tx) {
                return (written, Turn::Refused);
            }
            responder.nak = None;
            written += 1;
        }
        (written, if self.responder.owes() { Turn::More } else { Turn::Idle })
    }

    /// The region of a READ was deregistered before all of it was sent.
    fn reply_unreadable(&mut self, cx: &mut Context) {
        let responder = &mut self.responder;
        let Some(resource) = responder.resources.oldest_due() else { return };
        let (msn, reply) = (resource.msn, resource.reply);
        let Some(reply) = reply else { return };
        responder.resources.done();
        if reply.replay {
            cx.stats.replays_abandoned.inc();
            return;
        }
        responder.resources.abandon();
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        responder.nak = Some(Nak { psn: reply.next.psn(), msn, syndrome });
        self.fail(cx, QpErrorCause::RemoteKey, None, None);
    }
}

impl Responder {
    /// Writes the next response to the oldest READ or atomic.
    #[inline]
    fn respond(&mut self, common: &Common, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> Response {
        let Some(resource) = self.resources.oldest_due() else { return Response::Unreadable };
        let Some(reply) = &mut resource.reply else { return Response::Unreadable };
        let psn = reply.next.psn();
        match resource.kind {
            Kind::Atomic { original, .. } => {
                let op = Opcode::AtomicAcknowledge;
                let Some(mut packet) = link.begin(tx, &mut cx.emitter, op, psn, Flags::default(), 0) else {
                    return Response::Refused;
                };
                packet.aeth(Syndrome::ACK, resource.msn).atomic_ack(original);
                packet.finish();
                self.resources.done();
            }
            Kind::Read { rkey, .. } => {
                let len = reply.left.min(common.mtu);
                let op = match (reply.next == reply.from, reply.left <= common.mtu) {
                    (true, true) => Opcode::ReadResponseOnly,
                    (true, false) => Opcode::ReadResponseFirst,
                    (false, false) => Opcode::ReadResponseMiddle,
                    (false, true) => Opcode::ReadResponseLast,
                };
                let span = match len {
                    0 => None,
                    _ => match cx.keys.check(rkey, common.pd, reply.va, u64::from(len), Access::REMOTE_READ) {
                        Ok(span) => Some(span),
                        Err(_) => return Response::Unreadable,
                    },
                };
                let flags = Flags::default();
                let Some(mut packet) = link.begin(tx, &mut cx.emitter, op, psn, flags, len as usize) else {
                    return Response::Refused;
                };
                if op != Opcode::ReadResponseMiddle {
                    packet.aeth(Syndrome::ACK, resource.msn);
                }
                if let Some(span) = span {
                    // The span has just been cut to this length.
                    let read = span.read(0, packet.payload_mut());
                    debug_assert!(read.is_ok());
                }
                packet.finish();
                cx.stats.read_responses_sent.inc();
                reply.next = reply.next.add(1);
                reply.va = reply.va.wrapping_add(u64::from(len));
                reply.left -= len;
                if reply.left == 0 {
                    self.resources.done();
                }
            }
        }
        Response::Written
    }
}

/// Writes the plain ACK; false when there is no room.
fn acknowledge(responder: &Responder, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
    let (executed, msn) = responder.executed;
    let op = Opcode::Acknowledge;
    let Some(mut packet) = link.begin(tx, &mut cx.emitter, op, executed.psn(), Flags::default(), 0) else {
        return false;
    };
    packet.aeth(Syndrome::ACK, msn);
    packet.finish();
    cx.stats.acks_sent.inc();
    true
}

/// Writes a NAK; false when there is no room.
fn write_nak(nak: Nak, link: &Link, cx: &mut Context, tx: &mut impl TxQueue) -> bool {
    let Some(mut packet) = link.begin(tx, &mut cx.emitter, Opcode::Acknowledge, nak.psn, Flags::default(), 0) else {
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
