//! The handles that name an object of one device.

use std::fmt;
use std::marker::PhantomData;

use crate::mem::PdId;
use crate::transport::{AhId, CqId, QpType, Qpn, SrqId};

use super::TransportService;

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident($id:ident),)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub(super) $id);

        impl $name {
            /// The number under which the engine and its events know it.
            #[inline]
            pub const fn id(self) -> $id {
                self.0
            }
        }

        impl From<$id> for $name {
            /// The handle of an object that was made elsewhere, by the engine's own calls. Not checked: a verb that
            /// gets the handle of an object that is not there refuses it.
            #[inline]
            fn from(id: $id) -> $name {
                $name(id)
            }
        }
    )*};
}

handles! {
    /// A protection domain (`ibv_pd`): what is in one reaches what is in the same one and nothing else.
    ///
    /// From [`Device::alloc_pd`](super::Device::alloc_pd), until [`Device::dealloc_pd`](super::Device::dealloc_pd).
    ProtectionDomain(PdId),
    /// A completion queue (`ibv_cq`): where work requests report how they ended.
    ///
    /// From [`Device::create_cq`](super::Device::create_cq), until [`Device::destroy_cq`](super::Device::destroy_cq).
    CompletionQueue(CqId),
    /// A shared receive queue (`ibv_srq`): receives for whichever of its queue pairs needs one.
    ///
    /// From [`Device::create_srq`](super::Device::create_srq), until
    /// [`Device::destroy_srq`](super::Device::destroy_srq).
    SharedReceiveQueue(SrqId),
    /// An address handle (`ibv_ah`): where a datagram goes, all headers made ahead.
    ///
    /// From [`Device::create_ah`](super::Device::create_ah), until [`Device::destroy_ah`](super::Device::destroy_ah).
    AddressHandle(AhId),
}

/// A queue pair (`ibv_qp`) of transport service `T`: [`Rc`](super::Rc), [`Uc`](super::Uc) or [`Ud`](super::Ud).
///
/// From [`Device::create_qp`](super::Device::create_qp), until [`Device::destroy_qp`](super::Device::destroy_qp). The
/// type carries the service, which never changes. It does not carry the state, which does, also without the owner's
/// doing: a peer or a timer can take the queue pair to ERROR between any two calls. Ask
/// [`Device::query_qp`](super::Device::query_qp) for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePair<T: TransportService> {
    qpn: Qpn,
    service: PhantomData<T>,
}

impl<T: TransportService> QueuePair<T> {
    /// `qpn` must be of a queue pair of service `T`, or of none.
    pub(super) const fn of(qpn: Qpn) -> QueuePair<T> {
        QueuePair { qpn, service: PhantomData }
    }

    /// Its number (`qp_num`): what the peer must know, and what completions and events name.
    #[inline]
    pub const fn qpn(self) -> Qpn {
        self.qpn
    }

    /// Its transport service as a value.
    #[inline]
    pub const fn qp_type(self) -> QpType {
        T::QP_TYPE
    }
}

impl<T: TransportService> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair<{}>({})", T::QP_TYPE, self.qpn)
    }
}
