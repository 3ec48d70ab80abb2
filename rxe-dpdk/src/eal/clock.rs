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
}

impl Clock {
    /// A clock whose epoch is now.
    pub fn new(_eal: &Eal) -> Clock {
        // SAFETY: EAL is initialised (`_eal`), which measured the frequency.
        let hz = unsafe { dpdk_sys::rte_get_tsc_hz() };
        Clock { start: cycles(), scale: Scale::new(hz) }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Instant {
        // Saturating, should a counter be some cycles behind the one that the clock was started on.
        Instant::from_nanos(self.scale.nanos(cycles().saturating_sub(self.start)))
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
    use super::Scale;

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
