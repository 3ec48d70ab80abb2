//! The functions that close and duplicate descriptors. Those of the library, which the program does not know of, stay open and keep their
//! numbers: a program may close all that it does not know, and the library would then write to whatever gets the numbers.

use std::ffi::{c_int, c_long, c_uint};

use nix::errno::Errno;
use rxe_uverbs::descriptors::PRIVATE;
use rxe_uverbs::inside::is_inside;

use crate::files;
use crate::process::{DESCRIPTORS, Process};
use crate::real;

/// Whether this call of the program must not touch `fd`. A child that shares our memory has a copy of it, and may.
fn is_protected(fd: c_int) -> bool {
    PRIVATE.has(fd) && !is_inside() && is_this()
}

fn is_this() -> bool {
    Process::current().is_some_and(Process::is_this)
}

fn fails(error: Errno) -> c_int {
    error.set();
    -1
}

/// # Safety
/// As of `close` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_protected(fd) {
        return fails(Errno::EBADF);
    }
    if is_inside() {
        PRIVATE.remove(fd);
    }
    // One of the library's own with the number of a file whose end was not seen, or of a signal handler while the library holds
    // its locks: the entry is looked at when the number is used again.
    if let Some(entry) = DESCRIPTORS.get(fd)
        && !is_inside()
    {
        files::close(fd, entry);
    }
    match real::close.get() {
        // SAFETY: the caller's argument.
        Some(close) => unsafe { close(fd) },
        None => -1,
    }
}

/// # Safety
/// As of `close_range` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let Some(close_range) = real::close_range.get() else { return -1 };
    let closes = flags.cast_unsigned() & libc::CLOSE_RANGE_CLOEXEC == 0 && first <= last;
    if !closes || is_inside() || !is_this() {
        // SAFETY: the caller's arguments.
        return unsafe { close_range(first, last, flags) };
    }
    DESCRIPTORS.in_range(first, last, files::close);
    let (mut from, mut flags) = (first, flags);
    while let Some(private) = PRIVATE.next(from).filter(|&private| private <= last) {
        if from < private {
            // SAFETY: a part of the caller's range.
            if unsafe { close_range(from, private - 1, flags) } != 0 {
                return -1;
            }
            // The table of descriptors is this thread's own by now.
            flags &= !libc::CLOSE_RANGE_UNSHARE.cast_signed();
        }
        from = private + 1;
    }
    // SAFETY: a part of the caller's range.
    if from > last { 0 } else { unsafe { close_range(from, last, flags) } }
}

/// # Safety
/// As of `closefrom` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let errno = Errno::last_raw();
    // SAFETY: the caller's argument.
    unsafe {
        if close_range(first.max(0).cast_unsigned(), c_uint::MAX, 0) != 0
            && let Some(closefrom) = real::closefrom.get()
        {
            closefrom(first);
        }
    }
    Errno::set_raw(errno);
}

/// Notes that `to` has become another number of `from`, if that is a file of ours.
fn duplicated(from: c_int, to: c_int) {
    if to >= 0
        && from != to
        && !is_inside()
        && let Some(entry) = DESCRIPTORS.get(from)
    {
        files::duplicated(from, entry, to);
    }
}

/// Ends the file that has the number `to`, which is about to be another one's.
fn replaced(from: c_int, to: c_int) {
    if from != to
        && !is_inside()
        && let Some(entry) = DESCRIPTORS.get(to)
    {
        files::close(to, entry);
    }
}

/// # Safety
/// As of `dup` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    let Some(dup) = real::dup.get() else { return -1 };
    // SAFETY: the caller's argument.
    let number = unsafe { dup(fd) };
    duplicated(fd, number);
    number
}

/// # Safety
/// As of `dup2` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    let Some(dup2) = real::dup2.get() else { return -1 };
    if is_protected(to) {
        return fails(Errno::EBUSY);
    }
    // SAFETY: the caller's arguments.
    let number = unsafe { dup2(from, to) };
    if number >= 0 {
        replaced(from, to);
        duplicated(from, to);
    }
    number
}

/// # Safety
/// As of `dup3` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    let Some(dup3) = real::dup3.get() else { return -1 };
    if is_protected(to) {
        return fails(Errno::EBUSY);
    }
    // SAFETY: the caller's arguments.
    let number = unsafe { dup3(from, to, flags) };
    if number >= 0 {
        replaced(from, to);
        duplicated(from, to);
    }
    number
}

macro_rules! fcntl_functions {
    ($($name:ident),*) => { $(
        /// The argument is passed on as it is: when the caller passes none it has an arbitrary value, and the real function ignores it.
        ///
        /// # Safety
        /// As of the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, command: c_int, argument: c_long) -> c_int {
            let Some(fcntl) = real::$name.get() else { return -1 };
            // SAFETY: the caller's arguments.
            let result = unsafe { fcntl(fd, command, argument) };
            if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
                duplicated(fd, result);
            }
            result
        }
    )* };
}

fcntl_functions!(fcntl, fcntl64);
