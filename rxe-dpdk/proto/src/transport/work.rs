//! Work requests and completions, in verbs terms.

use std::fmt;

use crate::mem::{Access, WindowBind};

use super::QpType;

/// A queue pair number: 24 bits. 0 and 1 are the management queue pairs, 0xFFFFFF means multicast.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The general services interface (QP1), where the connection manager listens.
    pub const GSI: Qpn = Qpn(1);
    /// The destination of multicast datagrams.
    pub const MULTICAST: Qpn = Qpn(0xFF_FFFF);

    /// Keeps the low 24 bits of `raw`.
    #[inline]
    pub const fn new(raw: u32) -> Qpn {
        Qpn(raw & 0xFF_FFFF)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of a queue pair of ours: bits 23..20 name the worker (0 to 14), 19..16 and the slot, 15..0, are
    /// drawn at random. Higher bits of the arguments are cut off.
    #[inline]
    pub(crate) const fn from_parts(worker: u8, generation: u8, slot: u16) -> Qpn {
        Qpn((worker as u32 & 0xF) << 20 | (generation as u32 & 0xF) << 16 | slot as u32)
    }

    /// The worker whose engine owns this queue pair, if it is a local one.
    #[inline]
    pub const fn worker(self) -> u8 {
        (self.0 >> 20) as u8
    }

    /// The slot in the owner's table.
    #[inline]
    pub(crate) const fn slot(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A completion queue of one engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CqId(pub u32);

/// A shared receive queue of one engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SrqId(pub u32);

/// An address handle of one engine: where datagrams go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AhId(pub u32);

/// One local buffer of a work request: `length` bytes at address `addr` of the region behind `lkey`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Address in the region's own (IO virtual) address space.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// The far end of an RDMA or atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteAddr {
    /// Virtual address at the peer.
    pub addr: u64,
    /// The peer's remote key.
    pub rkey: u32,
}

/// Operation of a send queue work request. Immediate data is in host order; the wire carries it big endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND, with immediate data if given.
    Send {
        /// Immediate data.
        imm: Option<u32>,
    },
    /// SEND that also invalidates a remote key at the receiver.
    SendInvalidate {
        /// The peer's key to invalidate.
        rkey: u32,
    },
    /// RDMA WRITE, with immediate data if given.
    Write {
        /// Destination of the bytes.
        remote: RemoteAddr,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// Source of the bytes.
        remote: RemoteAddr,
    },
    /// Compare-and-swap of 8 bytes; the old value lands in the local buffer.
    CompareSwap {
        /// The peer's 8 bytes, 8-byte aligned.
        remote: RemoteAddr,
        /// Compared with what is there.
        compare: u64,
        /// Stored when equal.
        swap: u64,
    },
    /// Fetch-and-add of 8 bytes; the old value lands in the local buffer.
    FetchAdd {
        /// The peer's 8 bytes, 8-byte aligned.
        remote: RemoteAddr,
        /// Added modulo 2^64.
        add: u64,
    },
    /// ATOMIC WRITE: the 8 bytes of the local buffer, at once.
    AtomicWrite {
        /// The peer's 8 bytes, 8-byte aligned.
        remote: RemoteAddr,
    },
    /// FLUSH: what was written before becomes visible to everybody, or persistent, before this completes.
    Flush {
        /// First byte of the range.
        remote: RemoteAddr,
        /// Length of the range in bytes.
        length: u32,
        /// The whole region instead of the range.
        whole_region: bool,
        /// To persistence, not only to global visibility.
        persistent: bool,
    },
    /// A datagram (UD).
    Datagram {
        /// Destination.
        ah: AhId,
        /// The queue pair there; [`Qpn::MULTICAST`] with an address handle of a group.
        qpn: Qpn,
        /// The queue key that the receiver wants. With the highest bit set, the sending queue pair's own is used
        /// instead.
        qkey: u32,
        /// Immediate data.
        imm: Option<u32>,
    },
    /// Binds a memory window, so that peers may reach a part of a region by its key. Done here; nothing is sent.
    BindWindow {
        /// The window's key.
        key: u32,
        /// The lowest byte of the key that it has from then on, with
        /// [`KeyLayout::ConsumerByte`](crate::mem::KeyLayout::ConsumerByte). `None`: it keeps its key.
        key_byte: Option<u8>,
        /// The part of the region.
        bind: WindowBind,
    },
    /// Makes a fast-registration MR valid under its key, with the bytes mapped before. Done here; nothing is sent.
    FastRegister {
        /// The fast-registration MR's key.
        key: u32,
        /// Address of its first byte.
        addr: u64,
        /// Access rights of the key.
        access: Access,
    },
    /// Invalidates a fast-registration MR or type 2 window of our own, after all work posted before has completed.
    LocalInvalidate {
        /// Key of the MR or window.
        key: u32,
    },
    /// Fails in its turn, after everything before it has completed: for a work request that cannot be posted and whose
    /// program learns that from its completion, as with a queue in shared memory. It names no buffers.
    Invalid {
        /// The status of its completion; not `Success`.
        status: WcStatus,
    },
}

