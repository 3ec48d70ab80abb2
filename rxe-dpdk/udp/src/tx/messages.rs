//! sendmmsg with the segment length of each datagram as a control message: the only file of this crate with `unsafe`.
//!
//! As an option of the socket, the length would be set before each datagram of another one: the first packet of a WRITE is longer than
//! the others, so a long message would take four system calls.

#![allow(unsafe_code)]

use std::io::IoSlice;
use std::mem::{self, offset_of};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::{io, ptr};

use rustix::net::SocketAddrAny;

/// A datagram to send.
pub(super) struct Message<'a> {
    pub(super) destination: &'a SocketAddrAny,
    pub(super) payloads: &'a [IoSlice<'a>],
    /// Length of the packets, of which the last may be shorter; `None` for one packet.
    pub(super) segment: Option<u16>,
}

/// A control message with a segment length.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    header: libc::cmsghdr,
    segment: u16,
}

/// Sends messages, at most `N`. Returns how many the kernel has accepted.
///
/// # Errors
/// That of the first message.
pub(super) fn send<'a, const N: usize>(
    socket: &UdpSocket,
    messages: impl Iterator<Item = Message<'a>>,
) -> io::Result<usize> {
    // SAFETY: both are plain data of C, for which zeroes are valid: no address, no bytes, no control message.
    let (mut headers, mut controls): ([libc::mmsghdr; N], [Control; N]) = unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut count = 0;
    for ((message, header), control) in messages.zip(&mut headers).zip(&mut controls) {
        let header = &mut header.msg_hdr;
        // Nothing is written there, though C has no type for that.
        header.msg_name = message.destination.as_ptr().cast_mut().cast();
        header.msg_namelen = message.destination.addr_len();
        // An `IoSlice` has the layout of C's `iovec`.
        header.msg_iov = message.payloads.as_ptr().cast_mut().cast();
        header.msg_iovlen = message.payloads.len();
        if let Some(segment) = message.segment {
            control.header.cmsg_len = offset_of!(Control, segment) + size_of::<u16>();
            control.header.cmsg_level = libc::SOL_UDP;
            control.header.cmsg_type = libc::UDP_SEGMENT;
            control.segment = segment;
            header.msg_control = ptr::from_mut(control).cast();
            header.msg_controllen = size_of::<Control>();
        }
        count += 1;
    }
    // SAFETY: the first `count` headers refer to addresses, payloads and control messages with the lengths beside them, which the
    // iterator's items and this function keep until the end of the call.
    let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
