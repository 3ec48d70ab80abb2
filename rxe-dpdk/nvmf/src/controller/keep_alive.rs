//! The keep alive timer of a controller.

use rxe_proto::{Duration, Instant};

/// KAS: the timeout's granularity in milliseconds.
pub(super) const GRANULARITY_MS: u32 = 1000;

/// The timer of one controller. It expires twice the timeout after the last command: a host under load sends its Keep
/// Alive late.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAlive {
    timeout_ms: u32,
    last: Instant,
}

impl KeepAlive {
    pub(super) fn new(now: Instant, timeout_ms: u32) -> KeepAlive {
        let mut timer = KeepAlive { timeout_ms: 0, last: now };
        timer.set_timeout(now, timeout_ms);
        timer
    }

    /// Sets the timeout, rounded up to the granularity; 0 is none.
    pub(super) fn set_timeout(&mut self, now: Instant, timeout_ms: u32) {
        self.timeout_ms = timeout_ms.div_ceil(GRANULARITY_MS).saturating_mul(GRANULARITY_MS);
        self.last = now;
    }

    /// The timeout in milliseconds, as rounded.
    pub(super) const fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// The host is alive.
    pub(super) const fn restart(&mut self, now: Instant) {
        self.last = now;
    }

    /// When the controller is to be freed; `None` without a timeout.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (self.timeout_ms > 0).then(|| self.last + Duration::from_millis(2 * u64::from(self.timeout_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_deadline_is_twice_the_rounded_timeout_after_the_last_command() {
        let mut timer = KeepAlive::new(at(1), 4001);
        assert_eq!((timer.timeout_ms(), timer.deadline()), (5000, Some(at(11))));
        timer.restart(at(3));
        assert_eq!(timer.deadline(), Some(at(13)));
    }

    #[test]
    fn no_timeout_has_no_deadline_and_the_longest_one_does_not_overflow() {
        assert_eq!(KeepAlive::new(at(1), 0).deadline(), None);
        assert!(KeepAlive::new(at(1), u32::MAX).deadline() > Some(at(8_000_000)));
    }
}
