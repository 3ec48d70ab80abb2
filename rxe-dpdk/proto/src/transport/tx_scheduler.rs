//! The order in which queue pairs transmit.
//!
//! Each port has a scheduler of its own, because back-pressure is per port: a full port holds up no other. A queue pair
//! that has just got something to send is served before those that have used up a quantum and have more: an ACK or a
//! short message waits for at most [`MAX_NEW_IN_A_ROW`] other queue pairs and one quantum of a long message.

use std::collections::VecDeque;

use crate::time::Instant;
use crate::wire::PortId;

use super::long_limit::{LongLimit, Mix};

/// New queue pairs served in a row before one that continues a long message.
const MAX_NEW_IN_A_ROW: u32 = 8;

/// The slots of queue pairs that may have something to transmit, each at most once (a flag in the queue pair), by port.
#[derive(Debug, Default)]
pub(super) struct TxScheduler {
    ports: Vec<PortScheduler>,
    /// Queue pairs that each port has room for.
    capacity: usize,
}

#[derive(Debug, Default)]
struct PortScheduler {
    /// Queue pairs that were idle and have got something to send.
    new: VecDeque<u16>,
    /// Queue pairs that have used up at least one quantum.
    continuing: VecDeque<u16>,
    /// New queue pairs served since the last continuing one, while a continuing one waits.
    new_in_a_row: u32,
    /// The limit of the long messages.
    limit: LongLimit,
    /// Queue pairs whose requests wait for it, the longest wait first. They may be in the other queues, too, for their replies.
    held: VecDeque<u16>,
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
    pub(super) fn limit_mut(&mut self, port: PortId) -> Option<&mut LongLimit> {
        self.ports.get_mut(usize::from(port.0)).map(|port| &mut port.limit)
    }

    /// Enqueues a queue pair whose requests wait for the limit of long messages.
    pub(super) fn hold(&mut self, port: PortId, slot: u16) {
        if let Some(port) = self.ports.get_mut(usize::from(port.0)) {
            port.held.push_back(slot);
        }
    }

    /// Dequeues a queue pair whose requests may be sent now, if one waited for the limit of long messages.
    #[inline]
    pub(super) fn take_held(&mut self, port: usize, now: Instant) -> Option<u16> {
        let port = self.ports.get_mut(port)?;
        if port.held.is_empty() { None } else { port.take_held(now) }
    }

    /// When queue pairs that wait for the limit of long messages may go on, even if no packet arrives.
    pub(super) fn held_until(&self) -> Option<Instant> {
        let holding = self.ports.iter().filter(|port| !port.held.is_empty());
        holding.map(|port| port.limit.expires()).min()
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

    /// Dequeues the queue pair that transmits next on a port.
    #[inline]
    pub(super) fn dequeue(&mut self, port: usize) -> Option<u16> {
        self.ports.get_mut(port)?.dequeue()
    }

    /// Enqueues a queue pair that has used up its quantum and has more to send.
    #[inline(never)]
    pub(super) fn requeue(&mut self, port: usize, slot: u16) {
        if let Some(port) = self.ports.get_mut(port) {
            port.continuing.push_back(slot);
        }
    }

    /// Puts a queue pair back after back-pressure from the port: it is the next one again.
    #[cold]
    pub(super) fn requeue_front(&mut self, port: usize, slot: u16) {
        if let Some(port) = self.ports.get_mut(port) {
            port.new.push_front(slot);
        }
    }

    /// Removes a destroyed queue pair.
    pub(super) fn remove(&mut self, slot: u16) {
        for port in &mut self.ports {
            port.new.retain(|&other| other != slot);
            port.continuing.retain(|&other| other != slot);
            port.held.retain(|&other| other != slot);
        }
    }
}

impl PortScheduler {
    fn reserve(&mut self, capacity: usize) {
        for queue in [&mut self.new, &mut self.continuing, &mut self.held] {
            queue.reserve(capacity.saturating_sub(queue.len()));
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.new.is_empty() && self.continuing.is_empty() && (self.held.is_empty() || !self.limit.has_room())
    }

    #[cold]
    fn take_held(&mut self, now: Instant) -> Option<u16> {
        let stays = self.limit.mix(now) == Mix::Limited && !self.limit.has_room();
        if stays { None } else { self.held.pop_front() }
    }

    #[inline]
    fn dequeue(&mut self) -> Option<u16> {
        if self.continuing.is_empty() { self.new.pop_front() } else { self.dequeue_from_both() }
    }

    /// The next one while continuing queue pairs wait.
    #[inline(never)]
    fn dequeue_from_both(&mut self) -> Option<u16> {
        if self.new_in_a_row < MAX_NEW_IN_A_ROW
            && let Some(slot) = self.new.pop_front()
        {
            self.new_in_a_row += 1;
            return Some(slot);
        }
        self.new_in_a_row = 0;
        self.continuing.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(0);

    #[test]
    fn new_queue_pairs_precede_continuing_ones_eight_times_in_a_row() {
        let mut scheduler = TxScheduler::default();
        for slot in 100..103 {
            scheduler.enqueue(PORT, slot);
            assert_eq!(scheduler.dequeue(0), Some(slot));
            scheduler.requeue(0, slot);
        }
        for slot in 0..20 {
            scheduler.enqueue(PORT, slot);
        }
        let order: Vec<u16> = std::iter::from_fn(|| scheduler.dequeue(0)).collect();
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
            let slot = scheduler.dequeue(0).unwrap();
            order.push(slot);
            scheduler.requeue(0, slot);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn back_pressure_keeps_the_order_and_affects_one_port_only() {
        let mut scheduler = TxScheduler::default();
        (0..3).for_each(|slot| scheduler.enqueue(PORT, slot));
        scheduler.enqueue(PortId(2), 7);
        assert_eq!(scheduler.ports(), 3);
        assert_eq!(scheduler.dequeue(0), Some(0));
        scheduler.requeue_front(0, 0);
        assert_eq!((scheduler.dequeue(2), scheduler.dequeue(1), scheduler.dequeue(2)), (Some(7), None, None));
        scheduler.remove(1);
        assert_eq!((scheduler.dequeue(0), scheduler.dequeue(0), scheduler.dequeue(0)), (Some(0), Some(2), None));
        assert!(scheduler.is_empty());
    }
}
