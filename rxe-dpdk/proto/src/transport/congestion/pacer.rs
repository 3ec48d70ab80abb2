//! Spreads the packets of a queue pair over time.

use crate::time::Instant;

/// A queue pair may send at once what its rate gives in this time, in nanoseconds, and at least a packet.
const BURST: u64 = 10_000;

const SECOND: u64 = 1_000_000_000;

/// The rate of a queue pair, and the bytes that it may send or has sent too many.
///
/// What was sent counts in bytes, not as a time, so that a rate that changes also changes how long the wait for what was sent is.
#[derive(Debug, Default)]
pub(in crate::transport) struct Pacer {
    /// Bytes per second; `None` is no limit.
    rate: Option<u64>,
    /// What may be sent, in parts of 10^-9 bytes; below 0 what was sent too much.
    credit: i128,
    /// When that was computed.
    at: Instant,
    /// Something waits until the credit is 0.
    is_waiting: bool,
}

impl Pacer {
    /// The rate in bytes per second, if there is a limit.
    #[inline]
    pub(in crate::transport) fn rate(&self) -> Option<u64> {
        self.rate
    }

    pub(in crate::transport) fn set_rate(&mut self, now: Instant, rate: Option<u64>) {
        self.follow(now);
        self.rate = rate.map(|rate| rate.max(1));
        if self.rate.is_none() {
            self.credit = 0;
        }
    }

    /// Adds what the rate has given since. A caller that comes late may catch up, by one burst.
    fn follow(&mut self, now: Instant) {
        let elapsed = now.nanos_since(self.at);
        self.at = self.at.max(now);
        let rate = i128::from(self.rate.unwrap_or(u64::MAX / SECOND));
        self.credit = (self.credit + i128::from(elapsed) * rate).min(rate * i128::from(BURST));
    }

    /// Packets of `mtu` bytes that may be sent now; `None` is no limit.
    pub(in crate::transport) fn room(&mut self, now: Instant, mtu: u32) -> Option<usize> {
        let rate = self.rate?;
        self.follow(now);
        if self.credit < 0 {
            return Some(0);
        }
        Some((rate.saturating_mul(BURST) / SECOND / u64::from(mtu)).max(1) as usize)
    }

    /// Records what was sent.
    pub(in crate::transport) fn sent(&mut self, now: Instant, bytes: u64) {
        if self.rate.is_some() {
            self.follow(now);
            self.credit -= i128::from(bytes) * i128::from(SECOND);
        }
    }

    /// Something waits for its time. Returns when that is; `None` if it has come.
    pub(in crate::transport) fn wait(&mut self, now: Instant) -> Option<Instant> {
        self.follow(now);
        self.is_waiting = self.rate.is_some() && self.credit < 0;
        self.deadline()
    }

    /// When the wait ends, if something waits.
    #[inline]
    pub(in crate::transport) fn deadline(&self) -> Option<Instant> {
        if self.is_waiting { Some(self.wait_ends()) } else { None }
    }

    #[cold]
    fn wait_ends(&self) -> Instant {
        match self.rate {
            Some(rate) if self.credit < 0 => {
                let nanos = self.credit.unsigned_abs().div_ceil(u128::from(rate));
                self.at.after(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            _ => self.at,
        }
    }

    /// Ends a wait whose time has come. Returns whether there was one.
    pub(in crate::transport) fn resume(&mut self, now: Instant) -> bool {
        let resumed = self.deadline().is_some_and(|at| at <= now);
        self.is_waiting &= !resumed;
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
        pacer.set_rate(at(100), Some(SECOND));
        assert_eq!(pacer.room(at(110), 1024), Some(9), "a burst of 10 us");
        pacer.sent(at(110), 9216);
        // One burst may be caught up.
        assert_eq!(pacer.room(at(110), 1024), Some(9));
        pacer.sent(at(110), 9216);
        assert_eq!(pacer.room(at(110), 1024), Some(0));
        assert_eq!(pacer.wait(at(110)), Some(Instant::from_nanos(100_000 + 2 * 9216)));
        assert!(!pacer.resume(at(118)) && pacer.resume(at(119)) && !pacer.resume(at(119)));
        assert_eq!(pacer.room(at(119), 4096), Some(2));
    }

    #[test]
    fn the_lowest_rate_lets_a_packet_pass() {
        let mut pacer = Pacer::default();
        pacer.set_rate(at(10), Some(0));
        assert_eq!(pacer.room(at(20), 4096), Some(1));
        pacer.sent(at(20), 10);
        assert_eq!(pacer.wait(at(20)), Some(at(10_000_010)));
    }

    #[test]
    fn a_wait_follows_the_rate() {
        let mut pacer = Pacer::default();
        pacer.set_rate(at(0), Some(1_000));
        pacer.sent(at(0), 4_000);
        assert_eq!(pacer.wait(at(0)), Some(at(4_000_000)));
        // Half of it is over.
        pacer.set_rate(at(2_000_000), Some(1_000_000));
        assert_eq!(pacer.deadline(), Some(at(2_002_000)));
        pacer.set_rate(at(2_001_000), None);
        assert_eq!((pacer.deadline(), pacer.resume(at(2_001_000))), (Some(at(2_001_000)), true));
    }
}
