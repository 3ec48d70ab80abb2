//! One TCP port, two families of clients: the pingpongs and perftest. The first bytes of a stream tell them apart.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use rxe_proto::cm::{ConnId, ConnectRequest, SidrRequest};
use rxe_proto::verbs::{AsyncEvent, Qpn, WorkCompletion};
use rxe_proto::wire::cm::{PortSpace, SidrStatus};
use rxe_proto::{Duration, Instant};
use rxe_service::{
    Context, DatagramDecision, Decision, EndReason, Listen, PeerPath, Service, ServiceFactory, StreamId,
};

use super::idle::SWEEP;
use super::metrics::{MetricsRegistry, ServiceMetrics};
use super::perftest::{self, Perftest, Rendezvous};
use super::pingpong::{self, Pingpong};
use crate::config::{Config, PerftestConfig, PingpongConfig};

/// The port.
pub const PORT: u16 = 18515;
/// Mark timers and questions of the families; their numbers are below.
const PINGPONG: u64 = 1 << 62;
const PERFTEST: u64 = 1 << 61;
/// The name of the port itself, which has what is of neither family.
const NAME: &str = "port-18515";
/// The names of both families.
const BOTH: &str = "pingpong,perftest";
/// Our own timer.
const SWEEP_TOKEN: u64 = u64::MAX;

/// A stream that has not said enough yet.
struct Greeting {
    local: SocketAddr,
    from: SocketAddr,
    first: Vec<u8>,
    since: Instant,
}

/// The family of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Pingpong,
    Perftest,
    /// Neither of both.
    Unknown,
}

/// The port on one worker.
struct Port18515 {
    greetings: HashMap<StreamId, Greeting>,
    pingpong: Option<Pingpong>,
    perftest: Option<Perftest>,
    /// How long a client may take for its first bytes: what the more patient family allows.
    patience: Duration,
    /// Counts clients of neither family.
    metrics: ServiceMetrics,
}

/// The family of a stream that begins with `first`; `None` while that cannot be told.
fn recognise(first: &[u8], pingpong: bool, perftest: bool) -> Option<Family> {
    let pingpong = if pingpong { pingpong::recognise(first) } else { Some(false) };
    let perftest = if perftest { perftest::recognise(first) } else { Some(false) };
    match (pingpong, perftest) {
        (Some(true), _) => Some(Family::Pingpong),
        (_, Some(true)) => Some(Family::Perftest),
        (Some(false), Some(false)) => Some(Family::Unknown),
        _ => None,
    }
}

impl Port18515 {
    /// Gives up streams that say nothing.
    fn sweep_greetings(&mut self, cx: &mut Context<'_>) {
        let (now, limit) = (cx.now(), self.patience);
        let mute = self.greetings.extract_if(|_, greeting| now.saturating_since(greeting.since) >= limit);
        for (stream, greeting) in mute {
            let (said, seconds) = (greeting.first.len(), limit.as_millis() / 1000);
            let why = format_args!(
                "it has said {said} bytes in {seconds} s, too few to tell a pingpong from perftest, which both say more at \
                 once: look what program it is, or for a firewall between"
            );
            self.metrics.give_up_as(now, greeting.from, why);
            cx.stream_close(stream);
        }
    }

    /// The family of a stream is known.
    fn greet(&mut self, cx: &mut Context<'_>, stream: StreamId, family: Family, greeting: &Greeting) {
        let Greeting { local, from, first, .. } = greeting;
        match (family, &mut self.pingpong, &mut self.perftest) {
            (Family::Pingpong, Some(pingpong), _) => {
                pingpong.stream_opened(cx, stream, *from);
                pingpong.stream_data(cx, stream, first);
            }
            (Family::Perftest, _, Some(perftest)) => {
                perftest.stream_opened(cx, stream, *local, *from);
                perftest.stream_data(cx, stream, first);
            }
            _ => {
                let shown = first.get(..first.len().min(16)).unwrap_or_default().escape_ascii();
                self.metrics.nonsense(
                    cx.now(),
                    from,
                    format_args!("one that begins with \"{shown}\" is none we serve"),
                );
                cx.stream_close(stream);
            }
        }
    }
}

impl Service for Port18515 {
    fn start(&mut self, cx: &mut Context<'_>) {
        if let Some(pingpong) = &mut self.pingpong {
            pingpong.start(cx);
        }
        if let Some(perftest) = &mut self.perftest {
            perftest.start(cx);
        }
        cx.set_timer(SWEEP, SWEEP_TOKEN);
    }

