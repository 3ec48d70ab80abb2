//! Membership of multicast groups of one address family, and when to report it to routers and switches.
//!
//! IGMP version 3 (RFC 3376) and MLD version 2 (RFC 3810) work alike. A change is reported at once and again after a
//! second, as a report may be lost. A query is answered with a delay within the querier's limit that depends on our MAC
//! address, so that the answers of many hosts are spread. We listen to every source of a group, so reports name groups
//! only.

use std::collections::{BTreeMap, BTreeSet};

use rxe_proto::{Duration, Instant};

/// Reports of a change, and the time between them ("robustness variable", "unsolicited report interval").
const ROUNDS: u8 = 2;
const INTERVAL: Duration = Duration::from_secs(1);

/// Longest delay of an answer, whatever the query allows.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(10);

/// A record about a group in a report; the values are those of both protocols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Record {
    /// Member ("mode is exclude", without sources).
    Listening = 2,
    /// Membership ended ("change to include mode", without sources).
    Left = 3,
    /// Membership began ("change to exclude mode").
    Joined = 4,
}

struct Change {
    record: Record,
    /// Reports still to be sent.
    rounds: u8,
}

/// The groups that a scheduled answer covers.
enum Queried<A> {
    All,
    Some(BTreeSet<A>),
}

/// Our groups of one family.
pub(super) struct Groups<A> {
    members: BTreeSet<A>,
    /// Changes still to be reported, and when.
    changes: BTreeMap<A, Change>,
    change_at: Option<Instant>,
    /// The scheduled answer to queries, and when.
    queried: Queried<A>,
    answer_at: Option<Instant>,
}

impl<A: Copy + Ord> Groups<A> {
    /// Groups of which we have always been a member. They are reported at `at` like the answer to a query.
    pub(super) fn new(members: impl Iterator<Item = A>, at: Option<Instant>) -> Groups<A> {
        Groups {
            members: members.collect(),
            changes: BTreeMap::new(),
            change_at: None,
            queried: if at.is_some() { Queried::All } else { Queried::Some(BTreeSet::new()) },
            answer_at: at,
        }
    }

    pub(super) fn join(&mut self, now: Instant, group: A) {
        if self.members.insert(group) {
            self.change(now, group, Record::Joined);
        }
    }

    pub(super) fn leave(&mut self, now: Instant, group: A) {
        if self.members.remove(&group) {
            self.change(now, group, Record::Left);
        }
    }

    fn change(&mut self, now: Instant, group: A, record: Record) {
        self.changes.insert(group, Change { record, rounds: ROUNDS });
        self.change_at = Some(now);
    }

    /// Schedules an answer about `group`, or about all groups, at `at` or when an earlier answer is due.
    pub(super) fn query(&mut self, at: Instant, group: Option<A>) {
        match (&mut self.queried, group) {
            (Queried::All, _) => {}
            (Queried::Some(groups), Some(group)) => {
                if !self.members.contains(&group) {
                    return;
                }
                groups.insert(group);
            }
            (Queried::Some(_), None) => self.queried = Queried::All,
        }
        self.answer_at = Some(self.answer_at.map_or(at, |planned| planned.min(at)));
    }

    /// Schedules a report of all groups at `at`, replacing the scheduled answer: earlier reports may be lost.
    pub(super) fn report_all(&mut self, at: Instant) {
        self.queried = Queried::All;
        self.answer_at = Some(at);
    }

    /// When a report is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        [self.change_at, self.answer_at].into_iter().flatten().min()
    }

    /// The records to report now. They stay due until [`sent`](Self::sent).
    pub(super) fn due(&self, now: Instant) -> Vec<(A, Record)> {
        let mut records = Vec::new();
        let changing = self.change_at.is_some_and(|at| at <= now);
        if changing {
            records.extend(self.changes.iter().map(|(group, change)| (*group, change.record)));
        }
        if self.answer_at.is_some_and(|at| at <= now) {
            let queried = |group: &A| match &self.queried {
                Queried::All => true,
                Queried::Some(groups) => groups.contains(group),
            };
            // The report of a change is an answer too.
            let reported = |group: &A| changing && self.changes.contains_key(group);
            let answer = self.members.iter().filter(|group| queried(group) && !reported(group));
            records.extend(answer.map(|group| (*group, Record::Listening)));
        }
        records
    }

    /// The records [`due`](Self::due) at `now` were sent.
    pub(super) fn sent(&mut self, now: Instant) {
        if self.change_at.is_some_and(|at| at <= now) {
            self.changes.retain(|_, change| {
                change.rounds -= 1;
                change.rounds > 0
            });
            // compliance.md [HOST-IGMP]: Joining and leaving an IPv4 group is reported by IGMP version 3, twice and a
            // second apart.
            self.change_at = (!self.changes.is_empty()).then(|| now + INTERVAL);
        }
        if self.answer_at.is_some_and(|at| at <= now) {
            self.answer_at = None;
            self.queried = Queried::Some(BTreeSet::new());
        }
    }
}

/// When this station answers a query with the maximum response time `allowed`: `spread`, the last byte of its MAC
/// address, spreads the stations.
pub(super) fn answer_at(now: Instant, allowed: Duration, spread: u8) -> Instant {
    now + allowed.min(MAX_DELAY) * u32::from(spread) / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn report(groups: &mut Groups<u32>, now: Instant) -> Vec<(u32, Record)> {
        let due = groups.due(now);
        groups.sent(now);
        due
    }

    #[test]
    fn change_is_reported_twice() {
        let mut groups = Groups::new([1].into_iter(), Some(at(0)));
        assert_eq!(report(&mut groups, at(0)), [(1, Record::Listening)]);
        assert_eq!(groups.next_timeout(), None);
        groups.join(at(10), 2);
        groups.join(at(11), 2);
        assert_eq!(report(&mut groups, at(11)), [(2, Record::Joined)]);
        assert_eq!(report(&mut groups, at(1010)), []);
        assert_eq!(report(&mut groups, at(1011)), [(2, Record::Joined)]);
        assert_eq!(groups.next_timeout(), None);
        groups.leave(at(2000), 3);
        assert_eq!(groups.next_timeout(), None, "never joined");
    }

    #[test]
    fn last_change_replaces_earlier_ones() {
        let mut groups = Groups::new(std::iter::empty(), None);
        groups.join(at(0), 2);
        assert_eq!(report(&mut groups, at(0)), [(2, Record::Joined)]);
        groups.leave(at(5), 2);
        assert_eq!(report(&mut groups, at(5)), [(2, Record::Left)]);
        groups.query(at(6), Some(2));
        groups.query(at(7), None);
        assert_eq!(report(&mut groups, at(7)), []);
        assert_eq!(report(&mut groups, at(1005)), [(2, Record::Left)]);
        assert_eq!(groups.next_timeout(), None);
    }

    #[test]
    fn answer_covers_the_queried_groups() {
        let mut groups = Groups::new(1..=4, None);
        groups.query(at(500), Some(2));
        groups.query(at(300), Some(3));
        groups.query(at(100), Some(9));
        assert_eq!(groups.next_timeout(), Some(at(300)));
        assert_eq!(report(&mut groups, at(300)), [(2, Record::Listening), (3, Record::Listening)]);
        groups.query(at(900), None);
        groups.query(at(950), Some(1));
        assert_eq!(groups.due(at(900)).len(), 4);
        groups.leave(at(900), 1);
        assert_eq!(report(&mut groups, at(900))[0], (1, Record::Left));
        assert_eq!(answer_at(at(0), Duration::from_secs(100), 128), at(5000));
    }
}
