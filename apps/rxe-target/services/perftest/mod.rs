//! The server of perftest: ib_send, ib_write, ib_read and ib_atomic, bandwidth and latency.
//!
//! A client does not announce its test, nor type, size and number of its messages. So the server reacts. It creates a queue
//! pair for each one that a record names, which [detects the type of its peer](rxe_proto::verbs::Device::detect_peer_type)
//! and serves every test: there is memory for WRITEs, READs and atomics, and SENDs are [sent back](echo). Only ib_write_lat
//! waits for its server to begin; it is recognized by its silence.

mod client;
mod connections;
mod echo;
mod first_writer;
mod record;
mod rendezvous;
mod report;
mod sinks;
mod talk;
mod test_qp;
mod write_lat;

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rxe_dpdk::service::{Context, PeerPath, QpMap, StreamId};
use rxe_proto::Duration;
use rxe_proto::verbs::{
    AsyncEvent, ProtectionDomain, QpErrorCause, Qpn, RemoteAddr, WcOpcode, WcStatus, WorkCompletion,
};
use rxe_proto::wire::PathMtu;

use self::client::{Channel, Client, RECORDS_OF_WRITE_LAT};
use self::connections::{CONNECTION, Connection, DATAGRAM, Datagrams, Role, Shared};
use self::first_writer::FirstWriter;
use self::record::Record;
pub use self::rendezvous::Rendezvous;
use self::report::Meter;
use self::sinks::Sinks;
use self::talk::{REPORT_FIELDS, Said};
use self::test_qp::{PAGE, RD_ATOMIC, Sink, TestQp};
use super::metrics::ServiceMetrics;
use super::out_of_band::{Peer, no_way};
use crate::config::PerftestConfig;

/// The name that users select the service by.
pub const NAME: &str = "perftest";
/// Queue pairs of one client: more than `-q` has on any guest, and few enough to serve many clients.
const MAX_QPS: usize = 256;
/// Timers with this bit look into an ib_write_lat client's memory; those without wait for its silence.
const POLL: u64 = 1 << 48;
/// Timers with this bit zero memory that clients have left.
const CLEAN: u64 = 1 << 51;
/// The next turn of the loop.
const NEXT_TURN: Duration = Duration::from_nanos(1);

/// The perftest clients of one worker.
pub struct Perftest {
    config: PerftestConfig,
    /// Marks our timers and questions.
    tag: u64,
    /// Unused protection domains.
    pds: Vec<ProtectionDomain>,
    sinks: Sinks,
    clients: HashMap<u64, Client>,
    streams: HashMap<StreamId, u64>,
    tests: QpMap<TestQp>,
    /// Connections and datagram queue pairs of clients that use the connection manager, and the memory behind those.
    connections: QpMap<Connection>,
    datagrams: QpMap<Datagrams>,
    shared: HashMap<IpAddr, Shared>,
    rendezvous: Arc<Rendezvous>,
    next: u64,
    metrics: ServiceMetrics,
}

impl Perftest {
    /// No client yet. `tag` is a bit above our numbers; all workers have one `rendezvous`.
    pub fn new(config: PerftestConfig, tag: u64, rendezvous: Arc<Rendezvous>, metrics: ServiceMetrics) -> Perftest {
        Perftest {
            sinks: Sinks::new(config.max_message + PAGE),
            config,
            tag,
            pds: Vec::new(),
            clients: HashMap::new(),
            streams: HashMap::new(),
            tests: QpMap::default(),
            connections: QpMap::default(),
            datagrams: QpMap::default(),
            shared: HashMap::new(),
            rendezvous,
            next: 0,
            metrics,
        }
    }

    /// A stream that begins as ours do.
    pub fn stream_opened(&mut self, cx: &mut Context<'_>, stream: StreamId, local: SocketAddr, from: SocketAddr) {
        let port = cx.ports().iter().find(|port| port.addresses.contains(&local.ip()));
        let path_mtu = port.map_or(PathMtu::Mtu1024, |port| port.path_mtu);
        let number = self.admit(Client::new(cx, Channel::Stream(stream), from, path_mtu));
        self.streams.insert(stream, number);
    }

    fn admit(&mut self, client: Client) -> u64 {
        self.metrics.connections.inc();
        let number = self.next;
        self.next += 1;
        self.clients.insert(number, client);
        number
    }

