//! Events of the connection manager become events of ids.

use nix::errno::Errno;
use rxe_proto::cm::{
    CmEvent, ConnId, ConnectFailure, ConnectReply, DatagramReply, DisconnectReason, ResolveFailure, SidrId,
};
use rxe_proto::wire::cm::{Rej, RejReason, SidrRep};
use zerocopy::{FromZeros, IntoBytes};

use super::abi::event;
use super::channel::Event;
use super::id::{Id, Link, Phase, State};
use super::{Host, RdmaCm, abi, qp_attr};

/// The parameters of an event.
#[derive(Debug)]
pub enum Param {
    /// All zero.
    None,
    Conn(Box<abi::ConnParam>),
    Ud(Box<abi::UdParam>),
}

impl Param {
    /// Parameters of a connection with this private data only.
    pub fn conn(private_data: &[u8]) -> Box<abi::ConnParam> {
        let mut param = Box::new(abi::ConnParam::new_zeroed());
        param.private_data_len = fill(&mut param.private_data, private_data);
        param
    }

    /// Parameters of a datagram service with this private data only.
    pub fn ud(private_data: &[u8]) -> Box<abi::UdParam> {
        let mut param = Box::new(abi::UdParam::new_zeroed());
        param.private_data_len = fill(&mut param.private_data, private_data);
        param
    }

    /// As the program reads it.
    pub fn to_bytes(&self) -> [u8; size_of::<abi::UdParam>()] {
        let mut out = [0; size_of::<abi::UdParam>()];
        match self {
            Param::None => {}
            Param::Conn(param) => out[..size_of::<abi::ConnParam>()].copy_from_slice(param.as_bytes()),
            Param::Ud(param) => out.copy_from_slice(param.as_bytes()),
        }
        out
    }
}

/// Copies private data, which no message has 256 bytes of.
fn fill(room: &mut [u8; abi::PRIVATE_DATA_LEN], data: &[u8]) -> u8 {
    let len = data.len().min(usize::from(u8::MAX));
    room[..len].copy_from_slice(&data[..len]);
    len as u8
}

/// The status of an event that reports an error.
pub fn status(errno: Errno) -> i32 {
    -(errno as i32)
}

