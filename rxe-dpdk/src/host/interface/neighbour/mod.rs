//! The neighbour table: IP address to MAC address, for IPv4 and IPv6 alike.
//!
//! An entry is *incomplete* until its neighbour answers a solicitation, then *reachable* for [`REACHABLE`], then
//! *stale*: the MAC address is still used, but the next use *probes* it with three solicitations a second apart, the
//! first two to the known MAC address, the last one to all. A neighbour that does not answer has *failed* and is not
//! solicited again for [`HOLD_DOWN`]. The table sends nothing itself: it lists the solicitations that are due.

use std::collections::{BTreeSet, HashMap};
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
/// How long an entry that is being resolved has its place for sure: a neighbour answers within a round trip.
const ANSWER_TIME: Duration = Duration::from_millis(20);
/// Most solicitations per poll.
const MAX_SOLICITATIONS: usize = 16;
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

/// Order in which entries are replaced. What is known already never gives way to what is not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Rank {
    Failed,
    /// Replaced by others that are being resolved.
    Unresolved,
    /// Known, and never looked up.
    Unused,
    Used,
    /// Known, and being verified.
    Probed,
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
    /// Since when it is being resolved.
    since: Instant,
}

impl Entry {
    fn rank(&self) -> Rank {
        match self.state {
            State::Failed { .. } => Rank::Failed,
            State::Incomplete { .. } => Rank::Unresolved,
            State::Probe { .. } => Rank::Probed,
            State::Reachable { .. } | State::Stale if self.used => Rank::Used,
            State::Reachable { .. } | State::Stale => Rank::Unused,
        }
    }

    /// Its key in the order of replacement, without the address: of those with one rank, the oldest comes first.
    fn order(&self) -> (Rank, Instant) {
        let rank = self.rank();
        (rank, if rank == Rank::Unresolved { self.since } else { self.touched })
    }

    /// When a solicitation, or its failure, is due.
    fn due(&self) -> Option<Instant> {
        match self.state {
            State::Incomplete { due, .. } | State::Probe { due, .. } => Some(due),
            State::Reachable { .. } | State::Stale | State::Failed { .. } => None,
        }
    }
}

impl Entry {
    /// See [`Neighbours::update`].
    fn update(&mut self, now: Instant, mac: MacAddr, evidence: Evidence) -> Update {
        let reachable = State::Reachable { until: now + REACHABLE };
        self.touched = now;
        let same = self.mac == Some(mac);
        if let (Some(until), false, false) = (self.locked.filter(|until| now < *until), same, self.mac.is_none()) {
            // A solicitation decides which of the two is right, at most one per lock time.
            if matches!(self.state, State::Reachable { .. } | State::Stale) && !self.remote {
                self.state = State::Probe { sent: 0, due: until };
            }
            return Update::Locked;
        }
        match (self.state, evidence) {
            (State::Incomplete { .. } | State::Failed { .. }, _) => {
                let update = if self.mac.is_some() && !same { Update::Changed } else { Update::Learned };
                self.locked = (update == Update::Changed).then_some(now + LOCK_TIME);
                self.mac = Some(mac);
                self.remote = evidence == Evidence::TrustedRemote;
                self.state = if evidence == Evidence::Overheard { State::Stale } else { reachable };
                update
            }
            (_, Evidence::Overheard | Evidence::Hint) if same => Update::Confirmed,
            (_, _) if same => {
                self.state = reachable;
                Update::Confirmed
            }
            // A second MAC address, but no reason to prefer it: solicit, and take the answer.
            (State::Reachable { .. } | State::Probe { .. }, Evidence::Trusted) | (_, Evidence::Hint) => {
                self.state = State::Probe { sent: 0, due: now };
                Update::Ignored
            }
            (_, _) => {
                self.mac = Some(mac);
                self.state = reachable;
                self.locked = Some(now + LOCK_TIME);
                Update::Changed
            }
        }
    }
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
    entries: HashMap<IpAddr, Entry>,
    /// The same in the order in which they are replaced.
    order: BTreeSet<(Rank, Instant, IpAddr)>,
    /// Those with a time limit, by that.
    timers: BTreeSet<(Instant, IpAddr)>,
    /// Number of those that are being resolved.
    unresolved: usize,
    capacity: usize,
    sweep: Instant,
    evicted: u64,
}

