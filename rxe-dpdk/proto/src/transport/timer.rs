//! Timers of queue pairs: a heap with at most one entry per slot.

use crate::time::Instant;

/// A slot without an entry.
const ABSENT: u32 = u32::MAX;

/// A binary heap of deadlines, ordered by time. It records the position of every slot's entry, so that an entry can be
/// moved instead of duplicated.
///
/// A queue pair pushes its deadline back with every ACK. That does not touch the heap: the entry stays at the
/// earlier time, and when it is due, the caller compares it with the real deadline and moves it.
#[derive(Debug, Default)]
pub(super) struct TimerHeap {
    heap: Vec<(Instant, u32)>,
    place: Vec<u32>,
}

impl TimerHeap {
    /// Makes room for `entries` entries of slots below `slots`, so that later calls do not allocate.
    pub(super) fn grow(&mut self, slots: usize, entries: usize) {
        if self.place.len() < slots {
            self.place.resize(slots, ABSENT);
        }
        self.heap.reserve(entries.saturating_sub(self.heap.len()));
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest entry.
    #[inline]
    pub(super) fn peek(&self) -> Option<(Instant, u32)> {
        self.heap.first().copied()
    }

    /// Arms the timer of `slot` for `at`, unless its entry is due earlier.
    #[inline]
    pub(super) fn arm(&mut self, slot: u32, at: Instant) {
        let Some(&place) = self.place.get(slot as usize) else { return };
        if place == ABSENT {
            self.heap.push((at, slot));
            self.sift(self.heap.len() - 1);
        } else if at < self.heap[place as usize].0 {
            self.set(slot, at);
        }
    }

    /// Moves the entry of `slot` to `at`, later or earlier; nothing when it has none.
    pub(super) fn set(&mut self, slot: u32, at: Instant) {
        if let Some(&place) = self.place.get(slot as usize).filter(|&&place| place != ABSENT) {
            self.heap[place as usize].0 = at;
            self.sift(place as usize);
        }
    }

    /// Takes out the entry of `slot`, if it has one.
    pub(super) fn remove(&mut self, slot: u32) {
        let Some(place) = self.place.get_mut(slot as usize).filter(|place| **place != ABSENT) else { return };
        let at = std::mem::replace(place, ABSENT) as usize;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.sift(at);
        }
    }

    /// Moves the entry at `at` up or down to where it belongs and records the places of all it passes.
    fn sift(&mut self, mut at: usize) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.heap[parent].0 <= self.heap[at].0 {
                break;
            }
            self.heap.swap(parent, at);
            self.record(at);
            at = parent;
        }
        loop {
            let left = 2 * at + 1;
            let Some(mut child) = (left < self.heap.len()).then_some(left) else { break };
            if left + 1 < self.heap.len() && self.heap[left + 1].0 < self.heap[left].0 {
                child = left + 1;
            }
            if self.heap[at].0 <= self.heap[child].0 {
                break;
            }
            self.heap.swap(at, child);
            self.record(at);
            at = child;
        }
        self.record(at);
    }

    fn record(&mut self, at: usize) {
        self.place[self.heap[at].1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_sorted_list() {
        let mut heap = TimerHeap::default();
        heap.grow(32, 32);
        let mut model = [None; 32];
        let mut x = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..20_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let (slot, at) = ((x >> 20) as u32 % 32, Instant::from_nanos(x >> 40 & 0xFFF));
            let entry = &mut model[slot as usize];
            match x % 4 {
                0 | 1 => {
                    heap.arm(slot, at);
                    *entry = Some(entry.map_or(at, |old: Instant| old.min(at)));
                }
                2 => {
                    heap.set(slot, at);
                    *entry = entry.map(|_| at);
                }
                _ => {
                    heap.remove(slot);
                    *entry = None;
                }
            }
            assert_eq!(heap.peek().map(|(at, _)| at), model.iter().flatten().min().copied());
            assert_eq!(heap.heap.len(), model.iter().flatten().count());
        }
        while let Some((at, slot)) = heap.peek() {
            assert_eq!(model[slot as usize].take(), Some(at));
            heap.remove(slot);
        }
    }
}
