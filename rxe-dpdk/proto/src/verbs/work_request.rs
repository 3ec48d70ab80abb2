//! Work requests, and posting them.

use std::fmt;
use std::marker::PhantomData;

use crate::transport::{PostError, Qpn, RecvWr, RemoteAddr, SendFlags, SendOp, SendWr, Sge};

use super::{
    AddressHandle, Any, Connected, Device, QpService, QueuePair, Rc, SharedReceiveQueue, TransportService, Ud,
};

/// The bytes that a message carries.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Those of registered buffers, in order. They are read when packets are written, possibly several times, and must
    /// not change until the work request has completed.
    Sges(&'a [Sge]),
    /// The bytes themselves (`IBV_SEND_INLINE`), at most `max_inline_data` of the queue pair. They are copied when the work
    /// request is posted and need no key.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// No bytes.
    pub const EMPTY: Payload<'static> = Payload::Sges(&[]);
}

impl<'a> From<&'a [Sge]> for Payload<'a> {
    fn from(sges: &'a [Sge]) -> Payload<'a> {
        Payload::Sges(sges)
    }
}

impl<'a, const N: usize> From<&'a [Sge; N]> for Payload<'a> {
    fn from(sges: &'a [Sge; N]) -> Payload<'a> {
        Payload::Sges(sges)
    }
}

/// Guarantee of a FLUSH (`ibv_placement_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushType {
    /// Visible to all readers at the peer (`IBV_FLUSH_GLOBAL`).
    Global,
    /// Also kept when the peer loses power (`IBV_FLUSH_PERSISTENT`).
    Persistent,
}

/// Scope of a FLUSH (`ibv_selectivity_level`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushLevel {
    /// A range of bytes (`IBV_FLUSH_RANGE`).
    Range {
        /// Bytes, from the remote address on.
        length: u32,
    },
    /// The whole region that the remote key opens (`IBV_FLUSH_MR`).
    Region,
}

