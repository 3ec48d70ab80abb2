//! All deadlines of the connection manager in one ordered set.

use std::collections::BTreeSet;

use super::ids::SidrId;
use crate::{Duration, Instant};

/// Owner of a deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum TimerKey {
    /// The connection with this communication id of ours.
    Connection(u32),
    /// A SIDR request of a peer.
    Sidr(SidrId),
    /// Our SIDR request with this request id.
    Resolve(u32),
}

/// Deadlines, at most one per owner; setting, cancelling and finding the next are O(log n).
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Instant, TimerKey)>);

impl Timers {
    /// Moves the deadline of `key`, which the owner keeps in `deadline`.
    pub fn set(&mut self, key: TimerKey, deadline: &mut Option<Instant>, at: Option<Instant>) {
        if let Some(old) = deadline.take() {
            self.0.remove(&(old, key));
        }
        if let Some(at) = at {
            self.0.insert((at, key));
            *deadline = Some(at);
        }
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Instant> {
        self.0.first().map(|&(at, _)| at)
    }

    /// Removes the earliest deadline if it has expired.
    pub fn pop_due(&mut self, now: Instant) -> Option<TimerKey> {
        let &(at, _) = self.0.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first().map(|(_, key)| key)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// A five-bit time code of the connection manager: 4.096 us * 2^code.
pub(super) fn time_of(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}

/// The ACK timeout code for a queue pair: twice the packet lifetime `lifetime` plus the other side's ACK delay, rounded
/// as Linux does (docs/protocol-notes.md, 7.2).
#[must_use]
pub fn ack_timeout(lifetime: u8, ack_delay: u8) -> u8 {
    // compliance.md [CM-ACTIVE-GRANT]: No more READs are outstanding than requested, whatever the REP allows.
    let trip = lifetime.min(31) + 1;
    let timeout = if trip >= ack_delay {
        trip + u8::from(ack_delay >= trip - 1)
    } else {
        ack_delay + u8::from(trip >= ack_delay - 1)
    };
    timeout.min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_codes() {
        assert_eq!(time_of(0), Duration::from_nanos(4096));
        assert_eq!(time_of(20), Duration::from_nanos(4_294_967_296));
        assert_eq!(time_of(31).as_secs(), 8796);
    }

    // [CM-ACTIVE-GRANT]
    #[test]
    fn ack_timeouts_as_linux_computes_them() {
        assert_eq!(ack_timeout(18, 15), 19);
        assert_eq!(ack_timeout(18, 17), 19);
        assert_eq!(ack_timeout(18, 18), 20);
        assert_eq!(ack_timeout(18, 19), 20);
        assert_eq!(ack_timeout(18, 20), 21);
        assert_eq!(ack_timeout(18, 21), 21);
        assert_eq!(ack_timeout(18, 31), 31);
        assert_eq!(ack_timeout(31, 31), 31);
        assert_eq!(ack_timeout(255, 255), 31);
        assert_eq!(ack_timeout(0, 0), 2);
    }

    #[test]
    fn deadlines_come_in_order_and_can_move() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut timers = Timers::default();
        let (mut a, mut b) = (None, None);
        timers.set(TimerKey::Connection(1), &mut a, Some(at(5)));
        timers.set(TimerKey::Connection(2), &mut b, Some(at(3)));
        assert_eq!(timers.next(), Some(at(3)));
        timers.set(TimerKey::Connection(2), &mut b, Some(at(9)));
        assert_eq!(timers.next(), Some(at(5)));
        assert_eq!(timers.pop_due(at(4)), None);
        assert_eq!(timers.pop_due(at(5)), Some(TimerKey::Connection(1)));
        timers.set(TimerKey::Connection(2), &mut b, None);
        assert_eq!((timers.next(), b), (None, None));
        assert_eq!(timers.len(), 0);
    }
}
