//! TCP streams of services: bytes move between the ports' hosts and the services' workers, in bounded amounts.
//!
//! Receive: a worker returns a credit for everything that its service has taken. A stream with [`MAX_IN_FLIGHT`] bytes, or
//! [`MAX_UNTAKEN_OF_STREAM`] messages, not taken is not read, nor is one whose client does not read what the service wrote. The
//! bytes stay in the host, and TCP's window stops the client.
//!
//! Send: a stream is reset when more than [`MAX_UNSENT`] bytes wait for its client, or when the client has read none of them for
//! [`UNREAD_TIMEOUT`].

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use rxe_proto::{Duration, Instant};

use super::Control;
use super::ip_host::{IpHost, StreamEvent};
use crate::messages::{StreamId, ToWorker};
use crate::service::Listen;

/// Most received bytes of one stream that its service has not taken.
pub(super) const MAX_IN_FLIGHT: usize = 64 * 1024;
/// Most messages about new streams and received bytes, of all streams, that workers have not taken. Beyond it new streams are
/// refused.
pub(super) const MAX_UNTAKEN: usize = 8192;
/// Most of them about one stream: beyond it the stream is not read.
pub(super) const MAX_UNTAKEN_OF_STREAM: usize = 256;
/// Most bytes per stream that wait for room in the host.
pub(super) const MAX_UNSENT: usize = 256 * 1024;
/// How long a client may read nothing of what waits for it.
pub(super) const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream of a service.
struct Stream<S> {
    port: usize,
    tcp: S,
    worker: usize,
    /// Bytes that the service wrote and the host has not taken. One entry per write, since the host keeps writes in segments of their
    /// own.
    unsent: VecDeque<Vec<u8>>,
    unsent_len: usize,
    /// Since when the host has taken nothing of it.
    stalled: Option<Instant>,
    /// The host has bytes that were not read.
    readable: bool,
    /// Bytes sent to the worker that the service has not taken.
    in_flight: usize,
    /// Messages sent to the worker that it has not taken.
    untaken: usize,
    closing: bool,
    /// In the list of those that are not finished.
    listed: bool,
}

/// All streams of services.
pub(super) struct Streams<S> {
    by_id: HashMap<StreamId, Stream<S>>,
    by_tcp: HashMap<(usize, S), StreamId>,
    /// Streams with bytes that the host has not taken, or to be closed: the others cost a turn nothing.
    pub(super) unfinished: Vec<StreamId>,
    opened: u64,
    /// Messages sent to workers that they have not taken.
    untaken: usize,
}

impl<S> Default for Streams<S> {
    fn default() -> Streams<S> {
        Streams { by_id: HashMap::new(), by_tcp: HashMap::new(), unfinished: Vec::new(), opened: 0, untaken: 0 }
    }
}

impl<S: Copy + Eq + Hash> Streams<S> {
    /// Closes a stream after what the service wrote.
    pub(super) fn close(&mut self, stream: StreamId) {
        if let Some(entry) = self.by_id.get_mut(&stream) {
            entry.closing = true;
            self.list(stream);
        }
    }

    /// Has the next [`push_streams`](Control::push_streams) visit a stream.
    fn list(&mut self, stream: StreamId) {
        if let Some(entry) = self.by_id.get_mut(&stream)
            && !std::mem::replace(&mut entry.listed, true)
        {
            self.unfinished.push(stream);
        }
    }

