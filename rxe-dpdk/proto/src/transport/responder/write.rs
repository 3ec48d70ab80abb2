//! RDMA WRITE, also with immediate data.

use crate::mem::Access;
use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::transport::{Operation, QpErrorCause, WcOpcode};
use crate::wire::RocePacket;

use super::{Message, Refusal, Responder, part_at, payload_fits};

/// The longest message, in bytes.
pub(super) const MAX_MESSAGE: u32 = 1 << 31;

impl Responder {
    #[inline(always)]
    pub(super) fn write(&mut self, common: &Common, cx: &mut Context, packet: &RocePacket<'_>) -> Result<(), Refusal> {
        let info = packet.info();
        // compliance.md [RC-RSP-OPCODE-ORDER]: FIRST, MIDDLE and LAST must form a message without interruption.
        let (rkey, va, left, total) = match (self.message, packet.reth()) {
            (Message::None, Some(reth)) => (reth.rkey(), reth.va(), reth.dma_len(), reth.dma_len()),
            (Message::Write { rkey, va, left, total }, None) => (rkey, va, left, total),
            _ => return Err(Refusal::invalid(QpErrorCause::OpcodeSequence)),
        };
        self.require(Access::REMOTE_WRITE)?;
        // compliance.md [RC-RSP-WRITE-IMM]: A WRITE with immediate takes its receive with the last packet, a WRITE
        // without takes none.
        if info.takes_receive && !self.has_receive(common, cx) {
            return Err(Refusal::NotReady);
        }
        let payload = packet.payload();
        let len = payload.len() as u32;
        // Every packet but the last leaves bytes for the last; the last completes the announced length.
        // compliance.md [RC-RSP-WRITE-LENGTH]: A WRITE carries exactly the bytes that its RETH announces, at most 2^31.
        let length_ok = if info.position.is_end() { len == left } else { len < left };
        if !length_ok || left > MAX_MESSAGE || !payload_fits(packet, common.mtu) {
            return Err(Refusal::invalid(QpErrorCause::Length));
        }
        // The first packet checks the whole range, so that a bad WRITE changes nothing. Every packet checks its own
        // bytes again, as the region may have been deregistered since.
        // compliance.md [RC-RSP-RKEY-FIRST]: The whole range of a WRITE is checked with its first packet, before a byte
        // is written.
        // compliance.md [RC-RSP-WRITE-GONE]: Each packet of a WRITE is checked.
        let checked = if info.position.is_start() { left } else { len };
        // compliance.md [RC-RSP-ZERO-LENGTH]: A READ or WRITE of no bytes checks neither key nor address.
        if checked > 0 {
            let qpn = common.qpn.get();
            let span = cx.keys.check_remote(rkey, common.pd, qpn, va, u64::from(checked), Access::REMOTE_WRITE);
            let written = span.map_err(|_| Refusal::access())?.write_part(payload, || part_at(info.position));
            written.map_err(|_| Refusal::access())?;
        }
        if !info.position.is_end() {
            self.message = Message::Write { rkey, va: va.wrapping_add(u64::from(len)), left: left - len, total };
            self.executed(common, cx, packet, None);
            return Ok(());
        }
        self.message = Message::None;
        self.message_done();
        self.executed(common, cx, packet, Some(Operation::Write));
        if info.completes_receive {
            self.complete_receive(common, cx, packet, WcOpcode::RecvRdmaWithImm, total)?;
        }
        Ok(())
    }
}
