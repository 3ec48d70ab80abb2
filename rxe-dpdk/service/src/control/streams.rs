//! Streams of services: bytes go between the ports' stacks and the services' workers, in bounded amounts.
//!
//! A worker returns a credit for all that it has taken. A stream whose service has not taken 64 KiB, or whose client does
//! not read what the service wrote, is not read: the bytes stay in the stack, and TCP's window stops the client. What a
//! service writes beyond [`UNSENT`], or what nobody reads for [`UNREAD`], costs the client its stream.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use rxe_proto::{Duration, Instant};

use super::Control;
use super::ip_host::{IpHost, StreamEvent};
use crate::messages::{StreamId, ToWorker};
use crate::service::Listen;

/// Received bytes of one stream that its service has not taken.
const IN_FLIGHT: usize = 64 * 1024;
/// Messages about new streams and received bytes, of all streams, that workers have not taken. No stream opens beyond it.
const UNTAKEN: usize = 8192;
/// Bytes that wait for room in a stack, per stream.
const UNSENT: usize = 256 * 1024;
/// For how long a client may read nothing of what waits.
const UNREAD: Duration = Duration::from_secs(30);

/// A service's stream: its port's stack, the id there, its worker, and what the stack has not taken yet.
struct StreamPlace<S> {
    port: usize,
    tcp: S,
    worker: usize,
    /// What the service wrote, a message per write: the stack keeps messages apart, and so must we.
    unsent: VecDeque<Vec<u8>>,
    unsent_len: usize,
    /// Since when the stack has taken nothing of it.
    stalled: Option<Instant>,
    /// The stack has bytes that were not read.
    readable: bool,
    /// Bytes that the worker has not taken.
    in_flight: usize,
    closing: bool,
}

/// All streams of services.
pub(super) struct Streams<S> {
    places: HashMap<StreamId, StreamPlace<S>>,
    by_host_stream: HashMap<(usize, S), StreamId>,
    opened: u64,
    /// Messages that workers have not taken.
    untaken: usize,
}

impl<S> Default for Streams<S> {
    fn default() -> Streams<S> {
        Streams { places: HashMap::new(), by_host_stream: HashMap::new(), opened: 0, untaken: 0 }
    }
}

impl<S: Copy + Eq + Hash> Streams<S> {
    /// The service wants the stream closed after what it wrote.
    pub(super) fn close(&mut self, stream: StreamId) {
        if let Some(place) = self.places.get_mut(&stream) {
            place.closing = true;
        }
    }

    fn remove(&mut self, stream: StreamId) -> Option<StreamPlace<S>> {
        let place = self.places.remove(&stream)?;
        self.by_host_stream.remove(&(place.port, place.tcp));
        Some(place)
    }
}

impl<H: IpHost> Control<H> {
    pub(super) fn handle_stream_event(&mut self, now: Instant, index: usize, event: StreamEvent<H::Stream>) {
        match event {
            StreamEvent::Opened { stream: tcp, local, peer } => {
                let service = self.listens.iter().find_map(|(service, listen)| match listen {
                    Listen::Tcp { port } if *port == local.port() => Some(*service),
                    _ => None,
                });
                let room = self.streams.untaken < UNTAKEN;
                let Some(service) = service.filter(|_| room) else {
                    if !room {
                        self.stats.streams_refused.inc();
                        if self.events.admits(now) {
                            tracing::warn!(%peer, "TCP stream refused: services are behind with what other streams bring");
                        }
                    }
                    self.ports[index].host.abort(tcp);
                    return;
                };
                self.streams.opened += 1;
                let stream = StreamId(self.streams.opened);
                let worker = self.next_worker();
                let place = StreamPlace {
                    port: index,
                    tcp,
                    worker,
                    unsent: VecDeque::new(),
                    unsent_len: 0,
                    stalled: None,
                    readable: false,
                    in_flight: 0,
                    closing: false,
                };
                self.streams.places.insert(stream, place);
                self.streams.by_host_stream.insert((index, tcp), stream);
                self.streams.untaken += 1;
                self.send(worker, ToWorker::StreamOpened { service, stream, local, peer });
            }
            StreamEvent::Readable { stream: tcp } => {
                let Some(&stream) = self.streams.by_host_stream.get(&(index, tcp)) else { return };
                if let Some(place) = self.streams.places.get_mut(&stream) {
                    place.readable = true;
                }
                self.read_stream(stream);
            }
            StreamEvent::Closed { stream: tcp, reset } => {
                if let Some(&stream) = self.streams.by_host_stream.get(&(index, tcp))
                    && let Some(place) = self.streams.remove(stream)
                {
                    self.send(place.worker, ToWorker::StreamClosed { stream, reset });
                }
            }
        }
    }

