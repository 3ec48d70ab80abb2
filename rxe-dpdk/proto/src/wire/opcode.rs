//! The opcode byte of the BTH: three bits of transport, five of operation, and one table row for each pair we know.

use std::fmt;

use super::{aeth, atomic, deth, feth, imm, reth};

/// Length of the BTH in bytes.
pub const BTH_LEN: usize = 12;

/// The transport service, the top three bits of the opcode byte. RD and XRC are not supported: their opcodes are
/// unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// RoCEv2 congestion notification.
    Cnp = 4,
}

/// The operation, the low five bits of the opcode byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// First packet of a SEND of several.
    SendFirst = 0x00,
    /// Neither first nor last packet of a SEND.
    SendMiddle = 0x01,
    /// Last packet of a SEND of several.
    SendLast = 0x02,
    /// Last packet of a SEND of several, with immediate data.
    SendLastImm = 0x03,
    /// A SEND in one packet.
    SendOnly = 0x04,
    /// A SEND in one packet, with immediate data.
    SendOnlyImm = 0x05,
    /// First packet of an RDMA WRITE of several; carries the RETH of the whole.
    WriteFirst = 0x06,
    /// Neither first nor last packet of an RDMA WRITE.
    WriteMiddle = 0x07,
    /// Last packet of an RDMA WRITE of several.
    WriteLast = 0x08,
    /// Last packet of an RDMA WRITE of several, with immediate data.
    WriteLastImm = 0x09,
    /// An RDMA WRITE in one packet.
    WriteOnly = 0x0A,
    /// An RDMA WRITE in one packet, with immediate data.
    WriteOnlyImm = 0x0B,
    /// RDMA READ request.
    ReadRequest = 0x0C,
    /// First packet of a READ response of several.
    ReadResponseFirst = 0x0D,
    /// Neither first nor last packet of a READ response; the only response without an AETH.
    ReadResponseMiddle = 0x0E,
    /// Last packet of a READ response of several.
    ReadResponseLast = 0x0F,
    /// A READ response in one packet; also answers FLUSH and ATOMIC WRITE.
    ReadResponseOnly = 0x10,
    /// ACK or NAK: the AETH tells which.
    Acknowledge = 0x11,
    /// The answer to an atomic: the value that was there before.
    AtomicAcknowledge = 0x12,
    /// Atomic compare-and-swap of 8 bytes.
    CompareSwap = 0x13,
    /// Atomic fetch-and-add of 8 bytes.
    FetchAdd = 0x14,
    /// Last packet of a SEND of several that invalidates a key at the receiver.
    SendLastInvalidate = 0x16,
    /// A SEND in one packet that invalidates a key at the receiver.
    SendOnlyInvalidate = 0x17,
    /// FLUSH of remote memory.
    Flush = 0x1C,
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite = 0x1D,
    /// Congestion notification packet. Its five bits are those of [`Opcode::SendMiddle`]; only the transport tells
    /// the two apart, so the discriminant has a sixth bit that never reaches the wire.
    CongestionNotification = 0x21,
}

impl Opcode {
    /// The five bits on the wire.
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8 & 0x1F
    }

    /// The extension headers of the operation, UD's own DETH aside.
    #[inline]
    const fn headers(self) -> Headers {
        use Opcode::*;
        match self {
            SendFirst | SendMiddle | SendLast | SendOnly | WriteMiddle | WriteLast | ReadResponseMiddle => {
                Headers::empty()
            }
            SendLastImm | SendOnlyImm | WriteLastImm => Headers::IMM,
            WriteFirst | WriteOnly | ReadRequest | AtomicWrite => Headers::RETH,
            WriteOnlyImm => Headers::RETH.union(Headers::IMM),
            ReadResponseFirst | ReadResponseLast | ReadResponseOnly | Acknowledge => Headers::AETH,
            AtomicAcknowledge => Headers::AETH.union(Headers::ATOMIC_ACK),
            CompareSwap | FetchAdd => Headers::ATOMIC,
            SendLastInvalidate | SendOnlyInvalidate => Headers::IETH,
            Flush => Headers::FETH.union(Headers::RETH),
            CongestionNotification => Headers::CNP,
        }
    }
}

