//! Sockets of RDMA netlink, and the functions by which programs use them.
//!
//! The program has one end of a pair of Unix sockets, so that receiving, waiting and closing are the kernel's. A request is answered while
//! it is sent, into the other end. What a Unix socket does not have, addresses and options of netlink, is made here.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::{ptr, slice};

use libc::{iovec, msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send as send_message, socketpair};
use nix::unistd::getpid;
use rxe_uverbs::descriptors::{Entry, File, Kind, out_of_the_way};
use rxe_uverbs::inside::is_inside;
use rxe_uverbs::netlink::View;

use crate::files::is_open;
use crate::guard::guarded;
use crate::process::{DESCRIPTORS, Process};
use crate::real;

/// Most bytes of a datagram with requests.
const MAX_REQUEST: usize = 1 << 16;

/// Opens a socket of RDMA netlink. `kind` is the type that the program asks for, with its flags. Returns the descriptor.
///
/// # Errors
/// `EPROTONOSUPPORT` when there is no device, or in a signal handler that interrupts the library: then libibverbs reads sysfs.
pub fn open(kind: c_int) -> Result<c_int, Errno> {
    let process = if is_inside() { Err(Errno::EPROTONOSUPPORT) } else { Process::get() };
    let process = process.map_err(|_| Errno::EPROTONOSUPPORT)?;
    guarded(|| {
        if !process.is_this() {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let flags = SockFlag::from_bits_truncate(kind);
        let (program, ours) = socketpair(AddressFamily::Unix, SockType::Datagram, None, flags)?;
        let ours = out_of_the_way(ours);
        DESCRIPTORS.insert(&program, File { kind: Kind::Netlink, handle: ours.as_raw_fd().cast_unsigned() })?;
        // `files` closes it when the program has closed the last descriptor of its own.
        let _open = ours.into_raw_fd();
        Ok(program.into_raw_fd())
    })
}

/// The entry of a socket of ours.
fn own(fd: RawFd) -> Option<Entry> {
    DESCRIPTORS.get(fd).filter(|entry| entry.file.kind == Kind::Netlink && !is_inside() && is_open(fd, *entry))
}

/// Answers requests.
fn answer(entry: Entry, requests: &[u8]) -> ssize_t {
    let answered = guarded(|| {
        let process = Process::current().filter(|_| !entry.inherited).ok_or(Errno::EIO)?;
        let (device, local, objects) = process.view();
        for answer in (View { device, local, objects }).answers(requests) {
            // What a program does not read is lost, as with a kernel.
            let _full =
                send_message(entry.file.handle.cast_signed(), &answer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        }
        Ok(requests.len() as ssize_t)
    });
    answered.unwrap_or_else(|error| {
        error.set();
        -1
    })
}

/// # Safety
/// `buffer` has `length` readable bytes.
unsafe fn answer_buffer(entry: Entry, buffer: *const c_void, length: size_t) -> ssize_t {
    if buffer.is_null() || length > MAX_REQUEST {
        Errno::EINVAL.set();
        return -1;
    }
    // SAFETY: by the contract of this function; the program does not change them during the call.
    answer(entry, unsafe { slice::from_raw_parts(buffer.cast(), length) })
}

/// An address of netlink, to where a program wants it.
///
/// # Safety
/// `to` is null or has `room` writable bytes.
unsafe fn write_address(port: u32, to: *mut c_void, room: socklen_t) -> socklen_t {
    let length = size_of::<sockaddr_nl>() as socklen_t;
    if !to.is_null() {
        // SAFETY: the structure is plain data, of which as much is copied as there is room for.
        unsafe {
            let mut address: sockaddr_nl = std::mem::zeroed();
            (address.nl_family, address.nl_pid) = (libc::AF_NETLINK as u16, port);
            ptr::copy_nonoverlapping(ptr::from_ref(&address).cast::<u8>(), to.cast(), room.min(length) as usize);
        }
    }
    length
}

macro_rules! real_or_fail {
    ($name:ident($($argument:expr),*)) => {
        match real::$name.get() {
            // SAFETY: the caller's arguments.
            Some(function) => unsafe { function($($argument),*) },
            None => -1,
        }
    };
}

/// # Safety
/// As of `bind` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    if own(fd).is_some() { 0 } else { real_or_fail!(bind(fd, address, length)) }
}

/// # Safety
/// As of `getsockname` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    if own(fd).is_none() || length.is_null() {
        return real_or_fail!(getsockname(fd, address, length));
    }
    // SAFETY: the caller passes an address with room for the number of bytes at `length`.
    unsafe { *length = write_address(getpid().as_raw().cast_unsigned(), address.cast(), *length) };
    0
}

/// # Safety
/// As of `setsockopt` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if level == libc::SOL_NETLINK && own(fd).is_some() {
        return 0;
    }
    real_or_fail!(setsockopt(fd, level, name, value, length))
}

/// # Safety
/// As of `send` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    match own(fd) {
        // SAFETY: the caller's arguments.
        Some(entry) => unsafe { answer_buffer(entry, buffer, length) },
        None => real_or_fail!(send(fd, buffer, length, flags)),
    }
}

/// # Safety
/// As of `sendto` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_length: socklen_t,
) -> ssize_t {
    match own(fd) {
        // SAFETY: the caller's arguments.
        Some(entry) => unsafe { answer_buffer(entry, buffer, length) },
        None => real_or_fail!(sendto(fd, buffer, length, flags, address, address_length)),
    }
}

/// # Safety
/// As of `sendmsg` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(entry) = own(fd).filter(|_| !message.is_null()) else { return real_or_fail!(sendmsg(fd, message, flags)) };
    // SAFETY: the caller passes a message with as many buffers as it says.
    let buffers: &[iovec] = unsafe {
        match (*message).msg_iov {
            buffers if buffers.is_null() => &[],
            buffers => slice::from_raw_parts(buffers, (*message).msg_iovlen),
        }
    };
    let mut requests = Vec::new();
    for buffer in buffers.iter().filter(|buffer| !buffer.iov_base.is_null()) {
        if requests.len() + buffer.iov_len > MAX_REQUEST {
            Errno::EINVAL.set();
            return -1;
        }
        // SAFETY: a buffer of the caller.
        requests.extend_from_slice(unsafe { slice::from_raw_parts(buffer.iov_base.cast(), buffer.iov_len) });
    }
    answer(entry, &requests)
}

/// # Safety
/// As of `recvfrom` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller passes an address with room for so many bytes, or none.
    let room = if address_length.is_null() { 0 } else { unsafe { *address_length } };
    let received = real_or_fail!(recvfrom(fd, buffer, length, flags, address, address_length));
    if received >= 0 && !address_length.is_null() && own(fd).is_some() {
        // SAFETY: as above.
        unsafe { *address_length = write_address(0, address.cast(), room) };
    }
    received
}

/// # Safety
/// As of `recvmsg` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller passes a message.
    let room = if message.is_null() { 0 } else { unsafe { (*message).msg_namelen } };
    let received = real_or_fail!(recvmsg(fd, message, flags));
    if received >= 0 && own(fd).is_some() {
        // SAFETY: the message is not null, as the kernel has received one, and its address has room for so many bytes.
        unsafe { (*message).msg_namelen = write_address(0, (*message).msg_name, room) };
    }
    received
}
