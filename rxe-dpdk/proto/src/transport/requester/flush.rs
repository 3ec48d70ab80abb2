//! FLUSH and ATOMIC WRITE: both are answered like a READ of no bytes, and occupy one of the peer's READ and atomic
//! resources until then. IBTA: annex "Memory Placement Extensions".

use crate::time::Instant;
use crate::transport::SendOp;
use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::link::{Flags, Link};
use crate::wire::{BthOpcode, Feth, Opcode, TxQueue};

use super::packet::Sent;
use super::{Requester, SendWqe};

impl Requester {
    /// Writes the request of a FLUSH or ATOMIC WRITE.
    pub(super) fn send_flush_or_atomic_write(
        &mut self,
        wqe: &SendWqe,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        now: Instant,
    ) -> Sent {
        let Some(source) = self.source(wqe, common, &cx.keys, 0, wqe.length) else { return self.bad_key(wqe) };
        let op = if matches!(wqe.op, SendOp::Flush { .. }) { Opcode::Flush } else { Opcode::AtomicWrite };
        let flags = Flags { solicited: false, ack_req: true };
        let len = wqe.length as usize;
        let Some(mut packet) = link.begin(tx, &cx.stats, BthOpcode::rc(op), self.cursor.psn(), flags, len) else {
            return Sent::Backpressure;
        };
        match wqe.op {
            // compliance.md [RC-REQ-FLUSH]: FLUSH names range or region and one placement, and completes with its
            // response alone.
            SendOp::Flush { remote, length, whole_region, persistent } => {
                let level = if whole_region { Feth::LEVEL_REGION } else { Feth::LEVEL_RANGE };
                let placement = if persistent { Feth::PERSISTENT } else { Feth::GLOBAL_VISIBILITY };
                packet.feth(level, placement).reth(remote.addr, remote.rkey, length);
            }
            // compliance.md [RC-REQ-ATOMIC-WRITE]: ATOMIC WRITE carries exactly 8 bytes, from buffers or inline, and
            // completes with its response alone.
            SendOp::AtomicWrite { remote } => {
                packet.reth(remote.addr, remote.rkey, wqe.length);
            }
            _ => {}
        }
        let filled = source.fill(&cx.keys, common.pd, &mut packet);
        packet.finish();
        if !filled {
            return self.bad_key(wqe);
        }
        self.response_expected(cx, now, self.cursor.add(1), true);
        Sent::Written
    }
}
