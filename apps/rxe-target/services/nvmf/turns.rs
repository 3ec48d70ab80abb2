//! Which command is next when there is not room for all: hosts in turn by bytes, and of each host the oldest first.
//!
//! A host may have as much as it leaves free for others: alone half of the room, beside one other a third, and one that has
//! nothing gets what it needs. What waits for its own host's share holds up no other host. The command whose turn it is reserves
//! its room: while it does not fit, nothing else gets any.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::hosts::HostNumber;

/// Bytes that a host may use in its turn before the next host has one.
const QUANTUM: usize = 256 << 10;
/// What a command counts for in its turn, at least.
const LEAST: usize = 4096;

/// What a host has, and what it waits for.
struct Share<T> {
    bytes: usize,
    commands: usize,
    /// Bytes that it may still use in its turn.
    credit: usize,
    /// With the bytes that each needs, oldest first.
    waiting: VecDeque<(T, usize)>,
}

impl<T> Default for Share<T> {
    fn default() -> Share<T> {
        Share { bytes: 0, commands: 0, credit: 0, waiting: VecDeque::new() }
    }
}

/// What a host has, and what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostShare {
    /// The host.
    pub host: HostNumber,
    /// Bytes of memory that its commands have.
    pub bytes: usize,
    /// Commands in progress.
    pub commands: usize,
    /// Commands that wait.
    pub waiting: usize,
    /// Bytes that they need.
    pub waiting_bytes: usize,
}

/// Room for commands: a number of places, and bytes of memory for those that need some.
pub struct Turns<T> {
    capacity: usize,
    used: usize,
    places: usize,
    taken: usize,
    /// Hosts that have or want something.
    shares: FxHashMap<HostNumber, Share<T>>,
    /// Hosts with commands that wait; the first one has its turn.
    order: VecDeque<HostNumber>,
    /// The command whose turn it is does not fit.
    is_reserved: bool,
    /// Something may have become possible since the last look.
    has_changed: bool,
}

impl<T> Turns<T> {
    /// Room for `places` commands and `capacity` bytes.
    pub fn new(capacity: usize, places: usize) -> Turns<T> {
        Turns {
            capacity,
            used: 0,
            places,
            taken: 0,
            shares: FxHashMap::default(),
            order: VecDeque::new(),
            is_reserved: false,
            has_changed: false,
        }
    }

    /// A new command, which needs a place and `bytes`. `allocate` has the memory, or `None`. Returns `None` when the command has
    /// to wait.
    pub fn enter<P>(
        &mut self,
        host: HostNumber,
        bytes: usize,
        command: T,
        allocate: impl FnOnce() -> Option<P>,
    ) -> Option<(T, P)> {
        let is_behind = self.shares.get(&host).is_some_and(|share| !share.waiting.is_empty());
        if !self.is_reserved && !is_behind && self.has_share(host, bytes) {
            match self.room(allocate) {
                Some(room) => {
                    self.take(host, bytes);
                    return Some((command, room));
                }
                None => self.is_reserved = true,
            }
        }
        self.has_changed = true;
        self.shares.entry(host).or_default().waiting.push_back((command, bytes));
        if !is_behind {
            self.order.push_back(host);
        }
        None
    }

    /// The next command that has waited, with its host and the bytes that it has now. `allocate` has memory of a length.
    pub fn next<P>(&mut self, allocate: impl FnOnce(usize) -> Option<P>) -> Option<(HostNumber, T, P)> {
        if !std::mem::take(&mut self.has_changed) {
            return None;
        }
        self.is_reserved = false;
        let mut passed = 0;
        while passed < self.order.len() {
            let host = *self.order.front()?;
            let bytes = self.shares.get(&host)?.waiting.front()?.1;
            if !self.has_share(host, bytes) {
                passed += 1;
                self.order.rotate_left(1);
                continue;
            }
            let cost = bytes.max(LEAST);
            let share = self.shares.get_mut(&host)?;
            if share.credit < cost {
                share.credit += QUANTUM;
                passed = 0;
                self.order.rotate_left(1);
                continue;
            }
            let Some(room) = self.room(|| allocate(bytes)) else {
                self.is_reserved = true;
                return None;
            };
            self.has_changed = true;
            let share = self.shares.get_mut(&host)?;
            share.credit -= cost;
            let (command, _) = share.waiting.pop_front()?;
            if share.waiting.is_empty() {
                share.credit = 0;
                self.order.pop_front();
            }
            self.take(host, bytes);
            return Some((host, command, room));
        }
        None
    }

