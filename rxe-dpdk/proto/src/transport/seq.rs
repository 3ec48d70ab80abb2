//! Unwrapped PSNs.

use std::fmt;

use crate::wire::Psn;

/// A PSN with a count of how often its 24 bits have wrapped.
///
/// The transport unwraps every PSN once, relative to a known one; from then on it compares and subtracts like any
/// number. That also distinguishes a PSN from the same PSN one wrap earlier, for example of an old READ resource.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seq(u64);

impl Seq {
    /// The start of a connection. One wrap in, so that PSNs before the start have a number too.
    pub(crate) const fn start(psn: Psn) -> Seq {
        Seq(1 << 24 | psn.get() as u64)
    }

    /// The number with `psn` as low bits that is nearest to `self`: at most 2^23 behind, less than that ahead.
    #[inline]
    pub(crate) const fn nearest(self, psn: Psn) -> Seq {
        // compliance.md [PKT-PSN-ORDER]: PSNs compare as signed 24-bit differences.
        Seq(self.0.wrapping_add_signed(psn.diff(self.psn()) as i64))
    }

    /// The 24 bits for the wire.
    #[inline]
    pub(crate) const fn psn(self) -> Psn {
        Psn::new(self.0 as u32)
    }

    /// `n` packets later.
    #[inline]
    #[must_use]
    pub(crate) const fn add(self, n: u32) -> Seq {
        Seq(self.0 + n as u64)
    }

    /// One packet earlier.
    #[inline]
    #[must_use]
    pub(crate) const fn prev(self) -> Seq {
        Seq(self.0 - 1)
    }

    /// A packet count from an arbitrary start.
    #[inline]
    pub(crate) const fn count(self) -> u64 {
        self.0
    }

    /// Number of packets between `earlier` and `self`; zero when `earlier` is the later one.
    #[inline]
    pub(crate) const fn since(self, earlier: Seq) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{:?}", self.0 >> 24, self.psn())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [PKT-PSN-ORDER]
    #[test]
    fn nearest_unwraps_across_the_wrap() {
        let last = Seq::start(Psn::MAX);
        assert_eq!(last.nearest(Psn::new(0)), last.add(1));
        assert_eq!(last.add(1).nearest(Psn::MAX), last);
        assert_eq!(last.add(5).since(last), 5);
        assert_eq!(last.since(last.add(5)), 0);
        assert_eq!(last.add(1).psn(), Psn::new(0));
    }

    #[test]
    fn psns_before_the_start_can_be_unwrapped() {
        let first = Seq::start(Psn::new(0));
        assert_eq!(first.prev().psn(), Psn::MAX);
        assert!(first.nearest(Psn::new(0x80_0000)) < first);
    }
}
