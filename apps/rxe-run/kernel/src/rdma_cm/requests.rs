//! Requests of peers: each becomes a new id of its listener.

use std::net::{IpAddr, SocketAddr};

use rxe_proto::Duration;
use rxe_proto::cm::{ConnectRequest, SidrReply, SidrRequest};
use rxe_proto::wire::cm::{CmTransport, PortSpace, RejReason, ServiceId, SidrStatus};
use zerocopy::FromZeros;

use super::abi::event;
use super::channel::Event;
use super::events::Param;
use super::id::{Connection, Id, Link, PathRecord, Phase, State, qp_type};
use super::ports::Listener;
use super::{Host, RdmaCm, abi};

/// A request of a peer to a listener.
#[derive(Debug)]
pub enum Request {
    /// For a connection.
    Connection(Box<ConnectRequest>),
    /// For a datagram queue pair.
    Datagram(Box<SidrRequest>),
}

impl Request {
    fn service(&self) -> ServiceId {
        match self {
            Request::Connection(request) => request.service_id,
            Request::Datagram(request) => request.service_id,
        }
    }
}

/// How long a request waits for a listener.
const EARLY: Duration = Duration::from_millis(300);
/// Requests that wait, at most. More are refused at once.
const MAX_EARLY: usize = 64;

/// Why a request does not reach the program.
enum Refusal {
    /// The port has no listener.
    NoListener,
    /// The listener is for another address or type of queue pair.
    Mismatch,
    /// Too many requests or events are unread. The peer tries again.
    Busy,
}

/// A listener, and what its ids take over from it.
struct ListenerInfo {
    handle: u32,
    uid: u64,
    channel: u32,
    space: PortSpace,
}

impl RdmaCm {
    /// A peer requests a connection.
    pub(super) fn connect_request(&mut self, host: &mut Host<'_>, request: Box<ConnectRequest>) {
        self.request(host, Request::Connection(request));
    }

    /// A peer looks for a datagram queue pair.
    pub(super) fn sidr_request(&mut self, host: &mut Host<'_>, request: Box<SidrRequest>) {
        self.request(host, Request::Datagram(request));
    }

    /// A request. When nobody listens, the request waits for a while: servers such as perftest's tell their
    /// clients to come shortly before they listen, and a kernel's clients are slower.
    fn request(&mut self, host: &mut Host<'_>, request: Request) {
        if self.early.len() < MAX_EARLY && !self.has_listener(request.service()) {
            self.early.push_back((host.now + EARLY, request));
        } else {
            self.answer(host, &request);
        }
    }

    /// A program listens: requests that have waited for that are answered.
    pub(super) fn answer_early(&mut self, host: &mut Host<'_>) {
        for (until, request) in std::mem::take(&mut self.early) {
            if self.has_listener(request.service()) {
                self.answer(host, &request);
            } else {
                self.early.push_back((until, request));
            }
        }
    }

    /// Passes a request to its listener, or refuses it.
    pub(super) fn answer(&mut self, host: &mut Host<'_>, request: &Request) {
        match request {
            Request::Connection(request) => self.answer_connection(host, request),
            Request::Datagram(request) => self.answer_datagram(host, request),
        }
    }

    /// Passes a request for a connection to its listener, or refuses it.
    fn answer_connection(&mut self, host: &mut Host<'_>, request: &ConnectRequest) {
        let qp_type = match request.transport {
            CmTransport::Uc => qp_type::UC,
            _ => qp_type::RC,
        };
        let conn = request.conn;
        let refused = match self.listener(host, request.service_id, request.dest, qp_type) {
            Ok(listener) => {
                let mut id = self.requested(&listener, qp_type, request.source, request.dest);
                id.path = Some(PathRecord {
                    source: request.local_gid,
                    dest: request.peer_gid,
                    flow_label: request.flow_label,
                    traffic_class: request.traffic_class,
                    mtu: request.path_mtu,
                    life_time: request.local_ack_timeout.saturating_sub(1),
                });
                id.link = Link::Connection(Connection {
                    conn,
                    since: host.now,
                    phase: Phase::ReqReceived,
                    active: false,
                    remote_qpn: request.remote_qpn,
                    sq_psn: request.starting_psn,
                    // The peer's responder resources are our initiator depth, and vice versa.
                    responder_resources: request.initiator_depth,
                    initiator_depth: request.responder_resources,
                    retry_count: request.retry_count,
                    rnr_retry_count: request.rnr_retry_count,
                    ack_timeout: request.local_ack_timeout,
                });
                // As above: rdma_get_cm_event(3) has the limits from the receiver's perspective.
                let param = abi::ConnParam {
                    responder_resources: request.initiator_depth,
                    initiator_depth: request.responder_resources,
                    flow_control: u8::from(request.flow_control),
                    retry_count: request.retry_count,
                    rnr_retry_count: request.rnr_retry_count,
                    srq: u8::from(request.srq),
                    qp_num: request.remote_qpn,
                    ..*Param::conn(&request.private_data)
                };
                match self.offer(&listener, id, Param::Conn(Box::new(param))) {
                    Some(handle) => {
                        self.connections.insert(conn, handle);
                        return;
                    }
                    None => Refusal::Busy,
                }
            }
            Err(refusal) => refusal,
        };
        // It fails when the peer has withdrawn the request.
        let _answered = match refused {
            Refusal::NoListener => host.cm.reject(conn, RejReason::InvalidServiceId, &[], &[]),
            Refusal::Mismatch => host.cm.reject(conn, RejReason::ConsumerDefined, &[], &[]),
            Refusal::Busy => host.cm.discard(conn),
        };
    }

