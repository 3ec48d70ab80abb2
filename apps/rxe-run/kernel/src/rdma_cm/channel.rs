//! Event channels: what the program gets from opening the device.
//!
//! The program's descriptor is one end of a pair of connected sockets, so that `poll`, `epoll` and `O_NONBLOCK` are the
//! kernel's. There is one byte in the socket while events are queued. A thread of the program that has to wait for an event reads
//! that byte without our lock, and comes back with it: see [`Wait`].

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use super::abi::EventResp;

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

/// Both ends of a channel. A waiting thread shares them: it must not wake up because the channel is closed, nor read from a file
/// that gets the same descriptor.
#[derive(Debug)]
pub struct Sockets {
    program: OwnedFd,
    kernel: OwnedFd,
}

/// An event channel.
pub struct Channel {
    sockets: Arc<Sockets>,
    events: VecDeque<Event>,
    /// The byte is in the socket, or a thread has read it and not come back yet.
    signalled: bool,
    /// The ids whose events come here.
    pub ids: BTreeSet<u32>,
}

impl Channel {
    /// A new channel.
    ///
    /// # Errors
    /// What `socketpair` fails with.
    pub fn open() -> Result<Channel, Errno> {
        let (program, kernel) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let sockets = Arc::new(Sockets { program, kernel });
        Ok(Channel { sockets, events: VecDeque::new(), signalled: false, ids: BTreeSet::new() })
    }

    /// The program's descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.sockets.program.as_raw_fd()
    }

    /// Both ends.
    #[cfg(test)]
    pub fn sockets(&self) -> &Arc<Sockets> {
        &self.sockets
    }

    /// The descriptors, to be closed.
    pub fn close(self) -> Closed {
        Closed { _sockets: self.sockets }
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

    /// Prepares a thread for waiting until an event is queued.
    pub fn wait(&self) -> Wait {
        Wait(Arc::clone(&self.sockets))
    }

    /// Whether a thread waits for this channel, and not for one that had the same descriptor before.
    pub fn is_of(&self, wait: &Wait) -> bool {
        Arc::ptr_eq(&self.sockets, &wait.0)
    }

    /// A thread has read the byte. The caller dequeues an event or calls [`signal`](Self::signal), if there is one.
    pub fn returned(&mut self) {
        self.signalled = false;
    }

    /// Puts the byte into the socket, or takes it out.
    pub fn signal(&mut self) {
        if self.events.is_empty() != self.signalled {
            return;
        }
        if self.signalled {
            // A thread may have read it; then it comes back with the byte and finds no event.
            let taken = recv(self.descriptor(), &mut [0], MsgFlags::MSG_DONTWAIT);
            self.signalled = taken != Ok(1);
        } else {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            self.signalled = send(self.sockets.kernel.as_raw_fd(), &[0], flags) == Ok(1);
        }
    }
}

/// The program's descriptor.
impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

/// A channel that was closed. Its descriptors are closed when this is dropped, which need not happen under the lock of
/// [`RdmaCm`](super::RdmaCm), or with the last thread that waits for it.
#[derive(Debug)]
pub struct Closed {
    _sockets: Arc<Sockets>,
}

/// A thread of the program has to wait for an event.
///
/// Release the lock of [`RdmaCm`](super::RdmaCm), call [`wait`](Self::wait), take the lock and call
/// [`RdmaCm::resume`](super::RdmaCm::resume). Several threads may wait for one channel; one event wakes one of them. When the
/// channel is closed meanwhile, its threads wait for ever, as they do in a kernel.
#[derive(Debug)]
pub struct Wait(Arc<Sockets>);

impl Wait {
    /// Blocks until an event may be there.
    ///
    /// # Errors
    /// The error of the program's `write`: `EAGAIN` when the program has made the descriptor non-blocking, `EINTR` when a signal
    /// was caught.
    pub fn wait(&self) -> Result<(), Errno> {
        match nix::unistd::read(&*self.0, &mut [0])? {
            // Only if the program has shut down the socket, which it does not know to be one.
            0 => Err(Errno::EIO),
            _ => Ok(()),
        }
    }

    /// The program's descriptor.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.program.as_raw_fd()
    }
}

/// A caller that waits by its own means reads one byte from it.
impl AsFd for Wait {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
