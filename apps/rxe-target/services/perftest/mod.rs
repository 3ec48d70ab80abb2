//! The server of perftest: ib_send, ib_write, ib_read and ib_atomic, bandwidth and latency.
//!
//! A client does not announce its test, nor type, size and number of its messages. So the server reacts. It creates a queue
//! pair for each one that a record names. That queue pair [detects the type of its
//! peer](rxe_proto::verbs::Device::detect_peer_type) and serves every test: there is memory for WRITEs, READs and atomics, and
//! SENDs are [sent back](echo). Only ib_write_lat waits for its server to begin; it is recognized by its silence.

mod account;
mod client;
mod connections;
mod echo;
mod exchange;
mod first_writer;
mod record;
mod refusals;
mod rendezvous;
mod report;
mod talk;
mod test_qp;
mod write_lat;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rxe_proto::Duration;
use rxe_proto::verbs::{AsyncEvent, ProtectionDomain, QpErrorCause, Qpn, WcOpcode, WcStatus, WorkCompletion};
use rxe_proto::wire::PathMtu;
use rxe_service::{Context, QpMap, StreamId};

use self::account::Account;
use self::client::{Channel, Client, RECORDS_OF_WRITE_LAT};
use self::connections::{CONNECTION, Connection, Datagrams, Role, Shared};
use self::first_writer::FirstWriter;
pub use self::rendezvous::Rendezvous;
use self::test_qp::TestQp;
use super::metrics::ServiceMetrics;
use crate::config::PerftestConfig;

/// The name that users select the service by.
pub const NAME: &str = "perftest";
/// Timers with this bit poll the memory of an ib_write_lat client; those without detect one by its silence.
const POLL: u64 = 1 << 48;
/// The next iteration of the worker's loop.
const NEXT_TURN: Duration = Duration::from_nanos(1);

/// The perftest clients of one worker.
pub struct Perftest {
    config: PerftestConfig,
    /// Marks our timers and path requests.
    tag: u64,
    /// Unused protection domains.
    pds: Vec<ProtectionDomain>,
    account: Account,
    clients: HashMap<u64, Client>,
    streams: HashMap<StreamId, u64>,
    tests: QpMap<TestQp>,
    /// Connections and datagram queue pairs of clients that use the connection manager, and the memory behind those.
    connections: QpMap<Connection>,
    datagrams: QpMap<Datagrams>,
    /// Datagram queue pairs to which nothing has come yet, the oldest first, and some that are gone.
    unproven: VecDeque<Qpn>,
    shared: HashMap<IpAddr, Shared>,
    rendezvous: Arc<Rendezvous>,
    next: u64,
    metrics: ServiceMetrics,
}

impl Perftest {
    /// Without clients. `tag` is a bit above our numbers; all workers share one `rendezvous`.
    pub fn new(config: PerftestConfig, tag: u64, rendezvous: Arc<Rendezvous>, metrics: ServiceMetrics) -> Perftest {
        Perftest {
            account: Account::default(),
            unproven: VecDeque::new(),
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

    /// Opens the account of the clients.
    pub fn start(&mut self, cx: &mut Context<'_>) {
        self.account = Account::open(cx, self.config.budget);
    }

    /// Handles a new stream that begins like perftest's.
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

    /// Handles data of a stream; `false` if it is not ours.
    pub fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) -> bool {
        let Some(&number) = self.streams.get(&stream) else { return false };
        self.hear(cx, number, data);
        true
    }

    /// Handles the end of a stream; `false` if it is not ours.
    pub fn stream_closed(&mut self, cx: &mut Context<'_>, stream: StreamId) -> bool {
        let Some(number) = self.streams.remove(&stream) else { return false };
        self.end(cx, number, "it closed its stream");
        true
    }

    /// Handles a timer that had our tag, which the caller has removed.
    pub fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        if token & CONNECTION != 0 {
            // The low 24 bits are the queue pair.
            self.look_at_connection(cx, Qpn::new(token as u32));
            return;
        }
        let number = token & !POLL;
        let Some(client) = self.clients.get_mut(&number) else { return };
        let test = client.qps.values().next().and_then(|qp| self.tests.get(qp));
        let (Some(test), Some(sink)) = (test, &client.sink) else { return };
        let Some(writer) = &mut client.writer else {
            self.silent(cx, number);
            return;
        };
        let before = writer.strokes;
        let done = writer.poll(cx, Some((&test.peer, test.psn)), sink);
        self.metrics.exchanges.add(writer.strokes - before);
        let exhausted = writer.is_exhausted;
        match done {
            Ok(()) if exhausted => {
                self.turn_away(cx, number, &refusals::write_lat_beyond_memory(self.config.max_message));
            }
            Ok(()) => cx.set_timer(NEXT_TURN, self.tag | POLL | number),
            Err(why) => self.fail(cx, number, &why),
        }
    }

