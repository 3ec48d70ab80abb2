//! Connections and datagram services: CONNECT, ACCEPT, REJECT, DISCONNECT and NOTIFY.

use nix::errno::Errno;
use rxe_proto::cm::{AcceptParams, CmError, ConnectParams, MadPath, ResolveParams, SidrReply, ack_timeout};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::cm::{CmTransport, RejReason, SidrStatus};
use rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_proto::wire::{MacAddr, PortId, Psn};

use super::id::{Connection, Id, Link, Phase, State, qp_type};
use super::{Host, RdmaCm, abi, address};

/// ACK delay of the rxe device: 4.096 us * 2^15.
const ACK_DELAY: u8 = 15;

/// Asynchronous events that NOTIFY reports.
mod async_event {
    pub const COMM_EST: u32 = 4;
    pub const PATH_MIG: u32 = 6;
}

impl RdmaCm {
    /// CONNECT.
    pub(super) fn connect(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::Connect,
        len: u16,
    ) -> Result<(), Errno> {
        check_len(len, std::mem::offset_of!(abi::Connect, ece))?;
        let param = &command.conn_param;
        if param.valid == 0 {
            return Err(Errno::EINVAL);
        }
        let handle = command.id;
        let id = self.attached(file, handle)?;
        if id.state != State::RouteResolved {
            return Err(Errno::EINVAL);
        }
        let path = id.path.clone().ok_or(Errno::EINVAL)?;
        let ports = (address::port(id.source), address::port(id.dest));
        let mad_path = MadPath {
            port: PortId(0),
            local_mac: MacAddr::default(),
            peer_mac: MacAddr::default(),
            vlan: None,
            local: path.source,
            peer: path.dest,
            traffic_class: path.traffic_class,
        };
        let private_data = private_data(param).to_vec();
        if id.is_datagram() {
            let params = ResolveParams { private_data, port_space: id.space, ..ResolveParams::new(mad_path, ports) };
            let request = host.cm.resolve_datagram(host.now, params).map_err(errno)?;
            (id.state, id.link) = (State::Connected, Link::SidrSent(Some(request)));
            self.sidr_requests.insert(request, handle);
            return Ok(());
        }
        let qpn = Qpn::new(param.qp_num);
        let params = ConnectParams {
            private_data,
            port_space: id.space,
            transport: transport(id)?,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            local_ack_timeout: ack_timeout(path.life_time, ACK_DELAY),
            flow_control: param.flow_control != 0,
            srq: param.srq != 0,
            flow_label: path.flow_label,
            ..ConnectParams::new(mad_path, ports, qpn, id.psn, path.mtu)
        };
        let conn = host.cm.connect(host.now, params).map_err(errno)?;
        (id.qpn, id.state) = (qpn.get(), State::Connected);
        id.link = Link::Connection(Connection {
            conn,
            since: host.now,
            phase: Phase::ReqSent,
            active: true,
            remote_qpn: 0,
            sq_psn: Psn::new(0),
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            ack_timeout: path.life_time + 1,
        });
        self.connections.insert(conn, handle);
        Ok(())
    }

    /// ACCEPT: answers a request of a peer, or confirms the peer's answer.
    pub(super) fn accept(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::Accept,
        len: u16,
    ) -> Result<(), Errno> {
        check_len(len, std::mem::offset_of!(abi::Accept, ece))?;
        let param = (command.conn_param.valid != 0).then_some(&command.conn_param);
        let id = self.attached(file, command.id)?;
        if id.state != State::Connected {
            return Err(Errno::EINVAL);
        }
        match answer(host, id, param) {
            Ok(()) => {
                if let Some(param) = param {
                    (id.uid, id.qpn) = (command.uid, Qpn::new(param.qp_num).get());
                    if let Some(connection) = id.connection() {
                        let (qpn, conn) = (id.qpn, connection.conn);
                        self.unconfirmed.insert(qpn, conn);
                    }
                }
                Ok(())
            }
            Err(errno) => {
                // The peer must not wait for an answer that was refused.
                let _rejected = self.refuse(host, command.id, RejReason::ConsumerDefined, &[]);
                Err(errno)
            }
        }
    }

    /// REJECT.
    pub(super) fn reject(&mut self, host: &mut Host<'_>, file: u32, command: &abi::Reject) -> Result<(), Errno> {
        let reason = match RejReason::from_code(u16::from(command.reason)) {
            RejReason::Unknown(0) => RejReason::ConsumerDefined,
            reason @ (RejReason::ConsumerDefined | RejReason::VendorOptionNotSupported) => reason,
            _ => return Err(Errno::EINVAL),
        };
        self.attached(file, command.id)?;
        let private_data = &command.private_data[..usize::from(command.private_data_len)];
        self.refuse(host, command.id, reason, private_data)
    }