bitflags::bitflags! {
    /// The headers between BTH and payload. Bit order is wire order.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Headers: u16 {
        /// Datagram extended transport header, 8 bytes.
        const DETH = 1;
        /// FLUSH extended transport header, 4 bytes.
        const FETH = 2;
        /// RDMA extended transport header, 16 bytes.
        const RETH = 4;
        /// Atomic extended transport header, 28 bytes.
        const ATOMIC = 8;
        /// ACK extended transport header, 4 bytes.
        const AETH = 16;
        /// Atomic ACK extended transport header, 8 bytes.
        const ATOMIC_ACK = 32;
        /// Immediate data, 4 bytes.
        const IMM = 64;
        /// Invalidate extended transport header, 4 bytes.
        const IETH = 128;
        /// The 16 reserved bytes of a congestion notification.
        const CNP = 256;
    }
}

impl Headers {
    /// Length in bytes of each header, by bit.
    const LENS: [u8; 9] = [
        deth::DETH_LEN as u8,
        feth::FETH_LEN as u8,
        reth::RETH_LEN as u8,
        atomic::ATOMIC_ETH_LEN as u8,
        aeth::AETH_LEN as u8,
        atomic::ATOMIC_ACK_ETH_LEN as u8,
        imm::IMM_LEN as u8,
        imm::IETH_LEN as u8,
        CNP_RESERVED_LEN as u8,
    ];

    /// Length in bytes of every set of headers.
    const SUMS: [u8; 512] = {
        let mut sums = [0; 512];
        let mut set = 0;
        while set < sums.len() {
            let mut bit = 0;
            while bit < Headers::LENS.len() {
                if set >> bit & 1 != 0 {
                    sums[set] += Headers::LENS[bit];
                }
                bit += 1;
            }
            set += 1;
        }
        sums
    };

    /// Total length of these headers in bytes.
    #[inline]
    pub const fn byte_len(self) -> usize {
        Headers::SUMS[(self.bits() & 0x1FF) as usize] as usize
    }

    /// Offset after the BTH of the header `which` (one bit) in a packet with these headers.
    #[inline]
    pub const fn offset_of(self, which: Headers) -> usize {
        // compliance.md [PKT-EXT-ORDER]: Extension headers follow in the order of the standard.
        Headers::from_bits_truncate(self.bits() & which.bits().wrapping_sub(1)).byte_len()
    }
}

/// Reserved bytes of a congestion notification after its BTH.
pub const CNP_RESERVED_LEN: usize = 16;

/// The opcode byte: a transport and one of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BthOpcode {
    /// The transport service.
    pub transport: Transport,
    /// The operation.
    pub op: Opcode,
}

impl BthOpcode {
    /// Congestion notification, 0x81.
    pub const CNP: BthOpcode = BthOpcode { transport: Transport::Cnp, op: Opcode::CongestionNotification };

    /// `op` on a reliable connection.
    #[inline]
    pub const fn rc(op: Opcode) -> BthOpcode {
        BthOpcode { transport: Transport::Rc, op }
    }

    /// `op` on an unreliable connection.
    #[inline]
    pub const fn uc(op: Opcode) -> BthOpcode {
        BthOpcode { transport: Transport::Uc, op }
    }

    /// `op` as an unreliable datagram.
    #[inline]
    pub const fn ud(op: Opcode) -> BthOpcode {
        BthOpcode { transport: Transport::Ud, op }
    }

    /// The meaning of `byte`, or `None` when it is reserved or of an unsupported transport.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<BthOpcode> {
        match &OPCODES[byte as usize] {
            Some(info) => Some(info.opcode),
            None => None,
        }
    }

    /// The byte on the wire.
    #[inline]
    pub const fn byte(self) -> u8 {
        (self.transport as u8) << 5 | self.op.bits()
    }

    /// The table row; `None` when the transport does not have the operation.
    #[inline]
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        OPCODES[self.byte() as usize].as_ref()
    }

    /// The table row; one without headers when the transport does not have the operation.
    #[inline]
    pub(super) fn row(self) -> &'static OpcodeInfo {
        static NONE: OpcodeInfo = OpcodeInfo::new("", BthOpcode { transport: Transport::Rc, op: Opcode::SendOnly });
        debug_assert!(self.info().is_some(), "{self:?} does not exist");
        self.info().unwrap_or(&NONE)
    }

    /// The extension headers between BTH and payload.
    #[inline]
    pub const fn headers(self) -> Headers {
        match self.transport {
            Transport::Ud => self.op.headers().union(Headers::DETH),
            _ => self.op.headers(),
        }
    }

    /// Bytes from the start of the BTH to the payload.
    #[inline]
    pub const fn header_len(self) -> usize {
        BTH_LEN + self.headers().byte_len()
    }
}

