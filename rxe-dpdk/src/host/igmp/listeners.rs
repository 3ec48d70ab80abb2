//! Listener table: the IPv4 multicast groups that other hosts report by IGMP.
//!
//! Hosts repeat their reports: a change is sent twice, and every query is answered. A known listener therefore produces no
//! event, except when it reports a join (version 3) that is not such a repetition. New listeners are rate-limited, because
//! reports are not acknowledged and can be forged.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use rxe_proto::{Duration, Instant};

use crate::host::groups::Record;
use crate::host::rate_limit::RateLimit;

/// Capacity of the table.
const MAX_LISTENERS: usize = 1024;
/// Most entries of one host. A further one replaces its own oldest.
const MAX_PER_HOST: usize = MAX_LISTENERS / 4;
/// A join within this time after the first one is a repetition ("robustness variable" times "unsolicited report interval"
/// of the older version).
const REPEATS: Duration = Duration::from_secs(10);
/// New listeners per second.
const NEW_PER_SECOND: u32 = 20;

/// The change that a report makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The host began to listen to the group.
    Joined,
    /// The host ceased to listen to the group.
    Left,
    /// Nothing: the report repeats what is known.
    None,
    /// The report was ignored by the rate limit; the listener is added when it reports again.
    Limited,
}

struct Listener {
    joined: Instant,
    /// Time of its last report.
    heard: Instant,
}

/// The listeners behind one port.
pub(super) struct Listeners {
    /// By group and host.
    known: BTreeMap<(Ipv4Addr, Ipv4Addr), Listener>,
    limit: RateLimit,
}

impl Listeners {
    pub(super) fn new() -> Listeners {
        Listeners { known: BTreeMap::new(), limit: RateLimit::new(NEW_PER_SECOND) }
    }

    /// Applies `host`'s `record` about `group`.
    pub(super) fn update(&mut self, now: Instant, group: Ipv4Addr, host: Ipv4Addr, record: Record) -> Change {
        let key = (group, host);
        if record == Record::Left {
            return if self.known.remove(&key).is_some() { Change::Left } else { Change::None };
        }
        if let Some(listener) = self.known.get_mut(&key) {
            listener.heard = now;
            if record == Record::Listening || now.saturating_since(listener.joined) < REPEATS {
                return Change::None;
            }
        }
        if !self.limit.allow(now) {
            return Change::Limited;
        }
        let of_host = self.known.keys().filter(|(_, known)| *known == host).count();
        if of_host >= MAX_PER_HOST {
            self.remove_oldest(|known| known == host);
        } else if self.known.len() >= MAX_LISTENERS {
            self.remove_oldest(|_| true);
        }
        self.known.insert(key, Listener { joined: now, heard: now });
        Change::Joined
    }
}

impl Listeners {
    /// Removes the entry of these hosts that was reported longest ago.
    fn remove_oldest(&mut self, of: impl Fn(Ipv4Addr) -> bool) {
        let known = self.known.iter().filter(|((_, host), _)| of(*host));
        if let Some(oldest) = known.min_by_key(|(_, listener)| listener.heard).map(|(key, _)| *key) {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn host(n: u16) -> Ipv4Addr {
        let [high, low] = n.to_be_bytes();
        Ipv4Addr::new(10, 0, high, low)
    }

    #[test]
    fn repeated_reports_change_nothing() {
        let mut listeners = Listeners::new();
        let mut report = |seconds, record| listeners.update(at(seconds), GROUP, host(1), record);
        assert_eq!(report(1, Record::Left), Change::None);
        assert_eq!(report(1, Record::Joined), Change::Joined);
        assert_eq!(report(2, Record::Joined), Change::None);
        assert_eq!(report(100, Record::Listening), Change::None);
        assert_eq!(report(101, Record::Joined), Change::Joined, "it left without a report");
        assert_eq!(report(102, Record::Left), Change::Left);
        assert_eq!(report(103, Record::Left), Change::None);
        assert_eq!(report(103, Record::Listening), Change::Joined, "version 2 has no other report");
        assert_eq!(listeners.update(at(103), GROUP, host(2), Record::Joined), Change::Joined);
    }

    #[test]
    fn new_listeners_are_limited_and_the_table_is_bounded() {
        let mut listeners = Listeners::new();
        let flood: Vec<Change> = (0..500).map(|n| listeners.update(at(1), GROUP, host(n), Record::Joined)).collect();
        assert_eq!(flood.iter().filter(|change| **change == Change::Joined).count(), NEW_PER_SECOND as usize);
        assert_eq!(flood.last(), Some(&Change::Limited));
        // An ignored listener is added when it reports again.
        assert_eq!(listeners.update(at(2), GROUP, host(499), Record::Joined), Change::Joined);
        for n in 0..2 * MAX_LISTENERS as u16 {
            listeners.update(at(10 + u64::from(n)), GROUP, host(1000 + n), Record::Joined);
        }
        assert_eq!(listeners.known.len(), MAX_LISTENERS);
        // The table keeps the latest.
        let last = 999 + 2 * MAX_LISTENERS as u16;
        assert_eq!(listeners.update(at(9_999), GROUP, host(last), Record::Listening), Change::None);
        assert_eq!(listeners.update(at(9_999), GROUP, host(499), Record::Listening), Change::Joined);
    }

    /// A host that reports ever more groups replaces its own entries, not those of others.
    #[test]
    fn one_host_cannot_take_the_whole_table() {
        let mut listeners = Listeners::new();
        assert_eq!(listeners.update(at(1), GROUP, host(1), Record::Joined), Change::Joined);
        for n in 0..2 * MAX_LISTENERS as u16 {
            let [high, low] = n.to_be_bytes();
            let group = Ipv4Addr::new(239, 9, high, low);
            assert_eq!(listeners.update(at(10 + u64::from(n)), group, host(2), Record::Joined), Change::Joined);
        }
        assert_eq!(listeners.known.len(), MAX_PER_HOST + 1);
        assert_eq!(listeners.update(at(9_999), GROUP, host(1), Record::Listening), Change::None);
    }
}