    /// Memory of a host came back.
    pub fn free(&mut self, host: HostNumber, bytes: usize) {
        self.used -= bytes;
        self.give_back(host, bytes, 0);
    }

    /// A command of a host has left its place.
    pub fn leave(&mut self, host: HostNumber) {
        self.taken -= 1;
        self.give_back(host, 0, 1);
    }

    /// Forgets the commands of a host that wait, if `is_gone` says so.
    pub fn withdraw(&mut self, host: HostNumber, mut is_gone: impl FnMut(&T) -> bool) {
        let Some(share) = self.shares.get_mut(&host) else { return };
        share.waiting.retain(|(command, _)| !is_gone(command));
        if share.waiting.is_empty() {
            share.credit = 0;
            self.order.retain(|other| *other != host);
        }
        self.give_back(host, 0, 0);
    }

    /// What the hosts have and wait for: those with commands that wait first, in turn.
    pub fn shares(&self) -> Vec<HostShare> {
        let others = self.shares.iter().filter(|(_, share)| share.waiting.is_empty()).map(|(host, _)| host);
        let report = |host: &HostNumber| {
            let share = self.shares.get(host)?;
            Some(HostShare {
                host: *host,
                bytes: share.bytes,
                commands: share.commands,
                waiting: share.waiting.len(),
                waiting_bytes: share.waiting.iter().map(|(_, bytes)| bytes).sum(),
            })
        };
        self.order.iter().chain(others).filter_map(report).collect()
    }

    /// Whether a host with one more command leaves as much free as it has.
    fn has_share(&self, host: HostNumber, bytes: usize) -> bool {
        let (used, commands) = self.shares.get(&host).map_or((0, 0), |share| (share.bytes, share.commands));
        let has_bytes = bytes == 0 || used == 0 || used + bytes + bytes <= self.capacity - self.used;
        has_bytes && (commands == 0 || commands + 2 <= self.places - self.taken)
    }

    fn room<P>(&self, allocate: impl FnOnce() -> Option<P>) -> Option<P> {
        if self.taken < self.places { allocate() } else { None }
    }

    fn take(&mut self, host: HostNumber, bytes: usize) {
        self.used += bytes;
        self.taken += 1;
        let share = self.shares.entry(host).or_default();
        share.bytes += bytes;
        share.commands += 1;
    }

