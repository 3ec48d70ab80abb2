//! What runs on top of the adapter: services.
//!
//! A [`ServiceFactory`] says where a service listens and makes one [`Service`] per worker (lcore). An instance is
//! touched by its own lcore alone, so it needs no locks: the runtime calls it when a connection is asked for, comes up
//! or goes, when a work request completes, when a TCP stream has something to say and when a timer fires. Every call
//! brings a [`Context`], whose [`device`](Context::device) has the verbs. A call must not block and should be short:
//! packets wait meanwhile.
//!
//! ```text
//! REQ ──> Service::connect_request ──> Decision::Accept{qp}   (receives are posted, the QP is still in Init)
//!          runtime: QP to RTR and RTS, REP
//! RTU or first packet ──> Service::connected
//! completions ──> Service::completion
//! DREQ, dead QP, shutdown ──> Service::disconnected, then the runtime destroys the QP
//! ```
//!
//! The other way round, a service connects out:
//!
//! ```text
//! Context::connect ──> path, REQ                             (the QP is in Init, receives are posted)
//! REP ──> runtime: QP to RTR and RTS ──> Service::connect_reply ──> RTU
//!          ──> Service::connected, and on as above
//! REJ, no answer, no path ──> Service::disconnected, then the runtime destroys the QP
//! ```
//!
//! Queue pairs whose peers are found by other means than the connection manager (a TCP stream, multicast) are the
//! service's own from [`Device::create_qp`](rxe_proto::verbs::Device::create_qp) to [`Device::destroy_qp`](rxe_proto::verbs::Device::destroy_qp).

use std::net::SocketAddr;

use rxe_proto::cm::{ConnId, ConnectReply, ConnectRequest, SidrRequest};
use rxe_proto::verbs::{AnyQueuePair, AsyncEvent, Qpn, WorkCompletion};
use rxe_proto::wire::cm::{PortSpace, Rej, RejReason, SidrStatus};

use crate::context::Context;
use crate::messages::{DatagramPeer, EndReason, GroupListener, PeerPath, ResolveError, StreamId};

/// Where a service wants to be called.
#[derive(Clone)]
pub enum Listen {
    /// Connection requests, or questions for a datagram queue pair, to this rdma_cm port. Where several services listen
    /// on one port, the first one (in the order in which the services were given to the runtime) that claims the
    /// request gets it; a question goes to the first one.
    Cm {
        /// Port space: TCP for connected queue pairs, UDP for datagrams.
        space: PortSpace,
        /// Port number.
        port: u16,
        /// Whether this connection request is meant for this service.
        claims: fn(&ConnectRequest) -> bool,
    },
    /// TCP streams to this port.
    Tcp {
        /// Port number.
        port: u16,
    },
    /// Other hosts that begin or cease to listen to a multicast group; see [`Service::group_listener`].
    GroupListeners,
}

impl Listen {
    /// Every connection request to `port` in the TCP port space.
    pub fn cm(port: u16) -> Listen {
        Listen::Cm { space: PortSpace::Tcp, port, claims: |_| true }
    }

    /// Every question for a datagram queue pair to `port` in the UDP port space.
    pub fn datagrams(port: u16) -> Listen {
        Listen::Cm { space: PortSpace::Udp, port, claims: |_| true }
    }

    /// The connection requests to `port` in the TCP port space that `claims` recognises.
    pub fn cm_if(port: u16, claims: fn(&ConnectRequest) -> bool) -> Listen {
        Listen::Cm { space: PortSpace::Tcp, port, claims }
    }
}

/// What a service answers to a connection request.
#[derive(Debug)]
pub enum Decision {
    /// Connect.
    Accept(Accept),
    /// Refuse with a CM reason; `private_data` (at most 148 bytes, the rest is cut) reaches the client program.
    Reject {
        /// The reason that the peer's CM reports.
        reason: RejReason,
        /// The service's own words.
        private_data: Vec<u8>,
    },
}

