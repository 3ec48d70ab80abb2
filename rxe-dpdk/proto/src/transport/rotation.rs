//! Whose turn to transmit it is.
//!
//! Each port has a rotation of its own, as it is the port that refuses: one that is full holds up none of the others. In a
//! rotation a queue pair that has just got something to send comes before those that have used up a quantum and want
//! another: an ACK, or a short message, waits for no more than [`FRESH`] other such turns and one turn of a long message.

use std::collections::VecDeque;

use crate::wire::PortId;

/// Turns of queue pairs that have just got something to send, after which one of the others has its turn.
const FRESH: u32 = 8;

/// The slots of queue pairs that may have something to transmit, each at most once (a flag in the queue pair).
#[derive(Debug, Default)]
pub(super) struct Rotations {
    ports: Vec<Rotation>,
    /// Queue pairs that each rotation has room for.
    room: usize,
}

#[derive(Debug, Default)]
struct Rotation {
    /// Got something to send since they were idle.
    fresh: VecDeque<u16>,
    /// Have used up a quantum at least.
    long: VecDeque<u16>,
    /// Turns of fresh ones that a long one has waited for since the last of a long one.
    in_a_row: u32,
}

impl Rotations {
    /// Makes room for `room` queue pairs, so that later calls do not allocate, but for the first one of a port.
    pub(super) fn grow(&mut self, room: usize) {
        self.room = self.room.max(room);
        self.ports.iter_mut().for_each(|rotation| rotation.grow(self.room));
    }

    /// One past the highest port that has a rotation.
    #[inline]
    pub(super) fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Whether nobody waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ports.iter().all(Rotation::is_empty)
    }

    /// A queue pair on `port` has got something to send.
    #[inline]
    pub(super) fn enter(&mut self, port: PortId, slot: u16) {
        match self.ports.get_mut(usize::from(port.0)) {
            Some(rotation) => rotation.fresh.push_back(slot),
            None => self.enter_first(port, slot),
        }
    }

    #[cold]
    fn enter_first(&mut self, port: PortId, slot: u16) {
        self.ports.resize_with(usize::from(port.0) + 1, Rotation::default);
        self.grow(self.room);
        if let Some(rotation) = self.ports.last_mut() {
            rotation.fresh.push_back(slot);
        }
    }

    /// Takes out the one whose turn it is on a port.
    #[inline]
    pub(super) fn next(&mut self, port: usize) -> Option<u16> {
        self.ports.get_mut(port)?.next()
    }

    /// It has used up its quantum and wants another.
    #[inline(never)]
    pub(super) fn another(&mut self, port: usize, slot: u16) {
        if let Some(rotation) = self.ports.get_mut(port) {
            rotation.long.push_back(slot);
        }
    }

    /// The port took nothing more: it is still this one's turn.
    #[cold]
    pub(super) fn give_back(&mut self, port: usize, slot: u16) {
        if let Some(rotation) = self.ports.get_mut(port) {
            rotation.fresh.push_front(slot);
        }
    }

    /// The queue pair is gone.
    pub(super) fn forget(&mut self, slot: u16) {
        for rotation in &mut self.ports {
            rotation.fresh.retain(|&other| other != slot);
            rotation.long.retain(|&other| other != slot);
        }
    }
}

impl Rotation {
    fn grow(&mut self, room: usize) {
        for line in [&mut self.fresh, &mut self.long] {
            line.reserve(room.saturating_sub(line.len()));
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.long.is_empty()
    }

    #[inline]
    fn next(&mut self) -> Option<u16> {
        if self.long.is_empty() { self.fresh.pop_front() } else { self.next_of_both() }
    }

    /// The next one while there are long ones.
    #[inline(never)]
    fn next_of_both(&mut self) -> Option<u16> {
        if self.in_a_row < FRESH
            && let Some(slot) = self.fresh.pop_front()
        {
            self.in_a_row += 1;
            return Some(slot);
        }
        self.in_a_row = 0;
        self.long.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(0);

    #[test]
    fn fresh_ones_come_first_but_not_for_ever() {
        let mut rotations = Rotations::default();
        for slot in 100..103 {
            rotations.enter(PORT, slot);
            assert_eq!(rotations.next(0), Some(slot));
            rotations.another(0, slot);
        }
        for slot in 0..20 {
            rotations.enter(PORT, slot);
        }
        let order: Vec<u16> = std::iter::from_fn(|| rotations.next(0)).collect();
        // Two turns of fresh ones were before, while a long one waited.
        let expected = (0..6).chain([100]).chain(6..14).chain([101]).chain(14..20).chain([102]);
        assert_eq!(order, expected.collect::<Vec<_>>());
        assert!(rotations.is_empty());
    }

    #[test]
    fn long_ones_take_turns() {
        let mut rotations = Rotations::default();
        (0..3).for_each(|slot| rotations.enter(PORT, slot));
        let mut order = Vec::new();
        for _ in 0..9 {
            let slot = rotations.next(0).unwrap();
            order.push(slot);
            rotations.another(0, slot);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn who_was_refused_is_next_and_ports_are_apart() {
        let mut rotations = Rotations::default();
        (0..3).for_each(|slot| rotations.enter(PORT, slot));
        rotations.enter(PortId(2), 7);
        assert_eq!(rotations.ports(), 3);
        assert_eq!(rotations.next(0), Some(0));
        rotations.give_back(0, 0);
        assert_eq!((rotations.next(2), rotations.next(1), rotations.next(2)), (Some(7), None, None));
        rotations.forget(1);
        assert_eq!((rotations.next(0), rotations.next(0), rotations.next(0)), (Some(0), Some(2), None));
        assert!(rotations.is_empty());
    }
}