    fn remove(&mut self, stream: StreamId) -> Option<Stream<S>> {
        let entry = self.by_id.remove(&stream)?;
        self.by_tcp.remove(&(entry.port, entry.tcp));
        Some(entry)
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
                let room = self.streams.untaken < MAX_UNTAKEN;
                let Some(service) = service.filter(|_| room) else {
                    if !room {
                        self.stats.streams_refused.inc();
                        if self.events.admits(now) {
                            tracing::warn!(%peer, "TCP stream refused: services are behind with the data of other streams");
                        }
                    }
                    self.ports[index].host.abort(tcp);
                    return;
                };
                if self.refuses(now, service, peer.ip().into()).is_some() {
                    self.ports[index].host.abort(tcp);
                    return;
                }
                self.streams.opened += 1;
                let stream = StreamId(self.streams.opened);
                let worker = self.next_worker();
                let entry = Stream {
                    port: index,
                    tcp,
                    worker,
                    unsent: VecDeque::new(),
                    unsent_len: 0,
                    stalled: None,
                    readable: false,
                    in_flight: 0,
                    untaken: 1,
                    closing: false,
                    listed: false,
                };
                self.streams.by_id.insert(stream, entry);
                self.streams.by_tcp.insert((index, tcp), stream);
                self.streams.untaken += 1;
                self.send(worker, ToWorker::StreamOpened { service, stream, local, peer });
            }
            StreamEvent::Readable { stream: tcp } => {
                let Some(&stream) = self.streams.by_tcp.get(&(index, tcp)) else { return };
                if let Some(entry) = self.streams.by_id.get_mut(&stream) {
                    entry.readable = true;
                }
                self.read_stream(stream);
            }
            StreamEvent::Closed { stream: tcp, reset } => {
                if let Some(&stream) = self.streams.by_tcp.get(&(index, tcp))
                    && let Some(entry) = self.streams.remove(stream)
                {
                    self.send(entry.worker, ToWorker::StreamClosed { stream, reset });
                }
            }
        }
    }

    /// Sends the service what it has credit for, unless its client does not read.
    fn read_stream(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.by_id.get_mut(&stream) else { return };
        let mut buffer = [0; 4096];
        while entry.readable
            && entry.unsent.is_empty()
            && entry.in_flight < MAX_IN_FLIGHT
            && entry.untaken < MAX_UNTAKEN_OF_STREAM
        {
            let len = self.ports[entry.port].host.recv(entry.tcp, &mut buffer);
            entry.readable = len > 0;
            if len > 0 {
                entry.in_flight += len;
                entry.untaken += 1;
                self.streams.untaken += 1;
                // A worker that has ended has no streams left.
                let _ = self.mailbox.workers[entry.worker]
                    .send(ToWorker::StreamData { stream, data: buffer[..len].to_vec() });
            }
        }
    }

    /// A worker has taken a new stream (`len` is 0) or `len` bytes.
    pub(super) fn stream_taken(&mut self, stream: StreamId, len: usize) {
        self.streams.untaken = self.streams.untaken.saturating_sub(1);
        if let Some(entry) = self.streams.by_id.get_mut(&stream) {
            entry.in_flight = entry.in_flight.saturating_sub(len);
            entry.untaken = entry.untaken.saturating_sub(1);
            self.read_stream(stream);
        }
    }

    /// A service has written to a stream.
    pub(super) fn send_on_stream(&mut self, now: Instant, stream: StreamId, data: Vec<u8>) {
        let Some(entry) = self.streams.by_id.get_mut(&stream) else { return };
        if entry.unsent_len + data.len() > MAX_UNSENT {
            self.reset_unread(now, stream);
            return;
        }
        entry.unsent_len += data.len();
        entry.unsent.push_back(data);
        self.streams.list(stream);
    }

    /// Passes what services have written to the hosts, as far as they have room.
    pub(super) fn push_streams(&mut self, now: Instant) {
        let mut unfinished = std::mem::take(&mut self.streams.unfinished);
        unfinished.retain(|&stream| self.push_stream(now, stream));
        self.streams.unfinished = unfinished;
    }

    /// The same for one stream. Returns whether bytes are left.
    fn push_stream(&mut self, now: Instant, stream: StreamId) -> bool {
        let Some(entry) = self.streams.by_id.get_mut(&stream) else { return false };
        let host = &mut self.ports[entry.port].host;
        let before = entry.unsent_len;
        while let Some(message) = entry.unsent.front_mut() {
            let taken = host.send(entry.tcp, message);
            entry.unsent_len -= taken;
            if taken < message.len() {
                message.drain(..taken);
                break;
            }
            entry.unsent.pop_front();
        }
        if entry.unsent.is_empty() {
            (entry.stalled, entry.listed) = (None, false);
            if std::mem::take(&mut entry.closing) {
                host.close(entry.tcp);
            }
            // It was not read while its client did not read.
            self.read_stream(stream);
            return false;
        }
        if entry.unsent_len < before {
            entry.stalled = Some(now);
        } else if now.saturating_since(*entry.stalled.get_or_insert(now)) >= UNREAD_TIMEOUT {
            self.reset_unread(now, stream);
            return false;
        }
        true
    }

    /// Resets a stream.
    pub(super) fn reset_stream(&mut self, stream: StreamId) {
        let Some(entry) = self.streams.remove(stream) else { return };
        self.ports[entry.port].host.abort(entry.tcp);
        self.send(entry.worker, ToWorker::StreamClosed { stream, reset: true });
    }

    /// Resets a stream whose client does not read.
    fn reset_unread(&mut self, now: Instant, stream: StreamId) {
        let Some(entry) = self.streams.by_id.get(&stream) else { return };
        self.stats.streams_unread.inc();
        if self.events.admits(now) {
            let bytes = entry.unsent_len;
            tracing::warn!("TCP stream reset: its client does not read, and {bytes} bytes wait for it");
        }
        self.reset_stream(stream);
    }
}
