//! The server of the RC example of the manual "RDMA Aware Networks Programming" (`RDMA_RC_example`), which many tutorials
//! repeat.
//!
//! Both ends tell each other their queue pairs and buffers over TCP, and from then on meet there after each step, by a byte
//! each way whose value means nothing:
//!
//! ```text
//! hello <-> hello          the queue pairs connect; the client has posted one receive
//! 'Q'   <-> 'Q'            the server SENDs 16 bytes
//! 'R'   <-> 'R'            the client READs 16 bytes of the server's buffer, then WRITEs as many there
//! 'W'   <-> 'W'            the server shows its buffer
//! ```
//!
//! The client waits for two seconds at most for its SEND, READ and WRITE.

use std::collections::HashMap;
use std::net::SocketAddr;

use rxe_proto::Duration;
use rxe_proto::verbs::{
    Access, AsyncEvent, Memory, MemoryRegion, Payload, ProtectionDomain, QpCaps, Qpn, QueuePair, Rc, RemoteAddr,
    WcStatus, WorkCompletion, WorkRequest,
};
use rxe_proto::wire::{Gid, PathMtu, Psn};
use rxe_service::{Context, Listen, PeerPath, QpMap, Service, StreamId};

use super::factory::Factory;
use super::idle::{Idle, SWEEP};
use super::metrics::{MetricsRegistry, ServiceMetrics};
use super::out_of_band::{Peer, no_way};

/// The name that users select the service by.
pub const NAME: &str = "rc-example";
/// The example's TCP port.
const PORT: u16 = 19875;
/// Length of a hello.
const HELLO: usize = 34;
/// Length of each message and of the buffer, as the client knows it.
const MESSAGE: usize = 16;
/// Content of our SEND, and of the client's READ: as much of it as a message holds.
const SENT: &[u8; MESSAGE] = b"SEND operation \0";
const READ: &[u8; MESSAGE] = b"RDMA read operat";
/// The client's queue pair begins with this PSN and wants ours to, and has this path MTU.
const FIRST_PSN: Psn = Psn::new(0);
const PATH_MTU: PathMtu = PathMtu::Mtu256;
/// Access of a client to its buffer.
const BUFFER_ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const PEER_ACCESS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);
const CAPS: QpCaps =
    QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: MESSAGE as u32 };

/// One end's queue pair and buffer, in network byte order; the LID of InfiniBand is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hello {
    buffer: RemoteAddr,
    qpn: Qpn,
    gid: Gid,
}

impl Hello {
    fn parse(bytes: &[u8; HELLO]) -> Result<Hello, Nonsense> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let addr = u64::from(word(0)) << 32 | u64::from(word(4));
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[18..]);
        match word(12) {
            // 0 and 1 are management's.
            qpn @ 2..=0xFF_FFFF => Ok(Hello { buffer: RemoteAddr { addr, rkey: word(8) }, qpn: Qpn::new(qpn), gid }),
            other => Err(Nonsense::QueuePair(other)),
        }
    }

    fn write(&self) -> [u8; HELLO] {
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&self.buffer.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.buffer.rkey.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.qpn.get().to_be_bytes());
        bytes[18..].copy_from_slice(&self.gid.0);
        bytes
    }
}

/// A message that the example's client does not send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
enum Nonsense {
    /// No queue pair has this number.
    #[error("its hello names queue pair {0:#x}, which is none")]
    QueuePair(u32),
    /// The client waits for an answer before it says more.
    #[error("it goes on without waiting for an answer")]
    TooMuch,
}

/// Message of the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Said {
    /// Its queue pair; answer with ours.
    Hello(Hello),
    /// It can receive.
    Ready,
    /// It has received.
    Received,
    /// It has read and written, and is done.
    Written,
}

/// The client's side of the stream.
#[derive(Default)]
struct Talk {
    pending: Vec<u8>,
    /// Number of its messages.
    said: u8,
}

