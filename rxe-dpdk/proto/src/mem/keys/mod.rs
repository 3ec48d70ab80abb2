//! Keys: which bytes a local or remote key stands for.

mod bound;
mod draw;
mod error;
mod fast_reg_mr;
mod invalidate;
mod list;
mod open_table;
mod pd;
mod quarantine;
mod reregister;
mod slot;
mod window;

use std::collections::BTreeMap;
use std::fmt;

use super::{Access, Memory, MemoryRegion, PdId, Span};

use bound::BoundWindows;
pub use draw::KeyLayout;
use draw::KeySource;
pub use error::{
    BindError, DeallocPdError, DeregisterError, FastRegMrError, InvalidateError, KeyError, RegisterError, RenewError,
    ReregisterError, UnknownKey,
};
pub use list::{KeyInfo, KeyKind};
use open_table::OpenTable;
use pd::PdUsers;
pub use reregister::Reregister;
pub use slot::WindowKind;
use slot::{Role, Slot};
pub use window::WindowBind;

/// Which keys a table makes: the lowest bit of the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum KeyDomain {
    /// Even keys: what belongs to one lcore.
    Local = 0,
    /// Odd keys: regions that the tables of other lcores [adopt](KeyTable::adopt).
    Shared = 1,
}

/// The protection domains, regions and memory windows of one engine.
///
/// Owned by one lcore, so a look-up takes no lock: it indexes by key bits, compares the key and checks the rest within
/// the same cache line.
///
/// # What has a key
///
/// | kind | made, forgotten | state | local key opens | remote key opens |
/// |---|---|---|---|---|
/// | plain region | [`register`](Self::register) or [`adopt`](Self::adopt), [`deregister`](Self::deregister) | | yes | yes |
/// | fast-registration MR | [`alloc_fast_reg_mr`](Self::alloc_fast_reg_mr), [`deregister`](Self::deregister) | FREE | no | no |
/// | | | VALID | yes | yes |
/// | memory window | [`alloc_window`](Self::alloc_window), [`dealloc_window`](Self::dealloc_window) | unbound | no | no |
/// | | | bound, type 1 | no | yes |
/// | | | bound, type 2 | no | on its queue pair |
///
/// [`fast_register`](Self::fast_register) takes a fast-registration MR from FREE to VALID and
/// [`bind_window`](Self::bind_window) a window from unbound to bound;
/// [`invalidate_local`](Self::invalidate_local) and [`invalidate_remote`](Self::invalidate_remote) take them back.
/// These four, [`renew_key`](Self::renew_key) and the look-ups may be called for packets and posted requests: they do
/// not allocate. A region that windows are bound to can be neither deregistered nor invalidated.
/// [`reregister`](Self::reregister) changes a plain region under its key.
///
/// # Keys
///
/// A key is 31 bits of ChaCha12 and the bit of the [`KeyDomain`]; knowing any number of keys tells nothing about
/// another. Key 0 is never made. A key that was forgotten or [renewed](Self::renew_key) stays unknown: the last
/// [`KeyTable::QUARANTINE`] such keys are never drawn, older ones only by the chance of one in 2^31 per draw, which is
/// the chance of any guess.
///
/// A table made [`with_consumer_byte`](Self::with_consumer_byte) draws 32 bits, and no two of its keys agree in the
/// upper 24. A [bind](Self::bind_window_as) may set the lowest byte of a window's key, as libibverbs does. The old key
/// is unknown then; as a byte has 256 values, the consumer may make it valid again, for the same window only. The
/// quarantine holds the upper bits, so whatever bytes a key has had, none of those keys opens another object soon. A
/// peer guesses a key whose byte it knows with the chance of one in 2^24.
pub struct KeyTable {
    slots: OpenTable<Slot>,
    source: KeySource,
    bound: BoundWindows,
    /// The users of each protection domain.
    pds: BTreeMap<PdId, PdUsers>,
    next_pd: u32,
    max_keys: usize,
}

impl KeyTable {
    /// How many dead keys are certain not to come back.
    pub const QUARANTINE: usize = KeySource::QUARANTINE;
    /// The most keys that a table holds; a table with consumers' bytes holds [fewer](KeyLayout::max_keys).
    pub const MAX_KEYS: usize = KeyLayout::Random.max_keys();
    /// The most bytes that a fast-registration MR can be made for: those of the longest message.
    pub const MAX_FAST_REG_MR: usize = 1 << 31;
    /// How many keys there is room for at first.
    const MIN_KEYS: usize = 32;

    /// An empty table. `seed` must be secret and fresh for every table of the process' life: equal seeds make equal
    /// keys.
    #[must_use]
    pub fn new(seed: [u8; 32], domain: KeyDomain) -> KeyTable {
        KeyTable::with_source(KeySource::random(seed, domain))
    }

