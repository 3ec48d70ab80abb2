//! Locks of blocks, which keep a block and its checksum together.
//!
//! Only namespaces with checksums use them: an operation on blocks that another operation changes, on this worker or
//! another, waits until that one is complete. Without it a read could meet the data of one write and the checksum of
//! another. Nothing blocks here: an operation gets all of its blocks or none, and tries again later.
//!
//! Many blocks share one lock (4096 locks per namespace), so an operation may wait without need, never the reverse.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of locks, and so the largest number of blocks that one operation may lock at a time.
pub(crate) const LOCKS: u64 = 4096;

/// Held for a change.
const EXCLUSIVE: u32 = 1 << 31;
/// A change waits: no new readers.
const WAITING: u32 = 1 << 30;
/// Number of readers.
const READERS: u32 = WAITING - 1;

/// Locks of a namespace.
pub(crate) struct BlockLocks(Box<[AtomicU32]>);

/// Which use of the blocks a lock allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Reading, beside other readers.
    Shared,
    /// Changing, alone.
    Exclusive,
}

impl BlockLocks {
    pub(crate) fn new() -> BlockLocks {
        BlockLocks((0..LOCKS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Locks `count` blocks from `first`, at most [`LOCKS`] of them, or none.
    ///
    /// An exclusive attempt that meets readers keeps new ones away until the lock was held once:
    /// [`forget`](Self::forget) undoes that.
    pub(crate) fn try_lock(&self, first: u64, count: u64, mode: Mode) -> bool {
        for block in first..first + count {
            if !self.try_one(block, mode) {
                self.unlock(first, block - first, mode);
                return false;
            }
        }
        true
    }

    /// Locks one block for a short copy, and spins until it is free.
    pub(crate) fn lock_one(&self, block: u64, mode: Mode) {
        while !self.try_one(block, mode) {
            std::hint::spin_loop();
        }
    }

    /// Unlocks `count` blocks from `first`.
    pub(crate) fn unlock(&self, first: u64, count: u64, mode: Mode) {
        for block in first..first + count {
            let lock = self.lock(block);
            match mode {
                Mode::Shared => lock.fetch_sub(1, Ordering::Release),
                Mode::Exclusive => lock.fetch_and(!EXCLUSIVE, Ordering::Release),
            };
        }
    }

    /// Ends exclusive attempts that were not successful, so that readers are admitted again.
    pub(crate) fn forget(&self, first: u64, count: u64) {
        for block in first..first + count {
            self.lock(block).fetch_and(!WAITING, Ordering::Relaxed);
        }
    }

    fn try_one(&self, block: u64, mode: Mode) -> bool {
        let lock = self.lock(block);
        let mut value = lock.load(Ordering::Relaxed);
        loop {
            let next = match mode {
                Mode::Shared if value & (EXCLUSIVE | WAITING) != 0 || value & READERS == READERS => return false,
                Mode::Shared => value + 1,
                Mode::Exclusive if value & (EXCLUSIVE | READERS) != 0 => {
                    lock.fetch_or(WAITING, Ordering::Relaxed);
                    return false;
                }
                Mode::Exclusive => EXCLUSIVE,
            };
            match lock.compare_exchange_weak(value, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => value = found,
            }
        }
    }

    fn lock(&self, block: u64) -> &AtomicU32 {
        &self.0[(block % LOCKS) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_a_change_excludes_everything() {
        let locks = BlockLocks::new();
        assert!(locks.try_lock(10, 5, Mode::Shared));
        assert!(locks.try_lock(12, 5, Mode::Shared));
        locks.unlock(10, 5, Mode::Shared);
        assert!(locks.try_lock(10, 2, Mode::Exclusive));
        assert!(!locks.try_lock(8, 3, Mode::Shared));
        assert!(!locks.try_lock(8, 3, Mode::Exclusive));
        assert!(locks.try_lock(8, 2, Mode::Exclusive), "a failed attempt leaves nothing locked");
        locks.unlock(10, 2, Mode::Exclusive);
        locks.forget(8, 3);
        assert!(locks.try_lock(10, 1, Mode::Shared));
    }

    #[test]
    fn a_waiting_change_keeps_new_readers_away_until_it_was_made_or_forgotten() {
        let locks = BlockLocks::new();
        assert!(locks.try_lock(7, 1, Mode::Shared));
        assert!(!locks.try_lock(7, 1, Mode::Exclusive));
        assert!(!locks.try_lock(7, 1, Mode::Shared));
        locks.forget(7, 1);
        assert!(locks.try_lock(7, 1, Mode::Shared));
        assert!(!locks.try_lock(7, 1, Mode::Exclusive));
        locks.unlock(7, 1, Mode::Shared);
        locks.unlock(7, 1, Mode::Shared);
        assert!(locks.try_lock(7, 1, Mode::Exclusive));
        locks.unlock(7, 1, Mode::Exclusive);
        assert!(locks.try_lock(7, 1, Mode::Shared));
    }

    #[test]
    fn as_many_blocks_as_there_are_locks_do_not_meet_each_other() {
        let locks = BlockLocks::new();
        assert!(locks.try_lock(4000, LOCKS, Mode::Exclusive));
        assert!(!locks.try_lock(0, 1, Mode::Shared));
        locks.unlock(4000, LOCKS, Mode::Exclusive);
        assert!(locks.try_lock(0, 1, Mode::Shared));
    }
}
