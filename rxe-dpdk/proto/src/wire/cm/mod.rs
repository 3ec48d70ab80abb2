//! Connection manager messages as owned values.
//!
//! Every field that the messages define is kept, reserved ones and unknown values too, so that what was parsed is
//! written again byte for byte. Sizes are fixed and there is no length field for private data: a receiver always sees
//! all of it.

mod addressing;
mod lap;
mod reject;
mod rep;
mod req;
mod sidr;
mod small;
mod words;

use std::fmt;

pub use addressing::{IP_ADDRESSING_LEN, IpAddressing, PortSpace, ServiceId};
pub use lap::{Apr, Lap};
pub use reject::{Rej, RejReason};
pub use rep::Rep;
pub use req::{CmPath, CmTransport, Req};
pub use sidr::{SidrRep, SidrReq, SidrStatus};
pub use small::{Answered, Drep, Dreq, Mra, Rtu};

use super::mad::{MAD_DATA_LEN, MAD_LEN, MadError, MadHeader, attribute};

/// A message of the connection manager.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // each variant is its message, documented there
pub enum CmMessage {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    Lap(Lap),
    Apr(Apr),
}

impl CmMessage {
    /// The header and message of a MAD.
    ///
    /// # Errors
    /// When the MAD is not 256 bytes long, of another version, class or method, or of an unknown attribute.
    pub fn parse(mad: &[u8]) -> Result<(MadHeader, CmMessage), MadError> {
        let (header, data) = MadHeader::parse(mad)?;
        header.check_cm()?;
        let message = match header.attribute_id {
            attribute::REQ => CmMessage::Req(Req::parse(data)),
            attribute::MRA => CmMessage::Mra(Mra::parse(data)),
            attribute::REJ => CmMessage::Rej(Rej::parse(data)),
            attribute::REP => CmMessage::Rep(Rep::parse(data)),
            attribute::RTU => CmMessage::Rtu(Rtu::parse(data)),
            attribute::DREQ => CmMessage::Dreq(Dreq::parse(data)),
            attribute::DREP => CmMessage::Drep(Drep::parse(data)),
            attribute::SIDR_REQ => CmMessage::SidrReq(SidrReq::parse(data)),
            attribute::SIDR_REP => CmMessage::SidrRep(SidrRep::parse(data)),
            attribute::LAP => CmMessage::Lap(Lap::parse(data)),
            attribute::APR => CmMessage::Apr(Apr::parse(data)),
            other => return Err(MadError::Attribute(other)),
        };
        Ok((header, message))
    }

    /// Writes a MAD with the usual header.
    pub fn emit(&self, transaction_id: u64, mad: &mut [u8; MAD_LEN]) {
        self.emit_with(&MadHeader::cm(self.attribute_id(), transaction_id), mad);
    }

    /// Writes a MAD with a header of the caller's; only its attribute id is replaced by the message's own.
    pub fn emit_with(&self, header: &MadHeader, mad: &mut [u8; MAD_LEN]) {
        let data = MadHeader { attribute_id: self.attribute_id(), ..*header }.emit(mad);
        match self {
            CmMessage::Req(m) => m.emit(data),
            CmMessage::Mra(m) => m.emit(data),
            CmMessage::Rej(m) => m.emit(data),
            CmMessage::Rep(m) => m.emit(data),
            CmMessage::Rtu(m) => m.emit(data),
            CmMessage::Dreq(m) => m.emit(data),
            CmMessage::Drep(m) => m.emit(data),
            CmMessage::SidrReq(m) => m.emit(data),
            CmMessage::SidrRep(m) => m.emit(data),
            CmMessage::Lap(m) => m.emit(data),
            CmMessage::Apr(m) => m.emit(data),
        }
    }

