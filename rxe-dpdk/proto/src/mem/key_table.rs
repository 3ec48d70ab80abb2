//! Keys: which bytes a local or remote key stands for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

use super::{Access, Memory, MemoryRegion, PdId, Span};

/// Which keys a table makes: the lowest bit of the key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum KeyDomain {
    /// Even keys: regions of one lcore.
    Local = 0,
    /// Odd keys: regions that the tables of other lcores [adopt](KeyTable::adopt).
    Shared = 1,
}

/// Why a key, with its addresses and rights, was refused. In the order in which they are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// No region has this key (any more).
    #[error("unknown key")]
    Unknown,
    /// The region belongs to another protection domain.
    #[error("key of another protection domain")]
    WrongPd,
    /// The region does not grant the right.
    #[error("access not granted")]
    NoAccess,
    /// Not all bytes lie inside the region.
    #[error("outside of the region")]
    OutOfRange,
}

/// Why a region could not be registered or adopted.
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
    /// The table holds as many regions as it can.
    #[error("too many memory regions")]
    TooMany,
    /// Adopt: the key is not of the shared domain, or this table is the one that makes shared keys.
    #[error("region is not shared")]
    NotShared,
    /// Adopt: the table has a region with that key already.
    #[error("key in use")]
    KeyInUse,
}

/// No region has the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown key")]
pub struct UnknownKey;

/// Why a protection domain could not be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeallocPdError {
    /// There is no such protection domain.
    #[error("unknown protection domain")]
    Unknown,
    /// Regions or queue pairs still use it.
    #[error("protection domain in use")]
    InUse,
}

/// The protection domains and registered regions of one engine.
///
/// Owned by one lcore, so a look-up takes no lock: it indexes by key bits, compares the key and checks the rest within
/// the same cache line.
///
/// # Keys
///
/// A key is 31 bits of ChaCha12 and the bit of the [`KeyDomain`]; knowing any number of keys tells nothing about
/// another. Key 0 is never made. A key of a deregistered region stays unknown: the last [`KeyTable::QUARANTINE`]
/// deregistered keys are never drawn, older ones only by the chance of one in 2^31 per registration, which is the
/// chance of any guess.
pub struct KeyTable {
    /// Open addressing with linear probing; a power of two, at most half full. Keys are random, hence need no hash.
    slots: Box<[Slot]>,
    regions: usize,
    domain: KeyDomain,
    rng: ChaCha12Rng,
    /// How many regions and other users (queue pairs) each protection domain has.
    pds: BTreeMap<PdId, u32>,
    next_pd: u32,
    retired: VecDeque<u32>,
    retired_set: BTreeSet<u32>,
}

/// One region, in a cache line of its own. Empty when `memory` is `None`; `key` is 0 then.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Slot {
    key: u32,
    pd: u32,
    access: Access,
    iova: u64,
    memory: Option<Memory>,
}

const _: () = assert!(size_of::<Slot>() == 64, "a look-up should touch one cache line");

impl KeyTable {
    /// How many deregistered keys are certain not to come back.
    pub const QUARANTINE: usize = 1 << 16;
    /// The most regions that a table holds.
    pub const MAX_REGIONS: usize = 1 << 24;
    const MIN_SLOTS: usize = 64;

    /// An empty table. `seed` must be secret and fresh for every table of the process' life: equal seeds make equal
    /// keys.
    #[must_use]
    pub fn new(seed: [u8; 32], domain: KeyDomain) -> KeyTable {
        KeyTable {
            slots: vec![Slot::default(); Self::MIN_SLOTS].into_boxed_slice(),
            regions: 0,
            domain,
            rng: ChaCha12Rng::from_seed(seed),
            pds: BTreeMap::new(),
            next_pd: 1,
            retired: VecDeque::new(),
            retired_set: BTreeSet::new(),
        }
    }

