//! Which IPv4 multicast groups other hosts listen to, as they report it by IGMP.
//!
//! Hosts report more than once: a change is repeated, and queries are answered. Who is known already is no news; whoever
//! says that it begins (version 3) is, unless it said so a moment ago. Who asks too much is not believed at once: reports
//! are answered by nobody and can be forged.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use rxe_proto::{Duration, Instant};

use super::groups::Record;
use super::node::RateLimit;

/// The most listeners that are remembered.
const MAX_LISTENERS: usize = 1024;
/// In this time after it began a listener only repeats that it did ("robustness variable" times "unsolicited report
/// interval" of the older version).
const REPEATS: Duration = Duration::from_secs(10);
/// New listeners per second.
const NEWS_PER_SECOND: u32 = 20;

/// What a report came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// A host begins to listen to a group.
    Joined,
    /// It listens no more.
    Left,
    /// This was known.
    Nothing,
    /// Too many begin at once: it has to say it again.
    Limited,
}

struct Known {
    joined: Instant,
    heard: Instant,
}

/// The listeners behind one port.
pub(super) struct Listeners {
    known: BTreeMap<(Ipv4Addr, Ipv4Addr), Known>,
    limit: RateLimit,
}

impl Listeners {
    /// Nobody yet.
    pub(super) fn new() -> Listeners {
        Listeners { known: BTreeMap::new(), limit: RateLimit::new(NEWS_PER_SECOND) }
    }

    /// `host` says `record` of `group`.
    pub(super) fn reported(&mut self, now: Instant, group: Ipv4Addr, host: Ipv4Addr, record: Record) -> News {
        let key = (group, host);
        if record == Record::Left {
            return if self.known.remove(&key).is_some() { News::Left } else { News::Nothing };
        }
        if let Some(known) = self.known.get_mut(&key) {
            known.heard = now;
            if record == Record::Listening || now.saturating_since(known.joined) < REPEATS {
                return News::Nothing;
            }
        }
        if !self.limit.allow(now) {
            return News::Limited;
        }
        if self.known.len() >= MAX_LISTENERS
            && let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.heard).map(|(key, _)| *key)
        {
            self.known.remove(&oldest);
        }
        self.known.insert(key, Known { joined: now, heard: now });
        News::Joined
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
    fn what_is_repeated_is_no_news() {
        let mut listeners = Listeners::new();
        let mut say = |seconds, record| listeners.reported(at(seconds), GROUP, host(1), record);
        assert_eq!(say(1, Record::Left), News::Nothing);
        assert_eq!(say(1, Record::Joined), News::Joined);
        assert_eq!(say(2, Record::Joined), News::Nothing);
        assert_eq!(say(100, Record::Listening), News::Nothing);
        assert_eq!(say(101, Record::Joined), News::Joined, "it was away without a word");
        assert_eq!(say(102, Record::Left), News::Left);
        assert_eq!(say(103, Record::Left), News::Nothing);
        assert_eq!(say(103, Record::Listening), News::Joined, "version 2 knows no other word");
        assert_eq!(listeners.reported(at(103), GROUP, host(2), Record::Joined), News::Joined);
    }

    #[test]
    fn a_flood_is_cut() {
        let mut listeners = Listeners::new();
        let flood: Vec<News> = (0..500).map(|n| listeners.reported(at(1), GROUP, host(n), Record::Joined)).collect();
        assert_eq!(flood.iter().filter(|news| **news == News::Joined).count(), NEWS_PER_SECOND as usize);
        assert_eq!(flood.last(), Some(&News::Limited));
        // Who was not believed is when it says so again.
        assert_eq!(listeners.reported(at(2), GROUP, host(499), Record::Joined), News::Joined);
        for n in 0..2 * MAX_LISTENERS as u16 {
            listeners.reported(at(10 + u64::from(n)), GROUP, host(1000 + n), Record::Joined);
        }
        assert_eq!(listeners.known.len(), MAX_LISTENERS);
        // The latest are remembered.
        let last = 999 + 2 * MAX_LISTENERS as u16;
        assert_eq!(listeners.reported(at(9_999), GROUP, host(last), Record::Listening), News::Nothing);
        assert_eq!(listeners.reported(at(9_999), GROUP, host(499), Record::Listening), News::Joined);
    }
}
