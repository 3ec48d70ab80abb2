//! Checks that several kinds of requests share.

use crate::mem::{Access, Part};
use crate::transport::common::Common;
use crate::transport::context::Context;
use crate::wire::{Position, RocePacket};

use super::Refusal;

/// The part of its message that a packet at `position` has.
#[inline(always)]
pub(super) fn part_at(position: Position) -> Part {
    Part { is_first: position.is_start(), is_last: position.is_end() }
}

/// Whether a packet's payload and pad have a valid length for its position in the message.
#[inline(always)]
pub(super) fn payload_fits(packet: &RocePacket<'_>, mtu: u32) -> bool {
    let len = packet.payload().len();
    let mtu = mtu as usize;
    let position = packet.info().position;
    // compliance.md [RC-RSP-LENGTH]: FIRST and MIDDLE carry one path MTU, LAST 1 byte to one path MTU, ONLY 0 bytes to
    // one, with the matching pad.
    let length_ok = if position.is_end() { len <= mtu && (len > 0 || position.is_start()) } else { len == mtu };
    length_ok && packet.pad() == len.wrapping_neg() & 3
}

/// Checks key, protection domain, rights and range of a remote operation; zero bytes need neither key nor address.
#[inline]
pub(super) fn check_remote(
    cx: &Context,
    common: &Common,
    rkey: u32,
    va: u64,
    len: u32,
    need: Access,
) -> Result<(), Refusal> {
    // compliance.md [RC-RSP-ZERO-LENGTH]: A READ or WRITE of no bytes checks neither key nor address.
    if len == 0 {
        return Ok(());
    }
    // compliance.md [RC-RSP-RKEY]: An unknown key, another protection domain, a missing right or a range outside the
    // region is a remote access error.
    let checked = cx.keys.check_remote(rkey, common.pd, common.qpn.get(), va, u64::from(len), need);
    checked.map(|_| ()).map_err(|_| Refusal::access())
}
