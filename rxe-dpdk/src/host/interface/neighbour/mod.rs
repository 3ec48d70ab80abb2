//! The neighbour table: IP address to MAC address, for IPv4 and IPv6 alike.
//!
//! An entry is *incomplete* until its neighbour answers a solicitation, then *reachable* for [`REACHABLE`], then
//! *stale*: the MAC address is still used, but the next use *probes* it with three solicitations a second apart, the
//! first two to the known MAC address, the last one to all. A neighbour that does not answer has *failed* and is not
//! solicited again for [`HOLD_DOWN`]. The table sends nothing itself: it lists the solicitations that are due.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rxe_proto::wire::MacAddr;
use rxe_proto::{Duration, Instant};

/// Solicitations before a neighbour has failed.
const TRIES: u8 = 3;
/// From one solicitation to the next.
const RETRY: Duration = Duration::from_secs(1);
/// How long a confirmed neighbour stays reachable.
const REACHABLE: Duration = Duration::from_secs(30);
/// How long a failed neighbour is not solicited again.
const HOLD_DOWN: Duration = Duration::from_secs(5);
/// An entry neither confirmed nor used for this long is removed.
const MAX_AGE: Duration = Duration::from_secs(20 * 60);
/// How long after a change of MAC address further changes are ignored, like Linux' `locktime`.
const LOCK_TIME: Duration = Duration::from_secs(1);
/// Interval between searches for old entries.
const SWEEP: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No MAC address known; `sent` solicitations sent, the next one (or the failure) at `due`.
    Incomplete {
        sent: u8,
        due: Instant,
    },
    Reachable {
        until: Instant,
    },
    Stale,
    /// The MAC address is known and being verified.
    Probe {
        sent: u8,
        due: Instant,
    },
    Failed {
        until: Instant,
    },
}

struct Entry {
    /// The last MAC address known; kept in the failed state to notice a change.
    mac: Option<MacAddr>,
    state: State,
    /// When it was last confirmed or looked up.
    touched: Instant,
    /// Until when another change of the MAC address is ignored.
    locked: Option<Instant>,
    /// Whether it was ever looked up: such entries are evicted last.
    used: bool,
    /// Not on our link: it was learned from a packet and cannot be solicited.
    remote: bool,
}

/// Answer of [`Neighbours::lookup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Lookup {
    Ready(MacAddr),
    Pending,
    Failed,
}

/// How a neighbour's MAC address was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Evidence {
    /// It solicited our MAC address.
    Request,
    /// It answered a solicitation and overrides what is known.
    Reply,
    /// It spoke to another host, or announced itself to all. Creates no entry.
    Overheard,
    /// It sent its MAC address without the override flag. Creates no entry.
    Hint,
    /// A packet of a trusted protocol came from there.
    Trusted,
    /// As [`Evidence::Trusted`], from beyond our link and without a route back.
    TrustedRemote,
}

/// The result of [`Neighbours::update`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Update {
    /// Nothing: no entry and none to create, or the evidence is too weak.
    Ignored,
    /// The MAC address was known already.
    Confirmed,
    /// The MAC address is known now.
    Learned,
    /// Another MAC address was known before.
    Changed,
    /// The MAC address changed less than [`LOCK_TIME`] ago: this change is ignored, and the neighbour is solicited
    /// after the lock time.
    Locked,
    /// The table has no room.
    Refused,
}

/// A solicitation to send for the MAC address of `ip`: to the station `to`, or to all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) struct Solicitation {
    pub(in crate::host) ip: IpAddr,
    pub(in crate::host) to: Option<MacAddr>,
}

pub(in crate::host) struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    capacity: usize,
    /// Not later than the first solicitation that is due.
    due: Option<Instant>,
    sweep: Instant,
    evicted: u64,
}

impl Neighbours {
    pub(in crate::host) fn new(capacity: usize) -> Neighbours {
        Neighbours { entries: BTreeMap::new(), capacity, due: None, sweep: Instant::ZERO, evicted: 0 }
    }