    fn stream_opened(&mut self, cx: &mut Context<'_>, stream: StreamId, local: SocketAddr, from: SocketAddr) {
        self.greetings.insert(stream, Greeting { local, from, first: Vec::new(), since: cx.now() });
    }

    fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) {
        if let Some(greeting) = self.greetings.get_mut(&stream) {
            greeting.first.extend_from_slice(data);
            let family = recognise(&greeting.first, self.pingpong.is_some(), self.perftest.is_some());
            if let Some(family) = family
                && let Some(greeting) = self.greetings.remove(&stream)
            {
                self.greet(cx, stream, family, &greeting);
            }
            return;
        }
        let taken = self.perftest.as_mut().is_some_and(|perftest| perftest.stream_data(cx, stream, data));
        if !taken && let Some(pingpong) = &mut self.pingpong {
            pingpong.stream_data(cx, stream, data);
        }
    }

    fn stream_closed(&mut self, cx: &mut Context<'_>, stream: StreamId, _reset: bool) {
        if self.greetings.remove(&stream).is_some() {
            return;
        }
        let taken = self.perftest.as_mut().is_some_and(|perftest| perftest.stream_closed(cx, stream));
        if !taken && let Some(pingpong) = &mut self.pingpong {
            pingpong.stream_closed(cx, stream);
        }
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        match &mut self.perftest {
            Some(perftest) => perftest.connect_request(cx, request),
            None => Decision::refuse("perftest is not served here"),
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        if let Some(perftest) = &mut self.perftest {
            perftest.connected(cx, qp);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        if let Some(perftest) = &mut self.perftest {
            perftest.disconnected(cx, qp, reason);
        }
    }

    fn datagram_request(&mut self, cx: &mut Context<'_>, request: &SidrRequest) -> DatagramDecision {
        match &mut self.perftest {
            Some(perftest) => perftest.datagram_request(cx, request),
            None => DatagramDecision::Refuse { status: SidrStatus::ServiceIdNotSupported },
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let taken = self.perftest.as_mut().is_some_and(|perftest| perftest.completion(cx, wc));
        if !taken && let Some(pingpong) = &mut self.pingpong {
            pingpong.completion(cx, wc);
        }
    }

    fn async_event(&mut self, cx: &mut Context<'_>, event: &AsyncEvent) {
        let taken = self.perftest.as_mut().is_some_and(|perftest| perftest.async_event(cx, event));
        if !taken && let Some(pingpong) = &mut self.pingpong {
            pingpong.async_event(cx, event);
        }
    }

    fn path_resolved(&mut self, cx: &mut Context<'_>, token: u64, path: Option<&PeerPath>) {
        match (&mut self.pingpong, &mut self.perftest) {
            (Some(pingpong), _) if token & PINGPONG != 0 => pingpong.path_resolved(cx, token & !PINGPONG, path),
            (_, Some(perftest)) => perftest.path_resolved(cx, token & !PERFTEST, path),
            _ => {}
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        let sweep = token == SWEEP_TOKEN;
        match (&mut self.pingpong, &mut self.perftest) {
            _ if sweep => {}
            (Some(pingpong), _) if token & PINGPONG != 0 => pingpong.timer(cx, token & !PINGPONG),
            (_, Some(perftest)) => perftest.timer(cx, token & !PERFTEST),
            _ => {}
        }
        if sweep {
            cx.set_timer(SWEEP, SWEEP_TOKEN);
            self.sweep_greetings(cx);
            if let Some(pingpong) = &mut self.pingpong {
                pingpong.sweep(cx);
            }
            if let Some(perftest) = &mut self.perftest {
                perftest.sweep(cx);
            }
        }
    }
}

/// Makes the instances of the port.
struct Port18515Factory {
    pingpong: Option<PingpongConfig>,
    perftest: Option<PerftestConfig>,
    rendezvous: Arc<Rendezvous>,
    registry: MetricsRegistry,
}

impl ServiceFactory for Port18515Factory {
    fn name(&self) -> &'static str {
        match (&self.pingpong, &self.perftest) {
            (Some(_), Some(_)) => BOTH,
            (_, Some(_)) => perftest::NAME,
            _ => pingpong::NAME,
        }
    }

    fn listen(&self) -> Vec<Listen> {
        let mut listens = vec![Listen::Tcp { port: PORT }];
        if self.perftest.is_some() {
            listens.push(Listen::cm(PORT));
            listens.push(Listen::Cm { space: PortSpace::Udp, port: PORT, claims: |_| true });
        }
        listens
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        let metrics = self.registry.open(NAME);
        let given = [self.pingpong.as_ref().map(|c| c.idle_timeout), self.perftest.as_ref().map(|c| c.idle_timeout)];
        let patience = given.into_iter().flatten().max().unwrap_or_default();
        let pingpong = self.pingpong.clone().map(|config| {
            let metrics = self.registry.open(pingpong::NAME);
            Pingpong::new(config, PINGPONG, metrics)
        });
        let perftest = self.perftest.clone().map(|config| {
            let metrics = self.registry.open(perftest::NAME);
            Perftest::new(config, PERFTEST, Arc::clone(&self.rendezvous), metrics)
        });
        Box::new(Port18515 { greetings: HashMap::new(), pingpong, perftest, patience, metrics })
    }
}

/// The factory of the families that `config` chooses; none when it chooses none.
pub fn factory(config: &Config, registry: &MetricsRegistry) -> Option<Box<dyn ServiceFactory>> {
    let chosen = |name: &str| config.services.iter().any(|service| service == name);
    let pingpong = chosen(pingpong::NAME).then(|| config.pingpong.clone());
    let perftest = chosen(perftest::NAME).then(|| config.perftest.clone());
    if pingpong.is_none() && perftest.is_none() {
        return None;
    }
    Some(Box::new(Port18515Factory { pingpong, perftest, rendezvous: Arc::default(), registry: registry.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::floods;

    #[test]
    fn streams_are_told_apart_by_their_first_bytes() {
        let pingpong = b"0000:000011:";
        for (first, both, alone) in [
            (&b""[..], None, None),
            (b"6", None, None),
            (b"6.06\0", Some(Family::Perftest), Some(Family::Unknown)),
            (b"25.10\0", Some(Family::Perftest), Some(Family::Unknown)),
            (b"0000", None, None),
            (pingpong, Some(Family::Pingpong), Some(Family::Pingpong)),
            (b"00000", Some(Family::Unknown), Some(Family::Unknown)),
            (b"GET / HTTP", Some(Family::Unknown), Some(Family::Unknown)),
        ] {
            assert_eq!(recognise(first, true, true), both, "{}", first.escape_ascii());
            assert_eq!(recognise(first, true, false), alone, "{} without perftest", first.escape_ascii());
        }
        assert_eq!(recognise(pingpong, false, true), Some(Family::Unknown));
    }

    #[test]
    fn sidr_requests_without_datagrams_leave_room_for_other_clients() {
        let perftest = PerftestConfig { idle_timeout: Duration::from_secs(60), ..PerftestConfig::default() };
        let registry = MetricsRegistry::default();
        let factory =
            Port18515Factory { pingpong: None, perftest: Some(perftest), rendezvous: Arc::default(), registry };
        let mut network = floods::network(&factory);
        let before = floods::held(&network);
        // More than the completion queue has room for.
        floods::flood(&mut network, 2..12, PORT, 250);
        assert_eq!(floods::ask(&mut network, 200, PORT, 2), 2, "another host is served");
        let (qps, keys, _) = floods::held(&network);
        assert!(qps <= 512 && keys - before.1 <= qps, "{qps} queue pairs, {keys} keys");
        network.advance(Duration::from_secs(70));
        assert_eq!(floods::held(&network), before);
    }

    #[test]
    fn the_family_does_not_depend_on_the_pieces_of_a_stream() {
        let inputs = [&b"0000:000011:6b93be"[..], b"6.06\0\0", b"25.10\0", b"GET / HTTP/1.1"];
        rxe_testkit::mutate::check_mutations("port-18515", &inputs, 8_000, |input| {
            for (pingpong, perftest) in [(true, true), (true, false), (false, true)] {
                let mut known = None;
                for end in 0..=input.len().min(32) {
                    let family = recognise(&input[..end], pingpong, perftest);
                    assert!(known.is_none() || family == known, "{}", input[..end].escape_ascii());
                    known = family;
                }
                // No client has to say more than a version.
                assert!(known.is_some() || input.len() < 5);
            }
        });
    }
}