    /// Bytes of a stream; `false` if it is not ours.
    pub fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) -> bool {
        let Some(&number) = self.streams.get(&stream) else { return false };
        self.hear(cx, number, data);
        true
    }

    /// The end of a stream; `false` if it is not ours.
    pub fn stream_closed(&mut self, cx: &mut Context<'_>, stream: StreamId) -> bool {
        let Some(number) = self.streams.remove(&stream) else { return false };
        self.end(cx, number, "it closed its stream");
        true
    }

    fn hear(&mut self, cx: &mut Context<'_>, number: u64, data: &[u8]) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.heard = cx.now();
        let fed = client.talk.feed(data);
        let fed = fed.map_err(|nonsense| nonsense.to_string());
        if let Err(nonsense) = fed {
            self.nonsense(cx, number, &nonsense);
            return;
        }
        self.proceed(cx, number);
    }

    /// Deals with what the client has said, until it is all done or has to wait.
    fn proceed(&mut self, cx: &mut Context<'_>, number: u64) {
        loop {
            let Some(client) = self.clients.get_mut(&number) else { return };
            if client.waiting.is_some() {
                return;
            }
            match client.talk.next() {
                Ok(None) => return,
                Ok(Some(Said::Echo(bytes))) => client.say(cx, bytes.bytes()),
                Ok(Some(Said::Mtu(mtu))) => {
                    let digit = b'0' + client.path_mtu.code();
                    client.path_mtu = client.path_mtu.min(mtu);
                    client.say(cx, &[digit, 0]);
                }
                Ok(Some(Said::Record(record))) => self.record(cx, number, record),
                Ok(Some(Said::Report { field, value })) => self.report(cx, number, field, value),
                Ok(Some(Said::Done)) => self.end(cx, number, "its test is over"),
                Err(nonsense) => self.nonsense(cx, number, &nonsense.to_string()),
            }
        }
    }

    /// Answers a record with that of our queue pair for the client's, which is made if it is new.
    fn record(&mut self, cx: &mut Context<'_>, number: u64, record: Record) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        if let Channel::Control(..) = client.channel {
            if record.qpn.get() == 0 {
                // Before and after the client makes its connections.
                client.connects = true;
                client.say_record(cx, &Record::default());
                return;
            }
            if client.connects {
                // Of datagram queue pairs the client has learnt all it needs.
                let ours = self.rendezvous.record(client.from.ip(), record, cx.now());
                client.say_record(cx, &ours.unwrap_or_default());
                return;
            }
        }
        if let Some(test) = client.qps.get(&record.qpn).and_then(|qp| self.tests.get(qp)) {
            client.records += 1;
            let silent = client.records == RECORDS_OF_WRITE_LAT && client.qps.len() == 1 && client.out_reads == 1;
            if let Some(sink) = &client.sink {
                client.say_record(cx, &answer(client, sink, test));
            }
            if silent {
                cx.set_timer(self.config.write_lat_after, self.tag | number);
            }
            return;
        }
        let known = client.path.as_ref().filter(|(gid, _)| *gid == record.gid).map(|(_, path)| path.clone());
        let Some(path) = known else {
            client.waiting = Some(record);
            cx.resolve_path_of(client.from.ip(), record.gid.ip(), self.tag | number);
            return;
        };
        match self.open(cx, number, record, path) {
            Ok(()) => self.record(cx, number, record),
            Err(why) => self.refuse(cx, number, &why),
        }
    }

    /// The answer to a question with our tag, which was taken off.
    pub fn path_resolved(&mut self, cx: &mut Context<'_>, number: u64, path: Option<&PeerPath>) {
        if number & DATAGRAM != 0 {
            // The low 24 bits are the queue pair.
            self.datagram_path(cx, Qpn::new(number as u32), path);
            return;
        }
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(record) = client.waiting.take() else { return };
        let Some(path) = path else {
            let why = no_way(client.from.ip(), record.gid.ip());
            self.refuse(cx, number, &why);
            return;
        };
        client.path = Some((record.gid, path.clone()));
        self.record(cx, number, record);
        self.proceed(cx, number);
    }

    /// Makes a queue pair for the client's.
    fn open(&mut self, cx: &mut Context<'_>, number: u64, record: Record, path: PeerPath) -> Result<(), String> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        if client.qps.len() >= MAX_QPS {
            return Err(format!("it wants more than {MAX_QPS} queue pairs"));
        }
        if record.qpn.get() < 2 {
            return Err("it names no queue pair".to_owned());
        }
        let sink = match &mut client.sink {
            Some(sink) => sink,
            none => {
                let pd = self.pds.pop().unwrap_or_else(|| cx.device().alloc_pd());
                let made = Sink::take(cx, &mut self.sinks, pd, client.from.ip(), self.config.max_message);
                none.insert(made.inspect_err(|_| self.pds.push(pd))?)
            }
        };
        // A client without READs and atomics says 1.
        client.out_reads = record.out_reads.clamp(1, RD_ATOMIC);
        let peer = Peer {
            path,
            qpn: record.qpn,
            psn: record.psn,
            path_mtu: client.path_mtu,
            // At most 128.
            rd_atomic: client.out_reads as u8,
            remote: RemoteAddr { addr: record.vaddr, rkey: record.rkey },
        };
        let test = TestQp::open(cx, number, sink, peer)?;
        let qpn = test.answers.qp.qpn();
        client.qps.insert(record.qpn, qpn);
        self.tests.insert(qpn, test);
        Ok(())
    }

    fn report(&mut self, cx: &mut Context<'_>, number: u64, field: u8, value: [u8; 8]) {
        let Some(client) = self.clients.get(&number) else { return };
        let mut sum = Meter::default();
        for qp in client.qps.values() {
            if let Some(test) = self.tests.get_mut(qp) {
                sum = sum.plus(&test.answers.meter);
                if field + 1 == REPORT_FIELDS {
                    test.answers.meter = Meter::default();
                }
            }
        }
        client.say(cx, &sum.answer(field, value));
    }

    /// A timer with our tag, which was taken off.
    pub fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        if token & CONNECTION != 0 {
            // The low 24 bits are the queue pair.
            self.look_at_connection(cx, Qpn::new(token as u32));
            return;
        }
        if token & CLEAN != 0 {
            if self.sinks.clean() {
                cx.set_timer(NEXT_TURN, self.tag | CLEAN);
            }
            return;
        }
        let number = token & !POLL;
        let Some(client) = self.clients.get_mut(&number) else { return };
        let test = client.qps.values().next().and_then(|qp| self.tests.get(qp));
        let (Some(test), Some(sink)) = (test, &client.sink) else { return };
        let done = match &mut client.writer {
            Some(writer) => {
                let before = writer.strokes;
                writer.poll(cx, Some((&test.peer, test.psn)), sink).inspect(|()| {
                    self.metrics.exchanges.add(writer.strokes - before);
                })
            }
            // Nothing but silence: a client that waits for us.
            None if test.is_untouched(&cx.device()) => {
                let first = self.config.write_lat_size;
                log_first_writer(client.from, self.config.write_lat_after);
                let qp = test.answers.qp;
                FirstWriter::start(cx, qp, sink, test.peer.remote, first).map(|writer| client.writer = Some(writer))
            }
            None => return,
        };
        match done {
            Ok(()) => cx.set_timer(NEXT_TURN, self.tag | POLL | number),
            Err(why) => self.fail(cx, number, &why),
        }
    }

    /// A work request on one of our queue pairs completed; `false` if it is not ours.
    pub fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> bool {
        if wc.status == WcStatus::Success && self.connection_completion(cx, wc) {
            return true;
        }
        let Some(test) = self.tests.get_mut(&wc.qpn) else { return false };
        if wc.status != WcStatus::Success {
            // An RC queue pair is in error, and its event follows; the others are given up in time.
            tracing::debug!(qp = %wc.qpn, status = %wc.status, "perftest work request failed");
            return true;
        }
        let number = test.client;
        let Some(client) = self.clients.get_mut(&number) else { return true };
        let done = match wc.opcode {
            WcOpcode::Recv => {
                self.metrics.exchanges.inc();
                test.received(cx, wc)
            }
            WcOpcode::Send => test.answers.taken(cx, wc),
            _ => {
                if let Some(writer) = &mut client.writer {
                    writer.completed(wc);
                }
                Ok(())
            }
        };
        if let Err(why) = done {
            self.fail(cx, number, &why);
        }
        true
    }

    /// Something happened to a queue pair; `false` if it is not ours.
    pub fn async_event(&mut self, cx: &mut Context<'_>, event: &AsyncEvent) -> bool {
        let AsyncEvent::QpError { qpn, cause } = *event else { return false };
        let Some(test) = self.tests.get(&qpn) else { return false };
        let number = test.client;
        let Some(client) = self.clients.get_mut(&number) else { return true };
        if cause == QpErrorCause::RetryExceeded
            && let Some(writer) = client.writer.as_mut().filter(|writer| writer.is_unanswered())
        {
            if let Err(why) = writer.begin_again(cx, &test.peer, test.psn) {
                self.fail(cx, number, &why);
            }
            return true;
        }
        // Clients vanish after their last completion: retries that are never answered are how tests end.
        tracing::debug!(client = %client.from, %qpn, %cause, "perftest queue pair in error");
        true
    }

    /// Gives up clients of which nothing came for too long.
    pub fn sweep(&mut self, cx: &mut Context<'_>) {
        for test in self.tests.values_mut() {
            test.answers.look(&cx.device());
            if let Some(client) = self.clients.get_mut(&test.client) {
                client.heard = client.heard.max(test.answers.heard);
                if let Channel::Control(..) = client.channel {
                    self.rendezvous.touch(client.from.ip(), test.answers.heard);
                }
            }
        }
        self.sweep_connections(cx);
        for client in self.clients.values_mut() {
            if let Channel::Control(..) = client.channel {
                client.heard = self.rendezvous.heard(client.from.ip()).map_or(client.heard, |at| at.max(client.heard));
            }
        }
        let now = cx.now();
        let quiet = |client: &Client| now.saturating_since(client.heard) >= self.config.idle_timeout;
        let gone: Vec<u64> = self.clients.iter().filter(|(_, client)| quiet(client)).map(|(n, _)| *n).collect();
        for number in gone {
            if let Some(client) = self.clients.get(&number) {
                self.metrics.give_up(cx.now(), client.from, now.saturating_since(client.heard));
            }
            self.end(cx, number, "it was silent");
        }
    }

    fn nonsense(&mut self, cx: &mut Context<'_>, number: u64, nonsense: &str) {
        if let Some(client) = self.clients.get(&number) {
            self.metrics.nonsense(cx.now(), client.from, nonsense);
        }
        self.end(cx, number, nonsense);
    }

    fn refuse(&mut self, cx: &mut Context<'_>, number: u64, why: &str) {
        if let Some(client) = self.clients.get(&number) {
            let asked = format_args!("queue pair number {} of a test", client.qps.len() + 1);
            self.metrics.refuse(cx.now(), client.from, asked, why);
        }
        self.end(cx, number, why);
    }

    fn fail(&mut self, cx: &mut Context<'_>, number: u64, why: &str) {
        if let Some(client) = self.clients.get(&number) {
            self.metrics.fail(cx.now(), client.from, why);
        }
        self.end(cx, number, why);
    }

    /// Releases all resources of a client.
    fn end(&mut self, cx: &mut Context<'_>, number: u64, why: &str) {
        let Some(client) = self.clients.remove(&number) else { return };
        tracing::debug!(client = %client.from, "perftest client gone: {why}");
        match client.channel {
            Channel::Stream(stream) => {
                if self.streams.remove(&stream).is_some() {
                    cx.stream_close(stream);
                }
            }
            Channel::Control(qp, conn) => {
                if let Some(connection) = self.connections.get_mut(&qp.qpn()) {
                    connection.role = Role::Test;
                    cx.disconnect(conn);
                }
            }
        }
        for qp in client.qps.values() {
            if let Some(test) = self.tests.remove(qp) {
                test.close(&mut cx.device());
            }
        }
        if let Some(writer) = &client.writer {
            writer.close(cx);
        }
        if let Some(sink) = client.sink {
            self.give_back(cx, client.from.ip(), &sink);
        }
    }

    /// Takes a sink back for later clients.
    fn give_back(&mut self, cx: &mut Context<'_>, client: IpAddr, sink: &Sink) {
        let _ = cx.device().dereg_mr(&sink.region);
        self.pds.push(sink.pd);
        if self.sinks.put(client, sink.region.memory().clone()) {
            cx.set_timer(NEXT_TURN, self.tag | CLEAN);
        }
    }
}

