//! The neighbour table: IP address to MAC address, for IPv4 and IPv6 alike.
//!
//! An entry goes from *incomplete* (asked, no answer yet) to *reachable* for [`REACHABLE`], then *stale*: still good,
//! but the next use asks again, three times a second apart, first to the known MAC and at last to everybody. Who does
//! not answer has *failed* and is left alone for [`HOLD_DOWN`]. The table sends nothing itself: it says whom to ask.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rxe_proto::wire::MacAddr;
use rxe_proto::{Duration, Instant};

/// Questions before a neighbour has failed.
const TRIES: u8 = 3;
/// From one question to the next.
const RETRY: Duration = Duration::from_secs(1);
/// For how long a confirmed neighbour is not asked again.
const REACHABLE: Duration = Duration::from_secs(30);
/// For how long a failed neighbour is not asked again.
const HOLD_DOWN: Duration = Duration::from_secs(5);
/// An entry that was neither confirmed nor used for so long is forgotten.
const MAX_AGE: Duration = Duration::from_secs(20 * 60);
/// For how long after a change of MAC further changes are not believed, as Linux' `locktime`.
const LOCK_TIME: Duration = Duration::from_secs(1);
/// How often the old ones are looked for.
const SWEEP: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No MAC known; `sent` questions asked, the next (or the end) at `due`.
    Incomplete {
        sent: u8,
        due: Instant,
    },
    Reachable {
        until: Instant,
    },
    Stale,
    /// The MAC is known and being checked.
    Probe {
        sent: u8,
        due: Instant,
    },
    Failed {
        until: Instant,
    },
}

struct Entry {
    /// The last MAC known, if any; kept in the failed state to notice a change.
    mac: Option<MacAddr>,
    state: State,
    /// When it last was confirmed or looked up.
    touched: Instant,
    /// Until when another change of the MAC is not believed.
    locked: Option<Instant>,
    /// Whether somebody of ours ever wanted it: such entries make room last.
    wanted: bool,
    /// Not on our link: it was told to us and cannot be asked.
    remote: bool,
}

/// Answer of [`Neighbours::lookup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Ready(MacAddr),
    Pending,
    Failed,
}

/// How we came to hear of a neighbour's MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It asked for our MAC.
    Request,
    /// It answered, or told everybody with the intent to replace what they know.
    Reply,
    /// It spoke to somebody else, or told everybody. Creates no entry.
    Overheard,
    /// It told its MAC but asks not to replace a known one. Creates no entry.
    Hint,
    /// A packet of a trusted protocol came from there.
    Trusted,
    /// As [`Evidence::Trusted`], from beyond our link and without a route back.
    TrustedRemote,
}

/// What [`Neighbours::update`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Update {
    /// Nothing: not known and not to be created, or not believed.
    Ignored,
    /// The MAC was known already.
    Confirmed,
    /// The MAC is known now.
    Learned,
    /// Another MAC was known before.
    Changed,
    /// Another MAC was known before, and has changed within [`LOCK_TIME`]: the change is not believed. The neighbour is
    /// asked after the lock time.
    Locked,
    /// There is no room in the table.
    Refused,
}

/// A question to ask: for `ip`, of the station `to` or of everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) ip: IpAddr,
    pub(super) to: Option<MacAddr>,
}

pub(super) struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    capacity: usize,
    /// Not later than the first question that is due.
    due: Option<Instant>,
    sweep: Instant,
    evicted: u64,
}

