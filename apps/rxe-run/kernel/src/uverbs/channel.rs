//! Event channels: what a program reads completion events and asynchronous events from.
//!
//! A channel is a pair of connected sockets that keep message boundaries: a read returns one event, as from the kernel's
//! descriptor. The program has one end, this side writes to the other and never waits. What the socket does not take is kept
//! here until the program has read.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockname, recv, send, socketpair,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::descriptors::{duplicate, out_of_the_way};

/// Most events that wait in one channel for the socket to take them. A program that reads none cannot use up memory.
const MAX_WAITING: usize = 1 << 16;

/// This side of a channel of events of type `E`.
#[derive(Debug)]
pub(super) struct Channel<E> {
    ours: OwnedFd,
    /// The program's end, for taking back what it has not read. A duplicate, as the program may close its descriptor and
    /// use the number again.
    theirs: OwnedFd,
    /// The name of the program's end, which no other socket has.
    name: UnixAddr,
    /// Events that the socket had no room for.
    waiting: VecDeque<E>,
}

impl<E: FromBytes + IntoBytes + Immutable> Channel<E> {
    /// A channel, and the program's end of it.
    ///
    /// # Errors
    /// `EMFILE` and the like when there are no more descriptors.
    pub(super) fn new() -> Result<(Channel<E>, OwnedFd), Errno> {
        let (ours, program) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let (ours, theirs) = (out_of_the_way(ours), duplicate(&program)?);
        // The kernel chooses a name.
        bind(program.as_raw_fd(), &UnixAddr::new_unnamed())?;
        let name = getsockname(program.as_raw_fd())?;
        Ok((Channel { ours, theirs, name, waiting: VecDeque::new() }, program))
    }

    /// Whether `fd` is a descriptor of the program's end.
    pub(super) fn is_open_as(&self, fd: RawFd) -> bool {
        getsockname::<UnixAddr>(fd).is_ok_and(|name| name == self.name)
    }

    /// Adds an event. Returns false if the channel is full and the event is lost.
    pub(super) fn push(&mut self, event: E) -> bool {
        self.flush();
        if self.waiting.is_empty() && self.send(&event) {
            return true;
        }
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        self.waiting.push_back(event);
        true
    }

    /// Passes on what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self) {
        while let Some(event) = self.waiting.front()
            && self.send(event)
        {
            self.waiting.pop_front();
        }
    }

    /// Whether events wait for room in the socket.
    pub(super) fn is_full(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Our end of a channel that was closed.
    pub(super) fn into_end(self) -> OwnedFd {
        self.ours
    }

    /// Takes back the events that match and that the program has not read. Returns how many.
    pub(super) fn take_back(&mut self, matches: impl Fn(&E) -> bool) -> u32 {
        let before = self.waiting.len();
        let mut kept = VecDeque::new();
        let mut taken = 0;
        let mut event = E::new_zeroed();
        // The program may read at the same time; each event is got by one of the two. The events in the socket end,
        // as only this side adds any.
        while recv(self.theirs.as_raw_fd(), event.as_mut_bytes(), MsgFlags::MSG_DONTWAIT) == Ok(size_of::<E>()) {
            let next = std::mem::replace(&mut event, E::new_zeroed());
            if matches(&next) {
                taken += 1;
            } else {
                kept.push_back(next);
            }
        }
        self.waiting.retain(|event| !matches(event));
        taken += (before - self.waiting.len()) as u32;
        kept.append(&mut self.waiting);
        self.waiting = kept;
        self.flush();
        taken
    }

    /// False when the socket has no room.
    fn send(&self, event: &E) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(self.ours.as_raw_fd(), event.as_bytes(), flags).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::read;

    fn read_all(fd: &OwnedFd) -> Vec<u64> {
        nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        let mut events = Vec::new();
        let mut event = [0; 16];
        loop {
            match read(fd, &mut event) {
                Ok(8) => events.push(u64::from_ne_bytes(*event.first_chunk().unwrap())),
                Err(Errno::EAGAIN) => return events,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn unread_events_are_taken_back_and_the_others_stay_in_order() {
        let (mut channel, program) = Channel::<u64>::new().unwrap();
        for event in [1, 2, 1, 3, 1] {
            assert!(channel.push(event));
        }
        let mut first = [0; 8];
        assert_eq!(read(&program, &mut first), Ok(8));
        assert_eq!(channel.take_back(|&event| event == 1), 2, "the first one has been read");
        assert_eq!(read_all(&program), [2, 3]);
        assert_eq!(channel.take_back(|_| true), 0);
    }

    #[test]
    fn events_that_the_socket_does_not_take_wait() {
        let (mut channel, program) = Channel::<u64>::new().unwrap();
        let mut pushed = 0;
        while !channel.is_full() {
            assert!(channel.push(pushed));
            pushed += 1;
        }
        for _ in 0..10 {
            assert!(channel.push(pushed));
            pushed += 1;
        }
        let mut events = Vec::new();
        while (events.len() as u64) < pushed {
            events.extend(read_all(&program));
            channel.flush();
        }
        assert_eq!(events, (0..pushed).collect::<Vec<_>>());
        assert!(!channel.is_full());
    }

    #[test]
    fn a_program_that_never_reads_is_bounded() {
        let (mut channel, _program) = Channel::<u64>::new().unwrap();
        let mut kept = 0;
        while channel.push(kept) {
            kept += 1;
        }
        assert!(kept >= MAX_WAITING as u64);
        assert_eq!(u64::from(channel.take_back(|_| true)), kept);
    }

    #[test]
    fn the_programs_end_is_recognised_by_any_descriptor_of_it() {
        let (channel, program) = Channel::<u64>::new().unwrap();
        let (other, _) = Channel::<u64>::new().unwrap();
        let copy = program.try_clone().unwrap();
        assert!(channel.is_open_as(program.as_raw_fd()) && channel.is_open_as(copy.as_raw_fd()));
        assert!(!other.is_open_as(program.as_raw_fd()) && !channel.is_open_as(0) && !channel.is_open_as(-1));
    }
}