impl Talk {
    /// Takes bytes in; what they say, once they say something.
    fn feed(&mut self, data: &[u8]) -> Result<Option<Said>, Nonsense> {
        let wanted = match self.said {
            0 => HELLO,
            1..=3 => 1,
            _ => 0,
        };
        if self.pending.len() + data.len() > wanted {
            return Err(Nonsense::TooMuch);
        }
        self.pending.extend_from_slice(data);
        if self.pending.len() < wanted {
            return Ok(None);
        }
        let said = match (self.said, self.pending.first_chunk()) {
            (0, Some(hello)) => Said::Hello(Hello::parse(hello)?),
            (1, _) => Said::Ready,
            (2, _) => Said::Received,
            (3, _) => Said::Written,
            _ => return Ok(None),
        };
        self.pending.clear();
        self.said += 1;
        Ok(Some(said))
    }
}

/// Protection domain and buffer of a client; the next one takes it over.
struct ConnResources {
    pd: ProtectionDomain,
    buffer: MemoryRegion,
}

impl ConnResources {
    fn new(cx: &mut Context<'_>) -> Result<ConnResources, String> {
        let memory = cx.alloc_memory(MESSAGE).map_err(|error| error.to_string())?;
        let pd = cx.device().alloc_pd();
        match cx.device().reg_mr(pd, memory, BUFFER_ACCESS) {
            Ok(buffer) => Ok(ConnResources { pd, buffer }),
            Err(error) => {
                let _ = cx.device().dealloc_pd(pd);
                Err(error.to_string())
            }
        }
    }
}

struct Client {
    stream: StreamId,
    from: SocketAddr,
    talk: Talk,
    /// The client's message, until the path to it is resolved.
    hello: Option<Hello>,
    /// Its queue pair, and the resources behind it.
    qp: Option<(QueuePair<Rc>, ConnResources)>,
}

/// The service on one lcore.
struct RcExample {
    clients: HashMap<u64, Client>,
    streams: HashMap<StreamId, u64>,
    qps: QpMap<u64>,
    unused: Vec<ConnResources>,
    next: u64,
    idle: Idle<u64>,
    metrics: ServiceMetrics,
}

/// Text in a buffer, up to its first zero byte.
fn text(memory: &Memory) -> String {
    let mut bytes = [0; MESSAGE];
    // It is as long.
    let _ = memory.read(0, &mut bytes);
    bytes.split(|byte| *byte == 0).next().unwrap_or_default().escape_ascii().to_string()
}

impl RcExample {
    fn new(idle_timeout: Duration, metrics: ServiceMetrics) -> RcExample {
        RcExample {
            clients: HashMap::new(),
            streams: HashMap::new(),
            qps: QpMap::default(),
            unused: Vec::new(),
            next: 0,
            idle: Idle::new(idle_timeout),
            metrics,
        }
    }

    fn say(&mut self, cx: &mut Context<'_>, number: u64, said: Said) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let (stream, from) = (client.stream, client.from);
        match said {
            Said::Hello(hello) if hello.gid == Gid::default() => {
                self.refuse(cx, number, "it names no GID: give it the index of one with -g");
            }
            Said::Hello(hello) => {
                client.hello = Some(hello);
                cx.resolve_path_of(from.ip(), hello.gid.ip(), number);
            }
            Said::Ready => {
                let Some((qp, _)) = client.qp else { return };
                cx.stream_send(stream, b"Q");
                if let Err(error) = cx.device().post_send(qp, WorkRequest::send(Payload::Inline(SENT)).signaled()) {
                    self.metrics.fail(cx.now(), from, error);
                    self.end(cx, number, "it cannot be sent to");
                }
            }
            Said::Received => cx.stream_send(stream, b"R"),
            Said::Written => {
                let Some((_, resources)) = &client.qp else { return };
                if self.metrics.admits(cx.now()) {
                    tracing::info!(client = %from, "{NAME}: the client has written \"{}\"", text(resources.buffer.memory()));
                }
                self.metrics.exchanges.inc();
                cx.stream_send(stream, b"W");
            }
        }
    }

