//! Management datagrams (MADs): 256 bytes, sent to queue pair 1.

use super::DropReason;
use super::bytes::{Reader, Writer};

/// Length of a MAD in bytes; fixed.
pub const MAD_LEN: usize = 256;
/// Length of the header that all MADs share.
pub const MAD_HEADER_LEN: usize = 24;
/// Length of the body after the header, in bytes.
pub const MAD_DATA_LEN: usize = MAD_LEN - MAD_HEADER_LEN;

/// The only base version.
pub const BASE_VERSION: u8 = 1;
/// Management class of the connection manager.
pub const CLASS_CM: u8 = 0x07;
/// The connection manager's class version.
pub const CM_CLASS_VERSION: u8 = 2;
/// Method "Send", which all connection manager messages use, answers included.
pub const METHOD_SEND: u8 = 0x03;

/// The Q_Key of queue pair 1.
pub const GSI_QKEY: u32 = 0x8001_0000;
/// The Q_Key of all datagram queue pairs of the IP-based connection manager.
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// Attribute ids of the connection manager's messages.
pub mod attribute {
    /// ConnectRequest.
    pub const REQ: u16 = 0x0010;
    /// MessageReceiptAcknowledgement.
    pub const MRA: u16 = 0x0011;
    /// ConnectReject.
    pub const REJ: u16 = 0x0012;
    /// ConnectReply.
    pub const REP: u16 = 0x0013;
    /// ReadyToUse.
    pub const RTU: u16 = 0x0014;
    /// DisconnectRequest.
    pub const DREQ: u16 = 0x0015;
    /// DisconnectReply.
    pub const DREP: u16 = 0x0016;
    /// ServiceIDResolutionRequest.
    pub const SIDR_REQ: u16 = 0x0017;
    /// ServiceIDResolutionResponse.
    pub const SIDR_REP: u16 = 0x0018;
    /// LoadAlternatePath.
    pub const LAP: u16 = 0x0019;
    /// AlternatePathResponse.
    pub const APR: u16 = 0x001A;
}

/// The header of a MAD. Every field is kept, so that parsing and writing is lossless.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MadHeader {
    /// [`BASE_VERSION`].
    pub base_version: u8,
    /// Management class, [`CLASS_CM`] here.
    pub class: u8,
    /// Version of the class, [`CM_CLASS_VERSION`] here.
    pub class_version: u8,
    /// Method, [`METHOD_SEND`] here.
    pub method: u8,
    /// Status, 0 in connection manager messages.
    pub status: u16,
    /// Class specific, 0 in connection manager messages.
    pub class_specific: u16,
    /// Chosen by the initiator of an exchange, echoed in all its messages.
    pub transaction_id: u64,
    /// Message type, one of [`attribute`].
    pub attribute_id: u16,
    /// Reserved, 0.
    pub reserved: u16,
    /// Attribute modifier: 0, or enhanced connection options of some adapters.
    pub attribute_modifier: u32,
}

/// Why a MAD is not a valid connection manager message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MadError {
    /// Not 256 bytes.
    #[error("a MAD of {0} bytes")]
    Length(usize),
    /// Unknown base version, or class version of the connection manager.
    #[error("MAD version {base}, class version {class}")]
    Version {
        /// Base version.
        base: u8,
        /// Class version.
        class: u8,
    },
    /// Another management class.
    #[error("management class {0:#04x}")]
    Class(u8),
    /// A method other than Send.
    #[error("MAD method {0:#04x}")]
    Method(u8),
    /// No such message.
    #[error("MAD attribute {0:#06x}")]
    Attribute(u16),
}

impl From<MadError> for DropReason {
    fn from(error: MadError) -> DropReason {
        match error {
            MadError::Length(_) | MadError::Version { .. } => DropReason::MadMalformed,
            MadError::Class(_) | MadError::Method(_) | MadError::Attribute(_) => DropReason::MadUnsupported,
        }
    }
}

impl MadHeader {
    /// The header of a connection manager message.
    pub fn cm(attribute_id: u16, transaction_id: u64) -> MadHeader {
        MadHeader {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: CM_CLASS_VERSION,
            method: METHOD_SEND,
            transaction_id,
            attribute_id,
            ..MadHeader::default()
        }
    }

    /// The header of a MAD and the 232 bytes behind it. Any class, method and version passes.
    ///
    /// # Errors
    /// [`MadError::Length`].
    pub fn parse(mad: &[u8]) -> Result<(MadHeader, &[u8; MAD_DATA_LEN]), MadError> {
        let mad: &[u8; MAD_LEN] = mad.try_into().map_err(|_| MadError::Length(mad.len()))?;
        let data = mad.last_chunk::<MAD_DATA_LEN>().ok_or(MadError::Length(mad.len()))?;
        let mut r = Reader::new(mad);
        let header = MadHeader {
            base_version: r.u8(),
            class: r.u8(),
            class_version: r.u8(),
            method: r.u8(),
            status: r.u16(),
            class_specific: r.u16(),
            transaction_id: r.u64(),
            attribute_id: r.u16(),
            reserved: r.u16(),
            attribute_modifier: r.u32(),
        };
        Ok((header, data))
    }

    /// Writes the header to the front of `mad` and returns the 232 bytes behind it.
    pub fn emit<'b>(&self, mad: &'b mut [u8; MAD_LEN]) -> &'b mut [u8] {
        let (front, data) = mad.split_at_mut(MAD_HEADER_LEN);
        let mut w = Writer::new(front);
        w.u8(self.base_version);
        w.u8(self.class);
        w.u8(self.class_version);
        w.u8(self.method);
        w.u16(self.status);
        w.u16(self.class_specific);
        w.u64(self.transaction_id);
        w.u16(self.attribute_id);
        w.u16(self.reserved);
        w.u32(self.attribute_modifier);
        data
    }

    /// Whether this is the header of a connection manager message of the supported version.
    ///
    /// # Errors
    /// The first invalid field. The attribute id is not checked.
    pub fn check_cm(&self) -> Result<(), MadError> {
        if self.base_version != BASE_VERSION {
            return Err(MadError::Version { base: self.base_version, class: self.class_version });
        }
        if self.class != CLASS_CM {
            return Err(MadError::Class(self.class));
        }
        if self.class_version != CM_CLASS_VERSION {
            return Err(MadError::Version { base: self.base_version, class: self.class_version });
        }
        if self.method != METHOD_SEND {
            return Err(MadError::Method(self.method));
        }
        Ok(())
    }
}
