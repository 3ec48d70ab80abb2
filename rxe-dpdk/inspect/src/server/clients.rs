//! The clients of a listening socket: each in a thread of its own, a bound on their number, a deadline for each request.
//!
//! A deadline is for the whole request or the whole answer, never for one read or write, so that a slow sender cannot extend
//! it. When the table is full, a new client replaces the one that has kept the target waiting longest: slow or silent
//! clients cannot lock others out. A request that is being answered is never interrupted, nor is a stream of events, which
//! has a limit of its own.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of clients of each listening socket.
const MAX_CLIENTS: usize = 32;
/// Maximum number of threads: the thread of a replaced client takes a moment to end.
const MAX_THREADS: usize = 2 * MAX_CLIENTS;
/// Pause after a failed accept, as when there are no descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Deadlines of a client.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From the connection, or from the first byte of a later request, to the end of the request.
    pub request: Duration,
    /// From an answer to the first byte of the next request.
    pub idle: Duration,
    /// For sending an answer.
    pub answer: Duration,
}

impl Deadlines {
    /// Longer than the longest interval of `rxe-ctl top`, which keeps its connection, for an idle client.
    pub const DEFAULT: Deadlines = Deadlines {
        request: Duration::from_secs(5),
        idle: Duration::from_secs(2 * 3600),
        answer: Duration::from_secs(5),
    };
}

/// Counters of the clients of one listening socket.
#[derive(Debug, Default)]
pub struct ClientStats {
    /// Complete requests.
    pub requests: AtomicU64,
    /// Clients closed because a deadline passed.
    pub timeouts: AtomicU64,
    /// Clients closed for a new one, because the table was full.
    pub replaced: AtomicU64,
    /// Clients closed at once: all others were being answered, or no thread could be started.
    pub refused: AtomicU64,
}

/// Names and descriptions of the counters.
pub const DESCRIPTIONS: [(&str, &str); 4] = [
    ("requests", "Requests received completely."),
    ("timeouts", "Clients closed because they took too long for a request or to take an answer."),
    ("replaced", "Clients closed for a new one, because too many were connected and this one had been silent longest."),
    ("refused", "Clients closed at once, because all others were being answered or the system gave no thread."),
];

impl ClientStats {
    /// The values, in the order of [`DESCRIPTIONS`].
    pub fn values(&self) -> [u64; 4] {
        [&self.requests, &self.timeouts, &self.replaced, &self.refused].map(|counter| counter.load(Ordering::Relaxed))
    }

    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connected socket.
pub trait Stream: Read + Write + Sized + Send + 'static {
    /// A second handle to it.
    fn try_clone(&self) -> io::Result<Self>;
    /// Sets the timeout of each read and write; `None` for no limit.
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    /// Ends it in both directions, also for a thread that is reading or writing.
    fn shutdown(&self);
}

macro_rules! stream {
    ($type:ty) => {
        impl Stream for $type {
            fn try_clone(&self) -> io::Result<$type> {
                <$type>::try_clone(self)
            }

            fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.set_read_timeout(timeout)?;
                self.set_write_timeout(timeout)
            }

            fn shutdown(&self) {
                // The client may have disconnected already.
                let _ = <$type>::shutdown(self, Shutdown::Both);
            }
        }
    };
}
stream!(TcpStream);
stream!(UnixStream);

/// The state of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Sending a request; its first byte may not have arrived.
    Requesting,
    /// Silent after an answer.
    Idle,
    /// The request is being answered.
    Answering,
    /// Receiving the answer.
    Taking,
    /// Receiving a stream, at its own pace.
    Streaming,
    /// Replaced: its thread is about to end.
    Leaving,
}

struct Seat<S> {
    id: u64,
    stream: S,
    phase: Phase,
    since: Instant,
}

struct Table<S> {
    seats: Vec<Seat<S>>,
    next_id: u64,
}

/// The clients of one listening socket.
pub struct Clients<S> {
    table: Mutex<Table<S>>,
    left: Condvar,
    deadlines: Deadlines,
    stats: Arc<ClientStats>,
}

impl<S: Stream> Clients<S> {
    /// An empty table.
    pub fn new(deadlines: Deadlines, stats: Arc<ClientStats>) -> Arc<Clients<S>> {
        let table = Mutex::new(Table { seats: Vec::new(), next_id: 0 });
        Arc::new(Clients { table, left: Condvar::new(), deadlines, stats })
    }

    /// Accepts clients for ever and runs `serve` for each, in a thread called `name`.
    pub fn serve_all(
        self: &Arc<Clients<S>>,
        name: &str,
        accept: impl Fn() -> io::Result<S>,
        serve: impl Fn(Client<S>) + Clone + Send + 'static,
    ) {
        loop {
            let Ok(stream) = accept() else {
                thread::sleep(ACCEPT_RETRY);
                continue;
            };
            let Some(client) = self.admit(stream) else {
                ClientStats::add(&self.stats.refused);
                continue;
            };
            let serve = serve.clone();
            // Without a thread the closure is dropped, and the client with it.
            if thread::Builder::new().name(name.to_owned()).spawn(move || serve(client)).is_err() {
                ClientStats::add(&self.stats.refused);
            }
        }
    }

