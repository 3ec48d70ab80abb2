//! Queue pairs: creation, queries, destruction.

use nix::errno::Errno;
use rxe_proto::Instant;
use rxe_proto::mem::PdId;
use rxe_proto::transport::{Engine, QpCaps, QpError, QpInit, QpState, QpType, Qpn};
use rxe_proto::wire::Gid;
use zerocopy::FromZeros;

use super::Uverbs;
use super::abi::{
    CREATE_QP_FLAGS, CREATE_QP_IND_TABLE, CreateQp, CreateQpResp, DestroyQp, DestroyQpResp, ExCreateQp, ExCreateQpResp,
    ModifyQp, QpDest, QueryQp, QueryQpResp, RxeCreateQpResp, RxeSge, SEND_WQE_LEN, event, qp_state, qp_type,
};
use super::command::Command;
use super::ring::Ring;
use super::table::ContextId;
use super::wqe::recv_wqe_len;

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) qpn: Qpn,
    pub(super) qp_type: QpType,
    pub(super) pd: u32,
    /// The engine's protection domain of it.
    pub(super) pd_id: PdId,
    pub(super) srq: Option<u32>,
    pub(super) sends: WorkRing,
    /// Its receives, unless they come from a shared queue.
    pub(super) receives: Option<WorkRing>,
    /// Sizes as the program knows them.
    pub(super) caps: QpCaps,
    sq_sig_all: bool,
    /// Attributes as the program has set them.
    pub(super) attr: ModifyQp,
    pub(super) groups: Vec<Gid>,
    pub(super) user_handle: u64,
    pub(super) events: u32,
    /// Index of the last work request that was taken and to which the peer returns data, while it may be outstanding.
    pub(super) last_read: Option<u32>,
    /// Whether it is in the list of queue pairs with work requests to be taken.
    pub(super) is_unsent: bool,
    /// Whether it is in the list of queue pairs with outstanding work requests.
    pub(super) is_sending: bool,
}

/// A work queue that the program fills.
#[derive(Debug)]
pub(super) struct WorkRing {
    pub(super) ring: Ring,
    /// Index of the next work request to pass to the engine.
    pub(super) taken: u32,
    /// Index of the oldest work request that has not completed, as the program sees it. So a program never has more
    /// work requests outstanding than it asked for, and the engine has room for all that a ring holds.
    consumer: u32,
    pub(super) max_sge: u32,
}

impl WorkRing {
    pub(super) fn new(ring: Ring, max_sge: u32) -> WorkRing {
        WorkRing { ring, taken: 0, consumer: 0, max_sge }
    }

    /// The program's work requests are forgotten.
    pub(super) fn reset(&mut self) {
        (self.taken, self.consumer) = (0, 0);
        self.ring.set_producer(0);
        self.ring.set_consumer(0);
    }

    /// Lets the program see how many have completed: all that were taken but the `queued` ones that the engine still has.
    #[inline]
    pub(super) fn complete(&mut self, queued: u32) {
        let consumer = self.ring.before(self.taken, queued);
        if consumer != self.consumer {
            self.consumer = consumer;
            self.ring.set_consumer(consumer);
        }
    }
}

/// The state that `ibv_query_qp` shows for a state of the engine.
pub(super) fn state_number(state: QpState) -> u8 {
    match state {
        QpState::Reset => qp_state::RESET,
        QpState::Init => qp_state::INIT,
        QpState::Rtr => qp_state::RTR,
        QpState::Rts => qp_state::RTS,
        QpState::Sqd => qp_state::SQD,
        QpState::Sqe => qp_state::SQE,
        QpState::Error => qp_state::ERR,
    }
}

/// The kernel's error for one of the engine's.
pub(super) fn errno(error: QpError) -> Errno {
    match error {
        QpError::TooMany(_) => Errno::ENOMEM,
        _ => Errno::EINVAL,
    }
}

impl Uverbs {
    /// CREATE_QP
    pub(super) fn create_qp(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let legacy = command.call.request::<CreateQp>()?;
        let request = ExCreateQp {
            user_handle: legacy.user_handle,
            pd_handle: legacy.pd_handle,
            send_cq_handle: legacy.send_cq_handle,
            recv_cq_handle: legacy.recv_cq_handle,
            srq_handle: legacy.srq_handle,
            max_send_wr: legacy.max_send_wr,
            max_recv_wr: legacy.max_recv_wr,
            max_send_sge: legacy.max_send_sge,
            max_recv_sge: legacy.max_recv_sge,
            max_inline_data: legacy.max_inline_data,
            sq_sig_all: legacy.sq_sig_all,
            qp_type: legacy.qp_type,
            is_srq: legacy.is_srq,
            ..ExCreateQp::new_zeroed()
        };
        let response = self.make_qp(command, &request)?;
        command
            .call
            .respond(&response)
            .and_then(|()| self.respond_qp(command, response.qp_handle))
            .inspect_err(|_| self.remove_qp(command.engine, command.now, response.qp_handle))
    }