    /// Gives the service what it has credit for, unless its client does not read.
    fn read_stream(&mut self, stream: StreamId) {
        let Some(place) = self.streams.places.get_mut(&stream) else { return };
        let mut buffer = [0; 4096];
        while place.readable && place.unsent.is_empty() && place.in_flight < IN_FLIGHT {
            let len = self.ports[place.port].host.recv(place.tcp, &mut buffer);
            place.readable = len > 0;
            if len > 0 {
                place.in_flight += len;
                self.streams.untaken += 1;
                // A worker that is gone has no streams left.
                let _ = self.mailbox.workers[place.worker]
                    .send(ToWorker::StreamData { stream, data: buffer[..len].to_vec() });
            }
        }
    }

    /// A worker has taken a new stream (`len` is 0) or so many bytes.
    pub(super) fn stream_taken(&mut self, stream: StreamId, len: usize) {
        self.streams.untaken = self.streams.untaken.saturating_sub(1);
        if let Some(place) = self.streams.places.get_mut(&stream) {
            place.in_flight = place.in_flight.saturating_sub(len);
            self.read_stream(stream);
        }
    }

    /// A service has written.
    pub(super) fn send_on_stream(&mut self, now: Instant, stream: StreamId, data: Vec<u8>) {
        let Some(place) = self.streams.places.get_mut(&stream) else { return };
        if place.unsent_len + data.len() > UNSENT {
            self.end_unread(now, stream);
            return;
        }
        place.unsent_len += data.len();
        place.unsent.push_back(data);
    }

    /// Gives the stacks what services have written and they have room for.
    pub(super) fn push_streams(&mut self, now: Instant) {
        let (mut drained, mut unread) = (Vec::new(), Vec::new());
        for (&stream, place) in &mut self.streams.places {
            let host = &mut self.ports[place.port].host;
            let before = place.unsent_len;
            while let Some(message) = place.unsent.front_mut() {
                let taken = host.send(place.tcp, message);
                place.unsent_len -= taken;
                if taken < message.len() {
                    message.drain(..taken);
                    break;
                }
                place.unsent.pop_front();
            }
            if place.unsent.is_empty() {
                place.stalled = None;
                if place.readable && place.in_flight < IN_FLIGHT {
                    drained.push(stream);
                }
            } else if place.unsent_len < before {
                place.stalled = Some(now);
            } else if now.saturating_since(*place.stalled.get_or_insert(now)) >= UNREAD {
                unread.push(stream);
            }
            if place.closing && place.unsent.is_empty() {
                host.close(place.tcp);
                place.closing = false;
            }
        }
        for stream in drained {
            self.read_stream(stream);
        }
        for stream in unread {
            self.end_unread(now, stream);
        }
    }

    /// Resets a stream whose client does not read.
    fn end_unread(&mut self, now: Instant, stream: StreamId) {
        let Some(place) = self.streams.remove(stream) else { return };
        self.stats.streams_unread.inc();
        if self.events.admits(now) {
            let bytes = place.unsent_len;
            tracing::warn!("TCP stream reset: its client does not read, and {bytes} bytes wait for it");
        }
        self.ports[place.port].host.abort(place.tcp);
        self.send(place.worker, ToWorker::StreamClosed { stream, reset: true });
    }
}
