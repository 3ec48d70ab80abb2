//! Why the key table refuses.

use super::KeyTable;

/// Why a key, with its addresses and rights, was refused. In the order in which they are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// Nothing can be reached under this key (any more): no region, fast-registration MR in state VALID or, for peers,
    /// bound memory window has it.
    #[error("unknown key")]
    Unknown,
    /// It belongs to another protection domain.
    #[error("key of another protection domain")]
    WrongPd,
    /// It is a type 2 memory window bound on another queue pair.
    #[error("key of another queue pair")]
    WrongQp,
    /// It does not grant the right.
    #[error("access not granted")]
    NoAccess,
    /// Not all bytes lie inside.
    #[error("outside of the region")]
    OutOfRange,
    /// Some of the region's bytes have gone: see [`Backing::lost`](crate::mem::Backing::lost).
    #[error("region lost")]
    Lost,
    /// Bytes of [foreign memory](crate::mem::ForeignMemory) are not mapped, or protected. Only the access itself finds
    /// that out.
    #[error("region not mapped, or protected")]
    Fault,
}

/// Why a key could not be made or adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// The protection domain does not exist.
    #[error("unknown protection domain")]
    UnknownPd,
    /// Remote write or atomic access without local write access.
    #[error("remote write or atomic access needs local write access")]
    IllegalAccess,
    /// The addresses would run past 2^64.
    #[error("address range beyond 64 bits")]
    AddressOverflow,
    /// The table holds as many keys as it can.
    #[error("too many keys")]
    TooMany,
    /// Fast-registration MR: longer than [`KeyTable::MAX_FAST_REG_MR`].
    #[error("a fast-registration MR has at most {} bytes", KeyTable::MAX_FAST_REG_MR)]
    TooLong,
    /// Fast-registration MR or memory window: this table makes shared keys, which only plain regions have.
    #[error("only plain regions have shared keys")]
    SharedTable,
    /// Adopt: the key is not of the shared domain, or this table is one that makes shared keys or keys with consumers'
    /// bytes.
    #[error("region is not shared")]
    NotShared,
    /// Adopt: the table has a region with that key already.
    #[error("key in use")]
    KeyInUse,
}

/// Nothing of the asked kind has the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown key")]
pub struct UnknownKey;

/// Why a region could not be deregistered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeregisterError {
    /// No region, plain or fast, has the key.
    #[error("unknown key")]
    Unknown,
    /// Memory windows are bound to it (libibverbs: `EBUSY`).
    #[error("memory windows are bound to the region")]
    WindowsBound,
}

/// Why a region was not re-registered. In the order in which they are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReregisterError {
    /// No plain region has the key.
    #[error("unknown key")]
    Unknown,
    /// Nothing is to be changed (libibverbs: `EINVAL`, as for all but [`WindowsBound`](Self::WindowsBound)).
    #[error("nothing to change")]
    NoChange,
    /// The region has a shared key: other tables would not know of the change.
    #[error("region is shared")]
    Shared,
    /// Memory windows are bound to it (libibverbs: `EBUSY`).
    #[error("memory windows are bound to the region")]
    WindowsBound,
    /// The new protection domain does not exist.
    #[error("unknown protection domain")]
    UnknownPd,
    /// Remote write or atomic access without local write access.
    #[error("remote write or atomic access needs local write access")]
    IllegalAccess,
    /// The new addresses would run past 2^64.
    #[error("address range beyond 64 bits")]
    AddressOverflow,
}

/// Why a fast-registration MR could not be mapped or registered. In the order in which they are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FastRegMrError {
    /// No fast-registration MR has the key.
    #[error("unknown key")]
    Unknown,
    /// The fast-registration MR belongs to another protection domain.
    #[error("key of another protection domain")]
    WrongPd,
    /// The fast-registration MR is in state VALID; it must be invalidated first.
    #[error("fast-registration MR is not free")]
    NotFree,
    /// More bytes than the fast-registration MR was made for.
    #[error("more bytes than the fast-registration MR was made for")]
    TooLong,
    /// No bytes have been mapped to it.
    #[error("no memory mapped to the fast-registration MR")]
    NotMapped,
    /// Remote write or atomic access without local write access.
    #[error("remote write or atomic access needs local write access")]
    IllegalAccess,
    /// The addresses would run past 2^64.
    #[error("address range beyond 64 bits")]
    AddressOverflow,
}

/// Why a memory window was not bound. In the order in which they are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// No memory window has the key.
    #[error("unknown key")]
    Unknown,
    /// The memory window belongs to another protection domain.
    #[error("key of another protection domain")]
    WrongPd,
    /// The key's lowest byte cannot be set: the table is of [`KeyLayout::Random`](super::KeyLayout::Random).
    #[error("the keys have no consumer's byte")]
    FixedKey,
    /// The type 2 memory window is bound already; it must be invalidated first.
    #[error("memory window is bound")]
    AlreadyBound,
    /// A type 2 memory window cannot be bound to no bytes; it is invalidated instead.
    #[error("no bytes to bind to")]
    NoBytes,
    /// Rights that a memory window of its type cannot grant.
    #[error("access that a memory window cannot grant")]
    IllegalAccess,
    /// No plain region, and no fast-registration MR in state VALID, has the region's key.
    #[error("unknown key of the region")]
    UnknownRegion,
    /// The region belongs to another protection domain.
    #[error("region of another protection domain")]
    RegionWrongPd,
    /// The region was registered without [`Access::MW_BIND`](super::Access::MW_BIND).
    #[error("region does not allow memory windows")]
    NotBindable,
    /// The region's addresses count from zero.
    #[error("region with zero-based addresses")]
    ZeroBasedRegion,
    /// Remote write or atomic access through a region without local write access.
    #[error("remote write or atomic access needs local write access")]
    NoLocalWrite,
    /// Not all bytes lie inside the region.
    #[error("outside of the region")]
    OutOfRange,
}

/// Why a key was not invalidated. In the order in which they are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidateError {
    /// Nothing has the key.
    #[error("unknown key")]
    Unknown,
    /// It belongs to another protection domain.
    #[error("key of another protection domain")]
    WrongPd,
    /// Plain regions and type 1 memory windows cannot be invalidated.
    #[error("key cannot be invalidated")]
    NotInvalidatable,
    /// The fast-registration MR is FREE, or the memory window unbound, already.
    #[error("key is not valid")]
    NotValid,
    /// By a peer: the memory window is bound on another queue pair.
    #[error("key of another queue pair")]
    WrongQp,
    /// Memory windows are bound to the fast-registration MR.
    #[error("memory windows are bound to the region")]
    WindowsBound,
}

/// Why a key was not replaced by another. In the order in which they are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RenewError {
    /// Nothing has the key.
    #[error("unknown key")]
    Unknown,
    /// The key of a plain region stays.
    #[error("key cannot be renewed")]
    NotRenewable,
    /// The fast-registration MR is VALID, or the type 2 memory window bound.
    #[error("key is valid")]
    Valid,
}

/// Why a protection domain could not be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeallocPdError {
    /// There is no such protection domain.
    #[error("unknown protection domain")]
    Unknown,
    /// Regions, memory windows or queue pairs still use it.
    #[error("protection domain in use")]
    InUse,
}
