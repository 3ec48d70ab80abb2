//! Shared receive queues.

use nix::errno::Errno;
use rxe_proto::transport::{Engine, SrqAttr, SrqError, SrqId, SrqInit};
use zerocopy::IntoBytes;

use super::Uverbs;
use super::abi::{
    CreateSrq, CreateSrqResp, CreateXsrq, DestroySrq, DestroySrqResp, ModifySrq, QuerySrq, QuerySrqResp,
    RxeCreateSrqResp, RxeModifySrq, SRQ_BASIC, event, srq_attr,
};
use super::command::Command;
use super::qp::WorkRing;
use super::wqe::recv_wqe_len;
use crate::user;

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) id: SrqId,
    pub(super) receives: WorkRing,
    /// The limit event is armed for this many receives; 0 is not.
    pub(super) limit: u32,
    pub(super) user_handle: u64,
    pub(super) events: u32,
}

impl Srq {
    /// Lets the program see how many receives queue pairs have taken.
    #[inline]
    pub(super) fn complete(&mut self, engine: &Engine) {
        self.receives.complete(engine.srq_len(self.id).unwrap_or(0));
    }
}

fn errno(error: SrqError) -> Errno {
    match error {
        SrqError::TooMany(_) => Errno::ENOMEM,
        SrqError::InUse(_) => Errno::EBUSY,
        _ => Errno::EINVAL,
    }
}

