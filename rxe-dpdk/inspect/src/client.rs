//! The asking side.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
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
///
/// A target that has too many clients closes the connection of the one that has been silent longest; a question that
/// changes nothing is then asked again on a new connection.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Calls the target behind the socket `path`.
    ///
    /// # Errors
    /// There is none, it has ended, or the socket is another user's.
    pub fn connect(path: &Path) -> io::Result<Client> {
        Ok(Client { path: path.to_owned(), stream: open(path)? })
    }

    /// Asks, and reads the answer as what it should be.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, AskError> {
        let mut line = serde_json::to_string(request).map_err(io::Error::other)?;
        line.push('\n');
        let line = match self.exchange(&line) {
            Err(error) if request.is_read_only() && is_closed(&error) => {
                // Where the target itself is gone, the first error says it best.
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
    fn a_question_that_changes_nothing_is_asked_again_on_a_new_connection() {
        let path = std::env::temp_dir().join(format!("rxe-inspect-client-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let serving = std::thread::spawn(move || {
            // The first connection is closed as soon as it is there, the second answers one question.
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
        // Nobody listens any more, and a change is never made twice.
        assert!(matches!(client.ask::<u32>(&Request::Counters), Err(AskError::Io(_))));
        assert!(matches!(client.tell(&Request::ClearFaults), Err(AskError::Io(_))));
        std::fs::remove_file(&path).unwrap();
    }
}