    /// Rejects a peer's request or its answer to ours.
    fn refuse(
        &mut self,
        host: &mut Host<'_>,
        handle: u32,
        reason: RejReason,
        private_data: &[u8],
    ) -> Result<(), Errno> {
        let id = self.ids.get_mut(handle).ok_or(Errno::ENOENT)?;
        match &mut id.link {
            Link::Connection(connection) => {
                let conn = connection.conn;
                host.cm.reject(conn, reason, &[], private_data).map_err(errno)?;
                connection.phase = Phase::Ended;
                let qpn = id.qpn;
                self.forget_connection(conn, qpn);
                Ok(())
            }
            Link::SidrReceived(request) => {
                let open = request.ok_or(Errno::EINVAL)?;
                let reply =
                    SidrReply { private_data: private_data.to_vec(), ..SidrReply::refuse(SidrStatus::Rejected) };
                host.cm.reply_sidr(host.now, open, reply).map_err(errno)?;
                *request = None;
                Ok(())
            }
            Link::SidrSent(_) | Link::None => Err(Errno::EINVAL),
        }
    }

    /// DISCONNECT.
    pub(super) fn disconnect(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::Disconnect,
    ) -> Result<(), Errno> {
        let id = self.attached(file, command.id)?;
        match &id.link {
            Link::None => Err(Errno::EINVAL),
            Link::Connection(connection) => {
                if matches!(connection.phase, Phase::RepSent | Phase::Established) {
                    // An error means that the connection has ended; its event follows.
                    let _gone = host.cm.disconnect(host.now, connection.conn);
                }
                Ok(())
            }
            // There is nothing to disconnect, which is no error.
            Link::SidrSent(_) | Link::SidrReceived(_) => Ok(()),
        }
    }

    /// NOTIFY: the program has seen an asynchronous event of the queue pair.
    pub(super) fn notify(&mut self, host: &mut Host<'_>, file: u32, command: &abi::Notify) -> Result<(), Errno> {
        let id = self.attached(file, command.id)?;
        let connection = id.connection().ok_or(Errno::EINVAL)?;
        match (command.event, connection.phase) {
            (async_event::COMM_EST, Phase::RepSent) => host.cm.established(connection.conn).map_err(errno),
            (async_event::COMM_EST, Phase::Established) => Err(Errno::EISCONN),
            // There are no alternate paths, so the queue pair has the one that it had.
            (async_event::PATH_MIG, Phase::Established) => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Answers a request, or confirms the peer's answer.
fn answer(host: &mut Host<'_>, id: &mut Id, param: Option<&abi::ConnParam>) -> Result<(), Errno> {
    let (psn, qpn) = (id.psn, Qpn::new(param.map_or(0, |param| param.qp_num)));
    match (&mut id.link, param) {
        (Link::Connection(connection), None) => {
            host.cm.confirm(connection.conn, &[]).map_err(errno)?;
            connection.phase = Phase::Established;
            Ok(())
        }
        (Link::Connection(connection), Some(param)) => {
            let params = AcceptParams {
                qpn,
                starting_psn: psn,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                rnr_retry_count: param.rnr_retry_count.min(7),
                flow_control: param.flow_control != 0,
                srq: param.srq != 0,
                private_data: private_data(param).to_vec(),
            };
            host.cm.accept(host.now, connection.conn, params).map_err(errno)?;
            connection.phase = Phase::RepSent;
            connection.responder_resources = param.responder_resources;
            connection.initiator_depth = param.initiator_depth;
            Ok(())
        }
        (Link::SidrReceived(request), param) => {
            let open = request.ok_or(Errno::EINVAL)?;
            let private_data = param.map_or(Vec::new(), |param| private_data(param).to_vec());
            let reply = SidrReply { private_data, ..SidrReply::valid(qpn) };
            host.cm.reply_sidr(host.now, open, reply).map_err(errno)?;
            *request = None;
            id.qkey = RDMA_UDP_QKEY;
            Ok(())
        }
        (Link::SidrSent(_) | Link::None, _) => Err(Errno::EINVAL),
    }
}

/// The error of a command that the connection manager refuses.
fn errno(error: CmError) -> Errno {
    match error {
        CmError::Limit => Errno::ENOMEM,
        CmError::Unknown | CmError::WrongState | CmError::TooLong | CmError::Address | CmError::Transport => {
            Errno::EINVAL
        }
    }
}

/// Refuses a command that ends before `least`: it has been part of the ABI from the beginning.
fn check_len(len: u16, least: usize) -> Result<(), Errno> {
    if usize::from(len) < least { Err(Errno::EINVAL) } else { Ok(()) }
}

fn private_data(param: &abi::ConnParam) -> &[u8] {
    &param.private_data[..usize::from(param.private_data_len)]
}

/// The transport of an id's queue pair.
fn transport(id: &Id) -> Result<CmTransport, Errno> {
    match id.qp_type {
        qp_type::RC => Ok(CmTransport::Rc),
        qp_type::UC => Ok(CmTransport::Uc),
        _ => Err(Errno::EINVAL),
    }
}
