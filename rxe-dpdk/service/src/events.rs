//! Events of connections and queue pairs, from the workers to management.
//!
//! Each worker has a ring of its own: it neither waits nor allocates. While nobody listens, an event costs the load of one
//! flag; when the ring is full, the event is lost and counted.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};
use rxe_proto::counters::Counter;
use rxe_proto::transport::{QpErrorCause, Qpn};
use rxe_proto::{Duration, Instant};

use crate::messages::EndReason;

/// Events of one worker that wait for management. Management takes them every few milliseconds.
const CAPACITY: usize = 2048;

/// An event of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpEvent {
    /// When it happened.
    pub at: Instant,
    /// The queue pair.
    pub qpn: Qpn,
    /// Name of the service that has the queue pair.
    pub service: Option<&'static str>,
    /// The peer's address.
    pub peer: Option<IpAddr>,
    /// The peer's port, of a connection that the peer requested.
    pub peer_port: Option<u16>,
    /// The peer's queue pair.
    pub peer_qpn: Option<Qpn>,
    /// The kind of event, with its details.
    pub kind: QpEventKind,
}

/// Kinds of events of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpEventKind {
    /// Both sides have confirmed its connection.
    Connected,
    /// Its connection is over, or was not established.
    Disconnected {
        /// Why.
        reason: EndReason,
        /// Time since the connection was requested.
        after: Duration,
    },
    /// It went to the error state.
    Error(QpErrorCause),
}

/// Whether anybody listens to events: one flag for all workers.
#[derive(Clone, Debug, Default)]
pub struct Listening(Arc<AtomicBool>);

impl Listening {
    /// Sets the flag.
    pub fn set(&self, listening: bool) {
        self.0.store(listening, Ordering::Relaxed);
    }

    /// The flag.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A worker's end.
#[derive(Debug)]
pub struct EventSender {
    ring: Producer<QpEvent>,
    listening: Listening,
    lost: Arc<Counter>,
}

/// Management's end.
#[derive(Debug)]
pub struct EventReceiver {
    ring: Consumer<QpEvent>,
    lost: Arc<Counter>,
    /// The part of `lost` that was returned already.
    known: u64,
}

/// A ring for the events of one worker, which it sends while `listening`.
#[must_use]
pub fn event_ring(listening: &Listening) -> (EventSender, EventReceiver) {
    let (producer, consumer) = RingBuffer::new(CAPACITY);
    let lost = Arc::<Counter>::default();
    let sender = EventSender { ring: producer, listening: listening.clone(), lost: Arc::clone(&lost) };
    (sender, EventReceiver { ring: consumer, lost, known: 0 })
}

impl EventSender {
    /// Whether anybody listens.
    pub(crate) fn is_listening(&self) -> bool {
        self.listening.get()
    }

    /// Sends the event that `make` returns, if anybody listens.
    pub(crate) fn send(&mut self, make: impl FnOnce() -> QpEvent) {
        if self.is_listening() && self.ring.push(make()).is_err() {
            self.lost.inc();
        }
    }
}

impl EventReceiver {
    /// The next event.
    pub fn receive(&mut self) -> Option<QpEvent> {
        self.ring.pop().ok()
    }

    /// Number of events lost since the last call, because the ring was full.
    pub fn take_lost(&mut self) -> u64 {
        let lost = self.lost.get();
        lost - std::mem::replace(&mut self.known, lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(qpn: u32) -> QpEvent {
        QpEvent {
            at: Instant::ZERO,
            qpn: Qpn::new(qpn),
            service: None,
            peer: None,
            peer_port: None,
            peer_qpn: None,
            kind: QpEventKind::Connected,
        }
    }

    #[test]
    fn events_are_made_only_while_somebody_listens() {
        let listening = Listening::default();
        let (mut sender, mut receiver) = event_ring(&listening);
        sender.send(|| panic!("nobody listens"));
        listening.set(true);
        sender.send(|| event(7));
        assert_eq!((receiver.receive(), receiver.receive()), (Some(event(7)), None));
    }

    #[test]
    fn events_beyond_the_capacity_are_lost_and_counted() {
        let listening = Listening::default();
        listening.set(true);
        let (mut sender, mut receiver) = event_ring(&listening);
        (0..CAPACITY as u32 + 3).for_each(|qpn| sender.send(|| event(qpn)));
        assert_eq!((receiver.take_lost(), receiver.take_lost()), (3, 0));
        // The oldest are kept.
        assert_eq!(receiver.receive(), Some(event(0)));
        sender.send(|| event(9));
        assert_eq!(receiver.take_lost(), 0);
        assert_eq!(std::iter::from_fn(|| receiver.receive()).last(), Some(event(9)));
    }
}