impl Neighbours {
    pub(in crate::host) fn new(capacity: usize) -> Neighbours {
        let (entries, order, timers) = (HashMap::new(), BTreeSet::new(), BTreeSet::new());
        Neighbours { entries, order, timers, unresolved: 0, capacity, sweep: Instant::ZERO, evicted: 0 }
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
        let found = self.change(ip, |entry| {
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
            entry.since = now;
            answer
        });
        found.unwrap_or_else(|| {
            let state = State::Incomplete { sent: 0, due: now };
            let entry = Entry { mac: None, state, touched: now, locked: None, used: true, remote: false, since: now };
            if self.insert(now, ip, entry) { Lookup::Pending } else { Lookup::Failed }
        })
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
        let state = State::Reachable { until: now + REACHABLE };
        let known = self.change(ip, |entry| entry.update(now, mac, evidence));
        known.unwrap_or_else(|| {
            if !matches!(evidence, Evidence::Request | Evidence::Trusted | Evidence::TrustedRemote) {
                return Update::Ignored;
            }
            let entry = Entry { mac: Some(mac), state, touched: now, locked: None, used: false, remote, since: now };
            if self.insert(now, ip, entry) { Update::Learned } else { Update::Refused }
        })
    }

    /// When [`Neighbours::expire`] and [`Neighbours::due_solicitations`] have something to do.
    pub(in crate::host) fn next_timeout(&self) -> Option<Instant> {
        if self.entries.is_empty() {
            return None;
        }
        Some(self.timers.first().map_or(self.sweep, |(due, _)| self.sweep.min(*due)))
    }

    /// Marks neighbours that did not answer as failed, and removes old entries. Returns the number that failed.
    pub(in crate::host) fn expire(&mut self, now: Instant) -> u64 {
        let due = self.timers.iter().take_while(|(due, _)| *due <= now);
        let unanswered = |ip: &IpAddr| match self.entries.get(ip).map(|entry| entry.state) {
            Some(State::Incomplete { sent, .. } | State::Probe { sent, .. }) => sent >= TRIES,
            _ => false,
        };
        let failed: Vec<IpAddr> = due.map(|(_, ip)| *ip).filter(unanswered).collect();
        for &ip in &failed {
            self.change(ip, |entry| entry.state = State::Failed { until: now + HOLD_DOWN });
        }
        if self.sweep <= now {
            self.sweep = now + SWEEP;
            let old = self.entries.iter().filter(|(_, entry)| now.saturating_since(entry.touched) >= MAX_AGE);
            let old: Vec<IpAddr> = old.map(|(&ip, _)| ip).collect();
            old.into_iter().for_each(|ip| self.remove(ip));
        }
        failed.len() as u64
    }

    /// The next solicitations to send now; each stays due until [`Neighbours::solicited`]. Those for neighbours that are known
    /// come first.
    pub(in crate::host) fn due_solicitations(&self, now: Instant) -> Vec<Solicitation> {
        let due = || self.timers.iter().take_while(|(due, _)| *due <= now).map(|(_, ip)| *ip);
        let of = |ip: IpAddr, known: bool| match self.entries.get(&ip)? {
            Entry { state: State::Incomplete { .. }, .. } if !known => Some(Solicitation { ip, to: None }),
            Entry { state: State::Probe { sent, .. }, mac, .. } if known => {
                Some(Solicitation { ip, to: mac.filter(|_| sent + 1 < TRIES) })
            }
            _ => None,
        };
        let known = due().filter_map(|ip| of(ip, true));
        known.chain(due().filter_map(|ip| of(ip, false))).take(MAX_SOLICITATIONS).collect()
    }

