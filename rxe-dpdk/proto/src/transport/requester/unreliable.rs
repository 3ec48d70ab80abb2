//! Writes packets of the unreliable services: a message completes when its last packet is written.

use crate::transport::common::{Common, Failure};
use crate::transport::context::{Context, begin_packet};
use crate::transport::link::{Flags, Link};
use crate::transport::send_policy::{Grant, Left};
use crate::transport::work::OpTraits;
use crate::transport::{QpErrorCause, SendFlags, SendOp, WcStatus};
use crate::wire::{BthFields, BthOpcode, DEFAULT_PKEY, Opcode, TxQueue};

use super::packet::{Sent, opcode};
use super::{Requested, Requester, SendWqe};

/// A Q_Key with this bit means the sending queue pair's own.
const OWN_QKEY: u32 = 1 << 31;

impl Requester {
    /// Writes packets, as many as are granted: along `link` (UC), or to each datagram's destination (UD).
    pub(in crate::transport) fn send_unreliable(
        &mut self,
        common: &Common,
        link: Option<&Link>,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        grant: &Grant,
    ) -> Requested {
        let mut requested = Requested { packets: 0, left: Left::Nothing, held: None, failure: None };
        while let Some(&wqe) = self.sq.get(self.cursor_wqe) {
            if requested.packets >= grant.packets {
                requested.left = Left::More;
                break;
            }
            // SQD: a message that was begun is finished, no other is begun.
            // compliance.md [REQ-SQD]: In SQD, messages that were begun are finished and retransmitted, no other is
            // begun, requests are served.
            if grant.draining && self.cursor <= wqe.first {
                break;
            }
            let sent = match link {
                _ if wqe.is(OpTraits::LOCAL) => self.local_operation(&wqe, common, cx, grant.draining),
                Some(link) => self.write_message_packet(&wqe, common, link, cx, tx),
                None => self.write_datagram(&wqe, common, cx, tx),
            };
            match sent {
                Sent::Written => requested.packets += 1,
                Sent::Local => continue,
                Sent::Blocked | Sent::Held(_) => break,
                Sent::Backpressure => {
                    requested.left = Left::Refused;
                    break;
                }
                Sent::Failed(failure) => {
                    requested.failure = Some(failure);
                    break;
                }
            }
            self.cursor = self.cursor.add(1);
            (self.sent, self.una) = (self.cursor, self.cursor);
            // compliance.md [UC-REQ-DONE]: Packets never set AckReq.
            if self.cursor == wqe.end() {
                self.cursor_wqe += 1;
                if let Err(failure) = self.complete(common, cx) {
                    requested.failure = Some(failure);
                    break;
                }
            }
        }
        requested
    }

    /// Writes a packet of a UC SEND or WRITE.
    fn write_message_packet(
        &mut self,
        wqe: &SendWqe,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
    ) -> Sent {
        let offset = wqe.offset_of(self.cursor, common.mtu);
        let len = (wqe.length - offset).min(common.mtu);
        let Some(source) = self.source(wqe, common, &cx.keys, offset, len) else { return self.local_key_failure() };
        let first = self.cursor == wqe.first;
        let last = self.cursor.add(1) == wqe.end();
        // compliance.md [RC-REQ-SOLICITED]: The solicited bit is set in the last packet of a message only.
        let flags = Flags { solicited: last && wqe.flags.contains(SendFlags::SOLICITED), ack_req: false };
        let op = BthOpcode::uc(opcode(wqe.op, first, last));
        let psn = self.cursor.psn();
        let Some(mut packet) = link.begin(tx, &cx.stats, op, psn, flags, len as usize) else {
            return Sent::Backpressure;
        };
        if let SendOp::Write { remote, .. } = wqe.op
            && first
        {
            packet.reth(remote.addr, remote.rkey, wqe.length);
        }
        if let SendOp::Send { imm: Some(imm) } | SendOp::Write { imm: Some(imm), .. } = wqe.op
            && last
        {
            packet.imm(imm);
        }
        let filled = source.fill(&cx.keys, common.pd, &mut packet);
        packet.finish();
        if !filled {
            return self.local_key_failure();
        }
        Sent::Written
    }

    fn write_datagram(&mut self, wqe: &SendWqe, common: &Common, cx: &mut Context, tx: &mut impl TxQueue) -> Sent {
        let SendOp::Datagram { ah, qpn, qkey, imm } = wqe.op else { return Sent::Blocked };
        let Some(source) = self.source(wqe, common, &cx.keys, 0, wqe.length) else { return self.local_key_failure() };
        let Some(template) = cx.ahs.template(ah, common.pd) else {
            return Sent::Failed(Failure::of(self.cursor_wqe, WcStatus::LocQpOpErr, QpErrorCause::LocalOperation));
        };
        let op = if imm.is_some() { Opcode::SendOnlyImm } else { Opcode::SendOnly };
        let fields = BthFields {
            opcode: BthOpcode::ud(op),
            dest_qp: qpn.get(),
            psn: self.cursor.psn(),
            solicited: wqe.flags.contains(SendFlags::SOLICITED),
            ack_req: false,
            pkey: DEFAULT_PKEY,
        };
        let Some(mut packet) = begin_packet(tx, &cx.stats, template, fields, wqe.length as usize) else {
            return Sent::Backpressure;
        };
        // compliance.md [UD-REQ-QKEY]: A Q_Key with the highest bit set means the sending queue pair's own.
        packet.deth(if qkey & OWN_QKEY != 0 { common.qkey } else { qkey }, common.qpn.get());
        if let Some(imm) = imm {
            packet.imm(imm);
        }
        let filled = source.fill(&cx.keys, common.pd, &mut packet);
        packet.finish();
        if !filled {
            return self.local_key_failure();
        }
        cx.stats.datagrams_sent.inc();
        Sent::Written
    }

    fn local_key_failure(&self) -> Sent {
        Sent::Failed(Failure::of(self.cursor_wqe, WcStatus::LocProtErr, QpErrorCause::LocalKey))
    }
}