    /// The attribute id of the message.
    pub const fn attribute_id(&self) -> u16 {
        match self {
            CmMessage::Req(_) => attribute::REQ,
            CmMessage::Mra(_) => attribute::MRA,
            CmMessage::Rej(_) => attribute::REJ,
            CmMessage::Rep(_) => attribute::REP,
            CmMessage::Rtu(_) => attribute::RTU,
            CmMessage::Dreq(_) => attribute::DREQ,
            CmMessage::Drep(_) => attribute::DREP,
            CmMessage::SidrReq(_) => attribute::SIDR_REQ,
            CmMessage::SidrRep(_) => attribute::SIDR_REP,
            CmMessage::Lap(_) => attribute::LAP,
            CmMessage::Apr(_) => attribute::APR,
        }
    }

    /// The short name of the message.
    pub const fn name(&self) -> &'static str {
        match self {
            CmMessage::Req(_) => "REQ",
            CmMessage::Mra(_) => "MRA",
            CmMessage::Rej(_) => "REJ",
            CmMessage::Rep(_) => "REP",
            CmMessage::Rtu(_) => "RTU",
            CmMessage::Dreq(_) => "DREQ",
            CmMessage::Drep(_) => "DREP",
            CmMessage::SidrReq(_) => "SIDR_REQ",
            CmMessage::SidrRep(_) => "SIDR_REP",
            CmMessage::Lap(_) => "LAP",
            CmMessage::Apr(_) => "APR",
        }
    }

    /// The communication ids of sender and receiver. A REQ has no receiver's id and SIDR messages have neither; those
    /// are 0 here.
    pub const fn comm_ids(&self) -> (u32, u32) {
        match self {
            CmMessage::Req(m) => (m.local_comm_id, 0),
            CmMessage::Mra(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rej(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rep(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Rtu(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Dreq(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Drep(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Lap(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::Apr(m) => (m.local_comm_id, m.remote_comm_id),
            CmMessage::SidrReq(_) | CmMessage::SidrRep(_) => (0, 0),
        }
    }
}

/// One line with the fields that tell messages apart; `Debug` has them all.
impl fmt::Display for CmMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            CmMessage::SidrReq(m) => return write!(f, " request {:#010x} service {}", m.request_id, m.service_id),
            CmMessage::SidrRep(m) => {
                return write!(f, " request {:#010x} status {} qpn {:#x}", m.request_id, m.status, m.qpn);
            }
            _ => {}
        }
        let (local, remote) = self.comm_ids();
        write!(f, " local {local:#010x} remote {remote:#010x}")?;
        match self {
            CmMessage::Req(m) => write!(f, " service {} qpn {:#x} psn {}", m.service_id, m.local_qpn, m.starting_psn),
            CmMessage::Rep(m) => write!(f, " qpn {:#x} psn {}", m.local_qpn, m.starting_psn),
            CmMessage::Mra(m) => write!(f, " of {:?} timeout {}", m.answered, m.service_timeout),
            CmMessage::Rej(m) => write!(f, " of {:?} reason {}", m.answered, m.reason),
            CmMessage::Dreq(m) => write!(f, " qpn {:#x}", m.remote_qpn),
            CmMessage::Lap(m) => write!(f, " qpn {:#x}", m.remote_qpn),
            CmMessage::Apr(m) => write!(f, " status {}", m.status),
            _ => Ok(()),
        }
    }
}

/// Private data of a fixed size: `data` and zeros behind it, or `None` when `data` is too long.
pub fn private_data<const N: usize>(data: &[u8]) -> Option<[u8; N]> {
    let mut out = [0; N];
    out.get_mut(..data.len())?.copy_from_slice(data);
    Some(out)
}

/// The body of a message.
type Data = [u8; MAD_DATA_LEN];

/// Gives messages a default: all fields zero, as they are parsed from zeros.
macro_rules! zero_default {
    ($($name:ident),*) => {
        $(impl Default for $name {
            /// All fields zero.
            fn default() -> $name {
                $name::parse(&[0; $crate::wire::mad::MAD_DATA_LEN])
            }
        })*
    };
}
use zero_default;
