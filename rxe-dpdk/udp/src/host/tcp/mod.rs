//! TCP streams of services: sockets of the kernel, none of which blocks.
//!
//! One epoll instance watches all of them, edge-triggered: an event is a fact that is remembered, and reading or writing
//! stops where the kernel refuses. Their number is bounded, by the total and by address.

mod stream;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rxe_adapter::host_stats::HostStats;
use rxe_proto::wire::PrefixList;
use rxe_proto::{Duration, Instant};
use rxe_service::control::ip_host::StreamEvent;

use stream::{Progress, Stream};

/// Most streams, those that are being closed included.
const MAX_STREAMS: usize = 256;

/// Most streams of one peer's address.
const MAX_STREAMS_PER_PEER: usize = 192;

/// Connections that are accepted from one listener in one poll.
const MAX_ACCEPTS: usize = 16;

/// Events that one poll takes.
const EVENTS: usize = 64;

/// Minimum interval between polls of a busy worker: each is a system call.
const INTERVAL: Duration = Duration::from_micros(200);

/// Bit of an event's number that says that it is about a listener.
const LISTENER: u64 = 1 << 63;

/// Identifies a stream. Numbers are not used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TcpStreamId(u64);

/// The listeners and streams of a port.
pub(super) struct Tcp {
    epoll: Epoll,
    listeners: Vec<Listener>,
    streams: HashMap<TcpStreamId, Stream>,
    opened: u64,
    /// The peers that are served; `None` for everyone.
    peers: Option<PrefixList>,
    events: VecDeque<StreamEvent<TcpStreamId>>,
    next_poll: Instant,
    stats: Arc<HostStats>,
}

struct Listener {
    local: SocketAddr,
    socket: TcpListener,
    /// Connections may wait.
    ready: bool,
}

impl Tcp {
    pub(super) fn new(peers: Option<PrefixList>, stats: Arc<HostStats>) -> io::Result<Tcp> {
        Ok(Tcp {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            listeners: Vec::new(),
            streams: HashMap::new(),
            opened: 0,
            peers,
            events: VecDeque::new(),
            next_poll: Instant::ZERO,
            stats,
        })
    }

