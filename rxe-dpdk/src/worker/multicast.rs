//! Which workers have members of a multicast group.
//!
//! A frame to a group arrives at one worker; every worker with members gets it, as a copy. Who has members is known to
//! the control side, which tells all workers of every change, so a look into a table of its own is all that a worker
//! needs per frame.

use std::collections::BTreeMap;

use rxe_proto::wire::{Gid, PortId};

/// Workers with members of a group, as bits by worker number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WorkerSet(u16);

impl WorkerSet {
    /// No worker.
    pub(crate) const EMPTY: WorkerSet = WorkerSet(0);

    pub(crate) fn contains(self, worker: usize) -> bool {
        self.0 >> worker & 1 != 0
    }

    #[must_use]
    pub(crate) fn with(self, worker: usize) -> WorkerSet {
        WorkerSet(self.0 | 1 << worker)
    }

    #[must_use]
    pub(crate) fn without(self, worker: usize) -> WorkerSet {
        WorkerSet(self.0 & !(1 << worker))
    }

    /// The only worker, if there is one and no other.
    pub(crate) fn only(self) -> Option<usize> {
        self.0.is_power_of_two().then(|| self.0.trailing_zeros() as usize)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..u16::BITS as usize).filter(move |worker| self.contains(*worker))
    }
}

/// The groups with members on any worker.
#[derive(Debug, Default)]
pub(crate) struct GroupMembers(BTreeMap<(PortId, Gid), WorkerSet>);

impl GroupMembers {
    /// The workers with members of a group.
    pub(crate) fn get(&self, port: PortId, group: Gid) -> WorkerSet {
        self.0.get(&(port, group)).copied().unwrap_or_default()
    }

    /// Takes note of them.
    pub(crate) fn set(&mut self, port: PortId, group: Gid, workers: WorkerSet) {
        if workers == WorkerSet::EMPTY {
            self.0.remove(&(port, group));
        } else {
            self.0.insert((port, group), workers);
        }
    }

    /// Every group.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (PortId, Gid)> + '_ {
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
