//! The transport services, as types.

use std::fmt::Debug;
use std::hash::Hash;

use crate::transport::QpType;

mod sealed {
    pub trait Sealed {}
}

/// The transport service of a queue pair, as a type: [`Rc`], [`Uc`] or [`Ud`]. Nobody else can implement it.
///
/// It is the parameter of [`QueuePair`](super::QueuePair), [`WorkRequest`](super::WorkRequest) and
/// [`Transition`](super::Transition), so that what a service does not have does not compile.
pub trait TransportService: sealed::Sealed + Copy + Ord + Hash + Debug + Send + Sync + 'static {
    /// The same as a value.
    const QP_TYPE: QpType;
}

/// The services whose queue pairs have one peer: [`Rc`] and [`Uc`].
pub trait Connected: TransportService {}

macro_rules! services {
    ($($(#[$meta:meta])* $name:ident,)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name {}
        impl sealed::Sealed for $name {}
        impl TransportService for $name {
            const QP_TYPE: QpType = QpType::$name;
        }
    )*};
}

services! {
    /// Reliable connection (`IBV_QPT_RC`): every operation, exactly once and in order.
    Rc,
    /// Unreliable connection (`IBV_QPT_UC`): SEND and WRITE, in order. What is lost stays lost, a message at a time.
    Uc,
    /// Unreliable datagram (`IBV_QPT_UD`): messages of one packet to and from anybody. What is lost stays lost.
    Ud,
}

impl Connected for Rc {}
impl Connected for Uc {}
