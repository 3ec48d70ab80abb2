//! The traits that an embedder implements: [`ServiceFactory`] and [`Service`]. The [crate documentation](crate) shows when each method is
//! called.

use std::any::Any;
use std::net::SocketAddr;

use rxe_proto::cm::{ConnId, ConnectReply, ConnectRequest, SidrRequest};
use rxe_proto::mem::Allocator;
use rxe_proto::verbs::{AnyQueuePair, AsyncEvent, Qpn, WorkCompletion};
use rxe_proto::wire::PortId;
use rxe_proto::wire::cm::{PortSpace, Rej, RejReason, SidrStatus};

use crate::context::Context;
use crate::messages::{DatagramPeer, EndReason, GroupListener, PeerPath, ResolveError, StreamId};
use crate::outstanding::Outstanding;

/// A listener of a service.
#[derive(Clone)]
pub enum Listen {
    /// Connection requests, or SIDR requests, to this rdma_cm port. Where several services listen on one port, the first
    /// one (in the order in which the services were given to the runtime) that claims a connection request gets it; a
    /// SIDR request goes to the first one.
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
    /// Other hosts that join or leave a multicast group; see [`Service::group_listener`].
    GroupListeners,
}

impl Listen {
    /// Every connection request to `port` in the TCP port space.
    pub fn cm(port: u16) -> Listen {
        Listen::Cm { space: PortSpace::Tcp, port, claims: |_| true }
    }

    /// Every SIDR request to `port` in the UDP port space.
    pub fn datagrams(port: u16) -> Listen {
        Listen::Cm { space: PortSpace::Udp, port, claims: |_| true }
    }

    /// The connection requests to `port` in the TCP port space that `claims` recognises.
    pub fn cm_if(port: u16, claims: fn(&ConnectRequest) -> bool) -> Listen {
        Listen::Cm { space: PortSpace::Tcp, port, claims }
    }
}

/// A service's answer to a connection request.
#[derive(Debug)]
pub enum Decision {
    /// Connect.
    Accept(Accept),
    /// Refuse with a CM reason; `private_data` (at most 148 bytes, the rest is cut) reaches the client program.
    Reject {
        /// The reason that the peer's CM reports.
        reason: RejReason,
        /// Text or data for the client program.
        private_data: Vec<u8>,
    },
}

impl Decision {
    /// Accepts with the parameters of [`Accept::new`].
    #[must_use]
    pub fn accept(qp: impl Into<AnyQueuePair>) -> Decision {
        Decision::Accept(Accept::new(qp))
    }

    /// Refuses as the service's own decision (reason 28), with a text for the client.
    pub fn refuse(text: impl Into<String>) -> Decision {
        Decision::Reject { reason: RejReason::ConsumerDefined, private_data: text.into().into_bytes() }
    }
}

/// The parameters of an accepted connection.
#[derive(Debug)]
pub struct Accept {
    /// A queue pair in INIT, with the first receives posted; see
    /// [`Device::create_qp_in_init`](rxe_proto::verbs::Device::create_qp_in_init). If it is not of the transport that the
    /// request names, the request is refused.
    pub qp: AnyQueuePair,
    /// READs and atomics that we let the peer have outstanding: the REP carries the smaller of this and what the
    /// peer requested.
    pub responder_resources: u8,
    /// READs and atomics that we will have outstanding: likewise limited by what the peer allows.
    pub initiator_depth: u8,
    /// Receiver-not-ready retries of our queue pair, 0 to 7; 7 means no limit.
    pub rnr_retry: u8,
    /// Private data of the REP, at most 196 bytes.
    pub private_data: Vec<u8>,
}

impl Accept {
    /// A connection over `qp` without READs, atomics and private data, and with unlimited receiver-not-ready retries.
    #[must_use]
    pub fn new(qp: impl Into<AnyQueuePair>) -> Accept {
        Accept { qp: qp.into(), responder_resources: 0, initiator_depth: 0, rnr_retry: 7, private_data: Vec::new() }
    }
}

