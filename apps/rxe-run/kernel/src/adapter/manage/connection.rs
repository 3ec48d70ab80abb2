//! The socket of management, and its connections: descriptors that the program does not know of.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rxe_inspect::server::Stream;

use crate::descriptors::{duplicate, out_of_the_way};

/// Listens at `path`.
///
/// # Errors
/// Those of bind.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    Ok(UnixListener::from(out_of_the_way(UnixListener::bind(path)?.into())))
}

/// A connection of `rxe-ctl`.
pub struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// The next connection.
    ///
    /// # Errors
    /// Those of accept.
    pub fn accept(listener: &UnixListener) -> io::Result<Connection> {
        let (stream, _) = listener.accept()?;
        Ok(Connection::new(out_of_the_way(stream.into())))
    }

    fn new(fd: OwnedFd) -> Connection {
        Connection { stream: UnixStream::from(fd) }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Connection {
    fn try_clone(&self) -> io::Result<Connection> {
        Ok(Connection::new(duplicate(&self.stream)?))
    }

    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(timeout)?;
        self.stream.set_write_timeout(timeout)
    }

    fn shutdown(&self) {
        // The client may have disconnected already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