    fn give_back(&mut self, host: HostNumber, bytes: usize, commands: usize) {
        self.has_changed = true;
        let Some(share) = self.shares.get_mut(&host) else { return };
        share.bytes -= bytes;
        share.commands -= commands;
        if share.bytes == 0 && share.commands == 0 && share.waiting.is_empty() {
            self.shares.remove(&host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Room that is only counted.
    struct Room(Turns<u32>, Vec<(HostNumber, usize)>);

    impl Room {
        fn new(capacity: usize, places: usize) -> Room {
            Room(Turns::new(capacity, places), Vec::new())
        }

        fn has_room(&self, bytes: usize) -> Option<usize> {
            (bytes <= self.0.capacity - self.0.used).then_some(bytes)
        }

        fn enter(&mut self, host: u64, bytes: usize, command: u32) -> bool {
            let (host, room) = (HostNumber::of(host), self.has_room(bytes));
            let entered = self.0.enter(host, bytes, command, || room).is_some();
            if entered {
                self.1.push((host, bytes));
            }
            entered
        }

        fn next(&mut self) -> Option<u32> {
            let free = self.0.capacity - self.0.used;
            let (host, command, bytes) = self.0.next(|bytes| (bytes <= free).then_some(bytes))?;
            self.1.push((host, bytes));
            Some(command)
        }

        /// The oldest command of a host that is in progress ends.
        fn end(&mut self, host: u64) {
            let at = self.1.iter().position(|(other, _)| *other == HostNumber::of(host)).expect("in progress");
            let (host, bytes) = self.1.remove(at);
            self.0.free(host, bytes);
            self.0.leave(host);
        }
    }

    #[test]
    fn a_host_has_as_much_as_it_leaves_free_and_a_new_one_finds_room() {
        let mut room = Room::new(9 * MIB, 100);
        let entered = |room: &mut Room, host: u64| (0..9).filter(|n| room.enter(host, MIB, *n)).count();
        assert_eq!([entered(&mut room, 1), entered(&mut room, 2), entered(&mut room, 3)], [4, 2, 1]);
        assert_eq!(room.next(), None);
        // What one gives back goes to the one that has least.
        room.end(1);
        assert_eq!((room.next(), room.next()), (Some(1), None));
        assert!(room.enter(4, MIB, 7));
    }

    #[test]
    fn hosts_take_turns_by_bytes_and_the_oldest_of_a_host_is_first() {
        let mut room = Room::new(4 * MIB, 100);
        assert!(room.enter(9, 4 * MIB, 0));
        for number in 0..8 {
            room.enter(1, MIB, 100 + number);
            (0..16).for_each(|part| _ = room.enter(2, QUANTUM, 1000 + number * 16 + part));
        }
        room.end(9);
        let (mut order, mut bytes) = (Vec::new(), [0, 0]);
        for _ in 0..40 {
            while let Some(command) = room.next() {
                order.push(command);
                let (host, len) = if command < 1000 { (1, MIB) } else { (2, QUANTUM) };
                bytes[host - 1] += len;
                room.end(host as u64);
            }
        }
        let of = |first: u32| order.iter().copied().filter(move |command| command / first == 1).collect::<Vec<_>>();
        assert!(of(100).is_sorted() && of(1000).is_sorted());
        assert_eq!(order.len(), 8 + 128);
        // Until the shorter queue is empty, nobody is a turn ahead.
        let last = order.iter().position(|command| *command == 107).expect("it was admitted");
        let others = order[..last].iter().filter(|command| **command >= 1000).count() * QUANTUM;
        assert!(others.abs_diff(8 * MIB) <= MIB, "{others}");
    }

    #[test]
    fn the_one_whose_turn_it_is_reserves_its_room() {
        let mut room = Room::new(4 * MIB, 100);
        for host in 1..=4 {
            assert!(room.enter(host, MIB, host as u32));
        }
        assert!(!room.enter(5, 2 * MIB, 50));
        room.end(1);
        assert_eq!(room.next(), None);
        assert!(!room.enter(6, MIB, 60), "it passes the one before");
        room.end(2);
        assert_eq!((room.next(), room.next()), (Some(50), None));
        room.end(3);
        assert_eq!(room.next(), Some(60));
    }

    #[test]
    fn places_are_shared_as_bytes_are_and_what_was_withdrawn_does_not_come() {
        let mut room = Room::new(MIB, 5);
        let entered: Vec<bool> = (0..4).map(|number| room.enter(1, 0, number)).collect();
        assert_eq!(entered, [true, true, false, false]);
        assert!(room.enter(2, 0, 7));
        room.0.withdraw(HostNumber::of(1), |command| *command == 2);
        room.end(1);
        room.end(2);
        assert_eq!((room.next(), room.next()), (Some(3), None));
        room.end(1);
        room.end(1);
        assert!(room.0.shares().is_empty() && room.0.order.is_empty());
    }
}
