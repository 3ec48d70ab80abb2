//! The asking side.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::protocol::{Reply, Request};
use crate::report::Page;

/// How long a target may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The target cannot be reached, or is gone.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The target says why not.
    #[error("{0}")]
    Refused(String),
}

/// A target that can be asked.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Calls the target behind the socket `path`.
    ///
    /// # Errors
    /// There is none, it has ended, or the socket is another user's.
    pub fn connect(path: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Asks, and reads the answer as what it should be.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, AskError> {
        let mut line = serde_json::to_string(request).map_err(io::Error::other)?;
        line.push('\n');
        self.stream.get_mut().write_all(line.as_bytes())?;
        line.clear();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the target has closed the connection").into());
        }
        let reply: Reply = serde_json::from_str(&line).map_err(io::Error::other)?;
        reply.read().map_err(AskError::Refused)
    }

    /// Asks for all parts of a list.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask_all<T: DeserializeOwned>(&mut self, request: impl Fn(u32) -> Request) -> Result<Vec<T>, AskError> {
        let mut all = Vec::new();
        let mut start = Some(0);
        while let Some(from) = start {
            let page: Page<T> = self.ask(&request(from))?;
            all.extend(page.items);
            // A target that goes back would be asked for ever.
            start = page.next.filter(|next| *next > from);
        }
        Ok(all)
    }

    /// Asks for something whose answer says nothing.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn tell(&mut self, request: &Request) -> Result<(), AskError> {
        self.ask::<Value>(request).map(drop)
    }
}
