//! FLUSH and ATOMIC WRITE: executed exactly once, answered like a READ of no bytes, as often as requested.

use crate::mem::Access;
use crate::transport::QpErrorCause;
use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::wire::{Feth, RocePacket};

use super::resources::{Kind, Reply, Resource};
use super::{Message, Refusal, Responder, check_remote};

impl Responder {
    /// Executes a FLUSH. Earlier writes are globally visible already, because they are executed when accepted.
    /// Persistence needs a region that grants it.
    pub(super) fn flush_memory(
        &mut self,
        common: &Common,
        cx: &mut Context,
        packet: &RocePacket<'_>,
    ) -> Result<(), Refusal> {
        let (Message::None, Some(feth), Some(reth)) = (self.message, packet.feth(), packet.reth()) else {
            return Err(Refusal::invalid(QpErrorCause::OpcodeSequence));
        };
        // compliance.md [RC-RSP-READ-DEPTH]: More READs and atomics outstanding than the queue pair holds are an
        // invalid request, after the accepted ones have been answered.
        if !self.resources.has_room() {
            return Err(Refusal::invalid(QpErrorCause::ReadDepth));
        }
        if !packet.payload().is_empty() || packet.pad() != 0 {
            return Err(Refusal::invalid(QpErrorCause::Length));
        }
        // Two bits; at least one must be set.
        // compliance.md [RC-RSP-FLUSH-RIGHTS]: Each requested placement needs its right, on the queue pair and on the
        // range or the whole region.
        let placement = feth.placement();
        let mut need = Access::empty();
        need.set(Access::FLUSH_GLOBAL, placement & Feth::GLOBAL_VISIBILITY != 0);
        need.set(Access::FLUSH_PERSISTENT, placement & Feth::PERSISTENT != 0);
        if need.is_empty() || placement & !(Feth::GLOBAL_VISIBILITY | Feth::PERSISTENT) != 0 {
            return Err(Refusal::invalid(QpErrorCause::OpcodeUnsupported));
        }
        self.require(need)?;
        match feth.level() {
            Feth::LEVEL_RANGE => check_remote(cx, common, reth.rkey(), reth.va(), reth.dma_len(), need)?,
            Feth::LEVEL_REGION => {
                let checked = cx.keys.check_remote_key(reth.rkey(), common.pd, common.qpn.get(), need);
                checked.map_err(|_| Refusal::access())?;
            }
            _ => return Err(Refusal::invalid(QpErrorCause::OpcodeUnsupported)),
        }
        // compliance.md [RC-RSP-FLUSH]: FLUSH is answered by a READ response without payload, in the order of PSNs
        // after what was written before it.
        cx.stats.flushes.inc();
        self.answer_later(cx, Kind::Flush);
        Ok(())
    }

    /// Executes an ATOMIC WRITE: stores 8 bytes at once.
    pub(super) fn atomic_write(
        &mut self,
        common: &Common,
        cx: &mut Context,
        packet: &RocePacket<'_>,
    ) -> Result<(), Refusal> {
        let (Message::None, Some(reth)) = (self.message, packet.reth()) else {
            return Err(Refusal::invalid(QpErrorCause::OpcodeSequence));
        };
        self.require(Access::REMOTE_WRITE)?;
        // compliance.md [RC-RSP-READ-DEPTH]: More READs and atomics outstanding than the queue pair holds are an
        // invalid request, after the accepted ones have been answered.
        if !self.resources.has_room() {
            return Err(Refusal::invalid(QpErrorCause::ReadDepth));
        }
        // compliance.md [RC-RSP-ATOMIC-WRITE]: ATOMIC WRITE stores 8 aligned bytes in wire order, with the remote write
        // right.
        let bytes = <[u8; 8]>::try_from(packet.payload());
        let (Ok(bytes), 8, 0) = (bytes, reth.dma_len(), packet.pad()) else {
            return Err(Refusal::invalid(QpErrorCause::Length));
        };
        if reth.va() % 8 != 0 {
            return Err(Refusal::invalid(QpErrorCause::Misaligned));
        }
        let qpn = common.qpn.get();
        let span = cx.keys.check_remote(reth.rkey(), common.pd, qpn, reth.va(), 8, Access::REMOTE_WRITE);
        // Bounds are checked; it still fails for a region whose memory is less aligned than its addresses.
        span.map_err(|_| Refusal::access())?.store(0, u64::from_ne_bytes(bytes)).map_err(Refusal::atomic)?;
        cx.stats.atomic_writes.inc();
        self.answer_later(cx, Kind::AtomicWrite);
        Ok(())
    }

    fn answer_later(&mut self, cx: &Context, kind: Kind) {
        self.message_done();
        let first = self.expected;
        let reply = Some(Reply { from: first, next: first, va: 0, left: 0, replay: false });
        self.resources.push(Resource { first, packets: 1, msn: self.msn, kind, begun: cx.now, reply });
        self.expected = first.add(1);
    }

    /// Repeats the answer to a duplicate FLUSH or ATOMIC WRITE. False when it is no longer known.
    pub(super) fn flush_again(&mut self, cx: &Context, psn: Seq) -> bool {
        let Some((index, resource)) = self.resources.find(psn) else { return false };
        if !matches!(resource.kind, Kind::Flush | Kind::AtomicWrite) {
            return false;
        }
        // compliance.md [RC-RSP-DUP-FLUSH]: A repeated FLUSH or ATOMIC WRITE is answered again and not executed again.
        let replay = resource.is_answered();
        self.resources.reply_again(index, Reply { from: psn, next: psn, va: 0, left: 0, replay });
        cx.stats.flush_replays.inc();
        true
    }
}
