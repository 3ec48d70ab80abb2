//! Completion queues.

use nix::errno::Errno;
use rxe_proto::transport::{CqId, Engine};

use super::Uverbs;
use super::abi::{
    CompEventDesc, CreateCq, CreateCqResp, DestroyCq, DestroyCqResp, ExCreateCq, ExCreateCqResp, ReqNotifyCq, ResizeCq,
    ResizeCqResp, RxeCqResp, event,
};
use super::command::Command;
use super::ring::Ring;
use super::table::ContextId;

/// Length of an entry: `rxe_cqe` is a union of `ib_uverbs_wc` and the kernel's own, longer `ib_wc`.
const ENTRY_LEN: usize = 64;

/// The completion that notifies the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Armed {
    /// None.
    No,
    /// The next one that is solicited, or failed.
    Solicited,
    /// The next one.
    Next,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    pub(super) id: CqId,
    pub(super) ring: Ring,
    /// Where the next completion goes. The program's copy of it in the ring is never read.
    pub(super) producer: u32,
    pub(super) armed: Armed,
    /// Number of its completion channel in its context.
    channel: Option<u32>,
    pub(super) user_handle: u64,
    /// Events written to the completion channel, and to the asynchronous one.
    comp_events: u32,
    pub(super) async_events: u32,
}

impl Cq {
    /// Entries that the program has not polled, by its own index.
    fn unpolled(&self) -> u32 {
        self.ring.distance(self.ring.consumer(), self.producer)
    }

    /// Entries for which there is room.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        self.ring.capacity() - self.unpolled()
    }
}

