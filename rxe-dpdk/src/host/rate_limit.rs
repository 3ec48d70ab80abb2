//! A token bucket.

use rxe_proto::Instant;

/// Lets an action happen `per_second` times a second on average, and as often in a burst.
pub(super) struct RateLimit {
    per_second: u32,
    tokens: u32,
    refilled: Instant,
}

impl RateLimit {
    pub(super) fn new(per_second: u32) -> RateLimit {
        RateLimit { per_second, tokens: per_second, refilled: Instant::ZERO }
    }

    /// Takes a token: whether the action may happen once more.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        let fresh = now.saturating_since(self.refilled).as_nanos() * u128::from(self.per_second) / 1_000_000_000;
        if fresh > 0 {
            self.tokens = self.per_second.min(self.tokens.saturating_add(u32::try_from(fresh).unwrap_or(u32::MAX)));
            self.refilled = now;
        }
        let allowed = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_and_average_are_limited() {
        let mut limit = RateLimit::new(10);
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        assert_eq!((0..100).filter(|_| limit.allow(at(5))).count(), 10);
        assert_eq!((0..100).filter(|_| limit.allow(at(205))).count(), 2);
        assert_eq!((0..1000).filter(|n| limit.allow(at(1000 + n))).count(), 16);
    }
}