    /// EX_CREATE_QP
    pub(super) fn ex_create_qp(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ExCreateQp>()?;
        if request.comp_mask & !CREATE_QP_IND_TABLE != 0 || request.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let base = self.make_qp(command, &request)?;
        let response_length = command.call.response_length::<ExCreateQpResp>();
        command
            .call
            .respond(&ExCreateQpResp { base, comp_mask: 0, response_length })
            .and_then(|()| self.respond_qp(command, base.qp_handle))
            .inspect_err(|_| self.remove_qp(command.engine, command.now, base.qp_handle))
    }

    fn respond_qp(&self, command: &Command<'_>, handle: u32) -> Result<(), Errno> {
        let qp = self.qps.at(handle).ok_or(Errno::EINVAL)?;
        let mut rings = RxeCreateQpResp::new_zeroed();
        rings.sq_mi = qp.sends.ring.info();
        if let Some(receives) = &qp.receives {
            rings.rq_mi = receives.ring.info();
        }
        command.call.respond_provider(&rings)
    }

    fn make_qp(&mut self, command: &mut Command<'_>, request: &ExCreateQp) -> Result<CreateQpResp, Errno> {
        let qp_type = service(request.qp_type)?;
        let srq_handle = (request.is_srq != 0).then_some(request.srq_handle);
        // There are no indirection tables.
        if request.comp_mask != 0 || request.create_flags & !CREATE_QP_FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        if request.create_flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        command.call.check_provider_room::<RxeCreateQpResp>()?;
        let context = command.context;
        let srq = srq_handle.map(|handle| self.srqs.get(context, handle).map(|srq| srq.id).ok_or(Errno::EINVAL));
        let srq = srq.transpose()?;
        let cq = |handle| self.cqs.get(context, handle).map(|cq| cq.id).ok_or(Errno::EINVAL);
        let (send_cq, recv_cq) = (cq(request.send_cq_handle)?, cq(request.recv_cq_handle)?);
        let pd = self.pd(context, request.pd_handle)?;
        self.check_caps(request, srq.is_some())?;
        self.qps.check_room()?;

        // A send queue entry's room serves buffers or inline data, so the larger request gives both.
        let room = (request.max_send_sge as usize * size_of::<RxeSge>()).max(request.max_inline_data as usize);
        let room = room.next_multiple_of(size_of::<RxeSge>());
        let memory = &mut self.contexts.iter_mut().find(|of| of.id == context).ok_or(Errno::EBADF)?.memory;
        let send_ring = memory.create(request.max_send_wr, SEND_WQE_LEN + room)?;
        let recv_ring = match srq {
            Some(_) => None,
            None => match memory.create(request.max_recv_wr, recv_wqe_len(request.max_recv_sge)) {
                Ok(ring) => Some(ring),
                Err(error) => {
                    memory.free(send_ring);
                    return Err(error);
                }
            },
        };
        let caps = QpCaps {
            max_send_wr: send_ring.capacity(),
            max_recv_wr: recv_ring.as_ref().map_or(0, Ring::capacity),
            max_send_sge: (room / size_of::<RxeSge>()) as u32,
            max_recv_sge: if srq.is_some() { 0 } else { request.max_recv_sge },
            max_inline_data: room as u32,
        };
        let sq_sig_all = request.sq_sig_all != 0;
        // The engine also keeps payloads that are read when they are posted.
        let max_inline_data = caps.max_inline_data.max(self.limits.early_data);
        let engine_caps = QpCaps { max_inline_data, ..caps };
        let init = QpInit { qp_type, pd, send_cq, recv_cq, srq, caps: engine_caps, sq_sig_all };
        let qpn = match command.engine.create_qp(command.now, &init) {
            Ok(qpn) => qpn,
            Err(error) => {
                memory.free(send_ring);
                recv_ring.into_iter().for_each(|ring| memory.free(ring));
                return Err(errno(error));
            }
        };
        let qp = Qp {
            qpn,
            qp_type,
            pd: request.pd_handle,
            pd_id: pd,
            srq: srq_handle,
            sends: WorkRing::new(send_ring, caps.max_send_sge),
            receives: recv_ring.map(|ring| WorkRing::new(ring, caps.max_recv_sge)),
            caps,
            sq_sig_all,
            attr: ModifyQp::new_zeroed(),
            groups: Vec::new(),
            user_handle: request.user_handle,
            events: 0,
            last_read: None,
            is_unsent: false,
            is_sending: false,
        };
        let qp_handle = self.qps.insert(context, qp)?;
        self.qp_of.insert(qpn, qp_handle);
        Ok(CreateQpResp {
            qp_handle,
            qpn: qpn.get(),
            max_send_wr: caps.max_send_wr,
            // With a shared receive queue they mean nothing, and come back as they were.
            max_recv_wr: if srq.is_some() { request.max_recv_wr } else { caps.max_recv_wr },
            max_send_sge: caps.max_send_sge,
            max_recv_sge: request.max_recv_sge,
            max_inline_data: caps.max_inline_data,
            reserved: 0,
        })
    }

