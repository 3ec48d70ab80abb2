//! Events of a running adapter, for subscribers on management's threads.
//!
//! Each worker has a ring, which is emptied before events are taken or published, so events keep their order. Conflicts of
//! addresses are found by looking at their counters then. While there is no subscriber, nothing is sent or kept.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rxe_inspect::event::{Event, EventKind, EventQp, utc};
use rxe_proto::wire::PortId;
use rxe_service::events::{EventReceiver, Listening, QpEvent, QpEventKind};

use super::{PortEntry, PortList};
use crate::addressing::AddressConflicts;
use crate::worker::clock::SharedClock;

/// Most subscribers at a time.
const MAX_SUBSCRIBERS: usize = 8;

/// Most events that wait for one subscriber.
const MAX_QUEUED: usize = 1024;

/// Minimum interval between two events about one address.
const CONFLICT_INTERVAL: Duration = Duration::from_secs(10);

/// The number of subscribers has its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{MAX_SUBSCRIBERS} clients receive events, which is the most: end one of them")]
pub struct TooManySubscribers;

/// Counters of the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventStats {
    /// Events that subscribers took; each counts once per subscriber.
    pub sent: u64,
    /// Events that a subscriber did not get, because it was too slow or there were too many at once.
    pub lost: u64,
    /// Subscribers that were refused.
    pub refused: u64,
}

/// The events of an adapter. A cheap handle: clones share the subscribers.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    listening: Listening,
    state: Mutex<State>,
    sent: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
}

struct State {
    workers: Vec<EventReceiver>,
    clock: SharedClock,
    conflicts: ConflictWatch,
    subscribers: Vec<Queue>,
    next_id: u64,
}

/// The events that wait for one subscriber.
struct Queue {
    id: u64,
    events: VecDeque<Event>,
    lost: u64,
}

/// The parts of [`Events`].
pub struct EventParts {
    /// Set while there are subscribers.
    pub listening: Listening,
    /// By worker number.
    pub workers: Vec<EventReceiver>,
    /// The workers' clock.
    pub clock: SharedClock,
    /// With the conflicts of their addresses.
    pub ports: Arc<PortList>,
}

impl Events {
    /// No subscriber yet.
    pub fn new(parts: EventParts) -> Events {
        let EventParts { listening, workers, clock, ports } = parts;
        let conflicts = ConflictWatch::new(ports);
        let state = State { workers, clock, conflicts, subscribers: Vec::new(), next_id: 0 };
        Events(Arc::new(Inner {
            listening,
            state: Mutex::new(state),
            sent: AtomicU64::default(),
            lost: AtomicU64::default(),
            refused: AtomicU64::default(),
        }))
    }

    /// Receives events from now on, until the subscription is dropped.
    ///
    /// # Errors
    /// [`TooManySubscribers`].
    pub fn subscribe(&self) -> Result<Subscription, TooManySubscribers> {
        let mut state = self.0.lock();
        if state.subscribers.len() >= MAX_SUBSCRIBERS {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return Err(TooManySubscribers);
        }
        if state.subscribers.is_empty() {
            state.forget();
            self.0.listening.set(true);
        }
        let id = state.next_id;
        state.next_id += 1;
        state.subscribers.push(Queue { id, events: VecDeque::new(), lost: 0 });
        Ok(Subscription { events: self.clone(), id })
    }