    /// A descriptor that is readable when there is something to poll.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Accepts streams at an address and port.
    pub(super) fn listen(&mut self, local: SocketAddr) -> io::Result<()> {
        let socket = TcpListener::bind(local)?;
        socket.set_nonblocking(true)?;
        let number = LISTENER | self.listeners.len() as u64;
        self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, number))?;
        self.listeners.push(Listener { local, socket, ready: false });
        Ok(())
    }

    /// Changes the peers that are served; streams of others are reset.
    pub(super) fn set_peers(&mut self, peers: Option<PrefixList>) {
        self.peers = peers;
        let gone: Vec<TcpStreamId> =
            self.streams.iter().filter(|(_, stream)| !self.serves(stream.peer().ip())).map(|(id, _)| *id).collect();
        for id in gone {
            self.end(id, true);
        }
    }

    fn serves(&self, peer: IpAddr) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.contains(peer.into()))
    }

    /// Polls with the next call of [`poll`](Self::poll), whatever the time.
    pub(super) fn poll_next(&mut self) {
        self.next_poll = Instant::ZERO;
    }

    /// Whether connections wait that one poll has not accepted.
    pub(super) fn has_waiting_connections(&self) -> bool {
        self.listeners.iter().any(|listener| listener.ready)
    }

    /// Reads events, accepts connections, and ends streams whose peers do not close them.
    pub(super) fn poll(&mut self, now: Instant) {
        if now < self.next_poll || self.listeners.is_empty() {
            return;
        }
        self.next_poll = now + INTERVAL;
        let mut events = [EpollEvent::empty(); EVENTS];
        // EINTR: the next poll is soon.
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or_default();
        for event in &events[..count] {
            match event.data() & LISTENER {
                0 => self.stream_event(TcpStreamId(event.data()), event.events()),
                _ => {
                    if let Some(listener) = self.listeners.get_mut((event.data() & !LISTENER) as usize) {
                        listener.ready = true;
                    }
                }
            }
        }
        for index in 0..self.listeners.len() {
            self.accept(index);
        }
        let late: Vec<TcpStreamId> =
            self.streams.iter().filter(|(_, stream)| stream.is_late(now)).map(|(id, _)| *id).collect();
        for id in late {
            self.end(id, true);
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..MAX_ACCEPTS {
            let Some(listener) = self.listeners.get_mut(index).filter(|listener| listener.ready) else { return };
            let local = listener.local;
            match listener.socket.accept() {
                Ok((socket, peer)) => self.open(socket, local, peer),
                Err(error) => {
                    match error.kind() {
                        io::ErrorKind::WouldBlock => listener.ready = false,
                        // The client has gone.
                        io::ErrorKind::ConnectionAborted => continue,
                        // Without descriptors the connection waits for another poll.
                        _ => self.stats.tcp_no_room.inc(),
                    }
                    return;
                }
            }
        }
    }

    fn open(&mut self, socket: TcpStream, local: SocketAddr, peer: SocketAddr) {
        let of_peer = self.streams.values().filter(|stream| stream.peer().ip() == peer.ip()).count();
        let refused = if self.streams.len() >= MAX_STREAMS {
            Some(&self.stats.tcp_no_room)
        } else if of_peer >= MAX_STREAMS_PER_PEER {
            Some(&self.stats.tcp_source_limited)
        } else if !self.serves(peer.ip()) {
            Some(&self.stats.tcp_refused)
        } else {
            None
        };
        if let Some(counter) = refused {
            counter.inc();
            stream::reset(&socket);
            return;
        }
        let id = TcpStreamId(self.opened);
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let opened = Stream::new(socket, peer)
            .and_then(|stream| Ok(self.epoll.add(stream.socket(), EpollEvent::new(flags, id.0)).map(|()| stream)?));
        match opened {
            Ok(stream) => {
                self.opened += 1;
                self.streams.insert(id, stream);
                self.stats.tcp_opened.inc();
                self.events.push_back(StreamEvent::Opened { stream: id, local, peer });
            }
            Err(_) => self.stats.tcp_open_failed.inc(),
        }
    }

    fn stream_event(&mut self, id: TcpStreamId, flags: EpollFlags) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if flags.contains(EpollFlags::EPOLLOUT) {
            stream.note_room();
        }
        if flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR)
        {
            if flags.contains(EpollFlags::EPOLLRDHUP) {
                stream.note_end();
            }
            match stream.note_input() {
                Progress::Goes => self.events.push_back(StreamEvent::Readable { stream: id }),
                Progress::Ended { reset } => self.end(id, reset),
                Progress::Closing => {}
            }
        }
    }

    /// Reads bytes of a stream.
    pub(super) fn recv(&mut self, id: TcpStreamId, buffer: &mut [u8]) -> usize {
        let Some(stream) = self.streams.get_mut(&id) else { return 0 };
        let (len, ended) = stream.recv(buffer);
        if let Some(reset) = ended {
            self.end(id, reset);
        }
        len
    }

    /// Writes bytes to a stream.
    pub(super) fn send(&mut self, id: TcpStreamId, data: &[u8]) -> usize {
        let Some(stream) = self.streams.get_mut(&id) else { return 0 };
        match stream.send(data) {
            Ok(len) => len,
            Err(()) => {
                self.end(id, true);
                0
            }
        }
    }

    /// Closes our side of a stream; its last event follows when the peer has closed its own.
    pub(super) fn close(&mut self, now: Instant, id: TcpStreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Progress::Ended { reset } = stream.close(now) {
            self.end(id, reset);
        }
    }

    /// Resets a stream without an event.
    pub(super) fn abort(&mut self, id: TcpStreamId) {
        if let Some(stream) = self.streams.remove(&id) {
            stream::reset(stream.socket());
            self.stats.tcp_reset.inc();
            self.events.retain(|event| stream_of(event) != id);
        }
    }

    /// Removes a stream that is over, with its last event.
    fn end(&mut self, id: TcpStreamId, reset: bool) {
        let Some(stream) = self.streams.remove(&id) else { return };
        if reset {
            stream::reset(stream.socket());
            self.stats.tcp_reset.inc();
        } else {
            self.stats.tcp_closed.inc();
        }
        self.events.push_back(StreamEvent::Closed { stream: id, reset });
    }

    /// Number of streams in any state.
    pub(super) fn len(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn poll_event(&mut self) -> Option<StreamEvent<TcpStreamId>> {
        self.events.pop_front()
    }
}

fn stream_of(event: &StreamEvent<TcpStreamId>) -> TcpStreamId {
    match *event {
        StreamEvent::Opened { stream, .. } | StreamEvent::Readable { stream } | StreamEvent::Closed { stream, .. } => {
            stream
        }
    }
}

#[cfg(test)]
mod tests;