impl Uverbs {
    /// CREATE_SRQ
    pub(super) fn create_srq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request()?;
        self.make_srq(command, &request)
    }

    /// CREATE_XSRQ: the same for `ibv_create_srq_ex`, which Linux' rxe has for basic queues only.
    pub(super) fn create_xsrq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<CreateXsrq>()?;
        if request.srq_type != SRQ_BASIC {
            return Err(Errno::EOPNOTSUPP);
        }
        let CreateXsrq { response, user_handle, pd_handle, max_wr, max_sge, srq_limit, .. } = request;
        self.make_srq(command, &CreateSrq { response, user_handle, pd_handle, max_wr, max_sge, srq_limit })
    }

    fn make_srq(&mut self, command: &mut Command<'_>, request: &CreateSrq) -> Result<(), Errno> {
        let pd = self.pd(command.context, request.pd_handle)?;
        let max_sge = request.max_sge.max(1);
        let bad_size = request.max_wr == 0 || request.max_wr > self.limits.srq_wr || max_sge > self.limits.sge;
        if bad_size || request.srq_limit > request.max_wr {
            return Err(Errno::EINVAL);
        }
        command.call.check_provider_room::<RxeCreateSrqResp>()?;
        self.srqs.check_room()?;
        let context = self.context_mut(command.context).ok_or(Errno::EBADF)?;
        let ring = context.memory.create(request.max_wr, recv_wqe_len(max_sge))?;
        let max_wr = ring.capacity();
        let id = match command.engine.create_srq(&SrqInit { pd, max_wr, max_sge, limit: request.srq_limit }) {
            Ok(id) => id,
            Err(error) => {
                context.memory.free(ring);
                return Err(errno(error));
            }
        };
        let mi = ring.info();
        let limit = request.srq_limit;
        let receives = WorkRing::new(ring, max_sge);
        let srq = Srq { id, receives, limit, user_handle: request.user_handle, events: 0 };
        let srq_handle = self.srqs.insert(command.context, srq)?;
        self.srq_of.insert(id, srq_handle);
        // The number is for XRC, which has none here; libibverbs shows it.
        let srq_num = srq_handle;
        command
            .call
            .respond(&CreateSrqResp { srq_handle, max_wr, max_sge, srqn: srq_num })
            .and_then(|()| command.call.respond_provider(&RxeCreateSrqResp { mi, srq_num, reserved: 0 }))
            .inspect_err(|_| self.remove_srq(command.engine, srq_handle))
    }

    /// MODIFY_SRQ. The program posts no receives meanwhile; after a change of size it maps the new queue.
    pub(super) fn modify_srq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ModifySrq>()?;
        let provider = command.call.provider_request::<RxeModifySrq>()?;
        let resizes = request.attr_mask & srq_attr::MAX_WR != 0;
        let limits = request.attr_mask & srq_attr::LIMIT != 0;
        self.pull_srq(command.engine, request.srq_handle);
        let srq = self.srqs.get(command.context, request.srq_handle).ok_or(Errno::EINVAL)?;
        let limit = if limits { request.srq_limit } else { srq.limit };
        let bad_size = resizes && (request.max_wr == 0 || request.max_wr > self.limits.srq_wr);
        let max_wr = if resizes { request.max_wr } else { srq.receives.ring.capacity() };
        if bad_size || limit > max_wr {
            return Err(Errno::EINVAL);
        }
        if resizes {
            self.resize_srq(command, &request, provider.mmap_info_addr)?;
        }
        let srq = self.srqs.get_mut(command.context, request.srq_handle).ok_or(Errno::EINVAL)?;
        if limits {
            command.engine.modify_srq(srq.id, SrqAttr::limit(request.srq_limit)).map_err(errno)?;
            srq.limit = request.srq_limit;
        }
        Ok(())
    }

    fn resize_srq(&mut self, command: &mut Command<'_>, request: &ModifySrq, info_at: u64) -> Result<(), Errno> {
        let srq = self.srqs.get_mut(command.context, request.srq_handle).ok_or(Errno::EINVAL)?;
        let engine_has = command.engine.srq_len(srq.id).ok_or(Errno::EINVAL)?;
        let old = &srq.receives;
        let not_taken = old.ring.distance(old.taken, old.ring.producer());
        if engine_has + not_taken > request.max_wr {
            return Err(Errno::EINVAL);
        }
        let context = self.contexts.iter_mut().find(|context| context.id == command.context).ok_or(Errno::EBADF)?;
        let ring = context.memory.create(request.max_wr, recv_wqe_len(old.max_sge))?;
        // The engine's receives count as outstanding, as those in the ring do.
        for entry in 0..not_taken {
            ring.copy_entry(engine_has + entry, &old.ring, old.ring.after(old.taken, entry));
        }
        ring.set_producer(engine_has + not_taken);
        let resized = user::write(info_at, ring.info().as_bytes())
            .and_then(|()| command.engine.modify_srq(srq.id, SrqAttr::size(ring.capacity())).map_err(errno));
        if let Err(error) = resized {
            context.memory.free(ring);
            return Err(error);
        }
        let mut new = WorkRing::new(ring, old.max_sge);
        new.taken = engine_has;
        context.memory.free(std::mem::replace(&mut srq.receives, new).ring);
        Ok(())
    }

    /// QUERY_SRQ
    pub(super) fn query_srq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<QuerySrq>()?;
        let srq = self.srqs.get(command.context, request.srq_handle).ok_or(Errno::EINVAL)?;
        command.call.respond(&QuerySrqResp {
            max_wr: srq.receives.ring.capacity(),
            max_sge: srq.receives.max_sge,
            srq_limit: srq.limit,
            reserved: 0,
        })
    }

    /// DESTROY_SRQ
    pub(super) fn destroy_srq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<DestroySrq>()?;
        let srq = self.srqs.get(command.context, request.srq_handle).ok_or(Errno::ENOENT)?;
        command.engine.destroy_srq(srq.id).map_err(errno)?;
        let (user_handle, events) = (srq.user_handle, srq.events);
        let context = self.context_mut(command.context).ok_or(Errno::EBADF)?;
        let unread = context.take_back(user_handle, |kind| kind == event::SRQ_LIMIT_REACHED);
        self.remove_srq(command.engine, request.srq_handle);
        command.call.respond(&DestroySrqResp { events_reported: events.saturating_sub(unread) })
    }

    /// Destroys a shared receive queue.
    pub(super) fn remove_srq(&mut self, engine: &mut Engine, handle: u32) {
        let Some((owner, _)) = self.srqs.entry_mut(handle) else { return };
        let Some(srq) = self.srqs.remove(handle) else { return };
        self.srq_of.remove(&srq.id);
        // It may be gone already.
        let _ = engine.destroy_srq(srq.id);
        if let Some(context) = self.context_mut(owner) {
            context.memory.free(srq.receives.ring);
        }
    }
}