    /// Passes a request for a datagram queue pair to its listener, or refuses it.
    fn answer_datagram(&mut self, host: &mut Host<'_>, request: &SidrRequest) {
        let refused = match self.listener(host, request.service_id, request.dest, qp_type::UD) {
            Ok(listener) => {
                let mut id = self.requested(&listener, qp_type::UD, request.source, request.dest);
                id.link = Link::SidrReceived(Some(request.id));
                match self.offer(&listener, id, Param::Ud(Param::ud(&request.private_data))) {
                    Some(_) => return,
                    None => SidrStatus::Rejected,
                }
            }
            Err(Refusal::NoListener) => SidrStatus::ServiceIdNotSupported,
            Err(Refusal::Mismatch | Refusal::Busy) => SidrStatus::Rejected,
        };
        // It fails when the request is forgotten.
        let _answered = host.cm.reply_sidr(host.now, request.id, SidrReply::refuse(refused));
    }

    /// The listener for a request, if it takes one more.
    fn listener(
        &self,
        host: &Host<'_>,
        service_id: ServiceId,
        dest: (IpAddr, u16),
        qp_type: u8,
    ) -> Result<ListenerInfo, Refusal> {
        let space = service_id.port_space().ok_or(Refusal::NoListener)?;
        let handle = match self.ports.listener(&self.ids, host.local, space, dest) {
            Listener::Found(handle) => handle,
            Listener::OtherAddress => return Err(Refusal::Mismatch),
            Listener::None => return Err(Refusal::NoListener),
        };
        let id = self.ids.get(handle).ok_or(Refusal::NoListener)?;
        if id.qp_type != qp_type {
            return Err(Refusal::Mismatch);
        }
        let room = self.channels.get(&id.channel).is_some_and(|channel| channel.len() < self.max_events);
        if id.backlog == 0 || self.ids.is_full() || !room {
            return Err(Refusal::Busy);
        }
        Ok(ListenerInfo { handle, uid: id.uid, channel: id.channel, space })
    }

    /// A new id of a listener. It has no name of the program's yet.
    fn requested(&mut self, listener: &ListenerInfo, qp_type: u8, source: (IpAddr, u16), dest: (IpAddr, u16)) -> Id {
        let mut id = Id::new(listener.channel, 0, listener.space, qp_type, self.random_psn());
        (id.source, id.dest) = (Some(SocketAddr::from(dest)), Some(SocketAddr::from(source)));
        (id.attached, id.state) = (true, State::Connected);
        id
    }

    /// Adds an id, and queues its event for the listener. `None` when there are too many ids.
    fn offer(&mut self, listener: &ListenerInfo, id: Id, param: Param) -> Option<u32> {
        let handle = self.insert(id)?;
        if let Some(id) = self.ids.get_mut(listener.handle) {
            id.backlog = id.backlog.saturating_sub(1);
        }
        let response = abi::EventResp {
            uid: listener.uid,
            id: handle,
            event: event::CONNECT_REQUEST,
            param: param.to_bytes(),
            ..abi::EventResp::new_zeroed()
        };
        let event = Event { id: listener.handle, multicast: None, request: Some(handle), response };
        if let Some(channel) = self.channels.get_mut(&listener.channel) {
            channel.push(event);
        }
        Some(handle)
    }
}
