//! RDMA READ requests. The responses are written by [`reply`](super::reply).

use crate::mem::Access;
use crate::transport::QpErrorCause;
use crate::transport::common::{Common, packets_of};
use crate::transport::context::Context;
use crate::transport::seq::Seq;
use crate::wire::RocePacket;

use super::resources::{Kind, Reply, Resource};
use super::write::MAX_MESSAGE;
use super::{Message, Refusal, Responder, check_remote};

impl Responder {
    /// Accepts a READ. All of it is validated now: a NAK in the middle of the responses confuses rxe.
    pub(super) fn read(&mut self, common: &Common, cx: &mut Context, packet: &RocePacket<'_>) -> Result<(), Refusal> {
        // compliance.md [RC-RSP-OPCODE-ORDER]: FIRST, MIDDLE and LAST must form a message without interruption.
        let (Message::None, Some(reth)) = (self.message, packet.reth()) else {
            return Err(Refusal::invalid(QpErrorCause::OpcodeSequence));
        };
        self.require(Access::REMOTE_READ)?;
        // compliance.md [RC-RSP-READ-DEPTH]: More READs and atomics outstanding than the queue pair holds are an
        // invalid request, after the accepted ones have been answered.
        if !self.resources.has_room() {
            return Err(Refusal::invalid(QpErrorCause::ReadDepth));
        }
        let (rkey, va, len) = (reth.rkey(), reth.va(), reth.dma_len());
        if !packet.payload().is_empty() || packet.pad() != 0 || len > MAX_MESSAGE {
            return Err(Refusal::invalid(QpErrorCause::Length));
        }
        // compliance.md [RC-RSP-READ-WHOLE]: The whole range of a READ is checked before its first response.
        check_remote(cx, common, rkey, va, len, Access::REMOTE_READ)?;
        self.message_done();
        let first = self.expected;
        // compliance.md [RC-RSP-READ-PSNS]: The responses to a READ take consecutive PSNs from its own, one for each
        // path MTU begun, one for a READ of no bytes.
        let packets = packets_of(len, common.mtu);
        self.resources.push(Resource {
            first,
            packets,
            msn: self.msn,
            kind: Kind::Read { rkey, va, len },
            begun: cx.now,
            reply: Some(Reply { from: first, next: first, va, left: len, replay: false }),
        });
        self.expected = first.add(packets);
        Ok(())
    }

    /// Handles a duplicate READ request: repeats the responses from its PSN on, with the current data. False when the
    /// READ is unknown or the request is not part of it.
    pub(super) fn read_again(&mut self, common: &Common, cx: &Context, packet: &RocePacket<'_>, psn: Seq) -> bool {
        let Some(reth) = packet.reth() else { return false };
        let Some((index, resource)) = self.resources.find(psn) else { return false };
        let Kind::Read { rkey, va, len } = resource.kind else { return false };
        // IBTA: a repeated READ may be for the rest of the original, from some PSN on.
        // compliance.md [RC-RSP-DUP-READ]: A duplicate READ is answered again from its own PSN, with the current bytes.
        let left = reth.dma_len();
        let skipped = reth.va().wrapping_sub(va);
        let inside = left == 0 && len == 0
            || reth.rkey() == rkey && skipped <= u64::from(len) && u64::from(left) <= u64::from(len) - skipped;
        let packets_left = resource.end().since(psn);
        // compliance.md [RC-RSP-DUP-READ-BOUNDS]: A repeated READ that is not part of the original, or that was fully
        // answered and whose memory was deregistered, is dropped, and the connection continues.
        if !inside || u64::from(packets_of(left, common.mtu)) > packets_left {
            return false;
        }
        let replay = resource.is_answered();
        // compliance.md [RC-RSP-DUP-READ-BOUNDS]: A repeated READ that is not part of the original, or that was fully
        // answered and whose memory was deregistered, is dropped, and the connection continues.
        if replay && check_remote(cx, common, rkey, reth.va(), left, Access::REMOTE_READ).is_err() {
            // No reason to end the connection: it may be a late copy of a READ answered long ago. One that was never
            // fully answered ends with a NAK when its response is due.
            return false;
        }
        self.resources.reply_again(index, Reply { from: psn, next: psn, va: reth.va(), left, replay });
        cx.stats.read_replays.inc();
        true
    }
}