impl SendOp {
    /// The opcode in completions of this operation.
    pub const fn wc_opcode(self) -> WcOpcode {
        match self {
            SendOp::Send { .. } | SendOp::SendInvalidate { .. } | SendOp::Datagram { .. } | SendOp::Invalid { .. } => {
                WcOpcode::Send
            }
            SendOp::Write { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            SendOp::Flush { .. } => WcOpcode::Flush,
            SendOp::BindWindow { .. } => WcOpcode::BindMw,
            SendOp::FastRegister { .. } => WcOpcode::RegMr,
            SendOp::LocalInvalidate { .. } => WcOpcode::LocalInv,
        }
    }

    /// Whether a queue pair of type `qp_type` has the operation.
    #[inline]
    pub const fn is_of(self, qp_type: QpType) -> bool {
        const fn bit(qp_type: QpType) -> u8 {
            1 << qp_type as u8
        }
        const CONNECTED: u8 = bit(QpType::Rc) | bit(QpType::Uc);
        let types = match self {
            SendOp::Send { .. } | SendOp::Write { .. } => CONNECTED,
            SendOp::BindWindow { .. } | SendOp::FastRegister { .. } | SendOp::LocalInvalidate { .. } => CONNECTED,
            SendOp::Datagram { .. } => bit(QpType::Ud),
            SendOp::Invalid { .. } => CONNECTED | bit(QpType::Ud),
            _ => bit(QpType::Rc),
        };
        types & bit(qp_type) != 0
    }

    /// Properties of the operation.
    #[inline]
    pub(crate) const fn traits(self) -> OpTraits {
        const SEND: OpTraits = OpTraits::SEND.union(OpTraits::SENDS_DATA).union(OpTraits::NEEDS_RECEIVE);
        const ATOMIC: OpTraits = OpTraits::RETURNS_DATA.union(OpTraits::WANTS_RESPONSE).union(OpTraits::EIGHT_BYTES);
        match self {
            SendOp::Send { .. } | SendOp::SendInvalidate { .. } | SendOp::Datagram { .. } => SEND,
            SendOp::Write { imm: None, .. } => OpTraits::SENDS_DATA,
            SendOp::Write { imm: Some(_), .. } => OpTraits::SENDS_DATA.union(OpTraits::NEEDS_RECEIVE),
            SendOp::Read { .. } => OpTraits::RETURNS_DATA.union(OpTraits::WANTS_RESPONSE),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => ATOMIC,
            SendOp::AtomicWrite { .. } => {
                OpTraits::SENDS_DATA.union(OpTraits::WANTS_RESPONSE).union(OpTraits::EIGHT_BYTES)
            }
            SendOp::Flush { .. } => OpTraits::WANTS_RESPONSE,
            SendOp::BindWindow { .. }
            | SendOp::FastRegister { .. }
            | SendOp::LocalInvalidate { .. }
            | SendOp::Invalid { .. } => OpTraits::LOCAL,
        }
    }
}

bitflags::bitflags! {
    /// Properties of an operation: looked up once, when it is posted.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct OpTraits: u8 {
        /// Executed locally: no packets, no PSN.
        const LOCAL = 1;
        /// Carries bytes of ours to the peer, so that they may be inline.
        const SENDS_DATA = 2;
        /// Takes a receive at the peer.
        const NEEDS_RECEIVE = 4;
        /// The peer's bytes come back to the local buffers.
        const RETURNS_DATA = 8;
        /// The responder answers with more than an ACK, so that the operation takes one of its READ and atomic
        /// resources until then.
        const WANTS_RESPONSE = 16;
        /// The local buffers hold eight bytes.
        const EIGHT_BYTES = 32;
        /// A SEND of whatever kind.
        const SEND = 64;
    }
}

