//! REJ: refuses a connection, and why.

use super::{Answered, Data, zero_default};
use crate::wire::bytes::{Reader, Writer};

macro_rules! reasons {
    ($($(#[$meta:meta])* $name:ident = $code:literal,)*) => {
        /// Why a connection was refused.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum RejReason {
            $($(#[$meta])* $name,)*
            /// A code that is not defined.
            Unknown(u16),
        }

        impl RejReason {
            /// The meaning of a code.
            pub const fn from_code(code: u16) -> RejReason {
                match code {
                    $($code => RejReason::$name,)*
                    other => RejReason::Unknown(other),
                }
            }

            /// The code on the wire.
            pub const fn code(self) -> u16 {
                match self {
                    $(RejReason::$name => $code,)*
                    RejReason::Unknown(code) => code,
                }
            }
        }
    };
}

reasons! {
    /// No queue pair available.
    NoQp = 1,
    /// No end-to-end context available.
    NoEec = 2,
    /// No resources available.
    NoResources = 3,
    /// The sender gave up waiting. ARI: its CA GUID.
    Timeout = 4,
    /// Unsupported request.
    UnsupportedRequest = 5,
    /// Invalid communication id.
    InvalidCommId = 6,
    /// Invalid communication instance.
    InvalidCommInstance = 7,
    /// Nobody listens on the service id.
    InvalidServiceId = 8,
    /// Transport not available there.
    InvalidTransportType = 9,
    /// The queue pair is still in use by an older connection.
    StaleConnection = 10,
    /// RD connection does not exist.
    RdcDoesNotExist = 11,
    /// Primary remote GID not ours. ARI: a GID that is.
    InvalidGid = 12,
    /// Primary remote LID not ours. ARI: a LID that is.
    InvalidLid = 13,
    /// Primary service level not supported.
    InvalidSl = 14,
    /// Primary traffic class not supported.
    InvalidTrafficClass = 15,
    /// Primary hop limit not supported.
    InvalidHopLimit = 16,
    /// Primary packet rate not supported.
    InvalidPacketRate = 17,
    /// Alternate remote GID not ours. ARI: a GID that is.
    InvalidAlternateGid = 18,
    /// Alternate remote LID not ours.
    InvalidAlternateLid = 19,
    /// Alternate service level not supported.
    InvalidAlternateSl = 20,
    /// Alternate traffic class not supported.
    InvalidAlternateTrafficClass = 21,
    /// Alternate hop limit not supported.
    InvalidAlternateHopLimit = 22,
    /// Alternate packet rate not supported.
    InvalidAlternatePacketRate = 23,
    /// Connect to another port and connection manager. ARI: which.
    PortAndCmRedirect = 24,
    /// Connect to another port. ARI: which.
    PortRedirect = 25,
    /// Path MTU not supported. ARI: the largest that is, one byte.
    InvalidMtu = 26,
    /// Not enough responder resources.
    InsufficientResponderResources = 27,
    /// The upper layer refused. Its own reason is in the private data.
    ConsumerDefined = 28,
    /// Receiver-not-ready retry count not supported.
    InvalidRnrRetry = 29,
    /// The communication id is in use by another connection of the same peer.
    DuplicateLocalCommId = 30,
    /// Class version not supported. ARI: the highest that is.
    InvalidClassVersion = 31,
    /// Primary flow label not supported.
    InvalidFlowLabel = 32,
    /// Alternate flow label not supported.
    InvalidAlternateFlowLabel = 33,
    /// Vendor option (enhanced connection) not supported.
    VendorOptionNotSupported = 35,
}

/// ConnectReject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rej {
    /// The sender's communication id; 0 when it has none for this connection.
    pub local_comm_id: u32,
    /// The receiver's communication id; 0 when the sender does not know it.
    pub remote_comm_id: u32,
    /// The refused message.
    pub answered: Answered,
    /// Reserved bits beside it (6 bits).
    pub reserved_8: u8,
    /// Number of valid bytes of the additional information (7 bits).
    pub ari_len: u8,
    /// Reserved bit beside it.
    pub reserved_9: bool,
    /// Why.
    pub reason: RejReason,
    /// Additional reject information, by reason.
    pub ari: [u8; Rej::ARI_LEN],
    /// Private data.
    pub private_data: [u8; Rej::PRIVATE_DATA_LEN],
}

zero_default!(Rej);

impl Rej {
    /// Length of the field for additional information.
    pub const ARI_LEN: usize = 72;
    /// Length of the private data.
    pub const PRIVATE_DATA_LEN: usize = 148;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> Rej {
        let mut r = Reader::new(data);
        let (local_comm_id, remote_comm_id, byte_8, byte_9) = (r.u32(), r.u32(), r.u8(), r.u8());
        Rej {
            local_comm_id,
            remote_comm_id,
            answered: Answered::from_bits(byte_8 >> 6),
            reserved_8: byte_8 & 0x3F,
            ari_len: byte_9 >> 1,
            reserved_9: byte_9 & 1 != 0,
            reason: RejReason::from_code(r.u16()),
            ari: r.array(),
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let mut w = Writer::new(data);
        w.u32(self.local_comm_id);
        w.u32(self.remote_comm_id);
        w.u8((self.answered as u8) << 6 | self.reserved_8 & 0x3F);
        w.u8(self.ari_len << 1 | u8::from(self.reserved_9));
        w.u16(self.reason.code());
        w.bytes(&self.ari);
        w.bytes(&self.private_data);
    }

    /// The additional information that counts.
    pub fn ari(&self) -> &[u8] {
        self.ari.get(..usize::from(self.ari_len)).unwrap_or(&self.ari)
    }

    /// Fills the additional information; `false`, and nothing done, when `ari` is longer than 72 bytes.
    pub fn set_ari(&mut self, ari: &[u8]) -> bool {
        match super::private_data(ari) {
            Some(field) => {
                self.ari = field;
                self.ari_len = ari.len() as u8;
                true
            }
            None => false,
        }
    }
}
