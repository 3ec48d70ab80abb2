//! The transport services, as types.

use std::fmt::Debug;
use std::hash::Hash;

use crate::transport::QpType;

mod sealed {
    pub trait Sealed {}
}

/// Transport service of a queue pair, as its handle's type: [`Rc`], [`Uc`], [`Ud`], or [`Any`] if unknown. Sealed.
///
/// It is the parameter of [`QueuePair`](super::QueuePair), [`WorkRequest`](super::WorkRequest) and
/// [`Transition`](super::Transition), so that an operation that the service lacks does not compile.
pub trait QpService: sealed::Sealed + Copy + Ord + Hash + Debug + Send + Sync + 'static {
    /// Name of the service in messages.
    const NAME: &'static str;
}

/// A transport service: [`Rc`], [`Uc`] or [`Ud`].
pub trait TransportService: QpService {
    /// The service as a value.
    const QP_TYPE: QpType;
}

/// The services whose queue pairs have one peer: [`Rc`] and [`Uc`].
pub trait Connected: TransportService {}

macro_rules! services {
    ($($(#[$meta:meta])* $name:ident($text:literal),)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl QpService for $name {
            const NAME: &'static str = $text;
        }
    )*};
}

services! {
    /// Reliable connection (`IBV_QPT_RC`): every operation, exactly once and in order.
    Rc("RC"),
    /// Unreliable connection (`IBV_QPT_UC`): SEND and WRITE, in order. A lost packet costs the message that it belongs to.
    Uc("UC"),
    /// Unreliable datagram (`IBV_QPT_UD`): messages of one packet to and from any peer. Lost messages are not repeated.
    Ud("UD"),
    /// Any of them: the transport service is known at run time only, or may still change. The engine checks each work
    /// request and transition.
    Any("any service"),
}

impl TransportService for Rc {
    const QP_TYPE: QpType = QpType::Rc;
}

impl TransportService for Uc {
    const QP_TYPE: QpType = QpType::Uc;
}

impl TransportService for Ud {
    const QP_TYPE: QpType = QpType::Ud;
}

impl Connected for Rc {}
impl Connected for Uc {}