bitflags::bitflags! {
    /// Flags of a send queue work request.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u8 {
        /// Completes with a work completion on success too.
        const SIGNALED = 1;
        /// Asks the receiver's side for a solicited event.
        const SOLICITED = 2;
        /// Waits until all earlier READs and atomics have completed.
        const FENCE = 4;
    }
}

/// A send queue work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The caller's own number, returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Local buffers: gathered from for SEND and WRITE, scattered to for READ and atomics.
    pub sges: &'a [Sge],
    /// Flags.
    pub flags: SendFlags,
}

/// A receive queue work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The caller's own number, returned in the completion.
    pub wr_id: u64,
    /// Buffers of the message, in order.
    pub sges: &'a [Sge],
}

/// Status of a completed work request; names and numbers as in libibverbs' `ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WcStatus {
    /// Success.
    Success = 0,
    /// Local length error.
    LocLenErr = 1,
    /// Local queue pair operation error.
    LocQpOpErr = 2,
    /// Local protection error: an lkey or its bounds.
    LocProtErr = 4,
    /// Flushed: the queue pair was in the error state.
    WrFlushErr = 5,
    /// Memory window bind error.
    MwBindErr = 6,
    /// The response did not fit the request.
    BadRespErr = 7,
    /// Local access error.
    LocAccessErr = 8,
    /// The peer said: invalid request.
    RemInvReqErr = 9,
    /// The peer said: access to its memory denied.
    RemAccessErr = 10,
    /// The peer said: operation failed.
    RemOpErr = 11,
    /// Transport retries used up.
    RetryExcErr = 12,
    /// Receiver-not-ready retries used up.
    RnrRetryExcErr = 13,
    /// A fatal error of our own.
    FatalErr = 19,
    /// Anything else.
    GeneralErr = 21,
}

/// The completed operation; numbers as in libibverbs' `ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WcOpcode {
    /// A SEND of ours.
    Send = 0,
    /// An RDMA WRITE of ours.
    RdmaWrite = 1,
    /// An RDMA READ of ours.
    RdmaRead = 2,
    /// A compare-and-swap of ours.
    CompSwap = 3,
    /// A fetch-and-add of ours.
    FetchAdd = 4,
    /// A memory window bound by us.
    BindMw = 5,
    /// A key invalidated by us.
    LocalInv = 6,
    /// A FLUSH of ours.
    Flush = 8,
    /// An ATOMIC WRITE of ours.
    AtomicWrite = 9,
    /// A fast registration of ours. libibverbs has none of these, so the number is our own.
    RegMr = 64,
    /// A received SEND.
    Recv = 128,
    /// A received WRITE with immediate data.
    RecvRdmaWithImm = 129,
}

/// A work completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkCompletion {
    /// The number from the work request.
    pub wr_id: u64,
    /// Its status. Unless it is `Success`, only `wr_id`, `qpn` and `status` are valid.
    pub status: WcStatus,
    /// The completed operation.
    pub opcode: WcOpcode,
    /// Our queue pair.
    pub qpn: Qpn,
    /// Bytes received (for a WRITE with immediate: the length of the WRITE); bytes read for a READ.
    pub byte_len: u32,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// The key that the peer's SEND invalidated.
    pub invalidated_rkey: Option<u32>,
    /// The peer asked for a solicited event.
    pub solicited: bool,
    /// UD receives: the sending queue pair. The message then starts behind 40 bytes for the global route header (GRH),
    /// which `byte_len` counts: an IPv6 header as it came, or 20 zero bytes and the IPv4 header as it came.
    pub src_qpn: Option<Qpn>,
}
