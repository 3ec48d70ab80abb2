//! Multicast groups of one address family: which ones routers and switches must know of, and when to tell them.
//!
//! IGMP version 3 (RFC 3376) and MLD version 2 (RFC 3810) work alike. A change is told at once and once more after a
//! second, as one report may be lost; a query is answered at a time of our own within what the querier allows, so that
//! not all answer at once. We listen to every sender of a group, so a group is all that there is to tell.

use std::collections::{BTreeMap, BTreeSet};

use rxe_proto::{Duration, Instant};

/// How often a change is told, and the time between ("robustness variable", "unsolicited report interval").
const ROUNDS: u8 = 2;
const INTERVAL: Duration = Duration::from_secs(1);

/// No answer comes later than this, whatever the query allows.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(10);

/// What a report says of a group; the numbers are those of both protocols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Record {
    /// We listen ("mode is exclude", excluding nobody).
    Listening = 2,
    /// We listen no more ("change to include mode", including nobody).
    Left = 3,
    /// We listen from now on ("change to exclude mode").
    Joined = 4,
}

struct Change {
    record: Record,
    rounds: u8,
}

/// What a planned answer is about.
enum Asked<A> {
    All,
    Some(BTreeSet<A>),
}

/// The groups of one family.
pub(super) struct Groups<A> {
    members: BTreeSet<A>,
    /// Changes that are still to be told, and when.
    changes: BTreeMap<A, Change>,
    change_at: Option<Instant>,
    /// A planned answer to queries, and when.
    asked: Asked<A>,
    answer_at: Option<Instant>,
}

impl<A: Copy + Ord> Groups<A> {
    /// Groups that we have been in all the time; they are told as if asked for at `at`.
    pub(super) fn new(members: impl Iterator<Item = A>, at: Option<Instant>) -> Groups<A> {
        Groups {
            members: members.collect(),
            changes: BTreeMap::new(),
            change_at: None,
            asked: if at.is_some() { Asked::All } else { Asked::Some(BTreeSet::new()) },
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

    /// Plans to tell of `group`, or of all, at `at`: never later than planned before.
    pub(super) fn ask(&mut self, at: Instant, group: Option<A>) {
        match (&mut self.asked, group) {
            (Asked::All, _) => {}
            (Asked::Some(groups), Some(group)) => {
                // What we are not in is nobody's to ask of us.
                if !self.members.contains(&group) {
                    return;
                }
                groups.insert(group);
            }
            (Asked::Some(_), None) => self.asked = Asked::All,
        }
        self.answer_at = Some(self.answer_at.map_or(at, |planned| planned.min(at)));
    }

    /// Plans to tell of all at `at`, whatever answer was planned: nobody may have heard anything yet.
    pub(super) fn tell_all(&mut self, at: Instant) {
        self.asked = Asked::All;
        self.answer_at = Some(at);
    }

    /// When there is something to tell.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        [self.change_at, self.answer_at].into_iter().flatten().min()
    }

    /// What is to be told now. [`told`](Self::told) when it went out, or it comes again.
    pub(super) fn due(&self, now: Instant) -> Vec<(A, Record)> {
        let mut records = Vec::new();
        let changing = self.change_at.is_some_and(|at| at <= now);
        if changing {
            records.extend(self.changes.iter().map(|(group, change)| (*group, change.record)));
        }
        if self.answer_at.is_some_and(|at| at <= now) {
            let asked = |group: &A| match &self.asked {
                Asked::All => true,
                Asked::Some(groups) => groups.contains(group),
            };
            // A change says as much as an answer.
            let said = |group: &A| changing && self.changes.contains_key(group);
            let answer = self.members.iter().filter(|group| asked(group) && !said(group));
            records.extend(answer.map(|group| (*group, Record::Listening)));
        }
        records
    }

    /// What was [`due`](Self::due) at `now` has been told.
    pub(super) fn told(&mut self, now: Instant) {
        if self.change_at.is_some_and(|at| at <= now) {
            self.changes.retain(|_, change| {
                change.rounds -= 1;
                change.rounds > 0
            });
            // [HOST-IGMP]
            self.change_at = (!self.changes.is_empty()).then(|| now + INTERVAL);
        }
        if self.answer_at.is_some_and(|at| at <= now) {
            self.answer_at = None;
            self.asked = Asked::Some(BTreeSet::new());
        }
    }
}

/// When this station answers a query that allows `allowed`: the last byte of its MAC spreads the stations.
pub(super) fn answer_at(now: Instant, allowed: Duration, spread: u8) -> Instant {
    now + allowed.min(MAX_DELAY) * u32::from(spread) / 256
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn tell(groups: &mut Groups<u32>, now: Instant) -> Vec<(u32, Record)> {
        let due = groups.due(now);
        groups.told(now);
        due
    }

    #[test]
    fn a_change_is_told_twice() {
        let mut groups = Groups::new([1].into_iter(), Some(at(0)));
        assert_eq!(tell(&mut groups, at(0)), [(1, Record::Listening)]);
        assert_eq!(groups.next_timeout(), None);
        groups.join(at(10), 2);
        groups.join(at(11), 2);
        assert_eq!(tell(&mut groups, at(11)), [(2, Record::Joined)]);
        assert_eq!(tell(&mut groups, at(1010)), []);
        assert_eq!(tell(&mut groups, at(1011)), [(2, Record::Joined)]);
        assert_eq!(groups.next_timeout(), None);
        groups.leave(at(2000), 3);
        assert_eq!(groups.next_timeout(), None, "never joined");
    }

    #[test]
    fn the_last_word_counts() {
        let mut groups = Groups::new(std::iter::empty(), None);
        groups.join(at(0), 2);
        assert_eq!(tell(&mut groups, at(0)), [(2, Record::Joined)]);
        groups.leave(at(5), 2);
        assert_eq!(tell(&mut groups, at(5)), [(2, Record::Left)]);
        groups.ask(at(6), Some(2));
        groups.ask(at(7), None);
        assert_eq!(tell(&mut groups, at(7)), []);
        assert_eq!(tell(&mut groups, at(1005)), [(2, Record::Left)]);
        assert_eq!(groups.next_timeout(), None);
    }

    #[test]
    fn answers_are_about_what_was_asked() {
        let mut groups = Groups::new(1..=4, None);
        groups.ask(at(500), Some(2));
        groups.ask(at(300), Some(3));
        groups.ask(at(100), Some(9));
        assert_eq!(groups.next_timeout(), Some(at(300)));
        assert_eq!(tell(&mut groups, at(300)), [(2, Record::Listening), (3, Record::Listening)]);
        groups.ask(at(900), None);
        groups.ask(at(950), Some(1));
        assert_eq!(groups.due(at(900)).len(), 4);
        groups.leave(at(900), 1);
        assert_eq!(tell(&mut groups, at(900))[0], (1, Record::Left));
        assert_eq!(answer_at(at(0), Duration::from_secs(100), 128), at(5000));
    }
}