    /// An empty table for consumers that set the lowest byte of the keys of their windows
    /// ([`KeyLayout::ConsumerByte`]). Its keys have no domain, and it adopts no regions. `seed` as for
    /// [`new`](Self::new).
    #[must_use]
    pub fn with_consumer_byte(seed: [u8; 32]) -> KeyTable {
        KeyTable::with_source(KeySource::consumer_byte(seed))
    }

    fn with_source(source: KeySource) -> KeyTable {
        let (slots, max_keys) = (OpenTable::new(Self::MIN_KEYS), source.layout().max_keys());
        KeyTable { slots, source, bound: BoundWindows::default(), pds: BTreeMap::new(), next_pd: 1, max_keys }
    }

    /// The table with room for fewer keys than its [layout](Self::layout) allows.
    #[must_use]
    pub fn with_room(self, max_keys: usize) -> KeyTable {
        KeyTable { max_keys: max_keys.min(self.layout().max_keys()), ..self }
    }

    /// The span of `len` bytes at address `va` of the region behind a local key, as a work request names it: a plain
    /// region or a fast-registration MR in state VALID.
    ///
    /// `need` are the rights to check for; empty for local reading. The whole range must lie inside the region, also
    /// when `len` is 0 (requests of length 0 check no key at all: that is the caller's business).
    ///
    /// # Errors
    ///
    /// [`KeyError`]: the first reason in its order.
    #[inline(always)]
    pub fn check_local(&self, lkey: u32, pd: PdId, va: u64, len: u64, need: Access) -> Result<Span<'_>, KeyError> {
        let slot = self.slots.get(lkey).ok_or(KeyError::Unknown)?;
        slot.admit_local(pd, need)?;
        slot.span(va, len)
    }

    /// The span of `len` bytes at address `va` of what a remote key opens to the peer of queue pair `qpn`: what a local
    /// key opens, and bound memory windows, where addresses count from 0 if the window is zero-based.
    ///
    /// `need` are the remote rights to check for. The whole range must lie inside, also when `len` is 0.
    ///
    /// # Errors
    ///
    /// [`KeyError`]: the first reason in its order.
    #[inline(always)]
    pub fn check_remote(
        &self,
        rkey: u32,
        pd: PdId,
        qpn: u32,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<Span<'_>, KeyError> {
        let slot = self.slots.get(rkey).ok_or(KeyError::Unknown)?;
        slot.admit_remote(pd, qpn, need)?;
        slot.span(va, len)
    }

    /// As [`check_remote`](Self::check_remote) for all the bytes behind a key, however many there are.
    ///
    /// # Errors
    ///
    /// [`KeyError`]: the first reason in its order.
    pub fn check_remote_key(&self, rkey: u32, pd: PdId, qpn: u32, need: Access) -> Result<(), KeyError> {
        let slot = self.slots.get(rkey).ok_or(KeyError::Unknown)?;
        slot.admit_remote(pd, qpn, need)?;
        if slot.is_lost() { Err(KeyError::Lost) } else { Ok(()) }
    }

    /// The plain region, or the fast-registration MR in state VALID, behind `key`, if there is one.
    #[must_use]
    pub fn region(&self, key: u32) -> Option<MemoryRegion> {
        let slot = self.slots.get(key).filter(|slot| slot.is_valid_region())?;
        let memory = slot.memory.clone()?;
        Some(MemoryRegion { key, pd: PdId(slot.pd), access: slot.access(), iova: slot.iova, memory })
    }

    /// Registers `memory` under a fresh key. Its first byte gets the address `iova` (with
    /// [`Access::ZERO_BASED`]: 0), which peers and work requests use.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], naming the reason; nothing changes then.
    pub fn register(
        &mut self,
        pd: PdId,
        memory: Memory,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        if !access.is_legal() {
            return Err(RegisterError::IllegalAccess);
        }
        let iova = first_address(&memory, iova, access).ok_or(RegisterError::AddressOverflow)?;
        let region = MemoryRegion { key: 0, pd, access, iova, memory };
        let key = self.add(Slot::of(&region))?;
        Ok(MemoryRegion { key, ..region })
    }

    /// Makes a region of the shared table known here under the same key, in protection domain `pd` of this table.
    /// Returns the region as this table has it.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], naming the reason; nothing changes then.
    pub fn adopt(&mut self, pd: PdId, region: &MemoryRegion) -> Result<MemoryRegion, RegisterError> {
        let is_shared = region.key & 1 == KeyDomain::Shared as u32;
        if self.domain() == KeyDomain::Shared || self.source.draws(region.key) || !is_shared {
            return Err(RegisterError::NotShared);
        }
        if self.slots.contains(region.key) {
            return Err(RegisterError::KeyInUse);
        }
        self.room(pd)?;
        let region = MemoryRegion { pd, ..region.clone() };
        self.insert(Slot::of(&region));
        Ok(region)
    }

    /// Forgets a region: plain, its own or an adopted one, or fast, FREE or VALID. From now on the key is unknown to
    /// this table. The returned memory, which a FREE fast-registration MR may lack, lives on while anybody holds a
    /// clone of it.
    ///
    /// # Errors
    ///
    /// [`DeregisterError`], naming the reason; nothing changes then.
    pub fn deregister(&mut self, key: u32) -> Result<Option<Memory>, DeregisterError> {
        match self.slots.get(key).ok_or(DeregisterError::Unknown)?.role() {
            Role::BoundType1 { .. } | Role::BoundType2 { .. } | Role::Unbound(_) => Err(DeregisterError::Unknown),
            // compliance.md [MEM-WINDOW-HOLDS]: A region is neither deregistered nor invalidated while windows are
            // bound to it.
            Role::Region { windows: 1.. } | Role::ValidFastRegMr { windows: 1.., .. } => {
                Err(DeregisterError::WindowsBound)
            }
            Role::Region { .. } | Role::ValidFastRegMr { .. } | Role::FreeFastRegMr { .. } => {
                self.forget(key).map(|slot| slot.memory).ok_or(DeregisterError::Unknown)
            }
        }
    }

    /// Prefetches what a look-up of `key` needs.
    #[inline]
    pub(crate) fn prefetch(&self, key: u32) {
        self.slots.prefetch(key);
    }

    /// Number of keys: of plain regions, fast-registration MRs and memory windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which keys this table makes; local ones, even or odd, if consumers may set their lowest byte.
    #[must_use]
    pub fn domain(&self) -> KeyDomain {
        self.source.domain()
    }

    /// Which bits of its keys this table chooses.
    #[must_use]
    pub fn layout(&self) -> KeyLayout {
        self.source.layout()
    }

    /// Refuses, in the shared table, what cannot be adopted: its state changes in one table only.
    fn own_keys_only(&self) -> Result<(), RegisterError> {
        match self.domain() {
            KeyDomain::Local => Ok(()),
            KeyDomain::Shared => Err(RegisterError::SharedTable),
        }
    }

    /// Checks that a key can be added in `pd`.
    fn room(&self, pd: PdId) -> Result<(), RegisterError> {
        if !self.pds.contains_key(&pd) {
            Err(RegisterError::UnknownPd)
        } else if self.slots.len() >= self.max_keys {
            Err(RegisterError::TooMany)
        } else {
            Ok(())
        }
    }

    /// Adds a slot under a fresh key, which is returned.
    fn add(&mut self, slot: Slot) -> Result<u32, RegisterError> {
        self.room(PdId(slot.pd))?;
        let key = self.source.draw(&self.slots);
        self.insert(slot.with_key(key));
        Ok(key)
    }

    fn insert(&mut self, slot: Slot) {
        self.count_key(PdId(slot.pd));
        self.slots.insert(slot);
    }

    /// Takes a slot out, never to see its key again.
    fn forget(&mut self, key: u32) -> Option<Slot> {
        let slot = self.slots.remove(key)?;
        self.uncount_key(PdId(slot.pd));
        self.source.retire(key);
        Some(slot)
    }
}