/// A work request for the send queue of a queue pair of service `T` (`ibv_send_wr`).
///
/// A constructor names the operation, the methods after it set options. Without them `wr_id` is 0 and success makes no
/// completion:
///
/// ```
/// # use rxe_proto::verbs::{Rc, RemoteAddr, Sge, WorkRequest};
/// # let (sge, remote) = (Sge::default(), RemoteAddr::default());
/// let wr: WorkRequest<'_, Rc> = WorkRequest::write(&[sge], remote).wr_id(7).signaled();
/// ```
///
/// Immediate data is in host order here; the wire carries it big endian.
///
/// # Which service has what
///
/// | | [`Rc`] | [`Uc`](super::Uc) | [`Ud`] |
/// |---|---|---|---|
/// | [`send`](Self::send), [`send_with_imm`](Self::send_with_imm), [`write`](Self::write), [`write_with_imm`](Self::write_with_imm) | yes | yes | |
/// | [`bind_mw`](Self::bind_mw), [`fast_reg_mr`](Self::fast_reg_mr), [`local_inv`](Self::local_inv) | yes | yes | |
/// | [`send_with_inv`](Self::send_with_inv), [`read`](Self::read), [`compare_swap`](Self::compare_swap), [`fetch_add`](Self::fetch_add), [`atomic_write`](Self::atomic_write), [`flush`](Self::flush) | yes | | |
/// | [`datagram`](Self::datagram), [`datagram_with_imm`](Self::datagram_with_imm) | | | yes |
///
/// Operations that a service does not have do not compile. A READ needs a reliable connection:
///
/// ```
/// # use rxe_proto::verbs::*;
/// fn fetch(dev: &mut Device<'_>, qp: QueuePair<Rc>, to: Sge, from: RemoteAddr) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::read(&[to], from))
/// }
/// ```
/// ```compile_fail,E0308
/// # use rxe_proto::verbs::*;
/// fn fetch(dev: &mut Device<'_>, qp: QueuePair<Uc>, to: Sge, from: RemoteAddr) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::read(&[to], from))
/// }
/// ```
/// So do atomics:
///
/// ```
/// # use rxe_proto::verbs::*;
/// fn count(dev: &mut Device<'_>, qp: QueuePair<Rc>, old: Sge, at: RemoteAddr) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::fetch_add(&[old], at, 1))
/// }
/// ```
/// ```compile_fail,E0308
/// # use rxe_proto::verbs::*;
/// fn count(dev: &mut Device<'_>, qp: QueuePair<Uc>, old: Sge, at: RemoteAddr) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::fetch_add(&[old], at, 1))
/// }
/// ```
/// Datagrams have no RDMA:
///
/// ```
/// # use rxe_proto::verbs::*;
/// fn put(dev: &mut Device<'_>, qp: QueuePair<Uc>, from: Sge, to: RemoteAddr) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::write(&[from], to))
/// }
/// ```
/// ```compile_fail,E0277
/// # use rxe_proto::verbs::*;
/// fn put(dev: &mut Device<'_>, qp: QueuePair<Ud>, from: Sge, to: RemoteAddr) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::write(&[from], to))
/// }
/// ```
/// And only datagrams carry a destination:
///
/// ```
/// # use rxe_proto::verbs::*;
/// fn tell(dev: &mut Device<'_>, qp: QueuePair<Ud>, from: Sge, to: AddressHandle) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::datagram(&[from], to, Qpn::new(0x11), 0x1234))
/// }
/// ```
/// ```compile_fail,E0308
/// # use rxe_proto::verbs::*;
/// fn tell(dev: &mut Device<'_>, qp: QueuePair<Rc>, from: Sge, to: AddressHandle) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::datagram(&[from], to, Qpn::new(0x11), 0x1234))
/// }
/// ```
///
/// Where the service is known at run time only, convert the work request; the engine checks it then:
///
/// ```
/// # use rxe_proto::verbs::*;
/// fn answer(dev: &mut Device<'_>, qp: AnyQueuePair, from: Sge) -> Result<(), PostError> {
///     dev.post_send(qp, WorkRequest::<Rc>::send(&[from]).into())
/// }
/// ```
#[derive(Clone, Copy)]
#[must_use = "a work request does nothing until it is posted"]
pub struct WorkRequest<'a, T: QpService> {
    wr: SendWr<'a>,
    /// In place of buffers.
    inline: Option<&'a [u8]>,
    service: PhantomData<T>,
}

/// A work request for an [`AnyQueuePair`](super::AnyQueuePair): made from one of any service.
pub type AnyWorkRequest<'a> = WorkRequest<'a, Any>;

impl<'a, T: TransportService> From<WorkRequest<'a, T>> for AnyWorkRequest<'a> {
    #[inline]
    fn from(WorkRequest { wr, inline, .. }: WorkRequest<'a, T>) -> AnyWorkRequest<'a> {
        WorkRequest { wr, inline, service: PhantomData }
    }
}

impl<'a> AnyWorkRequest<'a> {
    /// An operation that is known at run time only.
    #[inline]
    pub fn new(op: SendOp, payload: impl Into<Payload<'a>>) -> AnyWorkRequest<'a> {
        WorkRequest::of(op, payload.into())
    }

    /// See [`WorkRequest::<Rc>::fence`](WorkRequest::fence).
    #[inline]
    pub fn fence(self) -> Self {
        self.flag(SendFlags::FENCE)
    }
}

impl<'a, T: QpService> WorkRequest<'a, T> {
    #[inline]
    pub(super) fn of(op: SendOp, payload: Payload<'a>) -> WorkRequest<'a, T> {
        let (sges, inline) = match payload {
            Payload::Sges(sges) => (sges, None),
            Payload::Inline(data) => (&[][..], Some(data)),
        };
        WorkRequest { wr: SendWr { wr_id: 0, op, sges, flags: SendFlags::empty() }, inline, service: PhantomData }
    }

    /// The number that the completion returns.
    #[inline]
    pub fn wr_id(mut self, wr_id: u64) -> Self {
        self.wr.wr_id = wr_id;
        self
    }

    /// Success makes a completion (`IBV_SEND_SIGNALED`); failure always does. A work request without it completes with
    /// the next one that has it.
    #[inline]
    pub fn signaled(self) -> Self {
        self.flag(SendFlags::SIGNALED)
    }

    /// The receiver's completion counts as solicited (`IBV_SEND_SOLICITED`). For operations that consume a receive.
    #[inline]
    pub fn solicited(self) -> Self {
        self.flag(SendFlags::SOLICITED)
    }

    #[inline]
    fn flag(mut self, flag: SendFlags) -> Self {
        self.wr.flags |= flag;
        self
    }
}

impl<'a, T: Connected> WorkRequest<'a, T> {
    /// SEND (`IBV_WR_SEND`): into the peer's next receive.
    #[inline]
    pub fn send(payload: impl Into<Payload<'a>>) -> Self {
        WorkRequest::of(SendOp::Send { imm: None }, payload.into())
    }

