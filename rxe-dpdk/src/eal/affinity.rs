//! The CPUs that the process was given, for threads that must not share an lcore's.

use std::sync::OnceLock;

static GIVEN: OnceLock<libc::cpu_set_t> = OnceLock::new();

/// Notes where this thread may run. Called before EAL pins it.
pub(super) fn remember() {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread; the set is as long as said, and written.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } == 0 {
        let _ = GIVEN.set(set);
    }
}

/// Lets the calling thread run wherever the process could before EAL was started. A thread that an lcore has started
/// inherits the lcore's one CPU.
pub fn leave_lcore() {
    if let Some(set) = GIVEN.get() {
        // SAFETY: as above; the set is only read. Where it fails the thread stays where it is.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
    }
}