    /// The solicitation for `ip` was sent.
    pub(in crate::host) fn solicited(&mut self, now: Instant, ip: IpAddr) {
        self.change(ip, |entry| {
            if let State::Incomplete { sent, due } | State::Probe { sent, due } = &mut entry.state {
                *sent = sent.saturating_add(1);
                *due = now + RETRY;
            }
        });
    }

    /// Changes an entry, and its place in the indices. `None` if there is none.
    fn change<T>(&mut self, ip: IpAddr, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.entries.get_mut(&ip)?;
        let (order, due) = (entry.order(), entry.due());
        let result = change(entry);
        let (new_order, new_due) = (entry.order(), entry.due());
        if order != new_order {
            self.order.remove(&(order.0, order.1, ip));
            self.order.insert((new_order.0, new_order.1, ip));
            self.unresolved -= usize::from(order.0 == Rank::Unresolved);
            self.unresolved += usize::from(new_order.0 == Rank::Unresolved);
        }
        if due != new_due {
            if let Some(due) = due {
                self.timers.remove(&(due, ip));
            }
            self.timers.extend(new_due.map(|due| (due, ip)));
        }
        Some(result)
    }

    fn remove(&mut self, ip: IpAddr) {
        let Some(entry) = self.entries.remove(&ip) else { return };
        let (rank, stamp) = entry.order();
        self.order.remove(&(rank, stamp, ip));
        self.unresolved -= usize::from(rank == Rank::Unresolved);
        if let Some(due) = entry.due() {
            self.timers.remove(&(due, ip));
        }
    }

    /// The oldest entry of a rank, if a new one may replace it.
    fn oldest(&self, now: Instant, rank: Rank) -> Option<IpAddr> {
        let first = (rank, Instant::ZERO, IpAddr::from([0, 0, 0, 0]));
        let &(found, stamp, ip) = self.order.range(first..).next()?;
        let gives_way = rank != Rank::Unresolved || now.saturating_since(stamp) >= ANSWER_TIME;
        (found == rank && gives_way).then_some(ip)
    }

    /// The entry that a new one of rank `new` replaces, when the table or the part of it for unresolved ones is full.
    ///
    /// Who forges addresses can have as many entries resolved, or learned, as it likes. So an unresolved entry replaces a known one
    /// only while few are unresolved, never one in use, and else the one that has waited for its answer for longest; a known one
    /// that nobody has looked up replaces none in use.
    fn victim(&self, now: Instant, new: Rank) -> Option<IpAddr> {
        let few = self.unresolved < self.capacity.div_ceil(8).max(4);
        let ranks: &[Rank] = match new {
            Rank::Unresolved if few => &[Rank::Failed, Rank::Unused, Rank::Unresolved],
            Rank::Unresolved => &[Rank::Failed, Rank::Unresolved],
            _ if few => &[Rank::Failed, Rank::Unused],
            _ => &[Rank::Failed, Rank::Unresolved, Rank::Unused],
        };
        ranks.iter().find_map(|&rank| self.oldest(now, rank))
    }

    /// Adds an entry; replaces the least useful one when the table is full. At most half of the entries are unresolved.
    fn insert(&mut self, now: Instant, ip: IpAddr, entry: Entry) -> bool {
        let (rank, stamp) = entry.order();
        let victim = if rank == Rank::Unresolved && self.unresolved >= self.capacity.div_ceil(2) {
            Some(self.oldest(now, Rank::Unresolved))
        } else {
            (self.entries.len() >= self.capacity).then(|| self.victim(now, rank))
        };
        match victim {
            Some(Some(victim)) => {
                self.remove(victim);
                self.evicted += 1;
            }
            Some(None) => return false,
            None => {}
        }
        if self.entries.is_empty() {
            self.sweep = entry.touched + SWEEP;
        }
        self.order.insert((rank, stamp, ip));
        self.unresolved += usize::from(rank == Rank::Unresolved);
        self.timers.extend(entry.due().map(|due| (due, ip)));
        self.entries.insert(ip, entry);
        true
    }
}

#[cfg(test)]
mod tests;