    /// SEND with immediate data (`IBV_WR_SEND_WITH_IMM`): `imm` comes with the peer's completion.
    #[inline]
    pub fn send_with_imm(payload: impl Into<Payload<'a>>, imm: u32) -> Self {
        WorkRequest::of(SendOp::Send { imm: Some(imm) }, payload.into())
    }

    /// RDMA WRITE (`IBV_WR_RDMA_WRITE`): to the bytes from `remote` on. The peer gets no completion.
    #[inline]
    pub fn write(payload: impl Into<Payload<'a>>, remote: RemoteAddr) -> Self {
        WorkRequest::of(SendOp::Write { remote, imm: None }, payload.into())
    }

    /// RDMA WRITE with immediate data (`IBV_WR_RDMA_WRITE_WITH_IMM`): completes the peer's next receive, whose
    /// buffers stay unused.
    #[inline]
    pub fn write_with_imm(payload: impl Into<Payload<'a>>, remote: RemoteAddr, imm: u32) -> Self {
        WorkRequest::of(SendOp::Write { remote, imm: Some(imm) }, payload.into())
    }
}

impl<'a> WorkRequest<'a, Rc> {
    /// SEND with invalidate (`IBV_WR_SEND_WITH_INV`): the receiver's key `rkey`, of a fast region or memory window, is
    /// invalid when the message completes there.
    #[inline]
    pub fn send_with_inv(payload: impl Into<Payload<'a>>, rkey: u32) -> Self {
        WorkRequest::of(SendOp::SendInvalidate { rkey }, payload.into())
    }

    /// RDMA READ (`IBV_WR_RDMA_READ`): the bytes from `remote` on, as many as `sges` hold, into `sges`.
    #[inline]
    pub fn read(sges: &'a [Sge], remote: RemoteAddr) -> Self {
        WorkRequest::of(SendOp::Read { remote }, Payload::Sges(sges))
    }

    /// Compare-and-swap (`IBV_WR_ATOMIC_CMP_AND_SWP`) of the 8 bytes at `remote`, which is a multiple of 8: `swap` is
    /// stored if they equal `compare`. The old value is written to `result`, 8 bytes, in the byte order of this host.
    #[inline]
    pub fn compare_swap(result: &'a [Sge], remote: RemoteAddr, compare: u64, swap: u64) -> Self {
        WorkRequest::of(SendOp::CompareSwap { remote, compare, swap }, Payload::Sges(result))
    }

    /// Fetch-and-add (`IBV_WR_ATOMIC_FETCH_AND_ADD`), modulo 2^64, to the 8 bytes at `remote`, which is a multiple of
    /// 8. The old value is written to `result`, 8 bytes, in the byte order of this host.
    #[inline]
    pub fn fetch_add(result: &'a [Sge], remote: RemoteAddr, add: u64) -> Self {
        WorkRequest::of(SendOp::FetchAdd { remote, add }, Payload::Sges(result))
    }

    /// ATOMIC WRITE (`IBV_WR_ATOMIC_WRITE`): 8 bytes to `remote`, which is a multiple of 8, in one store.
    #[inline]
    pub fn atomic_write(payload: impl Into<Payload<'a>>, remote: RemoteAddr) -> Self {
        WorkRequest::of(SendOp::AtomicWrite { remote }, payload.into())
    }