    /// A client has begun its test long ago. If it has sent nothing since, it waits for our first message.
    fn silent(&mut self, cx: &mut Context<'_>, number: u64) {
        let Some(client) = self.clients.get(&number) else { return };
        let untouched = self.is_untouched(cx, client);
        let Some(client) = self.clients.get_mut(&number) else { return };
        let test = client.qps.values().next().and_then(|qp| self.tests.get(qp));
        let (Some(test), Some(sink)) = (test, &client.sink) else { return };
        let (qp, remote, silence) = (test.answers.qp, test.peer.remote, self.config.write_lat_after);
        match (untouched, client.qps.len()) {
            // It lends no memory for WRITEs, so it tests SENDs.
            (true, _) if remote.rkey == 0 => {
                // It may only be slow, so it is kept until it has been idle for too long.
                let (client, why) = (client.from, refusals::reversed_sends(silence));
                if self.metrics.admits(cx.now()) {
                    tracing::warn!(%client, "{NAME}: {why}");
                }
            }
            (true, 1) => {
                log_first_writer(client.from, silence);
                let (first, from) = (self.config.write_lat_size, client.from.ip());
                match FirstWriter::start(cx, &self.account, from, qp, sink, remote, first) {
                    Ok(writer) => {
                        client.writer = Some(writer);
                        cx.set_timer(NEXT_TURN, self.tag | POLL | number);
                    }
                    Err(why) => self.fail(cx, number, &why),
                }
            }
            (false, 1) if client.records == RECORDS_OF_WRITE_LAT && remote.rkey != 0 => {
                // ib_write_lat --reversed writes once and waits; other tests go on, or have ended.
                let psn = cx.device().query_qp(qp).ok().map(|info| info.expected_psn);
                if psn.is_some() && client.stopped_at == psn {
                    self.turn_away(cx, number, &refusals::reversed_write_lat());
                } else {
                    client.stopped_at = psn;
                    cx.set_timer(silence, self.tag | number);
                }
            }
            _ => {}
        }
    }

    /// Whether a client with queue pairs has sent nothing to any of them.
    fn is_untouched(&self, cx: &mut Context<'_>, client: &Client) -> bool {
        let mut tests = client.qps.values().filter_map(|qp| self.tests.get(qp));
        !client.qps.is_empty() && tests.all(|test| test.is_untouched(&cx.device()))
    }

    /// Handles a completion; `false` if its queue pair is not ours.
    pub fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> bool {
        if wc.status == WcStatus::Success && self.connection_completion(cx, wc) {
            return true;
        }
        let Some(test) = self.tests.get_mut(&wc.qpn) else { return false };
        if wc.status != WcStatus::Success {
            // An RC queue pair is in ERROR, and its event follows; the idle timeout ends the clients of others.
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
                    writer.completed(cx.now(), wc);
                }
                Ok(())
            }
        };
        if let Err(why) = done {
            self.fail(cx, number, &why);
        }
        true
    }

    /// Handles an asynchronous event; `false` if its queue pair is not ours.
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
        let silence = self.config.write_lat_after;
        if let Some(why) = client.writer.as_ref().and_then(|writer| writer.refusal(cause, silence)) {
            self.turn_away(cx, number, &why);
            return true;
        }
        if let Some(why) = refusals::beyond_memory(cause, self.config.max_message) {
            self.metrics.refuse(cx.now(), client.from, "a message", &why);
            self.end(cx, number, &why);
            return true;
        }
        // Clients vanish after their last completion, so tests end with unanswered retries.
        tracing::debug!(client = %client.from, %qpn, %cause, "perftest queue pair in error");
        true
    }

    /// Ends clients that are idle for longer than the timeout.
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

    /// Refuses the test of a client.
    fn turn_away(&mut self, cx: &mut Context<'_>, number: u64, why: &str) {
        if let Some(client) = self.clients.get(&number) {
            self.metrics.refuse(cx.now(), client.from, "a test", why);
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
                test.close(cx);
            }
        }
        if let Some(writer) = client.writer {
            writer.close(cx);
        }
        if let Some(sink) = client.sink {
            self.pds.push(sink.close(cx));
        }
    }
}

/// Logs that we write first, as a client has sent nothing for the time `silence` since its test began.
fn log_first_writer(client: impl fmt::Display, silence: Duration) {
    let silence = silence.as_millis();
    tracing::debug!(
        %client,
        "{NAME}: nothing came from the client for {silence} ms after it had begun its test, as ib_write_lat waits for its \
         server, so we write first; for a client that is only slow raise write-lat-after of [service.perftest]"
    );
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
