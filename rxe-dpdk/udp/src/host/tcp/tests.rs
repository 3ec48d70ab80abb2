use std::io::{Read, Write};
use std::net::Shutdown;

use super::*;

/// Listeners on a loopback address, and a clock that only moves.
struct TestEnv {
    tcp: Tcp,
    local: SocketAddr,
    now: Instant,
}

impl TestEnv {
    fn new() -> TestEnv {
        // A free port, which stays free: nobody else binds to it.
        let local = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut tcp = Tcp::new(None, Arc::default()).unwrap();
        tcp.listen(local).unwrap();
        TestEnv { tcp, local, now: Instant::ZERO }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.local).unwrap()
    }

    fn poll(&mut self) -> Option<StreamEvent<TcpStreamId>> {
        self.now += INTERVAL;
        self.tcp.poll(self.now);
        self.tcp.poll_event()
    }

    /// The next event; the kernel delivers it soon.
    fn event(&mut self) -> StreamEvent<TcpStreamId> {
        loop {
            if let Some(event) = self.poll() {
                return event;
            }
            std::thread::yield_now();
        }
    }

    /// The next event that is not about bytes.
    fn end(&mut self) -> StreamEvent<TcpStreamId> {
        loop {
            match self.event() {
                StreamEvent::Readable { stream } => while self.tcp.recv(stream, &mut [0; 64]) > 0 {},
                event => return event,
            }
        }
    }

    fn open(&mut self) -> (TcpStream, TcpStreamId) {
        let client = self.connect();
        match self.event() {
            StreamEvent::Opened { stream, local, peer } => {
                assert_eq!((local, peer), (self.local, client.local_addr().unwrap()));
                (client, stream)
            }
            event => panic!("{event:?}"),
        }
    }
}

#[test]
fn bytes_pass_in_both_directions() {
    let mut env = TestEnv::new();
    let (mut client, stream) = env.open();
    client.write_all(b"hello").unwrap();
    assert_eq!(env.event(), StreamEvent::Readable { stream });
    let mut buffer = [0; 64];
    assert_eq!((env.tcp.recv(stream, &mut buffer), &buffer[..5]), (5, &b"hello"[..]));
    assert_eq!(env.tcp.recv(stream, &mut buffer), 0);
    assert_eq!(env.tcp.send(stream, b"there"), 5);
    client.read_exact(&mut buffer[..5]).unwrap();
    assert_eq!(&buffer[..5], b"there");
}

#[test]
fn a_peer_that_closes_ends_the_stream_after_its_bytes() {
    let mut env = TestEnv::new();
    let (mut client, stream) = env.open();
    client.write_all(b"last").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(env.event(), StreamEvent::Readable { stream });
    let mut buffer = [0; 64];
    while env.tcp.recv(stream, &mut buffer) != 4 {
        env.poll();
    }
    assert_eq!(env.end(), StreamEvent::Closed { stream, reset: false });
    assert_eq!((env.tcp.len(), client.read(&mut buffer).unwrap()), (0, 0));
}

#[test]
fn a_stream_that_we_close_ends_with_the_peers_close() {
    let mut env = TestEnv::new();
    let (mut client, stream) = env.open();
    client.write_all(b"never read").unwrap();
    assert_eq!(env.tcp.send(stream, b"bye"), 3);
    env.tcp.close(env.now, stream);
    assert_eq!(env.tcp.send(stream, b"more"), 0, "our side is closed");
    let mut said = Vec::new();
    client.read_to_end(&mut said).unwrap();
    assert_eq!(said, b"bye");
    drop(client);
    assert_eq!(env.end(), StreamEvent::Closed { stream, reset: false });
}

#[test]
fn a_peer_that_does_not_close_is_reset_in_time() {
    let mut env = TestEnv::new();
    let (mut client, stream) = env.open();
    env.tcp.close(env.now, stream);
    assert_eq!((env.poll(), env.tcp.len()), (None, 1));
    env.now += Duration::from_secs(31);
    assert_eq!(env.end(), StreamEvent::Closed { stream, reset: true });
    // It has read the end of our side before the reset; only a write shows that.
    while client.write_all(b"late").is_ok() {}
}

#[test]
fn a_reset_of_the_peer_is_reported_and_ours_is_not() {
    let mut env = TestEnv::new();
    let (client, stream) = env.open();
    stream::reset(&client);
    drop(client);
    assert_eq!(env.end(), StreamEvent::Closed { stream, reset: true });
    let (mut client, stream) = env.open();
    env.tcp.abort(stream);
    assert_eq!((env.poll(), env.tcp.len()), (None, 0));
    assert!(client.read(&mut [0; 1]).is_err());
}

#[test]
fn a_stream_that_is_not_read_takes_no_more_bytes_until_it_is() {
    let mut env = TestEnv::new();
    let (mut client, stream) = env.open();
    let chunk = [7; 65_536];
    let mut sent = 0;
    loop {
        let taken = env.tcp.send(stream, &chunk);
        sent += taken;
        if taken < chunk.len() && env.tcp.send(stream, &chunk) == 0 {
            break;
        }
    }
    let mut read = vec![0; sent];
    client.read_exact(&mut read).unwrap();
    while env.tcp.send(stream, b"x") == 0 {
        env.poll();
    }
}

#[test]
fn streams_are_bounded_and_peers_restricted() {
    let mut env = TestEnv::new();
    let clients: Vec<TcpStream> = (0..MAX_STREAMS_PER_PEER)
        .map(|_| {
            let (client, _) = env.open();
            client
        })
        .collect();
    let mut late = env.connect();
    while env.tcp.stats.tcp_source_limited.get() == 0 {
        env.poll();
    }
    assert!(late.read(&mut [0; 1]).is_err(), "a reset");
    assert_eq!(env.tcp.len(), MAX_STREAMS_PER_PEER);
    env.tcp.set_peers(Some(["10.0.0.0/8".parse().unwrap()].into_iter().collect()));
    assert_eq!(env.tcp.len(), 0);
    drop(clients);
    let mut stranger = env.connect();
    while env.tcp.stats.tcp_refused.get() == 0 {
        env.poll();
    }
    assert!(stranger.read(&mut [0; 1]).is_err());
}
