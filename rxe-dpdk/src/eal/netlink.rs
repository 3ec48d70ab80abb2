//! The kernel's messages about network interfaces, as bytes.

use std::ffi::CStr;
use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A socket on which the kernel reports each change of an interface of the network namespace, and of its addresses.
#[derive(Debug)]
pub struct LinkEvents(OwnedFd);

/// Why a wait is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The other end of the pipe is closed.
    Stopped,
    /// There may be messages.
    Messages,
    /// The time is over.
    TimedOut,
}

impl LinkEvents {
    /// Opens the socket.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn open() -> io::Result<LinkEvents> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: an ordinary call; the result is checked.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made and nobody else knows it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: numbers only, for which zeros are valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
        let len = size_of::<libc::sockaddr_nl>() as u32;
        // SAFETY: `address` is a sockaddr_nl, and `len` its length.
        if unsafe { libc::bind(fd, (&raw const address).cast(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(LinkEvents(socket))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Whatever the kernel refuses.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        // SAFETY: the pointer is to as many bytes as said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The next messages, without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there are none; ENOBUFS when some were lost.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the pointer is to as many bytes as said, which are written.
        let len = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(len).map_err(|_| io::Error::last_os_error())
    }
}

/// Waits for messages, for the end of `stop`, or for `timeout`.
pub fn wait_for_links(events: Option<&LinkEvents>, stop: &PipeReader, timeout: Duration) -> Woken {
    let entry = |fd: i32| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // poll(2) passes over a negative descriptor.
    let mut polled = [entry(stop.as_raw_fd()), entry(events.map_or(-1, |events| events.0.as_raw_fd()))];
    let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: two entries, as said.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), 2, timeout) };
    match polled {
        _ if ready <= 0 => Woken::TimedOut,
        [stop, _] if stop.revents != 0 => Woken::Stopped,
        _ => Woken::Messages,
    }
}

/// The name of the interface with this index.
pub fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer holds IF_NAMESIZE bytes, which is what is written at most, a zero at the end.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the name was written, with its zero, into a buffer that is still borrowed.
    let name = unsafe { CStr::from_ptr(found) };
    Some(name.to_string_lossy().into_owned())
}
