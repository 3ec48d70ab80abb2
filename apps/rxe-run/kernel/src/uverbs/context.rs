//! Contexts: one for each time that the device is open.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use rxe_proto::Instant;
use rxe_proto::transport::Engine;

use super::Uverbs;
use super::abi::{AsyncEventDesc, CompEventDesc, CreateCompChannel, CreateCompChannelResp, GetContext, GetContextResp};
use super::channel::Channel;
use super::command::Command;
use super::ring::QueueMemory;
use super::table::ContextId;

/// The device opened once.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) id: ContextId,
    /// The program's descriptor.
    fd: RawFd,
    pub(super) memory: QueueMemory,
    /// Set by GET_CONTEXT, with which a program begins.
    initialized: bool,
    /// Asynchronous events, until the program closes their descriptor.
    pub(super) events: Option<AsyncChannel>,
    /// Completion channels by a number that is not used again.
    pub(super) channels: BTreeMap<u32, CompChannel>,
    channels_created: u32,
}

/// What the program reads asynchronous events from.
#[derive(Debug)]
pub(super) struct AsyncChannel {
    fd: RawFd,
    pub(super) channel: Channel<AsyncEventDesc>,
}

/// What the program reads completion events from.
#[derive(Debug)]
pub(super) struct CompChannel {
    fd: RawFd,
    pub(super) channel: Channel<CompEventDesc>,
}

impl Context {
    /// The completion channel whose descriptor is `fd` now.
    pub(super) fn channel_at(&self, fd: RawFd) -> Option<u32> {
        let (number, channel) = self.channels.iter().find(|(_, channel)| channel.fd == fd)?;
        channel.channel.is_open_as(fd).then_some(*number)
    }
}

impl Uverbs {
    /// Opens the device: the program gets the returned descriptor, into which it maps its queues.
    ///
    /// # Errors
    /// Those of memfd_create.
    pub fn open(&mut self, engine: &mut Engine, now: Instant) -> io::Result<OwnedFd> {
        let (memory, program) = QueueMemory::new()?;
        // A descriptor of this number that was closed without `close`.
        self.close(engine, now, program.as_raw_fd());
        let id = ContextId(self.opened);
        self.opened = self.opened.wrapping_add(1);
        self.contexts.push(Context {
            id,
            fd: program.as_raw_fd(),
            memory,
            initialized: false,
            events: None,
            channels: BTreeMap::new(),
            channels_created: 0,
        });
        Ok(program)
    }

    /// Whether `fd` is an open context.
    pub fn owns(&self, fd: RawFd) -> bool {
        self.context_at(fd).is_some()
    }

    /// The program closes descriptor `fd`: call it before the descriptor is closed, for any descriptor. All objects of a
    /// context are destroyed; an event channel gets no more events; anything else is none of the device's.
    pub fn close(&mut self, engine: &mut Engine, now: Instant, fd: RawFd) {
        if let Some(at) = self.contexts.iter().position(|context| context.fd == fd) {
            let id = self.contexts[at].id;
            self.destroy_all(engine, now, id);
            self.contexts.remove(at);
        }
        for context in &mut self.contexts {
            context.events.take_if(|events| events.fd == fd);
            context.channels.retain(|_, channel| channel.fd != fd);
        }
    }

    /// Destroys the objects of a context, users before what they use.
    fn destroy_all(&mut self, engine: &mut Engine, now: Instant, id: ContextId) {
        for handle in self.qps.handles_of(id) {
            self.remove_qp(engine, now, handle);
        }
        for handle in self.srqs.handles_of(id) {
            self.remove_srq(engine, handle);
        }
        for handle in self.ahs.handles_of(id) {
            self.remove_ah(engine, handle);
        }
        for handle in self.mws.handles_of(id) {
            self.remove_mw(engine, handle);
        }
        for handle in self.cqs.handles_of(id) {
            self.remove_cq(engine, handle);
        }
        for handle in self.mrs.handles_of(id) {
            self.remove_mr(engine, handle);
        }
        for handle in self.pds.handles_of(id) {
            self.remove_pd(engine, handle);
        }
    }

    /// Ends of event channels that have events for the program but no room: poll them for `POLLOUT`, and call
    /// [`deliver`](Self::deliver) when one has room. None, unless a program leaves hundreds of events unread.
    pub fn blocked_channels(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.contexts.iter().flat_map(|context| {
            let events = context.events.iter().filter_map(|events| events.channel.blocked());
            events.chain(context.channels.values().filter_map(|channel| channel.channel.blocked()))
        })
    }

    pub(super) fn context_at(&self, fd: RawFd) -> Option<&Context> {
        self.contexts.iter().find(|context| context.fd == fd)
    }

    pub(super) fn context_mut(&mut self, id: ContextId) -> Option<&mut Context> {
        self.contexts.iter_mut().find(|context| context.id == id)
    }

    pub(super) fn is_initialized(&self, id: ContextId) -> bool {
        self.contexts.iter().any(|context| context.id == id && context.initialized)
    }

    /// GET_CONTEXT
    pub(super) fn get_context(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        command.call.request::<GetContext>()?;
        if self.contexts.iter().filter(|context| context.initialized).count() >= self.limits.contexts {
            return Err(Errno::ENOMEM);
        }
        let num_comp_vectors = self.vectors;
        let context = self.context_mut(command.context).ok_or(Errno::EBADF)?;
        if context.initialized {
            return Err(Errno::EINVAL);
        }
        let (channel, program) = Channel::new()?;
        command.call.respond(&GetContextResp { async_fd: program.as_raw_fd() as u32, num_comp_vectors })?;
        context.events = Some(AsyncChannel { fd: program.into_raw_fd(), channel });
        context.initialized = true;
        Ok(())
    }

    /// CREATE_COMP_CHANNEL
    pub(super) fn create_comp_channel(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        command.call.request::<CreateCompChannel>()?;
        let context = self.context_mut(command.context).ok_or(Errno::EBADF)?;
        let (channel, program) = Channel::new()?;
        command.call.respond(&CreateCompChannelResp { fd: program.as_raw_fd() as u32 })?;
        let fd = program.into_raw_fd();
        // A channel whose descriptor of this number was closed without `close`.
        context.channels.retain(|_, channel| channel.fd != fd);
        context.channels.insert(context.channels_created, CompChannel { fd, channel });
        context.channels_created = context.channels_created.wrapping_add(1);
        Ok(())
    }
}