/// A service's answer to a SIDR request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DatagramDecision {
    /// The queue pair that serves.
    Accept {
        /// The queue pair.
        qp: AnyQueuePair,
        /// Its Q_Key. Clients of rdma_cm insist on [`RDMA_UDP_QKEY`](rxe_proto::wire::mad::RDMA_UDP_QKEY).
        qkey: u32,
        /// Private data of the answer; what is longer than 136 bytes is cut.
        private_data: Vec<u8>,
    },
    /// No queue pair serves.
    Refuse {
        /// The status in the SIDR REP.
        status: SidrStatus,
    },
}

/// Makes the instances of one service.
pub trait ServiceFactory: Send + Sync {
    /// The name of the service in logs, reports and the ready line. An instance that is several services, because they
    /// share a port, joins their names by commas and names each of its queue pairs by [`Context::set_name`].
    fn name(&self) -> &'static str;

    /// The listeners of the instances.
    fn listen(&self) -> Vec<Listen>;

    /// Prepares what the instances share: memory, files. Called once, before the first instance is made.
    ///
    /// # Errors
    /// Why the service cannot run, in one sentence that says what to do. The adapter is not built then.
    fn prepare(&self, _allocator: &dyn Allocator) -> Result<(), String> {
        Ok(())
    }

    /// The instance of worker number `worker`; called once per worker before the first packet.
    fn create(&self, worker: usize) -> Box<dyn Service>;

    /// The worker, of `workers`, whose instance gets this connection request and keeps the connection; `None` for the next one
    /// in turn. For services whose connections belong together.
    ///
    /// Called on the thread of worker 0, once for each request that this service claims, after its source was resolved. It must
    /// not block. A number that no worker has is counted (`worker_choice_invalid`), and the next worker in turn gets the request;
    /// an instance that must not have it refuses it.
    fn worker_for(&self, _request: &ConnectRequest, _workers: usize) -> Option<usize> {
        None
    }
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

/// One service on one worker. The [crate documentation](crate) shows the order of the calls.
pub trait Service: Send {
    /// Called once on the service's own lcore before anything else.
    fn start(&mut self, _cx: &mut Context<'_>) {}

    /// A peer requests a connection.
    fn connect_request(&mut self, _cx: &mut Context<'_>, _request: &ConnectRequest) -> Decision {
        Decision::Reject { reason: RejReason::InvalidServiceId, private_data: Vec::new() }
    }

    /// The peer has accepted a connection that this service requested, and the queue pair is in RTS. Only this call has the
    /// private data of the REP; a service that cannot use it disconnects. [`connected`](Self::connected) follows.
    fn connect_reply(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, _reply: &ConnectReply) {}

    /// The peer has refused a connection that this service requested. Only this call has the REJ;
    /// [`disconnected`](Self::disconnected) follows.
    fn connect_rejected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, _rej: &Rej) {}

    /// A connection is established: an accepted one with the peer's RTU or first packet, a requested one when the RTU was
    /// sent. A service may not send before this call.
    fn connected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn) {}

    /// A connection that this service accepted or requested is over, established or not. Its queue pair is in the error
    /// state and is destroyed after this call. The service deregisters the connection's regions.
    fn disconnected(&mut self, _cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, _reason: EndReason) {}

    /// A peer sends a SIDR request: it asks for a datagram queue pair.
    fn datagram_request(&mut self, _cx: &mut Context<'_>, _request: &SidrRequest) -> DatagramDecision {
        DatagramDecision::Refuse { status: SidrStatus::ServiceIdNotSupported }
    }

