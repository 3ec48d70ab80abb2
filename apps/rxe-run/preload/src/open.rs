//! The functions that open files and look at paths.
//!
//! `open` and its like have a variable number of arguments, the last of which is the mode of a new file. Rust cannot define such
//! functions. On the ABIs of Linux a variable argument of this type is passed as the third or fourth named one is, so these
//! functions have it as a named one; when the caller passes none it has an arbitrary value, and the real function ignores it.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use libc::{DIR, FILE, dirent, mode_t, size_t, ssize_t};

use crate::files;
use crate::paths::{self, OwnPath, PathBuffer};
use crate::process::Process;
use crate::real::{self, Compare, Filter};

/// The value by which a function reports an error.
pub trait Failure {
    /// The value.
    const FAILURE: Self;
}

impl Failure for c_int {
    const FAILURE: c_int = -1;
}

impl Failure for ssize_t {
    const FAILURE: ssize_t = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: *mut T = ptr::null_mut();
}

/// The file that `path` names, if it is ours.
///
/// # Safety
/// `path` is null or a C string.
pub unsafe fn own(path: *const c_char) -> Option<OwnPath> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller passes a C string, which stays as it is during the call.
    paths::own(unsafe { CStr::from_ptr(path) })
}

/// Calls `function` with the path that `path` has in the folder of this process.
///
/// # Safety
/// `path` is a C string.
#[cold]
pub unsafe fn inside<R: Failure>(path: *const c_char, function: impl FnOnce(*const c_char) -> R) -> R {
    let mut buffer = PathBuffer::new();
    // SAFETY: the caller passes a C string, which stays as it is during the call.
    let path = unsafe { CStr::from_ptr(path) };
    let inside = Process::get().and_then(|process| buffer.below(process.folder(), path));
    match inside {
        Ok(inside) => function(inside),
        Err(error) => {
            error.set();
            R::FAILURE
        }
    }
}

/// Calls `function` with `path` or, if it is ours, with the path of its file.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn redirected<R: Failure>(path: *const c_char, function: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: by the contract of this function, and `own` finds no null pointer ours.
    unsafe { if own(path).is_some() { inside(path, function) } else { function(path) } }
}

/// Opens a device, or else calls `function` as [`redirected`] does.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn opened(path: *const c_char, flags: c_int, function: impl FnOnce(*const c_char) -> c_int) -> c_int {
    // SAFETY: by the contract of this function.
    match unsafe { own(path) } {
        None => function(path),
        // Such a descriptor is for the status of the path only.
        Some(OwnPath { device: Some(device) }) if flags & libc::O_PATH == 0 => match files::open(device, flags) {
            Ok(fd) => fd,
            Err(error) => {
                error.set();
                -1
            }
        },
        // SAFETY: the path is not null, as it is ours.
        Some(_) => unsafe { inside(path, function) },
    }
}

macro_rules! open_functions {
    ($(fn $name:ident $([$before:ident: c_int])? (path, flags $(, $mode:ident)?);)*) => { $(
        /// # Safety
        /// As of the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($before: c_int,)?
            path: *const c_char,
            flags: c_int,
            $($mode: mode_t,)?
        ) -> c_int {
            let function = |path| match real::$name.get() {
                // SAFETY: the caller's arguments, or a C string as the path.
                Some(function) => unsafe { function($($before,)? path, flags $(, $mode)?) },
                None => -1,
            };
            // SAFETY: the caller's path.
            unsafe { opened(path, flags, function) }
        }
    )* };
}

open_functions! {
    fn open(path, flags, mode);
    fn open64(path, flags, mode);
    fn openat[folder: c_int](path, flags, mode);
    fn openat64[folder: c_int](path, flags, mode);
    fn __open_2(path, flags);
    fn __open64_2(path, flags);
    fn __openat_2[folder: c_int](path, flags);
    fn __openat64_2[folder: c_int](path, flags);
}

macro_rules! path_functions {
    ($(fn $name:ident $([$before:ident: $before_type:ty])? (path $(, $after:ident: $after_type:ty)*) -> $result:ty;)*) => { $(
        /// # Safety
        /// As of the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($before: $before_type,)?
            path: *const c_char,
            $($after: $after_type),*
        ) -> $result {
            let function = |path| match real::$name.get() {
                // SAFETY: the caller's arguments, or a C string as the path.
                Some(function) => unsafe { function($($before,)? path $(, $after)*) },
                None => <$result>::FAILURE,
            };
            // SAFETY: the caller's path.
            unsafe { redirected(path, function) }
        }
    )* };
}

path_functions! {
    fn fopen(path, mode: *const c_char) -> *mut FILE;
    fn fopen64(path, mode: *const c_char) -> *mut FILE;
    fn opendir(path) -> *mut DIR;
    fn scandir(path, names: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int;
    fn scandir64(path, names: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int;
    fn access(path, mode: c_int) -> c_int;
    fn eaccess(path, mode: c_int) -> c_int;
    fn euidaccess(path, mode: c_int) -> c_int;
    fn faccessat[folder: c_int](path, mode: c_int, flags: c_int) -> c_int;
    fn readlink(path, buffer: *mut c_char, length: size_t) -> ssize_t;
    fn readlinkat[folder: c_int](path, buffer: *mut c_char, length: size_t) -> ssize_t;
    fn __readlink_chk(path, buffer: *mut c_char, length: size_t, room: size_t) -> ssize_t;
    fn __readlinkat_chk[folder: c_int](path, buffer: *mut c_char, length: size_t, room: size_t) -> ssize_t;
    fn chdir(path) -> c_int;
}

/// # Safety
/// As of `realpath` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn realpath(path: *const c_char, buffer: *mut c_char) -> *mut c_char {
    let function = |path| match real::realpath.get() {
        // SAFETY: the caller's arguments, or a C string as the path.
        Some(function) => unsafe { function(path, buffer) },
        None => ptr::null_mut(),
    };
    // SAFETY: the caller's path; the function returns null or a C string.
    unsafe { resolved(path, function) }
}

/// # Safety
/// As of `__realpath_chk` of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __realpath_chk(
    path: *const c_char,
    buffer: *mut c_char,
    length: size_t,
) -> *mut c_char {
    let function = |path| match real::__realpath_chk.get() {
        // SAFETY: the caller's arguments, or a C string as the path.
        Some(function) => unsafe { function(path, buffer, length) },
        None => ptr::null_mut(),
    };
    // SAFETY: the caller's path; the function returns null or a C string.
    unsafe { resolved(path, function) }
}

/// Calls `function` as [`redirected`] does, and maps the result back: to a path that the program knows.
///
/// # Safety
/// `path` is null or a C string; `function` returns null or a C string that may be changed.
unsafe fn resolved(path: *const c_char, function: impl FnOnce(*const c_char) -> *mut c_char) -> *mut c_char {
    // SAFETY: by the contract of this function.
    if unsafe { own(path) }.is_none() {
        return function(path);
    }
    // SAFETY: the path is not null, as it is ours.
    let result = unsafe { inside(path, function) };
    if let Some(process) = Process::current()
        && !result.is_null()
    {
        // SAFETY: the result is a C string, which no other code has yet.
        let inside = unsafe { CStr::from_ptr(result) }.to_bytes_with_nul();
        let outside = paths::outside(process.folder(), inside);
        // SAFETY: the source is the end of the string at the destination, terminator included.
        unsafe { ptr::copy(outside.as_ptr(), result.cast(), outside.len()) };
    }
    result
}
