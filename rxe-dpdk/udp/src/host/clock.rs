//! The worker's clock: the system's monotonic one.

use std::time;

use rxe_adapter::worker::clock::SharedClock;
use rxe_proto::Instant;

/// Time since the adapter was built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(time::Instant);

impl Clock {
    pub(super) fn new() -> Clock {
        Clock(time::Instant::now())
    }

    #[inline]
    pub(super) fn now(&self) -> Instant {
        // 584 years fit.
        Instant::from_nanos(self.0.elapsed().as_nanos() as u64)
    }

    pub(super) fn shared(self) -> SharedClock {
        SharedClock::new(move || self.now())
    }
}
