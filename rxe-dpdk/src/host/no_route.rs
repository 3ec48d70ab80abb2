//! Peers whose requests arrive although no route leads back to them: their operator learns it from the log, once per address.

use std::collections::VecDeque;
use std::net::IpAddr;

use rxe_proto::Instant;

use super::rate_limit::RateLimit;

/// Most addresses that are remembered: the one named longest ago is forgotten, and named again.
const MAX_NAMED: usize = 256;

/// Most lines per second.
const LINES: u32 = 20;

/// The addresses that were named.
pub(super) struct NoRoute {
    named: VecDeque<IpAddr>,
    lines: RateLimit,
}

impl NoRoute {
    pub(super) fn new() -> NoRoute {
        NoRoute { named: VecDeque::new(), lines: RateLimit::new(LINES) }
    }

    /// Whether to name `peer` in the log now.
    pub(super) fn is_news(&mut self, now: Instant, peer: IpAddr) -> bool {
        if self.named.contains(&peer) || !self.lines.allow(now) {
            return false;
        }
        if self.named.len() >= MAX_NAMED {
            self.named.pop_front();
        }
        self.named.push_back(peer);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_named_once_and_few_at_a_time() {
        let mut no_route = NoRoute::new();
        let ip = |n: u32| IpAddr::from(n.to_be_bytes());
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        assert!(no_route.is_news(at(1), ip(7)) && !no_route.is_news(at(1), ip(7)));
        assert_eq!((100..200).filter(|&n| no_route.is_news(at(1), ip(n))).count(), LINES as usize - 1);
        // An address that was not named for lack of lines is named later.
        assert!(no_route.is_news(at(2), ip(199)));
        for n in 0..MAX_NAMED as u32 {
            assert!(no_route.is_news(at(3 + u64::from(n)), ip(1000 + n)));
        }
        assert!(no_route.is_news(at(1000), ip(7)), "forgotten");
    }
}