impl Uverbs {
    /// CREATE_CQ
    pub(super) fn create_cq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let CreateCq { user_handle, cqe, comp_vector, comp_channel, .. } = command.call.request()?;
        let request = ExCreateCq { user_handle, cqe, comp_vector, comp_channel, comp_mask: 0, flags: 0, reserved: 0 };
        let response = self.make_cq(command, &request)?;
        let respond = |this: &Uverbs| {
            command.call.respond(&response)?;
            this.respond_cq(command, response.cq_handle)
        };
        respond(self).inspect_err(|_| self.remove_cq(command.engine, response.cq_handle))
    }

    /// EX_CREATE_CQ
    pub(super) fn ex_create_cq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ExCreateCq>()?;
        if request.comp_mask != 0 || request.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        let base = self.make_cq(command, &request)?;
        let response_length = command.call.response_length::<ExCreateCqResp>();
        let respond = |this: &Uverbs| {
            command.call.respond(&ExCreateCqResp { base, comp_mask: 0, response_length })?;
            this.respond_cq(command, base.cq_handle)
        };
        respond(self).inspect_err(|_| self.remove_cq(command.engine, base.cq_handle))
    }

    fn respond_cq(&self, command: &Command<'_>, handle: u32) -> Result<(), Errno> {
        let cq = self.cqs.at(handle).ok_or(Errno::EINVAL)?;
        command.call.respond_provider(&RxeCqResp { mi: cq.ring.info() })
    }

    fn make_cq(&mut self, command: &mut Command<'_>, request: &ExCreateCq) -> Result<CreateCqResp, Errno> {
        if request.comp_vector >= self.vectors || request.cqe == 0 || request.cqe > self.limits.cqe {
            return Err(Errno::EINVAL);
        }
        // No timestamps, and an overrun is never ignored.
        if request.flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        command.call.check_provider_room::<RxeCqResp>()?;
        self.cqs.check_room()?;
        let context = self.context_mut(command.context).ok_or(Errno::EBADF)?;
        let channel = match request.comp_channel {
            ..0 => None,
            fd => Some(context.channel_at(fd).ok_or(Errno::EBADF)?),
        };
        let ring = context.memory.create(request.cqe, ENTRY_LEN)?;
        let cqe = ring.capacity();
        let id = match command.engine.create_cq(cqe as usize) {
            Ok(id) => id,
            Err(_) => {
                context.memory.free(ring);
                return Err(Errno::ENOMEM);
            }
        };
        let cq = Cq {
            id,
            ring,
            producer: 0,
            armed: Armed::No,
            channel,
            user_handle: request.user_handle,
            comp_events: 0,
            async_events: 0,
        };
        let cq_handle = self.cqs.insert(command.context, cq)?;
        self.cq_of.insert(id, cq_handle);
        Ok(CreateCqResp { cq_handle, cqe })
    }

    /// RESIZE_CQ. The program maps the new queue when it has the response, and does not poll meanwhile.
    pub(super) fn resize_cq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ResizeCq>()?;
        if request.cqe == 0 || request.cqe > self.limits.cqe {
            return Err(Errno::EINVAL);
        }
        command.call.check_provider_room::<RxeCqResp>()?;
        self.cqs.get(command.context, request.cq_handle).ok_or(Errno::EINVAL)?;
        self.deliver_to(command.engine, request.cq_handle);
        let cq = self.cqs.get_mut(command.context, request.cq_handle).ok_or(Errno::EINVAL)?;
        let unpolled = cq.unpolled();
        if request.cqe < unpolled {
            return Err(Errno::EINVAL);
        }
        let context = self.contexts.iter_mut().find(|context| context.id == command.context).ok_or(Errno::EBADF)?;
        let ring = context.memory.create(request.cqe, ENTRY_LEN)?;
        let cqe = ring.capacity();
        let first = cq.ring.before(cq.producer, unpolled);
        for entry in 0..unpolled {
            ring.copy_entry(entry, &cq.ring, cq.ring.after(first, entry));
        }
        ring.set_producer(unpolled);
        // The program learns of the new queue before it takes the old one's place: a bad address changes nothing.
        let resized = command
            .call
            .respond_provider(&RxeCqResp { mi: ring.info() })
            .and_then(|()| command.call.respond(&ResizeCqResp { cqe, reserved: 0 }))
            .and_then(|()| command.engine.resize_cq(cq.id, cqe as usize).map_err(|_| Errno::EINVAL));
        if let Err(error) = resized {
            context.memory.free(ring);
            return Err(error);
        }
        context.memory.free(std::mem::replace(&mut cq.ring, ring));
        cq.producer = unpolled;
        Ok(())
    }

    /// REQ_NOTIFY_CQ. What the engine has completed is delivered first: the program polls after this, and would wait for a
    /// completion that is there already.
    pub(super) fn req_notify_cq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ReqNotifyCq>()?;
        self.cqs.get(command.context, request.cq_handle).ok_or(Errno::EINVAL)?;
        self.deliver_to(command.engine, request.cq_handle);
        let cq = self.cqs.get_mut(command.context, request.cq_handle).ok_or(Errno::EINVAL)?;
        // "Next completion" overrides "solicited only", as in the standard's "Request Completion Notification".
        if cq.armed != Armed::Next {
            cq.armed = if request.solicited_only != 0 { Armed::Solicited } else { Armed::Next };
        }
        Ok(())
    }

    /// DESTROY_CQ. libibverbs waits until the program has acknowledged as many events as are reported here, so those that
    /// it can no longer read do not count.
    pub(super) fn destroy_cq(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<DestroyCq>()?;
        let cq = self.cqs.get(command.context, request.cq_handle).ok_or(Errno::ENOENT)?;
        command.engine.destroy_cq(cq.id).map_err(|_| Errno::EBUSY)?;
        let (user_handle, channel) = (cq.user_handle, cq.channel);
        let mut response =
            DestroyCqResp { comp_events_reported: cq.comp_events, async_events_reported: cq.async_events };
        if let Some(context) = self.context_mut(command.context) {
            if let Some(channel) = channel.and_then(|channel| context.channels.get_mut(&channel)) {
                let unread = channel.take_back(|event| event.cq_handle == user_handle);
                response.comp_events_reported = response.comp_events_reported.saturating_sub(unread);
            }
            let unread = context.take_back(user_handle, |kind| kind == event::CQ_ERR);
            response.async_events_reported = response.async_events_reported.saturating_sub(unread);
        }
        self.remove_cq(command.engine, request.cq_handle);
        command.call.respond(&response)
    }

    /// Destroys a completion queue.
    pub(super) fn remove_cq(&mut self, engine: &mut Engine, handle: u32) {
        let Some((owner, _)) = self.cqs.entry_mut(handle) else { return };
        let Some(cq) = self.cqs.remove(handle) else { return };
        self.cq_of.remove(&cq.id);
        // It may be gone already.
        let _ = engine.destroy_cq(cq.id);
        if let Some(context) = self.context_mut(owner) {
            context.memory.free(cq.ring);
        }
    }

    /// Writes the event of a completion queue that was armed.
    pub(super) fn fire(&mut self, owner: ContextId, handle: u32) {
        let Some(cq) = self.cqs.at_mut(handle) else { return };
        let Some(number) = cq.channel else { return };
        let context = self.contexts.iter_mut().find(|context| context.id == owner);
        if let Some(channel) = context.and_then(|context| context.channels.get_mut(&number))
            && channel.push(CompEventDesc { cq_handle: cq.user_handle })
        {
            cq.comp_events = cq.comp_events.wrapping_add(1);
        }
    }
}