/// The address of the first byte of `memory`, when it is registered at `iova`; `None` when the last one would be
/// beyond 2^64.
fn first_address(memory: &Memory, iova: u64, access: Access) -> Option<u64> {
    let first = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    // The range may end exactly at 2^64.
    first.checked_add((memory.len() as u64).saturating_sub(1)).map(|_| first)
}

impl fmt::Debug for KeyTable {
    /// The sizes only: keys are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyTable")
            .field("domain", &self.domain())
            .field("layout", &self.layout())
            .field("keys", &self.slots.len())
            .field("pds", &self.pds.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [MEM-KEY-QUARANTINE]
    #[test]
    fn a_drawn_key_that_is_taken_or_was_is_drawn_again() {
        let seed = [3; 32];
        let mut keys = KeyTable::new(seed, KeyDomain::Local);
        let pd = keys.alloc_pd();
        let register =
            |keys: &mut KeyTable| keys.register(pd, Memory::heap(1), 0, Access::empty()).map(|region| region.rkey());
        let (first, second) = (register(&mut keys).unwrap(), register(&mut keys).unwrap());
        assert_ne!(first, second);
        keys.deregister(first).unwrap();
        // The same draws again: one key is in quarantine, the other in use.
        keys.source.restart(seed);
        let third = register(&mut keys).unwrap();
        assert!(third != first && third != second);
    }

    // [MEM-KEY-QUARANTINE]
    #[test]
    fn a_renewed_key_is_in_quarantine() {
        let seed = [5; 32];
        for mut keys in [KeyTable::new(seed, KeyDomain::Local), KeyTable::with_consumer_byte(seed)] {
            let pd = keys.alloc_pd();
            let first = keys.alloc_fast_reg_mr(pd, 64).unwrap();
            let second = keys.renew_key(first).unwrap();
            // The same draws again.
            keys.source.restart(seed);
            let third = keys.renew_key(second).unwrap();
            assert!(third != first && third != second);
            assert_eq!(keys.len(), 1);
        }
    }
}
