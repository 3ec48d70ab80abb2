//! Base transport header: the first 12 bytes of every RoCE packet.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BthOpcode, Psn};

/// The P_Key of the default partition with full membership; the only one used on RoCE.
pub const DEFAULT_PKEY: u16 = 0xFFFF;

/// The bit of a P_Key that is set for full members of a partition. Limited members may not talk to each other.
pub const PKEY_FULL_MEMBER: u16 = 0x8000;

mod flag {
    pub const SE: u8 = 0x80;
    pub const MIG_REQ: u8 = 0x40;
    pub const FECN: u32 = 0x8000_0000;
    pub const BECN: u32 = 0x4000_0000;
    pub const ACK_REQ: u32 = 0x8000_0000;
}

/// The bits of a number of 24 bits.
const LOW_24: u32 = 0xFF_FFFF;

/// Base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    flags: u8,
    pkey: U16,
    /// The congestion bits (8), then the destination queue pair (24).
    dest_qp: U32,
    /// The acknowledgement bit (8), then the PSN (24).
    psn: U32,
}

impl Bth {
    /// The raw opcode byte; [`BthOpcode::from_byte`] tells its meaning.
    #[inline]
    pub const fn opcode_byte(&self) -> u8 {
        self.opcode
    }

    /// Solicited event.
    #[inline]
    pub const fn se(&self) -> bool {
        self.flags & flag::SE != 0
    }

    /// Migration request bit: hardware sets it, software does not; no meaning without path migration.
    #[inline]
    pub const fn migreq(&self) -> bool {
        self.flags & flag::MIG_REQ != 0
    }

    /// Pad bytes between payload and ICRC, 0 to 3.
    #[inline]
    pub const fn pad(&self) -> usize {
        (self.flags >> 4 & 3) as usize
    }

    /// Transport header version; only 0 exists.
    #[inline]
    pub const fn tver(&self) -> u8 {
        self.flags & 0x0F
    }

    /// Partition key.
    #[inline]
    pub fn pkey(&self) -> u16 {
        self.pkey.get()
    }

    /// Forward explicit congestion notification.
    #[inline]
    pub const fn fecn(&self) -> bool {
        self.dest_qp.get() & flag::FECN != 0
    }

    /// Backward explicit congestion notification.
    #[inline]
    pub const fn becn(&self) -> bool {
        self.dest_qp.get() & flag::BECN != 0
    }

    /// Destination queue pair number.
    #[inline]
    pub const fn dest_qp(&self) -> u32 {
        self.dest_qp.get() & LOW_24
    }

    /// AckReq: the sender requests an acknowledgement.
    #[inline]
    pub const fn ack_req(&self) -> bool {
        self.psn.get() & flag::ACK_REQ != 0
    }

    /// Packet sequence number.
    #[inline]
    pub const fn psn(&self) -> Psn {
        Psn::new(self.psn.get())
    }

    /// Gives the header a version that does not exist: every receiver drops the packet silently.
    pub(super) fn set_void(&mut self) {
        self.flags |= 0x0F;
    }

    /// Sets the migration request bit.
    #[inline]
    pub fn set_migreq(&mut self, on: bool) {
        self.flags = self.flags & !flag::MIG_REQ | if on { flag::MIG_REQ } else { 0 };
    }

    /// Sets the congestion bits.
    #[inline]
    pub fn set_congestion(&mut self, fecn: bool, becn: bool) {
        let bits = if fecn { flag::FECN } else { 0 } | if becn { flag::BECN } else { 0 };
        self.dest_qp.set(self.dest_qp.get() & !(flag::FECN | flag::BECN) | bits);
    }
}

/// The BTH fields that a sender sets. The pad count follows from the payload length; FECN, BECN and MigReq are clear
/// unless set on the builder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BthFields {
    /// Transport and operation.
    pub opcode: BthOpcode,
    /// Destination queue pair number (low 24 bits).
    pub dest_qp: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// Solicited event.
    pub solicited: bool,
    /// AckReq: requests an acknowledgement.
    pub ack_req: bool,
    /// Partition key, [`DEFAULT_PKEY`] on RoCE.
    pub pkey: u16,
}

impl BthFields {
    /// The header, as its first eight bytes and its last four. Built as whole words: assembling smaller pieces and then
    /// copying them would stall on store forwarding.
    #[inline]
    pub fn to_words(self, pad: usize) -> ([u8; 8], [u8; 4]) {
        let flags = if self.solicited { flag::SE } else { 0 } | (pad as u8 & 3) << 4;
        let first = u64::from(self.opcode.byte()) << 56
            | u64::from(flags) << 48
            | u64::from(self.pkey) << 32
            | u64::from(self.dest_qp & LOW_24);
        let last = if self.ack_req { flag::ACK_REQ } else { 0 } | self.psn.get();
        (first.to_be_bytes(), last.to_be_bytes())
    }
}