impl RdmaCm {
    /// Handles an event of the connection manager.
    pub fn handle(&mut self, host: &mut Host<'_>, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest(request) => self.connect_request(host, request),
            CmEvent::SidrRequest(request) => self.sidr_request(host, request),
            CmEvent::ConnectReply(reply) => self.connect_reply(&reply),
            CmEvent::Established { conn } => self.connection_established(conn),
            CmEvent::Disconnected { conn, reason } => self.disconnected(host, conn, reason),
            CmEvent::ConnectFailed { conn, reason, rej } => self.connect_failed(conn, reason, rej.as_deref()),
            CmEvent::DatagramResolved(reply) => self.datagram_resolved(host, &reply),
            CmEvent::ResolveFailed { id, reason, private_data } => {
                self.resolve_failed(id, reason, private_data.as_deref());
            }
        }
    }

    /// The queue pair `qpn` has received its first packet: if its connection waits for the peer's confirmation, this is it.
    pub fn established(&mut self, host: &mut Host<'_>, qpn: u32) {
        if let Some(conn) = self.unconfirmed.get(&qpn) {
            // The event that follows removes the entry. An error means that the connection has ended.
            let _gone = host.cm.established(*conn);
        }
    }

    /// Refuses commands that queue an event when the program reads none.
    pub(super) fn check_events(&self, file: u32) -> Result<(), Errno> {
        match self.channels.get(&file) {
            Some(channel) if channel.len() < self.max_events => Ok(()),
            _ => Err(Errno::ENOMEM),
        }
    }

    /// Queues an event of an id. An id that the program has not accepted has no events.
    pub(super) fn queue(&mut self, handle: u32, event: u32, status: i32, param: Param) {
        let Some(id) = self.ids.get(handle).filter(|id| id.uid != 0) else { return };
        let Some(channel) = self.channels.get_mut(&id.channel) else { return };
        let response = abi::EventResp {
            uid: id.uid,
            id: handle,
            event,
            status,
            param: param.to_bytes(),
            ..abi::EventResp::new_zeroed()
        };
        channel.push(Event { id: handle, multicast: None, request: None, response });
    }

    /// The connection of an id has ended, or its queue pair is known to work.
    pub(super) fn forget_connection(&mut self, conn: ConnId, qpn: u32) {
        self.connections.remove(&conn);
        self.confirmed(conn, qpn);
    }

    /// The first packet of a queue pair has no effect any more.
    fn confirmed(&mut self, conn: ConnId, qpn: u32) {
        if self.unconfirmed.get(&qpn) == Some(&conn) {
            self.unconfirmed.remove(&qpn);
        }
    }

    fn connect_reply(&mut self, reply: &ConnectReply) {
        let Some(&handle) = self.connections.get(&reply.conn) else { return };
        let Some(connection) = self.ids.get_mut(handle).and_then(|id| id.connection_mut()) else { return };
        connection.phase = Phase::RepReceived;
        connection.remote_qpn = reply.remote_qpn;
        connection.sq_psn = reply.starting_psn;
        // The peer's responder resources are our initiator depth, and vice versa.
        connection.initiator_depth = reply.responder_resources;
        connection.responder_resources = reply.initiator_depth;
        connection.rnr_retry_count = reply.rnr_retry_count;
        connection.ack_timeout = reply.local_ack_timeout;
        // As above: rdma_get_cm_event(3) has the limits from the receiver's perspective.
        let param = abi::ConnParam {
            responder_resources: reply.initiator_depth,
            initiator_depth: reply.responder_resources,
            flow_control: u8::from(reply.flow_control),
            rnr_retry_count: reply.rnr_retry_count,
            srq: u8::from(reply.srq),
            qp_num: reply.remote_qpn,
            ..*Param::conn(&reply.private_data)
        };
        self.queue(handle, event::CONNECT_RESPONSE, 0, Param::Conn(Box::new(param)));
    }

    fn connection_established(&mut self, conn: ConnId) {
        let Some(&handle) = self.connections.get(&conn) else { return };
        let Some(id) = self.ids.get_mut(handle) else { return };
        let qpn = id.qpn;
        let Some(connection) = id.connection_mut() else { return };
        connection.phase = Phase::Established;
        let active = connection.active;
        self.confirmed(conn, qpn);
        // On the active side the program itself has confirmed the connection.
        if !active {
            self.queue(handle, event::ESTABLISHED, 0, Param::None);
        }
    }

    fn disconnected(&mut self, host: &Host<'_>, conn: ConnId, reason: DisconnectReason) {
        let Some(handle) = self.ended(conn) else { return };
        let (event, status) = match reason {
            DisconnectReason::Peer | DisconnectReason::Local | DisconnectReason::Stale => (event::DISCONNECTED, 0),
            DisconnectReason::LocalUnanswered => (event::DISCONNECTED, status(Errno::ETIMEDOUT)),
            DisconnectReason::PeerRejected(reason) => (event::REJECTED, i32::from(reason.code())),
        };
        self.queue(handle, event, status, Param::None);
        if event == event::DISCONNECTED
            && let Some(id) = self.ids.get_mut(handle)
        {
            id.state = State::Disconnected;
            if let Some(at) = host.cm.connection(conn).and_then(|info| info.deadline) {
                self.timewaits.insert((at, conn, handle));
            }
        }
    }

    /// The peer may use the numbers of a disconnected connection again.
    pub(super) fn timewait_exit(&mut self, conn: ConnId, handle: u32) {
        let connection = self.ids.get(handle).and_then(Id::connection);
        if connection.is_some_and(|connection| connection.conn == conn) {
            self.queue(handle, event::TIMEWAIT_EXIT, 0, Param::None);
        }
    }

    fn connect_failed(&mut self, conn: ConnId, reason: ConnectFailure, rej: Option<&Rej>) {
        let Some(handle) = self.ended(conn) else { return };
        let rejected = |reason: RejReason| (event::REJECTED, i32::from(reason.code()));
        let (event, status) = match reason {
            ConnectFailure::PeerRejected(reason) => rejected(reason),
            ConnectFailure::Stale => rejected(RejReason::StaleConnection),
            ConnectFailure::PeerDisconnected => (event::DISCONNECTED, 0),
            ConnectFailure::Timeout | ConnectFailure::NotAnswered | ConnectFailure::Evicted => {
                (event::UNREACHABLE, status(Errno::ETIMEDOUT))
            }
        };
        let param = rej.map_or(Param::None, |rej| Param::Conn(Param::conn(&rej.private_data)));
        self.queue(handle, event, status, param);
    }

    /// Ends the connection of an id.
    fn ended(&mut self, conn: ConnId) -> Option<u32> {
        let handle = *self.connections.get(&conn)?;
        let id = self.ids.get_mut(handle)?;
        let qpn = id.qpn;
        id.connection_mut()?.phase = Phase::Ended;
        self.forget_connection(conn, qpn);
        Some(handle)
    }

    fn datagram_resolved(&mut self, host: &Host<'_>, reply: &DatagramReply) {
        let Some(handle) = self.sidr_requests.remove(&reply.id) else { return };
        let Some(id) = self.ids.get_mut(handle) else { return };
        id.link = Link::SidrSent(None);
        let mut param = Param::ud(&reply.private_data);
        // One Q_Key serves all peers of a queue pair.
        if reply.qkey == 0 || (id.qkey != 0 && id.qkey != reply.qkey) {
            self.queue(handle, event::ADDR_ERROR, status(Errno::EINVAL), Param::Ud(param));
            return;
        }
        id.qkey = reply.qkey;
        param.qp_num = reply.qpn.get();
        param.qkey = reply.qkey;
        param.ah_attr = id.path.as_ref().map_or(abi::AhAttr::new_zeroed(), |path| qp_attr::ah_attr(host.local, path));
        self.queue(handle, event::ESTABLISHED, 0, Param::Ud(param));
    }

    fn resolve_failed(
        &mut self,
        request: SidrId,
        reason: ResolveFailure,
        private_data: Option<&[u8; SidrRep::PRIVATE_DATA_LEN]>,
    ) {
        let Some(handle) = self.sidr_requests.remove(&request) else { return };
        if let Some(id) = self.ids.get_mut(handle) {
            id.link = Link::SidrSent(None);
        }
        let status = match reason {
            ResolveFailure::Refused(status) => i32::from(status.code()),
            ResolveFailure::Timeout => status(Errno::ETIMEDOUT),
        };
        let param = private_data.map_or(Param::None, |data| Param::Ud(Param::ud(data)));
        self.queue(handle, event::UNREACHABLE, status, param);
    }
}
