//! What the table holds for one key.

use std::num::NonZeroU32;

use super::open_table::Keyed;
use super::{Access, KeyError, Memory, MemoryRegion, PdId, Span, WindowKind};

/// One key, in a cache line of its own. Empty when `key` is 0.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) key: u32,
    pub(super) pd: u32,
    /// What it grants, while it can be reached.
    pub(super) access: Access,
    pub(super) role: Role,
    /// The address of the first byte, as peers and work requests give it.
    pub(super) iova: u64,
    /// The bytes. Always there while it can be reached.
    pub(super) memory: Option<Memory>,
}

const _: () = assert!(size_of::<Slot>() == 64, "a look-up should touch one cache line");

/// What kind of key it is, and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A plain region.
    Region {
        /// How many memory windows are bound to it.
        windows: u32,
    },
    /// A fast region.
    FastRegion {
        /// VALID, not FREE.
        valid: bool,
        /// The most bytes that can be mapped.
        max_len: u32,
        /// How many memory windows are bound to it; 0 when it is FREE.
        windows: u32,
    },
    /// A memory window.
    Window {
        kind: WindowKind,
        /// The key of the region that it is bound to.
        region: Option<NonZeroU32>,
        /// The queue pair that a bound type 2 window is for.
        qpn: u32,
    },
}

impl Default for Role {
    fn default() -> Role {
        Role::Region { windows: 0 }
    }
}

impl Role {
    /// Whether it is a region that can be reached.
    #[inline]
    pub(super) fn is_valid_region(self) -> bool {
        matches!(self, Role::Region { .. } | Role::FastRegion { valid: true, .. })
    }

    /// Whether the queue pair `qpn` can reach it by remote key, as far as kind and state go.
    ///
    /// # Errors
    ///
    /// [`KeyError::Unknown`] when nobody can, [`KeyError::WrongQp`] when only another queue pair can.
    #[inline]
    pub(super) fn admit(self, qpn: u32) -> Result<(), KeyError> {
        match self {
            Role::Region { .. } | Role::FastRegion { valid: true, .. } => Ok(()),
            Role::Window { kind, region: Some(_), qpn: only } => match kind {
                WindowKind::Type2 if only != qpn => Err(KeyError::WrongQp),
                _ => Ok(()),
            },
            Role::FastRegion { valid: false, .. } | Role::Window { region: None, .. } => Err(KeyError::Unknown),
        }
    }

    /// The count of memory windows bound to a region, to be changed.
    pub(super) fn windows_mut(&mut self) -> Option<&mut u32> {
        match self {
            Role::Region { windows } | Role::FastRegion { windows, .. } => Some(windows),
            Role::Window { .. } => None,
        }
    }
}

impl Keyed for Slot {
    #[inline]
    fn key(&self) -> u32 {
        self.key
    }
}

impl Slot {
    /// A plain region.
    pub(super) fn of(region: &MemoryRegion) -> Slot {
        Slot {
            key: region.key,
            pd: region.pd.0,
            access: region.access,
            role: Role::Region { windows: 0 },
            iova: region.iova,
            memory: Some(region.memory.clone()),
        }
    }

    /// The span of `len` bytes at address `va`, when it grants `need`.
    #[inline]
    pub(super) fn span(&self, va: u64, len: u64, need: Access) -> Result<Span<'_>, KeyError> {
        let memory = self.memory.as_ref().ok_or(KeyError::Unknown)?;
        if !self.access.contains(need) {
            return Err(KeyError::NoAccess);
        }
        let offset = self.offset(memory, va, len).ok_or(KeyError::OutOfRange)?;
        // Both are at most the memory's length, a usize.
        Ok(Span::new(memory, offset as usize, len as usize))
    }

    /// Where in `memory`, which is the slot's, the `len` bytes at address `va` begin, if all lie inside.
    #[inline]
    pub(super) fn offset(&self, memory: &Memory, va: u64, len: u64) -> Option<u64> {
        // An address below the first one wraps to an offset of at least 2^64 - iova, which is not below the length
        // because registration made sure that iova + length <= 2^64. So one subtraction checks both ends.
        let offset = va.wrapping_sub(self.iova);
        let length = memory.len() as u64;
        (offset <= length && len <= length - offset).then_some(offset)
    }

    /// Whether it is of protection domain `pd`.
    #[inline]
    pub(super) fn is_of(&self, pd: PdId) -> bool {
        self.pd == pd.0
    }
}