impl Neighbours {
    pub(super) fn new(capacity: usize) -> Neighbours {
        Neighbours { entries: BTreeMap::new(), capacity, due: None, sweep: Instant::ZERO, evicted: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many entries made room for others, all in all.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The MAC of `ip`; asks for it when it is not known, or not known well enough.
    pub(super) fn lookup(&mut self, now: Instant, ip: IpAddr) -> Lookup {
        let Some(entry) = self.entries.get_mut(&ip) else {
            let state = State::Incomplete { sent: 0, due: now };
            let entry = Entry { mac: None, state, touched: now, locked: None, wanted: true, remote: false };
            if !self.insert(ip, entry) {
                return Lookup::Failed;
            }
            self.wake(now);
            return Lookup::Pending;
        };
        entry.touched = now;
        entry.wanted = true;
        let (state, answer) = match (entry.state, entry.mac) {
            (State::Failed { until }, _) if now < until => return Lookup::Failed,
            (State::Reachable { until }, Some(mac)) if now < until || entry.remote => return Lookup::Ready(mac),
            (State::Incomplete { .. }, _) => return Lookup::Pending,
            (State::Probe { .. }, Some(mac)) => return Lookup::Ready(mac),
            (State::Reachable { .. } | State::Stale, Some(mac)) => {
                (State::Probe { sent: 0, due: now }, Lookup::Ready(mac))
            }
            (State::Failed { .. } | State::Reachable { .. } | State::Stale | State::Probe { .. }, _) => {
                (State::Incomplete { sent: 0, due: now }, Lookup::Pending)
            }
        };
        entry.state = state;
        self.wake(now);
        answer
    }

    /// The MAC of `ip` if it is known, without asking anybody.
    pub(super) fn peek(&self, ip: IpAddr) -> Option<MacAddr> {
        let entry = self.entries.get(&ip)?;
        match entry.state {
            State::Incomplete { .. } | State::Failed { .. } => None,
            State::Reachable { .. } | State::Stale | State::Probe { .. } => entry.mac,
        }
    }

    /// Takes note that `ip` is at `mac`, as far as `evidence` goes.
    pub(super) fn update(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, evidence: Evidence) -> Update {
        let remote = evidence == Evidence::TrustedRemote;
        let reachable = State::Reachable { until: now + REACHABLE };
        let Some(entry) = self.entries.get_mut(&ip) else {
            if !matches!(evidence, Evidence::Request | Evidence::Trusted | Evidence::TrustedRemote) {
                return Update::Ignored;
            }
            let entry = Entry { mac: Some(mac), state: reachable, touched: now, locked: None, wanted: false, remote };
            return if self.insert(ip, entry) { Update::Learned } else { Update::Refused };
        };
        entry.touched = now;
        let same = entry.mac == Some(mac);
        if let (Some(until), false, false) = (entry.locked.filter(|until| now < *until), same, entry.mac.is_none()) {
            // Which of the two is right shows when the neighbour is asked, at most once per lock time.
            if matches!(entry.state, State::Reachable { .. } | State::Stale) && !entry.remote {
                entry.state = State::Probe { sent: 0, due: until };
                self.wake(until);
            }
            return Update::Locked;
        }
        match (entry.state, evidence) {
            (State::Incomplete { .. } | State::Failed { .. }, _) => {
                let update = if entry.mac.is_some() && !same { Update::Changed } else { Update::Learned };
                entry.locked = (update == Update::Changed).then_some(now + LOCK_TIME);
                entry.mac = Some(mac);
                entry.remote = remote;
                entry.state = if evidence == Evidence::Overheard { State::Stale } else { reachable };
                update
            }
            (_, Evidence::Overheard | Evidence::Hint) if same => Update::Confirmed,
            (_, _) if same => {
                entry.state = reachable;
                Update::Confirmed
            }
            // A second MAC, but no reason to prefer it: ask, and believe the answer.
            (State::Reachable { .. } | State::Probe { .. }, Evidence::Trusted) | (_, Evidence::Hint) => {
                entry.state = State::Probe { sent: 0, due: now };
                self.wake(now);
                Update::Ignored
            }
            (_, _) => {
                entry.mac = Some(mac);
                entry.state = reachable;
                entry.locked = Some(now + LOCK_TIME);
                Update::Changed
            }
        }
    }

    /// When [`Neighbours::expire`] and [`Neighbours::questions`] have something to do.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.entries.is_empty() { None } else { Some(self.due.map_or(self.sweep, |due| due.min(self.sweep))) }
    }

    /// Declares failed who has not answered, and forgets who is old. Returns how many failed.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let mut failed = 0;
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            for entry in self.entries.values_mut() {
                match entry.state {
                    State::Incomplete { sent, due } | State::Probe { sent, due } if due <= now && sent >= TRIES => {
                        entry.state = State::Failed { until: now + HOLD_DOWN };
                        failed += 1;
                    }
                    State::Incomplete { due, .. } | State::Probe { due, .. } => {
                        self.due = Some(self.due.map_or(due, |first| first.min(due)));
                    }
                    State::Reachable { .. } | State::Stale | State::Failed { .. } => {}
                }
            }
        }
        if self.sweep <= now {
            self.sweep = now + SWEEP;
            self.entries.retain(|_, entry| now.saturating_since(entry.touched) < MAX_AGE);
        }
        failed
    }

    /// The questions to ask now; each stays due until [`Neighbours::asked`].
    pub(super) fn questions(&self, now: Instant) -> Vec<Question> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let is_due = |(&ip, entry): (&IpAddr, &Entry)| match entry.state {
            State::Incomplete { due, .. } if due <= now => Some(Question { ip, to: None }),
            State::Probe { sent, due } if due <= now => {
                Some(Question { ip, to: entry.mac.filter(|_| sent + 1 < TRIES) })
            }
            _ => None,
        };
        self.entries.iter().filter_map(is_due).collect()
    }

    /// The question for `ip` was sent.
    pub(super) fn asked(&mut self, now: Instant, ip: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&ip)
            && let State::Incomplete { sent, due } | State::Probe { sent, due } = &mut entry.state
        {
            *sent = sent.saturating_add(1);
            *due = now + RETRY;
            self.wake(now + RETRY);
        }
    }

    fn wake(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Adds an entry, at the cost of the least useful one when the table is full. Entries that are being resolved stay, and
    /// take half of the table at most: requests from made-up addresses must not push out the neighbours that are in use.
    fn insert(&mut self, ip: IpAddr, entry: Entry) -> bool {
        let unresolved = |e: &Entry| matches!(e.state, State::Incomplete { .. });
        if unresolved(&entry) && self.entries.values().filter(|e| unresolved(e)).count() >= self.capacity.div_ceil(2) {
            return false;
        }
        if self.entries.is_empty() {
            self.sweep = entry.touched + SWEEP;
        }
        if self.entries.len() >= self.capacity {
            let usefulness = |e: &Entry| (e.wanted, !matches!(e.state, State::Failed { .. }), e.touched);
            let victim = self
                .entries
                .iter()
                .filter(|(_, e)| !matches!(e.state, State::Incomplete { .. } | State::Probe { .. }))
                .filter(|(_, e)| entry.wanted || !e.wanted || matches!(e.state, State::Failed { .. }))
                .min_by_key(|(_, e)| usefulness(e))
                .map(|(&ip, _)| ip);
            let Some(victim) = victim else { return false };
            self.entries.remove(&victim);
            self.evicted += 1;
        }
        self.entries.insert(ip, entry);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xA]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xB]);

    fn ip(n: u16) -> IpAddr {
        let [a, b] = n.to_be_bytes();
        [10, 0, a, b].into()
    }

    fn at(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    /// Asks what is due at `now` and returns whom.
    fn ask(table: &mut Neighbours, now: Instant) -> Vec<Option<MacAddr>> {
        table.expire(now);
        let questions = table.questions(now);
        for question in &questions {
            table.asked(now, question.ip);
        }
        questions.iter().map(|q| q.to).collect()
    }

    #[test]
    fn three_questions_then_failed_then_again() {
        let mut table = Neighbours::new(4);
        assert_eq!(table.lookup(at(0), ip(1)), Lookup::Pending);
        for second in 0..3 {
            assert_eq!(table.next_timeout(), Some(at(second)));
            assert_eq!(ask(&mut table, at(second)), [None]);
            assert_eq!(ask(&mut table, at(second)), []);
            assert_eq!(table.lookup(at(second), ip(1)), Lookup::Pending);
        }
        assert_eq!(table.expire(at(3)), 1);
        assert_eq!(table.lookup(at(3), ip(1)), Lookup::Failed);
        assert_eq!(table.lookup(at(7), ip(1)), Lookup::Failed);
        assert_eq!(table.lookup(at(8), ip(1)), Lookup::Pending);
        assert_eq!(ask(&mut table, at(8)), [None]);
        assert_eq!(table.update(at(8), ip(1), A, Evidence::Reply), Update::Learned);
        assert_eq!(table.lookup(at(9), ip(1)), Lookup::Ready(A));
    }

    #[test]
    fn a_known_neighbour_is_checked_when_used_late() {
        let mut table = Neighbours::new(4);
        assert_eq!(table.update(at(0), ip(1), A, Evidence::Request), Update::Learned);
        assert_eq!(table.lookup(at(29), ip(1)), Lookup::Ready(A));
        assert_eq!(ask(&mut table, at(29)), []);
        assert_eq!(table.lookup(at(30), ip(1)), Lookup::Ready(A));
        assert_eq!(ask(&mut table, at(30)), [Some(A)]);
        assert_eq!(ask(&mut table, at(31)), [Some(A)]);
        assert_eq!(ask(&mut table, at(32)), [None], "the last try asks everybody");
        assert_eq!(table.lookup(at(32), ip(1)), Lookup::Ready(A));
        assert_eq!(table.expire(at(33)), 1);
        assert_eq!(table.peek(ip(1)), None);
        assert_eq!(table.update(at(34), ip(1), B, Evidence::Overheard), Update::Changed);
        assert_eq!(table.peek(ip(1)), Some(B));
    }

    #[test]
    fn evidence_counts_for_what_it_is() {
        let mut table = Neighbours::new(4);
        assert_eq!(table.update(at(0), ip(1), A, Evidence::Overheard), Update::Ignored);
        assert_eq!(table.update(at(0), ip(1), A, Evidence::Reply), Update::Ignored);
        assert_eq!(table.update(at(0), ip(1), A, Evidence::Trusted), Update::Learned);
        assert_eq!(table.update(at(1), ip(1), A, Evidence::Request), Update::Confirmed);
        // A packet from another MAC is no proof: the neighbour is asked, and its answer counts.
        assert_eq!(table.update(at(2), ip(1), B, Evidence::Trusted), Update::Ignored);
        assert_eq!(table.lookup(at(2), ip(1)), Lookup::Ready(A));
        assert_eq!(ask(&mut table, at(2)), [Some(A)]);
        assert_eq!(table.update(at(2), ip(1), A, Evidence::Reply), Update::Confirmed);
        assert_eq!(table.update(at(3), ip(1), B, Evidence::Hint), Update::Ignored);
        assert_eq!(table.update(at(3), ip(1), B, Evidence::Overheard), Update::Changed);
        assert_eq!(table.lookup(at(3), ip(1)), Lookup::Ready(B));
    }

    #[test]
    fn a_neighbour_changes_its_mac_once_per_lock_time() {
        let mut table = Neighbours::new(4);
        table.update(at(0), ip(1), A, Evidence::Request);
        assert_eq!(table.update(at(10), ip(1), B, Evidence::Reply), Update::Changed);
        for (evidence, mac) in [Evidence::Reply, Evidence::Overheard, Evidence::Request].into_iter().zip([A, A, A]) {
            assert_eq!(table.update(at(10), ip(1), mac, evidence), Update::Locked);
        }
        assert_eq!(table.update(at(10), ip(1), B, Evidence::Overheard), Update::Confirmed);
        assert_eq!(table.lookup(at(10), ip(1)), Lookup::Ready(B));
        // The neighbour is asked which MAC is right, and its answer is believed.
        assert_eq!(ask(&mut table, at(10)), []);
        assert_eq!(ask(&mut table, at(11)), [Some(B)]);
        assert_eq!(table.update(at(11), ip(1), A, Evidence::Reply), Update::Changed);
        assert_eq!(table.lookup(at(11), ip(1)), Lookup::Ready(A));
    }

    #[test]
    fn a_told_remote_neighbour_is_never_asked() {
        let mut table = Neighbours::new(4);
        assert_eq!(table.update(at(0), ip(1), A, Evidence::TrustedRemote), Update::Learned);
        assert_eq!(table.lookup(at(1000), ip(1)), Lookup::Ready(A));
        assert_eq!(ask(&mut table, at(1000)), []);
        assert_eq!(table.update(at(1001), ip(1), B, Evidence::TrustedRemote), Update::Changed);
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_wanted() {
        let mut table = Neighbours::new(8);
        for n in 0..4 {
            table.update(at(0), ip(n), A, Evidence::Request);
            table.lookup(at(0), ip(n));
        }
        for n in 100..10_100 {
            table.update(at(1), ip(n), B, Evidence::Request);
            assert!(table.len() <= 8);
        }
        for n in 0..4 {
            assert_eq!(table.peek(ip(n)), Some(A));
        }
        assert!(table.evicted() > 9_000);
        // Lookups push out what was only heard of, but never one another, and take half of the table at most.
        for n in 0..4 {
            assert_eq!(table.lookup(at(2), ip(20_000 + n)), Lookup::Pending);
        }
        assert_eq!(table.lookup(at(2), ip(30_000)), Lookup::Failed);
        assert_eq!(table.update(at(2), ip(30_001), A, Evidence::Request), Update::Refused);
        for n in 0..4 {
            assert_eq!(table.peek(ip(n)), Some(A));
        }
        assert_eq!(table.len(), 8);
        // Those that do not answer make room for those that are heard.
        for second in 2..=5 {
            ask(&mut table, at(second));
        }
        assert_eq!(table.lookup(at(5), ip(20_000)), Lookup::Failed);
        assert_eq!(table.update(at(5), ip(30_001), A, Evidence::Request), Update::Learned);
        assert_eq!(table.len(), 8);
    }

    #[test]
    fn old_entries_go() {
        let mut table = Neighbours::new(8);
        table.update(at(0), ip(1), A, Evidence::Request);
        table.update(at(600), ip(2), A, Evidence::Request);
        table.expire(at(1199));
        assert_eq!(table.len(), 2);
        assert_eq!(table.next_timeout(), Some(at(1259)));
        table.expire(at(1259));
        assert_eq!((table.peek(ip(1)), table.peek(ip(2))), (None, Some(A)));
        table.expire(at(2000));
        assert_eq!((table.len(), table.next_timeout()), (0, None));
    }
}
