//! The peer of `ucmatose`: sends as many messages as the client expects, takes as many, and ends the connection.
//!
//! How many those are the client says nowhere. But it posts all its receives before it connects, and sends nothing
//! before it has got all our messages. So we send one at a time, the next when the last was acknowledged, until the
//! client has no receive left (RNR NAK): what was acknowledged before is the number. Or its own messages begin, and
//! what was sent until then is the number.

use std::net::SocketAddr;

use rxe_proto::Duration;
use rxe_proto::cm::{ConnId, ConnectRequest};
use rxe_proto::verbs::{
    Access, Device, MemoryRegion, Payload, PostError, QpCaps, Qpn, QueuePair, Rc, RecvWr, Sge, WcOpcode, WcStatus,
    WorkCompletion, WorkRequest,
};
use rxe_proto::wire::cm::RejReason;
use rxe_service::{Accept, Context, Decision, EndReason, Listen, QpMap, Service};

use super::factory::Factory;
use super::idle::Idle;
use super::metrics::{MetricsRegistry, ServiceMetrics, caller};
use super::port7471::{Caller, PORT};

/// The name that users select the service by.
pub const NAME: &str = "ucmatose";
/// The longest message that a client may send.
const MAX_MESSAGE: usize = 1 << 20;
/// Receives posted at any time; the client waits when it is faster.
const RECEIVES: u32 = 64;
/// How often we look whether a client has run out of receives, and for the silent.
const LOOK: Duration = Duration::from_millis(20);
/// Tries without end: that a client has no receive left is what we want to see.
const RNR_RETRY: u8 = 7;
const CAPS: QpCaps =
    QpCaps { max_send_wr: 1, max_recv_wr: RECEIVES, max_send_sge: 0, max_recv_sge: 1, max_inline_data: 1 };

/// Messages on one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Exchange {
    sent: u64,
    acked: u64,
    received: u64,
}

/// The next step of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// A message of ours.
    Send,
    /// Something from the client.
    Wait,
    /// The end: each side has got all.
    End,
}

/// The client has sent more than it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Nonsense;

impl Exchange {
    /// The next step. `starved`: the client has no receive for the message under way.
    fn next(&self, starved: bool) -> Result<Next, Nonsense> {
        if self.received > self.sent {
            return Err(Nonsense);
        }
        let under_way = self.sent > self.acked;
        Ok(if under_way {
            // Also if it expects none at all. One that is not acknowledged yet and not refused may be the last.
            if starved && self.received == self.acked { Next::End } else { Next::Wait }
        } else if self.received == 0 {
            Next::Send
        } else if self.received == self.sent {
            Next::End
        } else {
            Next::Wait
        })
    }
}

/// A client.
struct Client {
    conn: ConnId,
    qp: QueuePair<Rc>,
    from: SocketAddr,
    exchange: Exchange,
    /// The connection is up.
    up: bool,
    /// We asked for the end of the connection.
    ending: bool,
}

/// The service on one lcore.
struct Ucmatose {
    clients: QpMap<Client>,
    /// The buffer of all messages, which are not read.
    sink: Option<MemoryRegion>,
    idle: Idle<Qpn>,
    /// A timer is set.
    looking: bool,
    metrics: ServiceMetrics,
}

/// Posts a receive.
fn post_recv(dev: &mut Device<'_>, qp: QueuePair<Rc>, sink: &MemoryRegion) -> Result<(), PostError> {
    let sge = Sge { addr: sink.addr(), length: MAX_MESSAGE as u32, lkey: sink.lkey() };
    dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[sge] })
}

impl Ucmatose {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<QueuePair<Rc>, String> {
        let sink = match &self.sink {
            Some(sink) => sink,
            None => {
                let memory = cx.alloc_memory(MAX_MESSAGE).map_err(|error| error.to_string())?;
                let pd = cx.device().alloc_pd();
                match cx.device().reg_mr(pd, memory, Access::LOCAL_WRITE) {
                    Ok(region) => self.sink.insert(region),
                    Err(error) => {
                        let _ = cx.device().dealloc_pd(pd);
                        return Err(error.to_string());
                    }
                }
            }
        };
        let attr = cx.qp_attr().with_caps(CAPS);
        let mut dev = cx.device();
        let qp = dev.create_qp_in_init(sink.pd().into(), attr, Access::empty()).map_err(|error| error.to_string())?;
        for _ in 0..RECEIVES {
            if let Err(error) = post_recv(&mut dev, qp, sink) {
                let _ = dev.destroy_qp(qp);
                return Err(error.to_string());
            }
        }
        Ok(qp)
    }

    /// Does what is next for a client.
    fn go_on(&mut self, cx: &mut Context<'_>, qp: Qpn) {
        let Some(client) = self.clients.get_mut(&qp) else { return };
        if client.ending || !client.up {
            return;
        }
        let starved = cx.device().query_qp(client.qp).is_ok_and(|info| info.peer_not_ready);
        match client.exchange.next(starved) {
            Ok(Next::Wait) => return,
            Ok(Next::Send) => {
                match cx.device().post_send(client.qp, WorkRequest::send(Payload::Inline(&[0])).signaled()) {
                    Ok(()) => {
                        client.exchange.sent += 1;
                        return;
                    }
                    Err(error) => self.metrics.fail(cx.now(), client.from, error),
                }
            }
            Ok(Next::End) => {
                self.metrics.exchanges.inc();
                tracing::debug!(client = %client.from, messages = client.exchange.received, "ucmatose has all it expects");
            }
            Err(Nonsense) => {
                let Exchange { received, sent, .. } = client.exchange;
                self.metrics.nonsense(
                    cx.now(),
                    client.from,
                    format_args!("it sent {received} messages and got {sent}"),
                );
            }
        }
        self.end(cx, qp);
    }

