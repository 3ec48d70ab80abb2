//! One TCP stream: a smoltcp socket, the messages queued for it, and the events its user has received.

use std::collections::VecDeque;
use std::net::SocketAddr;

use rxe_proto::{Duration, Instant};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};

use super::segment::Sent;
use crate::host::event::{StreamEvent, TcpStreamId};

/// Bytes of the receive buffer, of the send buffer, and of the messages queued for the send buffer.
pub(super) const BUFFER: usize = 64 * 1024;

/// Interval of keep-alive probes to a silent peer.
const KEEP_ALIVE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(15);
/// A peer that does not answer for this long is considered dead.
const SILENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(60);
/// Time limit for a connection of ours to open.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for the handshake of a peer's connection request.
const HALF_OPEN_WITHIN: Duration = Duration::from_secs(8);
/// Time limit for a stream to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The handshake is in progress. A passive stream is not reported yet.
    Opening { passive: bool },
    /// Reported to the user.
    Open,
    /// The user closed and waits for the peer.
    Closing,
    /// The end was reported, or the user aborted; the socket may still have to finish.
    Over,
}

/// Result of [`Stream::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Event(StreamEvent),
    /// A passive stream did not open.
    OpenFailed,
}

pub(super) struct Stream {
    pub(super) id: TcpStreamId,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Contains one socket, so that a segment is matched with no other.
    pub(super) set: SocketSet<'static>,
    socket: SocketHandle,
    phase: Phase,
    /// Messages not yet passed to the socket.
    outgoing: VecDeque<Vec<u8>>,
    outgoing_len: usize,
    /// Close our side once all messages are passed to the socket.
    finish: bool,
    /// A `Readable` event was emitted and bytes are still unread.
    readable_reported: bool,
    /// The socket's state at the last [`advance`](Self::advance).
    last_state: State,
    /// When the present phase times out.
    pub(super) limit: Option<Instant>,
    /// When the socket is due.
    pub(super) wake: Option<Instant>,
    /// In the list of streams to drive.
    pub(super) dirty: bool,
    /// Waits for a neighbour's MAC address.
    pub(super) unresolved: bool,
    /// The last segment that was sent with an acknowledgement.
    sent: Option<Sent>,
}

/// The socket of a stream that has ended, for the next one: its buffers are not zeroed again, which would cost each SYN more than
/// all the rest. No byte of them is read before it is written.
pub(super) struct Spare {
    set: SocketSet<'static>,
    socket: SocketHandle,
}

impl Default for Spare {
    fn default() -> Spare {
        let mut set = SocketSet::new(Vec::with_capacity(1));
        let buffers = [(); 2].map(|()| SocketBuffer::new(vec![0; BUFFER]));
        let [receive, send] = buffers;
        let socket = set.add(Socket::new(receive, send));
        Spare { set, socket }
    }
}

impl Stream {
    pub(super) fn new(
        now: Instant,
        id: TcpStreamId,
        local: SocketAddr,
        peer: SocketAddr,
        passive: bool,
        spare: Spare,
    ) -> Stream {
        let Spare { mut set, socket: handle } = spare;
        let socket = set.get_mut::<Socket<'_>>(handle);
        // A closed socket forgets everything when it listens or connects.
        socket.abort();
        socket.set_nagle_enabled(false);
        // A peer with Nagle's algorithm waits for each ACK.
        socket.set_ack_delay(None);
        socket.set_keep_alive(Some(KEEP_ALIVE));
        socket.set_timeout(Some(SILENCE));
        if passive {
            // Fails on port 0 and on open sockets only.
            let _ = socket.listen(local);
        }
        Stream {
            id,
            local,
            peer,
            set,
            socket: handle,
            phase: Phase::Opening { passive },
            outgoing: VecDeque::new(),
            outgoing_len: 0,
            finish: false,
            readable_reported: false,
            last_state: State::Closed,
            limit: Some(now + if passive { HALF_OPEN_WITHIN } else { OPEN_WITHIN }),
            wake: None,
            dirty: false,
            unresolved: false,
            sent: None,
        }
    }