    /// Adds a client to the table, in place of another if it is full. `None` if none may be replaced.
    pub fn admit(self: &Arc<Clients<S>>, stream: S) -> Option<Client<S>> {
        let handle = stream.try_clone().ok()?;
        let mut table = self.lock();
        while table.seats.len() >= MAX_THREADS {
            table = self.left.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        if table.seats.iter().filter(|seat| seat.phase != Phase::Leaving).count() >= MAX_CLIENTS {
            let seat = table.replaceable()?;
            seat.phase = Phase::Leaving;
            seat.stream.shutdown();
            ClientStats::add(&self.stats.replaced);
        }
        let (id, now) = (table.next_id, Instant::now());
        table.next_id += 1;
        table.seats.push(Seat { id, stream: handle, phase: Phase::Requesting, since: now });
        drop(table);
        let until = now + self.deadlines.request;
        Some(Client { clients: Arc::clone(self), id, stream, phase: Phase::Requesting, until })
    }

    fn lock(&self) -> MutexGuard<'_, Table<S>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Table<S> {
    /// The client that has kept the target waiting longest; clients with an incomplete request before idle ones.
    fn replaceable(&mut self) -> Option<&mut Seat<S>> {
        let waited_for = self
            .seats
            .iter_mut()
            .filter(|seat| !matches!(seat.phase, Phase::Answering | Phase::Streaming | Phase::Leaving));
        waited_for.min_by_key(|seat| (seat.phase != Phase::Requesting, seat.since))
    }
}

/// One client. Dropping it closes the connection.
pub struct Client<S: Stream> {
    clients: Arc<Clients<S>>,
    id: u64,
    stream: S,
    phase: Phase,
    /// Deadline of the phase; unused in `Answering`.
    until: Instant,
}

impl<S: Stream> Client<S> {
    /// Bytes of a request; 0 at the end of the connection.
    ///
    /// # Errors
    /// The deadline has passed, or the connection is broken.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.transfer(|stream| stream.read(buffer))?;
        if n > 0 && self.phase == Phase::Idle {
            self.enter(Phase::Requesting, self.clients.deadlines.request);
        }
        Ok(n)
    }

    /// A request is complete: no deadline applies until the answer is ready.
    pub fn answering(&mut self) {
        ClientStats::add(&self.clients.stats.requests);
        self.enter(Phase::Answering, Duration::ZERO);
    }