    /// Counters.
    pub fn stats(&self) -> EventStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EventStats { sent: get(&self.0.sent), lost: get(&self.0.lost), refused: get(&self.0.refused) }
    }

    /// Sends an event to all subscribers. For threads that are no lcores.
    pub fn publish(&self, make: impl FnOnce() -> EventKind) {
        if !self.0.listening.get() {
            return;
        }
        let mut state = self.0.lock();
        self.0.collect(&mut state);
        let event = Event { time: utc(SystemTime::now()), kind: make() };
        self.0.enqueue(&mut state, &event);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({:?})", self.stats())
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what has happened to the subscribers' queues.
    fn collect(&self, state: &mut State) {
        let mut happened = Vec::new();
        let mut lost = 0;
        for worker in &mut state.workers {
            happened.extend(std::iter::from_fn(|| worker.receive()));
            lost += worker.take_lost();
        }
        happened.sort_by_key(|event| event.at);
        if !happened.is_empty() {
            let (now, clock) = (SystemTime::now(), state.clock.now());
            for event in &happened {
                let time = utc(now - clock.saturating_since(event.at));
                self.enqueue(state, &Event { time, kind: kind(event) });
            }
        }
        if lost > 0 {
            self.lost.fetch_add(lost * state.subscribers.len() as u64, Ordering::Relaxed);
            state.subscribers.iter_mut().for_each(|queue| queue.lost += lost);
        }
        for kind in state.conflicts.news(Instant::now()) {
            self.enqueue(state, &Event { time: utc(SystemTime::now()), kind });
        }
    }

    fn enqueue(&self, state: &mut State, event: &Event) {
        for queue in &mut state.subscribers {
            if queue.events.len() < MAX_QUEUED {
                queue.events.push_back(event.clone());
            } else {
                queue.lost += 1;
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl State {
    /// Drops what happened before the first subscriber came.
    fn forget(&mut self) {
        for worker in &mut self.workers {
            while worker.receive().is_some() {}
            worker.take_lost();
        }
        self.conflicts.forget();
    }
}

/// Receives events. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    events: Events,
    id: u64,
}

impl Subscription {
    /// The events since the last call, in order. If some were lost, the last one says how many.
    #[must_use]
    pub fn take(&self) -> Vec<Event> {
        let inner = &self.events.0;
        let mut state = inner.lock();
        inner.collect(&mut state);
        let Some(queue) = state.subscribers.iter_mut().find(|queue| queue.id == self.id) else { return Vec::new() };
        let mut events = Vec::from(std::mem::take(&mut queue.events));
        inner.sent.fetch_add(events.len() as u64, Ordering::Relaxed);
        let lost = std::mem::take(&mut queue.lost);
        if lost > 0 {
            events.push(Event { time: utc(SystemTime::now()), kind: EventKind::Lost { events: lost } });
        }
        events
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.events.0.lock();
        state.subscribers.retain(|queue| queue.id != self.id);
        if state.subscribers.is_empty() {
            self.events.0.listening.set(false);
        }
    }
}

fn kind(event: &QpEvent) -> EventKind {
    let peer =
        |ip: IpAddr| event.peer_port.map_or_else(|| ip.to_string(), |port| SocketAddr::new(ip, port).to_string());
    let qp = EventQp {
        lqpn: event.qpn.get(),
        service: event.service.map(str::to_owned),
        peer: event.peer.map(peer),
        rqpn: event.peer_qpn.map(|qpn| qpn.get()),
    };
    match event.kind {
        QpEventKind::Connected => EventKind::Connected { qp },
        QpEventKind::Disconnected { reason, after } => EventKind::Disconnected {
            qp,
            reason: reason.to_string(),
            after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
        },
        QpEventKind::Error(cause) => {
            EventKind::QpError { qp, cause: cause.to_string(), text: cause.describe().to_owned() }
        }
    }
}

/// Finds new conflicts of addresses.
struct ConflictWatch {
    ports: Arc<PortList>,
    /// By port and address.
    known: HashMap<(PortId, IpAddr), KnownConflicts>,
}

/// The conflicts of one address that were reported.
#[derive(Clone, Copy, Default)]
struct KnownConflicts {
    frames: u64,
    reported: Option<Instant>,
}

impl ConflictWatch {
    fn new(ports: Arc<PortList>) -> ConflictWatch {
        ConflictWatch { ports, known: HashMap::new() }
    }

    /// Conflicts until now are no news.
    fn forget(&mut self) {
        let all = |port: &PortEntry| {
            let id = port.local.id;
            let known = |report: &Arc<AddressConflicts>| {
                ((id, report.ip()), KnownConflicts { frames: report.frames(), reported: None })
            };
            port.conflicts.iter().map(known).collect::<Vec<_>>()
        };
        self.known = self.ports.all().iter().flat_map(all).collect();
    }

    /// One event for each address with new frames, unless the last one is less than [`CONFLICT_INTERVAL`] ago.
    fn news(&mut self, now: Instant) -> Vec<EventKind> {
        let mut news = Vec::new();
        for port in self.ports.all().iter() {
            for report in port.conflicts.iter() {
                let known = self.known.entry((port.local.id, report.ip())).or_default();
                let frames = report.frames();
                let recent = known.reported.is_some_and(|last| now.saturating_duration_since(last) < CONFLICT_INTERVAL);
                if frames == known.frames || recent {
                    continue;
                }
                *known = KnownConflicts { frames, reported: Some(now) };
                let Some(station) = report.station() else { continue };
                news.push(EventKind::AddressConflict {
                    port: port.local.id.0.into(),
                    address: report.ip().to_string(),
                    mac: station.to_string(),
                    frames,
                });
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Events {
        let parts = EventParts {
            listening: Listening::default(),
            workers: Vec::new(),
            clock: SharedClock::new(|| rxe_proto::Instant::ZERO),
            ports: Arc::new(PortList::new(Vec::new())),
        };
        Events::new(parts)
    }

    fn link(port: u32) -> EventKind {
        EventKind::Link { port, up: true, reason: None }
    }

    fn kinds(subscription: &Subscription) -> Vec<EventKind> {
        subscription.take().into_iter().map(|event| event.kind).collect()
    }

    #[test]
    fn every_subscriber_gets_every_event_from_its_subscription_on() {
        let events = events();
        events.publish(|| panic!("nobody listens"));
        let first = events.subscribe().unwrap();
        events.publish(|| link(1));
        let second = events.subscribe().unwrap();
        events.publish(|| link(2));
        assert_eq!((kinds(&first), kinds(&second)), (vec![link(1), link(2)], vec![link(2)]));
        assert_eq!(kinds(&first), []);
        drop(first);
        events.publish(|| link(3));
        assert_eq!(kinds(&second), [link(3)]);
        drop(second);
        events.publish(|| panic!("nobody listens any more"));
        assert_eq!(events.stats(), EventStats { sent: 4, lost: 0, refused: 0 });
    }

    #[test]
    fn a_slow_subscriber_loses_events_and_learns_how_many() {
        let events = events();
        let (slow, fast) = (events.subscribe().unwrap(), events.subscribe().unwrap());
        for port in 0..MAX_QUEUED as u32 + 5 {
            events.publish(|| link(port));
            assert_eq!(kinds(&fast), [link(port)]);
        }
        let taken = kinds(&slow);
        assert_eq!(taken.len(), MAX_QUEUED + 1);
        assert_eq!((&taken[0], taken.last()), (&link(0), Some(&EventKind::Lost { events: 5 })));
        assert_eq!((kinds(&slow), events.stats().lost), (vec![], 5));
    }

    #[test]
    fn subscribers_beyond_the_limit_are_refused_and_counted() {
        let events = events();
        let mut all: Vec<_> = (0..MAX_SUBSCRIBERS).map(|_| events.subscribe().unwrap()).collect();
        assert_eq!(events.subscribe().err(), Some(TooManySubscribers));
        assert_eq!(events.stats().refused, 1);
        all.pop();
        assert!(events.subscribe().is_ok());
    }
}
