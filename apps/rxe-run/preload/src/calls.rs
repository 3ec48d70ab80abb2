//! `write`, `ioctl` and `socket`.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::{ptr, slice};

use libc::{size_t, ssize_t};
use nix::errno::Errno;
use rxe_uverbs::backend::Answer;
use rxe_uverbs::descriptors::{Entry, Kind};
use rxe_uverbs::inside::is_inside;
use rxe_uverbs::uverbs::RDMA_VERBS_IOCTL;

use crate::files::{self, Step, Wait};
use crate::netlink;
use crate::process::{DESCRIPTORS, exits_in_another_thread};
use crate::real;

unsafe extern "C-unwind" {
    /// See `read_byte.c`.
    fn rxe_verbs_read_byte(fd: c_int, wait: u64) -> ssize_t;
    fn poll(descriptors: *mut libc::pollfd, count: libc::nfds_t, milliseconds: c_int) -> c_int;
}

/// # Safety
/// As of `write` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    match DESCRIPTORS.get(fd) {
        // SAFETY: the caller's arguments.
        Some(entry) if matches!(entry.file.kind, Kind::Uverbs | Kind::RdmaCm) => unsafe {
            if is_inside() { write_inside(fd, entry, buffer, length) } else { write_command(fd, entry, buffer, length) }
        },
        // SAFETY: the caller's arguments.
        _ => unsafe { write_foreign(fd, buffer, length) },
    }
}

/// # Safety
/// As of `write` of libc.
unsafe fn write_foreign(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    match real::write.get() {
        // SAFETY: the caller's arguments.
        Some(write) => unsafe { write(fd, buffer, length) },
        None => -1,
    }
}

/// A write while this thread is in the library: of the library itself, to a descriptor with the number of a file whose end was not
/// seen, or of a signal handler of the program, to one of our files.
///
/// # Safety
/// As of `write` of libc.
unsafe fn write_inside(fd: c_int, entry: Entry, buffer: *const c_void, length: size_t) -> ssize_t {
    if !files::is_open(fd, entry) {
        // SAFETY: the caller's arguments.
        return unsafe { write_foreign(fd, buffer, length) };
    }
    if buffer.is_null() || length > isize::MAX as usize {
        Errno::EFAULT.set();
        return -1;
    }
    // SAFETY: the program passes `length` readable bytes, and does not change them during the call.
    match files::interrupting_command(entry, unsafe { slice::from_raw_parts(buffer.cast::<u8>(), length) }) {
        Ok(()) => length as ssize_t,
        Err(error) => {
            error.set();
            -1
        }
    }
}

/// No frame of this function needs clean-up while it waits: the thread may be cancelled then.
///
/// # Safety
/// As of `write` of libc.
unsafe fn write_command(fd: c_int, entry: Entry, buffer: *const c_void, length: size_t) -> ssize_t {
    if buffer.is_null() || length > isize::MAX as usize {
        Errno::EFAULT.set();
        return -1;
    }
    // SAFETY: the program passes `length` readable bytes, and does not change them during the call.
    let command = unsafe { slice::from_raw_parts(buffer.cast::<u8>(), length) };
    match files::command(fd, entry, command) {
        Ok(Step::Done) => length as ssize_t,
        // SAFETY: the caller's arguments.
        Ok(Step::Foreign) => unsafe { write_foreign(fd, buffer, length) },
        // SAFETY: a wait has begun.
        Ok(Step::ReadByte(wait)) => unsafe { wait_and_write(fd, wait, command) },
        Err(error) => fails(error),
    }
}

/// The result of a call that fails. A kernel ends the threads that are in a call together with the process, so they do not see the
/// end of a device: a thread stays here while another one ends the process.
fn fails(error: Errno) -> ssize_t {
    while exits_in_another_thread() {
        // SAFETY: there are no descriptors. The thread may be cancelled here.
        unsafe { poll(ptr::null_mut(), 0, 10) };
    }
    error.set();
    -1
}

/// # Safety
/// `wait` has begun. It ends here.
unsafe fn wait_and_write(fd: c_int, wait: Wait, command: &[u8]) -> ssize_t {
    loop {
        // SAFETY: the function only reads from the descriptor. When the thread is cancelled there, it ends the wait.
        let result = match unsafe { rxe_verbs_read_byte(fd, wait.to_bits()) } {
            1 => files::command_again(wait, command),
            // The adapter has ended.
            0 => Err(Errno::EIO),
            _ => Err(Errno::last()),
        };
        match result {
            Ok(Answer::ReadByte) => {}
            Ok(Answer::Done) => {
                files::end_wait(wait);
                return command.len() as ssize_t;
            }
            Err(error) => {
                files::end_wait(wait);
                return fails(error);
            }
        }
    }
}

/// The argument is passed on as it is: when the caller passes none it has an arbitrary value, and the real function ignores it.
///
/// # Safety
/// As of `ioctl` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: c_long) -> c_int {
    if request == RDMA_VERBS_IOCTL
        && !is_inside()
        && let Some(entry) = DESCRIPTORS.get(fd).filter(|entry| entry.file.kind == Kind::Uverbs)
        && files::is_open(fd, entry)
    {
        return match files::ioctl(entry, argument as u64) {
            Ok(()) => 0,
            Err(error) => fails(error) as c_int,
        };
    }
    match real::ioctl.get() {
        // SAFETY: the caller's arguments.
        Some(ioctl) => unsafe { ioctl(fd, request, argument) },
        None => -1,
    }
}

/// Opens a socket of RDMA netlink here, also where the kernel has one.
///
/// # Safety
/// As of `socket` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA {
        return netlink::open(kind).unwrap_or_else(|error| {
            error.set();
            -1
        });
    }
    match real::socket.get() {
        // SAFETY: the caller's arguments.
        Some(socket) => unsafe { socket(domain, kind, protocol) },
        None => -1,
    }
}
