//! The time-stamp counter as a clock.

use rxe_proto::Instant;

use super::init::Eal;

/// Reads the processor's time-stamp counter as [`Instant`]s since this clock was made.
///
/// Copies agree with each other on every lcore: DPDK wants a counter that runs in step on all of them.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: u64,
    scale: Scale,
    /// Nanoseconds to add, since the counter was set back.
    ahead: u64,
}

impl Clock {
    /// A clock whose epoch is now.
    pub fn new(_eal: &Eal) -> Clock {
        // SAFETY: EAL is initialised (`_eal`), which measured the frequency.
        let hz = unsafe { dpdk_sys::rte_get_tsc_hz() };
        Clock { start: cycles(), scale: Scale::new(hz), ahead: 0 }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Instant {
        self.at(cycles())
    }

    /// The time now, never before `last`. Where the counter was set back (hibernation, a snapshot of a virtual machine), this
    /// clock goes on from `last`: otherwise all timers would wait until the counter is where it was. Its copies do not.
    #[inline]
    pub fn now_after(&mut self, last: Instant) -> Instant {
        self.at_after(cycles(), last)
    }

    #[inline]
    fn at(&self, cycles: u64) -> Instant {
        // Saturating, should a counter be some cycles behind the one that the clock was started on.
        Instant::from_nanos(self.scale.nanos(cycles.saturating_sub(self.start)).saturating_add(self.ahead))
    }

    #[inline]
    fn at_after(&mut self, cycles: u64, last: Instant) -> Instant {
        let now = self.at(cycles);
        if now < last { self.go_on(cycles, last) } else { now }
    }

    #[cold]
    fn go_on(&mut self, cycles: u64, last: Instant) -> Instant {
        *self = Clock { start: cycles, scale: self.scale, ahead: last.as_nanos() };
        last
    }
}

#[inline]
fn cycles() -> u64 {
    // SAFETY: reads a counter.
    unsafe { dpdk_sys::rxe_rdtsc() }
}

/// Cycles to nanoseconds by one multiplication: `nanos = cycles * multiplier >> SHIFT`.
#[derive(Clone, Copy, Debug)]
struct Scale {
    multiplier: u64,
}

impl Scale {
    /// Leaves 64 bits for the multiplier of any counter faster than 16 kHz, and an error below 1 ns per hour at 3 GHz.
    const SHIFT: u32 = 48;

    fn new(hz: u64) -> Scale {
        let multiplier = (1_000_000_000_u128 << Self::SHIFT) / u128::from(hz.max(1));
        Scale { multiplier: u64::try_from(multiplier).unwrap_or(u64::MAX) }
    }

    #[inline]
    fn nanos(self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.multiplier)) >> Self::SHIFT) as u64
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::{Duration, Instant};

    use super::{Clock, Scale};

    const HZ: u64 = 2_000_000_000;
    const SECOND: Duration = Duration::from_secs(1);

    fn started_at(start: u64) -> Clock {
        Clock { start, scale: Scale::new(HZ), ahead: 0 }
    }

    /// The difference is that of rounding.
    #[track_caller]
    fn is(now: Instant, expected: Duration) {
        let expected = Instant::ZERO + expected;
        assert!(now <= expected && now + Duration::from_micros(1) > expected, "{now:?}, not {expected:?}");
    }

    #[test]
    fn a_counter_that_jumps_ahead_takes_the_clock_along() {
        let mut clock = started_at(7 * HZ);
        let now = clock.at_after(8 * HZ, Instant::ZERO);
        is(now, SECOND);
        is(clock.at_after(4000 * HZ, now), 3993 * SECOND);
    }

    #[test]
    fn a_counter_that_is_set_back_does_not_take_the_clock_along() {
        let mut clock = started_at(1000 * HZ);
        let mut now = clock.at_after(1010 * HZ, Instant::ZERO);
        is(now, 10 * SECOND);
        // Twice, to before the start of the clock.
        for later in [12, 14] {
            assert_eq!(clock.at_after(5 * HZ, now), now);
            assert_eq!(clock.at_after(5 * HZ, now), now);
            now = clock.at_after(7 * HZ, now);
            is(now, later * SECOND);
        }
        is(clock.at(8 * HZ), 15 * SECOND);
    }

    #[test]
    fn a_day_of_cycles_is_exact_to_a_few_nanoseconds() {
        for hz in [24_000_000, 1_000_000_000, 2_096_061_000, 3_699_999_937_u64] {
            let scale = Scale::new(hz);
            let day = 86_400_u64;
            let nanos = scale.nanos(hz * day);
            let exact = day * 1_000_000_000;
            assert!(exact - nanos < 5_000, "{hz} Hz: {} ns behind after a day", exact - nanos);
            assert_eq!(scale.nanos(0), 0);
        }
    }

    #[test]
    fn no_frequency_panics() {
        assert_eq!(Scale::new(0).nanos(1), u64::MAX >> Scale::SHIFT);
    }
}
