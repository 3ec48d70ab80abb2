//! Open addressing by key.

use std::ops::Range;

use crate::prefetch;

/// A value with a key. The default value has key 0, which marks an empty slot.
pub(super) trait Keyed: Clone + Default {
    /// The key; 0 for nothing.
    fn key(&self) -> u32;
}

impl Keyed for u32 {
    #[inline]
    fn key(&self) -> u32 {
        *self
    }
}

/// Values by key: open addressing with linear probing; a power of two of slots, at most half of them full. Keys are
/// random, hence need no hash. Without tombstones, so probing stays short however many keys come and go.
#[derive(Clone)]
pub(super) struct OpenTable<T> {
    slots: Box<[T]>,
    len: usize,
}

impl<T: Keyed> OpenTable<T> {
    /// An empty table that grows with the first value beyond `capacity`, which is a power of two.
    pub(super) fn new(capacity: usize) -> OpenTable<T> {
        debug_assert!(capacity.is_power_of_two());
        OpenTable { slots: vec![T::default(); capacity * 2].into_boxed_slice(), len: 0 }
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The value of `key`.
    #[inline]
    pub(super) fn get(&self, key: u32) -> Option<&T> {
        let mask = self.slots.len() - 1;
        let mut index = home(key, mask);
        // As in `position`; the value is at hand there.
        loop {
            let value = self.slots.get(index)?;
            if value.key() == 0 {
                return None;
            }
            if value.key() == key {
                return Some(value);
            }
            index = (index + 1) & mask;
        }
    }

    /// The value of `key`, to be changed; its key must stay.
    #[inline]
    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let position = self.position(key)?;
        self.slots.get_mut(position)
    }

    /// Whether `key` has a value.
    pub(super) fn contains(&self, key: u32) -> bool {
        self.position(key).is_some()
    }

    /// The values in these slots.
    pub(super) fn in_slots(&self, slots: Range<usize>) -> impl Iterator<Item = &T> {
        let slots = slots.start.min(self.slots.len())..slots.end.min(self.slots.len());
        self.slots.get(slots).unwrap_or_default().iter().filter(|value| value.key() != 0)
    }

    /// Number of slots, empty ones included.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Prefetches the entry of `key`, for a later look-up.
    #[inline]
    pub(super) fn prefetch(&self, key: u32) {
        if let Some(slot) = self.slots.get(home(key, self.slots.len() - 1)) {
            prefetch::whole(slot);
        }
    }

    /// Adds a value, whose key is not 0 and not in the table.
    pub(super) fn insert(&mut self, value: T) {
        debug_assert!(value.key() != 0 && !self.contains(value.key()));
        if (self.len + 1) * 2 > self.slots.len() {
            let size = self.slots.len() * 2;
            let old = std::mem::replace(&mut self.slots, vec![T::default(); size].into_boxed_slice());
            for value in old.into_iter().filter(|value| value.key() != 0) {
                self.place(value);
            }
        }
        self.len += 1;
        self.place(value);
    }

    /// Takes the value of `key` out.
    pub(super) fn remove(&mut self, key: u32) -> Option<T> {
        let position = self.position(key)?;
        let value = std::mem::take(self.slots.get_mut(position)?);
        self.len -= 1;
        self.close_gap(position);
        Some(value)
    }

    /// Index of the value of `key`.
    #[inline]
    fn position(&self, key: u32) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut index = home(key, mask);
        // Ends: at least half of the slots are empty.
        loop {
            let found = self.slots.get(index)?.key();
            // Key 0 marks the empty slot, hence is itself never found.
            if found == 0 {
                return None;
            }
            if found == key {
                return Some(index);
            }
            index = (index + 1) & mask;
        }
    }

    /// Puts `value` into the first empty slot from its home; there is one, as the table is at most half full.
    fn place(&mut self, value: T) {
        let mask = self.slots.len() - 1;
        let mut index = home(value.key(), mask);
        while self.slots.get(index).is_some_and(|slot| slot.key() != 0) {
            index = (index + 1) & mask;
        }
        if let Some(empty) = self.slots.get_mut(index) {
            *empty = value;
        }
    }

    /// Moves later values of the same run into the hole at `hole`.
    fn close_gap(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut index = (hole + 1) & mask;
        while let Some(value) = self.slots.get(index).filter(|value| value.key() != 0) {
            // It may move back to the hole if its home is not behind the hole, seen from where it is now.
            let from_home = index.wrapping_sub(home(value.key(), mask)) & mask;
            let from_hole = index.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.slots.swap(hole, index);
                hole = index;
            }
            index = (index + 1) & mask;
        }
    }
}

/// Where probing for `key` begins. The lowest bit is the domain, the same for most keys of a table. Keys with a consumer's
/// byte have theirs in the lowest bits: one that gives many windows the same byte lengthens the probing in its own table.
#[inline]
fn home(key: u32, mask: usize) -> usize {
    (key >> 1) as usize & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key, and something to tell values apart by.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Value(u32, usize);

    impl Keyed for Value {
        fn key(&self) -> u32 {
            self.0
        }
    }

    #[test]
    fn probing_goes_round_the_end_and_gaps_close() {
        let mut table = OpenTable::new(32);
        let last = 63;
        // Six keys with the same home in the last slot, and three at home in the first, behind them.
        let run: Vec<u32> = (1..=6).map(|n| (n << 8 | last) << 1 | 1).chain((1..=3).map(|n| n << 9 | 1)).collect();
        for (index, &key) in run.iter().enumerate() {
            table.insert(Value(key, index));
        }
        assert_eq!(table.slots.len(), 64);
        for gone in 0..run.len() {
            assert_eq!(table.remove(run[gone]), Some(Value(run[gone], gone)));
            for (index, &key) in run.iter().enumerate() {
                let found = table.get(key).map(|value| value.1);
                assert_eq!(found, (index > gone).then_some(index), "{key:#x} after {gone}");
            }
        }
        assert!(table.len() == 0 && table.slots.iter().all(|value| value.0 == 0));
    }

    #[test]
    fn it_grows_at_half_full() {
        let mut table = OpenTable::new(4);
        for key in 1..=4 {
            table.insert(key);
        }
        assert_eq!((table.len(), table.slots.len()), (4, 8));
        table.insert(5);
        assert_eq!((table.len(), table.slots.len()), (5, 16));
        assert!((1..=5).all(|key| table.contains(key)));
        assert!(!table.contains(6) && !table.contains(0));
        assert_eq!(table.remove(0), None);
    }
}