impl Decision {
    /// Accepts, as [`Accept::new`] says.
    #[must_use]
    pub fn accept(qp: impl Into<AnyQueuePair>) -> Decision {
        Decision::Accept(Accept::new(qp))
    }

    /// Refuses as the service's own decision (reason 28), with a text for the client.
    pub fn refuse(text: impl Into<String>) -> Decision {
        Decision::Reject { reason: RejReason::ConsumerDefined, private_data: text.into().into_bytes() }
    }
}

/// The rts on which a connection is accepted.
#[derive(Debug)]
pub struct Accept {
    /// A queue pair in INIT, with the first receives posted; see [`Device::create_qp_in_init`](rxe_proto::verbs::Device::create_qp_in_init). If it is not of the
    /// transport that the request names, the request is refused.
    pub qp: AnyQueuePair,
    /// READs and atomics that we let the peer have outstanding: the REP carries the smaller of this and what the
    /// peer requested.
    pub responder_resources: u8,
    /// READs and atomics that we will have outstanding: likewise limited by what the peer allows.
    pub initiator_depth: u8,
    /// Receiver-not-ready retries of our queue pair, 0 to 7; 7 is without end.
    pub rnr_retry: u8,
    /// Private data of the REP, at most 196 bytes.
    pub private_data: Vec<u8>,
}

impl Accept {
    /// A connection over `qp` without READs, atomics and private data, and with receiver-not-ready retries without end.
    #[must_use]
    pub fn new(qp: impl Into<AnyQueuePair>) -> Accept {
        Accept { qp: qp.into(), responder_resources: 0, initiator_depth: 0, rnr_retry: 7, private_data: Vec::new() }
    }
}

/// What a service answers to a question for a datagram queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DatagramDecision {
    /// This one serves.
    Accept {
        /// The queue pair.
        qp: AnyQueuePair,
        /// Its Q_Key. Clients of rdma_cm insist on [`RDMA_UDP_QKEY`](rxe_proto::wire::mad::RDMA_UDP_QKEY).
        qkey: u32,
        /// Private data of the answer; what is longer than 136 bytes is cut.
        private_data: Vec<u8>,
    },
    /// None does.
    Refuse {
        /// What the peer is told.
        status: SidrStatus,
    },
}

/// Makes the instances of one service.
pub trait ServiceFactory: Send + Sync {
    /// The name of the service in logs, reports and the ready line. An instance that is several services, because they
    /// share a port, joins their names by commas and names each of its queue pairs by [`Context::set_name`].
    fn name(&self) -> &'static str;

    /// Where it listens.
    fn listen(&self) -> Vec<Listen>;

    /// The instance of worker number `worker`; called once per worker before the first packet.
    fn create(&self, worker: usize) -> Box<dyn Service>;
}

/// A factory from its parts: the service `name`, which listens to `listens` and whose instance of a worker is made by
/// `create` from the worker's number.
pub fn service_factory<S: Service + 'static>(
    name: &'static str,
    listens: impl Into<Vec<Listen>>,
    create: impl Fn(usize) -> S + Send + Sync + 'static,
) -> Box<dyn ServiceFactory> {
    Box::new(FactoryFn { name, listens: listens.into(), create })
}

struct FactoryFn<F> {
    name: &'static str,
    listens: Vec<Listen>,
    create: F,
}

impl<S: Service + 'static, F: Fn(usize) -> S + Send + Sync> ServiceFactory for FactoryFn<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn listen(&self) -> Vec<Listen> {
        self.listens.clone()
    }

    fn create(&self, worker: usize) -> Box<dyn Service> {
        Box::new((self.create)(worker))
    }
}