    fn check_caps(&self, request: &ExCreateQp, has_srq: bool) -> Result<(), Errno> {
        let limits = &self.limits;
        let receives_fit = has_srq || request.max_recv_wr <= limits.qp_wr && request.max_recv_sge <= limits.sge;
        let sends_fit = request.max_send_wr <= limits.qp_wr
            && request.max_send_sge <= limits.sge
            && request.max_inline_data <= limits.inline_data;
        if sends_fit && receives_fit { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// QUERY_QP
    pub(super) fn query_qp(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<QueryQp>()?;
        let qp = self.qps.get(command.context, request.qp_handle).ok_or(Errno::EINVAL)?;
        let info = command.engine.query_qp(qp.qpn).ok_or(Errno::EINVAL)?;
        let (attr, caps) = (&qp.attr, &qp.caps);
        let state = state_number(info.state);
        let response = QueryQpResp {
            dest: attr.dest,
            alt_dest: QpDest::new_zeroed(),
            max_send_wr: caps.max_send_wr,
            max_recv_wr: caps.max_recv_wr,
            max_send_sge: caps.max_send_sge,
            max_recv_sge: caps.max_recv_sge,
            max_inline_data: caps.max_inline_data,
            qkey: attr.qkey,
            rq_psn: info.expected_psn.get(),
            sq_psn: info.next_psn.get(),
            dest_qp_num: attr.dest_qp_num,
            qp_access_flags: attr.qp_access_flags,
            pkey_index: attr.pkey_index,
            alt_pkey_index: 0,
            qp_state: state,
            cur_qp_state: state,
            path_mtu: attr.path_mtu,
            path_mig_state: 0,
            sq_draining: info.sq_draining.into(),
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_num: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            alt_port_num: 0,
            alt_timeout: 0,
            sq_sig_all: qp.sq_sig_all.into(),
            reserved: [0; 5],
        };
        command.call.respond(&response)
    }

    /// DESTROY_QP
    pub(super) fn destroy_qp(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<DestroyQp>()?;
        let qp = self.qps.get(command.context, request.qp_handle).ok_or(Errno::ENOENT)?;
        // The program detaches it first.
        if !qp.groups.is_empty() {
            return Err(Errno::EBUSY);
        }
        let (user_handle, events) = (qp.user_handle, qp.events);
        let context = self.context_mut(command.context).ok_or(Errno::EBADF)?;
        let unread = context.take_back(user_handle, event::is_of_qp);
        self.remove_qp(command.engine, command.now, request.qp_handle);
        command.call.respond(&DestroyQpResp { events_reported: events.saturating_sub(unread) })
    }

    /// Destroys a queue pair.
    pub(super) fn remove_qp(&mut self, engine: &mut Engine, now: Instant, handle: u32) {
        let Some((owner, _)) = self.qps.entry_mut(handle) else { return };
        let Some(qp) = self.qps.remove(handle) else { return };
        self.qp_of.remove(&qp.qpn);
        self.members.retain(|&member| member != handle);
        self.broken.retain(|&broken| broken != handle);
        self.unsent.retain(|&unsent| unsent != handle);
        self.sending.retain(|&sending| sending != handle);
        let _ = engine.destroy_qp(now, qp.qpn);
        if let Some(context) = self.context_mut(owner) {
            context.memory.free(qp.sends.ring);
            qp.receives.into_iter().for_each(|receives| context.memory.free(receives.ring));
        }
    }

    /// The queue pair of a number, with its handle and owner.
    #[inline]
    pub(super) fn qp_by_number(&mut self, qpn: Qpn) -> Option<(u32, ContextId, &mut Qp)> {
        let handle = *self.qp_of.get(&qpn)?;
        self.qps.entry_mut(handle).map(|(owner, qp)| (handle, owner, qp))
    }
}

/// The transport service of a queue pair type.
///
/// # Errors
/// `EOPNOTSUPP` for one that Linux' rxe does not have either.
fn service(number: u8) -> Result<QpType, Errno> {
    match number {
        qp_type::RC => Ok(QpType::Rc),
        qp_type::UC => Ok(QpType::Uc),
        qp_type::UD => Ok(QpType::Ud),
        qp_type::RAW_PACKET | qp_type::XRC_SEND | qp_type::XRC_RECV | qp_type::DRIVER => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}
