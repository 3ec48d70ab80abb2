//! Held Asynchronous Event Requests, and the events that they wait for.

use std::collections::VecDeque;

use crate::wire::{AsyncEvent, EventMask};

/// The events of one controller.
#[derive(Debug, Default)]
pub(super) struct EventRequests {
    /// Events that the host enabled.
    mask: EventMask,
    /// Command ids of held requests.
    held: VecDeque<u16>,
    /// Events without a request.
    pending: VecDeque<AsyncEvent>,
    /// Events that are not reported again until the host reads their log.
    reported: EventMask,
}

/// Outcome of a new request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    Held,
    /// An event was pending: complete the request with it.
    Complete(AsyncEvent),
    /// Too many requests are held.
    Exceeded,
}

impl EventRequests {
    /// Number of held requests.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) const fn mask(&self) -> EventMask {
        self.mask
    }

    pub(super) const fn set_mask(&mut self, mask: EventMask) {
        self.mask = mask;
    }

    /// A request arrived.
    pub(super) fn hold(&mut self, command_id: u16, limit: u16) -> Hold {
        while let Some(event) = self.pending.pop_front() {
            if self.mask.intersects(event.mask()) {
                return Hold::Complete(event);
            }
        }
        if self.held.len() >= usize::from(limit) {
            return Hold::Exceeded;
        }
        self.held.push_back(command_id);
        Hold::Held
    }

    /// An event occurred: the command id of the request to complete with it, if the event is enabled and was not
    /// reported since the host read its log.
    pub(super) fn raise(&mut self, event: AsyncEvent) -> Option<u16> {
        if !self.mask.intersects(event.mask()) || self.reported.contains(event.mask()) {
            return None;
        }
        self.reported.insert(event.mask());
        let request = self.held.pop_front();
        if request.is_none() {
            self.pending.push_back(event);
        }
        request
    }

    /// The host read the event's log: the next change is reported.
    pub(super) fn log_read(&mut self, event: AsyncEvent) {
        self.reported.remove(event.mask());
        self.pending.retain(|&pending| pending != event);
    }

    /// A controller reset. Returns the command ids of the requests that were held.
    pub(super) fn reset(&mut self) -> VecDeque<u16> {
        std::mem::take(self).held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: AsyncEvent = AsyncEvent::NamespaceChanged;

    fn enabled() -> EventRequests {
        let mut requests = EventRequests::default();
        requests.set_mask(EventMask::NAMESPACE);
        requests
    }

    #[test]
    fn an_event_completes_the_oldest_request_once_until_its_log_is_read() {
        let mut requests = enabled();
        assert_eq!((requests.hold(7, 4), requests.hold(8, 4)), (Hold::Held, Hold::Held));
        assert_eq!(requests.raise(EVENT), Some(7));
        assert_eq!(requests.raise(EVENT), None);
        requests.log_read(EVENT);
        assert_eq!((requests.raise(EVENT), requests.held()), (Some(8), 0));
    }

    #[test]
    fn an_event_without_a_request_completes_the_next_one() {
        let mut requests = enabled();
        assert_eq!((requests.raise(EVENT), requests.raise(EVENT)), (None, None));
        assert_eq!(requests.hold(1, 4), Hold::Complete(EVENT));
        assert_eq!(requests.hold(2, 4), Hold::Held);
    }

    #[test]
    fn an_event_that_is_not_enabled_is_not_reported() {
        let mut requests = EventRequests::default();
        assert_eq!(requests.hold(1, 4), Hold::Held);
        assert_eq!(requests.raise(EVENT), None);
        let mut disabled = enabled();
        disabled.raise(EVENT);
        disabled.set_mask(EventMask::empty());
        assert_eq!(disabled.hold(1, 4), Hold::Held);
    }

    #[test]
    fn requests_beyond_the_limit_are_refused() {
        let mut requests = enabled();
        for id in 0..4 {
            assert_eq!(requests.hold(id, 4), Hold::Held);
        }
        assert_eq!(requests.hold(4, 4), Hold::Exceeded);
        assert_eq!(requests.reset(), [0, 1, 2, 3]);
        assert_eq!((requests.held(), requests.hold(5, 4)), (0, Hold::Held));
    }
}
