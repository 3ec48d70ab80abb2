//! Spreads the packets of a queue pair over time.

use crate::time::Instant;

/// A queue pair may send at once what its rate gives in this time, in nanoseconds, and at least a packet.
const BURST: u64 = 10_000;

const SECOND: u64 = 1_000_000_000;

/// The rate of a queue pair, and when it may send next.
#[derive(Debug, Default)]
pub(in crate::transport) struct Pacer {
    /// Bytes per second; `None` is no limit.
    rate: Option<u64>,
    /// When what was sent is over, at the rate of now.
    next: Instant,
    /// Something waits until then.
    is_waiting: bool,
}

impl Pacer {
    /// The rate in bytes per second, if there is a limit.
    #[inline]
    pub(in crate::transport) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// What was sent and is not over takes as long as the new rate says.
    #[inline]
    pub(in crate::transport) fn set_rate(&mut self, now: Instant, rate: Option<u64>) {
        let rate = rate.map(|rate| rate.max(1));
        if rate != self.rate {
            self.change_rate(now, rate);
        }
    }

    #[cold]
    fn change_rate(&mut self, now: Instant, rate: Option<u64>) {
        let left = match (self.rate, rate) {
            (Some(before), Some(after)) => {
                u128::from(self.next.nanos_since(now)) * u128::from(before) / u128::from(after)
            }
            _ => 0,
        };
        if self.next > now {
            self.next = now.after(u64::try_from(left).unwrap_or(u64::MAX));
        }
        self.rate = rate;
    }

    /// Packets of `mtu` bytes that may be sent now; `None` is no limit.
    pub(in crate::transport) fn room(&self, now: Instant, mtu: u32) -> Option<u32> {
        let rate = self.rate?;
        if now < self.next {
            return Some(0);
        }
        let packets = rate.saturating_mul(BURST) / SECOND / u64::from(mtu);
        Some(packets.clamp(1, u32::MAX.into()) as u32)
    }

    /// Records what was sent.
    pub(in crate::transport) fn sent(&mut self, now: Instant, bytes: u64) {
        let Some(rate) = self.rate else { return };
        // A caller that comes late may catch up, by one burst.
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(BURST));
        self.next = self.next.max(earliest).after(bytes.saturating_mul(SECOND) / rate);
    }

    /// Something waits for its time. Returns when that is; `None` if it has come.
    pub(in crate::transport) fn wait(&mut self, now: Instant) -> Option<Instant> {
        self.is_waiting = self.rate.is_some() && now < self.next;
        self.deadline()
    }

    /// When the wait ends, if something waits.
    #[inline]
    pub(in crate::transport) fn deadline(&self) -> Option<Instant> {
        self.is_waiting.then_some(self.next)
    }

    /// Ends a wait whose time has come. Returns whether there was one.
    pub(in crate::transport) fn resume(&mut self, now: Instant) -> bool {
        let resumed = self.is_waiting && self.next <= now;
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