    /// A queue pair for a client, connected to the client's, and the hello that says so.
    fn open(&mut self, cx: &mut Context<'_>, number: u64, hello: Hello, path: &PeerPath) -> Result<Hello, String> {
        let Some(client) = self.clients.get_mut(&number) else { return Err("it is gone".to_owned()) };
        let resources = match self.unused.pop() {
            Some(resources) => resources,
            None => ConnResources::new(cx).map_err(|error| format!("no memory: {error}"))?,
        };
        let attr = cx.qp_attr().with_caps(CAPS);
        let qp = match cx.device().create_qp_in_init(resources.pd, attr, PEER_ACCESS) {
            Ok(qp) => qp,
            Err(error) => {
                self.unused.push(resources);
                return Err(format!("no queue pair: {error}"));
            }
        };
        // It is as long.
        let _ = resources.buffer.memory().write(0, READ);
        let ours = Hello {
            buffer: RemoteAddr { addr: resources.buffer.addr(), rkey: resources.buffer.rkey() },
            qpn: qp.qpn(),
            gid: path.path.src,
        };
        // Stored before anything else can fail: the client's end destroys it.
        client.qp = Some((qp, resources));
        self.qps.insert(qp.qpn(), number);
        let peer = Peer {
            path: path.clone(),
            qpn: hello.qpn,
            psn: FIRST_PSN,
            path_mtu: PATH_MTU,
            rd_atomic: 1,
            remote: hello.buffer,
        };
        let connected = peer.connect(&mut cx.device(), qp, FIRST_PSN);
        connected.map_err(|error| format!("the queue pair does not connect: {error}"))?;
        Ok(ours)
    }

    fn refuse(&mut self, cx: &mut Context<'_>, number: u64, why: &str) {
        if let Some(client) = self.clients.get(&number) {
            self.metrics.refuse(cx.now(), client.from, "a queue pair", why);
        }
        self.end(cx, number, "it was refused");
    }

    /// Releases all resources of a client.
    fn end(&mut self, cx: &mut Context<'_>, number: u64, why: &str) {
        self.idle.forget(number);
        let Some(client) = self.clients.remove(&number) else { return };
        tracing::debug!(client = %client.from, "rc-example client gone: {why}");
        if self.streams.remove(&client.stream).is_some() {
            cx.stream_close(client.stream);
        }
        if let Some((qp, resources)) = client.qp {
            self.qps.remove(&qp.qpn());
            let _ = cx.device().destroy_qp(qp);
            self.unused.push(resources);
        }
    }
}

impl Service for RcExample {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, 0);
    }

    fn stream_opened(&mut self, cx: &mut Context<'_>, stream: StreamId, _local: SocketAddr, from: SocketAddr) {
        self.metrics.connections.inc();
        let number = self.next;
        self.next += 1;
        self.streams.insert(stream, number);
        self.clients.insert(number, Client { stream, from, talk: Talk::default(), hello: None, qp: None });
        self.idle.heard(number, cx.now());
    }

    fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) {
        let Some(&number) = self.streams.get(&stream) else { return };
        let Some(client) = self.clients.get_mut(&number) else { return };
        self.idle.heard(number, cx.now());
        let fed = if client.hello.is_some() { Err(Nonsense::TooMuch) } else { client.talk.feed(data) };
        match fed {
            Ok(None) => {}
            Ok(Some(said)) => self.say(cx, number, said),
            Err(nonsense) => {
                self.metrics.nonsense(cx.now(), client.from, nonsense);
                self.end(cx, number, "it made no sense");
            }
        }
    }

    fn stream_closed(&mut self, cx: &mut Context<'_>, stream: StreamId, _reset: bool) {
        if let Some(number) = self.streams.remove(&stream) {
            self.end(cx, number, "it closed its stream");
        }
    }

    fn path_resolved(&mut self, cx: &mut Context<'_>, number: u64, path: Option<&PeerPath>) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(hello) = client.hello.take() else { return };
        let stream = client.stream;
        let opened = match path {
            Some(path) => self.open(cx, number, hello, path),
            None => Err(no_way(client.from.ip(), hello.gid.ip())),
        };
        match opened {
            Ok(ours) => cx.stream_send(stream, &ours.write()),
            Err(why) => self.refuse(cx, number, &why),
        }
    }

    fn completion(&mut self, _cx: &mut Context<'_>, wc: &WorkCompletion) {
        if wc.status != WcStatus::Success {
            // The queue pair is in error, and its event follows.
            tracing::debug!(qp = %wc.qpn, status = %wc.status, "rc-example work request failed");
        }
    }

    fn async_event(&mut self, cx: &mut Context<'_>, event: &AsyncEvent) {
        if let AsyncEvent::QpError { qpn, cause } = *event
            && let Some(&number) = self.qps.get(&qpn)
        {
            if let Some(client) = self.clients.get(&number)
                && self.metrics.admits(cx.now())
            {
                tracing::info!(client = %client.from, %qpn, %cause, "{NAME}: queue pair in error");
            }
            self.end(cx, number, cause.name());
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        let who = |number| self.clients.get(&number).map(|client| client.from);
        for number in self.idle.give_up(cx.now(), &self.metrics, who) {
            self.end(cx, number, "it was silent");
        }
        cx.set_timer(SWEEP, 0);
    }
}

