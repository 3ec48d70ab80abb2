//! The order in which queue pairs transmit.
//!
//! Each port has a scheduler of its own, because back-pressure is per port: a full port holds up no other. A queue pair
//! that has just got something to send is served before those that have used up a quantum and have more: an ACK or a
//! short message waits for at most [`MAX_NEW_IN_A_ROW`] other queue pairs and one quantum of a long message.

use std::collections::VecDeque;

use crate::time::Instant;
use crate::wire::PortId;

use super::EngineConfig;
use super::long_limit::{Direction, LongLimit, Mix, Outstanding};

/// New queue pairs served in a row before one that continues a long message.
const MAX_NEW_IN_A_ROW: u32 = 8;

/// The slots of queue pairs that may have something to transmit, each at most once (a flag in the queue pair), by port.
#[derive(Debug, Default)]
pub(super) struct TxScheduler {
    ports: Vec<PortScheduler>,
    /// Queue pairs that each port has room for.
    capacity: usize,
    /// Ports on which long messages are limited, and those on which some are outstanding.
    limited: usize,
    long: usize,
}

/// Packets that a queue pair may still write in its turn. A full port interrupts a turn, and does not end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Quanta {
    pub(super) replies: u32,
    pub(super) requests: u32,
}

impl Quanta {
    #[inline]
    pub(super) fn of(config: &EngineConfig) -> Quanta {
        Quanta { replies: config.read_quantum, requests: config.send_quantum }
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// A queue pair that is in the schedule.
    Scheduled(u16),
    /// A queue pair whose requests waited for the limit of long messages. It may be in the schedule, too, for its replies.
    Held(u16),
}

#[derive(Debug, Default)]
struct PortScheduler {
    /// The queue pair whose turn the port has interrupted, and what is left of that.
    interrupted: Option<(u16, Quanta)>,
    /// Queue pairs that were idle and have got something to send.
    new: VecDeque<u16>,
    /// Queue pairs that have used up at least one quantum.
    continuing: VecDeque<u16>,
    /// New queue pairs served since the last other one, while another one waits.
    new_in_a_row: u32,
    /// The limit of the long messages.
    limit: LongLimit,
    /// Queue pairs whose requests wait for it, by direction, the longest wait first.
    held: [VecDeque<u16>; 2],
    /// How many these are.
    holds: usize,
}

impl TxScheduler {
    /// Reserves room for `capacity` queue pairs: later calls do not allocate, except the first one for a port.
    pub(super) fn reserve(&mut self, capacity: usize) {
        self.capacity = self.capacity.max(capacity);
        self.ports.iter_mut().for_each(|port| port.reserve(self.capacity));
    }

    /// One past the highest port number in use.
    #[inline]
    pub(super) fn ports(&self) -> usize {
        self.ports.len()
    }

    /// The limit of a port's long messages; `None` as long as nothing was sent there.
    #[inline]
    pub(super) fn limit(&self, port: PortId) -> Option<&LongLimit> {
        self.ports.get(usize::from(port.0)).map(|port| &port.limit)
    }

    /// Changes the limit of a port's long messages, but not its sums, if anything was sent there.
    pub(super) fn with_limit(&mut self, port: PortId, change: impl FnOnce(&mut LongLimit)) {
        if let Some(port) = self.ports.get_mut(usize::from(port.0)) {
            let was_limited = port.limit.is_limited();
            change(&mut port.limit);
            self.limited = self.limited + usize::from(port.limit.is_limited()) - usize::from(was_limited);
        }
    }

    /// A queue pair's part of the sums of a port's limit changes from `before` to `after`.
    #[inline]
    pub(super) fn settle(&mut self, port: PortId, now: Instant, before: Outstanding, after: Outstanding) {
        if let Some(port) = self.ports.get_mut(usize::from(port.0)) {
            let had_long = port.limit.has_long();
            port.limit.settle(now, before, after);
            self.long = self.long + usize::from(port.limit.has_long()) - usize::from(had_long);
        }
    }

    /// Whether long messages are limited on any port.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.limited > 0
    }

    /// Whether long messages are outstanding on any port.
    #[inline]
    pub(super) fn has_long(&self) -> bool {
        self.long > 0
    }

    /// How the messages of a port are mixed now.
    #[inline]
    pub(super) fn mix(&mut self, port: usize, now: Instant) -> Mix {
        let Some(port) = self.ports.get_mut(port) else { return Mix::NoneLong };
        if port.limit.is_limited() {
            let mix = port.limit.mix(now, port.holds > 0);
            self.limited -= usize::from(mix != Mix::Limited);
            mix
        } else {
            port.limit.mix(now, false)
        }
    }

    /// Enqueues a queue pair whose requests wait for the limit of long messages in a direction.
    pub(super) fn hold(&mut self, port: PortId, direction: Direction, slot: u16) {
        if let Some(port) = self.ports.get_mut(usize::from(port.0)) {
            port.held[direction as usize].push_back(slot);
            port.holds += 1;
        }
    }