    /// FLUSH (`IBV_WR_FLUSH`): completes when all bytes written there before are as `flush_type` guarantees.
    #[inline]
    pub fn flush(remote: RemoteAddr, flush_type: FlushType, level: FlushLevel) -> Self {
        let (length, whole_region) = match level {
            FlushLevel::Range { length } => (length, false),
            FlushLevel::Region => (0, true),
        };
        let persistent = flush_type == FlushType::Persistent;
        WorkRequest::of(SendOp::Flush { remote, length, whole_region, persistent }, Payload::EMPTY)
    }

    /// Not begun before all earlier READs and atomics have completed (`IBV_SEND_FENCE`), so that it can use their
    /// results.
    #[inline]
    pub fn fence(self) -> Self {
        self.flag(SendFlags::FENCE)
    }
}

impl<'a> WorkRequest<'a, Ud> {
    /// A datagram (`IBV_WR_SEND`) of at most the path MTU to queue pair `qpn` at the address of `ah`, or to its group with
    /// [`Qpn::MULTICAST`]. `qkey` is the one that the receiver requires; with the highest bit set the sender's own is used
    /// instead.
    #[inline]
    pub fn datagram(payload: impl Into<Payload<'a>>, ah: AddressHandle, qpn: Qpn, qkey: u32) -> Self {
        WorkRequest::of(SendOp::Datagram { ah: ah.0, qpn, qkey, imm: None }, payload.into())
    }

    /// A [`datagram`](Self::datagram) with immediate data (`IBV_WR_SEND_WITH_IMM`): `imm` comes with the receiver's
    /// completion.
    #[inline]
    pub fn datagram_with_imm(
        payload: impl Into<Payload<'a>>,
        ah: AddressHandle,
        qpn: Qpn,
        qkey: u32,
        imm: u32,
    ) -> Self {
        WorkRequest::of(SendOp::Datagram { ah: ah.0, qpn, qkey, imm: Some(imm) }, payload.into())
    }
}

impl<T: QpService> fmt::Debug for WorkRequest<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Inline data may be long.
        let SendWr { wr_id, op, sges, flags } = self.wr;
        let mut out = f.debug_struct("WorkRequest");
        out.field("wr_id", &wr_id).field("op", &op).field("sges", &sges).field("flags", &flags);
        out.field("inline_len", &self.inline.map(<[u8]>::len)).finish()
    }
}

impl Device<'_> {
    /// Posts a work request to the send queue of a queue pair in RTS or SQD (`ibv_post_send`, one request at a time).
    /// In ERROR and SQE it completes at once, as flushed.
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then. Bad local keys show up as a completion later.
    #[inline]
    pub fn post_send<T: QpService>(&mut self, qp: QueuePair<T>, wr: WorkRequest<'_, T>) -> Result<(), PostError> {
        match wr.inline {
            None => self.engine.post_send(qp.qpn(), &wr.wr),
            Some(data) => self.engine.post_send_inline(qp.qpn(), &wr.wr, data),
        }
    }

    /// Posts a receive to a queue pair in any state but RESET (`ibv_post_recv`, one request at a time). In ERROR it
    /// completes at once, as flushed. On UD each buffer list holds 40 bytes more than the datagram: see
    /// [`Grh`](super::Grh).
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then. Bad local keys show up as a completion later.
    #[inline]
    pub fn post_recv<T: QpService>(&mut self, qp: QueuePair<T>, wr: RecvWr<'_>) -> Result<(), PostError> {
        self.engine.post_recv(qp.qpn(), &wr)
    }

    /// Posts a receive to a shared receive queue (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// See [`PostError`]; nothing is posted then.
    #[inline]
    pub fn post_srq_recv(&mut self, srq: SharedReceiveQueue, wr: RecvWr<'_>) -> Result<(), PostError> {
        self.engine.post_srq_recv(srq.0, &wr)
    }
}
