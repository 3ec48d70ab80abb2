//! The type 2 memory windows that are bound, by queue pair.

use std::collections::HashMap;

/// For each queue pair the keys of the windows that are bound on it, as a list through the windows: what is bound and unbound for
/// packets must not allocate, and a queue pair that is destroyed must not look at the windows of others.
#[derive(Debug, Default)]
pub(super) struct BoundWindows {
    /// The first window of each queue pair.
    first: HashMap<u32, u32>,
    neighbours: HashMap<u32, Neighbours>,
    /// Windows that can be bound: there is room for as many.
    windows: usize,
}

/// The windows before and behind one on the list of its queue pair, or 0, which is no key.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    behind: u32,
}

impl BoundWindows {
    /// There is a window more, which is not bound.
    pub(super) fn made(&mut self) {
        self.windows += 1;
        self.neighbours.reserve(self.windows - self.neighbours.len());
        self.first.reserve(self.windows - self.first.len());
    }

    /// There is a window less, which was not bound.
    pub(super) fn forgotten(&mut self) {
        self.windows -= 1;
    }

    /// The window of `key` is bound on queue pair `qpn`.
    pub(super) fn bind(&mut self, qpn: u32, key: u32) {
        let behind = self.first.insert(qpn, key).unwrap_or(0);
        if let Some(neighbours) = self.neighbours.get_mut(&behind) {
            neighbours.before = key;
        }
        self.neighbours.insert(key, Neighbours { before: 0, behind });
    }

    /// The window of `key` is no longer bound on queue pair `qpn`.
    pub(super) fn unbind(&mut self, qpn: u32, key: u32) {
        let Some(Neighbours { before, behind }) = self.neighbours.remove(&key) else { return };
        if let Some(neighbours) = self.neighbours.get_mut(&behind) {
            neighbours.before = before;
        }
        match self.neighbours.get_mut(&before) {
            Some(neighbours) => neighbours.behind = behind,
            None if behind == 0 => _ = self.first.remove(&qpn),
            None => _ = self.first.insert(qpn, behind),
        }
    }

    /// A window that is bound on queue pair `qpn`.
    pub(super) fn of(&self, qpn: u32) -> Option<u32> {
        self.first.get(&qpn).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_found_by_their_queue_pair_in_whatever_order_they_are_unbound() {
        for order in [[10, 20, 30], [10, 30, 20], [20, 10, 30], [20, 30, 10], [30, 10, 20], [30, 20, 10]] {
            let mut bound = BoundWindows::default();
            let room = {
                (0..5).for_each(|_| bound.made());
                (bound.first.capacity(), bound.neighbours.capacity())
            };
            for (qpn, key) in [(7, 10), (8, 40), (7, 20), (7, 30), (9, 50)] {
                bound.bind(qpn, key);
            }
            for key in order {
                assert!(bound.of(7).is_some());
                bound.unbind(7, key);
                assert_ne!(bound.of(7), Some(key));
            }
            assert_eq!((bound.of(7), bound.of(8), bound.of(9)), (None, Some(40), Some(50)));
            bound.unbind(8, 40);
            bound.unbind(9, 50);
            assert!(bound.first.is_empty() && bound.neighbours.is_empty());
            assert_eq!((bound.first.capacity(), bound.neighbours.capacity()), room);
        }
    }
}
