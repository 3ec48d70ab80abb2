//! Event channels: what the program gets from opening the device.
//!
//! The program's descriptor is one end of a pair of connected sockets, so that `poll`, `epoll` and `O_NONBLOCK` are the
//! kernel's. There is one byte in the socket while events are queued. A thread of the program that has to wait for an event
//! reads that byte, and comes back with it.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use super::abi::EventResp;
use crate::descriptors::{duplicate, out_of_the_way};

/// An event that the program has not read yet.
#[derive(Clone)]
pub struct Event {
    /// The id that it is reported to.
    pub id: u32,
    /// The membership in a multicast group that it is about.
    pub multicast: Option<u32>,
    /// The id of the connection that is requested.
    pub request: Option<u32>,
    /// As the program reads it.
    pub response: EventResp,
}

/// An event channel.
pub struct Channel {
    ours: OwnedFd,
    /// The program's end, for taking back a byte that it has not read. A duplicate, as the program may close its descriptor
    /// and use the number again.
    theirs: OwnedFd,
    events: VecDeque<Event>,
    /// The byte is in the socket, or a thread has read it and not come back yet.
    signalled: bool,
    /// The ids whose events come here.
    pub ids: BTreeSet<u32>,
}

impl Channel {
    /// A new channel, and the program's end of it: close-on-exec and blocking.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn open() -> Result<(Channel, OwnedFd), Errno> {
        let (ours, program) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let (ours, theirs) = (out_of_the_way(ours), duplicate(&program)?);
        Ok((Channel { ours, theirs, events: VecDeque::new(), signalled: false, ids: BTreeSet::new() }, program))
    }

    /// Number of queued events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Enqueues an event.
    pub fn push(&mut self, event: Event) {
        self.events.push_back(event);
        self.signal();
    }

    /// The event that is dequeued next.
    pub fn front(&self) -> Option<&Event> {
        self.events.front()
    }

    /// Dequeues an event.
    pub fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        self.signal();
        event
    }

    /// Takes out the events for which `take` is true, in their order.
    pub fn extract(&mut self, take: impl Fn(&Event) -> bool) -> Vec<Event> {
        if !self.events.iter().any(&take) {
            return Vec::new();
        }
        let (taken, kept) = self.events.drain(..).partition::<Vec<_>, _>(take);
        self.events = kept.into();
        self.signal();
        taken
    }

    /// A thread has read the byte: another one is written when there is an event.
    pub fn byte_read(&mut self) {
        self.signalled = false;
        self.signal();
    }

    /// Puts the byte into the socket, or takes it out.
    fn signal(&mut self) {
        if self.events.is_empty() != self.signalled {
            return;
        }
        if self.signalled {
            // A thread may have read it; then it comes back with the byte and finds no event.
            let taken = recv(self.theirs.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT);
            self.signalled = taken != Ok(1);
        } else {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            self.signalled = send(self.ours.as_raw_fd(), &[0], flags) == Ok(1);
        }
    }
}