    /// The answer to [`Context::resolve_datagram`].
    fn datagram_resolved(&mut self, _cx: &mut Context<'_>, _token: u64, _result: Result<&DatagramPeer, ResolveError>) {}

    /// The answer to [`Context::resolve_path`]: `None` when there is no route, or no host has the address.
    fn path_resolved(&mut self, _cx: &mut Context<'_>, _token: u64, _path: Option<&PeerPath>) {}

    /// A work request on one of this service's queue pairs completed.
    fn completion(&mut self, _cx: &mut Context<'_>, _wc: &WorkCompletion) {}

    /// Work requests completed, in this order. The default calls [`completion`](Self::completion) for each. A service
    /// optimised for message rate implements this method instead; some completions may be of queue pairs that the service
    /// has destroyed (see [`Context::has_qp_of`]).
    fn completions(&mut self, cx: &mut Context<'_>, batch: &[WorkCompletion]) {
        for wc in batch {
            if cx.has_qp_of(wc) {
                self.completion(cx, wc);
            }
        }
    }

    /// An asynchronous event of a queue pair or shared receive queue of this service. The service host handles
    /// `CommunicationEstablished` and `QpError` of connections' queue pairs itself; the service destroys any other queue
    /// pair in error.
    fn async_event(&mut self, _cx: &mut Context<'_>, _event: &AsyncEvent) {}

    /// A client opened a TCP stream to a port that this service listens to.
    fn stream_opened(&mut self, _cx: &mut Context<'_>, _stream: StreamId, _local: SocketAddr, _peer: SocketAddr) {}

    /// Bytes arrived on a stream, in order.
    fn stream_data(&mut self, _cx: &mut Context<'_>, _stream: StreamId, _data: &[u8]) {}

    /// The stream is over: closed by the peer, or `reset`.
    fn stream_closed(&mut self, _cx: &mut Context<'_>, _stream: StreamId, _reset: bool) {}

    /// Another host reports that it joined or left a multicast group. Called if the factory's
    /// [`listen`](ServiceFactory::listen) contains [`Listen::GroupListeners`], for IPv4 groups (IGMP), on the same worker for
    /// one group and host. Reports can be forged, and can be early: a host may report a group some time before it is ready
    /// for datagrams.
    fn group_listener(&mut self, _cx: &mut Context<'_>, _listener: &GroupListener) {}

    /// The addresses of one of [`Context::ports`] were changed while the adapter runs. Peers do not reach what uses an address that is
    /// gone; connections on it have been disconnected.
    fn port_changed(&mut self, _cx: &mut Context<'_>, _port: PortId) {}

    /// A named region was added to [`Context::regions`] while the adapter runs.
    fn region_added(&mut self, _cx: &mut Context<'_>, _name: &str) {}

    /// A named region was removed from [`Context::regions`] while the adapter runs; its keys are deregistered next. The service
    /// drops what it keeps of the region: its memory is given back with the last handle, and its protection domain with the
    /// last object in it.
    fn region_removed(&mut self, _cx: &mut Context<'_>, _name: &str) {}

    /// A request of management, in the service's own language. Called on each worker.
    ///
    /// # Errors
    /// Why the service cannot do it, in one sentence. Nothing has changed then.
    fn manage(&mut self, _cx: &mut Context<'_>, _request: &str) -> Result<String, String> {
        Err("the service takes no requests".to_owned())
    }

    /// A timer set through [`Context::set_timer`] fired.
    fn timer(&mut self, _cx: &mut Context<'_>, _token: u64) {}

    /// A message that this service's instance on worker number `from`, or this instance itself, has sent by
    /// [`Context::send_to_instance`].
    fn instance_message(&mut self, _cx: &mut Context<'_>, _from: usize, _message: Box<dyn Any + Send>) {}

    /// Whether [`poll`](Self::poll) is called. Read once, after [`start`](Self::start).
    fn wants_poll(&self) -> bool {
        false
    }

    /// Called at the end of each turn of the worker's loop, after all other calls of the turn, if
    /// [`wants_poll`](Self::wants_poll) was true. A service submits the operations of the turn here, and handles those that have
    /// completed. Work requests that it posts leave in the same turn.
    ///
    /// Returns the number of operations that are outstanding after the call. While there are any, the worker does not sleep, and
    /// the end of the adapter waits for them, for a limited time. A worker does not sleep between another call of a service and the
    /// next poll. Without outstanding operations it may sleep between two polls.
    ///
    /// An instance that is dropped with operations outstanding must keep their memory valid until they have completed.
    fn poll(&mut self, _cx: &mut Context<'_>) -> Outstanding {
        Outstanding::NONE
    }
}
