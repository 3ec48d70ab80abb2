//! Base transport header: the first 12 bytes of every RoCE packet.

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::bytes::U24;
use super::{BthOpcode, Psn};

/// Length of the BTH in bytes.
pub const BTH_LEN: usize = 12;

/// The P_Key of the default partition with full membership; the only one used on RoCE.
pub const DEFAULT_PKEY: u16 = 0xFFFF;

mod flag {
    pub const SE: u8 = 0x80;
    pub const MIG_REQ: u8 = 0x40;
    pub const FECN: u8 = 0x80;
    pub const BECN: u8 = 0x40;
    pub const ACK_REQ: u8 = 0x80;
}

/// Base transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    flags: u8,
    pkey: U16,
    congestion: u8,
    dest_qp: U24,
    ack: u8,
    psn: U24,
}

impl Bth {
    /// A header with the given fields; the flags that only setters reach are clear.
    #[inline]
    pub fn new(fields: BthFields, pad: usize) -> Bth {
        Bth {
            opcode: fields.opcode.byte(),
            flags: if fields.solicited { flag::SE } else { 0 } | (pad as u8 & 3) << 4,
            pkey: U16::new(fields.pkey),
            congestion: 0,
            dest_qp: U24::new(fields.dest_qp),
            ack: if fields.ack_req { flag::ACK_REQ } else { 0 },
            psn: U24::new(fields.psn.get()),
        }
    }

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
        self.congestion & flag::FECN != 0
    }

    /// Backward explicit congestion notification.
    #[inline]
    pub const fn becn(&self) -> bool {
        self.congestion & flag::BECN != 0
    }

    /// Destination queue pair number.
    #[inline]
    pub const fn dest_qp(&self) -> u32 {
        self.dest_qp.get()
    }

    /// The sender asks for an acknowledgement.
    #[inline]
    pub const fn ack_req(&self) -> bool {
        self.ack & flag::ACK_REQ != 0
    }

    /// Packet sequence number.
    #[inline]
    pub const fn psn(&self) -> Psn {
        Psn::new(self.psn.get())
    }

    /// Sets the migration request bit.
    #[inline]
    pub fn set_migreq(&mut self, on: bool) {
        self.flags = self.flags & !flag::MIG_REQ | if on { flag::MIG_REQ } else { 0 };
    }

    /// Sets the congestion bits.
    #[inline]
    pub fn set_congestion(&mut self, fecn: bool, becn: bool) {
        self.congestion = self.congestion & !(flag::FECN | flag::BECN)
            | if fecn { flag::FECN } else { 0 }
            | if becn { flag::BECN } else { 0 };
    }
}

/// What a sender says in the BTH. The pad count follows from the payload length; FECN, BECN and MigReq are clear
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
    /// Ask for an acknowledgement.
    pub ack_req: bool,
    /// Partition key, [`DEFAULT_PKEY`] on RoCE.
    pub pkey: u16,
}
