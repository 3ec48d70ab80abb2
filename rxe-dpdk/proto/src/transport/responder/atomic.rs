//! COMPARE_SWAP and FETCH_ADD: executed exactly once, answered as often as requested.

use crate::mem::Access;
use crate::transport::QpErrorCause;
use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::wire::RocePacket;

use super::resources::{AtomicKind, Kind, Reply, Resource};
use super::{Message, Refusal, Responder};

impl Responder {
    pub(super) fn atomic(
        &mut self,
        common: &Common,
        cx: &mut Context,
        packet: &RocePacket<'_>,
        op: AtomicKind,
    ) -> Result<(), Refusal> {
        let (Message::None, Some(eth)) = (self.message, packet.atomic_eth()) else {
            return Err(Refusal::invalid(QpErrorCause::OpcodeSequence));
        };
        self.require(Access::REMOTE_ATOMIC)?;
        // compliance.md [RC-RSP-READ-DEPTH]: More READs and atomics outstanding than the queue pair holds are an
        // invalid request, after the accepted ones have been answered.
        if !self.resources.has_room() {
            return Err(Refusal::invalid(QpErrorCause::ReadDepth));
        }
        if !packet.payload().is_empty() || packet.pad() != 0 {
            return Err(Refusal::invalid(QpErrorCause::Length));
        }
        // compliance.md [RC-RSP-ATOMIC-ALIGN]: An atomic on an address that is not a multiple of 8 is an invalid
        // request.
        if eth.va() % 8 != 0 {
            return Err(Refusal::invalid(QpErrorCause::Misaligned));
        }
        let span = cx.keys.check_remote(eth.rkey(), common.pd, common.qpn.get(), eth.va(), 8, Access::REMOTE_ATOMIC);
        let span = span.map_err(|_| Refusal::access())?;
        // Bounds are checked; it still fails for a region whose memory is less aligned than its addresses.
        // compliance.md [RC-RSP-ATOMIC]: COMPARE_SWAP and FETCH_ADD operate on 8 bytes in the host's byte order and
        // return the previous value.
        let original = match op {
            AtomicKind::CompareSwap => span.compare_swap(0, eth.compare(), eth.swap_or_add()),
            AtomicKind::FetchAdd => span.fetch_add(0, eth.swap_or_add()),
        }
        .map_err(Refusal::atomic)?;
        self.message_done();
        let first = self.expected;
        self.resources.push(Resource {
            first,
            packets: 1,
            msn: self.msn,
            kind: Kind::Atomic { op, original },
            begun: cx.now,
            reply: Some(Reply { from: first, next: first, va: 0, left: 0, replay: false }),
        });
        self.expected = first.add(1);
        Ok(())
    }

    /// Repeats the answer to a duplicate atomic, with the original value. False when it is no longer known.
    pub(super) fn atomic_again(&mut self, cx: &Context, again: AtomicKind, psn: Seq) -> bool {
        let Some((index, resource)) = self.resources.find(psn) else { return false };
        if !matches!(resource.kind, Kind::Atomic { op, .. } if op == again) {
            return false;
        }
        // compliance.md [RC-RSP-DUP-ATOMIC]: A duplicate atomic returns the original value and changes nothing.
        let replay = resource.is_answered();
        self.resources.reply_again(index, Reply { from: psn, next: psn, va: 0, left: 0, replay });
        cx.stats.atomic_replays.inc();
        true
    }
}