/// Makes the service, which gives clients up that are silent for `idle_timeout`.
pub fn factory(idle_timeout: Duration, registry: &MetricsRegistry) -> Factory {
    let create = move |metrics| -> Box<dyn Service> { Box::new(RcExample::new(idle_timeout, metrics)) };
    Factory::new(NAME, vec![Listen::Tcp { port: PORT }], create, registry)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn hello() -> Hello {
        let buffer = RemoteAddr { addr: 0x55CA_60F6_8000, rkey: 0x1234 };
        Hello { buffer, qpn: Qpn::new(0x11), gid: Gid::from(Ipv4Addr::new(10, 0, 0, 2)) }
    }

    #[test]
    fn a_hello_is_packed_in_network_order() {
        let bytes = hello().write();
        assert_eq!(bytes[..18], [0, 0, 0x55, 0xCA, 0x60, 0xF6, 0x80, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 0x11, 0, 0]);
        assert_eq!(bytes[28..], [0xFF, 0xFF, 10, 0, 0, 2]);
        assert_eq!(Hello::parse(&bytes), Ok(hello()));
        let mut wrong = bytes;
        for (at, value, qpn) in [(12, 1, 0x0100_0011), (15, 1, 1), (15, 0, 0)] {
            wrong = bytes;
            wrong[at] = value;
            assert_eq!(Hello::parse(&wrong), Err(Nonsense::QueuePair(qpn)));
        }
        wrong[15] = 2;
        assert!(Hello::parse(&wrong).is_ok());
    }

    #[test]
    fn a_client_says_four_things() {
        for piece in [1, 5, HELLO] {
            let mut talk = Talk::default();
            let mut said = Vec::new();
            for message in [&hello().write()[..], b"Q", b"x", b"\0"] {
                for data in message.chunks(piece) {
                    said.extend(talk.feed(data).expect("the example"));
                }
            }
            assert_eq!(said, [Said::Hello(hello()), Said::Ready, Said::Received, Said::Written]);
            assert_eq!(talk.feed(b""), Ok(None));
            assert_eq!(talk.feed(b"Q"), Err(Nonsense::TooMuch));
        }
    }

    #[test]
    fn nonsense_is_recognised() {
        assert_eq!(Talk::default().feed(&[0x55; HELLO + 1]), Err(Nonsense::TooMuch));
        assert_eq!(Talk::default().feed(&[0x55; HELLO]), Err(Nonsense::QueuePair(0x5555_5555)));
        let mut talk = Talk::default();
        assert!(talk.feed(&hello().write()).is_ok());
        assert_eq!(talk.feed(b"QR"), Err(Nonsense::TooMuch));
        assert_eq!(talk.feed(b""), Ok(None));
    }

    #[test]
    fn mutated_streams_say_at_most_four_things() {
        let text = [&hello().write()[..], b"QRW"].concat();
        rxe_testkit::mutate::check_mutations("rc-example", &[&text, &text[..HELLO]], 8_000, |input| {
            let Some((piece, input)) = input.split_first() else { return };
            for piece in [usize::from(*piece) + 1, 1, HELLO] {
                let (mut talk, mut said) = (Talk::default(), 0);
                for data in input.chunks(piece).chain([&b""[..]]) {
                    let Ok(message) = talk.feed(data) else { break };
                    if let Some(Said::Hello(hello)) = message {
                        assert_eq!(Hello::parse(&hello.write()), Ok(hello));
                    }
                    said += usize::from(message.is_some());
                    assert!(talk.pending.len() < HELLO && said <= 4);
                }
            }
        });
    }
}
