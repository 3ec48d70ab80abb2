//! The turns between the request to stop and the end of the loop.
//!
//! ```text
//! StopFlags::stop:   control, on worker 0, disconnects the peers
//! StopFlags::finish: each worker turns until its services have no operation outstanding
//! StopFlags::halt:   the workers leave their loops
//! ```

use std::sync::atomic::Ordering;

use rxe_proto::{Duration, Instant};

use super::Worker;

/// How long peers have to answer DREQs, and operations of services to complete, when the adapter stops: together.
const STOP_PATIENCE: Duration = Duration::from_millis(1500);

/// A worker's part of [`StopFlags::finish`](super::StopFlags::finish).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Finish {
    /// The flag was not seen.
    #[default]
    NotBegun,
    /// It was seen, so what control has sent before is read in the next turn.
    Begun,
    /// The worker has finished.
    Done,
}

impl Worker {
    /// Called after each turn once the adapter is to stop. All of these turns but the first have read the mailbox.
    #[cold]
    pub(super) fn follow_stop(&mut self, now: Instant) {
        let flags = &self.flags;
        match self.finish {
            // The store is after the last message of control.
            Finish::NotBegun if flags.finish.load(Ordering::Acquire) => self.finish = Finish::Begun,
            Finish::Begun if self.dispatcher.services.is_finished() => {
                flags.finished.arrive();
                self.finish = Finish::Done;
            }
            Finish::NotBegun | Finish::Begun | Finish::Done => {}
        }
        let Some(control) = &mut self.dispatcher.control else { return };
        control.begin_stop(now);
        if control.is_stopped(now, STOP_PATIENCE) {
            flags.finish.store(true, Ordering::Release);
        }
        if flags.finished.are(self.dispatcher.workers) || control.is_stop_overdue(now, STOP_PATIENCE) {
            flags.halt.store(true, Ordering::Relaxed);
        }
    }
}