    pub(in crate::host) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries evicted to make room for others, in total.
    pub(in crate::host) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The MAC address of `ip`. Schedules a solicitation when it is unknown or stale.
    pub(in crate::host) fn lookup(&mut self, now: Instant, ip: IpAddr) -> Lookup {
        let Some(entry) = self.entries.get_mut(&ip) else {
            let state = State::Incomplete { sent: 0, due: now };
            let entry = Entry { mac: None, state, touched: now, locked: None, used: true, remote: false };
            if !self.insert(ip, entry) {
                return Lookup::Failed;
            }
            self.wake(now);
            return Lookup::Pending;
        };
        entry.touched = now;
        entry.used = true;
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

    /// The MAC address of `ip` if it is known; schedules nothing.
    pub(in crate::host) fn peek(&self, ip: IpAddr) -> Option<MacAddr> {
        let entry = self.entries.get(&ip)?;
        match entry.state {
            State::Incomplete { .. } | State::Failed { .. } => None,
            State::Reachable { .. } | State::Stale | State::Probe { .. } => entry.mac,
        }
    }

    /// Updates the entry of `ip` as far as `evidence` allows.
    pub(in crate::host) fn update(&mut self, now: Instant, ip: IpAddr, mac: MacAddr, evidence: Evidence) -> Update {
        let remote = evidence == Evidence::TrustedRemote;
        let reachable = State::Reachable { until: now + REACHABLE };
        let Some(entry) = self.entries.get_mut(&ip) else {
            if !matches!(evidence, Evidence::Request | Evidence::Trusted | Evidence::TrustedRemote) {
                return Update::Ignored;
            }
            let entry = Entry { mac: Some(mac), state: reachable, touched: now, locked: None, used: false, remote };
            return if self.insert(ip, entry) { Update::Learned } else { Update::Refused };
        };
        entry.touched = now;
        let same = entry.mac == Some(mac);
        if let (Some(until), false, false) = (entry.locked.filter(|until| now < *until), same, entry.mac.is_none()) {
            // A solicitation decides which of the two is right, at most one per lock time.
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
            // A second MAC address, but no reason to prefer it: solicit, and take the answer.
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

    /// When [`Neighbours::expire`] and [`Neighbours::due_solicitations`] have something to do.
    pub(in crate::host) fn next_timeout(&self) -> Option<Instant> {
        if self.entries.is_empty() { None } else { Some(self.due.map_or(self.sweep, |due| due.min(self.sweep))) }
    }

    /// Marks neighbours that did not answer as failed, and removes old entries. Returns the number that failed.
    pub(in crate::host) fn expire(&mut self, now: Instant) -> u64 {
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

    /// The solicitations to send now; each stays due until [`Neighbours::solicited`].
    pub(in crate::host) fn due_solicitations(&self, now: Instant) -> Vec<Solicitation> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let is_due = |(&ip, entry): (&IpAddr, &Entry)| match entry.state {
            State::Incomplete { due, .. } if due <= now => Some(Solicitation { ip, to: None }),
            State::Probe { sent, due } if due <= now => {
                Some(Solicitation { ip, to: entry.mac.filter(|_| sent + 1 < TRIES) })
            }
            _ => None,
        };
        self.entries.iter().filter_map(is_due).collect()
    }

    /// The solicitation for `ip` was sent.
    pub(in crate::host) fn solicited(&mut self, now: Instant, ip: IpAddr) {
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

    /// Adds an entry; evicts the least useful one when the table is full. Entries being resolved are never evicted and
    /// take at most half of the table, so that requests from forged addresses cannot evict the neighbours in use.
    fn insert(&mut self, ip: IpAddr, entry: Entry) -> bool {
        let unresolved = |e: &Entry| matches!(e.state, State::Incomplete { .. });
        if unresolved(&entry) && self.entries.values().filter(|e| unresolved(e)).count() >= self.capacity.div_ceil(2) {
            return false;
        }
        if self.entries.is_empty() {
            self.sweep = entry.touched + SWEEP;
        }
        if self.entries.len() >= self.capacity {
            let usefulness = |e: &Entry| (e.used, !matches!(e.state, State::Failed { .. }), e.touched);
            let victim = self
                .entries
                .iter()
                .filter(|(_, e)| !matches!(e.state, State::Incomplete { .. } | State::Probe { .. }))
                .filter(|(_, e)| entry.used || !e.used || matches!(e.state, State::Failed { .. }))
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
mod tests;
