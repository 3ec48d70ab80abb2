//! Event channels: what the program gets from opening the device.
//!
//! The program's descriptor is the reading end of a pipe, so that `poll`, `epoll` and `O_NONBLOCK` are the kernel's; as with the
//! device, it is never ready for writing. There is one byte in the pipe while events are queued. A thread of the program that has to
//! wait for an event reads that byte, and comes back with it.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::stat::Mode;
use nix::unistd::{pipe2, read, write};

use super::abi::EventResp;
use crate::descriptors::out_of_the_way;

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
    /// The reading end, opened once more, for taking back a byte that the program has not read. It does not block, whatever the
    /// program's descriptor does, and with it the pipe has a reader when the program has closed its own.
    theirs: OwnedFd,
    events: VecDeque<Event>,
    /// The byte is in the pipe, or a thread has read it and not come back yet.
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
        let (program, ours) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let theirs = out_of_the_way(open(path.as_str(), flags, Mode::empty())?);
        let ours = out_of_the_way(ours);
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

    /// Puts the byte into the pipe, or takes it out.
    fn signal(&mut self) {
        if self.events.is_empty() != self.signalled {
            return;
        }
        if self.signalled {
            // A thread may have read it; then it comes back with the byte and finds no event.
            self.signalled = read(&self.theirs, &mut [0]) != Ok(1);
        } else {
            self.signalled = write(&self.ours, &[0]) == Ok(1);
        }
    }
}
