//! Waiting for packets, and for other threads.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use rxe_sync::WakeFlag;

use crate::config::moved;
use crate::rx::MAX_GROUPS;

/// Wakes the thread that waits on a port, from any thread.
///
/// A thread's writes before [`wake`](Self::wake) are visible to the thread of the port when its wait has returned.
#[derive(Clone)]
pub struct Waker(Arc<Wakeup>);

struct Wakeup {
    flag: WakeFlag,
    event: OwnedFd,
}

impl Waker {
    /// A waker whose descriptor has a number from `lowest_descriptor` on, if one is free.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn new(lowest_descriptor: RawFd) -> io::Result<Waker> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let event = moved(event, lowest_descriptor);
        Ok(Waker(Arc::new(Wakeup { flag: WakeFlag::default(), event })))
    }

    /// Waits until one of `readable`, of which there are at most 34, can be read, `writable` can be written, this waker was used, or
    /// `timeout` has passed.
    ///
    /// # Errors
    /// Those of ppoll, which are defects.
    pub fn wait<'a>(
        &'a self,
        readable: impl Iterator<Item = BorrowedFd<'a>>,
        writable: Option<BorrowedFd<'a>>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        wait(readable, writable, self, timeout)
    }

    /// Ends the current wait of the port's thread, or else its next one, at once. Between two waits only the first call costs a
    /// system call.
    pub fn wake(&self) {
        if self.0.flag.raise() {
            // It can fail only when the counter is about to overflow, and then the event is pending.
            let _ = write(&self.0.event, &1_u64.to_ne_bytes());
        }
    }
}

impl AsFd for Waker {
    /// The descriptor of the event, which is readable while the waker was used and no wait has ended since.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Waits until one of `readable` can be read, `writable` can be written, `waker` was used, or `timeout` has passed.
fn wait<'a>(
    readable: impl Iterator<Item = BorrowedFd<'a>>,
    writable: Option<BorrowedFd<'a>>,
    waker: &'a Waker,
    timeout: Option<Duration>,
) -> io::Result<()> {
    let event = waker.as_fd();
    let mut all = readable
        .map(|socket| PollFd::new(socket, PollFlags::POLLIN))
        .chain(writable.map(|socket| PollFd::new(socket, PollFlags::POLLOUT)));
    // The event, then the sockets: one of the address, twice, those of the groups, and one descriptor of the caller's.
    let mut count = 1;
    let mut descriptors: [PollFd<'_>; MAX_GROUPS + 4] = std::array::from_fn(|index| {
        let next = if index == 0 { None } else { all.next() };
        count += usize::from(next.is_some());
        next.unwrap_or(PollFd::new(event, PollFlags::POLLIN))
    });
    let timeout = timeout.map(TimeSpec::from_duration);
    match ppoll(&mut descriptors[..count], timeout, None) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    if descriptors[0].any().unwrap_or(true) {
        // The event first: a thread that raises the flag after this sets the event again.
        let _ = read(&waker.0.event, &mut [0_u8; 8]);
        waker.0.flag.lower();
    }
    Ok(())
}
