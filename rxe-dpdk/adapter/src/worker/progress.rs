//! The step that a worker has entered last, and its thread, for the watchdog.

use std::fs;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crossbeam_utils::CachePadded;

/// A step of a worker's loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Step {
    /// Not started yet, or ended.
    Outside,
    /// `start` of the services.
    Start,
    /// A receive burst of a port.
    Receive,
    /// The frames of a burst, up to the engine and the host stack.
    Dispatch,
    /// Frames of other workers.
    HandOff,
    /// Timers of queue pairs.
    Timers,
    /// Transmit bursts.
    Transmit,
    /// Messages of the control side, and orders of other threads.
    Messages,
    /// Events, completions and timers of services.
    Services,
    /// Connection manager and host stack.
    Control,
    /// Orders that change the data path: ports, fault rules, draining.
    Orders,
    /// The pause of an idle worker.
    Idle,
    /// The frames that are left when the adapter stops.
    Shutdown,
}

impl Step {
    const ALL: [Step; 13] = [
        Step::Outside,
        Step::Start,
        Step::Receive,
        Step::Dispatch,
        Step::HandOff,
        Step::Timers,
        Step::Transmit,
        Step::Messages,
        Step::Services,
        Step::Control,
        Step::Orders,
        Step::Idle,
        Step::Shutdown,
    ];

    /// The name of the step in the log.
    pub fn name(self) -> &'static str {
        match self {
            Step::Outside => "outside",
            Step::Start => "start",
            Step::Receive => "receive",
            Step::Dispatch => "dispatch",
            Step::HandOff => "hand-off",
            Step::Timers => "timers",
            Step::Transmit => "transmit",
            Step::Messages => "messages",
            Step::Services => "services",
            Step::Control => "control",
            Step::Orders => "orders",
            Step::Idle => "idle",
            Step::Shutdown => "shutdown",
        }
    }
}

/// Written by one worker a few times per turn, by a relaxed store; read by the watchdog a few times per second.
#[derive(Debug, Default)]
pub struct Progress {
    step: CachePadded<AtomicU8>,
    /// The system's number of the worker's thread; 0 before the worker runs.
    thread: AtomicU32,
}

impl Progress {
    #[inline]
    /// Notes that the worker enters a step.
    pub fn enter(&self, step: Step) {
        self.step.store(step as u8, Ordering::Relaxed);
    }

    /// Notes that the worker runs in the calling thread.
    pub fn note_thread(&self) {
        // PID/task/TID
        let path = fs::read_link("/proc/thread-self").ok();
        let thread = path.and_then(|path| path.file_name()?.to_str()?.parse().ok());
        self.thread.store(thread.unwrap_or_default(), Ordering::Relaxed);
    }

    /// The worker's thread; `None` if it is not known.
    pub fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|&thread| thread != 0)
    }

    /// The step that the worker has entered last.
    pub fn step(&self) -> Step {
        Step::ALL.get(usize::from(self.step.load(Ordering::Relaxed))).copied().unwrap_or(Step::Outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_step_is_read_back() {
        let progress = Progress::default();
        assert_eq!(progress.step(), Step::Outside);
        for step in Step::ALL {
            progress.enter(step);
            assert_eq!(progress.step(), step);
        }
    }
}
