//! The client of a management socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::event::Event;
use crate::protocol::{Reply, Request};
use crate::report::Page;

/// Longest time to wait for a target's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The target cannot be reached, or has ended.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The target refused, for this reason.
    #[error("{0}")]
    Refused(String),
}

/// A connection to a target.
///
/// A target with too many clients closes the connection that has been idle longest; a read-only request is then repeated
/// on a new connection.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the socket `path`.
    ///
    /// # Errors
    /// The socket does not exist, its target has ended, or it belongs to another user.
    pub fn connect(path: &Path) -> io::Result<Client> {
        Ok(Client { path: path.to_owned(), stream: open(path)? })
    }

    /// Sends a request and parses the answer.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, AskError> {
        let mut line = serde_json::to_string(request).map_err(io::Error::other)?;
        line.push('\n');
        let line = match self.exchange(&line) {
            Err(error) if request.is_read_only() && is_closed(&error) => {
                // If the target has ended, the first error is the better one.
                self.stream = open(&self.path).map_err(|_| error)?;
                self.exchange(&line)?
            }
            line => line?,
        };
        let reply: Reply = serde_json::from_str(&line).map_err(io::Error::other)?;
        reply.read().map_err(AskError::Refused)
    }

    fn exchange(&mut self, request: &str) -> io::Result<String> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the target has closed the connection"));
        }
        Ok(line)
    }

    /// Requests all pages of a list.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask_all<T: DeserializeOwned>(&mut self, request: impl Fn(u32) -> Request) -> Result<Vec<T>, AskError> {
        let mut all = Vec::new();
        let mut start = Some(0);
        while let Some(from) = start {
            let page: Page<T> = self.ask(&request(from))?;
            all.extend(page.items);
            // Guards against a target that never finishes.
            start = page.next.filter(|next| *next > from);
        }
        Ok(all)
    }

    /// Receives events from now on, without a limit of time.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn events(mut self) -> Result<Events, AskError> {
        self.tell(&Request::Events)?;
        self.stream.get_ref().set_read_timeout(None)?;
        Ok(Events { stream: self.stream })
    }

    /// Sends a request with an empty answer.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn tell(&mut self, request: &Request) -> Result<(), AskError> {
        self.ask::<Value>(request).map(drop)
    }
}

/// The events of a target.
#[derive(Debug)]
pub struct Events {
    stream: BufReader<UnixStream>,
}

impl Events {
    /// Waits for the next event; `None` when the target has ended.
    ///
    /// # Errors
    /// The connection is broken, or the line cannot be parsed.
    pub fn next_event(&mut self) -> Result<Option<Event>, AskError> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => return Ok(None),
            Err(error) if is_closed(&error) => return Ok(None),
            read => read?,
        };
        match serde_json::from_str(&line).map_err(io::Error::other)? {
            Reply::Event(event) => Ok(Some(event)),
            reply => Err(AskError::Refused(
                reply.read::<Value>().err().unwrap_or_else(|| "an answer is no event".to_owned()),
            )),
        }
    }
}

fn open(path: &Path) -> io::Result<BufReader<UnixStream>> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(BufReader::new(stream))
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_read_only_request_is_repeated_on_a_new_connection() {
        let path = std::env::temp_dir().join(format!("rxe-inspect-client-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let serving = std::thread::spawn(move || {
            // The first connection is closed at once, the second answers one request.
            drop(listener.accept().unwrap());
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            stream.get_mut().write_all(b"{\"answer\":7}\n").unwrap();
            line
        });
        let mut client = Client::connect(&path).unwrap();
        assert_eq!(client.ask::<u32>(&Request::Counters).unwrap(), 7);
        assert_eq!(serving.join().unwrap(), "{\"verb\":\"counters\"}\n");
        // The listener is gone, and a change is never repeated.
        assert!(matches!(client.ask::<u32>(&Request::Counters), Err(AskError::Io(_))));
        assert!(matches!(client.tell(&Request::ClearFaults), Err(AskError::Io(_))));
        std::fs::remove_file(&path).unwrap();
    }
}