    /// The span of `len` bytes at address `va` of the region behind `key`.
    ///
    /// `need` are the rights to check for; empty for local reading. The whole range must lie inside the region, also
    /// when `len` is 0 (requests of length 0 check no key at all: that is the caller's business).
    ///
    /// # Errors
    ///
    /// [`KeyError`]: the first reason in its order.
    #[inline]
    pub fn check(&self, key: u32, pd: PdId, va: u64, len: u64, need: Access) -> Result<Span<'_>, KeyError> {
        let slot = self.find(key).ok_or(KeyError::Unknown)?;
        let memory = slot.memory.as_ref().ok_or(KeyError::Unknown)?;
        if slot.pd != pd.0 {
            return Err(KeyError::WrongPd);
        }
        if !slot.access.contains(need) {
            return Err(KeyError::NoAccess);
        }
        // An address below the region wraps to an offset of at least 2^64 - iova, which is not below the length
        // because registration made sure that iova + length <= 2^64. So one subtraction checks both ends.
        let offset = va.wrapping_sub(slot.iova);
        let length = memory.len() as u64;
        if offset > length || len > length - offset {
            return Err(KeyError::OutOfRange);
        }
        // Both are at most the memory's length, a usize.
        Ok(Span::new(memory, offset as usize, len as usize))
    }

    /// The region behind `key`, if there is one.
    #[must_use]
    pub fn region(&self, key: u32) -> Option<MemoryRegion> {
        let slot = self.find(key)?;
        let memory = slot.memory.clone()?;
        Some(MemoryRegion { key, pd: PdId(slot.pd), access: slot.access, iova: slot.iova, memory })
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
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        if !access.is_legal() {
            return Err(RegisterError::IllegalAccess);
        }
        // The range may end exactly at 2^64.
        if !memory.is_empty() && iova.checked_add(memory.len() as u64 - 1).is_none() {
            return Err(RegisterError::AddressOverflow);
        }
        self.room(pd)?;
        let key = self.draw_key();
        let region = MemoryRegion { key, pd, access, iova, memory };
        self.insert(&region);
        Ok(region)
    }

    /// Makes a region of the shared table known here under the same key, in protection domain `pd` of this table.
    /// Returns the region as this table has it.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], naming the reason; nothing changes then.
    pub fn adopt(&mut self, pd: PdId, region: &MemoryRegion) -> Result<MemoryRegion, RegisterError> {
        if self.domain == KeyDomain::Shared || region.key & 1 != KeyDomain::Shared as u32 {
            return Err(RegisterError::NotShared);
        }
        if self.find(region.key).is_some() {
            return Err(RegisterError::KeyInUse);
        }
        self.room(pd)?;
        let region = MemoryRegion { pd, ..region.clone() };
        self.insert(&region);
        Ok(region)
    }

    /// Forgets a region, its own or an adopted one. From now on the key is unknown to this table. The returned memory
    /// lives on while anybody holds a clone of it.
    ///
    /// # Errors
    ///
    /// [`UnknownKey`] when there is no such region.
    pub fn deregister(&mut self, key: u32) -> Result<Memory, UnknownKey> {
        let index = self.position(key).ok_or(UnknownKey)?;
        let slot = std::mem::take(self.slots.get_mut(index).ok_or(UnknownKey)?);
        let memory = slot.memory.ok_or(UnknownKey)?;
        self.close_gap(index);
        self.regions -= 1;
        self.release_pd(PdId(slot.pd));
        // An adopted key is not of this table's making, so it cannot be drawn here anyway.
        if key & 1 == self.domain as u32 {
            self.retire(key);
        }
        Ok(memory)
    }

    /// How many regions are registered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions
    }

    /// Whether no region is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions == 0
    }

    /// Which keys this table makes.
    #[must_use]
    pub fn domain(&self) -> KeyDomain {
        self.domain
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> PdId {
        // Numbers are not reused before 2^32 of them are, so a stale PdId means nothing for a long time.
        while self.pds.contains_key(&PdId(self.next_pd)) {
            self.next_pd = self.next_pd.wrapping_add(1);
        }
        let pd = PdId(self.next_pd);
        self.next_pd = self.next_pd.wrapping_add(1);
        self.pds.insert(pd, 0);
        pd
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    ///
    /// [`DeallocPdError`] when it does not exist or is in use.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), DeallocPdError> {
        match self.pds.get(&pd) {
            None => Err(DeallocPdError::Unknown),
            Some(0) => {
                self.pds.remove(&pd);
                Ok(())
            }
            Some(_) => Err(DeallocPdError::InUse),
        }
    }

    /// Counts one more user (a queue pair, for example) of a protection domain, which keeps it from being freed.
    /// False when it does not exist.
    #[must_use]
    pub fn hold_pd(&mut self, pd: PdId) -> bool {
        match self.pds.get_mut(&pd) {
            Some(users) => {
                *users = users.saturating_add(1);
                true
            }
            None => false,
        }
    }

    /// Takes back one [`hold_pd`](Self::hold_pd).
    pub fn release_pd(&mut self, pd: PdId) {
        if let Some(users) = self.pds.get_mut(&pd) {
            *users = users.saturating_sub(1);
        }
    }

    /// How many protection domains there are.
    #[must_use]
    pub fn pd_count(&self) -> usize {
        self.pds.len()
    }

    /// The slot of a registered key.
    #[inline]
    fn find(&self, key: u32) -> Option<&Slot> {
        self.slots.get(self.position(key)?)
    }

    /// Where the slot of a registered key is.
    #[inline]
    fn position(&self, key: u32) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut index = home(key, mask);
        // Ends: at least half of the slots are empty.
        loop {
            let slot = self.slots.get(index)?;
            // Key 0 marks the empty slot, hence is itself never found.
            if slot.key == 0 {
                return None;
            }
            if slot.key == key {
                return Some(index);
            }
            index = (index + 1) & mask;
        }
    }

    /// Checks that a region can be added in `pd`.
    fn room(&self, pd: PdId) -> Result<(), RegisterError> {
        if !self.pds.contains_key(&pd) {
            Err(RegisterError::UnknownPd)
        } else if self.regions >= Self::MAX_REGIONS {
            Err(RegisterError::TooMany)
        } else {
            Ok(())
        }
    }

    /// A key that is neither in use nor in quarantine. At most one key in 128 is, so few draws do.
    fn draw_key(&mut self) -> u32 {
        loop {
            let key = self.rng.next_u32() & !1 | self.domain as u32;
            if key != 0 && self.position(key).is_none() && !self.retired_set.contains(&key) {
                return key;
            }
        }
    }

    fn insert(&mut self, region: &MemoryRegion) {
        if (self.regions + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.regions += 1;
        let _held = self.hold_pd(region.pd);
        let slot = Slot {
            key: region.key,
            pd: region.pd.0,
            access: region.access,
            iova: region.iova,
            memory: Some(region.memory.clone()),
        };
        place(&mut self.slots, slot);
    }

    fn grow(&mut self) {
        let size = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); size].into_boxed_slice());
        for slot in old.into_iter().filter(|slot| slot.key != 0) {
            place(&mut self.slots, slot);
        }
    }

    /// Moves later slots of the same run into the hole at `hole`, so that probing needs no tombstones.
    fn close_gap(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut index = (hole + 1) & mask;
        while let Some(slot) = self.slots.get(index).filter(|slot| slot.key != 0) {
            // It may move back to the hole if its home is not behind the hole, seen from where it is now.
            let from_home = index.wrapping_sub(home(slot.key, mask)) & mask;
            let from_hole = index.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.slots.swap(hole, index);
                hole = index;
            }
            index = (index + 1) & mask;
        }
    }

    fn retire(&mut self, key: u32) {
        self.retired.push_back(key);
        self.retired_set.insert(key);
        if self.retired.len() > Self::QUARANTINE
            && let Some(oldest) = self.retired.pop_front()
        {
            self.retired_set.remove(&oldest);
        }
    }
}

