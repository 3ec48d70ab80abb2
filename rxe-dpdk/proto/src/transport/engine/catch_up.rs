//! After a gap in the caller's time, packets come before timers.

use crate::time::{Duration, Instant};

/// Turns for which timers wait at most.
const MOST_TURNS: u8 = 64;

/// Where the CPU was taken away from the caller, answers that have come in time wait in its port, more of them than a turn receives.
/// So timers that have expired wait until a turn has received nothing, but not for ever.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    /// When the last turn has transmitted, and packets received until then.
    turned_at: Instant,
    received: u64,
    /// Turns for which timers may still wait.
    turns_left: u8,
}

impl CatchUp {
    /// A turn transmits, after `received` packets in all.
    #[inline]
    pub(super) fn turned(&mut self, now: Instant, received: u64) {
        (self.turned_at, self.received) = (now, received);
    }

    /// Whether timers that have expired wait for the next turn: after a gap of `gap`, while packets come.
    pub(super) fn postpones(&mut self, now: Instant, received: u64, gap: Duration) -> bool {
        if u128::from(now.nanos_since(self.turned_at)) >= gap.as_nanos() {
            self.turns_left = MOST_TURNS;
        }
        self.turns_left = if received == self.received { 0 } else { self.turns_left.saturating_sub(1) };
        self.turned(now, received);
        self.turns_left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_wait_after_a_gap_as_long_as_packets_come_but_not_for_ever() {
        const GAP: Duration = Duration::from_micros(500);
        let at = |micros| Instant::from_nanos(1_000 * micros);
        let mut catch_up = CatchUp::default();
        catch_up.turned(at(1_000), 70);
        assert!(!catch_up.postpones(at(1_499), 75, GAP), "no gap");
        catch_up.turned(at(1_500), 75);
        assert!(!catch_up.postpones(at(2_500), 75, GAP), "nothing came");
        catch_up.turned(at(2_500), 75);
        assert!(catch_up.postpones(at(3_000), 80, GAP));
        assert!(!catch_up.postpones(at(3_000), 80, GAP), "the same turn");
        catch_up.turned(at(3_000), 80);
        assert!(catch_up.postpones(at(3_500), 83, GAP));
        catch_up.turned(at(3_501), 83);
        assert!(catch_up.postpones(at(3_502), 84, GAP), "the gap lasts until all has come");
        catch_up.turned(at(3_503), 84);
        assert!(!catch_up.postpones(at(3_504), 84, GAP));
        assert!(!catch_up.postpones(at(3_505), 85, GAP), "it is over");
        let mut turns = 0;
        while catch_up.postpones(at(9_000 + turns), 100 + turns, GAP) {
            turns += 1;
            catch_up.turned(at(9_000 + turns), 99 + turns);
        }
        assert_eq!(turns, u64::from(MOST_TURNS) - 1);
    }
}
