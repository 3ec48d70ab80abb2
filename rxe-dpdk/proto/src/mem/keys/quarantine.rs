//! Keys that must not come back soon.

use std::fmt;

use super::open_table::OpenTable;

/// The keys that died last, up to a fixed number. All of its room is there from the start, so retiring a key allocates
/// nothing; the operating system backs it with memory as it is used.
pub(super) struct Quarantine {
    /// A ring; 0 where no key has been yet.
    order: Box<[u32]>,
    /// Where the next key goes: to the place of the oldest.
    next: usize,
    known: OpenTable<u32>,
}

impl Quarantine {
    /// Room for `size` keys, a power of two.
    pub(super) fn new(size: usize) -> Quarantine {
        Quarantine { order: vec![0; size].into_boxed_slice(), next: 0, known: OpenTable::new(size) }
    }

    pub(super) fn contains(&self, key: u32) -> bool {
        self.known.contains(key)
    }

    /// Takes in a key, which is not 0 and not here yet, and forgets the oldest when there is no more room.
    pub(super) fn retire(&mut self, key: u32) {
        let Some(place) = self.order.get_mut(self.next) else { return };
        let oldest = std::mem::replace(place, key);
        self.next = (self.next + 1) & (self.order.len() - 1);
        self.known.remove(oldest);
        // compliance.md [MEM-KEY-QUARANTINE]: A deregistered or renewed key is unknown at once and is not reused soon.
        self.known.insert(key);
    }
}

impl fmt::Debug for Quarantine {
    /// The number only: keys are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quarantine({} keys)", self.known.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut quarantine = Quarantine::new(4);
        for key in 1..=10 {
            quarantine.retire(key);
            for other in 0..=11 {
                assert_eq!(
                    quarantine.contains(other),
                    other >= 1 && other <= key && other + 4 > key,
                    "{other} at {key}"
                );
            }
        }
        assert_eq!(format!("{quarantine:?}"), "Quarantine(4 keys)");
    }
}
