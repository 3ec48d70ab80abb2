//! The entry of the table for one key.

use super::open_table::Keyed;
use super::{Access, KeyError, Memory, MemoryRegion, PdId, Span};

/// Which kind of memory window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum WindowKind {
    /// `IBV_MW_TYPE_1`: open to every queue pair of its protection domain; may be bound again while it is bound.
    Type1 = 1,
    /// `IBV_MW_TYPE_2`, as 2B: open to the queue pair that it was bound on; must be invalidated before it is bound
    /// again.
    Type2 = 2,
}

/// One key, in a cache line of its own. Empty when `key` is 0.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(super) struct Slot {
    pub(super) key: u32,
    pub(super) pd: u32,
    /// The rights that it grants while it can be reached, and by which keys ([`LOCAL_KEY`], [`REMOTE_KEY`]), so that
    /// a look-up asks for both in one comparison.
    grants: Access,
    role: Role,
    /// The address of the first byte, as peers and work requests give it.
    pub(super) iova: u64,
    /// The bytes. Always there while it can be reached.
    pub(super) memory: Option<Memory>,
}

const _: () = assert!(size_of::<Slot>() == 64, "a look-up should touch one cache line");

/// Among [`Slot::grants`]: the local key opens it.
const LOCAL_KEY: Access = Access::from_bits_retain(1 << 30);
/// Among [`Slot::grants`]: the remote key opens it to the peers of all queue pairs of its protection domain.
const REMOTE_KEY: Access = Access::from_bits_retain(1 << 31);

const _: () = assert!(!Access::all().intersects(LOCAL_KEY.union(REMOTE_KEY)), "the bits must be free");

/// Kind and state of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A plain region.
    Region {
        /// Number of memory windows bound to it.
        windows: u32,
    },
    /// A fast-registration MR in state VALID.
    ValidFastRegMr {
        /// The most bytes that can be mapped.
        max_len: u32,
        /// Number of memory windows bound to it.
        windows: u32,
    },
    /// A bound type 1 memory window.
    BoundType1 {
        /// The key of the region that it is bound to.
        region: u32,
    },
    /// A bound type 2 memory window.
    BoundType2 {
        /// The key of the region that it is bound to.
        region: u32,
        /// The only queue pair whose peer reaches it.
        qpn: u32,
    },
    /// A fast-registration MR in state FREE.
    FreeFastRegMr {
        /// The most bytes that can be mapped.
        max_len: u32,
    },
    /// A memory window that is not bound.
    Unbound(WindowKind),
}

impl Default for Role {
    fn default() -> Role {
        Role::Region { windows: 0 }
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
        let mut slot = Slot {
            key: region.key,
            pd: region.pd.0,
            iova: region.iova,
            memory: Some(region.memory.clone()),
            ..Slot::default()
        };
        slot.open(Role::Region { windows: 0 }, region.access);
        slot
    }

    /// Something that cannot be reached yet.
    pub(super) fn closed(pd: PdId, role: Role) -> Slot {
        Slot { pd: pd.0, role, ..Slot::default() }
    }

    /// Replaces the key.
    pub(super) fn with_key(self, key: u32) -> Slot {
        Slot { key, ..self }
    }

    /// It becomes something that can be reached, with `access`; its address and bytes are in place.
    pub(super) fn open(&mut self, role: Role, access: Access) {
        let by = match role {
            Role::Region { .. } | Role::ValidFastRegMr { .. } => LOCAL_KEY.union(REMOTE_KEY),
            Role::BoundType1 { .. } => REMOTE_KEY,
            Role::BoundType2 { .. } | Role::FreeFastRegMr { .. } | Role::Unbound(_) => Access::empty(),
        };
        self.role = role;
        self.grants = access.difference(LOCAL_KEY.union(REMOTE_KEY)) | by;
    }

    /// It becomes something that cannot be reached.
    pub(super) fn close(&mut self, role: Role) {
        self.role = role;
        self.grants = Access::empty();
    }

    /// Kind and state of the key.
    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// The rights that it grants.
    pub(super) fn access(&self) -> Access {
        self.grants.difference(LOCAL_KEY.union(REMOTE_KEY))
    }

    /// The count of memory windows bound to a region that can be reached, to be changed.
    pub(super) fn windows_mut(&mut self) -> Option<&mut u32> {
        match &mut self.role {
            Role::Region { windows } | Role::ValidFastRegMr { windows, .. } => Some(windows),
            _ => None,
        }
    }

    /// Whether it is of protection domain `pd`.
    #[inline]
    pub(super) fn is_of(&self, pd: PdId) -> bool {
        self.pd == pd.0
    }

    /// Whether it is a region that can be reached.
    pub(super) fn is_valid_region(&self) -> bool {
        self.grants.contains(LOCAL_KEY)
    }

    /// Whether its local key opens it to the queue pairs of `pd` for `need`.
    #[inline]
    pub(super) fn admit_local(&self, pd: PdId, need: Access) -> Result<(), KeyError> {
        if self.is_of(pd) && self.grants.contains(need | LOCAL_KEY) { Ok(()) } else { self.refuse_local(pd) }
    }

    /// Whether its remote key opens it to the peer of queue pair `qpn` of `pd` for `need`.
    #[inline]
    pub(super) fn admit_remote(&self, pd: PdId, qpn: u32, need: Access) -> Result<(), KeyError> {
        // compliance.md [MEM-PD]: A key is valid for the queue pairs of its protection domain only.
        if self.is_of(pd) && self.grants.contains(need | REMOTE_KEY) { Ok(()) } else { self.admit_qp(pd, qpn, need) }
    }

    /// Why [`admit_local`](Self::admit_local) does not.
    #[inline(never)]
    fn refuse_local(&self, pd: PdId) -> Result<(), KeyError> {
        Err(if !self.is_valid_region() {
            KeyError::Unknown
        } else if !self.is_of(pd) {
            KeyError::WrongPd
        } else {
            KeyError::NoAccess
        })
    }

    /// The result of [`admit_remote`](Self::admit_remote) where not all of the protection domain is admitted.
    #[inline(never)]
    fn admit_qp(&self, pd: PdId, qpn: u32, need: Access) -> Result<(), KeyError> {
        match self.role {
            Role::FreeFastRegMr { .. } | Role::Unbound(_) => Err(KeyError::Unknown),
            _ if !self.is_of(pd) => Err(KeyError::WrongPd),
            // compliance.md [MEM-WINDOW-2]: A type 2 window is valid for the queue pair that it is bound on and cannot
            // be bound again before it is invalidated, by its owner or that queue pair's peer.
            Role::BoundType2 { qpn: only, .. } if only != qpn => Err(KeyError::WrongQp),
            _ if !self.grants.contains(need) => Err(KeyError::NoAccess),
            _ => Ok(()),
        }
    }

    /// Whether its bytes have gone.
    pub(super) fn is_lost(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_lost)
    }

    /// The span of `len` bytes at address `va`.
    #[inline(always)]
    pub(super) fn span(&self, va: u64, len: u64) -> Result<Span<'_>, KeyError> {
        let memory = self.memory.as_ref().ok_or(KeyError::Unknown)?;
        let offset = self.offset(memory, va, len).ok_or(KeyError::OutOfRange)?;
        if memory.is_lost() {
            return Err(KeyError::Lost);
        }
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
        // compliance.md [MEM-RANGE]: All bytes of an access must lie inside the region, also at the top of the address
        // space.
        (offset <= length && len <= length - offset).then_some(offset)
    }
}
