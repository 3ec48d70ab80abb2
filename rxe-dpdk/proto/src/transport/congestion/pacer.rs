//! Spreads the packets of a queue pair over time.

use crate::time::Instant;

/// A queue pair may send at once what its rate gives in this time, in nanoseconds, and at least a packet.
const BURST: u64 = 10_000;

const SECOND: u64 = 1_000_000_000;

/// The rate of a queue pair, and when it may send next.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// Bytes per second; `None` is no limit.
    rate: Option<u64>,
    next: Instant,
    /// Something waits until `next`.
    waiting: bool,
}

impl Pacer {
    /// The rate in bytes per second, if there is a limit.
    #[inline]
    pub(super) fn rate(&self) -> Option<u64> {
        self.rate
    }

    pub(super) fn set_rate(&mut self, rate: Option<u64>) {
        self.rate = rate.map(|rate| rate.max(1));
    }

    /// Packets of `mtu` bytes that may be sent now; `None` is no limit.
    pub(super) fn room(&mut self, now: Instant, mtu: u32) -> Option<usize> {
        let rate = self.rate?;
        if now < self.next {
            return Some(0);
        }
        Some((rate.saturating_mul(BURST) / SECOND / u64::from(mtu)).max(1) as usize)
    }

    /// Records what was sent.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64) {
        let Some(rate) = self.rate else { return };
        // A caller that comes late may catch up, by one burst.
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(BURST));
        self.next = self.next.max(earliest).after(bytes.saturating_mul(SECOND) / rate);
    }

    /// Something waits for its time. Returns when that is; `None` if it has come.
    pub(super) fn wait(&mut self, now: Instant) -> Option<Instant> {
        self.waiting = self.rate.is_some() && now < self.next;
        self.deadline()
    }

    /// When the wait ends, if something waits.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.then_some(self.next)
    }

    /// Ends a wait whose time has come. Returns whether there was one.
    pub(super) fn resume(&mut self, now: Instant) -> bool {
        let resumed = self.waiting && self.next <= now;
        self.waiting &= !resumed;
        resumed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let mut pacer = Pacer::default();
        pacer.sent(at(1), 1 << 20);
        assert_eq!((pacer.room(at(1), 1024), pacer.wait(at(1))), (None, None));
    }

    #[test]
    fn bytes_take_their_time() {
        let mut pacer = Pacer::default();
        // A byte a nanosecond.
        pacer.set_rate(Some(SECOND));
        assert_eq!(pacer.room(at(100), 1024), Some(9), "a burst of 10 us");
        pacer.sent(at(100), 9216);
        // One burst may be caught up.
        assert_eq!(pacer.room(at(100), 1024), Some(9));
        pacer.sent(at(100), 9216);
        assert_eq!(pacer.room(at(100), 1024), Some(0));
        assert_eq!(pacer.wait(at(100)), Some(Instant::from_nanos(90_000 + 2 * 9216)));
        assert!(!pacer.resume(at(108)) && pacer.resume(at(109)) && !pacer.resume(at(109)));
        assert_eq!(pacer.room(at(109), 4096), Some(2));
    }

    #[test]
    fn the_lowest_rate_lets_a_packet_pass() {
        let mut pacer = Pacer::default();
        pacer.set_rate(Some(0));
        assert_eq!(pacer.room(at(20), 4096), Some(1));
        pacer.sent(at(20), 10);
        assert_eq!(pacer.wait(at(20)), Some(at(10_000_010)));
    }
}
