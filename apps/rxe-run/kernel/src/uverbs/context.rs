//! Contexts: one for each time that the device is open.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use rxe_proto::Instant;
use rxe_proto::transport::Engine;

use super::Uverbs;
use super::abi::{AsyncEventDesc, CompEventDesc, CreateCompChannel, CreateCompChannelResp, GetContext, GetContextResp};
use super::channel::Channel;
use super::command::Command;
use super::ring::QueueMemory;
use super::table::ContextId;
use crate::backend::Objects;

/// The device opened once.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) id: ContextId,
    pub(super) memory: QueueMemory,
    /// Set by GET_CONTEXT, with which a program begins.
    initialized: bool,
    /// Asynchronous events, until the program closes their descriptor.
    pub(super) events: Option<AsyncChannel>,
    /// Completion channels by handle.
    pub(super) channels: BTreeMap<u32, Channel<CompEventDesc>>,
    /// Our ends of the last channels that were closed. As with a kernel, a thread that reads from one does not see its end.
    closed: VecDeque<OwnedFd>,
}

/// Closed channels whose ends are kept, at most.
const MAX_CLOSED: usize = 16;

/// The descriptor for asynchronous events.
#[derive(Debug)]
pub(super) struct AsyncChannel {
    handle: u32,
    pub(super) channel: Channel<AsyncEventDesc>,
}

impl Context {
    /// Whether an event channel has events that its socket had no room for.
    pub(super) fn has_waiting_events(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.channel.is_full())
            || self.channels.values().any(Channel::is_full)
    }

    /// The completion channel that the program has open as `fd`.
    pub(super) fn channel_at(&self, fd: RawFd) -> Option<u32> {
        self.channels.iter().find(|(_, channel)| channel.is_open_as(fd)).map(|(handle, _)| *handle)
    }
}

impl Uverbs {
    /// Opens the device. Returns the handle of the context, and the program's descriptor, which it maps its queues from.
    ///
    /// # Errors
    /// Those of memfd_create.
    pub fn open(&mut self) -> Result<(u32, OwnedFd), Errno> {
        let (memory, program) = QueueMemory::new()?;
        let id = ContextId(self.opened);
        self.opened = self.opened.wrapping_add(1);
        self.contexts.push(Context {
            id,
            memory,
            initialized: false,
            events: None,
            channels: BTreeMap::new(),
            closed: VecDeque::new(),
        });
        Ok((id.0, program))
    }

    /// Numbers of objects, without those of the connection manager.
    pub fn objects(&self) -> Objects {
        Objects {
            pds: self.pds.len(),
            cqs: self.cqs.len(),
            qps: self.qps.len(),
            cm_ids: 0,
            mrs: self.mrs.len(),
            contexts: self.contexts.len(),
            srqs: self.srqs.len(),
        }
    }

    /// Whether `handle` is an open context.
    pub fn is_open(&self, handle: u32) -> bool {
        self.contexts.iter().any(|context| context.id.0 == handle)
    }

    /// The program has closed a context: all objects of it are destroyed. Does nothing for a context that is not open.
    pub fn close(&mut self, engine: &mut Engine, now: Instant, handle: u32) {
        if let Some(at) = self.contexts.iter().position(|context| context.id.0 == handle) {
            let id = self.contexts[at].id;
            self.destroy_all(engine, now, id);
            self.contexts.remove(at);
        }
    }

    /// The event channel that the last command has made: its handle, and the descriptor, which the program knows and owns from
    /// now on.
    pub fn take_new_channel(&mut self) -> Option<(u32, OwnedFd)> {
        self.new_channel.take()
    }

    /// The program has closed an event channel, which gets no more events.
    pub fn close_channel(&mut self, handle: u32) {
        for context in &mut self.contexts {
            let events = context.events.take_if(|events| events.handle == handle);
            let events = events.map(|events| events.channel.into_end());
            let completions = context.channels.remove(&handle).map(Channel::into_end);
            context.closed.extend(events.into_iter().chain(completions));
            let surplus = context.closed.len().saturating_sub(MAX_CLOSED);
            context.closed.drain(..surplus);
        }
    }

    /// The handle of an event channel whose descriptor the program gets.
    fn name_channel(&mut self, program: OwnedFd) -> u32 {
        let handle = self.channels_opened;
        self.channels_opened = self.channels_opened.wrapping_add(1);
        self.new_channel = Some((handle, program));
        handle
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
        if self.is_initialized(command.context) {
            return Err(Errno::EINVAL);
        }
        let (channel, program) = Channel::new()?;
        command.call.respond(&GetContextResp { async_fd: program.as_raw_fd() as u32, num_comp_vectors })?;
        let handle = self.name_channel(program);
        let context = self.context_mut(command.context).ok_or(Errno::EBADF)?;
        context.events = Some(AsyncChannel { handle, channel });
        context.initialized = true;
        Ok(())
    }

    /// CREATE_COMP_CHANNEL
    pub(super) fn create_comp_channel(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        command.call.request::<CreateCompChannel>()?;
        let (channel, program) = Channel::new()?;
        command.call.respond(&CreateCompChannelResp { fd: program.as_raw_fd() as u32 })?;
        let handle = self.name_channel(program);
        let context = self.context_mut(command.context).ok_or(Errno::EBADF)?;
        context.channels.insert(handle, channel);
        Ok(())
    }
}
