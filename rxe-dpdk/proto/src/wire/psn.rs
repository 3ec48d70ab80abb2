//! Packet sequence numbers: 24 bits, ordered across the wrap.

use std::fmt;

/// A packet sequence number (IBTA "Packet Sequence Number"), always below 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The largest PSN; the next one is zero.
    pub const MAX: Psn = Psn(0xFF_FFFF);

    /// Keeps the low 24 bits of `raw`.
    #[inline]
    pub const fn new(raw: u32) -> Psn {
        Psn(raw & 0xFF_FFFF)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later (`n` taken modulo 2^24).
    #[inline]
    #[must_use]
    pub const fn add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }

    /// The PSN `n` packets earlier (`n` taken modulo 2^24).
    #[inline]
    #[must_use]
    pub const fn sub(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }

    /// The PSN after this one.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// Distance from `other` to `self`, from -2^23 to 2^23 - 1: negative when `self` is the older one.
    #[inline]
    pub const fn diff(self, other: Psn) -> i32 {
        // compliance.md [PKT-PSN-ORDER]: PSNs compare as signed 24-bit differences.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }

    /// Whether `self` comes before `other` in the half of the number space that ends at `other`.
    #[inline]
    pub const fn is_before(self, other: Psn) -> bool {
        self.diff(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Psn;

    // [PKT-PSN-ORDER]
    #[test]
    fn order_holds_across_the_wrap() {
        assert_eq!(Psn::MAX.next(), Psn::new(0));
        assert_eq!(Psn::new(0).sub(1), Psn::MAX);
        assert_eq!(Psn::new(3).diff(Psn::new(0xFF_FFFE)), 5);
        assert_eq!(Psn::new(0xFF_FFFE).diff(Psn::new(3)), -5);
        assert!(Psn::MAX.is_before(Psn::new(0)));
        assert!(!Psn::new(0).is_before(Psn::MAX));
    }

    #[test]
    fn half_the_space_is_behind() {
        assert_eq!(Psn::new(0x80_0000).diff(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7F_FFFF).diff(Psn::new(0)), 0x7F_FFFF);
    }
}
