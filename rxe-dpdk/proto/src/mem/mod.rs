//! Protection domains, memory regions, memory windows and the key table.
//!
//! * [`Memory`] is a span of bytes that peers may read and write at any time. Where the bytes live is a [`Backing`]:
//!   the heap in tests, hugepages or a shared file in production. All `unsafe` of this layer is in `memory.rs` and
//!   `heap.rs`.
//!   [`ForeignMemory`] is for bytes that their program may unmap at any time.
//! * [`KeyTable`] knows which spans are registered, as plain regions, as fast-registration MRs and through memory
//!   windows: one
//!   table per engine, owned by one lcore, no locks. A key of the wire or of a work request becomes a checked [`Span`]
//!   here and nowhere else: key, protection domain, queue pair, rights and bounds in one place.
//! * [`Allocator`] hands out fresh [`Memory`].
//!
//! # Access to the bytes
//!
//! A region belongs to a protection domain ([`PdId`]) of its table, and only queue pairs of the same domain reach it.
//! A region that several lcores serve (an exported file, for example) is registered once in a table of
//! [`KeyDomain::Shared`] and then [adopted](KeyTable::adopt) under the same key by the table of each lcore. Keys of the
//! two domains differ in their lowest bit, so an adopted key never meets one that the lcore made for itself.
//! Fast-registration MRs and memory windows change their state with the work of one lcore's queue pairs, so they are
//! never shared; but a window may be bound to an adopted region, in the table of the lcore that binds it.

mod access;
mod access_error;
mod foreign;
mod heap;
mod keys;
mod memory;
mod region;
mod span;

pub use access::Access;
pub use access_error::{AccessError, AtomicError, OutOfBounds};
pub use foreign::{Fault, ForeignMemory, Part};
pub use heap::{AllocError, Allocator, HeapAllocator};
pub use keys::{
    BindError, DeallocPdError, DeregisterError, FastRegMrError, InvalidateError, KeyDomain, KeyError, KeyInfo, KeyKind,
    KeyLayout, KeyTable, RegisterError, RenewError, Reregister, ReregisterError, UnknownKey, WindowBind, WindowKind,
};
pub use memory::{Backing, Memory};
pub use region::{MemoryRegion, PdId};
pub use span::Span;