/// One service on one lcore. The module documentation shows the order of the calls.
pub trait Service: Send {
    /// Called once on the service's own lcore before anything else.
    fn start(&mut self, _cx: &mut Context<'_>) {}

    /// A peer wants to connect.
    fn connect_request(&mut self, _cx: &mut Context<'_>, _request: &ConnectRequest) -> Decision {
        Decision::Reject { reason: RejReason::InvalidServiceId, private_data: Vec::new() }
    }

    /// The peer has granted a connection that we asked for, and the queue pair is ready. What the peer's service says in
    /// the REP is here only; a service that does not like it disconnects. [`connected`](Self::connected) comes next.
    fn connect_reply(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, _reply: &ConnectReply) {}

    /// The peer has refused a connection that we asked for. What the peer's service says in the REJ is here only;
    /// [`disconnected`](Self::disconnected) comes next.
    fn connect_rejected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, _rej: &Rej) {}

    /// A connection is up: one that we accepted, as soon as the peer says so (RTU) or sends its first request; one that
    /// we asked for, as soon as we have said so. Not before this call may a service send on it.
    fn connected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn) {}

    /// A connection that we accepted or asked for is over (or never came up). The queue pair is already in the error state and will be
    /// destroyed after this call; regions that belong to the connection are the service's to deregister.
    fn disconnected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, _reason: EndReason) {}

    /// A peer asks for a datagram queue pair.
    fn datagram_request(&mut self, _cx: &mut Context<'_>, _request: &SidrRequest) -> DatagramDecision {
        DatagramDecision::Refuse { status: SidrStatus::ServiceIdNotSupported }
    }

    /// The answer to [`Context::resolve_datagram`].
    fn datagram_resolved(&mut self, _cx: &mut Context<'_>, _token: u64, _result: Result<&DatagramPeer, ResolveError>) {}

    /// The answer to [`Context::resolve_path`]: `None` when there is no route or nobody has the address.
    fn path_resolved(&mut self, _cx: &mut Context<'_>, _token: u64, _path: Option<&PeerPath>) {}

    /// A work request on one of this service's queue pairs completed.
    fn completion(&mut self, _cx: &mut Context<'_>, _wc: &WorkCompletion) {}

    /// Work requests completed, in this order: [`completion`](Self::completion) for each. Services whose rate counts
    /// take them by the batch instead; some may be of queue pairs that the service has destroyed
    /// ([`Context::has_qp_of`] tells).
    fn completions(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) {
        for wc in batch {
            if cx.has_qp_of(wc) {
                self.completion(cx, wc);
            }
        }
    }

    /// Something happened to a queue pair or shared receive queue of this service: a limit was reached, a send queue has
    /// drained, a shared receive queue is done with, a queue pair is in error. Of the queue pairs of connections the
    /// runtime takes `CommunicationEstablished` and `QpError` for itself; any other queue pair in error is the service's
    /// to destroy.
    fn async_event(&mut self, _cx: &mut Context<'_>, _event: &AsyncEvent) {}

    /// A TCP stream to one of our ports was opened.
    fn stream_opened(&mut self, _cx: &mut Context<'_>, _stream: StreamId, _local: SocketAddr, _peer: SocketAddr) {}

    /// Bytes arrived on a stream, in order. They are gone after the call.
    fn stream_data(&mut self, _cx: &mut Context<'_>, _stream: StreamId, _data: &[u8]) {}

    /// The stream is over: closed by the peer, or `reset`.
    fn stream_closed(&mut self, _cx: &mut Context<'_>, _stream: StreamId, _reset: bool) {}

    /// Another host says that it listens to a multicast group from now on, or no more. Called where the factory's
    /// [`listen`](ServiceFactory::listen) names [`Listen::GroupListeners`], for IPv4 groups (IGMP), and always on the same
    /// worker for one group and host. Reports can be forged and come too early: a host may report a group some time before
    /// it is ready for datagrams.
    fn group_listener(&mut self, _cx: &mut Context<'_>, _listener: &GroupListener) {}

    /// A timer set through [`Context::set_timer`] fired.
    fn timer(&mut self, _cx: &mut Context<'_>, _token: u64) {}
}
