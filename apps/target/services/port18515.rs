//! One TCP port, two families of clients: the pingpongs and perftest. The first bytes of a stream tell them apart.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use rxe_dpdk::service::{Context, Listen, PeerPath, Service, ServiceFactory, StreamId};
use rxe_proto::transport::{AsyncEvent, WorkCompletion};
use rxe_proto::{Duration, Instant};

use super::pingpong::{self, Pingpong};
use super::tally::{Book, Tally};
use crate::config::PingpongConfig;

/// The port.
pub const PORT: u16 = 18515;
/// How often we look for clients that say nothing any more.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a client may take for its first bytes.
const GREETING: Duration = Duration::from_secs(30);
/// Marks timers and questions of the pingpongs; numbers are below it.
const PINGPONG: u64 = 1 << 62;
/// Our own timer.
const SWEEP_TOKEN: u64 = u64::MAX;

/// A stream that has not said enough yet.
struct Greeting {
    from: SocketAddr,
    first: Vec<u8>,
    since: Instant,
}

/// Who comes here.
enum Family {
    Pingpong,
    /// Nobody we know.
    Stranger,
}

/// The port on one worker.
struct Port18515 {
    greetings: HashMap<StreamId, Greeting>,
    pingpong: Option<Pingpong>,
    /// Counts what is nobody's.
    tally: Arc<Tally>,
}

impl Port18515 {
    /// Whose stream begins with `first`; `None` while that cannot be told.
    fn recognise(&self, first: &[u8]) -> Option<Family> {
        if self.pingpong.is_some() {
            match pingpong::recognise(first) {
                Some(true) => return Some(Family::Pingpong),
                None => return None,
                Some(false) => {}
            }
        }
        Some(Family::Stranger)
    }
}

impl Service for Port18515 {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.set_timer(SWEEP, SWEEP_TOKEN);
    }

    fn stream_opened(&mut self, cx: &mut Context<'_>, stream: StreamId, _local: SocketAddr, from: SocketAddr) {
        self.greetings.insert(stream, Greeting { from, first: Vec::new(), since: cx.now() });
    }

    fn stream_data(&mut self, cx: &mut Context<'_>, stream: StreamId, data: &[u8]) {
        let Some(greeting) = self.greetings.get_mut(&stream) else {
            if let Some(pingpong) = &mut self.pingpong {
                pingpong.stream_data(cx, stream, data);
            }
            return;
        };
        greeting.first.extend_from_slice(data);
        let first = std::mem::take(&mut greeting.first);
        let from = greeting.from;
        match self.recognise(&first) {
            None => {
                if let Some(greeting) = self.greetings.get_mut(&stream) {
                    greeting.first = first;
                }
                return;
            }
            Some(Family::Pingpong) => {
                if let Some(pingpong) = &mut self.pingpong {
                    pingpong.stream_opened(cx, stream, from);
                    pingpong.stream_data(cx, stream, &first);
                }
            }
            Some(Family::Stranger) => {
                self.tally.malformed.inc();
                let shown = first.get(..first.len().min(16)).unwrap_or_default().escape_ascii();
                tracing::warn!(client = %from, "port {PORT}: a client that begins with \"{shown}\" is none we serve");
                cx.stream_close(stream);
            }
        }
        self.greetings.remove(&stream);
    }

    fn stream_closed(&mut self, cx: &mut Context<'_>, stream: StreamId, _reset: bool) {
        if self.greetings.remove(&stream).is_none()
            && let Some(pingpong) = &mut self.pingpong
        {
            pingpong.stream_closed(cx, stream);
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        if let Some(pingpong) = &mut self.pingpong {
            pingpong.completion(cx, wc);
        }
    }

    fn async_event(&mut self, cx: &mut Context<'_>, event: &AsyncEvent) {
        if let Some(pingpong) = &mut self.pingpong {
            pingpong.async_event(cx, event);
        }
    }

    fn path_resolved(&mut self, cx: &mut Context<'_>, token: u64, path: Option<&PeerPath>) {
        if let Some(pingpong) = &mut self.pingpong {
            pingpong.path_resolved(cx, token & !PINGPONG, path);
        }
    }

    fn timer(&mut self, cx: &mut Context<'_>, token: u64) {
        if token != SWEEP_TOKEN {
            if let Some(pingpong) = &mut self.pingpong {
                pingpong.timer(cx, token & !PINGPONG);
            }
            return;
        }
        cx.set_timer(SWEEP, SWEEP_TOKEN);
        let now = cx.now();
        let mute = self.greetings.iter().filter(|(_, greeting)| now.saturating_since(greeting.since) >= GREETING);
        let mute: Vec<StreamId> = mute.map(|(stream, _)| *stream).collect();
        for stream in mute {
            self.greetings.remove(&stream);
            self.tally.idle_ended.inc();
            cx.stream_close(stream);
        }
        if let Some(pingpong) = &mut self.pingpong {
            pingpong.sweep(cx);
        }
    }
}

/// Makes the instances of the port.
struct Port18515Factory {
    pingpong: Option<PingpongConfig>,
    book: Book,
}

impl ServiceFactory for Port18515Factory {
    fn name(&self) -> &'static str {
        pingpong::NAME
    }

    fn listen(&self) -> Vec<Listen> {
        vec![Listen::Tcp { port: PORT }]
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        let tally = self.book.open(pingpong::NAME);
        let pingpong = self.pingpong.clone().map(|config| Pingpong::new(config, PINGPONG, Arc::clone(&tally)));
        Box::new(Port18515 { greetings: HashMap::new(), pingpong, tally })
    }
}

/// The factory of the families that are wanted.
pub fn factory(pingpong: Option<PingpongConfig>, book: &Book) -> Box<dyn ServiceFactory> {
    Box::new(Port18515Factory { pingpong, book: book.clone() })
}