impl fmt::Display for BthOpcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "opcode {:#04x}", self.byte()),
        }
    }
}

/// Position of a packet in its message: one bit for the start, one for the end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Position {
    /// Continues a message.
    Middle = 0,
    /// Begins a message of several packets.
    First = 1,
    /// Ends a message of several packets.
    Last = 2,
    /// A message in one packet.
    Only = 3,
}

impl Position {
    /// Whether the packet begins a message.
    #[inline]
    pub const fn is_start(self) -> bool {
        self as u8 & Position::First as u8 != 0
    }

    /// Whether the packet ends a message.
    #[inline]
    pub const fn is_end(self) -> bool {
        self as u8 & Position::Last as u8 != 0
    }
}

/// A row of the opcode table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpcodeInfo {
    /// Transport and operation as the standard writes them, for example `RC SEND_ONLY`.
    pub name: &'static str,
    /// The key of the row.
    pub opcode: BthOpcode,
    /// Extension headers.
    pub headers: Headers,
    /// Bytes from the start of the BTH to the payload.
    pub header_len: u8,
    /// Total length of the extension headers in bytes.
    pub extension_len: u8,
    /// Offset of each header after the BTH, by bit of [`Headers`]; [`ABSENT`] where there is none.
    places: [u8; 9],
    /// Position of the packet in its message.
    pub position: Position,
    /// Goes from responder to requester.
    pub response: bool,
    /// Takes a receive work request when it is the first to need one (SEND) or at its end (WRITE with immediate).
    pub takes_receive: bool,
    /// Completes a receive work request.
    pub completes_receive: bool,
    /// May carry payload.
    pub payload: bool,
}

/// Offset of an absent header.
const ABSENT: u8 = u8::MAX;

impl OpcodeInfo {
    /// Offset after the BTH of the header `which` (one bit), if the opcode has it.
    #[inline]
    pub const fn place_of(&self, which: Headers) -> Option<usize> {
        match self.places[which.bits().trailing_zeros() as usize] {
            ABSENT => None,
            at => Some(at as usize),
        }
    }

    /// Whether the packet goes from requester to responder. Congestion notifications are neither request nor response.
    #[inline]
    pub const fn is_request(&self) -> bool {
        !self.response && !matches!(self.opcode.transport, Transport::Cnp)
    }

    const fn new(name: &'static str, opcode: BthOpcode) -> OpcodeInfo {
        use Opcode::*;
        let op = opcode.op;
        OpcodeInfo {
            name,
            opcode,
            headers: opcode.headers(),
            header_len: opcode.header_len() as u8,
            extension_len: opcode.headers().byte_len() as u8,
            places: {
                let mut places = [ABSENT; 9];
                let mut bit = 0;
                while bit < places.len() {
                    let which = Headers::from_bits_truncate(1 << bit);
                    if opcode.headers().contains(which) {
                        places[bit] = opcode.headers().offset_of(which) as u8;
                    }
                    bit += 1;
                }
                places
            },
            position: match op {
                SendFirst | WriteFirst | ReadResponseFirst => Position::First,
                SendMiddle | WriteMiddle | ReadResponseMiddle => Position::Middle,
                SendLast | SendLastImm | SendLastInvalidate | WriteLast | WriteLastImm | ReadResponseLast => {
                    Position::Last
                }
                _ => Position::Only,
            },
            response: matches!(
                op,
                ReadResponseFirst
                    | ReadResponseMiddle
                    | ReadResponseLast
                    | ReadResponseOnly
                    | Acknowledge
                    | AtomicAcknowledge
            ),
            takes_receive: matches!(
                op,
                SendFirst | SendOnly | SendOnlyImm | SendOnlyInvalidate | WriteLastImm | WriteOnlyImm
            ),
            completes_receive: matches!(
                op,
                SendLast
                    | SendLastImm
                    | SendLastInvalidate
                    | SendOnly
                    | SendOnlyImm
                    | SendOnlyInvalidate
                    | WriteLastImm
                    | WriteOnlyImm
            ),
            payload: !matches!(
                op,
                ReadRequest | Acknowledge | AtomicAcknowledge | CompareSwap | FetchAdd | Flush | CongestionNotification
            ),
        }
    }
}

