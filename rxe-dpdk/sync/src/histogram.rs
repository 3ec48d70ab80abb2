//! Histograms with one writer and any number of readers.

use std::array;

use crate::counter::Counter;

/// Number of buckets: enough for every number of 64 bits, so that recording has no branch.
const BUCKETS: usize = u64::BITS as usize;

/// How often values occurred, in buckets whose bounds are the powers of two. Values are nanoseconds here, but need not be.
///
/// Recording is the plain load and store of two [`Counter`]s, so there is one writer. Buckets and sum are read one after the other: a
/// reader may see a value in one and not yet in the other.
#[derive(Debug)]
pub struct Histogram {
    sum: Counter,
    /// Bucket `n` counts values from 2^n to below 2^(n+1), the first one also zero.
    buckets: [Counter; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { sum: Counter::default(), buckets: array::from_fn(|_| Counter::default()) }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline(always)]
    pub fn record(&self, value: u64) {
        self.buckets[bucket(value)].inc();
        self.sum.add(value);
    }

    /// Counts a value `times` times.
    pub fn record_many(&self, value: u64, times: u64) {
        self.buckets[bucket(value)].add(times);
        self.sum.add(value.wrapping_mul(times));
    }

    /// Number of values below 2^`exponent`; of all values with the exponent 64.
    pub fn count_below(&self, exponent: u32) -> u64 {
        self.buckets.iter().take(exponent as usize).map(Counter::get).sum()
    }

    /// The sum of all values, modulo 2^64.
    pub fn sum(&self) -> u64 {
        self.sum.get()
    }
}

/// The bucket of a value: below [`BUCKETS`], as the compiler knows.
#[inline(always)]
fn bucket(value: u64) -> usize {
    (value | 1).ilog2() as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_power_of_two_is_in_the_bucket_above_it() {
        let histogram = Histogram::default();
        for value in [0, 1, 2, 3, 4, 5, 1023, 1024] {
            histogram.record(value);
        }
        histogram.record_many(1 << 40, 3);
        let counts: Vec<u64> =
            [0, 1, 2, 3, 9, 10, 11, 40, 41, 64].map(|exponent| histogram.count_below(exponent)).into();
        assert_eq!(counts, [0, 2, 4, 6, 6, 7, 8, 8, 11, 11]);
        assert_eq!(histogram.sum(), 15 + 1023 + 1024 + (3 << 40));
    }

    #[test]
    fn the_largest_value_has_a_bucket() {
        let histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!((histogram.count_below(63), histogram.count_below(64)), (0, 1));
    }
}
