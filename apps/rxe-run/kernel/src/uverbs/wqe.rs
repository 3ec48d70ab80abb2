//! Work requests in a program's queues, as the engine's.
//!
//! Everything here was written by the program and may be anything. A work request that makes no sense becomes one that
//! fails with the status that the kernel gives it.

use rxe_proto::mem::{Access, WindowBind};
use rxe_proto::transport::{AhId, PostError, QpType, Qpn, RemoteAddr, SendFlags, SendOp, Sge, WcStatus};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::abi::{
    AtomicWr, DmaInfo, MwWr, RdmaWr, RecvWqe, RxeAv, RxeSge, SEND_AV_AT, SEND_DMA_AT, SEND_WQE_LEN, SendWrHead, UdWr,
    send_flag, wr_opcode,
};
use super::ah::Destination;
use super::path::Route;
use super::ring::Ring;

/// A buffer that no key opens: of a receive that makes no sense. The receive fails when a message needs it.
const BAD_BUFFER: Sge = Sge { addr: 0, length: 1 << 31, lkey: 0 };

/// Length of a receive with `max_sge` buffers in a ring.
pub(super) fn recv_wqe_len(max_sge: u32) -> usize {
    size_of::<RecvWqe>() + max_sge as usize * size_of::<RxeSge>()
}

/// Buffers and inline data of the work requests in hand.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

impl Scratch {
    /// Forgets the work requests.
    pub(super) fn clear(&mut self) {
        self.sges.clear();
        self.inline.clear();
    }

    /// The buffers of all work requests.
    pub(super) fn sges(&self) -> &[Sge] {
        &self.sges
    }

    /// The buffers of a work request.
    pub(super) fn sges_of(&self, request: &SendRequest) -> &[Sge] {
        match request.payload {
            Payload::Buffers { first, count } => self.sges.get(first..first + count).unwrap_or_default(),
            Payload::None | Payload::Inline { .. } => &[],
        }
    }

    /// The inline data of all work requests.
    pub(super) fn inline(&self) -> &[u8] {
        &self.inline
    }

    /// Adds inline data.
    pub(super) fn add_inline(&mut self, bytes: &[u8]) {
        self.inline.extend_from_slice(bytes);
    }

    /// Reads `len` bytes of inline data. `None` when the entry is shorter.
    fn read_inline(&mut self, ring: &Ring, index: u32, len: usize) -> Option<Payload> {
        // No memory is taken for a length that cannot be right.
        if !ring.read(index, SEND_WQE_LEN + len, &mut []) {
            return None;
        }
        let first = self.inline.len();
        self.inline.resize(first + len, 0);
        let read = ring.read(index, SEND_WQE_LEN, &mut self.inline[first..]);
        read.then_some(Payload::Inline { first, len })
    }

    /// Reads `count` buffers at byte `at` of an entry. `None` when the entry is shorter.
    fn read_sges(&mut self, ring: &Ring, index: u32, at: usize, count: usize) -> Option<Payload> {
        let first = self.sges.len();
        for number in 0..count {
            let mut sge = RxeSge::new_zeroed();
            if !ring.read(index, at + number * size_of::<RxeSge>(), sge.as_mut_bytes()) {
                self.sges.truncate(first);
                return None;
            }
            self.sges.push(Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey });
        }
        Some(Payload::Buffers { first, count })
    }
}

/// A send queue work request. Its buffers or inline data are in the scratch.
#[derive(Debug)]
pub(super) struct SendRequest {
    pub(super) wr_id: u64,
    pub(super) op: SendOp,
    pub(super) flags: SendFlags,
    pub(super) payload: Payload,
}

/// Where the bytes of a work request are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Payload {
    /// It has none.
    None,
    /// In `count` buffers of the scratch, from `first` on.
    Buffers { first: usize, count: usize },
    /// In the inline data of the scratch.
    Inline { first: usize, len: usize },
}

impl SendRequest {
    /// Bytes of its buffers, or of its inline data.
    pub(super) fn len(&self, scratch: &Scratch) -> u64 {
        match self.payload {
            Payload::None => 0,
            Payload::Buffers { .. } => scratch.sges_of(self).iter().map(|sge| u64::from(sge.length)).sum(),
            Payload::Inline { len, .. } => len as u64,
        }
    }

    /// The same, as one that fails with `status`.
    pub(super) fn failing(&self, status: WcStatus) -> SendRequest {
        SendRequest { op: SendOp::Invalid { status }, payload: Payload::None, ..*self }
    }
}

/// Properties of a send queue that its entries are checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendLimits {
    pub(super) qp_type: QpType,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
}

/// The status of a work request that the engine does not take.
pub(super) fn refusal_status(error: PostError) -> WcStatus {
    match error {
        PostError::MessageTooLong | PostError::InlineTooLong | PostError::AtomicLength => WcStatus::LocLenErr,
        _ => WcStatus::LocQpOpErr,
    }
}