/// Every supported opcode, by its byte.
pub static OPCODES: [Option<OpcodeInfo>; 256] = table();

const fn table() -> [Option<OpcodeInfo>; 256] {
    use Opcode::*;
    const ROWS: [(&str, BthOpcode); 40] = [
        ("RC SEND_FIRST", BthOpcode::rc(SendFirst)),
        ("RC SEND_MIDDLE", BthOpcode::rc(SendMiddle)),
        ("RC SEND_LAST", BthOpcode::rc(SendLast)),
        ("RC SEND_LAST_IMM", BthOpcode::rc(SendLastImm)),
        ("RC SEND_ONLY", BthOpcode::rc(SendOnly)),
        ("RC SEND_ONLY_IMM", BthOpcode::rc(SendOnlyImm)),
        ("RC WRITE_FIRST", BthOpcode::rc(WriteFirst)),
        ("RC WRITE_MIDDLE", BthOpcode::rc(WriteMiddle)),
        ("RC WRITE_LAST", BthOpcode::rc(WriteLast)),
        ("RC WRITE_LAST_IMM", BthOpcode::rc(WriteLastImm)),
        ("RC WRITE_ONLY", BthOpcode::rc(WriteOnly)),
        ("RC WRITE_ONLY_IMM", BthOpcode::rc(WriteOnlyImm)),
        ("RC READ_REQUEST", BthOpcode::rc(ReadRequest)),
        ("RC READ_RESPONSE_FIRST", BthOpcode::rc(ReadResponseFirst)),
        ("RC READ_RESPONSE_MIDDLE", BthOpcode::rc(ReadResponseMiddle)),
        ("RC READ_RESPONSE_LAST", BthOpcode::rc(ReadResponseLast)),
        ("RC READ_RESPONSE_ONLY", BthOpcode::rc(ReadResponseOnly)),
        ("RC ACKNOWLEDGE", BthOpcode::rc(Acknowledge)),
        ("RC ATOMIC_ACKNOWLEDGE", BthOpcode::rc(AtomicAcknowledge)),
        ("RC COMPARE_SWAP", BthOpcode::rc(CompareSwap)),
        ("RC FETCH_ADD", BthOpcode::rc(FetchAdd)),
        ("RC SEND_LAST_INVALIDATE", BthOpcode::rc(SendLastInvalidate)),
        ("RC SEND_ONLY_INVALIDATE", BthOpcode::rc(SendOnlyInvalidate)),
        ("RC FLUSH", BthOpcode::rc(Flush)),
        ("RC ATOMIC_WRITE", BthOpcode::rc(AtomicWrite)),
        ("UC SEND_FIRST", BthOpcode::uc(SendFirst)),
        ("UC SEND_MIDDLE", BthOpcode::uc(SendMiddle)),
        ("UC SEND_LAST", BthOpcode::uc(SendLast)),
        ("UC SEND_LAST_IMM", BthOpcode::uc(SendLastImm)),
        ("UC SEND_ONLY", BthOpcode::uc(SendOnly)),
        ("UC SEND_ONLY_IMM", BthOpcode::uc(SendOnlyImm)),
        ("UC WRITE_FIRST", BthOpcode::uc(WriteFirst)),
        ("UC WRITE_MIDDLE", BthOpcode::uc(WriteMiddle)),
        ("UC WRITE_LAST", BthOpcode::uc(WriteLast)),
        ("UC WRITE_LAST_IMM", BthOpcode::uc(WriteLastImm)),
        ("UC WRITE_ONLY", BthOpcode::uc(WriteOnly)),
        ("UC WRITE_ONLY_IMM", BthOpcode::uc(WriteOnlyImm)),
        ("UD SEND_ONLY", BthOpcode::ud(SendOnly)),
        ("UD SEND_ONLY_IMM", BthOpcode::ud(SendOnlyImm)),
        ("CNP", BthOpcode::CNP),
    ];
    let mut out = [None; 256];
    let mut i = 0;
    while i < ROWS.len() {
        out[ROWS[i].1.byte() as usize] = Some(OpcodeInfo::new(ROWS[i].0, ROWS[i].1));
        i += 1;
    }
    out
}
