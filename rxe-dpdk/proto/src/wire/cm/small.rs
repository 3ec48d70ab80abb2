//! RTU, MRA, DREQ and DREP.

use super::{Data, zero_default};
use crate::wire::bytes::{Reader, Writer};

/// The message that an MRA or a REJ answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Answered {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// In an MRA a LAP, in a REJ no message in particular.
    Other = 2,
    /// Not defined.
    Reserved = 3,
}

impl Answered {
    pub(super) const fn from_bits(bits: u8) -> Answered {
        match bits & 3 {
            0 => Answered::Req,
            1 => Answered::Rep,
            2 => Answered::Other,
            _ => Answered::Reserved,
        }
    }
}

macro_rules! ids_and_private_data {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name {
            /// The sender's communication id.
            pub local_comm_id: u32,
            /// The receiver's communication id.
            pub remote_comm_id: u32,
            /// Private data.
            pub private_data: [u8; $name::PRIVATE_DATA_LEN],
        }

        zero_default!($name);

        impl $name {
            /// Length of the private data.
            pub const PRIVATE_DATA_LEN: usize = 224;

            /// Reads the body of a MAD.
            pub fn parse(data: &Data) -> $name {
                let mut r = Reader::new(data);
                $name { local_comm_id: r.u32(), remote_comm_id: r.u32(), private_data: r.array() }
            }

            /// Writes the body of a MAD (232 bytes).
            pub fn emit(&self, data: &mut [u8]) {
                let mut w = Writer::new(data);
                w.u32(self.local_comm_id);
                w.u32(self.remote_comm_id);
                w.bytes(&self.private_data);
            }
        }
    };
}

ids_and_private_data! {
    /// ReadyToUse: the last message of the handshake.
    Rtu
}

ids_and_private_data! {
    /// DisconnectReply.
    Drep
}

/// DisconnectRequest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The *receiver's* queue pair (24 bits).
    pub remote_qpn: u32,
    /// Reserved byte 11.
    pub reserved_11: u8,
    /// Private data.
    pub private_data: [u8; Dreq::PRIVATE_DATA_LEN],
}

zero_default!(Dreq);

impl Dreq {
    /// Length of the private data.
    pub const PRIVATE_DATA_LEN: usize = 220;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> Dreq {
        let mut r = Reader::new(data);
        Dreq {
            local_comm_id: r.u32(),
            remote_comm_id: r.u32(),
            remote_qpn: r.u24(),
            reserved_11: r.u8(),
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let mut w = Writer::new(data);
        w.u32(self.local_comm_id);
        w.u32(self.remote_comm_id);
        w.u24(self.remote_qpn);
        w.u8(self.reserved_11);
        w.bytes(&self.private_data);
    }
}

/// MessageReceiptAcknowledgement: extends the time for an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mra {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// The message that arrived.
    pub answered: Answered,
    /// Reserved bits beside it (6 bits).
    pub reserved_8: u8,
    /// Service timeout, the time for the answer: 4.096 us * 2^n (5 bits).
    pub service_timeout: u8,
    /// Reserved bits beside it (3 bits).
    pub reserved_9: u8,
    /// Private data.
    pub private_data: [u8; Mra::PRIVATE_DATA_LEN],
}

zero_default!(Mra);

impl Mra {
    /// Length of the private data.
    pub const PRIVATE_DATA_LEN: usize = 222;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> Mra {
        let mut r = Reader::new(data);
        let (local_comm_id, remote_comm_id, byte_8, byte_9) = (r.u32(), r.u32(), r.u8(), r.u8());
        Mra {
            local_comm_id,
            remote_comm_id,
            answered: Answered::from_bits(byte_8 >> 6),
            reserved_8: byte_8 & 0x3F,
            service_timeout: byte_9 >> 3,
            reserved_9: byte_9 & 7,
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let mut w = Writer::new(data);
        w.u32(self.local_comm_id);
        w.u32(self.remote_comm_id);
        w.u8((self.answered as u8) << 6 | self.reserved_8 & 0x3F);
        w.u8(self.service_timeout << 3 | self.reserved_9 & 7);
        w.bytes(&self.private_data);
    }
}
