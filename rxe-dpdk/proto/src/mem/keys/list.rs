//! Key inspection for management.

use std::ops::Range;

use super::slot::{Role, Slot};
use super::{Access, KeyTable, PdId};

/// Kind and state of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyKind {
    /// A plain region.
    Region,
    /// A fast-registration MR that is registered (VALID).
    FastRegMr,
    /// A fast-registration MR that is not (FREE).
    FreeFastRegMr,
    /// A memory window bound to a region.
    Window,
    /// A memory window bound to nothing.
    UnboundWindow,
}

impl KeyKind {
    /// The name users see.
    pub const fn name(self) -> &'static str {
        match self {
            KeyKind::Region => "region",
            KeyKind::FastRegMr => "fast_region",
            KeyKind::FreeFastRegMr => "free_fast_region",
            KeyKind::Window => "window",
            KeyKind::UnboundWindow => "unbound_window",
        }
    }
}

/// One key of a [`KeyTable`]. The key is a secret: a peer that knows it can reach the memory by any queue pair that the
/// peer has in the protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyInfo {
    /// The key.
    pub key: u32,
    /// Kind of region or window.
    pub kind: KeyKind,
    /// Protection domain of the key.
    pub pd: PdId,
    /// Operations that the key permits.
    pub access: Access,
    /// The address of the first byte, as peers and work requests give it.
    pub addr: u64,
    /// Number of bytes that the key opens.
    pub len: u64,
    /// Whether some of them have gone, which closes it.
    pub lost: bool,
}

impl KeyTable {
    /// The keys in these slots of the table, for iterating over many of them in parts; the table has
    /// [`slots`](Self::slots). Keys move when the table grows: a list in parts may then miss some and name others
    /// twice.
    pub fn list(&self, slots: Range<usize>) -> impl Iterator<Item = KeyInfo> + '_ {
        self.slots.in_slots(slots).map(info)
    }

    /// Number of slots, used and free.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.slots()
    }
}

fn info(slot: &Slot) -> KeyInfo {
    let kind = match slot.role() {
        Role::Region { .. } => KeyKind::Region,
        Role::ValidFastRegMr { .. } => KeyKind::FastRegMr,
        Role::FreeFastRegMr { .. } => KeyKind::FreeFastRegMr,
        Role::BoundType1 { .. } | Role::BoundType2 { .. } => KeyKind::Window,
        Role::Unbound(_) => KeyKind::UnboundWindow,
    };
    let open = !matches!(kind, KeyKind::FreeFastRegMr | KeyKind::UnboundWindow);
    let len = slot.memory.as_ref().filter(|_| open).map_or(0, |memory| memory.len() as u64);
    let addr = if open { slot.iova } else { 0 };
    KeyInfo { key: slot.key, kind, pd: PdId(slot.pd), access: slot.access(), addr, len, lost: slot.is_lost() }
}
