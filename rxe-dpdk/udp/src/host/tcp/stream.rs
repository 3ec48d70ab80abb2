//! One TCP stream.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use rxe_proto::{Duration, Instant};

/// Seconds between keep-alive probes to a silent peer.
const KEEP_ALIVE: u32 = 15;

/// Milliseconds after which a peer that does not answer is considered dead.
const SILENCE: u32 = 60_000;

/// How long a peer may take to close a stream that we have closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(30);

/// Reads of a closed stream in one poll.
const MAX_DISCARDS: usize = 64;

/// The state of a stream after something happened to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// The stream is ready for its service.
    Goes,
    /// We have closed it, and wait for the peer.
    Closing,
    /// It is over.
    Ended {
        /// By a reset, or since the peer did not answer.
        reset: bool,
    },
}

/// A connected socket that does not block.
pub(super) struct Stream {
    socket: TcpStream,
    peer: SocketAddr,
    /// The kernel has refused bytes since it last reported room.
    full: bool,
    /// The peer has closed its side. Its bytes and its end may have been one event, after which no other follows.
    ending: bool,
    /// We have closed our side; the peer has until then.
    closing: Option<Instant>,
}

impl Stream {
    /// Takes a connection that was accepted.
    pub(super) fn new(socket: TcpStream, peer: SocketAddr) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        // One write of a service is one segment, if it fits.
        socket.set_nodelay(true)?;
        setsockopt(&socket, sockopt::KeepAlive, &true)?;
        setsockopt(&socket, sockopt::TcpKeepIdle, &KEEP_ALIVE)?;
        setsockopt(&socket, sockopt::TcpKeepInterval, &KEEP_ALIVE)?;
        setsockopt(&socket, sockopt::TcpUserTimeout, &SILENCE)?;
        Ok(Stream { socket, peer, full: false, ending: false, closing: None })
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether the peer has not closed the stream in time after we did.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.closing.is_some_and(|until| now >= until)
    }

    /// The kernel takes bytes again.
    pub(super) fn note_room(&mut self) {
        self.full = false;
    }

    /// The peer has closed its side; bytes may be left.
    pub(super) fn note_end(&mut self) {
        self.ending = true;
    }

    /// Bytes, the peer's end of the stream or an error have arrived.
    pub(super) fn note_input(&mut self) -> Progress {
        if self.closing.is_some() { self.discard() } else { Progress::Goes }
    }

    /// Reads bytes. The second value says that no more will come, and whether because of a reset.
    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> (usize, Option<bool>) {
        if self.closing.is_some() {
            return (0, None);
        }
        match read(&self.socket, buffer) {
            Ok(0) => (0, Some(false)),
            Ok(len) if self.ending && matches!(self.socket.peek(&mut [0]), Ok(0)) => (len, Some(false)),
            Ok(len) => (len, None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, None),
            Err(_) => (0, Some(true)),
        }
    }

    /// Writes bytes; returns how many the kernel took. An error ends the stream.
    pub(super) fn send(&mut self, data: &[u8]) -> Result<usize, ()> {
        if self.full || data.is_empty() || self.closing.is_some() {
            return Ok(0);
        }
        loop {
            match (&self.socket).write(data) {
                Ok(len) => return Ok(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.full = true;
                    return Ok(0);
                }
                Err(_) => return Err(()),
            }
        }
    }

    /// Closes our side. What the peer still sends is discarded.
    pub(super) fn close(&mut self, now: Instant) -> Progress {
        if self.closing.is_some() {
            return Progress::Closing;
        }
        if self.socket.shutdown(Shutdown::Write).is_err() {
            return Progress::Ended { reset: true };
        }
        self.closing = Some(now + CLOSE_WITHIN);
        self.discard()
    }

    /// Reads until there is nothing, so that the peer's end is noticed. A peer that sends without end is reset when its time is
    /// over.
    fn discard(&mut self) -> Progress {
        let mut buffer = [0; 4096];
        for _ in 0..MAX_DISCARDS {
            match read(&self.socket, &mut buffer) {
                Ok(0) => return Progress::Ended { reset: false },
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Progress::Ended { reset: true },
            }
        }
        Progress::Closing
    }
}

fn read(mut socket: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Makes the close of a socket a reset.
pub(super) fn reset(socket: &TcpStream) {
    // It fails on sockets that are over only.
    let _ = setsockopt(socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
}