impl fmt::Debug for KeyTable {
    /// The sizes only: keys are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyTable")
            .field("domain", &self.domain)
            .field("regions", &self.regions)
            .field("pds", &self.pds.len())
            .finish_non_exhaustive()
    }
}

/// Where probing for `key` begins. The lowest bit is the domain, the same for most keys of a table.
#[inline]
fn home(key: u32, mask: usize) -> usize {
    (key >> 1) as usize & mask
}

/// Puts `slot` into the first empty place; there is one, as the table is at most half full.
fn place(slots: &mut [Slot], slot: Slot) {
    let mask = slots.len() - 1;
    let mut index = home(slot.key, mask);
    while slots.get(index).is_some_and(|slot| slot.key != 0) {
        index = (index + 1) & mask;
    }
    if let Some(empty) = slots.get_mut(index) {
        *empty = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        keys.rng = ChaCha12Rng::from_seed(seed);
        let third = register(&mut keys).unwrap();
        assert!(third != first && third != second);
        // Beyond the quarantine nothing is remembered.
        for key in 0..KeyTable::QUARANTINE as u32 {
            keys.retire(key << 1);
        }
        assert_eq!((keys.retired.len(), keys.retired_set.len()), (KeyTable::QUARANTINE, KeyTable::QUARANTINE));
        keys.rng = ChaCha12Rng::from_seed(seed);
        assert_eq!(register(&mut keys), Ok(first));
    }

    #[test]
    fn probing_goes_round_the_end_and_gaps_close() {
        let mut keys = KeyTable::new([4; 32], KeyDomain::Shared);
        let pd = keys.alloc_pd();
        let last = KeyTable::MIN_SLOTS as u32 - 1;
        // Six keys with the same home in the last slot, and three at home in the first, behind them.
        let run: Vec<u32> = (1..=6).map(|n| (n << 8 | last) << 1 | 1).chain((1..=3).map(|n| n << 9 | 1)).collect();
        for (index, &key) in run.iter().enumerate() {
            let memory = Memory::heap(index);
            keys.insert(&MemoryRegion { key, pd, access: Access::empty(), iova: 0, memory });
        }
        for gone in 0..run.len() {
            keys.deregister(run[gone]).unwrap();
            for (index, &key) in run.iter().enumerate() {
                let found = keys.region(key).map(|region| region.len() as usize);
                assert_eq!(found, (index > gone).then_some(index), "{key:#x} after {gone}");
            }
        }
        assert!(keys.is_empty() && keys.slots.iter().all(|slot| slot.key == 0));
    }
}
