//! INIT_QP_ATTR: what the program has to set its queue pair to.

use nix::errno::Errno;
use rxe_proto::wire::mad::RDMA_UDP_QKEY;
use zerocopy::FromZeros;

use super::id::{Connection, HOP_LIMIT, Id, Link, PathRecord, Phase, qp_type};
use super::query::PORT;
use super::{Host, RdmaCm, abi, check_room, respond};
use crate::local::Local;

/// States of queue pairs, as verbs number them.
mod qp_state {
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
    pub const ERR: u32 = 6;
}

/// Bits that say which attributes are given.
mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const DEST_QPN: u32 = 1 << 20;
}

/// Access rights of peers.
mod access {
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
}

impl RdmaCm {
    /// INIT_QP_ATTR.
    pub(super) fn init_qp_attr(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::InitQpAttr,
        room: usize,
    ) -> Result<(), Errno> {
        check_room(room, size_of::<abi::QpAttr>())?;
        if command.qp_state > qp_state::ERR {
            return Err(Errno::EINVAL);
        }
        let id = self.attached(file, command.id)?;
        let mut attr = abi::QpAttr { qp_state: command.qp_state, ..abi::QpAttr::new_zeroed() };
        match &id.link {
            Link::Connection(connection) if !id.is_datagram() => connected(host.local, id, connection, &mut attr)?,
            _ => unconnected(id, &mut attr),
        }
        if command.qp_state == qp_state::RTR {
            attr.rq_psn = id.psn.get();
        }
        if attr.qp_attr_mask & mask::TIMEOUT != 0
            && let Some(timeout) = id.ack_timeout
        {
            attr.timeout = timeout;
        }
        respond(command.response, &attr, room)
    }
}

/// The attributes of a queue pair without a connection.
fn unconnected(id: &mut Id, attr: &mut abi::QpAttr) {
    attr.qp_attr_mask = mask::STATE | mask::PKEY_INDEX | mask::PORT;
    attr.port_num = PORT;
    if id.is_datagram() {
        id.qkey = RDMA_UDP_QKEY;
        attr.qkey = id.qkey;
        attr.qp_attr_mask |= mask::QKEY;
    } else {
        attr.qp_attr_mask |= mask::ACCESS_FLAGS;
    }
}

/// The attributes of the queue pair of a connection.
fn connected(local: &Local, id: &Id, connection: &Connection, attr: &mut abi::QpAttr) -> Result<(), Errno> {
    let reliable = id.qp_type == qp_type::RC;
    match (attr.qp_state, connection.phase) {
        (_, Phase::Ended) => return Err(Errno::EINVAL),
        (qp_state::INIT, _) => {
            attr.qp_attr_mask = mask::STATE | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT;
            attr.port_num = PORT;
            attr.qp_access_flags = access::REMOTE_WRITE;
            if connection.responder_resources > 0 {
                attr.qp_access_flags |= access::REMOTE_READ | access::REMOTE_ATOMIC;
            }
        }
        // The peer's answer has the rest.
        (_, Phase::ReqSent) => return Err(Errno::EINVAL),
        (qp_state::RTR, _) => {
            let path = id.path.as_ref().ok_or(Errno::EINVAL)?;
            attr.qp_attr_mask = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
            attr.ah_attr = ah_attr(local, path);
            attr.path_mtu = u32::from(path.mtu.code());
            attr.dest_qp_num = connection.remote_qpn;
            if reliable {
                attr.qp_attr_mask |= mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
                attr.max_dest_rd_atomic = connection.responder_resources;
            }
        }
        (qp_state::RTS, _) => {
            attr.qp_attr_mask = mask::STATE | mask::SQ_PSN;
            attr.sq_psn = connection.sq_psn.get();
            if reliable {
                attr.qp_attr_mask |= mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC | mask::TIMEOUT;
                attr.retry_cnt = connection.retry_count;
                attr.rnr_retry = connection.rnr_retry_count;
                attr.max_rd_atomic = connection.initiator_depth;
                attr.timeout = connection.ack_timeout;
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// The address handle for a path.
pub fn ah_attr(local: &Local, path: &PathRecord) -> abi::AhAttr {
    let mut attr = abi::AhAttr::new_zeroed();
    attr.grh.dgid = path.dest.0;
    attr.grh.flow_label = path.flow_label;
    let index = local.gids.iter().position(|gid| *gid == path.source).unwrap_or(0);
    attr.grh.sgid_index = u8::try_from(index).unwrap_or(0);
    attr.grh.hop_limit = HOP_LIMIT;
    attr.grh.traffic_class = path.traffic_class;
    attr.is_global = 1;
    attr.port_num = PORT;
    attr
}
