//! A limit on the requests of each address: an average per second, and a burst.

use std::collections::{BTreeMap, BTreeSet};

use rxe_proto::wire::Gid;
use rxe_proto::{Duration, Instant};

/// Most addresses that are remembered. Beyond it, the one that is nearest to having its whole burst again is forgotten.
const MAX_ADDRESSES: usize = 8192;

/// Requests that an address may make at once, in seconds of its rate.
const BURST: u64 = 1;

/// How many requests each address has made lately.
///
/// Each request uses up one interval of its address' time. An address is ahead by the requests that its rate has not paid for
/// yet; one that is not ahead is not remembered.
pub(super) struct RequestRate {
    /// `None` is no limit.
    interval: Option<Duration>,
    burst: Duration,
    /// By address: when it has its whole burst again.
    until: BTreeMap<Gid, Instant>,
    by_time: BTreeSet<(Instant, Gid)>,
}

impl RequestRate {
    /// At most `per_second` requests of an address; 0 is no limit.
    pub(super) fn new(per_second: u32) -> RequestRate {
        let interval = (per_second > 0).then(|| Duration::from_nanos(1_000_000_000 / u64::from(per_second)));
        RequestRate { interval, burst: Duration::from_secs(BURST), until: BTreeMap::new(), by_time: BTreeSet::new() }
    }

    /// Whether `peer` may make another request now.
    pub(super) fn admits(&mut self, now: Instant, peer: Gid) -> bool {
        let Some(interval) = self.interval else { return true };
        while let Some(&(until, gid)) = self.by_time.first()
            && (until <= now || (self.until.len() >= MAX_ADDRESSES && !self.until.contains_key(&peer)))
        {
            self.by_time.remove(&(until, gid));
            self.until.remove(&gid);
        }
        let ahead = self.until.get(&peer).copied().unwrap_or(now).max(now);
        let until = ahead + interval;
        if until.saturating_since(now) > self.burst.max(interval) {
            return false;
        }
        if let Some(before) = self.until.insert(peer, until) {
            self.by_time.remove(&(before, peer));
        }
        self.by_time.insert((until, peer));
        true
    }

    /// Addresses that are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        assert_eq!(self.until.len(), self.by_time.len());
        self.until.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(number: u32) -> Gid {
        std::net::Ipv4Addr::from(number).into()
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn an_address_has_a_burst_and_then_its_rate() {
        let mut rate = RequestRate::new(100);
        let admitted = |rate: &mut RequestRate, now, peer| (0..1000).filter(|_| rate.admits(now, gid(peer))).count();
        assert_eq!(admitted(&mut rate, at(0), 1), 100);
        assert_eq!(admitted(&mut rate, at(0), 2), 100, "each address has its own");
        assert_eq!(admitted(&mut rate, at(500), 1), 50);
        assert_eq!(admitted(&mut rate, at(10_000), 1), 100, "no more than a burst");
        assert_eq!(rate.len(), 1, "the other one is forgotten");
    }

    #[test]
    fn a_rate_below_one_burst_admits_one_request() {
        let mut rate = RequestRate::new(1);
        assert!(rate.admits(at(0), gid(1)) && !rate.admits(at(999), gid(1)) && rate.admits(at(1000), gid(1)));
    }

    #[test]
    fn without_a_rate_everything_is_admitted() {
        let mut rate = RequestRate::new(0);
        assert!((0..10_000).all(|_| rate.admits(at(0), gid(1))));
        assert_eq!(rate.len(), 0);
    }

    /// Forged addresses fill the table; the address that asks most is not forgotten by that.
    #[test]
    fn the_table_of_addresses_is_bounded() {
        let mut rate = RequestRate::new(10);
        assert!((0..10).all(|_| rate.admits(at(0), gid(0))));
        for forged in 1..=3 * MAX_ADDRESSES as u32 {
            assert!(rate.admits(at(0), gid(forged)));
        }
        assert_eq!(rate.len(), MAX_ADDRESSES);
        assert!(!rate.admits(at(0), gid(0)));
    }
}