    /// Takes note of a packet that its socket sends.
    pub(super) fn note_sent(&mut self, packet: &[u8]) {
        self.sent = Sent::of(packet).or(self.sent);
    }

    /// Whether a reset may be forged: it is within the window, but not at the sequence number that the peer was told last. A sender
    /// that guesses hits the one 65,536 times as often as the other.
    pub(super) fn doubts_reset(&self, sequence: u32) -> bool {
        self.sent.is_some_and(|sent| (1..BUFFER as u32).contains(&sequence.wrapping_sub(sent.expected)))
    }

    /// An acknowledgement number of bytes that were not sent, which the socket answers by an ACK, once a second at most. `None` if
    /// it would answer by a reset.
    pub(super) fn unsent_ack(&self) -> Option<u32> {
        let sent = self.sent.filter(|_| self.state() != State::SynReceived)?;
        Some(sent.sequence.wrapping_add(1 << 30))
    }

    /// Its socket, for another stream.
    pub(super) fn into_spare(self) -> Spare {
        Spare { set: self.set, socket: self.socket }
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.set.get_mut(self.socket)
    }

    fn state(&self) -> State {
        self.set.get::<Socket<'_>>(self.socket).state()
    }

    /// Whether the user may still use it.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self.phase, Phase::Opening { passive: false } | Phase::Open)
    }

    pub(super) fn is_half_open(&self) -> bool {
        self.phase == Phase::Opening { passive: true }
    }

    /// Its user has finished with it and the connection has ended: a new stream may replace it.
    pub(super) fn is_expendable(&self) -> bool {
        matches!(self.phase, Phase::Over) && matches!(self.state(), State::TimeWait | State::Closed)
            || (self.phase == Phase::Open && self.state() == State::Closed)
    }

    /// Nothing is left to send or to report.
    pub(super) fn is_gone(&self) -> bool {
        let socket = self.set.get::<Socket<'_>>(self.socket);
        self.phase == Phase::Over && socket.state() == State::Closed && socket.remote_endpoint().is_none()
    }

    /// The connection between the two endpoints has ended, so that a new one may begin.
    pub(super) fn is_replaceable(&self) -> bool {
        matches!(self.state(), State::TimeWait | State::Closed)
    }

    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> usize {
        if self.phase != Phase::Open {
            return 0;
        }
        let n = self.socket().recv_slice(buffer).unwrap_or(0);
        self.readable_reported &= self.socket().recv_queue() > 0;
        n
    }

    pub(super) fn send_room(&self) -> usize {
        if self.is_usable() { BUFFER.saturating_sub(self.outgoing_len) } else { 0 }
    }

    pub(super) fn send(&mut self, data: &[u8]) -> usize {
        let taken = &data[..data.len().min(self.send_room())];
        if !taken.is_empty() {
            self.outgoing.push_back(taken.to_vec());
            self.outgoing_len += taken.len();
        }
        taken.len()
    }

    /// Closes it for the user.
    pub(super) fn close(&mut self) {
        if self.is_usable() {
            self.phase = Phase::Closing;
            self.begin_finish();
        }
    }

    /// Resets it without an event. No effect after its end was reported.
    pub(super) fn abort(&mut self) {
        if self.phase == Phase::Over {
            return;
        }
        self.phase = Phase::Over;
        self.outgoing.clear();
        self.outgoing_len = 0;
        self.finish = false;
        self.limit = None;
        self.socket().abort();
    }

    /// Resets the connection, with an event for its user.
    pub(super) fn reset(&mut self) {
        self.socket().abort();
    }

    /// Closes our side once all messages are sent.
    fn begin_finish(&mut self) {
        self.finish = true;
        // `expire` sets it, as it knows the time.
        self.limit = None;
    }

    /// Ends a phase that has timed out.
    pub(super) fn expire(&mut self, now: Instant) {
        match self.limit {
            None if self.finish => self.limit = Some(now + CLOSE_WITHIN),
            // The SYN|ACK is not answered: no reset, as the SYN may have been forged.
            Some(limit) if limit <= now => {
                self.limit = None;
                if self.is_half_open() {
                    let local = self.local;
                    let socket = self.socket();
                    socket.abort();
                    // It forgets its peer, and `advance` finds that it has not opened. Fails on port 0 and on open sockets only.
                    let _ = socket.listen(local);
                } else if !self.is_gone() && self.state() != State::TimeWait {
                    self.socket().abort();
                }
            }
            _ => {}
        }
    }

    /// Follows the state of the socket. Call until it returns `None`.
    pub(super) fn advance(&mut self) -> Option<Progress> {
        let state = self.state();
        let before = std::mem::replace(&mut self.last_state, state);
        let stream = self.id;
        let closed = |reset| Some(Progress::Event(StreamEvent::Closed { stream, reset }));
        match self.phase {
            Phase::Opening { passive } => match state {
                State::Listen | State::Closed => {
                    self.phase = Phase::Over;
                    self.limit = None;
                    if passive { Some(Progress::OpenFailed) } else { closed(true) }
                }
                State::SynSent | State::SynReceived => None,
                _ => {
                    self.phase = Phase::Open;
                    self.limit = None;
                    Some(Progress::Event(StreamEvent::Opened { stream, local: self.local, peer: self.peer }))
                }
            },
            Phase::Open => {
                if self.socket().recv_queue() > 0 {
                    let new = !std::mem::replace(&mut self.readable_reported, true);
                    return new.then_some(Progress::Event(StreamEvent::Readable { stream }));
                }
                match state {
                    State::Closed => {
                        self.phase = Phase::Over;
                        closed(true)
                    }
                    State::CloseWait => {
                        self.phase = Phase::Over;
                        self.begin_finish();
                        closed(false)
                    }
                    _ => None,
                }
            }
            Phase::Closing => {
                self.discard_input();
                match state {
                    State::TimeWait => {
                        self.phase = Phase::Over;
                        closed(false)
                    }
                    State::Closed => {
                        self.phase = Phase::Over;
                        // In LAST-ACK the peer had closed before, so this is no reset.
                        closed(before != State::LastAck)
                    }
                    _ => None,
                }
            }
            Phase::Over => {
                self.discard_input();
                None
            }
        }
    }

    /// Unread bytes must not delay the peer's close.
    fn discard_input(&mut self) {
        while self.socket().recv(|bytes| (bytes.len(), bytes.len())).is_ok_and(|n| n > 0) {}
    }

    /// Passes the next message to the socket, if it fits in one piece; after the last one, closes our side.
    ///
    /// One message at a time, each sent before the next one is passed: a segment has bytes of one message only.
    pub(super) fn feed(&mut self) {
        if self.socket().may_send()
            && let Some(message) = self.outgoing.pop_front()
        {
            let whole = self.socket().send(|room| match room.get_mut(..message.len()) {
                Some(room) => {
                    room.copy_from_slice(&message);
                    (message.len(), true)
                }
                None => (0, false),
            });
            if whole == Ok(true) {
                self.outgoing_len -= message.len();
            } else {
                // The free part of the ring buffer wraps: wait until it is empty and starts from its beginning.
                self.outgoing.push_front(message);
            }
        }
        if self.finish && self.outgoing.is_empty() && !matches!(self.state(), State::Closed | State::Listen) {
            self.socket().close();
        }
    }

    /// Whether the next message fits the socket now.
    pub(super) fn has_messages(&mut self) -> bool {
        let Some(next) = self.outgoing.front().map(Vec::len) else { return false };
        let socket = self.socket();
        socket.may_send() && socket.send(|room| (0, room.len())).is_ok_and(|room| room >= next)
    }
}