    /// When queue pairs that wait for the limit of long messages may go on, even if no packet arrives.
    pub(super) fn held_until(&self) -> Option<Instant> {
        if self.limited == 0 {
            return None;
        }
        let holding = self.ports.iter().filter(|port| port.holds > 0 && port.limit.is_limited());
        holding.map(|port| port.limit.expires()).min()
    }

    /// Lets go on what has waited long enough for the limit of long messages.
    #[inline]
    pub(super) fn expire_limits(&mut self, now: Instant) {
        if self.limited > 0 {
            for port in 0..self.ports.len() {
                self.mix(port, now);
            }
        }
    }

    /// Whether no queue pair can transmit.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ports.iter().all(PortScheduler::is_empty)
    }

    /// Enqueues a queue pair that was idle.
    #[inline]
    pub(super) fn enqueue(&mut self, port: PortId, slot: u16) {
        match self.ports.get_mut(usize::from(port.0)) {
            Some(port) => port.new.push_back(slot),
            None => self.enqueue_first(port, slot),
        }
    }

    #[cold]
    fn enqueue_first(&mut self, port: PortId, slot: u16) {
        self.ports.resize_with(usize::from(port.0) + 1, PortScheduler::default);
        self.reserve(self.capacity);
        if let Some(port) = self.ports.last_mut() {
            port.new.push_back(slot);
        }
    }

    /// The queue pair whose turn the port has interrupted, and what is left of that turn, if there is one: it is the next.
    #[inline]
    pub(super) fn resume(&mut self, port: usize) -> Option<(u16, Quanta)> {
        self.ports.get_mut(port)?.interrupted.take()
    }

    /// Dequeues the queue pair that transmits next on a port.
    #[inline]
    pub(super) fn dequeue(&mut self, port: usize) -> Option<Next> {
        self.ports.get_mut(port)?.dequeue()
    }

    /// Enqueues a queue pair that has used up its quantum and has more to send.
    #[inline(never)]
    pub(super) fn requeue(&mut self, port: usize, slot: u16) {
        if let Some(port) = self.ports.get_mut(port) {
            port.continuing.push_back(slot);
        }
    }

    /// The port has refused packets of a queue pair: it is the next one again, with what is left of its turn.
    #[cold]
    pub(super) fn interrupt(&mut self, port: usize, slot: u16, left: Quanta) {
        if let Some(port) = self.ports.get_mut(port) {
            port.interrupted = Some((slot, left));
        }
    }

    /// Removes a destroyed queue pair.
    pub(super) fn remove(&mut self, slot: u16) {
        for port in &mut self.ports {
            port.interrupted = port.interrupted.filter(|(other, _)| *other != slot);
            let [out, in_] = &mut port.held;
            for queue in [&mut port.new, &mut port.continuing, out, in_] {
                queue.retain(|&other| other != slot);
            }
            port.holds = port.held.iter().map(VecDeque::len).sum();
        }
    }
}