/// A test has begun, nothing came from its client for so long, and we write now.
fn log_first_writer(client: impl fmt::Display, silence: Duration) {
    let silence = silence.as_millis();
    tracing::debug!(
        %client,
        "{NAME}: nothing came from the client for {silence} ms after it had begun its test, as ib_write_lat waits for its \
         server, so we write first; for a client that is only slow raise write-lat-after of [service.perftest]"
    );
}

/// Our record for the queue pair that `test` is.
fn answer(client: &Client, sink: &Sink, test: &TestQp) -> Record {
    Record {
        out_reads: client.out_reads,
        qpn: test.answers.qp.qpn(),
        psn: test.psn,
        rkey: sink.region.rkey(),
        vaddr: sink.region.addr(),
        gid: test.peer.path.path.src,
    }
}

/// Whether a stream that begins like this is perftest's; `None` while that cannot be told.
pub fn recognise(first: &[u8]) -> Option<bool> {
    match first {
        [digit, ..] if !digit.is_ascii_digit() => Some(false),
        [_, b'.', ..] => Some(true),
        // The version has one or two digits in front of its point.
        [_, digit, b'.', ..] if digit.is_ascii_digit() => Some(true),
        [] | [_] => None,
        [_, digit] if digit.is_ascii_digit() => None,
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_told_apart() {
        for (first, known) in [
            (&b""[..], None),
            (b"6", None),
            (b"6.", Some(true)),
            (b"6.06\0", Some(true)),
            (b"25", None),
            (b"25.1", Some(true)),
            (b"000", Some(false)),
            (b"0000:", Some(false)),
            (b"GET", Some(false)),
        ] {
            assert_eq!(recognise(first), known, "{}", first.escape_ascii());
            // No stream is claimed by both families.
            assert!(known != Some(true) || crate::services::pingpong::recognise(first) == Some(false));
        }
    }
}
