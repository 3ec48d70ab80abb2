//! The workers that have members of a multicast group.
//!
//! A frame to a group arrives at one worker, which passes a copy to every other worker with members. The control side
//! keeps the sets and sends every change to all workers, so that a worker looks up each frame in a table of its own.

use std::collections::BTreeMap;

use rxe_proto::wire::{Gid, PortId};

/// A set of workers, one bit per worker number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerSet(u16);

impl WorkerSet {
    /// No worker.
    pub const EMPTY: WorkerSet = WorkerSet(0);

    /// Whether the set contains a worker.
    pub fn contains(self, worker: usize) -> bool {
        self.0 >> worker & 1 != 0
    }

    /// The set with a worker added.
    #[must_use]
    pub fn with(self, worker: usize) -> WorkerSet {
        WorkerSet(self.0 | 1 << worker)
    }

    /// The set without a worker.
    #[must_use]
    pub fn without(self, worker: usize) -> WorkerSet {
        WorkerSet(self.0 & !(1 << worker))
    }

    /// The worker, if the set has exactly one.
    pub fn only(self) -> Option<usize> {
        self.0.is_power_of_two().then(|| self.0.trailing_zeros() as usize)
    }

    /// The workers in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..u16::BITS as usize).filter(move |worker| self.contains(*worker))
    }
}

/// The groups with members on any worker.
#[derive(Debug, Default)]
pub(crate) struct GroupMembers(BTreeMap<(PortId, Gid), WorkerSet>);

impl GroupMembers {
    /// The workers with members of a group.
    pub fn get(&self, port: PortId, group: Gid) -> WorkerSet {
        self.0.get(&(port, group)).copied().unwrap_or_default()
    }

    /// Sets the workers with members of a group.
    pub fn set(&mut self, port: PortId, group: Gid, workers: WorkerSet) {
        if workers == WorkerSet::EMPTY {
            self.0.remove(&(port, group));
        } else {
            self.0.insert((port, group), workers);
        }
    }

    /// Every group.
    pub fn groups(&self) -> impl Iterator<Item = (PortId, Gid)> + '_ {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_fifteen_workers() {
        let set = WorkerSet::EMPTY.with(0).with(14).with(14);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 14]);
        assert_eq!((set.only(), set.without(0).only(), WorkerSet::EMPTY.only()), (None, Some(14), None));
        assert!(set.contains(14) && !set.contains(13) && !set.without(14).contains(14));
    }
}
