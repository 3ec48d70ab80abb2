//! Why bytes were not accessed.

use super::foreign::Fault;

/// An access outside of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("access outside of the memory")]
pub struct OutOfBounds;

/// Why bytes were not copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// They do not all lie inside; nothing was copied.
    #[error("access outside of the memory")]
    OutOfBounds,
    /// Some of the memory has gone: what was read or written means nothing.
    #[error("the memory is lost")]
    Lost,
    /// Pages of foreign memory are not mapped, or their protection forbids the access. A part may have been copied.
    #[error("the memory is not mapped, or protected")]
    Fault,
}

impl From<OutOfBounds> for AccessError {
    fn from(OutOfBounds: OutOfBounds) -> AccessError {
        AccessError::OutOfBounds
    }
}

impl From<Fault> for AccessError {
    fn from(Fault: Fault) -> AccessError {
        AccessError::Fault
    }
}

/// Why an atomic access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AtomicError {
    /// The 8 bytes do not lie inside.
    #[error("atomic access outside of the memory")]
    OutOfBounds,
    /// The address is not a multiple of 8.
    #[error("atomic access that is not 8-byte aligned")]
    Misaligned,
    /// Some of the memory has gone: what was read or written means nothing.
    #[error("the memory is lost")]
    Lost,
    /// The page of foreign memory is not mapped, or its protection forbids the access; nothing changed.
    #[error("the memory is not mapped, or protected")]
    Fault,
}

impl From<OutOfBounds> for AtomicError {
    fn from(OutOfBounds: OutOfBounds) -> AtomicError {
        AtomicError::OutOfBounds
    }
}

impl From<Fault> for AtomicError {
    fn from(Fault: Fault) -> AtomicError {
        AtomicError::Fault
    }
}
