//! The structures of the `write` ABI: `ib_user_verbs.h`, and `rdma_user_rxe.h` for the rxe provider's part.
//!
//! Each type is one C structure; its documentation names it. A test compares sizes and offsets with the C headers.

mod device;
mod header;
mod memory;
mod qp;
mod queues;
mod rxe;
#[cfg(test)]
mod tests;

pub(super) use device::*;
pub(super) use header::*;
pub(super) use memory::*;
pub(super) use qp::*;
pub(super) use queues::*;
pub(super) use rxe::*;

/// Declares C structures as plain data: any bytes are valid, and there is no padding.
macro_rules! abi {
    ($($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $field_doc:literal])* $field:ident: $type:ty,)* })*) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
        #[repr(C)]
        pub(in crate::uverbs) struct $name { $($(#[doc = $field_doc])* pub(in crate::uverbs) $field: $type,)* }
    )*};
}
use abi;