    /// Ends a connection.
    fn end(&mut self, cx: &mut Context<'_>, qp: Qpn) {
        self.idle.forget(qp);
        if let Some(client) = self.clients.get_mut(&qp) {
            client.ending = true;
            cx.disconnect(client.conn);
        }
    }
}

impl Service for Ucmatose {
    fn connect_request(&mut self, cx: &mut Context<'_>, request: &ConnectRequest) -> Decision {
        match self.open(cx) {
            Ok(qp) => {
                self.metrics.connections.inc();
                let (conn, from) = (request.conn, caller(request));
                let client = Client { conn, qp, from, exchange: Exchange::default(), up: false, ending: false };
                self.clients.insert(qp.qpn(), client);
                self.idle.heard(qp.qpn(), cx.now());
                if !self.looking {
                    self.looking = true;
                    cx.set_timer(LOOK, 0);
                }
                Decision::Accept(Accept {
                    responder_resources: 1,
                    initiator_depth: 1,
                    rnr_retry: RNR_RETRY,
                    ..Accept::new(qp)
                })
            }
            Err(error) => self.metrics.reject(cx.now(), request, RejReason::NoResources, error),
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn) {
        if let Some(client) = self.clients.get_mut(&qp) {
            client.up = true;
            self.idle.heard(qp, cx.now());
            self.go_on(cx, qp);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, reason: EndReason) {
        self.idle.forget(qp);
        if let Some(client) = self.clients.remove(&qp) {
            self.metrics.gone(cx.now(), client.from, reason);
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        let (Some(client), Some(sink)) = (self.clients.get_mut(&wc.qpn), &self.sink) else { return };
        if wc.status != WcStatus::Success || client.ending {
            // Of a failed one the queue pair is in error, and the runtime ends the connection.
            return;
        }
        match wc.opcode {
            WcOpcode::Send => client.exchange.acked += 1,
            WcOpcode::Recv => {
                client.exchange.received += 1;
                if let Err(error) = post_recv(&mut cx.device(), client.qp, sink) {
                    self.metrics.fail(cx.now(), client.from, error);
                    return self.end(cx, wc.qpn);
                }
            }
            _ => return,
        }
        self.idle.heard(wc.qpn, cx.now());
        self.go_on(cx, wc.qpn);
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        let who = |qp| self.clients.get(&qp).map(|client| client.from);
        for qp in self.idle.give_up(cx.now(), &self.metrics, who) {
            self.end(cx, qp);
        }
        // Nothing tells us when a client refuses a message for want of a receive.
        let under_way = |client: &Client| client.exchange.sent > client.exchange.acked && !client.ending;
        let look: Vec<Qpn> = self.clients.iter().filter(|(_, c)| under_way(c)).map(|(qp, _)| *qp).collect();
        for qp in look {
            self.go_on(cx, qp);
        }
        self.looking = !self.clients.is_empty();
        if self.looking {
            cx.set_timer(LOOK, 0);
        }
    }
}

/// Makes the service, which gives clients up that are silent for `idle_timeout`.
pub fn factory(idle_timeout: Duration, registry: &MetricsRegistry) -> Factory {
    let listens = vec![Listen::cm_if(PORT, |request| Caller::of(request) == Caller::Ucmatose)];
    let create = move |metrics| -> Box<dyn Service> {
        let idle = Idle::new(idle_timeout);
        Box::new(Ucmatose { clients: QpMap::default(), sink: None, idle, looking: false, metrics })
    };
    Factory::new(NAME, listens, create, registry)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a client that expects `count` messages. `late`: its messages overtake the ACK of our last one.
    fn play(count: u64, late: bool) -> Exchange {
        let mut exchange = Exchange::default();
        while exchange.acked < count {
            assert_eq!(exchange.next(false), Ok(Next::Send), "{exchange:?}");
            exchange.sent += 1;
            assert_eq!(exchange.next(false), Ok(Next::Wait), "{exchange:?}");
            if late && exchange.sent == count {
                break;
            }
            exchange.acked += 1;
        }
        if !late {
            assert_eq!(exchange.next(false), Ok(Next::Send), "{exchange:?}");
            exchange.sent += 1;
        }
        // Between two tries of a refused message it is not known to be refused.
        for received in 1..=count {
            exchange.received = received;
            let last = received == count;
            assert_eq!(exchange.next(false), Ok(Next::Wait), "{exchange:?}");
            if !late {
                assert_eq!(exchange.next(true), Ok(if last { Next::End } else { Next::Wait }), "{exchange:?}");
            }
        }
        if late {
            exchange.acked += 1;
        }
        exchange
    }

    #[test]
    fn as_many_as_the_client_expects() {
        for count in [1, 2, 10] {
            assert_eq!(play(count, false).next(true), Ok(Next::End));
            assert_eq!(play(count, true).next(false), Ok(Next::End));
        }
        // None at all: the first is refused.
        assert_eq!(play(0, false).next(true), Ok(Next::End));
    }

    #[test]
    fn once_the_client_sends_we_do_not() {
        let mut exchange = Exchange { sent: 3, acked: 3, received: 1 };
        assert_eq!(exchange.next(false), Ok(Next::Wait));
        exchange.received = 3;
        assert_eq!(exchange.next(false), Ok(Next::End));
        exchange.received = 4;
        assert_eq!(exchange.next(false), Err(Nonsense));
    }
}