impl PortScheduler {
    fn reserve(&mut self, capacity: usize) {
        let [out, in_] = &mut self.held;
        for queue in [&mut self.new, &mut self.continuing, out, in_] {
            queue.reserve(capacity.saturating_sub(queue.len()));
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.new.is_empty() && self.continuing.is_empty() && self.interrupted.is_none() && self.may_go_on().is_none()
    }

    /// The direction in which a queue pair waits for the limit, and there is room.
    #[inline]
    fn may_go_on(&self) -> Option<Direction> {
        if self.holds == 0 {
            return None;
        }
        let fits =
            |direction: Direction| !self.held[direction as usize].is_empty() && self.limit.has_room_again(direction);
        [Direction::Out, Direction::In].into_iter().find(|&direction| fits(direction))
    }

    #[inline]
    fn dequeue(&mut self) -> Option<Next> {
        if self.holds > 0 {
            self.dequeue_held()
        } else if self.continuing.is_empty() {
            self.new.pop_front().map(Next::Scheduled)
        } else {
            self.dequeue_from_both()
        }
    }

    /// The next one while others than new ones wait.
    #[inline(never)]
    fn dequeue_from_both(&mut self) -> Option<Next> {
        if self.new_in_a_row < MAX_NEW_IN_A_ROW
            && let Some(slot) = self.new.pop_front()
        {
            self.new_in_a_row += 1;
            return Some(Next::Scheduled(slot));
        }
        self.new_in_a_row = 0;
        self.continuing.pop_front().map(Next::Scheduled)
    }

    /// The next one while some wait for the limit. They have waited longer than those that continue, and use up the room.
    #[inline(never)]
    fn dequeue_held(&mut self) -> Option<Next> {
        let Some(direction) = self.may_go_on() else {
            let none_waits = self.continuing.is_empty();
            return if none_waits { self.new.pop_front().map(Next::Scheduled) } else { self.dequeue_from_both() };
        };
        if self.new_in_a_row < MAX_NEW_IN_A_ROW
            && let Some(slot) = self.new.pop_front()
        {
            self.new_in_a_row += 1;
            return Some(Next::Scheduled(slot));
        }
        self.new_in_a_row = 0;
        self.holds -= 1;
        self.held[direction as usize].pop_front().map(Next::Held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(0);

    fn next(scheduler: &mut TxScheduler, port: usize) -> Option<u16> {
        scheduler.dequeue(port).map(|next| match next {
            Next::Scheduled(slot) | Next::Held(slot) => slot,
        })
    }

    #[test]
    fn new_queue_pairs_precede_continuing_ones_eight_times_in_a_row() {
        let mut scheduler = TxScheduler::default();
        for slot in 100..103 {
            scheduler.enqueue(PORT, slot);
            assert_eq!(next(&mut scheduler, 0), Some(slot));
            scheduler.requeue(0, slot);
        }
        for slot in 0..20 {
            scheduler.enqueue(PORT, slot);
        }
        let order: Vec<u16> = std::iter::from_fn(|| next(&mut scheduler, 0)).collect();
        // The loop above has already served two new queue pairs while a continuing one waited.
        let expected = (0..6).chain([100]).chain(6..14).chain([101]).chain(14..20).chain([102]);
        assert_eq!(order, expected.collect::<Vec<_>>());
        assert!(scheduler.is_empty());
    }

    #[test]
    fn continuing_queue_pairs_are_served_round_robin() {
        let mut scheduler = TxScheduler::default();
        (0..3).for_each(|slot| scheduler.enqueue(PORT, slot));
        let mut order = Vec::new();
        for _ in 0..9 {
            let slot = next(&mut scheduler, 0).unwrap();
            order.push(slot);
            scheduler.requeue(0, slot);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_turn_that_the_port_interrupts_goes_on_and_other_ports_are_not_affected() {
        let mut scheduler = TxScheduler::default();
        (0..3).for_each(|slot| scheduler.enqueue(PORT, slot));
        scheduler.enqueue(PortId(2), 7);
        assert_eq!(scheduler.ports(), 3);
        assert_eq!(scheduler.dequeue(0), Some(Next::Scheduled(0)));
        let left = Quanta { replies: 16, requests: 3 };
        scheduler.interrupt(0, 0, left);
        let [two, one, none] = [2, 1, 2].map(|port| next(&mut scheduler, port));
        assert_eq!((two, one, none), (Some(7), None, None));
        assert_eq!(scheduler.resume(2), None);
        scheduler.remove(1);
        assert_eq!((scheduler.resume(0), scheduler.resume(0)), (Some((0, left)), None));
        assert_eq!((next(&mut scheduler, 0), next(&mut scheduler, 0)), (Some(2), None));
        assert!(scheduler.is_empty());
        scheduler.interrupt(0, 0, left);
        assert!(!scheduler.is_empty());
        scheduler.remove(0);
        assert!(scheduler.is_empty());
    }

    #[test]
    fn held_queue_pairs_go_on_one_by_one_where_there_is_room() {
        let mut scheduler = TxScheduler::default();
        scheduler.enqueue(PORT, 9);
        assert_eq!(next(&mut scheduler, 0), Some(9));
        let at = Instant::from_nanos;
        let full = Outstanding { out: 1 << 20, in_: 1 << 20 };
        let settle = |scheduler: &mut TxScheduler, before, after| {
            scheduler.settle(PORT, at(5), before, after);
        };
        settle(&mut scheduler, Outstanding::default(), full);
        scheduler.with_limit(PORT, |limit| limit.short_sent(at(5), true, 0));
        assert!(scheduler.is_limited() && scheduler.held_until().is_none());
        (0..3).for_each(|slot| scheduler.hold(PORT, Direction::Out, slot));
        scheduler.hold(PORT, Direction::In, 3);
        assert!(scheduler.is_empty() && scheduler.held_until().is_some());
        let less = Outstanding { in_: 100, ..full };
        settle(&mut scheduler, full, less);
        assert!(!scheduler.is_empty());
        assert_eq!(scheduler.dequeue(0), Some(Next::Held(3)), "the others wait for the other direction");
        assert_eq!(scheduler.dequeue(0), None);
        settle(&mut scheduler, less, Outstanding::default());
        scheduler.requeue(0, 7);
        scheduler.requeue(0, 8);
        let order: Vec<u16> = std::iter::from_fn(|| next(&mut scheduler, 0)).collect();
        assert_eq!(order, [0, 1, 2, 7, 8]);
        // The end of the limit is enough.
        settle(&mut scheduler, Outstanding::default(), full);
        scheduler.with_limit(PORT, |limit| limit.short_sent(at(5), true, 0));
        scheduler.hold(PORT, Direction::Out, 4);
        settle(&mut scheduler, full, Outstanding { out: 1 << 21, in_: 0 });
        assert!(scheduler.is_empty());
        scheduler.expire_limits(at(20_000_000));
        assert!(!scheduler.is_empty() && !scheduler.is_limited());
        assert_eq!(next(&mut scheduler, 0), Some(4));
    }
}
