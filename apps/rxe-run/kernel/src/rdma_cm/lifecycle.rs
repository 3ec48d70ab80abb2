//! Channels and ids from their creation to their end.

use std::os::fd::{OwnedFd, RawFd};

use nix::errno::Errno;
use rxe_proto::cm::SidrReply;
use rxe_proto::wire::cm::{PortSpace, RejReason, SidrStatus};

use super::channel::Channel;
use super::id::{Id, Link, Phase, port_space, qp_type};
use super::{Host, RdmaCm, abi, check_room, respond};

impl RdmaCm {
    /// Opens the device. Returns the handle of the new event channel, and the program's descriptor of it, which is close-on-exec
    /// and blocks.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn open(&mut self) -> Result<(u32, OwnedFd), Errno> {
        let (channel, program) = Channel::open()?;
        let file = self.opened;
        self.opened = self.opened.wrapping_add(1);
        self.channels.insert(file, channel);
        Ok((file, program))
    }

    /// The program has closed a channel, and no thread waits for its events: destroys its ids. Does nothing for a channel that is
    /// not open.
    pub fn close(&mut self, host: &mut Host<'_>, file: u32) {
        self.destroy_all(host, file);
        self.channels.remove(&file);
    }

    /// Ends everything, because the program exits: a disconnect or reject is enqueued for each connection, leaving each multicast
    /// group is an [`Action`](super::Action). The owner sends these without waiting for answers.
    pub fn shutdown(&mut self, host: &mut Host<'_>) {
        let channels: Vec<u32> = self.channels.keys().copied().collect();
        for file in channels {
            self.destroy_all(host, file);
        }
    }

    /// Destroys the ids of a channel.
    fn destroy_all(&mut self, host: &mut Host<'_>, file: u32) {
        let ids = self.channels.get(&file).map(|channel| channel.ids.clone()).unwrap_or_default();
        for handle in ids {
            self.destroy(host, handle);
        }
    }

    /// CREATE_ID.
    pub(super) fn create_id(&mut self, file: u32, command: &abi::CreateId, room: usize) -> Result<(), Errno> {
        check_room(room, size_of::<abi::CreateIdResp>())?;
        let space = port_space(command.ps).ok_or(Errno::EINVAL)?;
        let qp_type = match space {
            PortSpace::Tcp => qp_type::RC,
            PortSpace::Udp | PortSpace::Ipoib => qp_type::UD,
            PortSpace::Ib => command.qp_type,
        };
        let psn = self.random_psn();
        let handle = self.insert(Id::new(file, command.uid, space, qp_type, psn)).ok_or(Errno::ENOMEM)?;
        respond(command.response, &abi::CreateIdResp { id: handle }, room).inspect_err(|_| {
            self.remove(handle);
        })
    }

    /// DESTROY_ID.
    pub(super) fn destroy_id(
        &mut self,
        host: &mut Host<'_>,
        file: u32,
        command: &abi::DestroyId,
        room: usize,
    ) -> Result<(), Errno> {
        check_room(room, size_of::<abi::DestroyIdResp>())?;
        self.id(file, command.id)?;
        let events_reported = self.destroy(host, command.id);
        respond(command.response, &abi::DestroyIdResp { events_reported }, room)
    }

    /// MIGRATE_ID: moves an id and its events to the channel `file`.
    pub(super) fn migrate_id(
        &mut self,
        host: &Host<'_>,
        file: u32,
        command: &abi::MigrateId,
        room: usize,
    ) -> Result<(), Errno> {
        let fd = RawFd::try_from(command.fd).map_err(|_| Errno::ENOENT)?;
        // A descriptor that is open, but not of this device, is EINVAL in a kernel. Here both are the same.
        let from = (host.file_at)(fd).filter(|from| self.channels.contains_key(from)).ok_or(Errno::EINVAL)?;
        let handle = command.id;
        let events_reported = self.id(from, handle)?.events_reported;
        let events = match self.channels.get_mut(&from) {
            Some(channel) if from != file => channel.extract(|event| event.id == handle),
            _ => Vec::new(),
        };
        // The program reads of requested connections on the new channel, so they move too.
        for moving in events.iter().filter_map(|event| event.request).chain([handle]) {
            if let Some(id) = self.ids.get_mut(moving)
                && let Some(channel) = self.channels.get_mut(&std::mem::replace(&mut id.channel, file))
            {
                channel.ids.remove(&moving);
            }
            if let Some(channel) = self.channels.get_mut(&file) {
                channel.ids.insert(moving);
            }
        }
        if let Some(channel) = self.channels.get_mut(&file) {
            events.into_iter().for_each(|event| channel.push(event));
        }
        respond(command.response, &abi::MigrateResp { events_reported }, room)
    }

    /// Adds an id to the table and to its channel.
    pub(super) fn insert(&mut self, id: Id) -> Option<u32> {
        let channel = self.channels.get_mut(&id.channel)?;
        let handle = self.ids.insert(id)?;
        channel.ids.insert(handle);
        Some(handle)
    }

    /// Removes an id from the table and from its channel.
    fn remove(&mut self, handle: u32) -> Option<Id> {
        let id = self.ids.remove(handle)?;
        if let Some(channel) = self.channels.get_mut(&id.channel) {
            channel.ids.remove(&handle);
        }
        Some(id)
    }

    /// Destroys an id: ends its connection, releases what it has, and removes its events. Returns how many events of it the program
    /// has read; it waits until it has handled that many.
    pub(super) fn destroy(&mut self, host: &mut Host<'_>, handle: u32) -> u32 {
        let Some(mut id) = self.remove(handle) else { return 0 };
        for membership in std::mem::take(&mut id.multicasts) {
            self.leave(membership);
        }
        if id.has_port {
            self.ports.release(&id, handle);
        }
        self.unlink(host, &id);
        let Some(channel) = self.channels.get_mut(&id.channel) else { return id.events_reported };
        for event in channel.extract(|event| event.id == handle || event.request == Some(handle)) {
            match event.request {
                // A request that the program has destroyed before it has read of it.
                Some(request) if request == handle => {
                    if let Some(listener) = self.ids.get_mut(event.id) {
                        listener.backlog += 1;
                    }
                }
                // A request to the destroyed listener.
                Some(request) => {
                    self.destroy(host, request);
                }
                None => {}
            }
        }
        id.events_reported
    }

    /// Ends what an id has to do with the connection manager.
    fn unlink(&mut self, host: &mut Host<'_>, id: &Id) {
        // None of these can fail for an id that is linked, and nothing is left to do for one that is gone.
        match &id.link {
            Link::None | Link::SidrSent(None) | Link::SidrReceived(None) => {}
            Link::Connection(connection) => {
                let conn = connection.conn;
                self.forget_connection(conn, id.qpn);
                let _gone = match connection.phase {
                    Phase::ReqReceived => host.cm.reject(conn, RejReason::ConsumerDefined, &[], &[]),
                    Phase::Ended => Ok(()),
                    _ => host.cm.disconnect(host.now, conn),
                };
            }
            Link::SidrSent(Some(request)) => {
                self.sidr_requests.remove(request);
                host.cm.cancel_resolve(*request);
            }
            Link::SidrReceived(Some(request)) => {
                let _gone = host.cm.reply_sidr(host.now, *request, SidrReply::refuse(SidrStatus::Rejected));
            }
        }
    }
}
