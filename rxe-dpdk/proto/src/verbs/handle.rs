//! The handles that name an object of one device.

use std::fmt;
use std::marker::PhantomData;

use crate::mem::PdId;
use crate::transport::{AhId, CqId, QpType, Qpn, SrqId};

use super::{Any, QpService, TransportService};

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident($id:ident),)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub(super) $id);

        impl $name {
            /// Its number in the engine and in events.
            #[inline]
            pub const fn id(self) -> $id {
                self.0
            }
        }

        impl From<$id> for $name {
            /// The handle of an object that was created by the engine's own calls. Not checked: a verb that gets the
            /// handle of an object that does not exist refuses it.
            #[inline]
            fn from(id: $id) -> $name {
                $name(id)
            }
        }
    )*};
}

handles! {
    /// A protection domain (`ibv_pd`): queue pairs reach regions of their own domain and no others.
    ///
    /// From [`Device::alloc_pd`](super::Device::alloc_pd), until [`Device::dealloc_pd`](super::Device::dealloc_pd).
    ProtectionDomain(PdId),
    /// A completion queue (`ibv_cq`): where work requests report how they ended.
    ///
    /// From [`Adapter::create_cq`](super::Adapter::create_cq), until
    /// [`Adapter::destroy_cq`](super::Adapter::destroy_cq), or from the runtime that polls it.
    CompletionQueue(CqId),
    /// A shared receive queue (`ibv_srq`): receives for whichever of its queue pairs needs one.
    ///
    /// From [`Device::create_srq`](super::Device::create_srq), until
    /// [`Device::destroy_srq`](super::Device::destroy_srq).
    SharedReceiveQueue(SrqId),
    /// An address handle (`ibv_ah`): the destination of a datagram, with its headers prepared.
    ///
    /// From [`Device::create_ah`](super::Device::create_ah), until [`Device::destroy_ah`](super::Device::destroy_ah).
    AddressHandle(AhId),
}

/// A queue pair (`ibv_qp`) of transport service `T`: [`Rc`](super::Rc), [`Uc`](super::Uc) or [`Ud`](super::Ud), or
/// [`Any`] where the service is known at run time only.
///
/// From [`Device::create_qp`](super::Device::create_qp), until [`Device::destroy_qp`](super::Device::destroy_qp). The
/// type carries the service, which does not change ([`Device::detect_peer_type`](super::Device::detect_peer_type) and
/// [`Device::set_qp_type`](super::Device::set_qp_type) return a handle of another type). It does not carry the state,
/// which a peer or a timer can change between any two calls: see [`Device::query_qp`](super::Device::query_qp).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePair<T: QpService> {
    qpn: Qpn,
    service: PhantomData<T>,
}

/// A queue pair whose transport service is known at run time only: that of a peer that does not announce its type, or the
/// one that a completion or event names.
///
/// It takes receives, transitions and queries as typed handles do, and [untyped work requests](super::AnyWorkRequest).
pub type AnyQueuePair = QueuePair<Any>;

impl<T: QpService> QueuePair<T> {
    /// `qpn` must be of a queue pair of service `T`, or of none.
    pub(super) const fn of(qpn: Qpn) -> QueuePair<T> {
        QueuePair { qpn, service: PhantomData }
    }

    /// Its number (`qp_num`): what the peer must know, and what completions and events name.
    #[inline]
    pub const fn qpn(self) -> Qpn {
        self.qpn
    }
}

impl<T: TransportService> QueuePair<T> {
    /// Its transport service as a value.
    #[inline]
    pub const fn qp_type(self) -> QpType {
        T::QP_TYPE
    }
}

impl<T: TransportService> From<QueuePair<T>> for AnyQueuePair {
    #[inline]
    fn from(qp: QueuePair<T>) -> AnyQueuePair {
        QueuePair::of(qp.qpn)
    }
}

impl From<Qpn> for AnyQueuePair {
    /// The queue pair with this number. Not checked: a verb that gets the handle of an object that does not exist refuses
    /// it.
    #[inline]
    fn from(qpn: Qpn) -> AnyQueuePair {
        QueuePair::of(qpn)
    }
}

impl<T: QpService> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair<{}>({})", T::NAME, self.qpn)
    }
}
