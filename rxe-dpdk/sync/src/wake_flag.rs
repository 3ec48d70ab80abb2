//! A flag beside an event descriptor, which saves system calls.

use crate::atomic::{AtomicBool, Ordering};

/// Whether a thread that sleeps on an event descriptor has been woken.
///
/// A thread that has work for it calls [`raise`](Self::raise) and, if that says so, writes the event. The sleeping thread reads the
/// event, calls [`lower`](Self::lower), and looks for work, in this order. So the event is written once for all work of the time
/// between, and work that the thread does not see has set the event again.
#[derive(Debug, Default)]
pub struct WakeFlag(AtomicBool);

impl WakeFlag {
    /// Publishes the work of this thread. Returns whether to write the event.
    #[must_use]
    pub fn raise(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Makes the work of threads that raised the flag visible. Call it after the event was read.
    pub fn lower(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}