    /// Sends an answer. Another request may follow.
    ///
    /// # Errors
    /// The deadline has passed, or the connection is broken.
    pub fn answer(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.enter(Phase::Taking, self.clients.deadlines.answer);
        while !bytes.is_empty() {
            match self.transfer(|stream| stream.write(bytes))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => bytes = &bytes[n..],
            }
        }
        self.enter(Phase::Idle, self.clients.deadlines.idle);
        Ok(())
    }

    /// A stream follows the answer: no deadline applies, and no new client replaces this one.
    pub fn start_stream(&mut self) {
        self.enter(Phase::Streaming, Duration::ZERO);
    }

    /// Sends a part of the stream. Waits as long as the client does not read.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn stream(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_timeout(None)?;
        self.stream.write_all(bytes)
    }

    /// Waits for `time`. False if the client has closed the connection or sent something, which is not allowed here.
    pub fn is_silent(&mut self, time: Duration) -> bool {
        let read = self.stream.set_timeout(Some(time)).and_then(|()| self.stream.read(&mut [0]));
        read.is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
        })
    }

    fn enter(&mut self, phase: Phase, within: Duration) {
        let now = Instant::now();
        (self.phase, self.until) = (phase, now + within);
        let mut table = self.clients.lock();
        if let Some(seat) = table.seats.iter_mut().find(|seat| seat.id == self.id && seat.phase != Phase::Leaving) {
            (seat.phase, seat.since) = (phase, now);
        }
    }

    /// One read or write, with the deadline of the phase as its timeout.
    fn transfer(&mut self, mut transfer: impl FnMut(&mut S) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                ClientStats::add(&self.clients.stats.timeouts);
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_timeout(Some(left))?;
            match transfer(&mut self.stream) {
                // The loop checks the deadline.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock || error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

impl<S: Stream> Drop for Client<S> {
    fn drop(&mut self) {
        self.clients.lock().seats.retain(|seat| seat.id != self.id);
        self.clients.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(200);
    const PATIENT: Deadlines = Deadlines { request: LONG, idle: LONG, answer: LONG };

    fn clients(deadlines: Deadlines) -> Arc<Clients<UnixStream>> {
        Clients::new(deadlines, Arc::default())
    }

    fn connect(clients: &Arc<Clients<UnixStream>>) -> (UnixStream, Option<Client<UnixStream>>) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        theirs.set_read_timeout(Some(LONG)).expect("a timeout");
        (theirs, clients.admit(ours))
    }

    fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }

    #[test]
    fn the_deadline_is_for_the_whole_request() {
        let clients = clients(Deadlines { request: SHORT, ..PATIENT });
        let (mut theirs, client) = connect(&clients);
        let mut client = client.expect("a free slot");
        let sending = thread::spawn(move || {
            // Ends when the other side has hung up.
            while theirs.write_all(b"x").is_ok() {
                thread::sleep(SHORT / 20);
            }
        });
        let began = Instant::now();
        let error = loop {
            match client.read(&mut [0]) {
                Ok(_) => assert!(began.elapsed() < LONG / 2, "each byte extends the deadline"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(count(&clients.stats.timeouts), 1);
        drop(client);
        sending.join().expect("no panic");
        assert!(clients.lock().seats.is_empty());
    }

    #[test]
    fn an_idle_client_keeps_its_connection_and_a_begun_request_has_a_deadline_again() {
        let clients = clients(Deadlines { request: SHORT, ..PATIENT });
        let (mut theirs, client) = connect(&clients);
        let mut client = client.expect("a free slot");
        theirs.write_all(b"a").expect("room");
        client.read(&mut [0]).expect("a byte");
        client.answering();
        client.answer(b"b").expect("room");
        let late = thread::spawn(move || {
            thread::sleep(2 * SHORT);
            theirs.write_all(b"a").map(|()| theirs)
        });
        assert_eq!(client.read(&mut [0]).expect("a byte"), 1);
        assert_eq!(client.read(&mut [0]).expect_err("no more").kind(), io::ErrorKind::TimedOut);
        drop(late.join().expect("no panic"));
        assert_eq!((count(&clients.stats.requests), count(&clients.stats.timeouts)), (1, 1));
    }

    #[test]
    fn an_answer_that_is_not_read_ends_at_its_deadline() {
        let clients = clients(Deadlines { answer: SHORT, ..PATIENT });
        let (_theirs, client) = connect(&clients);
        let error = client.expect("a free slot").answer(&vec![0; 64 << 20]).expect_err("the peer does not read");
        assert_eq!((error.kind(), count(&clients.stats.timeouts)), (io::ErrorKind::TimedOut, 1));
    }

    #[test]
    fn a_full_table_replaces_the_slowest_client_but_none_being_answered() {
        let clients = clients(PATIENT);
        let mut seated: Vec<_> = (0..MAX_CLIENTS).map(|_| connect(&clients)).collect();
        // The first is idle after an answer, the second is being answered.
        for index in [0, 1] {
            seated[index].1.as_mut().expect("a free slot").answering();
        }
        seated[0].1.as_mut().expect("a free slot").answer(b"x").expect("room");
        seated[0].0.read_exact(&mut [0]).expect("the answer");
        // Incomplete requests first, in the order of their age.
        let (_new, client) = connect(&clients);
        let _client = client.expect("a free slot");
        assert_eq!(seated[2].0.read(&mut [0]).expect("closed"), 0);
        // Then the idle one.
        for (_, client) in &mut seated[3..] {
            client.as_mut().expect("a free slot").answering();
        }
        let mut other = connect(&clients);
        assert_eq!(count(&clients.stats.replaced), 2, "the client that came last");
        other.1.as_mut().expect("a free slot").answering();
        let mut last = connect(&clients);
        assert_eq!(seated[0].0.read(&mut [0]).expect("closed"), 0);
        last.1.as_mut().expect("a free slot").answering();
        // Then none.
        assert!(connect(&clients).1.is_none());
        assert_eq!(count(&clients.stats.replaced), 3);
        // A replaced client stays so, whatever its thread does next.
        seated[0].1.as_mut().expect("a free slot").answering();
        assert!(connect(&clients).1.is_none());
        drop(seated.remove(1));
        assert!(connect(&clients).1.is_some());
    }

    #[test]
    fn a_stream_is_neither_replaced_nor_ended_by_a_deadline() {
        let clients = clients(Deadlines { answer: SHORT, ..PATIENT });
        let (mut theirs, client) = connect(&clients);
        let mut client = client.expect("a free slot");
        client.start_stream();
        assert!(client.is_silent(SHORT / 20));
        let _others: Vec<_> = (0..=MAX_CLIENTS).map(|_| connect(&clients)).collect();
        assert_eq!(count(&clients.stats.replaced), 2, "clients that came later");
        const LENGTH: usize = 4 << 20;
        let reading = thread::spawn(move || {
            thread::sleep(2 * SHORT);
            let mut bytes = vec![0; LENGTH];
            theirs.read_exact(&mut bytes).map(|()| theirs)
        });
        client.stream(&vec![1; LENGTH]).expect("a slow reader is waited for");
        drop(reading.join().expect("no panic").expect("all bytes"));
        assert!(!client.is_silent(LONG), "closed");
        assert!(client.stream(b"x").is_err());
    }
}