/// Reads entry `index` of a send queue; its buffers or inline data are added to the scratch. `find_ah` finds the address handle of a
/// datagram.
pub(super) fn read_send(
    ring: &Ring,
    index: u32,
    limits: SendLimits,
    scratch: &mut Scratch,
    find_ah: impl FnOnce(Destination) -> Option<AhId>,
) -> SendRequest {
    let head: SendWrHead = ring.load(index, 0);
    let dma: DmaInfo = ring.load(index, SEND_DMA_AT);
    let op = operation(ring, index, &head, limits.qp_type, find_ah);
    let request = SendRequest { wr_id: head.wr_id, op, flags: flags(head.send_flags), payload: Payload::None };
    let carries_atomic = head.opcode == wr_opcode::ATOMIC_WRITE;
    let (payload, error) = if is_local(op) {
        return request;
    } else if carries_atomic || head.send_flags & send_flag::INLINE != 0 {
        // The 8 bytes of an ATOMIC WRITE are where inline data is.
        let len = if carries_atomic { 8 } else { dma.length };
        let fits = len <= limits.max_inline;
        let payload = fits.then(|| scratch.read_inline(ring, index, len as usize)).flatten();
        (payload, WcStatus::LocLenErr)
    } else {
        let fits = dma.num_sge <= limits.max_sge;
        let payload = fits.then(|| scratch.read_sges(ring, index, SEND_WQE_LEN, dma.num_sge as usize)).flatten();
        (payload, WcStatus::LocQpOpErr)
    };
    match payload {
        Some(payload) => SendRequest { payload, ..request },
        None => request.failing(error),
    }
}

/// Length of entry `index` of a send queue, as the provider has written it.
pub(super) fn send_len(ring: &Ring, index: u32) -> u32 {
    ring.load::<DmaInfo>(index, SEND_DMA_AT).length
}

/// Whether an operation has neither buffers nor inline data.
fn is_local(op: SendOp) -> bool {
    matches!(op, SendOp::BindWindow { .. } | SendOp::LocalInvalidate { .. } | SendOp::Invalid { .. })
}

fn flags(bits: u32) -> SendFlags {
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::FENCE, bits & send_flag::FENCE != 0);
    flags.set(SendFlags::SIGNALED, bits & send_flag::SIGNALED != 0);
    flags.set(SendFlags::SOLICITED, bits & send_flag::SOLICITED != 0);
    flags
}

fn operation(
    ring: &Ring,
    index: u32,
    head: &SendWrHead,
    qp_type: QpType,
    find_ah: impl FnOnce(Destination) -> Option<AhId>,
) -> SendOp {
    let imm = u32::from_be_bytes(head.ex);
    let key = u32::from_ne_bytes(head.ex);
    let invalid = SendOp::Invalid { status: WcStatus::LocQpOpErr };
    match head.opcode {
        wr_opcode::SEND | wr_opcode::SEND_WITH_IMM => {
            let imm = (head.opcode == wr_opcode::SEND_WITH_IMM).then_some(imm);
            if qp_type != QpType::Ud {
                return SendOp::Send { imm };
            }
            let ud: UdWr = member(&head.wr);
            let destination = match ud.ah_num {
                0 => Destination::Route(av_route(ring, index)),
                number => Destination::Handle(number),
            };
            match find_ah(destination) {
                Some(ah) => SendOp::Datagram { ah, qpn: Qpn::new(ud.remote_qpn), qkey: ud.remote_qkey, imm },
                None => invalid,
            }
        }
        wr_opcode::SEND_WITH_INV => SendOp::SendInvalidate { rkey: key },
        wr_opcode::RDMA_WRITE => SendOp::Write { remote: remote(&head.wr), imm: None },
        wr_opcode::RDMA_WRITE_WITH_IMM => SendOp::Write { remote: remote(&head.wr), imm: Some(imm) },
        wr_opcode::RDMA_READ => SendOp::Read { remote: remote(&head.wr) },
        wr_opcode::ATOMIC_WRITE => SendOp::AtomicWrite { remote: remote(&head.wr) },
        wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
            let wr: AtomicWr = member(&head.wr);
            let remote = RemoteAddr { addr: wr.remote_addr, rkey: wr.rkey };
            if head.opcode == wr_opcode::ATOMIC_CMP_AND_SWP {
                SendOp::CompareSwap { remote, compare: wr.compare_add, swap: wr.swap }
            } else {
                SendOp::FetchAdd { remote, add: wr.compare_add }
            }
        }
        wr_opcode::LOCAL_INV => SendOp::LocalInvalidate { key },
        wr_opcode::BIND_MW => {
            let wr: MwWr = member(&head.wr);
            let access = Access::from_bits_truncate(wr.access).of_window();
            let bind = WindowBind { region_key: wr.mr_lkey, addr: wr.addr, len: wr.length, access };
            // The program chooses the lowest byte of the window's key.
            SendOp::BindWindow { key: wr.mw_rkey, key_byte: Some(wr.rkey as u8), bind }
        }
        _ => invalid,
    }
}

/// A member of the work request's union.
fn member<T: FromBytes>(union: &[u8; 32]) -> T {
    T::read_from_prefix(union).map_or_else(|_| T::new_zeroed(), |(member, _)| member)
}

fn remote(union: &[u8; 32]) -> RemoteAddr {
    let wr: RdmaWr = member(union);
    RemoteAddr { addr: wr.remote_addr, rkey: wr.rkey }
}

#[cold]
fn av_route(ring: &Ring, index: u32) -> Route {
    let av: RxeAv = ring.load(index, SEND_AV_AT);
    Route::of_av(&av.grh)
}

/// Reads entry `index` of a receive queue; only its buffers are in the scratch then. Returns its number.
pub(super) fn read_recv(ring: &Ring, index: u32, max_sge: u32, scratch: &mut Scratch) -> u64 {
    scratch.clear();
    let wqe: RecvWqe = ring.load(index, 0);
    let count = wqe.dma.num_sge;
    if count > max_sge || scratch.read_sges(ring, index, size_of::<RecvWqe>(), count as usize).is_none() {
        scratch.make_bad(max_sge);
    }
    wqe.wr_id
}

impl Scratch {
    /// Replaces the buffers by one that cannot be used.
    pub(super) fn make_bad(&mut self, max_sge: u32) {
        self.sges.clear();
        if max_sge > 0 {
            self.sges.push(BAD_BUFFER);
        }
    }
}
